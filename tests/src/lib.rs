//! Fixtures for the tests of Pando above the unit.
//!
//! [`rules`] is a world around the rules alone, and [`mail`] a simulation of their mailboxes. `cluster` runs real `pando-node` processes on loopback; `wait` waits for
//! conditions with a bound and says what it last saw; `bench` measures. Nothing here sleeps for a state. What needs more than the rules stands
//! behind the feature `fixtures`, which is on by default.

pub mod beats;
#[cfg(feature = "fixtures")]
pub mod bench;
#[cfg(feature = "fixtures")]
pub mod cluster;
#[cfg(feature = "fixtures")]
pub mod disk;
pub mod mail;
#[cfg(feature = "fixtures")]
pub mod namespace;
#[cfg(feature = "fixtures")]
pub mod programs;
pub mod rules;
#[cfg(feature = "fixtures")]
pub mod terminal;
#[cfg(feature = "fixtures")]
pub mod wait;

//! Fixtures for the tests of Pando above the unit.
//!
//! [`rules`] is a world around the rules alone. [`cluster`] runs real `pando-node` processes on loopback; [`wait`] waits for
//! conditions with a bound and says what it last saw. Nothing here sleeps for a state.

pub mod cluster;
pub mod programs;
pub mod rules;
pub mod wait;

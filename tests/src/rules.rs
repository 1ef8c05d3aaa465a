//! Fixtures for the tests of the rules: runners that are not there, time that stands still, and books kept by others.
//!
//! ```text
//!   World (stories) ─────┐
//!                        ├──► Sim: one cluster, fake runners ──► apply ──► invariants, ledger, copies, twice
//!   Generator (seeds) ───┘
//! ```
//!
//! Nothing here uses a clock or the system's dice: a seed tells the whole run.

pub mod copies;
pub mod coverage;
pub mod dice;
pub mod drains;
pub mod generator;
pub mod groups;
pub mod healing;
pub mod ledger;
pub mod names;
pub mod payers;
pub mod places;
pub mod replay;
pub mod runner;
pub mod sim;
pub mod specs;
pub mod trees;
pub mod unreachable;
pub mod world;

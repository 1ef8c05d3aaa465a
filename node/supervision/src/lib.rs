//! The rules of Pando: what happens to a supervision tree when processes crash, nodes go away and operators speak.
//!
//! ```text
//!   (Stamp, Command) ──► apply ──► Cluster'  +  Applied { outcome, events }
//!                                    │
//!                                    ├─► desired(node)      what should run there
//!                                    ├─► next_deadline      when a tick is due
//!                                    └─► report             what people see
//! ```
//!
//! No clock, dice, IO, async, logging, hash maps or floats: the same log gives the same state, to the byte, on every
//! machine. Nothing here acts: runners compare [`desired::desired`] with what runs.

pub mod apply;
pub mod cluster;
pub mod command;
pub mod parts;

pub use apply::apply;
pub use cluster::Cluster;
pub use command::{Applied, Batch, Command, Done, Event, Outcome, Stamp};

//! The rules of Pando: what happens to a supervision tree when processes crash, nodes go away and operators speak.
//!
//! ```text
//!   (Stamp, Command) ──► apply ──► Cluster'  +  Applied { outcome, events }
//!                                    │
//!                                    ├─► desired(node)      what should run there; plan: what its runner does
//!                                    ├─► next_deadline      when a tick is due
//!                                    └─► report             what people see
//!
//!   apply ─┬─ due          delays that are over
//!          ├─ trees        specs, and what changed ones change ┐
//!          ├─ operators    start, stop, restart               │
//!          ├─ nodes        sessions, reports, losses          ├──► supervisors, stopping ──► placement
//!          ├─ endings      who pays for an ending             ┘   │    └── restarts: budgets and backoff
//!          │     └──────────────┐                                 └── groups, places: one for all, rest for one
//!          └─ mail         messages: sent, handed out, settled, blamed, set aside
//! ```
//!
//! No clock, dice, IO, async, logging, hash maps or floats: the same log gives the same state, to the byte, on every
//! machine. Nothing here acts: runners compare [`desired::desired`] with what runs.

pub mod apply;
mod causes;
pub mod change;
pub mod cluster;
mod colocation;
pub mod command;
mod departures;
pub mod desired;
mod differences;
mod due;
mod endings;
mod explain;
mod groups;
pub mod invariants;
pub mod mail;
pub mod mutation;
pub mod nodes;
mod operators;
pub mod parts;
pub mod placement;
mod places;
pub mod report;
pub mod restarts;
mod stopping;
mod supervisors;
pub mod trees;
mod unreachable;

pub use apply::{apply, next_deadline};
pub use cluster::Cluster;
pub use command::{Applied, Batch, Command, Done, EndProof, Event, EventKind, Outcome, Stamp};
pub use endings::MAX_UNPAID;

/// The version of the rules that this build knows.
pub const RULES: u32 = mail::MAIL_RULES;

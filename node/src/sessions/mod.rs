//! The leader's half of sessions: grants them, answers beats, ends those that fall silent, and tells runners what should
//! run.
//!
//! ```text
//!   runner ◄─ streams ─► [serve] ──► proposer         grants, observations
//!                          │ ▲
//!                    beats ▼ │ answers, after a proof
//!                        [keeper] ──► proposer        the end of silent sessions
//!   guard of a dead node ── obituary ──┘
//! ```
//!
//! Every voter serves streams, so that a runner need not find the leader; only the confirmed leader speaks. Nothing here
//! decides what runs: that is derived from the state.

mod beats;
#[cfg(test)]
mod fixture;
mod hands;
mod keeper;
mod leases;
mod stream;

pub use keeper::{Keeper, KeeperHandle};
pub use leases::{Leases, MARGIN};
pub use stream::{attend, serve};

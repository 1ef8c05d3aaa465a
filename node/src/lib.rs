//! The node of a Pando cluster: the control plane of a voter, and the runner that every node has.
//!
//! ```text
//!   transport ─┬─ raft streams ──► raft ──► storage          control: the handle to it all
//!              ├─ clients ───────► api ───► control
//!              ├─ sessions ──────► sessions ─► control       the leader's half
//!              └─ voters ◄─ runner ──► guard ──► reapers      the node's half
//! ```
//!
//! The rooms `raft`, `runner`, `api` and `sessions` do not reach into one another: [`node::run`] builds them and connects
//! them with handles and channels.

pub mod api;
pub mod config;
pub mod control;
pub mod directory;
mod disk;
pub mod freshness;
mod going;
#[cfg(test)]
mod golden;
pub mod guard;
pub mod http;
pub mod instruments;
pub mod launcher;
pub mod local;
pub mod node;
pub mod peer;
pub mod program;
pub mod raft;
pub mod runner;
pub mod sessions;
pub mod storage;
pub mod telemetry;
pub mod transport;
pub mod voter;

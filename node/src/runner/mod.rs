//! Runs what the cluster wants to run on this node.
//!
//! ```text
//!   voters ◄─ Ask, Beat, Observe ── [Runner] ── start, stop, renew ──► children ──► guard ──► reapers
//!          ── Granted, Answer, Desired ──►     ◄── started, ready, exited ──
//! ```
//!
//! The runner decides nothing about what should run: it compares what it is told with what runs (`plan`), and acts. It acts
//! under one session at a time, and never after its lease.

mod capture;
pub mod children;
mod environment;
mod error;
mod guard_watch;
mod kept;
pub mod lease;
mod link;
pub mod local;
mod log_writer;
pub mod logs;
mod loss;
mod memory;
mod outbox;
pub mod place;
mod processes;
mod ready;
pub mod record;
mod run;
mod run_table;
mod runs;
mod session;
mod start;
pub mod voters;
mod worker;

pub use error::{RunnerError, Silence};
pub use processes::{Processes, SignalReply, Signalled};
pub use session::{Facts, Feeds, LAST_WORD_LIMIT, LEAVE_LIMIT, Pace, Presence, Runner, RunnerHandle};

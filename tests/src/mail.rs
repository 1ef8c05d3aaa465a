//! A simulation of mailboxes: many fake runners and workers in one process, virtual time, and seeds.
//!
//! ```text
//!   sim ── commands ──► apply ──► invariants
//!    ▲  machines: runners, workers and what messages do to them
//!    └── books: who should pay, by design section 7, kept from what was said and compared with the state after each step
//! ```
//!
//! Only the choice of who gets what comes from the state; the books check that it was allowed.

pub mod books;
pub mod drive;
pub mod machines;
pub mod sim;
pub mod story;

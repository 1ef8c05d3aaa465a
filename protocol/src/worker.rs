//! What a worker and its node say to each other: one JSON object a line, over the Unix socket in `$PANDO_SOCKET`. Design
//! section 7.
//!
//! ```text
//!   node ── message, stop, error ──► worker        one connection a run; the worker connects
//!        ◄── ready, started, progress, done, failed, returned ──
//! ```
//!
//! A child has a socket where its spec has a `mailbox`. Its standard output and standard error stay its own. Fields that are not
//! named here are ignored, on both sides.
//!
//! # To the worker
//!
//! | line | meaning |
//! | --- | --- |
//! | `{"type":"message","id":"m1","attempt":1,"life":1,"payload":"…","headers":{}}` | A message to work on. `payload` is its text; one that is no UTF-8 comes as `payload_base64` (RFC 4648, padded) instead. `attempt` counts from 1: the charged ones of this life before it, and this one. `life` is one more with each redrive. |
//! | `{"type":"stop"}` | Finish or give back what is held, and exit. The stop signal of the spec follows at once, and SIGKILL after its `shutdown`. What is settled until the end counts; the rest goes to other workers, uncharged. |
//! | `{"type":"error","error":"…"}` | The last line but one could not be taken, and changed nothing; why. |
//!
//! # From the worker
//!
//! | line | meaning |
//! | --- | --- |
//! | `{"type":"ready","starts":true,"prefetch":100}` | The first line, once. `starts` (default false): it says `started` before it works on a message, and may hold `prefetch` of them (default and most: the mailbox's own). Without `starts` it gets one at a time, and getting it is starting it. |
//! | `{"type":"started","id":"m1"}` | It works on this one now: a crash from here on is this message's. |
//! | `{"type":"progress","id":"m1"}` | It still does: the `handling_timeout` counts from here again. |
//! | `{"type":"done","id":"m1","reply":"…"}` | It is handled. `reply` (or `reply_base64`) is for whoever asked, and may be left out. `ids` takes several, without a reply. |
//! | `{"type":"failed","id":"m1","error":"…","retry":true}` | It could not be handled; the attempt is charged. With `"retry":false` (default true) it is rejected: set aside at once. |
//! | `{"type":"returned","id":"m1"}` | It was not worked on; another worker gets it, uncharged. `ids` takes several. |
//!
//! # Limits
//!
//! | what | bound | beyond it |
//! | --- | --- | --- |
//! | a line from the worker | [`MAX_LINE`] bytes | it is skipped to its end, and an `error` comes back |
//! | a reply | [`MAX_PAYLOAD`] bytes | an `error`; the message is still held |
//! | the text of an error | [`MAX_FAILURE`](crate::mail::MAX_FAILURE) bytes | cut |
//! | lines that cannot be taken | [`NONSENSE_IN_A_ROW`], or [`NONSENSE_IN_A_RUN`] altogether | the worker is killed as unhealthy, and no message pays |
//! | time from its start to `ready`, where the spec says no other `ready` | [`READY_WITHIN`] | it is killed as not ready |
//! | time that a started message makes no progress | the mailbox's `handling_timeout` | it is killed, and the message pays |
//! | time that it holds messages and starts none | the same | it is killed as unhealthy, and no message pays |
//!
//! A line cannot be taken where it is no JSON object, has an unknown `type` or lacks a field, and where it is about a message that
//! the worker does not hold. A worker that closes its socket while it goes on running is killed, and what it had started pays.

mod client;
mod lines;
mod words;

use std::time::Duration;

pub use client::{Failure, Progress, Reply, SOCKET_VARIABLE, Worker, WorkerError};
pub use lines::{Line, Lines};
pub use words::{FromWorker, Message, ToWorker};

use crate::mail::MAX_PAYLOAD;

/// Most bytes of a line from a worker: a whole reply as base64, and room for the rest of the line.
pub const MAX_LINE: usize = MAX_PAYLOAD / 3 * 4 + (64 << 10);
/// Most bytes of a line to a worker: text of control characters alone grows by six in JSON.
pub const MAX_LINE_TO_WORKER: usize = MAX_PAYLOAD * 6 + (256 << 10);
/// Lines that a worker may send one after the other that cannot be taken.
pub const NONSENSE_IN_A_ROW: u32 = 10;
/// Lines that a worker may send altogether that cannot be taken.
pub const NONSENSE_IN_A_RUN: u32 = 100;
/// How long a worker may take from its start to its `ready`, where its spec says no other measure of being ready.
pub const READY_WITHIN: Duration = Duration::from_secs(10);

//! Messages for workers: what is sent, handed out and settled, and what people see of it. Design section 7.
//!
//! ```text
//!   sender ── NewMessage ──► mailbox ── Hand ──► runner ── worker::ToWorker ──► worker
//!                               ▲                   │
//!                               └──── Settlement ◄──┴───── worker::FromWorker ── worker
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::cause::CauseClass;
use crate::ids::{Incarnation, NodeName, Path};

/// Most bytes in the payload of a message, or in a reply.
pub const MAX_PAYLOAD: usize = 1 << 20;
/// Most bytes in the headers of a message, names and values together.
pub const MAX_HEADERS: usize = 16 << 10;
/// Most bytes in the id of a message.
pub const MAX_MESSAGE_ID: usize = 256;
/// Most bytes that all mailboxes of a cluster hold together, dead letters included. Design section 7.
pub const MAX_MAIL_BYTES: u64 = 512 << 20;
/// What a message counts against bounds of bytes beyond its payload, headers and id.
pub const MESSAGE_OVERHEAD: u64 = 128;
/// Most bytes of a worker's own word about a failure.
pub const MAX_FAILURE: usize = 4 << 10;
/// Most messages in one request.
pub const MAX_BATCH: usize = 10_000;
/// Most bytes of messages in one request: with it, no request comes near the bound of a frame.
pub const MAX_BATCH_BYTES: usize = 2 << 20;

/// Bytes that nobody but sender and worker reads.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Payload(Arc<[u8]>);

impl Payload {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// As text where they are UTF-8, else as base64.
    pub fn shown(&self) -> Shown {
        match std::str::from_utf8(&self.0) {
            Ok(text) => Shown::Text(text.to_owned()),
            Err(_) => Shown::Base64(self.to_base64()),
        }
    }

    /// As base64 (RFC 4648, with padding).
    pub fn to_base64(&self) -> String {
        STANDARD.encode(&self.0)
    }

    /// The bytes that a base64 text (RFC 4648, with padding) says.
    ///
    /// # Errors
    /// A text that is no base64; in words.
    pub fn from_base64(text: &str) -> Result<Self, String> {
        STANDARD.decode(text).map(Into::into).map_err(|error| format!("this is no base64: {error}"))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Bytes in a form that fits into JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// They are text.
    Text(String),
    /// They are none: base64 (RFC 4648, with padding).
    Base64(String),
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl From<&str> for Payload {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().into())
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = String::from_utf8_lossy(self.0.get(..64).unwrap_or(&self.0));
        write!(f, "{shown:?} ({} bytes)", self.0.len())
    }
}

impl Serialize for Payload {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl serde::de::Visitor<'_> for Bytes {
            type Value = Payload;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Payload, E> {
                Ok(Payload(bytes.into()))
            }
            fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Payload, E> {
                Ok(bytes.into())
            }
        }
        deserializer.deserialize_byte_buf(Bytes)
    }
}

/// The headers of a message: small texts beside its payload.
pub type Headers = BTreeMap<String, String>;

/// A message as it is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewMessage {
    /// The producer's own name for it: another message of this id is taken for the same one, as long as this one is known and
    /// ten minutes after. `None`: the mailbox names it, and every send is another message. 1 to [`MAX_MESSAGE_ID`] bytes, not
    /// beginning with `#`.
    pub id: Option<Arc<str>>,
    /// Small texts beside the payload; at most [`MAX_HEADERS`] bytes.
    pub headers: Headers,
    /// At most [`MAX_PAYLOAD`] bytes.
    pub payload: Payload,
}

impl NewMessage {
    /// A message without id and headers.
    pub fn of(payload: impl Into<Payload>) -> Self {
        Self { id: None, headers: Headers::new(), payload: payload.into() }
    }

    /// What it counts against bounds of bytes.
    pub fn weight(&self) -> u64 {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        let id = self.id.as_ref().map_or(0, |id| id.len());
        (headers + id + self.payload.len()) as u64 + MESSAGE_OVERHEAD
    }
}

/// What became of messages that were sent. In the order of the request, new ones have the numbers from `first` on, by one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// The number of the first new message in its mailbox.
    pub first: u64,
    /// How many are new.
    pub accepted: u64,
    /// Those that were known by their id already, and were not sent again.
    pub known: Vec<Known>,
}

/// A message that was known already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// Its place in the request, from 0.
    pub index: u32,
    /// Its number in its mailbox.
    pub number: u64,
}

/// Which dead letters are meant: those that every part says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Letters {
    /// Only these; empty: all.
    pub ids: Vec<String>,
    /// Only those that died so.
    pub cause: Option<DeathKind>,
    /// Only those whose last attempt was by this worker.
    pub worker: Option<Path>,
    /// Only those that have been dead for at least this long.
    pub older_than: Option<Duration>,
    /// Only those with this text in an error of theirs.
    pub text: Option<String>,
}

/// Why a message is a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeathKind {
    /// It was charged with as many attempts as its mailbox allows.
    Attempts,
    /// It was accused of the loss of as many nodes as its mailbox allows.
    NodeLosses,
    /// A worker said that it can never be handled.
    Rejected,
    /// Its mailbox was taken out of its tree, and an operator had what was in it kept.
    Closed,
}

impl DeathKind {
    /// Every kind, in order.
    pub const ALL: [Self; 4] = [Self::Attempts, Self::NodeLosses, Self::Rejected, Self::Closed];

    /// The stable word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Attempts => "attempts",
            Self::NodeLosses => "node_losses",
            Self::Rejected => "rejected",
            Self::Closed => "closed",
        }
    }
}

impl fmt::Display for DeathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What becomes of messages whose mailbox a change takes away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Leftover {
    /// The change is refused while there are any.
    #[default]
    Refuse,
    /// They become dead letters of a closed mailbox, and are kept.
    DeadLetter,
    /// They are purged, dead letters too.
    Purge,
}

/// A message in the hands of a runner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hand {
    /// From 1, by one, in each session: whoever has seen a higher one has seen this one.
    pub number: u64,
    /// The worker it is for.
    pub worker: Path,
    /// The run that it is for.
    pub incarnation: Incarnation,
    /// Its id.
    pub id: String,
    /// The attempt of this life, from 1: charged ones before it, and this one.
    pub attempt: u32,
    /// The life, from 1: one more with each redrive.
    pub life: u32,
    /// Whether somebody waits for the reply: nobody keeps another one.
    pub asks: bool,
    /// Its headers.
    pub headers: Headers,
    /// Its payload.
    pub payload: Payload,
}

/// What a worker, or its runner for it, says of a message that it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settlement {
    /// The number of its [`Hand`].
    pub hand: u64,
    /// What it says.
    pub word: Word,
}

impl Settlement {
    /// The bytes that it takes at most where it waits or is on its way.
    pub fn weight(&self) -> usize {
        let said = match &self.word {
            Word::Done { reply } => reply.as_ref().map_or(0, Payload::len),
            Word::Failed { error } | Word::Rejected { error } => error.len(),
            Word::Returned => 0,
        };
        SETTLEMENT_OVERHEAD + said
    }
}

/// What a settlement weighs beside its reply or error: more than it takes on its way.
const SETTLEMENT_OVERHEAD: usize = 64;

/// How a worker settles a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Word {
    /// It is handled.
    Done {
        /// For whoever asked; at most [`MAX_PAYLOAD`] bytes.
        reply: Option<Payload>,
    },
    /// It could not be handled: the message is charged.
    Failed {
        /// Why; at most [`MAX_FAILURE`] bytes.
        error: String,
    },
    /// It can never be handled: set aside at once.
    Rejected {
        /// Why; at most [`MAX_FAILURE`] bytes.
        error: String,
    },
    /// It was not worked on: another worker gets it.
    Returned,
}

/// What a worker is ready for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    /// Whether it says when it starts to work on a message. If not, it gets one at a time, and getting it is starting it.
    pub starts: bool,
    /// Most messages that it holds at once; at least 1.
    pub prefetch: u32,
}

/// A mailbox, in `pando mailbox`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailboxRow {
    /// The worker or pool that it belongs to.
    pub path: Path,
    /// Messages that were taken in, ever. `enqueued = done + dead + waiting + in_flight + purged`.
    pub enqueued: u64,
    /// Handled.
    pub done: u64,
    /// Dead letters now.
    pub dead: u64,
    /// To be handed out, those in a delay or waiting for a verdict included.
    pub waiting: u64,
    /// Held by workers.
    pub in_flight: u64,
    /// Purged by operators.
    pub purged: u64,
    /// Of the waiting ones, those in a retry delay or a redrive's turn.
    pub delayed: u64,
    /// Of the waiting ones, those whose charges wait for the verdict on a worker.
    pub undecided: u64,
    /// Of the waiting ones, those that are handed out alone, since they are accused of a crash together with others.
    pub suspects: u64,
    /// Attempts that messages were charged with.
    pub charged: u64,
    /// Hand-outs beyond the first of each life.
    pub redelivered: u64,
    /// Bytes that count against `max_bytes`, dead letters included.
    pub bytes: u64,
    /// The bound of messages, dead letters included.
    pub max_messages: u64,
    /// The bound of bytes.
    pub max_bytes: u64,
    /// Milliseconds of cluster time since the oldest waiting message was enqueued.
    pub oldest_ms: Option<u64>,
    /// Messages taken in during the last 60 s.
    pub enqueued_per_minute: u64,
    /// Messages done during the last 60 s.
    pub done_per_minute: u64,
    /// Whether an operator paused it: nothing is handed out.
    pub paused: bool,
    /// Whether its worker is gone from the tree: only dead letters are left.
    pub closed: bool,
    /// Why nothing flows, where nothing does though messages wait.
    pub blocked: Option<String>,
    /// Its workers.
    pub workers: Vec<WorkerRow>,
}

/// One worker of a mailbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerRow {
    /// The worker.
    pub path: Path,
    /// Where it runs; `None` while it is not ready for messages.
    pub node: Option<NodeName>,
    /// Its run.
    pub incarnation: Option<Incarnation>,
    /// Messages that it holds.
    pub in_flight: u64,
    /// Messages that it may hold.
    pub prefetch: u32,
    /// Messages that it has done.
    pub done: u64,
    /// Different messages that it crashed on with no success between.
    pub streak: u32,
    /// Whether it is taken for sick: it gets one message at a time, and crashes are its own.
    pub sick: bool,
}

/// A dead letter, in `pando dead-letters`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetterRow {
    /// Its id.
    pub id: String,
    /// Its number in its mailbox.
    pub number: u64,
    /// Its mailbox.
    pub mailbox: Path,
    /// The life in which it died.
    pub life: u32,
    /// Why it is dead.
    pub cause: DeathKind,
    /// One sentence.
    pub why: String,
    /// Since when, in milliseconds since the Unix epoch.
    pub died: u64,
    /// When it was enqueued, in milliseconds since the Unix epoch.
    pub enqueued: u64,
    /// Its headers.
    pub headers: Headers,
    /// Its payload as text; empty in a list that was asked for without payloads.
    pub payload: String,
    /// Its payload as base64, where it is no text.
    pub payload_base64: Option<String>,
    /// Its bytes.
    pub bytes: u64,
    /// The attempts that are kept, those of former lives included, the oldest first: of each life the first and the newest.
    pub attempts: Vec<AttemptRow>,
    /// Attempts that are not kept any more.
    pub attempts_left_out: u32,
}

/// One attempt at a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptRow {
    /// The life it belongs to.
    pub life: u32,
    /// The worker.
    pub worker: Path,
    /// Where it ran.
    pub node: NodeName,
    /// Its run.
    pub incarnation: Incarnation,
    /// When it was handed out, in milliseconds since the Unix epoch.
    pub began: u64,
    /// When it ended, in milliseconds since the Unix epoch.
    pub ended: u64,
    /// How it ended.
    pub how: AttemptEnd,
    /// The class of the run's ending, where that ended it.
    pub class: Option<CauseClass>,
    /// One sentence.
    pub why: String,
    /// The last lines of the run's standard error, where its ending ended the attempt.
    pub stderr: String,
    /// Whether it counts toward `max_attempts`.
    pub charged: bool,
    /// Who paid, or why nobody did, in words.
    pub payer: String,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptEnd {
    /// The worker's run ended while it worked on it.
    Crashed,
    /// The worker said that it failed.
    Failed,
    /// The worker said that it can never be handled.
    Rejected,
    /// The node was lost while it was held there.
    NodeLost,
    /// It was given back, or its worker was stopped.
    Returned,
}

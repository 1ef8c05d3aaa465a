//! Mailboxes: what is in them, who works on it, and what became of it. Design section 7.
//!
//! ```text
//!   sending ──► queue ──► handing ──► (worker) ──► settling ──► done
//!                 ▲                       │            └──────► letters: dead, redriven, purged
//!                 └──── blame, losses ◄───┘ its run ended
//! ```
//!
//! A message and its attempts change in the same log entry as the run that ended, so no count can be lost with a node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use imbl::{OrdMap, OrdSet};
use pando_protocol::cause::{CauseChain, CauseClass};
use pando_protocol::ids::{Incarnation, NodeName, Path, SessionId};
use pando_protocol::mail::{AttemptEnd, DeathKind, Headers, Leftover, Payload, Readiness};
use pando_protocol::spec::MailboxSpec;
use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, Supervisor};
use crate::restarts::Rate;

mod blame;
mod handing;
pub mod hands;
mod letters;
mod losses;
mod pace;
mod queue;
pub mod report;
mod sending;
mod settling;
mod sweeps;
mod upkeep;

pub use pace::{MOST_AHEAD, Pace};
pub use sweeps::{Chore, SWEPT_AT_ONCE, Sweep};

/// The version of the rules that brought mailboxes and pools.
pub const MAIL_RULES: u32 = 2;
/// Attempts that are kept of each message, over all its lives.
pub const ATTEMPTS_KEPT: usize = 50;
/// Attempts that are kept of each of its lives.
pub const LIFE_KEPT: usize = 20;
/// Of those that are kept, the first that are never left out for newer ones: what began it tells most.
pub const FIRST_KEPT: usize = 3;
/// Most bytes that an attempt says why in a mailbox that is full: what it keeps cannot be refused, only be short.
pub const SHORT_WHY: usize = 128;
/// Most bytes of standard error that an attempt keeps.
pub const ATTEMPT_STDERR: usize = 1 << 10;
/// Cluster time for which the id of a message that is done or purged is still known. Design section 7.
pub const IDS_KNOWN_FOR: Duration = Duration::from_secs(600);
/// Ids of messages that are done or purged that a mailbox still knows, the newest.
pub const IDS_KEPT: usize = 100_000;
/// Cluster time for which the reply to a message is kept for whoever asks.
pub const REPLIES_KEPT_FOR: Duration = Duration::from_secs(60);
/// Replies that a mailbox keeps, the newest.
pub const MAIL_REPLIES_KEPT: usize = 1_000;

/// The mailbox of a worker or pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mailbox {
    /// What the spec says of it.
    pub spec: MailboxSpec,
    /// An operator paused it: nothing is handed out.
    pub paused: bool,
    /// Its worker is gone from the tree, and this becomes of what is in it.
    pub closed: Option<Leftover>,
    /// What is still to be done with all that is in it. Nothing is handed out before.
    pub sweeps: BTreeMap<Chore, Sweep>,
    /// Messages that were named so far.
    pub named: u64,
    /// Accusations that were made so far.
    pub accused: u64,
    /// What became of messages.
    pub ledger: Ledger,
    /// What counts against its bound of bytes.
    pub bytes: u64,
    /// What of that is in the sum of the cluster; between two commands, all of it.
    pub summed: u64,
    /// Messages that wait or are held, by number.
    pub messages: OrdMap<u64, Message>,
    /// Where those that wait stand.
    pub queues: Queues,
    /// Dead letters, by number.
    pub dead: OrdMap<u64, Arc<DeadLetter>>,
    /// Producers' ids that are known, with the number of each.
    pub ids: OrdMap<Arc<str>, u64>,
    /// Those of messages that are done or purged, by when.
    pub ended_ids: OrdMap<(Duration, u64), Arc<str>>,
    /// What became of messages whose senders wait for a reply, by when and number.
    pub replies: OrdMap<(Duration, u64), Arc<KeptReply>>,
    /// When the newest of these became so, by number.
    pub replied: OrdMap<u64, Duration>,
    /// Everyone who works on it or did, by path.
    pub workers: OrdMap<Path, Arc<Worker>>,
    /// Workers that can take a message more, by how many they hold.
    pub free: OrdSet<(u64, Path)>,
    /// Workers with a streak of crashes.
    pub streaks: OrdSet<Path>,
    /// How many workers are well: ready, not being stopped, without a streak.
    pub well: u64,
    /// Crashes on several messages at once that are not explained yet.
    pub accusations: OrdMap<u64, Arc<Accusation>>,
    /// Held messages that are accused of the loss of a node, with the node that each is on now.
    pub risky: OrdMap<u64, NodeName>,
    /// When something of it is due, as it stands in the timers.
    pub wake: Option<Duration>,
    /// Messages taken in of late.
    pub enqueue_rate: Rate,
    /// Messages done of late.
    pub done_rate: Rate,
}

/// What became of messages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Taken in.
    pub enqueued: u64,
    /// Handled.
    pub done: u64,
    /// Purged by operators.
    pub purged: u64,
    /// Charged attempts, of all messages there ever were.
    pub charged: u64,
    /// Hand-outs.
    pub handed: u64,
    /// Hand-outs beyond the first of each life.
    pub redelivered: u64,
    /// Messages that became dead letters, by cause.
    pub died: BTreeMap<DeathKind, u64>,
    /// Attempts that the budget of a sick worker paid for.
    pub worker_paid: u64,
    /// Attempts that the loss of a node ended.
    pub node_losses: u64,
    /// Attempts that nobody paid for: given back, rejected, or on a sick worker that was replaced before it was well.
    pub unpaid: u64,
    /// Over the first hand-outs of all messages: the time that the message was in the mailbox before, in cluster time.
    pub waited: Duration,
    /// Over all messages done: the time that the worker held the message, in cluster time.
    pub worked: Duration,
}

/// Where messages that wait stand: each in one of these, as its [`State`] says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queues {
    /// Never accused of anything.
    pub fresh: OrdSet<u64>,
    /// Accused before, or redriven.
    pub again: OrdSet<u64>,
    /// Accused of the loss of a node: kept on different nodes.
    pub risky: OrdSet<u64>,
    /// Accused of a crash together with others: handed out alone.
    pub suspects: OrdSet<u64>,
    /// The same, of those that are accused of the loss of a node, too. Apart, so that none of the others is looked for behind them.
    pub risky_suspects: OrdSet<u64>,
    /// In a retry delay, or waiting for a redrive's turn.
    pub delayed: OrdSet<(Duration, u64)>,
    /// With as many attempts as are allowed if all undecided ones are charged: waits for the verdict on a worker.
    pub undecided: OrdSet<u64>,
}

/// A message that waits or is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// What was sent.
    pub content: Arc<Content>,
    /// What it went through; `None` for one that nothing has happened to.
    pub trouble: Option<Arc<Trouble>>,
    /// Where it is.
    pub state: State,
}

/// What was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// The producer's id, where it gave one.
    pub id: Option<Arc<str>>,
    /// Its headers.
    pub headers: Headers,
    /// Its payload.
    pub payload: Payload,
    /// When it was taken in.
    pub at: Duration,
    /// The same by the wall clock, in milliseconds since the Unix epoch.
    pub wall: u64,
    /// Whether the reply is kept for its sender.
    pub asks: bool,
}

/// Where a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// In [`Queues::fresh`].
    Fresh,
    /// In [`Queues::again`].
    Again,
    /// In [`Queues::risky`].
    Risky,
    /// In [`Queues::suspects`].
    Suspect,
    /// In [`Queues::risky_suspects`].
    RiskySuspect,
    /// In [`Queues::delayed`].
    Delayed(Duration),
    /// In [`Queues::undecided`].
    Undecided,
    /// A worker holds it, under this number of its session.
    Held(u64),
}

/// What a message went through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// From 1; one more with each redrive.
    pub life: u32,
    /// Attempts of this life that it was charged with.
    pub charged: u32,
    /// Attempts of this life that it is charged with once the verdict on a worker is that the worker is well.
    pub undecided: u32,
    /// Losses of nodes of this life that it is accused of.
    pub node_losses: u32,
    /// Whether it was ever accused of a crash or a loss.
    pub accused: bool,
    /// Whether it was handed out in this life.
    pub handed: bool,
    /// The accusation that it is part of.
    pub accusation: Option<u64>,
    /// Who had it last.
    pub last_worker: Option<Path>,
    /// Its attempts that are kept, the oldest first.
    pub attempts: Vec<Arc<Attempt>>,
    /// Attempts that are not kept any more.
    pub left_out: u32,
}

impl Default for Trouble {
    fn default() -> Self {
        Self {
            life: 1,
            charged: 0,
            undecided: 0,
            node_losses: 0,
            accused: false,
            handed: false,
            accusation: None,
            last_worker: None,
            attempts: Vec::new(),
            left_out: 0,
        }
    }
}

/// One attempt at a message that ended in anything but success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
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
    /// How.
    pub how: AttemptEnd,
    /// The class of the run's ending, where that ended it.
    pub class: Option<CauseClass>,
    /// One sentence.
    pub why: String,
    /// The run's last lines of standard error, where its ending ended the attempt.
    pub stderr: String,
    /// Who pays for it.
    pub payer: Payer,
}

/// Who pays for an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payer {
    /// The message: the attempt counts toward `max_attempts`.
    Message,
    /// The message, unless its worker turns out to be sick.
    Undecided,
    /// One of several messages, or the worker: each is handed out alone to see.
    OneOfSeveral,
    /// The budget of the worker, which is taken for sick.
    Worker,
    /// Nobody: its worker was replaced before there was a verdict on it.
    Replaced,
    /// Nobody: the loss of a node is counted for itself.
    NodeLoss,
    /// Nobody: it was given back.
    Nobody,
}

/// A message that is set aside until an operator redrives or purges it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// What was sent.
    pub content: Arc<Content>,
    /// What it went through.
    pub trouble: Arc<Trouble>,
    /// Why it is dead.
    pub kind: DeathKind,
    /// The same in a sentence.
    pub why: String,
    /// Since when, in cluster time.
    pub at: Duration,
    /// Since when, in milliseconds since the Unix epoch.
    pub wall: u64,
}

/// What became of a message whose sender waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptReply {
    /// The worker's reply, or why there will be none.
    pub reply: Result<Option<Payload>, String>,
}

/// Who works on a mailbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Its run, from its *ready* to its end.
    pub run: Option<WorkerRun>,
    /// Messages that it has done, in all its runs.
    pub done: u64,
    /// Crashes with no success between, whose charges are undecided.
    pub streak: Vec<Strike>,
    /// Taken for sick: it gets one never-accused message at a time, and its crashes are its own.
    pub sick: bool,
}

/// A run that is ready for messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerRun {
    /// Its number.
    pub incarnation: Incarnation,
    /// Where it runs.
    pub node: NodeName,
    /// Under which session of that node.
    pub session: SessionId,
    /// What it said that it is ready for.
    pub readiness: Readiness,
    /// It is being stopped, or its node goes: it gets nothing more.
    pub stopping: bool,
    /// It holds a suspect, and nothing beside it.
    pub alone: bool,
    /// Whether it has done a message.
    pub succeeded: bool,
    /// How quickly it settles.
    pub pace: Pace,
    /// The numbers of the messages that it holds, by the number of the hand.
    pub held: OrdMap<u64, u64>,
}

/// One crash of a streak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strike {
    /// The message that it was on.
    pub message: u64,
    /// The life of the message then: a later one owes nothing for it.
    pub life: u32,
    /// The run that ended.
    pub incarnation: Incarnation,
}

/// A crash on several messages at once: each is handed out alone. Who dies alone did it; if none does, the worker did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accusation {
    /// The worker that crashed.
    pub worker: Path,
    /// Its crash.
    pub cause: Arc<CauseChain>,
    /// The messages that have not been alone with a worker since.
    pub open: BTreeSet<u64>,
    /// Whether one of them is known to have done it, or cannot be tried any more.
    pub explained: bool,
}

/// A message in the hands of a runner, as its session has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Its mailbox.
    pub mailbox: Path,
    /// Its number there.
    pub message: u64,
    /// The worker it is for.
    pub worker: Path,
    /// The run it is for.
    pub incarnation: Incarnation,
    /// When it was handed out, in milliseconds since the Unix epoch.
    pub began: u64,
    /// The same in cluster time.
    pub at: Duration,
}

impl Content {
    /// The id under which people see it: the producer's, or one made of its number.
    pub fn shown_id(&self, number: u64) -> String {
        self.id.as_ref().map_or_else(|| format!("#{number}"), ToString::to_string)
    }

    /// What it counts against bounds of bytes.
    pub fn weight(&self) -> u64 {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        let id = self.id.as_ref().map_or(0, |id| id.len());
        (headers + id + self.payload.len()) as u64 + pando_protocol::mail::MESSAGE_OVERHEAD
    }
}

impl Trouble {
    /// What its evidence counts against bounds of bytes.
    pub fn weight(&self) -> u64 {
        self.attempts.iter().map(|attempt| attempt.weight()).sum()
    }
}

impl Attempt {
    fn weight(&self) -> u64 {
        (self.why.len() + self.stderr.len() + self.worker.as_str().len() + self.node.as_str().len()) as u64
            + pando_protocol::mail::MESSAGE_OVERHEAD
    }
}

impl Message {
    /// What it counts against bounds of bytes.
    pub fn weight(&self) -> u64 {
        self.content.weight() + self.trouble.as_ref().map_or(0, |trouble| trouble.weight())
    }

    /// Its life, from 1.
    pub fn life(&self) -> u32 {
        self.trouble.as_ref().map_or(1, |trouble| trouble.life)
    }

    /// Attempts of this life that it was charged with.
    pub fn charged(&self) -> u32 {
        self.trouble.as_ref().map_or(0, |trouble| trouble.charged)
    }

    /// Attempts of this life, those included that are charged once a worker turns out to be well.
    pub fn counted(&self) -> u32 {
        self.trouble.as_ref().map_or(0, |trouble| trouble.charged + trouble.undecided)
    }
}

impl DeadLetter {
    /// What it counts against bounds of bytes.
    pub fn weight(&self) -> u64 {
        self.content.weight() + self.trouble.weight() + self.why.len() as u64
    }
}

impl Mailbox {
    /// Messages that workers hold.
    pub fn in_flight(&self) -> u64 {
        self.messages.len() as u64 - self.waiting()
    }

    /// Messages that wait, those in a delay or for a verdict included.
    pub fn waiting(&self) -> u64 {
        let Queues { fresh, again, risky, suspects, risky_suspects, delayed, undecided } = &self.queues;
        let at_once = fresh.len() + again.len() + risky.len() + suspects.len() + risky_suspects.len();
        (at_once + delayed.len() + undecided.len()) as u64
    }

    /// Whether nothing is left that anybody could ask for.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.dead.is_empty()
    }
}

impl Worker {
    /// Different messages of its streak.
    pub fn different(&self) -> usize {
        self.streak.iter().map(|strike| strike.message).collect::<BTreeSet<_>>().len()
    }

    /// Whether it is ready, not being stopped, and under no suspicion.
    pub fn is_well(&self) -> bool {
        self.streak.is_empty() && self.run.as_ref().is_some_and(|run| !run.stopping)
    }

    /// Messages that it holds.
    pub fn held(&self) -> u64 {
        self.run.as_ref().map_or(0, |run| run.held.len() as u64)
    }
}

impl Cluster {
    /// The mailbox at `path`.
    pub fn mailbox(&self, path: &Path) -> Option<&Mailbox> {
        self.mail.get(path).map(Arc::as_ref)
    }

    /// The mailbox that the worker at `path` is fed from: its pool's, or its own.
    pub fn mailbox_of(&self, worker: &Path) -> Option<Path> {
        self.process(worker)?.spec.mailbox.as_ref()?;
        match worker.parent() {
            Some(pool) if self.supervisor(&pool).is_some_and(|Supervisor { is_pool, .. }| *is_pool) => Some(pool),
            _ => Some(worker.clone()),
        }
    }
}

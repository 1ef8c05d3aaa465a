//! What clients ask of a node, and what they get.
//!
//! Which role may ask what is decided by the node that is asked, `pando-node`'s `api::permissions`.
//!
//! A client opens one stream for each request: one [`Call`] frame, then one [`Answer`] frame. [`Call::Events`] and
//! [`Call::Logs`] answer with many frames, until the stream is finished.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{ClientId, Incarnation, NodeName, Path, TreeName};
use crate::mail::{DeadLetterRow, Leftover, Letters, MailboxRow, NewMessage, Payload, Sent};
use crate::rejection::Rejection;
use crate::spec::{Signal, TreeSpec};
use crate::view::{ClusterRow, EventRow, Explanation, HistoryRow, MemberRow, NodeRow, TreeRow, Verdict};

/// The ALPN of a connection: the protocol's version. Another version is refused before a byte of it is read.
pub const ALPN: &[u8] = b"pando/1";

/// The ALPNs to which whoever accepts QUIC agrees, ours first. The others only so that it can say which versions meet when it
/// closes the connection: a handshake that fails tells no version. A peer of a version beyond these fails in it all the same.
pub fn versions_to_answer() -> Vec<Vec<u8>> {
    let others = (1..=VERSIONS_TO_ANSWER).map(|version| format!("pando/{version}").into_bytes());
    std::iter::once(ALPN.to_vec()).chain(others.filter(|other| other != ALPN)).collect()
}

/// Versions of the protocol that are answered in words. More cost a comparison each, for each handshake.
const VERSIONS_TO_ANSWER: u8 = 64;

/// The first byte on every stream of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Channel {
    /// A client's request: one [`Call`].
    Client = 1,
    /// A runner's session: [`crate::session::RunnerWord`]s one way, [`crate::session::LeaderWord`]s the other. All but beats and
    /// messages.
    Session = 2,
    /// Raft, one append stream.
    RaftAppend = 3,
    /// Raft, one request.
    RaftCall = 4,
    /// Between nodes: one request.
    Peer = 5,
    /// A runner's beats, and their answers.
    Lease = 6,
    /// Messages for the workers of a runner.
    Mail = 7,
}

impl Channel {
    /// The channel with this byte.
    pub fn from_byte(byte: u8) -> Option<Self> {
        [Self::Client, Self::Session, Self::RaftAppend, Self::RaftCall, Self::Peer, Self::Lease, Self::Mail]
            .into_iter()
            .find(|channel| *channel as u8 == byte)
    }

    /// Of what waits for a connection, streams of a higher rank go first. A beat that waited behind messages would cost a lease.
    pub fn rank(self) -> i32 {
        match self {
            Self::Lease => 1,
            Self::Client | Self::Session | Self::RaftAppend | Self::RaftCall | Self::Peer => 0,
            Self::Mail => -1,
        }
    }
}

/// What a client asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// Changes something.
    Write(Write),
    /// Reads something.
    Read {
        /// What.
        query: Query,
        /// How fresh it must be.
        freshness: Freshness,
    },
    /// Sends a signal to the process that runs at `path`. Not logged; what the process does then counts as its own doing.
    Kill {
        /// The child.
        path: Path,
        /// The signal.
        signal: Signal,
    },
    /// Streams [`Item::Event`]s after the one with this number.
    Events {
        /// The number of the last event already seen; 0 for all that are kept.
        after: u64,
        /// Whether to go on with new ones as they happen.
        follow: bool,
    },
    /// Streams [`Item::Log`]s of a path, from every node that ran it.
    Logs {
        /// The child.
        path: Path,
        /// The last so many lines of each node.
        tail: u32,
        /// Whether to go on with new ones as they are written.
        follow: bool,
    },
    /// Moves leadership.
    Transfer {
        /// The node that should lead; `None`: the voter whose log is furthest.
        to: Option<NodeName>,
    },
    /// Changes who takes part in Raft, by one member. May be asked again after an unknown outcome: what is so already is
    /// done. Role: admin.
    Members(MemberChange),
}

/// A change of who takes part in Raft.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberChange {
    /// Makes a node that waits for it (`pando-node run --join`) a learner: it gets the log, and has no vote.
    Add {
        /// The node, as in its certificate.
        name: NodeName,
        /// `host:port` where it answers.
        address: String,
    },
    /// Makes a learner that has caught up a voter.
    Promote(NodeName),
    /// Takes a voter or learner out. It goes on as an agent.
    Remove(NodeName),
}

impl MemberChange {
    /// The node that it is about.
    pub fn name(&self) -> &NodeName {
        match self {
            Self::Add { name, .. } | Self::Promote(name) | Self::Remove(name) => name,
        }
    }
}

/// What a change of members did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembersChanged {
    /// Whether anything was changed; `false` where it was so already.
    pub changed: bool,
    /// The members after it.
    pub members: Vec<MemberRow>,
}

impl Call {
    /// Whether another node may know better than one that gave this answer: it found no leader, or nobody confirmed its view
    /// though that was asked for. Nothing was done then, so the other one may be asked the same.
    pub fn may_be_answered_better(&self, answer: &Answer) -> bool {
        match (self, answer) {
            (_, Err(Rejection::NoLeader { .. })) => true,
            (Self::Read { freshness: Freshness::Linearizable, .. }, Ok(Reply::Found { view, .. })) => !view.confirmed,
            _ => false,
        }
    }
}

/// Which of two answers of nodes that found no leader says more: one that shows anything, else the first.
pub fn better(first: Answer, second: Answer) -> Answer {
    match (&first, &second) {
        (Err(_), Ok(_)) => second,
        (Ok(Reply::Found { view: older, .. }), Ok(Reply::Found { view: newer, .. })) if newer.age_ms < older.age_ms => {
            second
        }
        _ => first,
    }
}

/// A change, with what makes a retry apply once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// Who asks.
    pub client: ClientId,
    /// From 1, by one, for each client.
    pub sequence: u64,
    /// The lowest sequence for which the client still waits for a reply: replies below it are forgotten.
    pub lowest_unanswered: u64,
    /// What to change.
    pub change: Change,
}

/// What can be changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Makes the tree what the spec says: starts, stops, adds and removes what differs. Idempotent.
    Apply(TreeSpec),
    /// Stops everything in the tree, then forgets it.
    Delete(TreeName),
    /// Lets a stopped member run again.
    Start(Path),
    /// Stops a member until it is started again, whatever restarts meanwhile.
    Stop(Path),
    /// Stops and starts a member, with an empty budget and base backoff; clears a failed tree.
    Restart(Path),
    /// Gives a node no work any more, and moves what runs there to other nodes as these have room. Outlives its restarts.
    Drain(NodeName),
    /// Gives a drained node work again. What has not left it yet stays.
    Undrain(NodeName),
    /// Forgets a node that has no session.
    RemoveNode(NodeName),
    /// Stops a member as [`Self::Stop`] does, and says wherever it is shown that it is dangerous to start.
    Quarantine(Path),
    /// Forgets a node whose machine is gone, by an operator's oath: what was kept there counts as ended, and starts elsewhere.
    /// Refused while a lease of it may run.
    RemoveDeadNode(NodeName),
    /// As [`Self::Apply`], and says what becomes of the messages of mailboxes that are not in the spec any more.
    ApplyLeaving(TreeSpec, Leftover),
    /// As [`Self::Delete`], and says what becomes of the messages of its mailboxes.
    DeleteLeaving(TreeName, Leftover),
    /// Gives a pool another number of workers, until its spec is applied again.
    Scale {
        /// The pool.
        pool: Path,
        /// How many.
        count: u32,
    },
    /// Puts messages into a mailbox, all of them or none.
    Send {
        /// The worker or pool.
        to: Path,
        /// They; at most [`crate::mail::MAX_BATCH`], and [`crate::mail::MAX_BATCH_BYTES`] together.
        messages: Vec<NewMessage>,
        /// Whether the reply is kept for whoever asks for it. One message only.
        asks: bool,
    },
    /// Hands nothing out of a mailbox any more, until it is resumed. What is held is settled as ever.
    Pause(Path),
    /// Hands out of a paused mailbox again.
    Resume(Path),
    /// Dead letters wait for workers again: the same ids, attempts from zero, a new life.
    Redrive {
        /// Their mailbox.
        from: Path,
        /// Which.
        letters: Letters,
        /// How many a second, at least 1; `None`: all at once.
        rate: Option<u32>,
    },
    /// Forgets dead letters.
    PurgeDead {
        /// Their mailbox.
        from: Path,
        /// Which.
        letters: Letters,
    },
    /// Forgets the messages of a mailbox that wait.
    PurgeWaiting(Path),
}

/// What a change did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// One line for each difference; empty where everything was so already.
    pub differences: Vec<Difference>,
    /// The number of the last event in the state after it: a place from which to follow.
    pub event: u64,
    /// What became of messages, where it was about some.
    pub mail: Option<MailChanged>,
}

/// What a change did to messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MailChanged {
    /// They were sent.
    Sent(Sent),
    /// So many were redriven or purged.
    Moved(u64),
}

/// One difference between what is and what a spec says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The member.
    pub path: Path,
    /// What happens to it.
    pub what: DifferenceKind,
    /// The keys that differ, for a change; empty otherwise.
    pub keys: Vec<String>,
}

/// What a spec does to a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// A process whose spec changed: it is restarted.
    Restarted,
    /// Something changed that restarts nothing.
    Changed,
    /// The operator started it.
    Started,
    /// The operator stopped it.
    Stopped,
    /// It is to move to another node.
    Moved,
}

/// How fresh an answer must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Freshness {
    /// Contains every write that was answered before it was asked. Falls back to the local state, labelled with its age, when
    /// no leader is found within 2 s.
    Linearizable,
    /// Whatever the asked node knows.
    Stale,
}

/// What can be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Query {
    /// The rows of all trees, or of what lies at and below a path: [`Found::Tree`].
    Tree(Option<Path>),
    /// Why a member is as it is and what happens next: [`Found::Explanation`].
    Explain(Path),
    /// How a member's runs ended: [`Found::History`].
    History(Path),
    /// The nodes: [`Found::Nodes`].
    Nodes,
    /// The voters and the leader: [`Found::Cluster`].
    Cluster,
    /// What applying a spec would do: [`Found::Differences`].
    Diff(TreeSpec),
    /// Whether a member is settled, for `wait`: [`Found::Settled`].
    Settled(Path),
    /// Who takes part in Raft, learners included: [`Found::Members`].
    Members,
    /// The mailboxes at and below a path, or all: [`Found::Mailboxes`].
    Mailboxes(Option<Path>),
    /// Dead letters in order of number: [`Found::DeadLetters`].
    DeadLetters {
        /// The mailbox.
        of: Path,
        /// Which.
        letters: Letters,
        /// Only those with a higher number than this.
        after: u64,
        /// At most so many; at most 1,000 are given, and fewer where they are large: whoever wants all asks until none comes.
        limit: u32,
        /// Whether with headers, payloads and what workers wrote to standard error.
        whole: bool,
    },
    /// One dead letter with its payload: [`Found::DeadLetters`], with one.
    DeadLetter {
        /// The mailbox.
        of: Path,
        /// Its id.
        id: String,
    },
    /// What became of a message that was sent with `asks`: [`Found::Asked`].
    Asked {
        /// The mailbox.
        of: Path,
        /// Its number.
        number: u64,
    },
}

/// The answer to a [`Call`] with one answer.
pub type Answer = Result<Reply, Rejection>;

/// What a client gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The change is in the log of a majority.
    Changed(Changed),
    /// What was read.
    Found {
        /// It.
        found: Found,
        /// How fresh it is.
        view: ViewAge,
    },
    /// The signal was sent.
    Killed {
        /// The run it was sent to.
        incarnation: Incarnation,
        /// Where that runs.
        node: NodeName,
        /// The process.
        pid: u32,
    },
    /// This node leads now.
    Transferred {
        /// The new leader.
        leader: NodeName,
    },
    /// The membership is as it was asked for.
    MembersChanged(MembersChanged),
}

/// How fresh an answer is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewAge {
    /// The node whose state answered.
    pub answered_by: NodeName,
    /// The leader, as that node knows it; `None` where it knows none.
    pub leader: Option<NodeName>,
    /// Whether leadership was confirmed after the question came.
    pub confirmed: bool,
    /// Milliseconds since that node last heard from a leader that a majority follows.
    pub age_ms: u64,
}

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Found {
    /// Rows in tree order.
    Tree(Vec<TreeRow>),
    /// Why, and what next.
    Explanation(Box<Explanation>),
    /// Endings, the oldest first.
    History(Vec<HistoryRow>),
    /// Nodes in order of name.
    Nodes(Vec<NodeRow>),
    /// Voters and leader.
    Cluster(ClusterRow),
    /// What applying the spec would do.
    Differences(Vec<Difference>),
    /// Whether a member is settled.
    Settled(Settled),
    /// Voters and learners, in order of name.
    Members(Vec<MemberRow>),
    /// Mailboxes in tree order.
    Mailboxes(Vec<MailboxRow>),
    /// Dead letters in order of number.
    DeadLetters {
        /// They.
        letters: Vec<DeadLetterRow>,
        /// How many there are that the question is about, whatever its limit.
        total: u64,
    },
    /// What became of a message.
    Asked(Asked),
}

/// What became of a message whose sender waits for a reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Asked {
    /// It waits for a worker, or one works on it.
    Open {
        /// Attempts at it that have ended.
        attempts: u32,
        /// How the last of them ended, in a sentence.
        last: Option<String>,
    },
    /// It is done.
    Done {
        /// The worker's reply, where it gave one.
        reply: Option<Payload>,
    },
    /// It will get no reply: it is a dead letter, or was purged.
    Dead {
        /// Why, in a sentence.
        why: String,
    },
    /// It is not known, or not any more: replies are kept for a minute.
    Unknown,
}

/// Whether what a spec asks for is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// Whether everything at and below the path that should run is ready.
    pub whole: bool,
    /// Why it can never become whole by itself: a failed tree, with its causes.
    pub failed: Option<String>,
    /// The verdict on the member.
    pub verdict: Verdict,
    /// Children that are ready.
    pub ready: u32,
    /// Children that should run.
    pub configured: u32,
    /// What is missing, for a line of progress: the first few members and what each waits for.
    pub missing: Vec<String>,
}

/// One item of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Item {
    /// Something that happened.
    Event(EventRow),
    /// A line that a child wrote.
    Log(LogLine),
    /// The stream cannot go on; why.
    Failed(Rejection),
    /// A remark that is neither: a node whose logs cannot be reached, events that are no longer kept.
    Note(String),
}

/// A line that a child wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// Where it ran.
    pub node: NodeName,
    /// The run that wrote it.
    pub incarnation: Incarnation,
    /// Since the Unix epoch, by that node's wall clock.
    pub at: Duration,
    /// Whether it came from standard error.
    pub is_stderr: bool,
    /// The line, without its end; what is no UTF-8 is replaced.
    pub line: String,
}

//! What a runner and the leader say to each other over a session. Design section 6.
//!
//! ```text
//!   runner ── Ask, Holds, Observe ──► every voter        over three streams to each:
//!   runner ◄── Granted, Desired, Applied ── the confirmed leader only          Session
//!   runner ── Beat ──► ◄── Answer                                              Lease
//!   runner ── Holds ──► ◄── Hands                                              Mail
//! ```
//!
//! What holds up one stream does not hold up another: a lease is renewed, and children start and stop, however many messages are
//! on their way. No order is needed between them. Hands are only made for runs that said that they are ready, so they never come
//! before their run; what a worker settled is said on the stream, and with the numbers, on which its end is.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cause::Exit;
use crate::ids::{Incarnation, NodeName, Path, SessionId};
use crate::mail::{Hand, Readiness, Settlement};
use crate::spec::{Label, ProcessSpec};

/// From a runner to each voter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunnerWord {
    /// Again and again while no session is granted.
    Ask(SessionRequest),
    /// Asks for the lease to be renewed.
    Beat {
        /// The session.
        session: SessionId,
        /// Grows with each beat of the session.
        number: u64,
        /// The number of the newest beat of this session that was answered; 0 before the first.
        answered: u64,
        /// How long ago, by the runner's clock, that newest answered beat was sent.
        answered_age: Duration,
    },
    /// Something that happened here. Sent again, in order, until it is [`LeaderWord::Applied`].
    Observe {
        /// The session.
        session: SessionId,
        /// From 1, by one, in each session.
        number: u64,
        /// What happened.
        observation: Observation,
    },
    /// The session that is held here, on streams that beats do not go over.
    Holds {
        /// The session.
        session: SessionId,
        /// The newest hand of it that has come: those after it are missing.
        hand: u64,
    },
}

/// What a node brings when it asks for a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRequest {
    /// The node; must be the name in its certificate.
    pub node: NodeName,
    /// Told apart from earlier requests of this node, so that a repeated one is granted once. Random.
    pub nonce: u64,
    /// `host:port` where the node answers.
    pub address: String,
    /// Whether it is a voter of the cluster.
    pub role: NodeRole,
    /// Its labels, sorted.
    pub labels: Vec<Label>,
    /// Its capacity.
    pub slots: u32,
    /// The node process.
    pub pid: u32,
    /// Sessions of this node that are proven over: the caller holds the lock that their guard held and found no process of
    /// them, or the machine was started anew since.
    pub proven_over: Vec<SessionId>,
}

/// What a node is in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeRole {
    /// Takes part in Raft and runs children.
    Voter,
    /// Runs children only.
    Agent,
}

/// What a runner tells the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Observation {
    /// The process was started.
    Started {
        /// The child.
        path: Path,
        /// The run.
        incarnation: Incarnation,
        /// Its process id on that node.
        pid: u32,
    },
    /// The process is ready.
    Ready {
        /// The child.
        path: Path,
        /// The run.
        incarnation: Incarnation,
    },
    /// The whole process tree is gone.
    Exited {
        /// The child.
        path: Path,
        /// The run.
        incarnation: Incarnation,
        /// How it ended.
        exit: Exit,
        /// The hands that a worker had started to work on and not settled: they are accused of its ending.
        started: Vec<u64>,
    },
    /// The run was asked to end before it started; the runner promises that it never will start.
    NeverStarted {
        /// The child.
        path: Path,
        /// The run.
        incarnation: Incarnation,
    },
    /// The node was told to go: nothing more is to be placed here, and what runs is to be stopped.
    Leaving,
    /// Nothing runs here any more and nothing ever will under this session: it is over.
    Left,
    /// Of older sessions of this node, these runs are all that is left or has an ending to report; they go on under this
    /// session. Only runs with `on_disconnect = keep` outlive the lease that they were started under. Without any, it says that
    /// this session was begun, and that runs which are kept may start under it once this is applied.
    Kept {
        /// The older sessions. They are over.
        sessions: Vec<SessionId>,
        /// The runs.
        runs: Vec<Ending>,
    },
    /// A worker says what it is ready for. Its word comes once in each run, before any other of it.
    WorkerReady {
        /// The worker.
        path: Path,
        /// The run.
        incarnation: Incarnation,
        /// What for.
        readiness: Readiness,
    },
    /// Workers settled what they hold.
    Settled(Vec<Settlement>),
    /// A node that goes stops this run by itself, since nobody leads the stopping or time is short. What ends there without this
    /// word, or an order of the cluster, has ended by itself.
    Stopping {
        /// The child.
        path: Path,
        /// The run.
        incarnation: Incarnation,
    },
}

/// From the confirmed leader to a runner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaderWord {
    /// A session is granted. Its lease counts from when the runner sent the request with this nonce.
    Granted {
        /// The nonce of the request.
        nonce: u64,
        /// The session.
        session: SessionId,
    },
    /// No session is granted; the text says why and what to do.
    Refused {
        /// The nonce of the request.
        nonce: u64,
        /// Why.
        why: String,
    },
    /// The beat is answered after a proof of leadership that began after it arrived: the lease is renewed from when it was
    /// sent.
    Answer {
        /// The session.
        session: SessionId,
        /// The beat.
        number: u64,
    },
    /// The session is over, for good.
    Over {
        /// The session.
        session: SessionId,
    },
    /// What should run here.
    Desired(Desired),
    /// Observations up to this number are applied (or can never be): forget them.
    Applied {
        /// The session.
        session: SessionId,
        /// The highest number that is done.
        through: u64,
    },
    /// Who takes part in Raft now: whom to beat from here on.
    Members(Members),
    /// Messages for workers of this session, in order of number. Those that are known already may come again.
    Hands {
        /// The session.
        session: SessionId,
        /// They.
        hands: Vec<Hand>,
    },
}

/// Who takes part in Raft, as of an entry of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// The index of the entry: what is older than one that is known says nothing.
    pub index: u64,
    /// Voters and learners. While a voter's lost id is replaced there are two of one name.
    pub members: Vec<Member>,
}

/// One that takes part in Raft.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its name.
    pub name: NodeName,
    /// Its Raft id.
    pub raft_id: u64,
    /// `host:port` where it answers.
    pub address: String,
    /// Whether it counts for majorities.
    pub votes: bool,
}

/// What should run on a node under a session, derived from the state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Desired {
    /// The session it is for.
    pub session: SessionId,
    /// The log index of the state it comes from; one older than one acted on is ignored.
    pub index: u64,
    /// What should run, in order of path.
    pub run: Vec<Wanted>,
    /// What should end: stop it and report the exit, or promise that it never starts.
    pub end: Vec<Ending>,
}

/// A run that should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The child.
    pub path: Path,
    /// The run.
    pub incarnation: Incarnation,
    /// The run before it, when that one ran here under the same session: `delay` counts from its exit as the runner saw it.
    /// `None`: it counts from receipt.
    pub after: Option<Incarnation>,
    /// How long to wait before the start.
    pub delay: Duration,
    /// How to run it.
    pub spec: Arc<ProcessSpec>,
}

/// A run by its path and number: one that should end, or one that goes on under another session.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ending {
    /// The child.
    pub path: Path,
    /// The run.
    pub incarnation: Incarnation,
}

/// From a dead node's guard, over TLS on TCP, to any voter: everything that ran under the session is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obituary {
    /// The node; must be the name in the certificate.
    pub node: NodeName,
    /// The session.
    pub session: SessionId,
    /// How the node process ended, in words.
    pub how: String,
}

/// The answer to an obituary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ObituaryReply {
    /// It stands in the log.
    Recorded,
    /// This voter does not lead and knows no leader: try another, or again.
    NotLeader,
    /// It is not acceptable, and never will be.
    Refused,
}

//! What node, guard and reapers say to each other, each word one datagram of a SEQPACKET socket pair.
//!
//! ```text
//!   node ── ToGuard ──► guard ── Order ──► reaper
//!   node ◄─ FromGuard ─ guard ◄─ Word ──── reaper
//! ```

use std::fmt;
use std::time::Duration;

use pando_protocol::ids::{Incarnation, NodeName, SessionId};
use pando_protocol::spec::Signal;
use serde::{Deserialize, Serialize};

use super::clock::BootTime;

/// Most bytes in one word. A command and its environment have at most 64 KiB, and the default buffer of a socket holds
/// 208 KiB.
pub const WORD_LIMIT: usize = 160 << 10;

/// One process tree under a reaper: a run of a child, or one of its probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RunId {
    /// The run of the child.
    pub incarnation: Incarnation,
    /// 0 for the child itself, else the number of its probe.
    pub probe: u32,
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.probe {
            0 => write!(f, "run {}", self.incarnation),
            probe => write!(f, "probe {probe} of run {}", self.incarnation),
        }
    }
}

/// From the node to its guard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGuard {
    /// Whom to tell of the node's death. The first word, and then it carries the descriptor of the lock.
    Configure(Configuration),
    /// The session may run until `kill_at`. A session that is over stays over.
    Renew {
        /// The session.
        session: SessionId,
        /// When everything under it is killed, but for what is kept.
        kill_at: BootTime,
    },
    /// Starts a run. Carries the write ends of standard output and standard error, or no descriptor for a silent run.
    Start(StartOrder),
    /// Sends the signal to the run's process group, and SIGKILL to its tree after the grace.
    Stop {
        /// The run.
        run: RunId,
        /// The signal.
        signal: Signal,
        /// How long it may take; `None` is for ever.
        grace: Option<Duration>,
    },
    /// SIGKILL to the whole tree.
    Kill {
        /// The run.
        run: RunId,
    },
    /// A signal to the main process.
    Signal {
        /// The run.
        run: RunId,
        /// The signal.
        signal: Signal,
    },
    /// The session is over by word: kills what runs under it and is not kept, starts nothing more, and no obituary names it
    /// unless something is kept.
    EndSession {
        /// The session.
        session: SessionId,
    },
    /// Kills what runs and ends the guard, without an obituary.
    Leave,
    /// Asks whether the guard is there. Answered at once, after all that was said before.
    Call {
        /// The number of this call.
        number: u64,
    },
}

/// Whom to tell of the node's death.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// The node.
    pub node: NodeName,
    /// The folder with the node's certificate and key, as bytes of a path.
    pub identity: Vec<u8>,
    /// The voters to try, in this order, again and again.
    pub voters: Vec<VoterAddress>,
    /// For how long it is tried. Default [`super::OBITUARY_LIMIT`].
    pub obituary_limit: Duration,
}

/// Where a voter answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoterAddress {
    /// Its name, as in its certificate.
    pub name: NodeName,
    /// `host:port`.
    pub address: String,
}

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartOrder {
    /// The run. Started at most once.
    pub run: RunId,
    /// The session it belongs to.
    pub session: SessionId,
    /// The program and its arguments, the program first. A program without `/` is looked up in the PATH of `environment`.
    pub command: Vec<String>,
    /// `KEY=VALUE`, the whole environment.
    pub environment: Vec<Vec<u8>>,
    /// The working folder, as bytes of a path.
    pub folder: Vec<u8>,
    /// Whether to make the folder where it is missing: a folder of the child's own. The new process does it, so that a disk
    /// that hangs holds up nobody else.
    pub make_folder: bool,
    /// Whether it outlives its session. Only a stop or kill of its own, and the end of the node, end it then.
    pub keep: bool,
}

/// From the guard to its node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromGuard {
    /// The guard is up and has its configuration.
    Configured,
    /// The guard counts on this kill time.
    Renewed {
        /// The session.
        session: SessionId,
        /// The kill time.
        kill_at: BootTime,
    },
    /// The program runs.
    Started {
        /// The run.
        run: RunId,
        /// Its main process.
        pid: u32,
        /// The reaper above it.
        reaper: u32,
    },
    /// It was not started and never will be: its session is over, unknown, or not the newest.
    NotStarted {
        /// The run.
        run: RunId,
    },
    /// Its whole tree is gone.
    Ended {
        /// The run.
        run: RunId,
        /// How.
        ending: Ending,
    },
    /// The kill time of the session came: SIGKILL is sent to all of it that is not kept, and nothing starts under it.
    Fenced {
        /// The session.
        session: SessionId,
    },
    /// The session is over and nothing of it is left, but for what is kept.
    Gone {
        /// The session.
        session: SessionId,
    },
    /// The guard is there, and has done what it was told before this call.
    Here {
        /// The number of the call.
        number: u64,
    },
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// How the main process ended.
    pub how: EndedHow,
    /// From the start of the main process to its end.
    pub ran: Duration,
    /// Whether SIGKILL was sent to it by us.
    pub killed: bool,
}

/// How the main process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndedHow {
    /// With this exit code.
    Code(u8),
    /// By this signal.
    Signal(Signal),
    /// It never ran; why.
    StartFailed(String),
    /// Unknown: its reaper was killed.
    ReaperLost,
}

/// From the guard to a reaper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// The signal to the process group, SIGKILL to the tree after the grace.
    Stop {
        /// The signal.
        signal: Signal,
        /// `None` is for ever.
        grace: Option<Duration>,
    },
    /// SIGKILL to the tree.
    Kill,
    /// A signal to the main process.
    Signal(Signal),
}

/// From a reaper to the guard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Word {
    /// The program runs, as this process. Carries a descriptor that pins it, so that the guard can kill it without waiting
    /// for its reaper to be scheduled.
    Started {
        /// Its main process.
        pid: u32,
    },
    /// The tree is gone. The last word.
    Ended(Ending),
}

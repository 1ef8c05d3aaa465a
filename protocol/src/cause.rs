//! How a run ended, and why a child or supervisor is down: evidence that is kept. Design section 5.2.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{Incarnation, NodeName, Path};
use crate::spec::Signal;

/// Most bytes of standard error that an ending keeps.
pub const MAX_STDERR: usize = 4 << 10;
/// Most lines of standard error that an ending keeps.
pub const MAX_STDERR_LINES: usize = 20;

/// How an incarnation ended, as its runner saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// What ended it.
    pub how: ExitHow,
    /// From its start to its end; zero where it never started.
    pub ran: Duration,
    /// How long it was ready; `None` where it never was.
    pub healthy: Option<Duration>,
    /// Whether the kernel killed it for memory.
    pub out_of_memory: OutOfMemory,
    /// The last lines of its standard error: at most [`MAX_STDERR_LINES`] and [`MAX_STDERR`] bytes. `None`: the same as those
    /// of the ending before on that node, and not sent again.
    pub stderr: Option<String>,
}

/// What ended a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitHow {
    /// The main process exited with this code.
    Code(u8),
    /// A signal ended the main process.
    Signal(Signal),
    /// It could not be started: no such program, no permission, no such folder.
    StartFailed(String),
    /// It was not ready in time, and the runner killed it.
    Unready(Duration),
    /// Its reaper was killed, and the guard killed the rest of its tree.
    ReaperLost,
    /// A worker worked on a message without progress for this long, and the runner killed it.
    Hung(Duration),
    /// A worker held messages and started none for this long, and the runner killed it.
    Idle(Duration),
    /// A worker broke its protocol, and the runner killed it; how.
    Misbehaved(String),
}

/// Whether the kernel killed a process for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OutOfMemory {
    /// It did not.
    No,
    /// The counter of such kills rose on the machine while SIGKILL, not ours, ended the process.
    Likely,
    /// The process's own cgroup counted it.
    Yes,
}

/// The classes of causes, which say who pays (design section 5.2). Only ever appended to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CauseClass {
    /// Exit with a code that the spec calls normal.
    Normal,
    /// Another exit code, or a signal.
    Crash,
    /// Not ready in time.
    Unhealthy,
    /// Could not be started.
    StartFailed,
    /// We asked for it: operator, update, shutdown of the supervisor or of the node.
    Stopped,
    /// The reaper was killed; the tree fell to the guard.
    ReaperLost,
    /// The session it ran under is over.
    NodeLost,
    /// A restart budget was spent below.
    Escalated,
    /// Significant children ended, and their supervisor with them.
    AutoShutdown,
}

impl CauseClass {
    /// The class in words, as people and JSON see it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Crash => "crash",
            Self::Unhealthy => "unhealthy",
            Self::StartFailed => "start_failed",
            Self::Stopped => "stopped",
            Self::ReaperLost => "reaper_lost",
            Self::NodeLost => "node_lost",
            Self::Escalated => "escalated",
            Self::AutoShutdown => "auto_shutdown",
        }
    }
}

impl fmt::Display for CauseClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One level of why something ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// What ended: a child, or a supervisor that escalated.
    pub path: Path,
    /// Its class.
    pub class: CauseClass,
    /// One sentence: `exit code 1 after 12 ms`, `6 crashes in 10 s`.
    pub message: String,
    /// The exit code of a process.
    pub code: Option<u8>,
    /// The signal that ended a process.
    pub signal: Option<Signal>,
    /// The run that ended; `None` for supervisors.
    pub incarnation: Option<Incarnation>,
    /// Where it ran; `None` for supervisors.
    pub node: Option<NodeName>,
    /// Its last lines of standard error.
    pub stderr: String,
}

/// A cause with all that led to it: the outermost level first, the process that crashed last.
///
/// A list and not a nest of boxes, so that no bytes from outside can overflow the stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CauseChain {
    /// Outermost first; never empty.
    pub levels: Vec<Cause>,
}

impl CauseChain {
    /// A chain of one level.
    pub fn of(cause: Cause) -> Self {
        Self { levels: vec![cause] }
    }

    /// This chain as the reason of `outer`.
    pub fn below(mut self, outer: Cause) -> Self {
        self.levels.insert(0, outer);
        self
    }

    /// The level that people see first. `None` only for a chain that came broken from outside.
    pub fn outermost(&self) -> Option<&Cause> {
        self.levels.first()
    }

    /// Where it began: the process.
    pub fn innermost(&self) -> Option<&Cause> {
        self.levels.last()
    }
}

impl fmt::Display for CauseChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, cause) in self.levels.iter().enumerate() {
            if depth > 0 {
                f.write_str(", because ")?;
            }
            write!(f, "{}: {}", cause.path, cause.message)?;
        }
        Ok(())
    }
}

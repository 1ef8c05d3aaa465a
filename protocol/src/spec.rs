//! The spec of a tree: how to run, probe, place, restart and stop its children. Design sections 5.1 to 5.4.
//!
//! Values are valid by type where a type can say it, and by [`TreeSpec::check`] where it takes the whole. Reading files
//! is the work of `spec_file` (feature `spec-files`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{ChildId, TreeName};

mod budget;
mod check;
mod flat;
mod label;
mod mailbox;
mod signal;

pub use check::SpecMistake;
pub use label::Label;
pub use mailbox::{Attempts, MailboxSpec};
pub use signal::Signal;

/// Most children and supervisors in one tree.
pub const MAX_MEMBERS: usize = 10_000;
/// Most bytes of a child's command, arguments and environment together (they travel in one local datagram).
pub const MAX_COMMAND_BYTES: usize = 64 << 10;
/// The least base of a backoff: a tight restart loop cannot be configured.
pub const MIN_BACKOFF: Duration = Duration::from_millis(10);
/// The most that `max_restarts` can be: each one in the window is kept with its cause.
pub const MAX_MAX_RESTARTS: u32 = 1_000;
/// The most that any time in a spec can be: a year. With it, sums with cluster time cannot overflow.
pub const MAX_TIME: Duration = Duration::from_secs(365 * 86_400);
/// The most that the cap of a backoff can be: a day. A child that waits longer is forgotten, not restarted.
pub const MAX_BACKOFF: Duration = Duration::from_secs(86_400);
/// The most that the factor of a backoff can be.
pub const MAX_FACTOR: u32 = 100;
/// The most percent of a delay that jitter can take: the rest keeps the loop from being tight.
pub const MAX_JITTER: u8 = 90;

/// The most that `max_attempts`, `suspect_after` and `max_node_losses` can be.
pub const MAX_ATTEMPTS: u32 = 1_000;
/// The most that `prefetch` can be.
pub const MAX_PREFETCH: u32 = 10_000;
/// The most that `max_messages` can be.
pub const MAX_MESSAGES: u32 = 10_000_000;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// One application: a named root supervisor and all below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "flat::FlatTree", into = "flat::FlatTree")]
pub struct TreeSpec {
    /// The name of the tree; its root is `/name`.
    pub name: TreeName,
    /// The root supervisor.
    pub root: SupervisorSpec,
}

/// An inner node of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupervisorSpec {
    /// What else restarts when one child does. Default `one_for_one`.
    pub strategy: Strategy,
    /// The restart budget that all its children share. Default 5 within 10 s.
    pub intensity: Intensity,
    /// Whether the end of significant children ends the supervisor. Default `never`.
    pub auto_shutdown: AutoShutdown,
    /// Whether everything below it runs on one node and moves as one. Default true for the group strategies, else false.
    pub colocate: bool,
    /// Its children, in start order. At least one.
    pub children: Vec<ChildSpec>,
}

/// A child of a supervisor: a process, or a supervisor below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildSpec {
    /// Its name under its supervisor.
    pub id: ChildId,
    /// When it is restarted. Default permanent.
    pub restart: Restart,
    /// How long its restarts wait.
    pub backoff: Backoff,
    /// Whether its end counts for the supervisor's `auto_shutdown`. Default false.
    pub significant: bool,
    /// What it is.
    pub work: Work,
}

/// What a child is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// A leaf: an operating system process.
    Process(Arc<ProcessSpec>),
    /// Equal processes under a supervisor of their own.
    Pool(Pool),
    /// An inner node.
    Supervisor(SupervisorSpec),
}

/// Equal processes, `0` to `count - 1`, with one budget and, where they have one, one mailbox. What else its [`ChildSpec`] says
/// holds for each of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// How many; at least 1.
    pub count: u32,
    /// The restart budget that they share. Default 5 within 10 s.
    pub intensity: Intensity,
    /// How to run each of them.
    pub process: Arc<ProcessSpec>,
}

/// How to run, probe, place and stop a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSpec {
    /// What to run. No shell is involved.
    pub command: Command,
    /// Added to the child's environment; wins over what Pando sets, except its own `PANDO_` variables.
    pub env: BTreeMap<String, String>,
    /// The working folder. `None`: a folder of the child's own in the node's data. Relative: below that folder.
    pub cwd: Option<String>,
    /// How long it may take to stop. Default 5 s.
    pub shutdown: Shutdown,
    /// The signal that asks it to stop. Default SIGTERM.
    pub stop_signal: Signal,
    /// Exit codes that end a run normally. Default only 0.
    pub normal_exit: BTreeSet<u8>,
    /// Its own restart account; when spent, it is one crash on its supervisor's. `None`: the supervisor's counts.
    pub intensity: Option<Intensity>,
    /// Its share of a node's capacity, at least 1. Default 1.
    pub slots: u32,
    /// How it is known to be ready.
    pub ready: Ready,
    /// Where it may and should run.
    pub place: Place,
    /// Exceptions by exit code or signal; the first that matches decides.
    pub on_exit: Vec<ExitRule>,
    /// What becomes of a run whose node falls silent. Default stop.
    pub on_disconnect: OnDisconnect,
    /// What it is fed from. `None`: it is no worker.
    pub mailbox: Option<MailboxSpec>,
}

/// A program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// The program: a path, or a name that is looked up in the child's PATH. Not empty.
    pub program: String,
    /// Its arguments, without the program's own name.
    pub args: Vec<String>,
}

/// What else restarts when one child does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Strategy {
    /// Only the child that failed. Children start in parallel.
    OneForOne,
    /// All children, as a group: stopped in reverse order, then started in order, each after the one before is ready.
    OneForAll,
    /// The child that failed and all after it, as a group.
    RestForOne,
}

impl Strategy {
    /// Whether the children stand and fall together: both strategies but `one_for_one`.
    pub fn is_group(self) -> bool {
        match self {
            Self::OneForOne => false,
            Self::OneForAll | Self::RestForOne => true,
        }
    }
}

/// When a child is restarted, as in OTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Restart {
    /// Always.
    Permanent,
    /// Unless its run ended normally.
    Transient,
    /// Never.
    Temporary,
}

/// Whether the end of significant children ends their supervisor, as in OTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AutoShutdown {
    /// It does not.
    Never,
    /// The first that ends does.
    AnySignificant,
    /// The last that ends does.
    AllSignificant,
}

/// A restart budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Intensity {
    /// At most `max_restarts` within `within`; one crash more escalates. A crash counts while `now - then < within`.
    Limited {
        /// 0 to [`MAX_MAX_RESTARTS`]; 0 means that the first crash escalates.
        max_restarts: u32,
        /// The length of the window in cluster time, above zero.
        within: Duration,
    },
    /// Never escalates. Must be said.
    Unlimited,
}

/// The delay before a restart: `min(cap, base * factor^n)`, less up to `jitter` percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backoff {
    /// The first delay; at least [`MIN_BACKOFF`]. Default 50 ms.
    pub base: Duration,
    /// The largest delay; at least `base`. Default 1 s.
    pub cap: Duration,
    /// 1 to 100. Default 2.
    pub factor: u32,
    /// Percent by which a delay may be shortened at random, 0 to 90. Default 50.
    pub jitter: u8,
    /// A run that was healthy this long returns the delay to `base`. Default 5 s.
    pub reset_after: Duration,
}

/// How a process is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shutdown {
    /// The stop signal, then SIGKILL after this long.
    Grace(Duration),
    /// SIGKILL at once.
    BrutalKill,
    /// The stop signal, then waits for ever.
    Infinity,
}

/// How a process is known to be ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ready {
    /// Once it has started.
    Started,
    /// When this command first exits 0; run again and again, one at a time.
    Exec {
        /// The probe.
        command: Command,
        /// Not ready after this long since the start: killed as unhealthy. Default 10 s.
        within: Duration,
        /// Pause between two probes. Default 200 ms.
        interval: Duration,
    },
    /// When it sends `READY=1` to the socket in `$NOTIFY_SOCKET`.
    Notify {
        /// Not ready after this long since the start: killed as unhealthy. Default 10 s.
        within: Duration,
    },
}

/// Where a process may and should run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Labels a node must have.
    pub require: BTreeSet<Label>,
    /// Labels a node should have; more matches win.
    pub prefer: BTreeSet<Label>,
    /// The key of a label over whose values siblings with the same key are spread.
    pub spread: Option<String>,
}

/// An exception to how an ending is treated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRule {
    /// Which endings.
    pub when: ExitMatch,
    /// What to do.
    pub action: ExitAction,
}

/// Which endings an [`ExitRule`] is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitMatch {
    /// The process exited with this code.
    Code(u8),
    /// The process was ended by this signal.
    Signal(Signal),
}

/// What an [`ExitRule`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitAction {
    /// Treat the ending as normal.
    Ignore,
    /// Restart the child whatever its restart type, charged like a crash.
    Restart,
    /// Leave the child down until `start`, or until its supervisor restarts. Nobody pays.
    Stop,
    /// Escalate at once, as if the supervisor's budget were spent.
    Escalate,
}

/// What becomes of a run whose node does not reach the cluster within its lease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnDisconnect {
    /// Its node kills it at the end of the lease, and it is started elsewhere.
    #[default]
    Stop,
    /// It runs on, and nothing is started elsewhere: it is *unreachable* until its node is back, or is known to be gone.
    Keep,
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.program)?;
        self.args.iter().try_for_each(|arg| write!(f, " {arg}"))
    }
}

impl Default for Intensity {
    fn default() -> Self {
        Self::Limited { max_restarts: 5, within: Duration::from_secs(10) }
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            base: Duration::from_millis(50),
            cap: Duration::from_secs(1),
            factor: 2,
            jitter: 50,
            reset_after: Duration::from_secs(5),
        }
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::Grace(Duration::from_secs(5))
    }
}

impl ProcessSpec {
    /// A process with every default.
    pub fn new(command: Command) -> Self {
        Self {
            command,
            env: BTreeMap::new(),
            cwd: None,
            shutdown: Shutdown::default(),
            stop_signal: Signal::TERM,
            normal_exit: BTreeSet::from([0]),
            intensity: None,
            slots: 1,
            ready: Ready::Started,
            place: Place::default(),
            on_exit: Vec::new(),
            on_disconnect: OnDisconnect::Stop,
            mailbox: None,
        }
    }
}

impl ChildSpec {
    /// The supervisor that a pool is: each of its processes as a child by its index. `None` for a child that is no pool.
    pub fn as_supervisor(&self) -> Option<SupervisorSpec> {
        let Work::Pool(Pool { count, intensity, process }) = &self.work else { return None };
        let worker = |index: u32| ChildSpec {
            id: ChildId::index(index),
            restart: self.restart,
            backoff: self.backoff,
            significant: false,
            work: Work::Process(process.clone()),
        };
        Some(SupervisorSpec {
            strategy: Strategy::OneForOne,
            intensity: *intensity,
            auto_shutdown: AutoShutdown::Never,
            colocate: false,
            children: (0..*count).map(worker).collect(),
        })
    }
}

impl Backoff {
    /// The longest that the `n`-th delay (from 0) can be: no jitter.
    pub fn longest(&self, n: u32) -> Duration {
        let mut delay = self.base;
        for _ in 0..n {
            if delay >= self.cap || self.factor == 1 {
                break;
            }
            delay = delay.saturating_mul(self.factor);
        }
        delay.min(self.cap)
    }

    /// The shortest that the `n`-th delay (from 0) can be: full jitter.
    pub fn shortest(&self, n: u32) -> Duration {
        // In u128, because a delay that nobody has checked yet may be as long as a `Duration` can be.
        let nanos = self.longest(n).as_nanos() * u128::from(100 - self.jitter.min(100)) / 100;
        let seconds = u64::try_from(nanos / NANOS_PER_SECOND).unwrap_or(u64::MAX);
        Duration::new(seconds, u32::try_from(nanos % NANOS_PER_SECOND).unwrap_or_default())
    }

    /// Whether the `n`-th delay (from 0) stands at the cap.
    pub fn is_at_cap(&self, n: u32) -> bool {
        self.longest(n) == self.cap
    }
}

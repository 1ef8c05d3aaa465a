//! The replicated state: what there is. How it changes stands in the other files, by subject.
//!
//! Every map is persistent and its values are shared, so that a clone costs a few pointers: publishing and snapshotting do
//! not grow with the state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use imbl::{OrdMap, OrdSet};
use pando_protocol::cause::{Cause, CauseChain, CauseClass};
use pando_protocol::ids::{ChildId, ClientId, Incarnation, NodeName, Path, SessionId, TreeName};
use pando_protocol::session::NodeRole;
use pando_protocol::spec::{AutoShutdown, Backoff, Intensity, Label, ProcessSpec, Restart, Strategy, TreeSpec};
use serde::{Deserialize, Serialize};

use crate::command::{Event, Outcome};
use crate::restarts::{Rate, Window};

/// The replicated state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// Counters and clocks.
    pub head: Head,
    /// The trees, as they were applied.
    pub trees: OrdMap<TreeName, Arc<TreeSpec>>,
    /// Every supervisor and child, those that are being removed included.
    pub members: OrdMap<Path, Arc<Member>>,
    /// Every node that ever had a session.
    pub nodes: OrdMap<NodeName, Arc<Node>>,
    /// Children that wait for a place, in the order in which they began to wait.
    pub pending: OrdSet<(u64, Path)>,
    /// When something happens by itself: a delay ends.
    pub timers: OrdSet<(Duration, Path)>,
    /// The newest events, by number.
    pub events: OrdMap<u64, Arc<Event>>,
    /// What clients were answered, so that a retry is answered the same.
    pub clients: OrdMap<ClientId, Arc<ClientRecord>>,
    /// The clients by when they were last heard.
    pub client_ages: OrdSet<(Duration, ClientId)>,
}

/// Counters and clocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Cluster time of the newest stamp.
    pub now: Duration,
    /// The version of the rules that the log asked for.
    pub rules: u32,
    /// The next incarnation.
    pub next_incarnation: u64,
    /// The next session.
    pub next_session: u64,
    /// The next event.
    pub next_event: u64,
    /// The next place in the queue of children that wait.
    pub next_order: u64,
    /// Before this time no further start after a mass failover is let through.
    pub brake: Duration,
}

impl Default for Head {
    fn default() -> Self {
        Self {
            now: Duration::ZERO,
            rules: 1,
            next_incarnation: 1,
            next_session: 1,
            next_event: 1,
            next_order: 1,
            brake: Duration::ZERO,
        }
    }
}

/// A supervisor or child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// When it is restarted.
    pub restart: Restart,
    /// How its restarts are delayed.
    pub backoff: Backoff,
    /// Whether its end counts for its supervisor's `auto_shutdown`.
    pub significant: bool,
    /// Stopped by an operator, until it is started.
    pub held: bool,
    /// Taken out of the spec: forgotten once it is down.
    pub removed: bool,
    /// How many restarts in a row were delayed without a healthy run between: the exponent of the next delay.
    pub delays: u32,
    /// Endings in a row with the delay at its cap.
    pub at_cap: u32,
    /// Endings in a row that nobody paid for and that neither an operator nor a lost node caused.
    pub unpaid: u32,
    /// Charged restarts since it was added.
    pub restarts: u64,
    /// Charged restarts of late.
    pub rate: Rate,
    /// How its runs ended, folded, the oldest first.
    pub history: Vec<Arc<HistoryEntry>>,
    /// Nodes that were lost while it ran there.
    pub node_losses: BTreeMap<NodeName, u64>,
    /// How often its runs ended, by class of cause.
    pub endings: BTreeMap<CauseClass, u64>,
    /// What it is.
    pub body: Body,
}

/// What a member is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// A leaf.
    Process(Process),
    /// An inner node.
    Supervisor(Supervisor),
}

/// A leaf.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// How to run it.
    pub spec: Arc<ProcessSpec>,
    /// The crashes that count against its own account; unused without one.
    pub window: Window,
    /// Nodes on which its start failed.
    pub refusals: BTreeMap<NodeName, Refusal>,
    /// Nodes that refused it since it was last started or charged: not tried again in this round.
    pub refused_by: BTreeSet<NodeName>,
    /// What it does.
    pub phase: ProcessPhase,
}

/// A node's failure to start a child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// How often, halved every 60 s since `at` when it is read.
    pub count: u32,
    /// When it last happened.
    pub at: Duration,
    /// What the node said.
    pub why: String,
}

/// What a leaf does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessPhase {
    /// Nothing runs and nothing will by itself.
    Down(DownReason),
    /// It should run and has no place.
    Pending(Pending),
    /// It counts as running, reported or not, until the run is ended.
    Assigned(Run),
}

/// A child that should run and has no place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Its place in the queue.
    pub order: u64,
    /// Not placed before this time.
    pub not_before: Duration,
    /// Why no node was found when it was last tried; `None` before the first try.
    pub waits_for: Option<String>,
}

/// One incarnation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Its number.
    pub incarnation: Incarnation,
    /// Where.
    pub node: NodeName,
    /// Under which session of that node.
    pub session: SessionId,
    /// The run before it on the same node and session, from whose exit `delay` counts.
    pub after: Option<Incarnation>,
    /// How long the runner waits before it starts it.
    pub delay: Duration,
    /// The room that it takes of its node, whatever its spec says by now.
    pub slots: u32,
    /// When it was assigned.
    pub since: Duration,
    /// How far it is.
    pub stage: Stage,
    /// Why it should end; `None` while it should run.
    pub stopping: Option<StopReason>,
}

/// How far a run is, as reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// Not reported yet.
    Assigned,
    /// Started.
    Started {
        /// The process.
        pid: u32,
        /// When the report was applied.
        at: Duration,
    },
    /// Ready.
    Ready {
        /// The process.
        pid: u32,
        /// When the report of the start was applied.
        at: Duration,
    },
}

/// Why a run that is up is being ended. Nobody pays for any of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopReason {
    /// `pando stop`.
    Operator,
    /// `pando restart`.
    Restart,
    /// Its spec changed.
    Update,
    /// It was taken out of its tree, or the tree was deleted.
    Removed,
    /// Its supervisor stops.
    Supervisor,
    /// Its node goes.
    Shutdown,
}

/// Why something is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DownReason {
    /// Its supervisor is not up.
    Supervisor,
    /// An operator stopped it.
    Held,
    /// It ended and is not to be restarted.
    Finished,
    /// A rule of `on_exit` stopped it.
    Rule,
}

/// An inner node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Supervisor {
    /// What else restarts when a child does.
    pub strategy: Strategy,
    /// Its budget.
    pub intensity: Intensity,
    /// Whether the end of significant children ends it.
    pub auto_shutdown: AutoShutdown,
    /// Its children in start order; those being removed last.
    pub children: Vec<ChildId>,
    /// The crashes that count against its budget.
    pub window: Window,
    /// What it does.
    pub phase: SupervisorPhase,
}

/// What an inner node does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SupervisorPhase {
    /// Nothing below runs, and nothing will by itself.
    Down(DownReason),
    /// It failed and is restarted at `until`.
    Delayed {
        /// When.
        until: Duration,
    },
    /// It keeps its children running.
    Up {
        /// Since when.
        since: Duration,
    },
    /// It stops its children, the last started first.
    Stopping {
        /// Since when it was up; `None` where it was not.
        was_up_since: Option<Duration>,
        /// What then.
        then: Then,
    },
    /// A root whose budget is spent: waits for an operator.
    Failed(Arc<CauseChain>),
}

/// What follows once all children of a supervisor have stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Then {
    /// It fails, and its own supervisor decides.
    Fail(Arc<CauseChain>),
    /// It ended with its significant children, and its own supervisor decides.
    End(Arc<CauseChain>),
    /// It starts again, with a fresh budget.
    Restart,
    /// It stays down.
    Down(DownReason),
}

/// Equal endings, folded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// The last of them, outermost level first.
    pub cause: Arc<CauseChain>,
    /// Whether a budget paid.
    pub charged: bool,
    /// Who paid, or why nobody did.
    pub payer: String,
    /// What was decided.
    pub decision: String,
    /// How many.
    pub count: u64,
    /// Wall-clock time of the first, in milliseconds since the Unix epoch.
    pub first: u64,
    /// Wall-clock time of the last.
    pub last: u64,
    /// For an escalation, the crashes in the window before the last.
    pub earlier: Vec<Arc<CauseChain>>,
}

/// A node that had a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Where it answers.
    pub address: String,
    /// Voter or agent.
    pub role: NodeRole,
    /// Its labels.
    pub labels: BTreeSet<Label>,
    /// Its capacity.
    pub slots: u32,
    /// The node process of its newest session.
    pub pid: u32,
    /// The session under which it is given work; `None` while it is down.
    pub current: Option<SessionId>,
    /// Every session that is not known to be over: the current one, and older ones whose processes may still run.
    pub sessions: BTreeMap<SessionId, Session>,
    /// How often it was lost.
    pub losses: u64,
}

/// A node's standing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The nonce of the request that it answered.
    pub nonce: u64,
    /// When it was granted.
    pub since: Duration,
    /// The number of the last observation that was applied.
    pub observed: u64,
    /// The node said that it goes.
    pub leaving: bool,
    /// What is assigned under it.
    pub assigned: BTreeSet<Path>,
    /// The slots that those take.
    pub used: u32,
    /// The number of the last change to what should run here.
    pub revision: u64,
}

/// What a client was answered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRecord {
    /// When it was last heard.
    pub heard: Duration,
    /// Every sequence below this one is forgotten.
    pub forgotten_below: u64,
    /// The replies, by sequence.
    pub replies: BTreeMap<u64, Outcome>,
}

impl Cluster {
    /// The member at `path`.
    pub fn member(&self, path: &Path) -> Option<&Member> {
        self.members.get(path).map(Arc::as_ref)
    }

    /// The supervisor at `path`, where there is one.
    pub fn supervisor(&self, path: &Path) -> Option<&Supervisor> {
        match &self.member(path)?.body {
            Body::Supervisor(supervisor) => Some(supervisor),
            Body::Process(_) => None,
        }
    }

    /// The process at `path`, where there is one.
    pub fn process(&self, path: &Path) -> Option<&Process> {
        match &self.member(path)?.body {
            Body::Process(process) => Some(process),
            Body::Supervisor(_) => None,
        }
    }

    /// The run at `path`, where one counts as running.
    pub fn run(&self, path: &Path) -> Option<&Run> {
        match &self.process(path)?.phase {
            ProcessPhase::Assigned(run) => Some(run),
            ProcessPhase::Down(_) | ProcessPhase::Pending(_) => None,
        }
    }

    /// The session of `node`, where it is not known to be over.
    pub fn session(&self, node: &NodeName, session: SessionId) -> Option<&Session> {
        self.nodes.get(node)?.sessions.get(&session)
    }

    /// The number of the newest event.
    pub fn last_event(&self) -> u64 {
        self.head.next_event - 1
    }

    /// The paths at and below `path`, in tree order: each supervisor before its children, children in start order.
    pub fn walk(&self, path: &Path) -> Vec<Path> {
        let mut found = Vec::new();
        let mut waiting = vec![path.clone()];
        while let Some(path) = waiting.pop() {
            let Some(member) = self.member(&path) else { continue };
            if let Body::Supervisor(supervisor) = &member.body {
                waiting.extend(supervisor.children.iter().rev().map(|id| path.child(id)));
            }
            found.push(path);
        }
        found
    }
}

impl Process {
    /// Whether it counts as running, or may.
    pub fn is_down(&self) -> bool {
        matches!(self.phase, ProcessPhase::Down(_))
    }
}

impl Supervisor {
    /// Whether it keeps its children running.
    pub fn is_up(&self) -> bool {
        matches!(self.phase, SupervisorPhase::Up { .. })
    }

    /// Whether it is stopping its children.
    pub fn is_stopping(&self) -> bool {
        matches!(self.phase, SupervisorPhase::Stopping { .. })
    }

    /// Whether nothing below it runs.
    pub fn is_down(&self) -> bool {
        match self.phase {
            SupervisorPhase::Down(_) | SupervisorPhase::Failed(_) => true,
            SupervisorPhase::Delayed { .. } | SupervisorPhase::Up { .. } | SupervisorPhase::Stopping { .. } => false,
        }
    }
}

impl Member {
    /// Whether nothing at or below it runs or will by itself.
    pub fn is_down(&self) -> bool {
        match &self.body {
            Body::Process(process) => process.is_down(),
            Body::Supervisor(supervisor) => supervisor.is_down(),
        }
    }

    /// Why its last run ended.
    pub fn last_cause(&self) -> Option<&CauseChain> {
        self.history.last().map(|entry| entry.cause.as_ref())
    }

    /// The standard error of its last ending.
    pub fn last_stderr(&self) -> &str {
        self.last_cause().and_then(CauseChain::innermost).map_or("", |cause: &Cause| &cause.stderr)
    }
}

impl StopReason {
    /// In words, as the cause of an ending says it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "stopped by operator",
            Self::Restart => "stopped for a restart by operator",
            Self::Update => "stopped for an update",
            Self::Removed => "stopped because it was removed",
            Self::Supervisor => "stopped because its supervisor stops",
            Self::Shutdown => "stopped by the shutdown of its node",
        }
    }
}

//! Supervisors and children: what they are, what they do, and how their runs ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pando_protocol::cause::{CauseChain, CauseClass};
use pando_protocol::ids::{ChildId, Incarnation, NodeName, SessionId};
use pando_protocol::spec::{AutoShutdown, Backoff, Intensity, ProcessSpec, Restart, Strategy};
use serde::{Deserialize, Serialize};

use crate::restarts::{Rate, Window};

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
    /// Held by an operator because it is dangerous to start.
    pub quarantined: bool,
    /// Taken out of the spec: forgotten once it is down.
    pub removed: bool,
    /// How many restarts in a row were delayed without a healthy run between: the exponent of the next delay.
    pub delays: u32,
    /// Endings in a row with the delay at its cap.
    pub at_cap: u32,
    /// Endings in a row that nobody paid for and that neither an operator nor a lost node caused.
    pub unpaid: u32,
    /// Charged restarts since it was added, by the class of the ending that led to them.
    pub restarts: BTreeMap<CauseClass, u64>,
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
    /// Nodes that refused it since it was last started: tried last, and each at the node's charge only once.
    pub refused_by: BTreeSet<NodeName>,
    /// Room that is kept for its next run, while its group starts in order or it is moved.
    pub place: Option<Place>,
    /// What it does.
    pub phase: ProcessPhase,
}

/// Room on a node, kept for a child that has no run there yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Where.
    pub node: NodeName,
    /// Under which session of that node.
    pub session: SessionId,
    /// How much of it.
    pub slots: u32,
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

/// A child, or the next generation of a group, that should run and has no place.
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
    /// Whether it outlives the lease of its node (`on_disconnect = keep`), whatever its spec says by now.
    pub keep: bool,
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
    /// Another member of its group ended, and the strategy takes it down too.
    Group,
    /// Its node is drained, and a place on another is kept for it.
    Drain,
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
    /// Whether everything below it runs on one node.
    pub colocate: bool,
    /// Whether its children are the workers of a pool.
    pub is_pool: bool,
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
        /// What it does with them together.
        group: Group,
    },
    /// It stops its children, the last started first.
    Stopping {
        /// How long it was up before it began to stop.
        was_up: Duration,
        /// What then.
        then: Then,
    },
    /// A root whose budget is spent: waits for an operator.
    Failed(Arc<CauseChain>),
}

/// What a supervisor that is up does with its children together, as the strategies `one_for_all` and `rest_for_one` ask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Group {
    /// Nothing: each child is on its own.
    Settled,
    /// Children are taken down, the last started first. Once all of them have ended the next generation may start.
    TakingDown {
        /// The first of them in start order; all after it too.
        from: ChildId,
        /// The next generation does not start before this time.
        not_before: Duration,
        /// Whether a budget paid for this restart. It is paid for at most once, whatever else ends meanwhile.
        charged: bool,
    },
    /// They are down, and the next generation waits: for its delay, or for places for all of it.
    Pending {
        /// For what, and since when.
        pending: Pending,
        /// As of the restart that took them down: it is under way until the next generation begins.
        charged: bool,
    },
    /// Children start in order, each after the one before is ready.
    Starting,
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
    /// For an escalation, the newest crashes in the window before the last.
    pub earlier: Vec<Arc<CauseChain>>,
}

impl Process {
    /// Whether it has ended for good by itself.
    pub fn has_finished(&self) -> bool {
        matches!(self.phase, ProcessPhase::Down(DownReason::Finished))
    }

    /// Whether nothing of it runs, or will by itself.
    pub fn is_down(&self) -> bool {
        matches!(self.phase, ProcessPhase::Down(_))
    }
}

impl Supervisor {
    /// Whether it keeps its children running.
    pub fn is_up(&self) -> bool {
        matches!(self.phase, SupervisorPhase::Up { .. })
    }

    /// What it does with its children together; `None` while it is not up.
    pub fn group(&self) -> Option<&Group> {
        match &self.phase {
            SupervisorPhase::Up { group, .. } => Some(group),
            SupervisorPhase::Down(_)
            | SupervisorPhase::Delayed { .. }
            | SupervisorPhase::Stopping { .. }
            | SupervisorPhase::Failed(_) => None,
        }
    }

    /// The children that a group restart takes down: none while there is no such restart.
    pub fn taken_down(&self) -> &[ChildId] {
        let Some(Group::TakingDown { from, .. }) = self.group() else { return &[] };
        let at = self.children.iter().position(|id| id == from);
        at.map_or(&[], |at| &self.children[at..])
    }

    /// Has its group restart, if there is one, take down all from this child on.
    pub(crate) fn take_down_from(&mut self, first: ChildId) {
        if let SupervisorPhase::Up { group: Group::TakingDown { from, .. }, .. } = &mut self.phase {
            *from = first;
        }
    }

    /// Whether it has ended by itself and is not restarted.
    pub fn has_finished(&self) -> bool {
        matches!(self.phase, SupervisorPhase::Down(DownReason::Finished))
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

    /// Charged restarts since it was added, whatever led to them.
    pub fn charged_restarts(&self) -> u64 {
        self.restarts.values().sum()
    }

    /// Why its last run ended.
    pub fn last_cause(&self) -> Option<&CauseChain> {
        self.history.last().map(|entry| entry.cause.as_ref())
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
            Self::Group => "stopped because its group restarts",
            Self::Drain => "stopped for the drain of its node",
        }
    }
}

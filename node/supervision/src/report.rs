//! What people see of the state: rows and verdicts. The story of one member stands in `explain`.

use std::collections::BTreeMap;
use std::time::Duration;

use pando_protocol::ids::{NodeName, Path};
use pando_protocol::message::Settled;
use pando_protocol::view::{CauseRow, EventRow, HistoryRow, Kind, NodeRow, NodeState, State, TreeRow, Verdict};

use crate::change::human;
use crate::cluster::{
    Body, Cluster, DownReason, HistoryEntry, Member, Pending, Process, ProcessPhase, Run, Stage, Supervisor,
    SupervisorPhase,
};
use crate::command::Event;
pub use crate::explain::explain;
use crate::mutation::{Mutation, broken};

/// Endings in a row at the cap that make a child *looping*.
pub const LOOPING: u32 = 3;

/// The rows at and below `from`, or of every tree, in tree order.
pub fn tree(cluster: &Cluster, from: Option<&Path>) -> Vec<TreeRow> {
    let roots: Vec<Path> = match from {
        Some(path) => vec![path.clone()],
        None => cluster.members.keys().filter(|path| path.depth() == 1).cloned().collect(),
    };
    roots.iter().flat_map(|root| rows(cluster, root)).collect()
}

/// The rows of one subtree. The sums of supervisors are made on the way up, so that a tree is walked once.
pub(crate) fn rows(cluster: &Cluster, root: &Path) -> Vec<TreeRow> {
    let mut rows: Vec<TreeRow> = Vec::new();
    for path in cluster.walk(root) {
        if let Some(member) = cluster.member(&path) {
            rows.push(row(cluster, &path, member));
        }
    }
    let mut sums: BTreeMap<Path, Sums> = BTreeMap::new();
    for row in rows.iter_mut().rev() {
        if row.kind == Kind::Supervisor {
            let below = sums.remove(&row.path).unwrap_or_default();
            (row.alive, row.configured) = (below.alive, below.configured);
            row.restart_rate += below.rate;
            row.verdict = supervisor_verdict(row, &below);
        }
        let Some(parent) = row.path.parent() else { continue };
        let above = sums.entry(parent).or_default();
        above.alive += row.alive;
        above.configured += row.configured;
        above.rate += row.restart_rate;
        // What is down on purpose says nothing about its supervisor.
        if row.verdict != Verdict::Stopped {
            above.worst = above.worst.min(Some(row.verdict)).or(Some(row.verdict));
        }
    }
    rows
}

#[derive(Default)]
struct Sums {
    alive: u32,
    configured: u32,
    rate: u32,
    /// The verdict below that matters most.
    worst: Option<Verdict>,
}

fn supervisor_verdict(row: &TreeRow, below: &Sums) -> Verdict {
    match row.state {
        State::Failed => Verdict::Failed,
        State::Stopped | State::Finished => Verdict::Stopped,
        _ => match below.worst {
            Some(Verdict::Waiting) => Verdict::Waiting,
            Some(Verdict::Looping) => Verdict::Looping,
            _ if row.restart_rate > 0 => Verdict::Churning,
            _ if row.alive < row.configured => Verdict::Short,
            _ => Verdict::Healthy,
        },
    }
}

fn row(cluster: &Cluster, path: &Path, member: &Member) -> TreeRow {
    let now = cluster.head.now;
    let run = cluster.run(path);
    let (pid, started) = run.map_or((None, None), |run| match run.stage {
        Stage::Assigned => (None, None),
        Stage::Started { pid, at } | Stage::Ready { pid, at } => (Some(pid), Some(at)),
    });
    let kind = if matches!(member.body, Body::Process(_)) { Kind::Process } else { Kind::Supervisor };
    let state = state(member);
    let mut row = TreeRow {
        path: path.clone(),
        kind,
        state,
        verdict: Verdict::Healthy,
        node: run.map(|run| run.node.clone()),
        incarnation: run.map(|run| run.incarnation),
        pid,
        uptime_ms: started.map(|at| millis(now.saturating_sub(at))),
        restarts: member.restarts,
        restart_rate: member.rate.per_minute(now),
        alive: u32::from(kind == Kind::Process && state == State::Running),
        configured: u32::from(kind == Kind::Process && is_meant_to_run(cluster, path)),
        waiting: waiting(cluster, path, member),
    };
    row.verdict = process_verdict(member, &row);
    row
}

fn process_verdict(member: &Member, row: &TreeRow) -> Verdict {
    match row.state {
        State::Failed => Verdict::Failed,
        State::Stopped | State::Finished => Verdict::Stopped,
        State::Waiting => Verdict::Waiting,
        _ if member.at_cap >= LOOPING => Verdict::Looping,
        _ if row.restart_rate > 0 => Verdict::Churning,
        _ if row.alive < row.configured => Verdict::Short,
        _ => Verdict::Healthy,
    }
}

/// Whether a member should run: it does unless it, or a supervisor above it, is being removed, was stopped on purpose, or has
/// finished.
fn is_meant_to_run(cluster: &Cluster, path: &Path) -> bool {
    let Some(member) = cluster.member(path) else { return false };
    let reason = match &member.body {
        Body::Process(Process { phase: ProcessPhase::Down(reason), .. }) => Some(*reason),
        Body::Supervisor(Supervisor { phase: SupervisorPhase::Down(reason), .. }) => Some(*reason),
        Body::Process(_) | Body::Supervisor(_) => None,
    };
    let is_over = matches!(reason, Some(DownReason::Held | DownReason::Finished | DownReason::Rule));
    let is_meant = !member.held && !member.removed && !is_over;
    is_meant && path.parent().is_none_or(|parent| is_meant_to_run(cluster, &parent))
}

/// What a member does.
pub(crate) fn state(member: &Member) -> State {
    match &member.body {
        Body::Process(Process { phase, .. }) => match phase {
            ProcessPhase::Down(DownReason::Finished) => State::Finished,
            ProcessPhase::Down(_) => State::Stopped,
            ProcessPhase::Pending(Pending { waits_for: Some(_), .. }) => State::Waiting,
            ProcessPhase::Pending(_) => State::BackingOff,
            ProcessPhase::Assigned(Run { stopping: Some(_), .. }) => State::Stopping,
            ProcessPhase::Assigned(run) => match run.stage {
                Stage::Assigned if run.delay.is_zero() => State::Starting,
                Stage::Assigned => State::BackingOff,
                Stage::Started { .. } => State::Started,
                Stage::Ready { .. } => State::Running,
            },
        },
        Body::Supervisor(Supervisor { phase, .. }) => match phase {
            SupervisorPhase::Down(DownReason::Finished) => State::Finished,
            SupervisorPhase::Down(_) => State::Stopped,
            SupervisorPhase::Delayed { .. } => State::BackingOff,
            SupervisorPhase::Up { .. } => State::Running,
            SupervisorPhase::Stopping { .. } => State::Stopping,
            SupervisorPhase::Failed(_) => State::Failed,
        },
    }
}

/// What a member that is unfinished waits for.
pub(crate) fn waiting(cluster: &Cluster, path: &Path, member: &Member) -> Option<String> {
    let now = cluster.head.now;
    if broken(Mutation::WaitingIsSilent) {
        return None;
    }
    match &member.body {
        Body::Process(Process { phase, .. }) => match phase {
            ProcessPhase::Down(_) => None,
            ProcessPhase::Pending(pending) => Some(match &pending.waits_for {
                Some(reason) => reason.clone(),
                None => format!("its delay ends in {}", human(pending.not_before.saturating_sub(now))),
            }),
            ProcessPhase::Assigned(run) if run.stopping.is_some() => {
                Some(format!("{} reports that it has ended", run.node))
            }
            ProcessPhase::Assigned(run) => match run.stage {
                Stage::Assigned if run.delay.is_zero() => Some(format!("{} reports its start", run.node)),
                Stage::Assigned => Some(format!("{} starts it {} after the last exit", run.node, human(run.delay))),
                Stage::Started { .. } => Some("its own word or its probe says that it is ready".into()),
                Stage::Ready { .. } => None,
            },
        },
        Body::Supervisor(Supervisor { phase, children, .. }) => match phase {
            SupervisorPhase::Down(_) | SupervisorPhase::Up { .. } => None,
            SupervisorPhase::Delayed { until } => {
                Some(format!("its delay ends in {}", human(until.saturating_sub(now))))
            }
            SupervisorPhase::Stopping { .. } => {
                let last = children
                    .iter()
                    .rev()
                    .map(|id| path.child(id))
                    .find(|child| cluster.member(child).is_some_and(|m| !m.is_down()));
                last.map(|child| format!("{child} stops"))
            }
            SupervisorPhase::Failed(_) => Some("an operator".into()),
        },
    }
}

/// How a member's runs ended, the oldest first.
pub fn history(cluster: &Cluster, path: &Path) -> Option<Vec<HistoryRow>> {
    let member = cluster.member(path)?;
    Some(member.history.iter().filter_map(|entry| history_row(entry)).collect())
}

fn history_row(entry: &HistoryEntry) -> Option<HistoryRow> {
    let HistoryEntry { cause, charged, payer, decision, count, first, last, earlier } = entry;
    let outer = cause.outermost()?;
    Some(HistoryRow {
        incarnation: outer.incarnation,
        node: outer.node.clone(),
        cause: CauseRow::from(outer),
        charged: *charged,
        payer: payer.clone(),
        decision: decision.clone(),
        count: *count,
        first: *first,
        last: *last,
        chain: cause.levels.iter().skip(1).map(CauseRow::from).collect(),
        earlier: earlier.iter().filter_map(|chain| chain.outermost()).map(CauseRow::from).collect(),
    })
}

/// Whether everything at and below `path` that should run is ready.
pub fn settled(cluster: &Cluster, path: &Path) -> Option<Settled> {
    let rows = rows(cluster, path);
    let top = rows.first()?;
    let root = Path::root(&path.tree());
    let failed = match cluster.supervisor(&root).map(|root| &root.phase) {
        Some(SupervisorPhase::Failed(cause)) => Some(cause.to_string()),
        _ => None,
    };
    let is_missing = |row: &&TreeRow| match row.state {
        State::Running | State::Finished => false,
        State::Stopped => is_meant_to_run(cluster, &row.path),
        State::Waiting | State::BackingOff | State::Starting | State::Started | State::Stopping | State::Failed => true,
    };
    let missing: Vec<&TreeRow> = rows.iter().filter(is_missing).collect();
    const SHOWN: usize = 5;
    let why = |row: &&TreeRow| match &row.waiting {
        Some(waiting) => format!("{} waits: {waiting}", row.path),
        None => format!("{} is {:?}", row.path, row.state).to_lowercase(),
    };
    Some(Settled {
        whole: failed.is_none() && missing.is_empty(),
        failed,
        verdict: top.verdict,
        ready: top.alive,
        configured: top.configured,
        missing: missing.iter().take(SHOWN).map(why).collect(),
    })
}

/// The nodes, in order of name.
pub fn nodes(cluster: &Cluster) -> Vec<NodeRow> {
    let row = |(name, node): (&NodeName, &std::sync::Arc<crate::cluster::Node>)| {
        let sessions = node.sessions.values();
        let leaving = sessions.clone().any(|session| session.leaving);
        let state = match node.current {
            Some(_) => NodeState::Up,
            None if leaving => NodeState::Leaving,
            None => NodeState::Down,
        };
        let children: usize = sessions.clone().map(|session| session.assigned.len()).sum();
        NodeRow {
            name: name.clone(),
            role: node.role,
            state,
            session: node.current,
            pid: node.current.map(|_| node.pid),
            children: u32::try_from(children).unwrap_or(u32::MAX),
            used: sessions.map(|session| session.used).sum(),
            slots: node.slots,
            labels: node.labels.iter().map(ToString::to_string).collect(),
            losses: node.losses,
            address: node.address.clone(),
        }
    };
    cluster.nodes.iter().map(row).collect()
}

/// An event as people see it.
pub fn event_row(event: &Event) -> EventRow {
    let Event { number, at, wall, path, node, kind, text } = event;
    EventRow {
        number: *number,
        cluster_time_ms: millis(*at),
        at: *wall,
        kind: kind.as_str().to_owned(),
        path: path.clone(),
        node: node.clone(),
        text: text.clone(),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

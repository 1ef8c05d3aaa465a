//! What people see of the state: rows and verdicts. The story of one member stands in `explain`.

use std::collections::BTreeMap;
use std::time::Duration;

use pando_protocol::ids::{NodeName, Path};
use pando_protocol::message::Settled;
use pando_protocol::view::{
    CauseRow, EventRow, HistoryRow, Kind, MailboxDepth, NodeRow, NodeState, State, TreeRow, Verdict,
};

use crate::change::human;
use crate::cluster::{
    Body, Cluster, DownReason, Group, HistoryEntry, Member, Pending, Process, ProcessPhase, Run, Stage, Supervisor,
    SupervisorPhase,
};
use crate::command::Event;
use crate::departures::{Missing, what_a_move_waits_for};
pub use crate::explain::explain;
use crate::groups::{is_settled, is_startable};
use crate::mail::Mailbox;
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
    let (mut rows, mut missing): (Vec<TreeRow>, _) = (Vec::new(), Missing::default());
    for path in cluster.walk(root) {
        if let Some(member) = cluster.member(&path) {
            rows.push(row(cluster, &path, member, &mut missing));
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
            let verdicts = above.worst.into_iter().chain([row.verdict]);
            above.worst = verdicts.min_by_key(|verdict| rank(*verdict));
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

/// The lower, the more it matters to whoever looks at the whole.
fn rank(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Failed => 0,
        Verdict::Stopped => 1,
        Verdict::Unreachable => 2,
        Verdict::Waiting => 3,
        Verdict::Looping => 4,
        Verdict::Churning => 5,
        Verdict::Short => 6,
        Verdict::Healthy => 7,
    }
}

fn supervisor_verdict(row: &TreeRow, below: &Sums) -> Verdict {
    match row.state {
        State::Failed => Verdict::Failed,
        State::Stopped | State::Finished => Verdict::Stopped,
        _ => match below.worst {
            Some(Verdict::Unreachable) => Verdict::Unreachable,
            Some(Verdict::Waiting) => Verdict::Waiting,
            Some(Verdict::Looping) => Verdict::Looping,
            _ if row.restart_rate > 0 => Verdict::Churning,
            _ if row.alive < row.configured => Verdict::Short,
            _ => Verdict::Healthy,
        },
    }
}

fn row(cluster: &Cluster, path: &Path, member: &Member, missing: &mut Missing) -> TreeRow {
    let now = cluster.head.now;
    let run = cluster.run(path);
    let (pid, started) = run.map_or((None, None), |run| match run.stage {
        Stage::Assigned => (None, None),
        Stage::Started { pid, at } | Stage::Ready { pid, at } => (Some(pid), Some(at)),
    });
    let kind = if matches!(member.body, Body::Process(_)) { Kind::Process } else { Kind::Supervisor };
    let state = state(cluster, path, member);
    let mut row = TreeRow {
        path: path.clone(),
        kind,
        state,
        verdict: Verdict::Healthy,
        node: run.map(|run| run.node.clone()),
        incarnation: run.map(|run| run.incarnation),
        pid,
        uptime_ms: started.map(|at| millis(now.saturating_sub(at))),
        restarts: member.charged_restarts(),
        restart_rate: member.rate.per_minute(now),
        alive: u32::from(kind == Kind::Process && state == State::Running),
        configured: u32::from(kind == Kind::Process && is_meant_to_run(cluster, path)),
        waiting: waiting(cluster, path, member, missing),
        mailbox: cluster.mailbox(path).map(mailbox_depth),
    };
    row.verdict = process_verdict(member, &row);
    row
}

fn mailbox_depth(mailbox: &Mailbox) -> MailboxDepth {
    MailboxDepth { waiting: mailbox.waiting(), in_flight: mailbox.in_flight(), dead: mailbox.dead.len() as u64 }
}

fn process_verdict(member: &Member, row: &TreeRow) -> Verdict {
    match row.state {
        State::Failed => Verdict::Failed,
        State::Stopped | State::Finished => Verdict::Stopped,
        State::Waiting => Verdict::Waiting,
        State::Unreachable => Verdict::Unreachable,
        _ if is_looping(member, row) => Verdict::Looping,
        _ if row.restart_rate > 0 => Verdict::Churning,
        _ if row.alive < row.configured => Verdict::Short,
        _ => Verdict::Healthy,
    }
}

/// Whether a member is pinned at the cap of its backoff. A run of `reset_after` ends that: the next delay is the base again.
fn is_looping(member: &Member, row: &TreeRow) -> bool {
    let healthy_for = row.uptime_ms.filter(|_| row.state == State::Running).map(Duration::from_millis);
    member.at_cap >= LOOPING && healthy_for.is_none_or(|healthy| healthy < member.backoff.reset_after)
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
pub(crate) fn state(cluster: &Cluster, path: &Path, member: &Member) -> State {
    if let Some(pending) = pending_for(cluster, path) {
        return if pending.waits_for.is_some() { State::Waiting } else { State::BackingOff };
    }
    match &member.body {
        _ if turn(cluster, path).is_some() => State::Waiting,
        Body::Process(Process { phase, .. }) => match phase {
            ProcessPhase::Down(DownReason::Finished) => State::Finished,
            ProcessPhase::Down(_) => State::Stopped,
            ProcessPhase::Pending(_) => State::BackingOff,
            ProcessPhase::Assigned(run) if cluster.is_unreachable(run) => State::Unreachable,
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

/// What waits for places at `path`: the member itself, or its group where the member comes with that.
fn pending_for<'a>(cluster: &'a Cluster, path: &Path) -> Option<&'a Pending> {
    let with_group = || path.parent().filter(|_| is_startable(cluster, path)).and_then(|at| cluster.pending_at(&at));
    cluster.pending_at(path).or_else(with_group)
}

/// What a member of a group waits for whose turn has not come.
fn turn(cluster: &Cluster, path: &Path) -> Option<String> {
    let parent = path.parent().filter(|_| is_startable(cluster, path))?;
    let supervisor = cluster.supervisor(&parent)?;
    match supervisor.group()? {
        Group::Settled | Group::Pending { .. } => None,
        Group::TakingDown { .. } => unfinished_stop(cluster, &parent, supervisor),
        Group::Starting => {
            let before = supervisor.children.iter().map(|id| parent.child(id)).take_while(|child| child != path);
            let first = before.into_iter().find(|child| !is_settled(cluster, child));
            Some(first.map_or_else(|| "its turn".into(), |child| format!("{child} is ready, which starts before it")))
        }
    }
}

/// The child that a stop waits for: the last that is not down.
fn unfinished_stop(cluster: &Cluster, path: &Path, supervisor: &Supervisor) -> Option<String> {
    let mut children = supervisor.children.iter().rev().map(|id| path.child(id));
    let last = children.find(|child| cluster.member(child).is_some_and(|member| !member.is_down()));
    last.map(|child| format!("{child} stops"))
}

/// What a member that is unfinished waits for. `missing` is what moves were found to wait for already.
pub(crate) fn waiting(cluster: &Cluster, path: &Path, member: &Member, missing: &mut Missing) -> Option<String> {
    let now = cluster.head.now;
    if broken(Mutation::WaitingIsSilent) {
        return None;
    }
    if let Some(pending) = pending_for(cluster, path) {
        return Some(match &pending.waits_for {
            Some(reason) => reason.clone(),
            None => format!("its delay ends in {}", human(pending.not_before.saturating_sub(now))),
        });
    }
    match &member.body {
        Body::Process(Process { phase, .. }) => match phase {
            ProcessPhase::Down(_) => turn(cluster, path),
            ProcessPhase::Pending(_) => None, // Said above.
            ProcessPhase::Assigned(run) if cluster.is_unreachable(run) => Some(return_of(cluster, run)),
            ProcessPhase::Assigned(run) if run.stopping.is_some() => {
                Some(format!("{} reports that it has ended", run.node))
            }
            ProcessPhase::Assigned(run) => match run.stage {
                Stage::Assigned if run.delay.is_zero() => Some(format!("{} reports its start", run.node)),
                Stage::Assigned => Some(format!("{} starts it {} after the last exit", run.node, human(run.delay))),
                Stage::Started { .. } => Some("its own word or its probe says that it is ready".into()),
                Stage::Ready { .. } => what_a_move_waits_for(cluster, path, missing),
            },
        },
        Body::Supervisor(supervisor) => match &supervisor.phase {
            SupervisorPhase::Down(_) => turn(cluster, path),
            SupervisorPhase::Up { group: Group::TakingDown { .. }, .. } => unfinished_stop(cluster, path, supervisor),
            SupervisorPhase::Up { .. } => None,
            SupervisorPhase::Delayed { until } => {
                Some(format!("its delay ends in {}", human(until.saturating_sub(now))))
            }
            SupervisorPhase::Stopping { .. } => unfinished_stop(cluster, path, supervisor),
            SupervisorPhase::Failed(_) => Some("an operator".into()),
        },
    }
}

fn return_of(cluster: &Cluster, run: &Run) -> String {
    let Run { node, stopping, .. } = run;
    if is_back(cluster, run) {
        return format!(
            "an operator who knows that it does not run on {node} any more, which came back without its data: stops {node}, says \
             `pando node remove {node} --dead`, and starts {node} again"
        );
    }
    let then = if stopping.is_some() { ", and then stops" } else { "" };
    format!(
        "{node} is back, which is silent{then}; or an operator who knows that its machine is gone says `pando node remove {node} \
         --dead`"
    )
}

/// Whether the node of a run that is unreachable has a newer session, under which it did not name it: its record of what it ran is
/// lost, so that it cannot prove either that this is over.
pub(crate) fn is_back(cluster: &Cluster, run: &Run) -> bool {
    cluster.nodes.get(&run.node).is_some_and(|node| node.current.is_some_and(|current| current > run.session))
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
        State::Waiting
        | State::BackingOff
        | State::Starting
        | State::Started
        | State::Stopping
        | State::Failed
        | State::Unreachable => true,
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
        let children: usize = sessions.clone().map(|session| session.assigned.len()).sum();
        let state = match node.current {
            Some(_) if node.drained && children == 0 => NodeState::Drained,
            Some(_) if node.drained => NodeState::Draining,
            Some(_) => NodeState::Up,
            None if node.is_unreachable() => NodeState::Unreachable,
            None if leaving => NodeState::Leaving,
            None => NodeState::Down,
        };
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

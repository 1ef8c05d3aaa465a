//! What people see of the state: rows, verdicts, and the story of one member.

use std::collections::BTreeMap;
use std::time::Duration;

use pando_protocol::ids::{NodeName, Path};
use pando_protocol::message::Settled;
use pando_protocol::spec::{Intensity, Restart};
use pando_protocol::view::{
    CauseRow, EventRow, Explanation, HistoryRow, Kind, NodeRow, NodeState, State, TreeRow, Verdict,
};

use crate::change::{budget, human};
use crate::cluster::{
    Body, Cluster, DownReason, HistoryEntry, Member, Pending, Process, ProcessPhase, Run, Stage, Supervisor,
    SupervisorPhase, Then,
};
use crate::command::Event;

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
fn rows(cluster: &Cluster, root: &Path) -> Vec<TreeRow> {
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
        above.worst = above.worst.min(Some(row.verdict)).or(Some(row.verdict));
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
        configured: u32::from(kind == Kind::Process && should_run(member)),
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

/// Whether a process counts as configured: it does unless it was stopped on purpose or has finished.
fn should_run(member: &Member) -> bool {
    let Body::Process(process) = &member.body else { return false };
    match process.phase {
        ProcessPhase::Down(DownReason::Held | DownReason::Finished | DownReason::Rule) => false,
        ProcessPhase::Down(DownReason::Supervisor) => !member.held && !member.removed,
        ProcessPhase::Pending(_) | ProcessPhase::Assigned(_) => !member.held && !member.removed,
    }
}

fn state(member: &Member) -> State {
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
fn waiting(cluster: &Cluster, path: &Path, member: &Member) -> Option<String> {
    let now = cluster.head.now;
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

/// Why a member is as it is, and what happens next.
pub fn explain(cluster: &Cluster, path: &Path) -> Option<Explanation> {
    let member = cluster.member(path)?;
    let row = rows(cluster, path).into_iter().next()?;
    let start_failures = match &member.body {
        Body::Process(process) => {
            process.refusals.iter().map(|(node, refusal)| (node.clone(), refusal.why.clone())).collect()
        }
        Body::Supervisor(_) => Vec::new(),
    };
    let window = covering_window(cluster, path, member);
    Some(Explanation {
        now: now_sentence(cluster, path, member),
        next: next_sentence(cluster, path, member),
        gives_up: gives_up(cluster, path, member),
        last: member.last_cause().cloned(),
        window,
        node_losses: member.node_losses.iter().map(|(node, count)| (node.clone(), *count)).collect(),
        start_failures,
        row,
    })
}

fn covering_window(cluster: &Cluster, path: &Path, member: &Member) -> Vec<pando_protocol::cause::Cause> {
    let now = cluster.head.now;
    let causes = |window: &crate::restarts::Window, intensity: Intensity| {
        window.counting(now, intensity).filter_map(|crash| crash.cause.innermost().cloned()).collect()
    };
    match &member.body {
        Body::Supervisor(supervisor) => causes(&supervisor.window, supervisor.intensity),
        Body::Process(process) => match process.spec.intensity {
            Some(own) => causes(&process.window, own),
            None => match path.parent().and_then(|parent| cluster.supervisor(&parent)) {
                Some(parent) => causes(&parent.window, parent.intensity),
                None => Vec::new(),
            },
        },
    }
}

fn now_sentence(cluster: &Cluster, path: &Path, member: &Member) -> String {
    let now = cluster.head.now;
    match &member.body {
        Body::Process(process) => match &process.phase {
            ProcessPhase::Down(reason) => down_sentence(cluster, path, *reason),
            ProcessPhase::Pending(_) => "is to run and has no place yet".into(),
            ProcessPhase::Assigned(run) => {
                let (node, number) = (&run.node, run.incarnation);
                match (run.stopping, run.stage) {
                    (Some(reason), _) => format!("is being {} on {node} (incarnation {number})", reason.as_str()),
                    (None, Stage::Assigned) => {
                        format!("is assigned to {node} as incarnation {number} and not started yet")
                    }
                    (None, Stage::Started { pid, at }) => {
                        let since = human(now.saturating_sub(at));
                        format!(
                            "was started on {node} {since} ago (incarnation {number}, pid {pid}) and is not ready yet"
                        )
                    }
                    (None, Stage::Ready { pid, at }) => {
                        let since = human(now.saturating_sub(at));
                        format!("has run on {node} for {since} (incarnation {number}, pid {pid}) and is ready")
                    }
                }
            }
        },
        Body::Supervisor(supervisor) => match &supervisor.phase {
            SupervisorPhase::Down(reason) => down_sentence(cluster, path, *reason),
            SupervisorPhase::Delayed { .. } => "failed and waits to be started again".into(),
            SupervisorPhase::Up { since } => format!("has been up for {}", human(now.saturating_sub(*since))),
            SupervisorPhase::Stopping { .. } => "stops its children, the last started first".into(),
            SupervisorPhase::Failed(cause) => format!("has failed: {cause}"),
        },
    }
}

fn down_sentence(cluster: &Cluster, path: &Path, reason: DownReason) -> String {
    match reason {
        DownReason::Held => "is stopped by an operator".into(),
        DownReason::Finished => "has ended and is not restarted".into(),
        DownReason::Rule => "was stopped by a rule of its on_exit".into(),
        DownReason::Supervisor => match path.parent() {
            Some(parent) => {
                let above = cluster.member(&parent).map_or("not there", |member| match state(member) {
                    State::Failed => "failed",
                    State::BackingOff => "waiting to be started again",
                    State::Stopping => "stopping",
                    _ => "down",
                });
                format!("is down because its supervisor {parent} is {above}")
            }
            None => "is down".into(),
        },
    }
}

fn next_sentence(cluster: &Cluster, path: &Path, member: &Member) -> String {
    if let Some(waiting) = waiting(cluster, path, member) {
        return match &member.body {
            Body::Supervisor(Supervisor { phase: SupervisorPhase::Failed(_), .. }) => {
                format!("nothing, until an operator acts: `pando restart {path}`, or apply a new spec")
            }
            Body::Supervisor(Supervisor { phase: SupervisorPhase::Stopping { then, .. }, .. }) => {
                let then = match then {
                    Then::Fail(_) => "fails, and its supervisor decides",
                    Then::End(_) => "ends",
                    Then::Restart => "starts again",
                    Then::Down(_) => "stays down",
                };
                format!("waits until {waiting}, then {then}")
            }
            Body::Process(_) | Body::Supervisor(_) => format!("waits: {waiting}"),
        };
    }
    match &member.body {
        _ if member.is_down() && member.held => format!("nothing, until `pando start {path}`"),
        _ if member.is_down() => {
            format!("nothing by itself; `pando restart {path}` starts it where its supervisor is up")
        }
        Body::Supervisor(_) => "it keeps its children running".into(),
        Body::Process(_) => match member.restart {
            Restart::Permanent => format!("whenever it ends it is restarted, after {}", next_delay(member)),
            Restart::Transient => format!("when it ends abnormally it is restarted, after {}", next_delay(member)),
            Restart::Temporary => "when it ends it is not restarted".into(),
        },
    }
}

fn next_delay(member: &Member) -> String {
    let between =
        |delays| format!("{} to {}", human(member.backoff.shortest(delays)), human(member.backoff.longest(delays)));
    if member.delays == 0 {
        return between(0);
    }
    let reset = human(member.backoff.reset_after);
    format!("{}, or {} once it was healthy for {reset}", between(member.delays), between(0))
}

fn gives_up(cluster: &Cluster, path: &Path, member: &Member) -> String {
    let spent = |window: &crate::restarts::Window, intensity: Intensity, owner: &str, then: String| match intensity {
        Intensity::Unlimited => format!("never: {owner} is unlimited"),
        Intensity::Limited { max_restarts, .. } => {
            let count = window.counting(cluster.head.now, intensity).count();
            // The budget pays for `max_restarts`; the crash after those is the one too many.
            let more = (max_restarts as usize + 1).saturating_sub(count).max(1);
            let crashes = if more == 1 { "one crash more".to_owned() } else { format!("{more} crashes more") };
            format!("{owner} has {count} of {} spent; {crashes}, and {then}", budget(intensity))
        }
    };
    let own = match &member.body {
        Body::Supervisor(supervisor) => {
            if let SupervisorPhase::Failed(_) = supervisor.phase {
                return String::new(); // It has; that is what it does now.
            }
            let then = match path.parent() {
                Some(parent) => format!("it fails, and {parent} decides"),
                None => "the tree fails".into(),
            };
            return spent(&supervisor.window, supervisor.intensity, "its budget", then);
        }
        Body::Process(process) => process.spec.intensity.map(|own| (process, own)),
    };
    let Some(parent) = path.parent() else { return String::new() };
    let Some(supervisor) = cluster.supervisor(&parent) else { return String::new() };
    match own {
        Some((process, own)) => {
            spent(&process.window, own, "its own budget", format!("that is one crash on the budget of {parent}"))
        }
        None => {
            let then = format!("{parent} escalates");
            spent(&supervisor.window, supervisor.intensity, &format!("the budget of {parent}"), then)
        }
    }
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
    let is_missing = |row: &&TreeRow| {
        let settled = matches!(row.state, State::Running | State::Finished);
        let on_purpose = row.state == State::Stopped && cluster.member(&row.path).is_some_and(|member| member.held);
        !settled && !on_purpose
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

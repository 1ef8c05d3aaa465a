//! The story of one member: what it does, what happens next, when it gives up.

use std::time::Duration;

use pando_protocol::cause::{Cause, CauseChain};
use pando_protocol::ids::Path;
use pando_protocol::spec::{Intensity, Restart};
use pando_protocol::view::{Explanation, State};

use crate::change::{budget, human};
use crate::cluster::{
    Body, Cluster, DownReason, Group, Member, ProcessPhase, Run, Stage, Supervisor, SupervisorPhase, Then,
};
use crate::departures::Missing;
use crate::report::{is_back, rows, state, waiting};
use crate::restarts::Window;

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
        last: last_ending(cluster, path).cloned(),
        window,
        node_losses: member.node_losses.iter().map(|(node, count)| (node.clone(), *count)).collect(),
        start_failures,
        row,
    })
}

/// The newest ending at or below a member: what a supervisor is judged by are mostly endings of its children.
fn last_ending<'c>(cluster: &'c Cluster, path: &Path) -> Option<&'c CauseChain> {
    let own_and_below = cluster.members.range(path.clone()..).take_while(|(at, _)| at.is_within(path));
    let newest = own_and_below.filter_map(|(at, member)| Some((at, member.history.last()?)));
    // Of one moment the outermost tells most: an escalation holds the crash that caused it.
    let newest = newest.max_by_key(|(at, entry)| (entry.last, std::cmp::Reverse(at.depth())));
    newest.map(|(_, entry)| entry.cause.as_ref())
}

/// The outermost supervisor above a member that is not up: what has to happen to it before anything can happen here.
fn highest_down<'c>(cluster: &'c Cluster, path: &Path) -> Option<(Path, &'c Member)> {
    let above = std::iter::successors(path.parent(), Path::parent);
    let down = above.filter(|above| cluster.supervisor(above).is_some_and(|supervisor| !supervisor.is_up()));
    let highest = down.last()?;
    let member = cluster.member(&highest)?;
    Some((highest, member))
}

fn has_failed(member: &Member) -> bool {
    matches!(&member.body, Body::Supervisor(Supervisor { phase: SupervisorPhase::Failed(_), .. }))
}

fn covering_window(cluster: &Cluster, path: &Path, member: &Member) -> Vec<Cause> {
    if member.is_down() && !has_failed(member) {
        return Vec::new(); // Nothing that is down can crash, and what lets it run again empties the window.
    }
    let now = cluster.head.now;
    let causes = |window: &Window, intensity: Intensity| {
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
            ProcessPhase::Assigned(run) if cluster.is_unreachable(run) => unreachable_sentence(cluster, run),
            ProcessPhase::Assigned(run) => run_sentence(run, now),
        },
        Body::Supervisor(supervisor) => match &supervisor.phase {
            SupervisorPhase::Down(reason) => down_sentence(cluster, path, *reason),
            SupervisorPhase::Delayed { .. } => "failed and waits to be started again".into(),
            SupervisorPhase::Up { since, group } => {
                let since = human(now.saturating_sub(*since));
                match group {
                    Group::Settled => format!("has been up for {since}"),
                    Group::TakingDown { .. } => format!("has been up for {since} and restarts its group"),
                    Group::Pending { .. } => {
                        format!("has been up for {since}; its group is down and waits to start again")
                    }
                    Group::Starting => format!("has been up for {since} and starts its children in order"),
                }
            }
            SupervisorPhase::Stopping { .. } => "stops its children, the last started first".into(),
            SupervisorPhase::Failed(cause) => format!("has failed: {cause}"),
        },
    }
}

fn unreachable_sentence(cluster: &Cluster, run: &Run) -> String {
    let what = match run.stage {
        Stage::Assigned => "may have been started",
        Stage::Started { .. } | Stage::Ready { .. } => "may run on",
    };
    let (node, number) = (&run.node, run.incarnation);
    let why = if is_back(cluster, run) { "is back and knows nothing of it" } else { "is silent" };
    format!("{what} on {node} as incarnation {number}: {node} {why}, and nothing is started in its place")
}

fn run_sentence(run: &Run, now: Duration) -> String {
    let (node, number) = (&run.node, run.incarnation);
    match (run.stopping, run.stage) {
        (Some(reason), _) => format!("is being {} on {node} (incarnation {number})", reason.as_str()),
        (None, Stage::Assigned) => format!("is assigned to {node} as incarnation {number} and not started yet"),
        (None, Stage::Started { pid, at }) => {
            let since = human(now.saturating_sub(at));
            format!("was started on {node} {since} ago (incarnation {number}, pid {pid}) and is not ready yet")
        }
        (None, Stage::Ready { pid, at }) => {
            let since = human(now.saturating_sub(at));
            format!("has run on {node} for {since} (incarnation {number}, pid {pid}) and is ready")
        }
    }
}

fn down_sentence(cluster: &Cluster, path: &Path, reason: DownReason) -> String {
    match reason {
        DownReason::Held if cluster.member(path).is_some_and(|member| member.quarantined) => {
            "is quarantined by an operator, as dangerous to start".into()
        }
        DownReason::Held => "is stopped by an operator".into(),
        DownReason::Finished => "has ended and is not restarted".into(),
        DownReason::Rule => "was stopped by a rule of its on_exit".into(),
        DownReason::Supervisor => match path.parent() {
            Some(parent) if cluster.supervisor(&parent).is_some_and(Supervisor::is_up) => {
                format!("is down until its turn: {parent} starts its children in order")
            }
            Some(_) if highest_down(cluster, path).is_some_and(|(_, member)| has_failed(member)) => {
                format!("is down because the tree {} has failed", Path::root(&path.tree()))
            }
            Some(parent) => {
                let above =
                    cluster.member(&parent).map_or("not there", |member| match state(cluster, &parent, member) {
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
    if let Some(waiting) = waiting(cluster, path, member, &mut Missing::default()) {
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
        _ if member.is_down() => next_of_down(cluster, path, member),
        Body::Supervisor(_) => "it keeps its children running".into(),
        Body::Process(_) => match member.restart {
            Restart::Permanent => format!("whenever it ends it is restarted, after {}", next_delay(member)),
            Restart::Transient => format!("when it ends abnormally it is restarted, after {}", next_delay(member)),
            Restart::Temporary => "when it ends it is not restarted".into(),
        },
    }
}

fn next_of_down(cluster: &Cluster, path: &Path, member: &Member) -> String {
    match highest_down(cluster, path) {
        Some((root, above)) if has_failed(above) => {
            format!("nothing, until an operator acts: `pando restart {root}`, or apply a new spec")
        }
        Some((above, down)) if down.is_down() && down.held => {
            format!("nothing, until `pando start {above}`{}", also_held(path, member))
        }
        Some((above, down)) if down.is_down() => {
            format!("nothing by itself; `pando restart {above}` starts it{}", also_held(path, member))
        }
        Some((above, _)) => match also_held(path, member).as_str() {
            "" => format!("waits for {above}, which decides what happens to all below it"),
            _ => format!("nothing, until `pando start {path}`"),
        },
        None if member.held => format!("nothing, until `pando start {path}`"),
        None => format!("nothing by itself; `pando restart {path}` starts it"),
    }
}

fn also_held(path: &Path, member: &Member) -> String {
    if member.held { format!(" and `pando start {path}`") } else { String::new() }
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
    if member.is_down() {
        return String::new(); // It has, or nothing of it can crash.
    }
    let Some(parent) = path.parent() else {
        return match &member.body {
            Body::Supervisor(root) => {
                spent(cluster, &root.window, root.intensity, "its budget", "the tree fails".into())
            }
            Body::Process(_) => String::new(), // A root is a supervisor.
        };
    };
    let Some(above) = cluster.supervisor(&parent) else { return String::new() };
    match &member.body {
        Body::Supervisor(own) => {
            let then = format!("it fails, and {parent} decides");
            spent(cluster, &own.window, own.intensity, "its budget", then)
        }
        Body::Process(_) if member.restart == Restart::Temporary => {
            "at its first ending: a temporary child is never restarted".into()
        }
        Body::Process(process) => match process.spec.intensity {
            Some(own) => {
                let then = format!("that is one crash on the budget of {parent}");
                spent(cluster, &process.window, own, "its own budget", then)
            }
            None => {
                let then = format!("{parent} escalates");
                spent(cluster, &above.window, above.intensity, &format!("the budget of {parent}"), then)
            }
        },
    }
}

fn spent(cluster: &Cluster, window: &Window, intensity: Intensity, owner: &str, then: String) -> String {
    let Intensity::Limited { max_restarts, .. } = intensity else { return format!("never: {owner} is unlimited") };
    let count = window.counting(cluster.head.now, intensity).count();
    // The budget pays for `max_restarts`; the crash after those is the one too many.
    let more = (max_restarts as usize + 1).saturating_sub(count).max(1);
    let crashes = if more == 1 { "one crash more".to_owned() } else { format!("{more} crashes more") };
    format!("{owner} has {count} of {} spent; {crashes}, and {then}", budget(intensity))
}

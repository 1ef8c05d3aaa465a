//! What must hold between a state and the one after it.

use pando_protocol::ids::Path;
use pando_protocol::spec::AutoShutdown;

use super::{Broken, processes};
use crate::cluster::{Body, Cluster, DownReason, Member, Process, ProcessPhase, Supervisor, SupervisorPhase};

/// Checks what must hold between a state and the one after it.
///
/// # Errors
/// Each rule that does not hold.
pub fn check_step(before: &Cluster, after: &Cluster) -> Result<(), Vec<Broken>> {
    let mut broken: Vec<Broken> =
        ALL.iter().filter_map(|(name, holds)| holds(before, after).err().map(|why| format!("{name}: {why}"))).collect();
    broken.extend(counters_only_grow(before, after).err());
    if broken.is_empty() { Ok(()) } else { Err(broken) }
}

type StepInvariant = fn(&Cluster, &Cluster) -> Result<(), Broken>;

/// Every invariant of a step, by its name.
const ALL: [(&str, StepInvariant); 5] = [
    ("incarnations of a path grow", incarnations_of_a_path_grow),
    ("a run keeps its place", a_run_keeps_its_place),
    ("a crash restart waits at least its shortest delay", a_crash_restart_waits_at_least_its_shortest_delay),
    ("a supervisor starts with an empty window", a_supervisor_starts_with_an_empty_window),
    ("significant children end their supervisor", significant_children_end_their_supervisor),
];

fn counters_only_grow(before: &Cluster, after: &Cluster) -> Result<(), Broken> {
    let counters = |cluster: &Cluster| {
        let head = &cluster.head;
        let counts = [head.next_incarnation, head.next_session, head.next_event, head.next_order];
        (head.now, u64::from(head.rules), counts)
    };
    let ((now, rules, counts), (then, ruled, counted)) = (counters(after), counters(before));
    if now < then {
        return Err(format!("time ran backwards: from {then:?} to {now:?}"));
    }
    if rules < ruled || counts.iter().zip(counted).any(|(new, old)| *new < old) {
        return Err(format!("a counter fell: from {counted:?} to {counts:?}"));
    }
    let fewer = |(path, member): (&Path, &std::sync::Arc<Member>)| {
        before.member(path).is_some_and(|old| member.charged_restarts() < old.charged_restarts()).then(|| path.clone())
    };
    match after.members.iter().find_map(fewer) {
        Some(path) => Err(format!("{path} has fewer restarts than before")),
        None => Ok(()),
    }
}

fn incarnations_of_a_path_grow(before: &Cluster, after: &Cluster) -> Result<(), Broken> {
    for (path, _, process) in processes(after) {
        let ProcessPhase::Assigned(run) = &process.phase else { continue };
        let Some(old) = before.run(path) else { continue };
        if run.incarnation < old.incarnation {
            return Err(format!("{path} went from incarnation {} back to {}", old.incarnation, run.incarnation));
        }
    }
    Ok(())
}

fn a_run_keeps_its_place(before: &Cluster, after: &Cluster) -> Result<(), Broken> {
    for (path, _, process) in processes(after) {
        let ProcessPhase::Assigned(run) = &process.phase else { continue };
        let Some(old) = before.run(path).filter(|old| old.incarnation == run.incarnation) else { continue };
        if (&run.node, run.session, run.delay, run.slots) != (&old.node, old.session, old.delay, old.slots) {
            return Err(format!("{path} incarnation {} moved from {} to {}", run.incarnation, old.node, run.node));
        }
        if old.stopping.is_some() && run.stopping != old.stopping {
            return Err(format!("{path} incarnation {} was to stop and now is not", run.incarnation));
        }
    }
    Ok(())
}

fn a_crash_restart_waits_at_least_its_shortest_delay(before: &Cluster, after: &Cluster) -> Result<(), Broken> {
    let now = after.head.now;
    for (path, member) in &after.members {
        let charged = |old: &&Member| member.charged_restarts() > old.charged_restarts();
        let Some(old) = before.member(path).filter(charged) else { continue };
        let wait = match &member.body {
            Body::Process(Process { phase: ProcessPhase::Assigned(run), .. }) => run.delay,
            Body::Process(Process { phase: ProcessPhase::Pending(pending), .. }) => {
                pending.not_before.saturating_sub(now)
            }
            Body::Supervisor(Supervisor { phase: SupervisorPhase::Delayed { until }, .. }) => until.saturating_sub(now),
            Body::Process(_) | Body::Supervisor(_) => continue,
        };
        if wait < old.backoff.shortest(0) {
            return Err(format!("{path} restarts after {wait:?}"));
        }
    }
    Ok(())
}

fn a_supervisor_starts_with_an_empty_window(before: &Cluster, after: &Cluster) -> Result<(), Broken> {
    for (path, member) in &after.members {
        let (Body::Supervisor(new), Some(old)) = (&member.body, before.supervisor(path)) else { continue };
        if new.is_up() && !old.is_up() && !new.window.crashes.is_empty() {
            return Err(format!("{path} starts again with crashes in its window"));
        }
    }
    Ok(())
}

/// Where one ended for good while its supervisor was up, and stays up.
fn significant_children_end_their_supervisor(before: &Cluster, after: &Cluster) -> Result<(), Broken> {
    for (path, _) in after.members.iter().filter(|(_, member)| member.significant && has_finished(member)) {
        if before.member(path).is_none_or(has_finished) {
            continue;
        }
        let Some((parent, above)) = path.parent().and_then(|at| Some((at.clone(), after.supervisor(&at)?))) else {
            continue;
        };
        let siblings = above.children.iter().filter_map(|id| after.member(&parent.child(id)));
        let all = siblings.filter(|sibling| sibling.significant).all(has_finished);
        let is_over = match above.auto_shutdown {
            AutoShutdown::Never => false,
            AutoShutdown::AnySignificant => true,
            AutoShutdown::AllSignificant => all,
        };
        if is_over && above.is_up() {
            return Err(format!("{path} has ended and {parent} is still up"));
        }
    }
    Ok(())
}

fn has_finished(member: &Member) -> bool {
    match &member.body {
        Body::Process(process) => matches!(process.phase, ProcessPhase::Down(DownReason::Finished)),
        Body::Supervisor(supervisor) => matches!(supervisor.phase, SupervisorPhase::Down(DownReason::Finished)),
    }
}

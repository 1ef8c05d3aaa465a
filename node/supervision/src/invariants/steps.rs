//! What must hold between a state and the one after it.

use std::collections::BTreeSet;

use pando_protocol::ids::{NodeName, Path};
use pando_protocol::spec::{AutoShutdown, Restart};

use super::{Broken, processes};
use crate::cluster::{
    Body, Cluster, DownReason, Group, Member, Pending, Process, ProcessPhase, StopReason, Supervisor, SupervisorPhase,
};
use crate::colocation::outermost;
use crate::groups::{is_settled, is_startable};

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
const ALL: [(&str, StepInvariant); 11] = [
    ("incarnations of a path grow", incarnations_of_a_path_grow),
    ("a run keeps its place", a_run_keeps_its_place),
    ("a crash restart waits at least its shortest delay", a_crash_restart_waits_at_least_its_shortest_delay),
    ("a supervisor starts with an empty window", a_supervisor_starts_with_an_empty_window),
    ("significant children end their supervisor", significant_children_end_their_supervisor),
    ("members of a group start in turn", members_of_a_group_start_in_turn),
    ("generations of a group never overlap", generations_of_a_group_never_overlap),
    ("a new generation waits for nothing that still stops", a_new_generation_waits_for_nothing_that_still_stops),
    ("what stays together is placed together", what_stays_together_is_placed_together),
    ("a drained node is given no work", a_drained_node_is_given_no_work),
    ("a move has its place before it begins", a_move_has_its_place_before_it_begins),
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
        if (&run.node, run.delay, run.slots, run.keep) != (&old.node, old.delay, old.slots, old.keep) {
            return Err(format!("{path} incarnation {} moved from {} to {}", run.incarnation, old.node, run.node));
        }
        // What is kept goes on under a newer session of its node, by a word said under that one.
        let (from, to) = (old.session, run.session);
        let observed = |cluster: &Cluster| cluster.session(&run.node, to).map(|session| session.observed);
        if from != to && !(run.keep && from < to && observed(after) > observed(before)) {
            return Err(format!("{path} incarnation {} went over from {from} to {to}", run.incarnation));
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
            Body::Process(_) | Body::Supervisor(_) => {
                let above = path.parent().and_then(|parent| after.supervisor(&parent));
                match above.and_then(Supervisor::group) {
                    Some(Group::TakingDown { not_before, .. } | Group::Pending(Pending { not_before, .. })) => {
                        not_before.saturating_sub(now)
                    }
                    Some(Group::Settled | Group::Starting) | None => continue,
                }
            }
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
        // What its group takes down has not ended by itself.
        let was_taken_down = before
            .supervisor(&parent)
            .is_some_and(|group| group.taken_down().iter().any(|id| id.as_str() == path.name()));
        let was_stopped = before.run(path).map_or(before.supervisor(path).is_some(), |run| run.stopping.is_some());
        let with_its_group = was_stopped && (above.strategy.is_group() || was_taken_down);
        if with_its_group {
            continue;
        }
        let siblings = above.children.iter().filter_map(|id| after.member(&parent.child(id)));
        let all = siblings.filter(|sibling| sibling.significant && !sibling.removed).all(has_finished);
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

/// One that was down until its turn and runs now: everything before it is settled.
fn members_of_a_group_start_in_turn(before: &Cluster, after: &Cluster) -> Result<(), Broken> {
    for (path, member) in &after.members {
        let Some(parent) = path.parent() else { continue };
        let Some(above) = after.supervisor(&parent).filter(|above| above.strategy.is_group()) else { continue };
        let was_up = before.supervisor(&parent).is_some_and(Supervisor::is_up);
        if !was_up || !is_startable(before, path) || member.is_down() {
            continue;
        }
        let mut earlier = above.children.iter().map(|id| parent.child(id)).take_while(|child| child != path);
        if let Some(unsettled) = earlier.find(|child| !is_settled(after, child)) {
            return Err(format!("{path} starts before {unsettled} is ready"));
        }
    }
    Ok(())
}

/// A group that took members down and does not any more: nothing of them that ran before still does.
fn generations_of_a_group_never_overlap(before: &Cluster, after: &Cluster) -> Result<(), Broken> {
    for path in before.members.keys() {
        let (Some(old), Some(new)) = (before.supervisor(path), after.supervisor(path)) else { continue };
        let goes_on = matches!(new.group(), Some(Group::Pending(_) | Group::Starting | Group::Settled));
        if !goes_on || old.children != new.children || old.strategy != new.strategy {
            continue;
        }
        for member in old.taken_down().iter().map(|id| path.child(id)) {
            let mut runs =
                before.walk(&member).into_iter().filter_map(|below| Some((before.run(&below)?.incarnation, below)));
            let still = runs.find(|(was, below)| after.run(below).is_some_and(|run| run.incarnation == *was));
            if let Some((incarnation, below)) = still {
                return Err(format!("{path} goes on while {below} incarnation {incarnation} still runs"));
            }
        }
    }
    Ok(())
}

/// Where a generation begins to wait for its places, no member is still being taken down for it.
fn a_new_generation_waits_for_nothing_that_still_stops(before: &Cluster, after: &Cluster) -> Result<(), Broken> {
    for path in after.members.keys() {
        let (Some(old), Some(new)) = (before.supervisor(path), after.supervisor(path)) else { continue };
        let order = |supervisor: &Supervisor| match supervisor.group() {
            Some(Group::Pending(pending)) => Some(pending.order),
            Some(Group::Settled | Group::TakingDown { .. } | Group::Starting) | None => None,
        };
        let begins = order(new).is_some() && order(new) != order(old);
        // A new spec may take out the member from which on a group was being taken down.
        if !begins || old.children != new.children || old.strategy != new.strategy {
            continue;
        }
        let members = new.children.iter().map(|id| path.child(id));
        let is_stopping = |member: &Path| after.run(member).is_some_and(|run| run.stopping == Some(StopReason::Group));
        if let Some(member) = members.into_iter().find(is_stopping) {
            return Err(format!("{path} waits for the places of a new generation while {member} still stops"));
        }
    }
    Ok(())
}

/// A new run below a supervisor that keeps its children together is where the others are, as far as those are in one place.
fn what_stays_together_is_placed_together(before: &Cluster, after: &Cluster) -> Result<(), Broken> {
    for (path, _, process) in processes(after) {
        let ProcessPhase::Assigned(run) = &process.phase else { continue };
        if before.run(path).is_some_and(|old| old.incarnation == run.incarnation || old.node == run.node) {
            continue;
        }
        let Some(by) = outermost(after, path).filter(|by| before.supervisor(by).is_some_and(|by| by.colocate)) else {
            continue;
        };
        let others: Vec<Path> = after.walk(&by).into_iter().filter(|other| other != path).collect();
        let stays = |other: &Path| {
            let (old, new) = (before.run(other)?, after.run(other)?);
            let same = old.incarnation == new.incarnation && old.stopping.is_none() && new.stopping.is_none();
            same.then(|| new.node.clone())
        };
        let staying: BTreeSet<NodeName> = others.iter().filter_map(stays).collect();
        // Those that end to start again where they are hold the rest there too.
        let runs =
            |cluster: &Cluster| others.iter().filter_map(|other| Some(cluster.run(other)?.node.clone())).collect();
        let all: BTreeSet<NodeName> = [before, after].into_iter().flat_map::<BTreeSet<NodeName>, _>(runs).collect();
        if staying.len() == 1 && all == staying && !staying.contains(&run.node) {
            let is_drained = |node: &NodeName| after.nodes.get(node).is_some_and(|node| node.drained);
            if staying.iter().any(is_drained) {
                continue; // They are to follow.
            }
            return Err(format!("{path} was placed on {}, the rest of {by} runs on {staying:?}", run.node));
        }
    }
    Ok(())
}

/// A restart in place is none.
fn a_drained_node_is_given_no_work(before: &Cluster, after: &Cluster) -> Result<(), Broken> {
    for (path, _, process) in processes(after) {
        let ProcessPhase::Assigned(run) = &process.phase else { continue };
        let is_new = before.run(path).is_none_or(|old| old.incarnation != run.incarnation) && run.after.is_none();
        let is_drained = |cluster: &Cluster| cluster.nodes.get(&run.node).is_some_and(|node| node.drained);
        if is_new && is_drained(before) && is_drained(after) {
            return Err(format!("{path} was placed on {}, which is drained", run.node));
        }
    }
    Ok(())
}

/// A run that is asked to end for a drain: a place is kept for the next one, or it is temporary and there is none.
fn a_move_has_its_place_before_it_begins(before: &Cluster, after: &Cluster) -> Result<(), Broken> {
    for (path, member, process) in processes(after) {
        let ProcessPhase::Assigned(run) = &process.phase else { continue };
        let Some(old) = before.run(path).filter(|old| old.incarnation == run.incarnation) else { continue };
        let begins = old.stopping.is_none() && run.stopping == Some(StopReason::Drain);
        let above = path.parent().and_then(|parent| after.supervisor(&parent));
        // What a group takes down gets its place with the next generation.
        let alone = above.is_some_and(|above| !above.strategy.is_group() && above.taken_down().is_empty());
        if begins && alone && process.place.is_none() && member.restart != Restart::Temporary {
            return Err(format!("{path} is asked to leave {} and has no place to go", run.node));
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

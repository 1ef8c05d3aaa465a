//! What must hold between a state and the one after it.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use pando_protocol::ids::{NodeName, Path, SessionId};
use pando_protocol::spec::{AutoShutdown, Restart};

use super::{Broken, drains, mail, processes};
use crate::apply::{REPLY_BYTES_KEPT, weight};
use crate::cluster::{
    Body, Cluster, DownReason, Group, Member, Pending, Process, ProcessPhase, Run, Stage, StopReason, Supervisor,
    SupervisorPhase,
};
use crate::colocation::outermost;
use crate::command::Outcome;
use crate::endings::is_held_or_removed;
use crate::groups::{is_settled, is_startable, returns_with_its_group};
use crate::placement::{can_return, can_return_alone, choose};

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
const ALL: [(&str, StepInvariant); 19] = [
    ("what clients were answered is weighed", what_clients_were_answered_is_weighed),
    ("incarnations of a path grow", incarnations_of_a_path_grow),
    ("a run keeps its place", a_run_keeps_its_place),
    ("a crash restart waits at least its shortest delay", a_crash_restart_waits_at_least_its_shortest_delay),
    ("a supervisor starts with an empty window", a_supervisor_starts_with_an_empty_window),
    ("significant children end their supervisor", significant_children_end_their_supervisor),
    ("members of a group start in turn", members_of_a_group_start_in_turn),
    ("generations of a group never overlap", generations_of_a_group_never_overlap),
    ("what a node gives back unbegun is run", what_a_node_gives_back_unbegun_is_run),
    ("a new generation waits for nothing that still stops", a_new_generation_waits_for_nothing_that_still_stops),
    ("what stays together is placed together", what_stays_together_is_placed_together),
    ("a drained node is given no work", a_drained_node_is_given_no_work),
    ("what ends on a drained node can go back", what_ends_on_a_drained_node_can_go_back),
    ("a move has its place before it begins", a_move_has_its_place_before_it_begins),
    ("a temporary child ends with the last of its group", drains::a_temporary_child_ends_with_the_last_of_its_group),
    ("charged never falls within a life", mail::charged_never_falls_within_a_life),
    ("counts of a mailbox only grow", mail::counts_of_a_mailbox_only_grow),
    ("a message dies only when the rule says", mail::a_message_dies_only_when_the_rule_says),
    ("an entry sweeps so many and no more", mail::an_entry_sweeps_so_many_and_no_more),
];

/// By what came and went: to weigh all of it after each step would take most of a test's time.
fn what_clients_were_answered_is_weighed(before: &Cluster, after: &Cluster) -> Result<(), Broken> {
    let none = OrdMap::new();
    for change in before.clients.diff(&after.clients) {
        let (id, was, replies, now) = match change {
            DiffItem::Add(id, now) => (id, 0, &none, now),
            DiffItem::Update { old: (_, old), new: (id, now) } => (id, old.bytes, &old.replies, now),
            DiffItem::Remove(..) => continue,
        };
        let weigh = |these: &OrdMap<u64, Arc<Outcome>>, others: &OrdMap<u64, Arc<Outcome>>| -> u64 {
            these.iter().filter(|(sequence, _)| !others.contains_key(*sequence)).map(|(_, reply)| weight(reply)).sum()
        };
        let (came, went) = (weigh(&now.replies, replies), weigh(replies, &now.replies));
        if now.bytes + went != was + came {
            return Err(format!("client {id:?} had {was} bytes of replies, {came} came, {went} went: {}", now.bytes));
        }
        if now.bytes > REPLY_BYTES_KEPT && now.replies.len() > 1 {
            return Err(format!("client {id:?} keeps {} replies of {} bytes", now.replies.len(), now.bytes));
        }
    }
    Ok(())
}

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
    let fewer = |(path, member): (&Path, &Arc<Member>)| {
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
        // What goes on as before was charged late, for a crash that messages were accused of.
        let goes_on =
            before.run(path).zip(after.run(path)).is_some_and(|(old, new)| old.incarnation == new.incarnation);
        let waits_on =
            before.pending_at(path).zip(after.pending_at(path)).is_some_and(|(old, new)| old.order == new.order);
        if goes_on || waits_on {
            continue;
        }
        let wait = match &member.body {
            Body::Process(Process { phase: ProcessPhase::Assigned(run), .. }) => run.delay,
            Body::Process(Process { phase: ProcessPhase::Pending(pending), .. }) => {
                pending.not_before.saturating_sub(now)
            }
            Body::Supervisor(Supervisor { phase: SupervisorPhase::Delayed { until }, .. }) => until.saturating_sub(now),
            Body::Process(_) | Body::Supervisor(_) => {
                let above = path.parent().and_then(|parent| after.supervisor(&parent));
                match above.and_then(Supervisor::group) {
                    Some(
                        Group::TakingDown { not_before, .. }
                        | Group::Pending { pending: Pending { not_before, .. }, .. },
                    ) => not_before.saturating_sub(now),
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
        if let Some(unsettled) =
            earlier.find(|child| !is_settled(after, child) && !is_settled(&drains::as_it_was(after), child))
        {
            return Err(format!("{path} starts before {unsettled} is ready"));
        }
    }
    Ok(())
}

/// A group that took members down and does not any more: nothing of them that ran before still does.
fn generations_of_a_group_never_overlap(before: &Cluster, after: &Cluster) -> Result<(), Broken> {
    for path in before.members.keys() {
        let (Some(old), Some(new)) = (before.supervisor(path), after.supervisor(path)) else { continue };
        let goes_on = matches!(new.group(), Some(Group::Pending { .. } | Group::Starting | Group::Settled));
        if !goes_on || old.strategy != new.strategy {
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

/// A temporary child is run once. Where its node goes or is drained before it was started, that is still to come.
fn what_a_node_gives_back_unbegun_is_run(before: &Cluster, after: &Cluster) -> Result<(), Broken> {
    for (path, member) in &before.members {
        let Some(run) = before.run(path).filter(|_| member.restart == Restart::Temporary) else { continue };
        let is_asked_for = matches!(run.stopping, Some(StopReason::Shutdown | StopReason::Drain | StopReason::Group));
        // Of a session that is over nobody knows what was started.
        let is_known = after.session(&run.node, run.session).is_some_and(|session| !session.silent);
        let is_finished = after.process(path).is_some_and(Process::has_finished);
        if run.stage == Stage::Assigned && is_asked_for && is_known && is_finished {
            return Err(format!("{path} was given back by {} before it ever ran, and is finished", run.node));
        }
    }
    Ok(())
}

/// Where a generation begins to wait for its places, no member is still being taken down for it.
fn a_new_generation_waits_for_nothing_that_still_stops(before: &Cluster, after: &Cluster) -> Result<(), Broken> {
    for path in after.members.keys() {
        let (Some(old), Some(new)) = (before.supervisor(path), after.supervisor(path)) else { continue };
        let order = |supervisor: &Supervisor| match supervisor.group() {
            Some(Group::Pending { pending, .. }) => Some(pending.order),
            Some(Group::Settled | Group::TakingDown { .. } | Group::Starting) | None => None,
        };
        let begins = order(new).is_some() && order(new) != order(old);
        if !begins || old.strategy != new.strategy {
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

/// But what ran there, or was to before the drain, and what such would wait for or start with in a group, where no other node can take
/// it.
fn a_drained_node_is_given_no_work(before: &Cluster, after: &Cluster) -> Result<(), Broken> {
    for (path, _, process) in processes(after) {
        if let Some(place) = &process.place
            && !was_on(before, path, &place.node)
            && is_drained(before, &place.node)
            && is_drained(after, &place.node)
            && !has_to_be_beside(before, after, path, &place.node)
        {
            return Err(format!("{path} has a place on {}, which is drained", place.node));
        }
        let ProcessPhase::Assigned(run) = &process.phase else { continue };
        let is_new = before.run(path).is_none_or(|old| old.incarnation != run.incarnation);
        if !is_new || !is_drained(before, &run.node) || !is_drained(after, &run.node) {
            continue;
        }
        if !was_on(before, path, &run.node) && !has_to_be_beside(before, after, path, &run.node) {
            return Err(format!("{path} was placed on {}, which is drained", run.node));
        }
        // What is alone can tell by itself that it need not be there.
        let is_alone = outermost(after, path).is_none()
            && path.parent().and_then(|at| after.supervisor(&at)).is_some_and(is_ungrouped);
        if is_alone
            && run.stopping.is_none()
            && let Ok((other, _)) = choose(after, path)
        {
            return Err(format!("{path} was placed on {}, which is drained, and {other} fits it", run.node));
        }
    }
    Ok(())
}

/// Whether something of a group above a child goes back to a drained node, or waits to, so that the child has to be there: to that
/// one, or to any where others are on this one that the child stays together with.
fn has_to_be_beside(before: &Cluster, after: &Cluster, path: &Path, node: &NodeName) -> bool {
    let goes_back_to = |other: &Path| {
        // Where the room there decided that all start, one may find another node when it is its turn.
        let places = [before, after].map(|cluster| cluster.process(other).and_then(|process| process.place.as_ref()));
        let kept = places.into_iter().flatten().map(|place| &place.node);
        let begins = |run: &&Run| before.run(other).is_none_or(|old| old.incarnation != run.incarnation);
        let began = after.run(other).filter(begins).map(|run| &run.node);
        let mut back = kept.chain(began).filter(|name| is_drained(after, name) && was_on(before, other, name));
        back.next().cloned()
    };
    let is_group = |above: &Path| after.supervisor(above).is_some_and(|above| above.strategy.is_group());
    let Some(group) = std::iter::successors(path.parent(), Path::parent).filter(is_group).last() else { return false };
    let back: BTreeSet<NodeName> =
        after.walk(&group).iter().filter(|other| *other != path).filter_map(goes_back_to).collect();
    let together = outermost(after, path).map_or_else(Vec::new, |by| after.walk(&by));
    let stays_with = || together.iter().any(|other| other != path && was_on(before, other, node));
    back.contains(node) || (!back.is_empty() && stays_with())
}

/// What ends on a drained node, and is to run again, has a place elsewhere or a way back, and that for as long as it waits. What left
/// for a place elsewhere needs no way back, though a group that misses another place gives that one up.
fn what_ends_on_a_drained_node_can_go_back(before: &Cluster, after: &Cluster) -> Result<(), Broken> {
    for (path, member, process) in processes(after) {
        let ran = before.run(path).map(|old| (&old.node, old.session));
        let place = before.process(path).and_then(|process| process.place.as_ref());
        let was_to_go_back = place.map(|place| (&place.node, place.session)).filter(|_| ran.is_none());
        let Some((node, session)) = ran.or(was_to_go_back).filter(|(node, _)| is_drained(before, node)) else {
            continue;
        };
        let is_to_run = match &process.phase {
            ProcessPhase::Pending(_) => true,
            ProcessPhase::Down(DownReason::Supervisor) => {
                let above = path.parent().and_then(|parent| after.supervisor(&parent));
                above.and_then(Supervisor::group).is_some_and(|group| *group != Group::Settled)
            }
            ProcessPhase::Down(_) | ProcessPhase::Assigned(_) => false,
        };
        let has_left = has_room_to_start(before, path, None);
        let is_given_up =
            member.restart == Restart::Temporary || !is_drained(after, node) || is_held_or_removed(after, path);
        // What has a way back may find for a while that others it stays with are elsewhere.
        let returns = if ran.is_some() { can_return } else { can_return_alone };
        if is_to_run && !has_left && !is_given_up && process.place.is_none() && returns(after, path, node, session) {
            return Err(format!("{path} ended on {node}, which is drained, and has no place to start again"));
        }
    }
    Ok(())
}

/// A run that is asked to end for a drain: a place is kept for its next one, or it is temporary and there is none. Where a group
/// is taken down for it, that is so of all that start again with it and do not go on where they are; and of what stays together with
/// it and waits.
fn a_move_has_its_place_before_it_begins(before: &Cluster, after: &Cluster) -> Result<(), Broken> {
    for (path, member, process) in processes(after) {
        let ProcessPhase::Assigned(run) = &process.phase else { continue };
        let Some(old) = before.run(path).filter(|old| old.incarnation == run.incarnation) else { continue };
        let begins = old.stopping.is_none() && run.stopping == Some(StopReason::Drain);
        if begins && !has_room_to_start(after, path, None) && member.restart != Restart::Temporary {
            return Err(format!("{path} is asked to leave {} and has no place to go", run.node));
        }
        let was_decided = before.process(path).is_some_and(|process| process.place.is_some());
        if begins && !was_decided && member.restart != Restart::Temporary {
            let with = outermost(after, path).map_or_else(Vec::new, |by| after.walk(&by));
            let waits = |cluster: &Cluster, path: &Path| {
                cluster.process(path).is_some_and(|process| matches!(process.phase, ProcessPhase::Pending(_)))
            };
            let mut waiting = with.iter().filter(|other| waits(before, other) && waits(after, other));
            if let Some(other) = waiting.find(|other| !has_room_to_start(after, other, None)) {
                return Err(format!("{path} is asked to leave {}, and {other} has no place to go along", run.node));
            }
        }
    }
    for path in after.members.keys().filter(|path| is_taken_down_for_a_move(before, after, path)) {
        let Some(group) = after.supervisor(path) else { continue };
        for member in group.taken_down().iter().map(|id| path.child(id)) {
            if let Some(without) = starting_again(after, &member)
                .into_iter()
                .find(|below| !has_room_to_start(after, below, after.run(below).map(|run| (&run.node, run.session))))
            {
                return Err(format!("{path} is taken down for a move and {without} has no place to go"));
            }
        }
    }
    Ok(())
}

/// Whether a group begins to be taken down though nothing of it ended, and no node of it goes.
fn is_taken_down_for_a_move(before: &Cluster, after: &Cluster, path: &Path) -> bool {
    let (Some(old), Some(new)) = (before.supervisor(path), after.supervisor(path)) else { return false };
    let begins = old.is_up() && old.taken_down().is_empty() && !new.taken_down().is_empty();
    if !begins || old.children != new.children || old.strategy != new.strategy {
        return false;
    }
    before.walk(path).iter().filter(|below| *below != path).all(|below| {
        match (before.run(below), before.supervisor(below)) {
            (Some(was), _) => after.run(below).is_some_and(|run| {
                let leaves = after.session(&run.node, run.session).is_none_or(|session| session.leaving);
                run.incarnation == was.incarnation && !leaves
            }),
            (None, Some(was)) => {
                !was.is_stopping()
                    && after.supervisor(below).is_some_and(|is| was.is_up() == is.is_up() || is.is_stopping())
            }
            (None, None) => true,
        }
    })
}

/// The processes at and below a member of a group that start with the next generation.
fn starting_again(cluster: &Cluster, member: &Path) -> Vec<Path> {
    let is_out = |path: &Path| cluster.member(path).is_none_or(|member| member.held || member.removed);
    if !returns_with_its_group(cluster, member) {
        return Vec::new();
    }
    let processes = cluster.walk(member).into_iter().filter(|below| cluster.process(below).is_some());
    let above =
        |path: &Path| std::iter::successors(Some(path.clone()), Path::parent).take_while(|at| at.is_within(member));
    processes.filter(|below| !above(below).any(|at| is_out(&at))).collect()
}

/// Whether a process has a place on a node that takes work, or runs on such.
fn has_room_to_start(cluster: &Cluster, path: &Path, run: Option<(&NodeName, SessionId)>) -> bool {
    let place = cluster.process(path).and_then(|process| process.place.as_ref());
    let rooms = place.map(|place| (&place.node, place.session)).into_iter().chain(run);
    let takes_work = |(name, session): (&NodeName, SessionId)| {
        cluster.nodes.get(name).is_some_and(|node| !node.drained && node.current == Some(session))
    };
    rooms.into_iter().any(takes_work)
}

fn is_drained(cluster: &Cluster, node: &NodeName) -> bool {
    cluster.nodes.get(node).is_some_and(|node| node.drained)
}

fn is_ungrouped(supervisor: &Supervisor) -> bool {
    !supervisor.strategy.is_group() && supervisor.taken_down().is_empty()
}

/// Whether a process ran on a node, or had a place there.
fn was_on(cluster: &Cluster, path: &Path, node: &NodeName) -> bool {
    let place = cluster.process(path).and_then(|process| process.place.as_ref());
    cluster.run(path).is_some_and(|run| run.node == *node) || place.is_some_and(|place| place.node == *node)
}

fn has_finished(member: &Member) -> bool {
    match &member.body {
        Body::Process(process) => matches!(process.phase, ProcessPhase::Down(DownReason::Finished)),
        Body::Supervisor(supervisor) => matches!(supervisor.phase, SupervisorPhase::Down(DownReason::Finished)),
    }
}

//! What must always hold, each a function whose name is a sentence. Design section 10.
//!
//! Checked after every step by the tests of the rules and by the simulator; never inside `apply`.

use std::collections::{BTreeMap, BTreeSet};

use pando_protocol::cause::{Cause, CauseClass};
use pando_protocol::ids::{Incarnation, Path};
use pando_protocol::spec::Intensity;

use crate::MAX_UNPAID;
use crate::apply::CLIENTS_KEPT;
use crate::change::{Change, EVENTS_KEPT, HISTORY_KEPT};
use crate::cluster::{Body, Cluster, Group, Member, Process, ProcessPhase, Supervisor, SupervisorPhase};
use crate::departures::Missing;
use crate::placement::choose;
use crate::places::is_kept;
use crate::report::waiting;

mod drains;
mod groups;
mod mail;
mod steps;

pub use steps::check_step;

/// A rule that does not hold, with the evidence.
pub type Broken = String;

/// Checks every invariant of one state.
///
/// # Errors
/// Each one that does not hold.
pub fn check(cluster: &Cluster) -> Result<(), Vec<Broken>> {
    let broken: Vec<Broken> =
        ALL.iter().filter_map(|(name, holds)| holds(cluster).err().map(|why| format!("{name}: {why}"))).collect();
    if broken.is_empty() { Ok(()) } else { Err(broken) }
}

type Invariant = fn(&Cluster) -> Result<(), Broken>;

/// Every invariant of one state, by its name.
const ALL: [(&str, Invariant); 37] = [
    ("a session lists exactly the runs assigned under it", a_session_lists_exactly_the_runs_assigned_under_it),
    ("no run is assigned under a session that is over", no_run_is_assigned_under_a_session_that_is_over),
    ("a silent session holds only what is kept", a_silent_session_holds_only_what_is_kept),
    ("no node takes more than its slots", no_node_takes_more_than_its_slots),
    ("a run stands on a node with the labels it requires", a_run_stands_on_a_node_with_the_labels_it_requires),
    ("a child runs only below supervisors that are not down", a_child_runs_only_below_supervisors_that_are_not_down),
    ("no child is pending while a node fits it", no_child_is_pending_while_a_node_fits_it),
    ("nothing stays on a drained node that could leave", nothing_stays_on_a_drained_node_that_could_leave),
    ("no temporary child is left alone on a drained node", drains::no_temporary_child_is_left_alone_on_a_drained_node),
    ("what waits stands in the queue or has a timer", what_waits_stands_in_the_queue_or_has_a_timer),
    ("queue and timers name only what waits", queue_and_timers_name_only_what_waits),
    ("a window holds at most what its budget allows", a_window_holds_at_most_what_its_budget_allows),
    ("no more than three unpaid endings in a row", no_more_than_three_unpaid_endings_in_a_row),
    ("incarnations are given once", incarnations_are_given_once),
    ("a supervisor that stops has nothing that waits", a_supervisor_that_stops_has_nothing_that_waits),
    ("what an operator stopped does not run", what_an_operator_stopped_does_not_run),
    ("everything unfinished names what it waits for", everything_unfinished_names_what_it_waits_for),
    ("an escalation holds its causes down to a process", an_escalation_holds_its_causes_down_to_a_process),
    ("what is kept is bounded", what_is_kept_is_bounded),
    ("places are kept only for who is about to start", groups::places_are_kept_only_for_who_is_about_to_start),
    ("nothing waits for its turn where no group starts", groups::nothing_waits_for_its_turn_where_no_group_starts),
    ("a group that is not settled waits for a member", groups::a_group_that_is_not_settled_waits_for_a_member),
    (
        "no group is pending while places for all of it exist",
        groups::no_group_is_pending_while_places_for_all_of_it_exist,
    ),
    (
        "no group is pending while all of it fits a drained node it goes back to",
        groups::no_group_is_pending_while_all_of_it_fits_a_drained_node_it_goes_back_to,
    ),
    ("messages are conserved", mail::messages_are_conserved),
    ("each message stands where its state says", mail::each_message_stands_where_its_state_says),
    ("no message is held by a run that is over", mail::no_message_is_held_by_a_run_that_is_over),
    ("a mailbox knows what it weighs", mail::a_mailbox_knows_what_it_weighs),
    ("the lists of workers are true", mail::the_lists_of_workers_are_true),
    ("suspects of a loss are kept on different nodes", mail::suspects_of_a_loss_are_kept_on_different_nodes),
    ("a suspect is alone with its worker", mail::a_suspect_is_alone_with_its_worker),
    ("nothing waits that a free worker could take", mail::nothing_waits_that_a_free_worker_could_take),
    ("each undecided charge is of a streak", mail::each_undecided_charge_is_of_a_streak),
    ("accusations name those who are accused", mail::accusations_name_those_who_are_accused),
    ("messages that had all their attempts are dead", mail::messages_that_had_all_their_attempts_are_dead),
    ("each charge has its evidence", mail::each_charge_has_its_evidence),
    ("what a mailbox keeps is bounded", mail::what_a_mailbox_keeps_is_bounded),
];

fn processes(cluster: &Cluster) -> impl Iterator<Item = (&Path, &Member, &Process)> {
    cluster.members.iter().filter_map(|(path, member)| match &member.body {
        Body::Process(process) => Some((path, member.as_ref(), process)),
        Body::Supervisor(_) => None,
    })
}

fn a_session_lists_exactly_the_runs_assigned_under_it(cluster: &Cluster) -> Result<(), Broken> {
    let (mut listed, mut kept) = (BTreeSet::new(), BTreeSet::new());
    for (name, node) in &cluster.nodes {
        for (id, session) in &node.sessions {
            let mut used = 0;
            for path in &session.assigned {
                let run = cluster.run(path).ok_or_else(|| format!("{name} lists {path}, which has no run"))?;
                if run.node != *name || run.session != *id {
                    return Err(format!("{name} {id} lists {path}, which runs on {} {}", run.node, run.session));
                }
                used += run.slots;
                listed.insert(path.clone());
            }
            for path in &session.kept {
                let place = cluster.process(path).and_then(|process| process.place.as_ref());
                let place = place.ok_or_else(|| format!("{name} keeps room for {path}, which has no place"))?;
                if place.node != *name || place.session != *id {
                    return Err(format!("{name} {id} keeps room for {path}, whose place is on {}", place.node));
                }
                used += place.slots;
                kept.insert(path.clone());
            }
            if used != session.used {
                return Err(format!(
                    "{name} {id} counts {} slots, its runs and what it keeps take {used}",
                    session.used
                ));
            }
        }
    }
    for (path, _, process) in processes(cluster) {
        if matches!(process.phase, ProcessPhase::Assigned(_)) && !listed.contains(path) {
            return Err(format!("{path} runs and no session lists it"));
        }
        if process.place.is_some() && !kept.contains(path) {
            return Err(format!("{path} has a place and no session keeps it"));
        }
    }
    Ok(())
}

fn no_run_is_assigned_under_a_session_that_is_over(cluster: &Cluster) -> Result<(), Broken> {
    for (path, _, process) in processes(cluster) {
        if let ProcessPhase::Assigned(run) = &process.phase
            && cluster.session(&run.node, run.session).is_none()
        {
            return Err(format!("{path} runs on {} under {}, which is over", run.node, run.session));
        }
    }
    Ok(())
}

fn a_silent_session_holds_only_what_is_kept(cluster: &Cluster) -> Result<(), Broken> {
    for (name, node) in &cluster.nodes {
        for (id, session) in node.sessions.iter().filter(|(_, session)| session.silent) {
            let is_kept = |path: &Path| cluster.run(path).is_some_and(|run| run.keep);
            if node.current == Some(*id) || session.assigned.is_empty() || !session.assigned.iter().all(is_kept) {
                return Err(format!("{name} {id} is silent and holds {:?}", session.assigned));
            }
        }
    }
    Ok(())
}

fn no_node_takes_more_than_its_slots(cluster: &Cluster) -> Result<(), Broken> {
    for (name, node) in &cluster.nodes {
        // A node that came back with fewer slots may still hold what its older session was given.
        let used: u32 = node.sessions.values().map(|session| session.used).sum();
        if used > node.slots && node.sessions.len() == 1 {
            return Err(format!("{name} takes {used} of {} slots", node.slots));
        }
    }
    Ok(())
}

fn a_run_stands_on_a_node_with_the_labels_it_requires(cluster: &Cluster) -> Result<(), Broken> {
    for (path, _, process) in processes(cluster) {
        let ProcessPhase::Assigned(run) = &process.phase else { continue };
        let Some(node) = cluster.nodes.get(&run.node) else { continue };
        // An older session may stem from a time when the node had other labels.
        if run.stopping.is_none()
            && node.current == Some(run.session)
            && !process.spec.place.require.is_subset(&node.labels)
        {
            return Err(format!("{path} runs on {}, which lacks a label it requires", run.node));
        }
    }
    Ok(())
}

fn a_child_runs_only_below_supervisors_that_are_not_down(cluster: &Cluster) -> Result<(), Broken> {
    for (path, member) in &cluster.members {
        let Some(parent) = path.parent() else { continue };
        let supervisor = cluster.supervisor(&parent).ok_or_else(|| format!("{path} has no supervisor"))?;
        let above_is_down = match supervisor.phase {
            SupervisorPhase::Down(_) | SupervisorPhase::Failed(_) | SupervisorPhase::Delayed { .. } => true,
            SupervisorPhase::Up { .. } | SupervisorPhase::Stopping { .. } => false,
        };
        if above_is_down && !member.is_down() {
            return Err(format!("{path} is not down while {parent} is"));
        }
    }
    Ok(())
}

fn no_child_is_pending_while_a_node_fits_it(cluster: &Cluster) -> Result<(), Broken> {
    for (_, path) in &cluster.pending {
        let Some(pending) = cluster.pending_at(path).filter(|_| cluster.process(path).is_some()) else { continue };
        if pending.not_before <= cluster.head.now
            && let Ok((node, _)) = choose(cluster, path)
        {
            return Err(format!("{path} waits while {node} fits it"));
        }
        if pending.not_before <= cluster.head.now && is_kept(cluster, path, true) {
            return Err(format!("{path} waits while it has a way back"));
        }
        if pending.not_before <= cluster.head.now
            && let Some(after) = groups::waits_with_a_way_back_for(cluster, path)
        {
            return Err(format!("{path} waits, and {after} for it, while both fit the drained node of that"));
        }
    }
    Ok(())
}

fn nothing_stays_on_a_drained_node_that_could_leave(cluster: &Cluster) -> Result<(), Broken> {
    let mut trial = cluster.clone();
    Change::new(&mut trial, 0).go_on_draining();
    if trial.nodes == cluster.nodes {
        return Ok(());
    }
    let stays = |path: &&Path| cluster.run(path).is_some_and(|run| run.stopping.is_none());
    let moved =
        trial.members.keys().filter(stays).find(|path| trial.run(path).is_none_or(|run| run.stopping.is_some()));
    Err(format!("{} could leave its drained node", moved.map_or("something".to_owned(), ToString::to_string)))
}

fn what_waits_stands_in_the_queue_or_has_a_timer(cluster: &Cluster) -> Result<(), Broken> {
    for (path, member) in &cluster.members {
        if let Some(pending) = cluster.pending_at(path) {
            if !cluster.pending.contains(&(pending.order, path.clone())) {
                return Err(format!("{path} waits and is not in the queue"));
            }
            let has_timer = cluster.timers.contains(&(pending.not_before, path.clone()));
            if !has_timer && pending.waits_for.is_none() {
                return Err(format!("{path} waits for nothing"));
            }
        }
        match &member.body {
            Body::Process(_) => {}
            Body::Supervisor(supervisor) => match &supervisor.phase {
                SupervisorPhase::Delayed { until } if !cluster.timers.contains(&(*until, path.clone())) => {
                    return Err(format!("{path} is delayed and has no timer"));
                }
                SupervisorPhase::Stopping { .. } => stopping_waits_for_a_child(cluster, path, member)?,
                SupervisorPhase::Delayed { .. }
                | SupervisorPhase::Down(_)
                | SupervisorPhase::Up { .. }
                | SupervisorPhase::Failed(_) => {}
            },
        }
    }
    Ok(())
}

fn queue_and_timers_name_only_what_waits(cluster: &Cluster) -> Result<(), Broken> {
    for (order, path) in &cluster.pending {
        match cluster.pending_at(path) {
            Some(pending) if pending.order == *order => {}
            _ => return Err(format!("{path} stands in the queue and does not wait")),
        }
    }
    for (at, path) in &cluster.timers {
        let waits_until = match cluster.supervisor(path) {
            Some(Supervisor { phase: SupervisorPhase::Delayed { until }, .. }) => Some(*until),
            Some(_) | None => cluster.pending_at(path).map(|pending| pending.not_before),
        };
        if waits_until != Some(*at) || *at <= cluster.head.now {
            return Err(format!("{path} has a timer at {at:?} and waits until {waits_until:?}"));
        }
    }
    Ok(())
}

/// One that runs and is being ended. Not always the last: a new spec may change the order meanwhile.
fn stopping_waits_for_a_child(cluster: &Cluster, path: &Path, member: &Member) -> Result<(), Broken> {
    let Body::Supervisor(supervisor) = &member.body else { return Ok(()) };
    let mut children = supervisor.children.iter().filter_map(|id| cluster.member(&path.child(id)));
    let is_ending = |child: &Member| match &child.body {
        Body::Process(Process { phase: ProcessPhase::Assigned(run), .. }) => run.stopping.is_some(),
        Body::Process(_) => false,
        Body::Supervisor(below) => below.is_stopping(),
    };
    if children.any(is_ending) { Ok(()) } else { Err(format!("{path} is stopping and nothing below it is")) }
}

fn a_window_holds_at_most_what_its_budget_allows(cluster: &Cluster) -> Result<(), Broken> {
    for (path, member) in &cluster.members {
        let (window, intensity, up) = match &member.body {
            Body::Process(process) => (&process.window, process.spec.intensity, true),
            Body::Supervisor(supervisor) => (&supervisor.window, Some(supervisor.intensity), supervisor.is_up()),
        };
        let Some(Intensity::Limited { max_restarts, .. }) = intensity else { continue };
        if up && window.counting(cluster.head.now, intensity.unwrap_or_default()).count() > max_restarts as usize {
            return Err(format!("{path} goes on with {} crashes in a window of {max_restarts}", window.crashes.len()));
        }
        if window.crashes.iter().zip(window.crashes.iter().skip(1)).any(|(a, b)| a.at > b.at) {
            return Err(format!("{path} has a window out of order"));
        }
    }
    Ok(())
}

fn no_more_than_three_unpaid_endings_in_a_row(cluster: &Cluster) -> Result<(), Broken> {
    match cluster.members.iter().find(|(_, member)| member.unpaid > MAX_UNPAID) {
        Some((path, member)) => Err(format!("{path} has {} unpaid endings in a row", member.unpaid)),
        None => Ok(()),
    }
}

fn incarnations_are_given_once(cluster: &Cluster) -> Result<(), Broken> {
    let mut seen: BTreeMap<Incarnation, &Path> = BTreeMap::new();
    for (path, _, process) in processes(cluster) {
        let ProcessPhase::Assigned(run) = &process.phase else { continue };
        if run.incarnation.0 >= cluster.head.next_incarnation {
            return Err(format!("{path} has incarnation {}, which was not given yet", run.incarnation));
        }
        if let Some(other) = seen.insert(run.incarnation, path) {
            return Err(format!("{path} and {other} share incarnation {}", run.incarnation));
        }
    }
    Ok(())
}

fn a_supervisor_that_stops_has_nothing_that_waits(cluster: &Cluster) -> Result<(), Broken> {
    for (path, member) in &cluster.members {
        let waits = match &member.body {
            Body::Process(Process { phase: ProcessPhase::Pending(_), .. }) => true,
            Body::Supervisor(Supervisor { phase: SupervisorPhase::Delayed { .. }, .. }) => true,
            Body::Process(_) | Body::Supervisor(_) => false,
        };
        let parent = path.parent().and_then(|parent| cluster.supervisor(&parent).map(Supervisor::is_stopping));
        if waits && parent == Some(true) {
            return Err(format!("{path} waits to start while its supervisor stops"));
        }
    }
    Ok(())
}

fn what_an_operator_stopped_does_not_run(cluster: &Cluster) -> Result<(), Broken> {
    for (path, member) in cluster.members.iter().filter(|(_, member)| member.held) {
        let is_ending = match &member.body {
            Body::Process(Process { phase: ProcessPhase::Assigned(run), .. }) => run.stopping.is_some(),
            Body::Process(process) => process.is_down(),
            Body::Supervisor(supervisor) => supervisor.is_down() || supervisor.is_stopping(),
        };
        if !is_ending {
            return Err(format!("{path} was stopped by an operator and is not down or stopping"));
        }
    }
    Ok(())
}

fn everything_unfinished_names_what_it_waits_for(cluster: &Cluster) -> Result<(), Broken> {
    for (path, member) in &cluster.members {
        let is_unfinished = match &member.body {
            Body::Process(Process { phase: ProcessPhase::Assigned(run), .. }) => run.stopping.is_some(),
            Body::Process(process) => !process.is_down(),
            Body::Supervisor(supervisor) => match supervisor.group() {
                Some(Group::TakingDown { .. } | Group::Pending { .. }) => true,
                Some(Group::Starting | Group::Settled) => false, // Its members are looked at one by one.
                None => !supervisor.is_down(),
            },
        } || groups::waits_for_its_turn(cluster, path);
        if is_unfinished && waiting(cluster, path, member, &mut Missing::default()).is_none() {
            return Err(format!("{path} is unfinished and waits for nothing"));
        }
    }
    Ok(())
}

fn an_escalation_holds_its_causes_down_to_a_process(cluster: &Cluster) -> Result<(), Broken> {
    let escalates = |cause: &Cause| cause.class == CauseClass::Escalated;
    for (path, member) in &cluster.members {
        let chains = member.history.iter().map(|entry| &entry.cause.levels);
        for levels in chains.filter(|levels| levels.first().is_some_and(escalates)) {
            // A child with an account of its own stands in its chain twice.
            let is_below = |(outer, inner): (&Cause, &Cause)| {
                inner.path == outer.path || inner.path.parent().as_ref() == Some(&outer.path)
            };
            if !levels.iter().zip(levels.iter().skip(1)).all(is_below) || levels.last().is_none_or(escalates) {
                let told: Vec<String> =
                    levels.iter().map(|cause| format!("{} [{}]", cause.path, cause.class)).collect();
                return Err(format!("{path} escalated because of {}", told.join(", ")));
            }
        }
    }
    Ok(())
}

fn what_is_kept_is_bounded(cluster: &Cluster) -> Result<(), Broken> {
    if cluster.events.len() > EVENTS_KEPT {
        return Err(format!("{} events are kept", cluster.events.len()));
    }
    if cluster.clients.len() > CLIENTS_KEPT || cluster.clients.len() != cluster.client_ages.len() {
        return Err(format!("{} clients, {} ages", cluster.clients.len(), cluster.client_ages.len()));
    }
    match cluster.members.iter().find(|(_, member)| member.history.len() > HISTORY_KEPT) {
        Some((path, _)) => Err(format!("{path} keeps more than {HISTORY_KEPT} endings")),
        None => Ok(()),
    }
}

//! Where runs go and when, checked against the words of the design: placement, what is owed of a delay, and the brake.

use std::collections::BTreeSet;
use std::time::Duration;

use pando_protocol::cause::{Exit, ExitHow};
use pando_protocol::ids::{NodeName, Path};
use pando_protocol::message::{Change, DifferenceKind};
use pando_protocol::session::Observation;
use pando_protocol::spec::{ProcessSpec, Restart};
use pando_supervision::cluster::{Cluster, DownReason, Group, Node, Pending, ProcessPhase, Run, Stage, StopReason};
use pando_supervision::{Applied, Command, Done, Event, EventKind};

use super::payers::Step;

/// Checks what a step placed, moved and restarted.
///
/// # Errors
/// What does not hold.
pub fn check(step: Step<'_>, applied: &Applied) -> Result<(), String> {
    the_best_node_is_chosen(step)?;
    those_placed_in_one_go_are_spread(step)?;
    what_never_started_is_tried_elsewhere(step)?;
    a_delay_goes_along_to_another_node(step, applied)?;
    starts_after_a_loss_are_braked(step, applied)?;
    what_starts_during_a_brake_is_braked(step, applied)?;
    only_what_differs_is_updated(step, applied)
}

/// Where exactly one child was placed, its node is the best by the order of the design.
fn the_best_node_is_chosen(step: Step<'_>) -> Result<(), String> {
    let is_new = |path: &Path, run: &Run| step.before.run(path).is_none_or(|old| old.incarnation != run.incarnation);
    let mut placed = step.after.members.keys().filter_map(|path| Some((path, step.after.run(path)?)));
    let Some((path, run)) = placed.by_ref().find(|(path, run)| is_new(path, run)) else { return Ok(()) };
    if placed.any(|(path, run)| is_new(path, run)) || run.after.is_some() || is_placed_with_others(step, path) {
        return Ok(());
    }
    let fitting = step.after.nodes.iter().filter(|(name, node)| fits(step.after, path, run, name, node));
    let best = fitting.min_by_key(|(name, node)| rank(step.after, path, run, name, node));
    match best {
        Some((name, _)) if *name == run.node => Ok(()),
        None if goes_back(step, path, run) => Ok(()),
        best => Err(format!("placement takes the best node: {path} went to {}, best is {best:?}", run.node)),
    }
}

/// Whether a child that ran on a drained node starts there again.
fn goes_back(step: Step<'_>, path: &Path, run: &Run) -> bool {
    let ran_there = step.before.run(path).is_some_and(|old| old.node == run.node);
    let place = step.before.process(path).and_then(|process| process.place.as_ref());
    let is_drained = step.after.nodes.get(&run.node).is_some_and(|node| node.drained);
    is_drained && (ran_there || place.is_some_and(|place| place.node == run.node))
}

/// Whether the place of a child was chosen together with those of others, or before this step.
fn is_placed_with_others(step: Step<'_>, path: &Path) -> bool {
    let mut above = path.parent();
    let mut with_others = false;
    while let Some(at) = above {
        let supervisors = [step.before, step.after].map(|cluster| cluster.supervisor(&at)).into_iter().flatten();
        with_others |= supervisors.into_iter().any(|one| {
            let is_settled = one.group().is_none_or(|group| *group == Group::Settled);
            one.colocate || one.strategy.is_group() || !is_settled
        });
        above = at.parent();
    }
    // Room that is kept for a group counts; where it changed in this step, it may have been another when the place was chosen.
    let kept = |cluster: &Cluster| {
        let sessions = cluster.nodes.values().flat_map(|node| node.sessions.values());
        sessions.flat_map(|session| session.kept.iter().cloned()).collect::<Vec<_>>()
    };
    with_others || kept(step.before) != kept(step.after)
}

/// Where a child is going to run, or runs.
fn whereabouts<'a>(cluster: &'a Cluster, path: &Path) -> Option<&'a NodeName> {
    let place = cluster.process(path)?.place.as_ref().map(|place| &place.node);
    place.or(cluster.run(path).map(|run| &run.node))
}

/// However many siblings got runs or places, with others or alone: no value of the label is two ahead of one that had room, where all
/// who were placed could go to either.
fn those_placed_in_one_go_are_spread(step: Step<'_>) -> Result<(), String> {
    let parents: BTreeSet<Path> = step.after.members.keys().filter_map(Path::parent).collect();
    for parent in parents {
        let siblings = step.after.members.keys().filter(|path| path.parent().as_ref() == Some(&parent));
        let siblings: Vec<&Path> = siblings.filter(|path| spread_key(step.after, path).is_some()).collect();
        let is_new = |path: &Path| whereabouts(step.after, path) != whereabouts(step.before, path);
        let is_there = |path: &Path| whereabouts(step.after, path).is_some();
        let new: Vec<&Path> = siblings.iter().copied().filter(|path| is_there(path) && is_new(path)).collect();
        let Some(first) = new.first().and_then(|path| step.after.process(path)) else { continue };
        let wishes = |spec: &ProcessSpec| (spec.place.clone(), spec.slots);
        let alike = |path: &&Path| {
            let process = step.after.process(path);
            process.is_some_and(|one| one.refusals.is_empty() && wishes(&one.spec) == wishes(&first.spec))
        };
        if new.iter().all(alike) {
            new.iter().try_for_each(|path| has_no_better_value(step, path, &siblings))?;
        }
    }
    Ok(())
}

fn spread_key<'a>(cluster: &'a Cluster, path: &Path) -> Option<&'a str> {
    cluster.process(path)?.spec.place.spread.as_deref()
}

fn has_no_better_value(step: Step<'_>, path: &Path, siblings: &[&Path]) -> Result<(), String> {
    let (Some(process), Some(key), Some(chosen)) =
        (step.after.process(path), spread_key(step.after, path), whereabouts(step.after, path))
    else {
        return Ok(());
    };
    let value = |node: &NodeName| {
        step.after.nodes.get(node)?.labels.iter().find(|label| label.key == key).map(|l| l.value.clone())
    };
    let alike = siblings.iter().filter(|other| spread_key(step.after, other) == Some(key));
    let theirs: Vec<&NodeName> = alike.filter_map(|other| whereabouts(step.after, other)).collect();
    let crowd = |node: &NodeName| theirs.iter().filter(|other| value(other) == value(node)).count();
    let place = &process.spec.place;
    let preferred = |node: &Node| place.prefer.iter().filter(|label| node.labels.contains(label)).count();
    let had_room = |cluster: &Cluster, name: &NodeName| {
        let used = |node: &Node| node.sessions.values().map(|session| u64::from(session.used)).sum::<u64>();
        let node = cluster.nodes.get(name);
        node.is_none_or(|node| used(node) + u64::from(process.spec.slots) <= u64::from(node.slots))
    };
    let Some(there) = step.after.nodes.get(chosen).filter(|node| !node.drained) else { return Ok(()) };
    for (name, node) in &step.after.nodes {
        let could_go = node.current.is_some()
            && !node.drained
            && place.require.iter().all(|label| node.labels.contains(label))
            && had_room(step.before, name)
            && had_room(step.after, name)
            && preferred(node) >= preferred(there);
        if could_go && value(name) != value(chosen) && crowd(name) + 1 < crowd(chosen) {
            return Err(format!(
                "siblings are spread: {path} went to {chosen}, where {} are, and {} are where {name} is",
                crowd(chosen),
                crowd(name)
            ));
        }
    }
    Ok(())
}

/// What a node takes besides this run.
fn others(node: &Node, name: &NodeName, run: &Run) -> (u64, usize) {
    let used: u64 = node.sessions.values().map(|session| u64::from(session.used)).sum();
    let children: usize = node.sessions.values().map(|session| session.assigned.len() + session.kept.len()).sum();
    if *name == run.node { (used - u64::from(run.slots), children - 1) } else { (used, children) }
}

fn fits(cluster: &Cluster, path: &Path, run: &Run, name: &NodeName, node: &Node) -> bool {
    let Some(process) = cluster.process(path) else { return false };
    let room = others(node, name, run).0 + u64::from(process.spec.slots) <= u64::from(node.slots);
    node.current.is_some()
        && !node.drained
        && room
        && process.spec.place.require.iter().all(|label| node.labels.contains(label))
}

fn rank(cluster: &Cluster, path: &Path, run: &Run, name: &NodeName, node: &Node) -> (bool, i64, u32, usize, usize) {
    let Some(process) = cluster.process(path) else { return Default::default() };
    let place = &process.spec.place;
    let preferred = place.prefer.iter().filter(|label| node.labels.contains(label)).count();
    let penalty = process.refusals.get(name).map_or(0, |refusal| {
        let minutes = cluster.head.now.saturating_sub(refusal.at).as_secs() / 60;
        if minutes >= 32 { 0 } else { refusal.count >> minutes }
    });
    let value =
        |node: &Node, key: &str| node.labels.iter().find(|label| label.key == key).map(|label| label.value.clone());
    let parent = path.parent().unwrap_or_else(|| path.clone());
    let crowd = place.spread.as_ref().map_or(0, |key| {
        let siblings =
            cluster.members.keys().filter(|other| **other != *path && other.parent().as_ref() == Some(&parent));
        let alike = siblings.filter(|other| {
            cluster.process(other).is_some_and(|process| process.spec.place.spread.as_ref() == Some(key))
        });
        let there = alike.filter_map(|other| cluster.nodes.get(whereabouts(cluster, other)?));
        there.filter(|other| value(other, key) == value(node, key)).count()
    });
    let preferred = -i64::try_from(preferred).unwrap_or(0);
    (process.refused_by.contains(name), preferred, penalty, crowd, others(node, name, run).1)
}

/// A temporary child that a node could not start is not over while another node, the first to be tried after it, could.
fn what_never_started_is_tried_elsewhere(step: Step<'_>) -> Result<(), String> {
    let Some(Observation::Exited { exit: Exit { how: ExitHow::StartFailed(_), .. }, .. }) = step.word() else {
        return Ok(());
    };
    let Some((path, run)) = step.meant().filter(|(_, run)| run.stopping.is_none()) else { return Ok(()) };
    let (Some(member), Some(process)) = (step.before.member(path), step.before.process(path)) else { return Ok(()) };
    let above = || std::iter::successors(path.parent(), Path::parent).filter_map(|at| step.before.supervisor(&at));
    let goes_on = above().all(|supervisor| supervisor.is_up() && supervisor.taken_down().is_empty());
    let stands_alone = above().all(|supervisor| !supervisor.colocate);
    if member.restart != Restart::Temporary || member.held || member.removed || !goes_on || !stands_alone {
        return Ok(());
    }
    let had_room = |node: &Node| {
        let used: u64 = node.sessions.values().map(|session| u64::from(session.used)).sum();
        used + u64::from(run.slots) <= u64::from(node.slots)
    };
    let another = step.before.nodes.iter().find(|(name, node)| {
        let has_labels = process.spec.place.require.iter().all(|label| node.labels.contains(label));
        **name != run.node && node.current.is_some() && !node.drained && has_labels && had_room(node)
    });
    let is_over = step.after.process(path).is_some_and(|process| matches!(process.phase, ProcessPhase::Down(_)));
    match another {
        Some((name, _)) if process.refused_by.is_empty() && is_over => {
            Err(format!("{path} never ran, is over, and was not tried on {name}"))
        }
        Some(_) | None => Ok(()),
    }
}

/// A run that waited out a delay when its node was lost or went does not start sooner elsewhere.
fn a_delay_goes_along_to_another_node(step: Step<'_>, applied: &Applied) -> Result<(), String> {
    for path in step.before.members.keys().filter(|path| !started_anew(applied, path)) {
        let Some(old) = step.before.run(path).filter(|old| matches!(old.stage, Stage::Assigned)) else { continue };
        let moves = matches!(old.stopping, None | Some(StopReason::Shutdown));
        let (Some(process), true) = (step.after.process(path), moves) else { continue };
        let due = old.since.saturating_add(old.delay);
        let starts = match &process.phase {
            ProcessPhase::Pending(Pending { not_before, .. }) => *not_before,
            ProcessPhase::Assigned(new) if new.incarnation != old.incarnation => step.now().saturating_add(new.delay),
            ProcessPhase::Assigned(_) | ProcessPhase::Down(_) => continue,
        };
        let reported = matches!(step.word(), Some(Observation::Exited { .. }));
        if starts < due && !reported {
            return Err(format!("a delay goes along: {path} owed until {due:?} and may start at {starts:?}"));
        }
    }
    Ok(())
}

/// Whether the supervisor above started in this step, and its children with it.
fn started_anew(applied: &Applied, path: &Path) -> bool {
    let is_start = |event: &Event| event.kind == EventKind::SupervisorStarted && event.path == path.parent();
    applied.events.iter().any(is_start)
}

/// Of the children of one loss, fifty may start at once; the rest keep 20 ms between each other. What a group takes down starts with
/// it: at once, or once the longest of the delays of all of it is over. Those of a supervisor that starts in the same step start
/// for that reason.
fn starts_after_a_loss_are_braked(step: Step<'_>, applied: &Applied) -> Result<(), String> {
    const FREE: usize = 50;
    if matches!(step.command, Command::Write(_) | Command::Tick) {
        return Ok(());
    }
    let lost = step.before.members.keys().filter(|path| step.before.run(path).is_some_and(|run| run.delay.is_zero()));
    let (mut free, mut held) = (0, Vec::new());
    for path in lost.filter(|path| !started_anew(applied, path)) {
        let (old, process) = (step.before.run(path), step.after.process(path));
        match process.map(|process| &process.phase) {
            // Where a group was taken down that is one no more, all of it waits for one delay.
            Some(ProcessPhase::Pending(pending)) if pending.not_before > step.now() => {
                if !is_taken_down(step.before, path) {
                    held.push(pending.not_before);
                }
            }
            Some(ProcessPhase::Pending(_)) => free += 1,
            Some(ProcessPhase::Assigned(new)) if old.is_some_and(|old| old.incarnation != new.incarnation) => free += 1,
            Some(ProcessPhase::Down(DownReason::Supervisor)) if starts_with_its_group(step, path) => free += 1,
            Some(ProcessPhase::Assigned(_) | ProcessPhase::Down(_)) | None => {}
        }
    }
    held.sort();
    if free > FREE {
        return Err(format!("a loss is braked: {free} start at once"));
    }
    match held.windows(2).find(|pair| pair[1] - pair[0] < Duration::from_millis(20)) {
        Some(pair) => Err(format!("a loss is braked: two start within {:?}", pair[1] - pair[0])),
        None => Ok(()),
    }
}

/// While starts after a loss are held back, a supervisor that starts has no more than fifty children that start with it at once.
fn what_starts_during_a_brake_is_braked(step: Step<'_>, applied: &Applied) -> Result<(), String> {
    const FREE: usize = 50;
    if step.before.head.brake <= step.now() {
        return Ok(());
    }
    let begins = applied.events.iter().filter(|event| event.kind == EventKind::SupervisorStarted);
    for path in begins.filter_map(|event| event.path.as_ref()) {
        let Some(supervisor) = step.after.supervisor(path).filter(|one| !one.strategy.is_group()) else { continue };
        let starts_at_once = |child: &Path| match step.after.process(child).map(|process| &process.phase) {
            Some(ProcessPhase::Assigned(run)) => run.since == step.now() && run.delay.is_zero(),
            Some(ProcessPhase::Pending(pending)) => pending.not_before <= step.now(),
            Some(ProcessPhase::Down(_)) | None => false,
        };
        let at_once = supervisor.children.iter().filter(|id| starts_at_once(&path.child(id))).count();
        if at_once > FREE {
            return Err(format!("a loss is braked: {at_once} children of {path} start at once"));
        }
    }
    Ok(())
}

fn is_taken_down(cluster: &Cluster, path: &Path) -> bool {
    let above = path.parent().and_then(|parent| cluster.supervisor(&parent));
    above.is_some_and(|above| !above.taken_down().is_empty())
}

/// Whether a child is down until a group above it starts, and that waits for no delay.
fn starts_with_its_group(step: Step<'_>, path: &Path) -> bool {
    let mut all = std::iter::successors(Some(path.clone()), Path::parent);
    if all.any(|at| step.after.member(&at).is_none_or(|member| member.held || member.removed)) {
        return false;
    }
    let above = std::iter::successors(path.parent(), Path::parent);
    let mut groups = above.filter_map(|above| step.after.supervisor(&above)?.group());
    groups.find(|group| **group != Group::Settled).is_some_and(|group| match group {
        Group::TakingDown { not_before, .. } | Group::Pending { pending: Pending { not_before, .. }, .. } => {
            *not_before <= step.now()
        }
        Group::Starting | Group::Settled => true,
    })
}

/// A spec stops only the runs of processes that it changes or leaves out.
fn only_what_differs_is_updated(step: Step<'_>, applied: &Applied) -> Result<(), String> {
    let (Command::Write(write), Ok(Done::Changed(changed))) = (step.command, &applied.outcome) else { return Ok(()) };
    if !matches!(write.change, Change::Apply(_)) {
        return Ok(());
    }
    for path in step.before.members.keys() {
        let (Some(old), Some(new)) = (step.before.run(path), step.after.run(path)) else { continue };
        let restarts = changed.differences.iter().any(|difference| {
            difference.path == *path && matches!(difference.what, DifferenceKind::Restarted | DifferenceKind::Added)
        });
        if old.stopping.is_none() && new.stopping == Some(StopReason::Update) && !restarts {
            return Err(format!("only changed children restart: {path} is stopped for an update"));
        }
    }
    Ok(())
}

//! What must always hold of temporary children on drained nodes: they end with the last of their group there, and not before.

use pando_protocol::ids::{NodeName, Path};
use pando_protocol::spec::Restart;

use super::{Broken, processes};
use crate::change::Change;
use crate::cluster::{Cluster, ProcessPhase, Run, Stage, StopReason};
use crate::endings::is_held_or_removed;

/// Where nothing else of its group runs there, or is to, it is asked to end.
pub(super) fn no_temporary_child_is_left_alone_on_a_drained_node(cluster: &Cluster) -> Result<(), Broken> {
    for (path, ..) in processes(cluster).filter(|(_, member, _)| member.restart == Restart::Temporary) {
        let Some(run) = cluster.run(path).filter(|run| run.stopping.is_none()) else { continue };
        let is_drained = cluster.nodes.get(&run.node).is_some_and(|node| node.drained);
        let above = std::iter::successors(path.parent(), Path::parent).filter_map(|above| cluster.supervisor(&above));
        let mut above = above.map(|above| above.is_up() && above.taken_down().is_empty());
        let is_awaited =
            cluster.is_unreachable(run) || is_held_or_removed(cluster, path) || !above.all(|goes_on| goes_on);
        if is_drained && !is_awaited && !others(cluster, path).iter().any(|other| is_there(cluster, other, &run.node)) {
            return Err(format!("{path} is temporary and alone on {}, which is drained", run.node));
        }
    }
    Ok(())
}

/// It is asked to end for a drain only where nothing of its group goes on there for lack of another place.
pub(super) fn a_temporary_child_ends_with_the_last_of_its_group(
    before: &Cluster,
    after: &Cluster,
) -> Result<(), Broken> {
    for (path, ..) in processes(after).filter(|(_, member, _)| member.restart == Restart::Temporary) {
        let begins = |run: &&Run| {
            let was = before.run(path).filter(|old| old.incarnation == run.incarnation);
            run.stopping == Some(StopReason::Drain) && was.is_none_or(|old| old.stopping.is_none())
        };
        let Some(run) = after.run(path).filter(begins) else { continue };
        let goes_on = |other: &Path| {
            let stays = after.run(other).is_some_and(|other| other.stopping.is_none() && other.session == run.session);
            let is_placed = after.process(other).is_some_and(|process| process.place.is_some());
            stays && !is_placed && is_there(after, other, &run.node) && !is_held_or_removed(after, other)
        };
        let is_current = after.nodes.get(&run.node).is_some_and(|node| node.current == Some(run.session));
        if let Some(other) = others(after, path).into_iter().find(|other| is_current && goes_on(other)) {
            return Err(format!("{path} is asked to leave {} while {other} goes on there", run.node));
        }
    }
    Ok(())
}

/// The same state, but with the temporary children ready that were just asked to leave a drained node: as soon as what starts after one
/// has found another.
pub(super) fn as_it_was(cluster: &Cluster) -> Cluster {
    let mut was = cluster.clone();
    let leaves = |run: &Run| matches!(run.stage, Stage::Ready { .. }) && run.stopping == Some(StopReason::Drain);
    for (path, ..) in processes(cluster).filter(|(_, member, _)| member.restart == Restart::Temporary) {
        if let ProcessPhase::Assigned(run) = &mut Change::new(&mut was, 0).process(path).phase
            && leaves(run)
        {
            run.stopping = None;
        }
    }
    was
}

/// What is not temporary below the supervisors above a child, as far as one of these stands and falls, or stays together, as one.
fn others(cluster: &Cluster, path: &Path) -> Vec<Path> {
    let mut group = None;
    for above in std::iter::successors(path.parent(), Path::parent) {
        if cluster.supervisor(&above).is_some_and(|above| above.strategy.is_group() || above.colocate) {
            group = Some(above);
        }
    }
    let all = group.map_or_else(Vec::new, |group| cluster.walk(&group));
    let lasts = |other: &Path| cluster.member(other).is_some_and(|member| member.restart != Restart::Temporary);
    all.into_iter().filter(|other| cluster.process(other).is_some() && lasts(other)).collect()
}

fn is_there(cluster: &Cluster, path: &Path, node: &NodeName) -> bool {
    let place = cluster.process(path).and_then(|process| process.place.as_ref());
    cluster.run(path).is_some_and(|run| run.node == *node) || place.is_some_and(|place| place.node == *node)
}

//! What must always hold of groups and of the places that are kept for them.

use std::collections::BTreeSet;

use pando_protocol::ids::{NodeName, Path};

use super::{Broken, processes};
use crate::change::Change;
use crate::cluster::{Cluster, Group, Place, ProcessPhase, Supervisor, SupervisorPhase};
use crate::colocation::outermost;
use crate::groups::{is_settled, is_startable};
use crate::placement::{can_return, free};
use crate::places::{is_kept, processes_to_start};

/// Whether a member is down only until its turn.
pub(super) fn waits_for_its_turn(cluster: &Cluster, path: &Path) -> bool {
    let above = path.parent().and_then(|parent| cluster.supervisor(&parent));
    is_startable(cluster, path) && above.is_some_and(Supervisor::is_up)
}

pub(super) fn places_are_kept_only_for_who_is_about_to_start(cluster: &Cluster) -> Result<(), Broken> {
    for (path, member, process) in processes(cluster).filter(|(_, _, process)| process.place.is_some()) {
        let mut above = path.parent();
        let (mut in_a_group, mut starts_again) = (false, false);
        while let Some(at) = above {
            let supervisor = cluster.supervisor(&at);
            in_a_group |= supervisor.and_then(Supervisor::group).is_some_and(|group| *group != Group::Settled);
            starts_again |= supervisor.is_some_and(|supervisor| {
                supervisor.is_stopping() || matches!(supervisor.phase, SupervisorPhase::Delayed { .. })
            });
            above = at.parent();
        }
        let moves = match &process.phase {
            ProcessPhase::Assigned(run) => run.stopping.is_some(),
            ProcessPhase::Pending(_) => true,
            ProcessPhase::Down(_) => false,
        };
        if !(moves || in_a_group || starts_again) || member.held || member.removed {
            return Err(format!("{path} has a place that it does not wait for: {:?}", process.phase));
        }
    }
    Ok(())
}

pub(super) fn nothing_waits_for_its_turn_where_no_group_starts(cluster: &Cluster) -> Result<(), Broken> {
    for path in cluster.members.keys().filter(|path| waits_for_its_turn(cluster, path)) {
        let above = path.parent().and_then(|parent| cluster.supervisor(&parent));
        if above.and_then(Supervisor::group) == Some(&Group::Settled) {
            return Err(format!("{path} waits for its turn, and its supervisor starts nothing"));
        }
    }
    Ok(())
}

pub(super) fn a_group_that_is_not_settled_waits_for_a_member(cluster: &Cluster) -> Result<(), Broken> {
    for path in cluster.members.keys() {
        let Some(supervisor) = cluster.supervisor(path) else { continue };
        match supervisor.group() {
            Some(Group::TakingDown { .. }) => {
                let mut members = supervisor.taken_down().iter().filter_map(|id| cluster.member(&path.child(id)));
                if members.all(crate::cluster::Member::is_down) {
                    return Err(format!("{path} takes its group down, and all of it is"));
                }
            }
            Some(Group::Starting) => {
                let mut children = supervisor.children.iter().map(|id| path.child(id));
                match children.find(|child| !is_settled(cluster, child)) {
                    Some(first) if is_startable(cluster, &first) => {
                        return Err(format!("{path} starts its group, and {first} was not started in its turn"));
                    }
                    Some(_) => {}
                    None => return Err(format!("{path} starts its group, and all of it is ready")),
                }
            }
            Some(Group::Settled | Group::Pending { .. }) | None => {}
        }
    }
    Ok(())
}

pub(super) fn no_group_is_pending_while_places_for_all_of_it_exist(cluster: &Cluster) -> Result<(), Broken> {
    for (_, path) in &cluster.pending {
        let is_due = cluster.pending_at(path).is_some_and(|pending| pending.not_before <= cluster.head.now);
        if cluster.supervisor(path).is_none() || !is_due {
            continue;
        }
        let mut trial = cluster.clone();
        if Change::new(&mut trial, 0).keep_places(path).is_ok() {
            return Err(format!("{path} waits while there are places for all of it"));
        }
    }
    Ok(())
}

/// Where something of a group has a way back to a drained node, and the rest has places or fits beside it. What of the rest stays
/// together on its own, and not with all of the group, may have to be elsewhere.
pub(super) fn no_group_is_pending_while_all_of_it_fits_a_drained_node_it_goes_back_to(
    cluster: &Cluster,
) -> Result<(), Broken> {
    for (_, path) in &cluster.pending {
        let is_due = cluster.pending_at(path).is_some_and(|pending| pending.not_before <= cluster.head.now);
        if cluster.supervisor(path).is_none() || !is_due {
            continue;
        }
        let starting = processes_to_start(cluster, path);
        let (back, rest): (Vec<&Path>, Vec<&Path>) = starting
            .iter()
            .filter(|path| !is_kept(cluster, path, false))
            .partition(|path| is_kept(cluster, path, true));
        let nodes: BTreeSet<&NodeName> =
            back.iter().filter_map(|path| cluster.process(path)?.place.as_ref()).map(|place| &place.node).collect();
        let together: Vec<Path> = rest.iter().filter_map(|path| outermost(cluster, path)).collect();
        let is_one = together.is_empty() || (nodes.len() == 1 && together.iter().all(|by| path.is_within(by)));
        for name in nodes.into_iter().filter(|_| is_one) {
            let Some((node, session)) = cluster.nodes.get(name).and_then(|node| Some((node, node.current?))) else {
                continue;
            };
            let needed: u64 =
                rest.iter().filter_map(|path| cluster.process(path)).map(|process| u64::from(process.spec.slots)).sum();
            if needed <= free(node) && rest.iter().all(|path| can_return(cluster, path, name, session)) {
                return Err(format!("{path} waits while all of it fits {name}, where {} has a way back", back[0]));
            }
        }
        if let Some(after) = waits_with_a_way_back_for(cluster, path) {
            return Err(format!("{path} waits, and {after} for it, while both fit the drained node of that"));
        }
    }
    Ok(())
}

/// Who would go back to its drained node, and waits for its turn until the child or group at `path` is ready, all of which fits there
/// too: however deep it lies in a group that starts its members in turn, before the one that waits.
pub(super) fn waits_with_a_way_back_for(cluster: &Cluster, path: &Path) -> Option<Path> {
    let starting = match cluster.process(path) {
        Some(_) => vec![path.clone()],
        None => processes_to_start(cluster, path),
    };
    let mut at = path.clone();
    while let Some(above) = at.parent() {
        let supervisor = cluster.supervisor(&above)?;
        if supervisor.group() == Some(&Group::Starting) {
            let members = supervisor.children.iter().map(|id| above.child(id));
            let later =
                members.skip_while(|member| *member != at).skip(1).filter(|member| is_startable(cluster, member));
            let mut waiting =
                later.flat_map(|member| cluster.walk(&member)).filter(|other| is_kept(cluster, other, true));
            let fits = |other: &Path| {
                let place = cluster.process(other).and_then(|process| process.place.as_ref());
                place.is_some_and(|place| all_fit_beside(cluster, &starting, place))
            };
            if let Some(other) = waiting.find(fits) {
                return Some(other);
            }
        }
        at = above;
    }
    None
}

/// Whether all of these, and all that stays together with one of them, are on a node or fit there, were it not drained.
fn all_fit_beside(cluster: &Cluster, starting: &[Path], Place { node: name, .. }: &Place) -> bool {
    let Some(node) = cluster.nodes.get(name) else { return false };
    let together = starting.iter().filter_map(|path| outermost(cluster, path)).flat_map(|by| cluster.walk(&by));
    let all: BTreeSet<Path> = starting.iter().cloned().chain(together).collect();
    let mut needed: u64 = 0;
    for (path, process) in all.iter().filter_map(|path| Some((path, cluster.process(path)?))) {
        let nodes =
            cluster.run(path).map(|run| &run.node).into_iter().chain(process.place.as_ref().map(|place| &place.node));
        match nodes.collect::<BTreeSet<&NodeName>>() {
            nodes if nodes.iter().any(|other| *other != name) => return false,
            nodes if nodes.is_empty() => needed += u64::from(process.spec.slots),
            _ => {}
        }
        if !process.spec.place.require.is_subset(&node.labels) {
            return false;
        }
    }
    needed <= free(node)
}

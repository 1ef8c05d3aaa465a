//! What must always hold of groups and of the places that are kept for them.

use pando_protocol::ids::Path;

use super::{Broken, processes};
use crate::change::Change;
use crate::cluster::{Cluster, Group, ProcessPhase, Supervisor};
use crate::groups::{is_settled, is_startable};

/// Whether a member is down only until its turn.
pub(super) fn waits_for_its_turn(cluster: &Cluster, path: &Path) -> bool {
    let above = path.parent().and_then(|parent| cluster.supervisor(&parent));
    is_startable(cluster, path) && above.is_some_and(Supervisor::is_up)
}

pub(super) fn places_are_kept_only_for_who_is_about_to_start(cluster: &Cluster) -> Result<(), Broken> {
    for (path, member, process) in processes(cluster).filter(|(_, _, process)| process.place.is_some()) {
        let mut above = path.parent();
        let mut in_a_group = false;
        while let Some(at) = above {
            let group = cluster.supervisor(&at).and_then(Supervisor::group);
            in_a_group |= group.is_some_and(|group| *group != Group::Settled);
            above = at.parent();
        }
        let moves = match &process.phase {
            ProcessPhase::Assigned(run) => run.stopping.is_some(),
            ProcessPhase::Pending(_) => true,
            ProcessPhase::Down(_) => false,
        };
        if !(moves || in_a_group) || member.held || member.removed {
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
            Some(Group::Settled | Group::Pending(_)) | None => {}
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

//! Colocation: what keeps a child on one node with others (`colocate = true` on a supervisor above it).
//!
//! Everything below such a supervisor goes where something of it runs already, or has a place. While nothing does, it goes to a
//! node that can take all of it, so that it moves as one.

use std::collections::BTreeSet;

use pando_protocol::ids::{NodeName, Path};
use pando_protocol::spec::Restart;

use crate::cluster::{Body, Cluster, DownReason, Node, Process, ProcessPhase, Run, StopReason, Supervisor};
use crate::mutation::{Mutation, broken};
use crate::placement::{free, lacking_labels};

/// The others that a child stays together with.
pub(crate) struct Colocation<'a> {
    /// The outermost supervisor that asks for it.
    by: Path,
    /// Where something of it runs already, or has a place.
    pub anchor: Option<NodeName>,
    /// The drained nodes that others of it run on, or go back to where there is no room elsewhere.
    left_on: BTreeSet<NodeName>,
    /// All that is to run below it and does not yet, or has to leave a drained node and starts again; the child itself included.
    pub to_come: Vec<&'a Process>,
}

/// What keeps the child at `path` together with others; `None` where nothing does.
pub(crate) fn colocation<'a>(cluster: &'a Cluster, path: &Path) -> Option<Colocation<'a>> {
    let by = kept_together_by(cluster, path)?;
    // Where something runs counts more than where room is kept: the two differ only while a new spec has begun to ask for this.
    let (mut running, mut kept, mut left_on, mut to_come) = (None, None, BTreeSet::new(), Vec::new());
    for below in cluster.walk(&by) {
        let Some(process) = cluster.process(&below) else { continue };
        let is_other = below != *path;
        let place = process.place.as_ref().map(|place| &place.node).filter(|_| is_other);
        let (way_back, place) = match place {
            Some(node) if is_drained(cluster, node) => (place, None),
            Some(_) | None => (None, place),
        };
        let staying = cluster.run(&below).filter(|run| is_other && returns(run.stopping)).map(|run| &run.node);
        left_on.extend(way_back.into_iter().chain(staying.filter(|node| is_drained(cluster, node))).cloned());
        match &process.phase {
            ProcessPhase::Assigned(run) if returns(run.stopping) && !is_drained(cluster, &run.node) => {
                running = running.or(Some(run.node.clone()));
            }
            _ if place.is_some() => kept = kept.or(place.cloned()),
            ProcessPhase::Assigned(_) | ProcessPhase::Pending(_) | ProcessPhase::Down(_) => {
                if is_to_run(cluster, &below) && !has_its_last_run(cluster, &below) {
                    to_come.push(process);
                }
            }
        }
    }
    Some(Colocation { by, anchor: running.or(kept), left_on, to_come })
}

impl Colocation<'_> {
    /// Whether a node is chosen for all that is to come, and not only for one more.
    pub fn is_open(&self) -> bool {
        self.anchor.is_none()
    }

    /// Why a node cannot take the child, for the sake of the others; `None` where it can.
    pub fn obstacle(&self, name: &NodeName, node: &Node) -> Option<String> {
        let by = &self.by;
        if let Some(anchor) = &self.anchor {
            return (anchor != name).then(|| format!("is not {anchor}, where the rest of {by} is"));
        }
        if let Some(lacks) = self.to_come.iter().find_map(|process| lacking_labels(node, &process.spec)) {
            return Some(format!("{lacks}, which {by} needs as a whole"));
        }
        let needed: u64 = self.to_come.iter().map(|process| u64::from(process.spec.slots)).sum();
        // What some of it take there already they do not need again.
        let free = free(node) + self.to_come.iter().map(|process| taken_on(name, process)).sum::<u64>();
        (needed > free).then(|| format!("has {free} of {} slots free, {by} needs {needed} as a whole", node.slots))
    }

    /// Why the child cannot go on on a node where it ran, for the sake of the others; `None` where it can. On a drained node it can
    /// unless they are elsewhere already: what is still to come waits for another node anyway, and not at its expense.
    pub fn obstacle_to_return(&self, name: &NodeName, node: &Node) -> Option<String> {
        if self.is_open() && node.drained { None } else { self.obstacle(name, node) }
    }

    /// The drained nodes that others of it run on or go back to: none where one is elsewhere.
    pub fn left_behind_on(&self) -> impl Iterator<Item = &NodeName> {
        self.left_on.iter().filter(|_| self.anchor.is_none())
    }
}

/// The slots of a node that a process takes, or that are kept for it there.
fn taken_on(name: &NodeName, process: &Process) -> u64 {
    let place = process.place.as_ref().filter(|place| place.node == *name).map_or(0, |place| place.slots);
    let run = match &process.phase {
        ProcessPhase::Assigned(run) if run.node == *name => run.slots,
        ProcessPhase::Assigned(_) | ProcessPhase::Pending(_) | ProcessPhase::Down(_) => 0,
    };
    u64::from(place) + u64::from(run)
}

/// The supervisor for whose sake the child at `path` stays together with others; `None` where it does not.
pub(crate) fn kept_together_by(cluster: &Cluster, path: &Path) -> Option<Path> {
    outermost(cluster, path).filter(|_| !broken(Mutation::ColocationIgnored))
}

/// The outermost supervisor above `path` that keeps everything below it on one node.
pub(crate) fn outermost(cluster: &Cluster, path: &Path) -> Option<Path> {
    let mut found = None;
    let mut at = path.parent();
    while let Some(above) = at {
        if cluster.supervisor(&above)?.colocate {
            found = Some(above.clone());
        }
        at = above.parent();
    }
    found
}

/// Whether a run goes on, or ends to start again where it is.
fn returns(stopping: Option<StopReason>) -> bool {
    match stopping {
        None | Some(StopReason::Group | StopReason::Restart | StopReason::Update) => true,
        Some(
            StopReason::Operator
            | StopReason::Removed
            | StopReason::Supervisor
            | StopReason::Shutdown
            | StopReason::Drain,
        ) => false,
    }
}

/// Whether a process has a run that no other follows: it is temporary, and nobody asked for it to run again.
pub(crate) fn has_its_last_run(cluster: &Cluster, path: &Path) -> bool {
    let is_temporary = cluster.member(path).is_some_and(|member| member.restart == Restart::Temporary);
    let runs_again = |run: &Run| matches!(run.stopping, Some(StopReason::Restart | StopReason::Update));
    is_temporary && cluster.run(path).is_some_and(|run| !runs_again(run))
}

fn is_drained(cluster: &Cluster, node: &NodeName) -> bool {
    cluster.nodes.get(node).is_some_and(|node| node.drained)
}

fn parent_is_up(cluster: &Cluster, path: &Path) -> bool {
    path.parent().and_then(|parent| cluster.supervisor(&parent)).is_some_and(Supervisor::is_up)
}

/// Whether it runs, or will: neither it nor a supervisor above was stopped by an operator, is being removed, or has ended for
/// good. One that ended starts again where the supervisor above it does.
pub(crate) fn is_to_run(cluster: &Cluster, path: &Path) -> bool {
    let Some(member) = cluster.member(path) else { return false };
    let has_ended = match &member.body {
        Body::Process(process) => {
            matches!(process.phase, ProcessPhase::Down(DownReason::Finished | DownReason::Rule))
        }
        Body::Supervisor(supervisor) => supervisor.has_finished(),
    };
    let is_over = has_ended && parent_is_up(cluster, path);
    !member.held && !member.removed && !is_over && path.parent().is_none_or(|parent| is_to_run(cluster, &parent))
}

//! How a node is emptied: when it goes (SIGTERM), and when an operator drains it.
//!
//! One that goes stops what it runs, the last started of each tree first, and that starts elsewhere afterwards. One that is
//! drained stays: what runs there moves as other nodes have room, and a move is written down with its place kept before the old
//! run is asked to end. So a drain that is given up half-way leaves one copy of everything.

use std::collections::BTreeSet;
use std::time::Duration;

use pando_protocol::ids::{NodeName, Path, SessionId};
use pando_protocol::message::{Difference, DifferenceKind};
use pando_protocol::rejection::Rejection;
use pando_protocol::spec::Restart;

use crate::change::Change;
use crate::cluster::{Body, Cluster, Node, Run, StopReason};
use crate::colocation::{colocation, outermost};
use crate::command::EventKind;
use crate::endings::Over;
use crate::mutation::{Mutation, broken};
use crate::placement::choose;

impl Change<'_> {
    /// A node says that it goes: it gets no more work, and what it runs stops.
    pub fn leaving(&mut self, name: &NodeName, id: SessionId) {
        let Some(session) = self.session(name, id) else { return };
        session.leaving = true;
        let runs: Vec<Path> = session.assigned.iter().cloned().collect();
        let node = self.node(name);
        if node.current == Some(id) {
            node.current = None;
        }
        self.release_places_on(name);
        self.room_changed = true; // Who waited for the rest of its group there is free to go elsewhere.
        if broken(Mutation::ReplaceBeforeStopped) {
            for path in runs.iter().rev() {
                self.stop_run(path, StopReason::Shutdown);
                let Some(run) = self.cluster.run(path).cloned() else { continue };
                self.run_over(path, run, Over::NeverStarted);
            }
        }
        let text = format!("{name} goes: {} children stop there and start elsewhere", runs.len());
        self.event(EventKind::NodeLeaving, None, Some(name), text);
        self.go_on_leaving(name, id);
    }

    /// Stops the last run of each tree on a node that goes. Called again each time one of its runs has ended.
    pub fn go_on_leaving(&mut self, name: &NodeName, id: SessionId) {
        let Some(session) = self.cluster.session(name, id).filter(|session| session.leaving) else { return };
        let trees: BTreeSet<_> = session.assigned.iter().map(Path::tree).collect();
        let last = trees.iter().filter_map(|tree| last_of(self.cluster, &Path::root(tree), &session.assigned));
        for path in last.collect::<Vec<_>>() {
            self.take_away(&path, StopReason::Shutdown);
        }
    }

    /// A run has to end because its node goes or is drained: alone, or with the group that it belongs to, in that one's order.
    fn take_away(&mut self, path: &Path, reason: StopReason) {
        // What is being stopped already, or by its group in its turn, needs no further word.
        if self.cluster.run(path).is_none_or(|run| run.stopping.is_some()) || self.is_taken_down_with(path) {
            return;
        }
        let is_temporary = self.member(path).restart == Restart::Temporary; // Its end restarts nothing.
        match path.parent().filter(|parent| !is_temporary && self.is_group(parent) && self.supervisor(parent).is_up()) {
            Some(group) => self.restart_group_for(&group, path, "has to leave its node", Duration::ZERO, false),
            None => self.stop_run(path, reason),
        }
    }

    /// Gives a node no more work and moves what runs there. Lists what is to move.
    pub fn drain(&mut self, name: &NodeName) -> Result<Vec<Difference>, Rejection> {
        let known = self.known_node(name)?;
        let (was_drained, moves) = (known.drained, runs_on(known));
        if !was_drained {
            self.node(name).drained = true;
            self.release_places_on(name);
            let text = format!("{name} is drained: {} children are to move to other nodes", moves.len());
            self.event(EventKind::NodeDrained, None, Some(name), text);
        }
        let difference = |path| Difference { path, what: DifferenceKind::Moved, keys: Vec::new() };
        Ok(moves.into_iter().map(difference).collect())
    }

    /// Gives a drained node work again.
    pub fn undrain(&mut self, name: &NodeName) -> Result<Vec<Difference>, Rejection> {
        if self.known_node(name)?.drained {
            self.node(name).drained = false;
            self.event(EventKind::NodeUndrained, None, Some(name), format!("{name} takes work again"));
            self.room_changed = true;
        }
        Ok(Vec::new())
    }

    /// Forgets a node that is gone for good.
    pub fn remove_node(&mut self, name: &NodeName) -> Result<Vec<Difference>, Rejection> {
        let known = self.known_node(name)?;
        if !known.sessions.is_empty() {
            let why = match (known.current, runs_on(known).len()) {
                (Some(_), 0) => format!("is up: stop its process first, and then remove {name}"),
                (None, count) if known.is_unreachable() => format!(
                    "is silent, and {count} children that are kept may run there: they go on when it is back; only where you \
                     know that its machine is gone, `pando node remove {name} --dead` starts them elsewhere"
                ),
                (_, count) => format!(
                    "is not known to be gone, and {count} children count as running there: `pando node drain {name}` moves \
                     them, stopping its process ends its session, and the lease of one that is silent runs out by itself"
                ),
            };
            return Err(Rejection::WrongNodeState { node: name.clone(), why });
        }
        self.cluster.nodes.remove(name);
        self.event(EventKind::NodeRemoved, None, Some(name), format!("{name} was removed by an operator"));
        Ok(Vec::new())
    }

    /// Forgets a node whose machine is gone, by the oath of an operator: what was kept there has ended, and starts elsewhere.
    pub fn remove_dead_node(&mut self, name: &NodeName) -> Result<Vec<Difference>, Rejection> {
        let known = self.known_node(name)?;
        let may_hold_a_lease = known.sessions.values().any(|session| !session.silent);
        if may_hold_a_lease && !broken(Mutation::DeadByWordAlone) {
            let why = match known.current {
                Some(_) => format!("is up: stop its process first, and then remove {name}"),
                None => "may hold a lease that has not run out: wait until `pando node ls` shows it as down or unreachable, \
                         and then say it again"
                    .to_owned(),
            };
            return Err(Rejection::WrongNodeState { node: name.clone(), why });
        }
        let sessions: Vec<SessionId> = known.sessions.keys().copied().collect();
        for session in sessions {
            self.end_session(name, session, "an operator says that its machine is gone");
        }
        self.cluster.nodes.remove(name);
        self.event(EventKind::NodeRemoved, None, Some(name), format!("{name} was removed by an operator, as dead"));
        Ok(Vec::new())
    }

    fn known_node(&self, name: &NodeName) -> Result<&Node, Rejection> {
        self.cluster.nodes.get(name).map(AsRef::as_ref).ok_or_else(|| Rejection::NoSuchNode(name.clone()))
    }

    /// Moves what can be moved off drained nodes. Called each time there may be room.
    pub fn go_on_draining(&mut self) {
        let drained = self.cluster.nodes.values().filter(|node| node.drained);
        let mut runs: Vec<Path> = drained.flat_map(|node| runs_on(node)).collect();
        runs.sort_by_key(Path::depth); // A group before what lies deeper in it.
        for path in runs {
            self.move_away(&path);
        }
    }

    /// Keeps a place elsewhere for a run, and for all that has to go along; then asks it to end. Does nothing where there is no
    /// room: [`what_a_move_waits_for`] says so.
    fn move_away(&mut self, path: &Path) {
        // What is unreachable moves once its node is back: till then a place would be kept for nobody.
        let is_here = |run: &Run| run.stopping.is_none() && !self.cluster.is_unreachable(run);
        let is_staying = self.cluster.run(path).is_some_and(is_here);
        if !is_staying || !goes_on(self.cluster, path) || self.is_taken_down_with(path) {
            return;
        }
        if self.member(path).restart == Restart::Temporary {
            return self.take_away(path, StopReason::Drain); // It is never started again, so it needs no place.
        }
        let moving = moving_with(self.cluster, path);
        let mut kept = Vec::new();
        for path in &moving {
            match self.choose_node(path) {
                Ok((node, session)) => {
                    self.keep_place(path, node, session);
                    kept.push(path);
                }
                Err(_) => return kept.into_iter().for_each(|path| drop(self.take_place(path))),
            }
        }
        for path in &moving {
            self.take_away(path, StopReason::Drain);
        }
    }
}

/// What a run on a drained node waits for; `None` where it waits for nothing.
pub(crate) fn what_a_move_waits_for(cluster: &Cluster, path: &Path) -> Option<String> {
    let run = cluster.run(path).filter(|run| run.stopping.is_none())?;
    cluster.nodes.get(&run.node).filter(|node| node.drained)?;
    let reason = choose(cluster, path).err().unwrap_or_else(|| "its group has no place".into());
    Some(format!("room to leave {}, which is drained: {reason}", run.node))
}

/// The runs that leave a drained node together with this one: it alone, or all that stays together with it.
fn moving_with(cluster: &Cluster, path: &Path) -> Vec<Path> {
    let Some(by) = outermost(cluster, path).filter(|_| colocation(cluster, path).is_some()) else {
        return vec![path.clone()];
    };
    let on_drained = |path: &Path| {
        let node = cluster.run(path).filter(|run| run.stopping.is_none()).and_then(|run| cluster.nodes.get(&run.node));
        node.is_some_and(|node| node.drained) && goes_on(cluster, path)
    };
    cluster.walk(&by).into_iter().filter(on_drained).collect()
}

/// Whether a member is to run on: it and all supervisors above it are neither stopped nor stopping.
fn goes_on(cluster: &Cluster, path: &Path) -> bool {
    let Some(member) = cluster.member(path).filter(|member| !member.held && !member.removed) else { return false };
    let is_up = match &member.body {
        Body::Process(_) => true,
        Body::Supervisor(supervisor) => supervisor.is_up(),
    };
    is_up && path.parent().is_none_or(|parent| goes_on(cluster, &parent))
}

fn runs_on(node: &Node) -> Vec<Path> {
    node.sessions.values().flat_map(|session| session.assigned.iter().cloned()).collect()
}

/// The last in start order of those at or below `path` that are among these.
fn last_of(cluster: &Cluster, path: &Path, among: &BTreeSet<Path>) -> Option<Path> {
    match &cluster.member(path)?.body {
        Body::Process(_) => among.contains(path).then(|| path.clone()),
        Body::Supervisor(supervisor) => {
            let children = supervisor.children.iter().rev().map(|id| path.child(id));
            children.filter(|child| any_within(among, child)).find_map(|child| last_of(cluster, &child, among))
        }
    }
}

fn any_within(among: &BTreeSet<Path>, path: &Path) -> bool {
    let mut from = among.range(path.clone()..).take_while(|other| other.as_str().starts_with(path.as_str()));
    from.any(|other| other.is_within(path))
}

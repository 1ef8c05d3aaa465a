//! Room that is kept: for members of a group that start one after the other, and for a run that is moved.
//!
//! A group starts when all of it has places. So that nobody else takes them meanwhile, they are kept in the sessions of their
//! nodes; a child's next run takes its own. A group that does not find all of its places keeps none, so that two groups never
//! wait for what the other holds.

use std::collections::BTreeMap;

use pando_protocol::ids::{NodeName, Path, SessionId};

use crate::change::Change;
use crate::cluster::{Body, Cluster, Place, Run};
use crate::colocation::{colocation, outermost};
use crate::groups::is_startable;
use crate::mutation::{Mutation, broken};
use crate::placement::fitting;

impl Change<'_> {
    /// Keeps room on a node for the next run of a child.
    pub fn keep_place(&mut self, path: &Path, node: NodeName, session: SessionId) {
        self.take_place(path);
        let process = self.process(path);
        let slots = process.spec.slots;
        process.place = Some(Place { node: node.clone(), session, slots });
        if let Some(session) = self.session(&node, session) {
            session.kept.insert(path.clone());
            session.used = session.used.saturating_add(slots);
        }
    }

    /// Keeps the room that a run took which has just ended, where its node can take the next one too.
    pub fn keep_place_of(&mut self, path: &Path, run: &Run) {
        if self.can_stay(path, run) {
            self.keep_place(path, run.node.clone(), run.session);
        }
    }

    /// The room that was kept for a child. From here on it is not kept any more.
    pub fn take_place(&mut self, path: &Path) -> Option<(NodeName, SessionId)> {
        self.cluster.process(path)?.place.as_ref()?;
        let Place { node, session, slots } = self.process(path).place.take()?;
        if let Some(standing) = self.session(&node, session) {
            standing.kept.remove(path);
            if !broken(Mutation::PlacesLeak) {
                standing.used -= slots;
            }
        }
        Some((node, session))
    }

    /// Gives up the room that is kept for a child.
    pub fn release_place(&mut self, path: &Path) {
        if self.cluster.process(path).is_some_and(|process| process.place.is_some()) {
            self.take_place(path);
            self.room_changed = true;
        }
    }

    /// Gives up the room that is kept for a member and all below it.
    pub fn release_places_below(&mut self, path: &Path) {
        let mut sessions = self.cluster.nodes.values().flat_map(|node| node.sessions.values());
        if sessions.all(|session| session.kept.is_empty()) {
            return; // As nearly always: no need to walk.
        }
        for below in self.cluster.walk(path) {
            self.release_place(&below);
        }
    }

    /// Gives up the room that is kept under every session of a node.
    pub fn release_places_on(&mut self, node: &NodeName) {
        let Some(known) = self.cluster.nodes.get(node) else { return };
        let kept: Vec<Path> = known.sessions.values().flat_map(|session| session.kept.iter().cloned()).collect();
        kept.iter().for_each(|path| self.release_place(path));
    }

    /// Keeps places for all processes that start with a group; those that have one keep it. Those with the fewest nodes to
    /// choose from choose first.
    ///
    /// # Errors
    /// What is missing. Then no room is kept for the group.
    pub fn keep_places(&mut self, group: &Path) -> Result<(), String> {
        let mut without: Vec<(usize, Path)> = Vec::new();
        let mut kept = Vec::new();
        for path in processes_to_start(self.cluster, group) {
            if !self.has_place(&path) {
                self.release_place(&path);
                without.push((fitting(self.cluster, &path), path));
            }
        }
        // What stays together is placed in one go, so that nobody takes the room that its first member saw for all of it.
        let together = |path: &Path| outermost(self.cluster, path).unwrap_or_else(|| path.clone());
        let mut fewest: BTreeMap<Path, usize> = BTreeMap::new();
        for (nodes, path) in &without {
            let known = fewest.entry(together(path)).or_insert(*nodes);
            *known = (*known).min(*nodes);
        }
        without.sort_by_cached_key(|(nodes, path)| {
            let with = together(path);
            (fewest.get(&with).copied(), with, *nodes)
        });
        for (_, path) in without {
            match self.choose_node(&path) {
                Ok((node, session)) => {
                    self.keep_place(&path, node, session);
                    kept.push(path);
                }
                Err(reason) => {
                    // Those of a moment ago are given up without a word: nobody was refused for their sake.
                    kept.iter().for_each(|path| drop(self.take_place(path)));
                    // Not those of others of the group, which are on the move.
                    processes_to_start(self.cluster, group).iter().for_each(|path| self.release_place(path));
                    return Err(format!("{path} has no place: {reason}"));
                }
            }
        }
        Ok(())
    }

    /// Whether room is kept for a child that can be used: its node takes work, and the others that it stays with are there.
    pub fn has_place(&self, path: &Path) -> bool {
        let Some(place) = self.cluster.process(path).and_then(|process| process.place.as_ref()) else { return false };
        let Some(node) = self.cluster.nodes.get(&place.node) else { return false };
        let anchor = colocation(self.cluster, path).and_then(|together| together.anchor);
        node.current == Some(place.session) && !node.drained && anchor.is_none_or(|anchor| anchor == place.node)
    }
}

/// The processes that start with the next generation of a group, in start order.
pub(crate) fn processes_to_start(cluster: &Cluster, group: &Path) -> Vec<Path> {
    let Some(supervisor) = cluster.supervisor(group) else { return Vec::new() };
    let members = supervisor.children.iter().map(|id| group.child(id));
    let mut found = Vec::new();
    for member in members.filter(|member| is_startable(cluster, member)) {
        collect(cluster, &member, &mut found);
    }
    found
}

/// A process, or all processes below a supervisor that starts afresh: all but those that an operator stopped.
fn collect(cluster: &Cluster, path: &Path, found: &mut Vec<Path>) {
    let Some(member) = cluster.member(path).filter(|member| !member.held && !member.removed) else { return };
    match &member.body {
        Body::Process(_) => found.push(path.clone()),
        Body::Supervisor(supervisor) => {
            supervisor.children.iter().for_each(|id| collect(cluster, &path.child(id), found));
        }
    }
}

//! Room that is kept: for members of a group that start one after the other, and for a run that is moved.
//!
//! A group starts when all of it has places. So that nobody else takes them meanwhile, they are kept in the sessions of their
//! nodes; a child's next run takes its own. A group that does not find all of its places keeps none, so that two groups never
//! wait for what the other holds.
//!
//! A place on a drained node is a *way back*. It is kept for what ran there, or was to run there before the drain, and is used
//! where no other node has room: a drain costs nothing its life. Nobody else could take that room.

use std::collections::{BTreeMap, BTreeSet};

use pando_protocol::ids::{NodeName, Path, SessionId};

use crate::change::Change;
use crate::cluster::{Body, Cluster, Group, Place, Run, Session};
use crate::colocation::{colocation, outermost};
use crate::groups::is_startable;
use crate::mutation::{Mutation, broken};
use crate::placement::{can_return, can_return_alone, fitting};

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

    /// Keeps the room that a run took which has just ended, where its node can take the next one too; on a drained node as a
    /// way back. One that has a place already goes there.
    pub fn keep_place_of(&mut self, path: &Path, run: &Run) {
        if !self.has_place(path) && self.can_return(path, run) {
            self.keep_place(path, run.node.clone(), run.session);
        }
    }

    /// The same for a child on its own, which needs it on a drained node only: elsewhere it was placed already.
    pub fn keep_way_back(&mut self, path: &Path, run: &Run) {
        if self.is_drained(&run.node) && !broken(Mutation::NoWayBack) {
            self.keep_place_of(path, run);
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
        for below in self.with_place_below(path) {
            self.release_place(&below);
        }
    }

    /// The same, but for ways back: who stops may start again.
    pub fn release_new_places_below(&mut self, path: &Path) {
        for below in self.with_place_below(path) {
            if !self.keeps_way_back(&below) {
                self.release_place(&below);
            }
        }
    }

    /// Those at and below `path` for whom room is kept.
    fn with_place_below(&self, path: &Path) -> Vec<Path> {
        let sessions = self.cluster.nodes.values().flat_map(|node| node.sessions.values());
        let from = |session: &Session| {
            let from = session.kept.range(path.clone()..).take_while(|kept| kept.as_str().starts_with(path.as_str()));
            from.filter(|kept| kept.is_within(path)).cloned().collect::<Vec<_>>()
        };
        sessions.flat_map(from).collect()
    }

    /// Gives up the room that is kept under every session of a node.
    pub fn release_places_on(&mut self, node: &NodeName) {
        let Some(known) = self.cluster.nodes.get(node) else { return };
        let kept: Vec<Path> = known.sessions.values().flat_map(|session| session.kept.iter().cloned()).collect();
        kept.iter().for_each(|path| self.release_place(path));
    }

    /// Keeps places for all processes that start with a group; those that have one keep it. All that comes from drained nodes
    /// leaves them, or goes back: a drain does not cost a group its life.
    ///
    /// # Errors
    /// What is missing. Then no room is kept for the group but ways back, which are of no use to others.
    pub fn keep_places(&mut self, group: &Path) -> Result<(), String> {
        let starting = processes_to_start(self.cluster, group);
        let waiting = waiting_for(self.cluster, group);
        for path in &starting {
            if !self.has_place(path) && !self.keeps_way_back(path) {
                self.release_place(path);
            }
        }
        let place = |path: &Path| Some((path.clone(), self.cluster.process(path)?.place.clone()?));
        let former: BTreeMap<Path, Place> = starting.iter().filter_map(place).collect();
        let without = starting.iter().filter(|path| !self.has_place(path)).cloned().collect();
        let found = self.find_places(without).or_else(|reason| {
            let goes_back =
                waiting.iter().any(|path| self.keeps_way_back(path)) || !going_back(self.cluster, &starting).is_empty();
            if goes_back { self.go_back(&starting, &waiting) } else { Err(reason) }
        });
        if found.is_err() {
            // Not those of others of the group, which are on the move.
            for path in &starting {
                let place = self.cluster.process(path).and_then(|process| process.place.clone());
                match (place, former.get(path)) {
                    (Some(place), Some(was)) if place == *was && self.keeps_way_back(path) => {}
                    (Some(place), Some(was)) if place == *was => self.release_place(path),
                    (_, was) => self.give_back_place(path, was),
                }
            }
        }
        found
    }

    /// Gives up what a child was found a moment ago, without a word: nobody was refused for its sake. What it had before it has again.
    fn give_back_place(&mut self, path: &Path, former: Option<&Place>) {
        self.take_place(path);
        if let Some(Place { node, session, .. }) = former {
            self.keep_place(path, node.clone(), *session);
        }
    }

    /// Finds new places for all of these and keeps them. Those with the fewest nodes to choose from choose first.
    ///
    /// # Errors
    /// What is missing. Then all is kept as before.
    pub fn find_places(&mut self, paths: Vec<Path>) -> Result<(), String> {
        self.find_places_by(paths, Self::choose_node)
    }

    fn find_places_by(
        &mut self,
        paths: Vec<Path>,
        choose: impl Fn(&Self, &Path) -> Result<(NodeName, SessionId), String>,
    ) -> Result<(), String> {
        let mut former = Vec::new();
        for path in &paths {
            former.extend(self.take_place(path).map(|(node, session)| (path.clone(), node, session)));
        }
        let mut kept = Vec::new();
        for path in self.in_order_of_choice(paths) {
            match choose(self, &path) {
                Ok((node, session)) => {
                    self.keep_place(&path, node, session);
                    kept.push(path);
                }
                Err(reason) => {
                    // Those of a moment ago are given up without a word: nobody was refused for their sake.
                    kept.iter().for_each(|path| drop(self.take_place(path)));
                    former.into_iter().for_each(|(path, node, session)| self.keep_place(&path, node, session));
                    return Err(format!("{path} has no place: {reason}"));
                }
            }
        }
        Ok(())
    }

    /// Lets those of a group that ran on drained nodes go back there, since there is no room elsewhere for all, and finds places
    /// for the rest: elsewhere, or beside those that go back, be it once this group is ready that they wait for.
    fn go_back(&mut self, starting: &[Path], waiting: &[Path]) -> Result<(), String> {
        let back: Vec<Path> = starting.iter().chain(waiting).cloned().collect();
        let without = |change: &Self| {
            let going_back = going_back(change.cluster, starting);
            let without = starting.iter().filter(|path| !going_back.contains(path) && !change.has_place(path));
            without.cloned().collect::<Vec<_>>()
        };
        let choose = |change: &Self, path: &Path| {
            let stays_with_others = beside_those_it_stays_with(change.cluster, path);
            stays_with_others.map_or_else(|| change.choose_node(path), Ok).or_else(|reason| {
                let beside = beside_its_group(change.cluster, path, &back);
                beside.filter(|_| !broken(Mutation::NothingBeside)).ok_or(reason)
            })
        };
        self.find_places_by(without(self), choose)?;
        // Where something had to go elsewhere, what stays together with it goes there too.
        self.find_places_by(without(self), choose)
    }

    fn in_order_of_choice(&self, paths: Vec<Path>) -> Vec<Path> {
        if paths.len() < 2 {
            return paths;
        }
        let mut choosing: Vec<(usize, Path)> =
            paths.into_iter().map(|path| (fitting(self.cluster, &path), path)).collect();
        // What stays together is placed in one go, so that nobody takes the room that its first member saw for all of it.
        let together = |path: &Path| outermost(self.cluster, path).unwrap_or_else(|| path.clone());
        let mut fewest: BTreeMap<Path, usize> = BTreeMap::new();
        for (nodes, path) in &choosing {
            let known = fewest.entry(together(path)).or_insert(*nodes);
            *known = (*known).min(*nodes);
        }
        choosing.sort_by_cached_key(|(nodes, path)| {
            let with = together(path);
            (fewest.get(&with).copied(), with, *nodes)
        });
        choosing.into_iter().map(|(_, path)| path).collect()
    }

    /// Whether room is kept for a child that can be used: its node takes work, and the others that it stays with are there.
    pub fn has_place(&self, path: &Path) -> bool {
        is_kept(self.cluster, path, false)
    }

    /// Room for what starts in a group, however deep in it, beside those which go back to a drained node once it is their turn: they
    /// would wait for it.
    pub fn beside_those_that_wait_for_it(&self, path: &Path) -> Option<(NodeName, SessionId)> {
        let waiting = waiting_for(self.cluster, path);
        let goes_back = waiting.iter().any(|other| goes_back_to(self.cluster, other).is_some());
        if !goes_back {
            return None;
        }
        beside_those_it_stays_with(self.cluster, path).or_else(|| beside_its_group(self.cluster, path, &waiting))
    }

    /// Whether the room that is kept for a child is on a drained node, and nothing but the drain is in the way: it goes there
    /// where no other node can take it.
    pub fn has_way_back(&self, path: &Path) -> bool {
        is_kept(self.cluster, path, true)
    }

    /// Whether room is kept for a child on a drained node, be it that others it stays with are elsewhere for now.
    pub fn keeps_way_back(&self, path: &Path) -> bool {
        kept_on(self.cluster, path, true).is_some()
    }
}

/// Whether usable room is kept for a child: on a drained node, or on one that takes work.
pub(crate) fn is_kept(cluster: &Cluster, path: &Path, on_drained: bool) -> bool {
    let Some(place) = kept_on(cluster, path, on_drained) else { return false };
    let anchor = colocation(cluster, path).and_then(|together| together.anchor);
    anchor.is_none_or(|anchor| anchor == place.node)
}

/// The room that is kept for a child under the current session of a node: of one that is drained, or of one that takes work.
fn kept_on<'a>(cluster: &'a Cluster, path: &Path, drained: bool) -> Option<&'a Place> {
    let place = cluster.process(path)?.place.as_ref()?;
    let node = cluster.nodes.get(&place.node)?;
    (node.current == Some(place.session) && node.drained == drained).then_some(place)
}

/// The drained node to which a child goes back.
fn goes_back_to<'a>(cluster: &'a Cluster, path: &Path) -> Option<&'a NodeName> {
    let runs_on = || cluster.run(path).filter(|_| broken(Mutation::BesideAnyone)).map(|run| &run.node);
    kept_on(cluster, path, true).map(|place| &place.node).or_else(runs_on)
}

/// Those of these that go back to their drained nodes, where nothing but the drain is in the way. What stays together is asked for once.
fn going_back<'a>(cluster: &Cluster, starting: &'a [Path]) -> BTreeSet<&'a Path> {
    let mut anchors: BTreeMap<Path, Option<NodeName>> = BTreeMap::new();
    let goes_back = |path: &&Path| {
        let Some(place) = kept_on(cluster, path, true) else { return false };
        let Some(by) = outermost(cluster, path) else { return true };
        let anchor =
            anchors.entry(by).or_insert_with(|| colocation(cluster, path).and_then(|together| together.anchor));
        anchor.as_ref().is_none_or(|anchor| *anchor == place.node)
    };
    starting.iter().filter(goes_back).collect()
}

/// Room on a drained node to which others go back that a child stays together with.
fn beside_those_it_stays_with(cluster: &Cluster, path: &Path) -> Option<(NodeName, SessionId)> {
    has_room_on_a_drained_node(cluster, path).then_some(())?;
    let colocation = colocation(cluster, path)?;
    first_to_return_to(cluster, path, colocation.left_behind_on())
}

/// Room on a drained node to which others of its group go back: of use for a child that stays together with nobody, or with
/// none that goes back elsewhere.
fn beside_its_group(cluster: &Cluster, path: &Path, starting: &[Path]) -> Option<(NodeName, SessionId)> {
    has_room_on_a_drained_node(cluster, path).then_some(())?;
    let colocation = colocation(cluster, path);
    if colocation.as_ref().is_some_and(|together| together.left_behind_on().next().is_some()) {
        return None;
    }
    let takes_all = |name: &NodeName| {
        let node = cluster.nodes.get(name);
        node.is_some_and(|node| colocation.as_ref().is_none_or(|together| together.obstacle(name, node).is_none()))
    };
    let back: BTreeSet<&NodeName> = starting.iter().filter_map(|other| goes_back_to(cluster, other)).collect();
    first_to_return_to(cluster, path, back.into_iter().filter(|name| takes_all(name)))
}

/// Asked first, since it takes no look at others: most of those that wait have none.
fn has_room_on_a_drained_node(cluster: &Cluster, path: &Path) -> bool {
    let mut drained = cluster.nodes.iter().filter(|(_, node)| node.drained);
    drained.any(|(name, node)| node.current.is_some_and(|session| can_return_alone(cluster, path, name, session)))
}

fn first_to_return_to<'n>(
    cluster: &Cluster,
    path: &Path,
    nodes: impl IntoIterator<Item = &'n NodeName>,
) -> Option<(NodeName, SessionId)> {
    nodes.into_iter().find_map(|name| {
        let session = cluster.nodes.get(name)?.current?;
        can_return(cluster, path, name, session).then(|| (name.clone(), session))
    })
}

/// The processes that wait until what starts at `path` is ready: of each group above it that starts its members in turn, those of
/// the members after it.
fn waiting_for(cluster: &Cluster, path: &Path) -> Vec<Path> {
    let (mut found, mut at) = (Vec::new(), path.clone());
    if broken(Mutation::NothingBeside) {
        return found;
    }
    while let Some(above) = at.parent() {
        let Some(supervisor) = cluster.supervisor(&above) else { break };
        if broken(Mutation::BesideAnyone) && supervisor.strategy.is_group() {
            found.extend(cluster.walk(&above));
        }
        if supervisor.group() == Some(&Group::Starting) {
            let after = supervisor.children.iter().map(|id| above.child(id)).skip_while(|member| *member != at).skip(1);
            for member in after.filter(|member| is_startable(cluster, member)) {
                collect(cluster, &member, &mut found);
            }
        }
        if broken(Mutation::BesideParentOnly) {
            break;
        }
        at = above;
    }
    found
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
pub(crate) fn collect(cluster: &Cluster, path: &Path, found: &mut Vec<Path>) {
    let Some(member) = cluster.member(path).filter(|member| !member.held && !member.removed) else { return };
    match &member.body {
        Body::Process(_) => found.push(path.clone()),
        Body::Supervisor(supervisor) => {
            supervisor.children.iter().for_each(|id| collect(cluster, &path.child(id), found));
        }
    }
}

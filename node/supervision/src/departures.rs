//! How a node is emptied: when it goes (SIGTERM), and when an operator drains it.
//!
//! One that goes stops what it runs, the last started of each tree first, and that starts elsewhere afterwards. One that is
//! drained stays: what runs there moves as other nodes have room, and a move is written down with its place kept before the old
//! run is asked to end. So a drain that is given up half-way leaves one copy of everything.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use imbl::OrdSet;
use pando_protocol::cause::CauseClass;
use pando_protocol::ids::{NodeName, Path, SessionId};
use pando_protocol::message::{Difference, DifferenceKind};
use pando_protocol::rejection::Rejection;
use pando_protocol::spec::{Restart, Strategy};

use crate::change::Change;
use crate::cluster::{Body, Cluster, Node, ProcessPhase, Run, Stage, StopReason, SupervisorPhase};
use crate::colocation::{colocation, has_its_last_run, is_to_run, kept_together_by};
use crate::command::EventKind;
use crate::endings::{Over, is_held_or_removed};
use crate::groups::{is_startable, restarting_with};
use crate::mutation::{Mutation, broken};
use crate::placement::{choose, lacking_labels, nodes_that_fit};

impl Change<'_> {
    /// A node says that it goes: it gets no more work, and what it runs stops.
    pub fn leaving(&mut self, name: &NodeName, id: SessionId) {
        let Some(session) = self.session(name, id) else { return };
        session.leaving = true;
        let runs: Vec<Path> = session.assigned.iter().cloned().collect();
        for path in &runs {
            self.worker_stops(path);
        }
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

    /// Gives a node no more work and moves what runs there. Lists what is to move, what has its next run there for lack of another
    /// place, and what has left and is not ready again: the same when it is said again.
    pub fn drain(&mut self, name: &NodeName) -> Result<Vec<Difference>, Rejection> {
        let known = self.known_node(name)?;
        let was_drained = known.drained;
        let mut moves: BTreeSet<Path> = runs_on(known).into_iter().collect();
        if !broken(Mutation::DrainNamesRunsOnly) {
            moves.extend(goes_to(self.cluster, known));
        }
        if !was_drained {
            self.node(name).drained = true; // Places that are kept there are ways back from here on.
            let text = format!("{name} is drained: {} children are to move to other nodes", moves.len());
            self.event(EventKind::NodeDrained, None, Some(name), text);
        }
        let paths = self.cluster.members.keys().filter(|path| is_missed_since_it_left(self.cluster, path, name));
        moves.extend(paths.cloned());
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
        if known.leases() > 0 && !broken(Mutation::DeadByWordAlone) {
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
        let (temporary, lasting): (Vec<Path>, Vec<Path>) =
            runs.into_iter().partition(|path| is_temporary(self.cluster, path));
        let mut without_room = BTreeSet::new();
        for path in lasting {
            self.move_away(&path, &mut without_room);
        }
        let mut left_on = BTreeMap::new();
        for path in temporary {
            self.end_with_its_group(&path, &mut left_on);
        }
    }

    /// Asks a temporary run to end, once nothing of its group is to go on where it is: it is never started again, so it needs no place,
    /// and has nobody to wait for where it is on its own. `left_on` is where others were found to be already.
    fn end_with_its_group(&mut self, path: &Path, left_on: &mut BTreeMap<Path, BTreeSet<NodeName>>) {
        let Some(run) = self.cluster.run(path).filter(|run| is_staying(self.cluster, run)) else { return };
        if !goes_on(self.cluster, path) || self.is_taken_down_with(path) {
            return;
        }
        let beside = group_of(self.cluster, path);
        let left_on =
            beside.map(|group| &*left_on.entry(group.clone()).or_insert_with(|| left_of(self.cluster, &group)));
        let ends = match left_on {
            Some(nodes) => !nodes.contains(&run.node) && !broken(Mutation::TemporaryIsLeft),
            None => true,
        };
        if ends || broken(Mutation::TemporaryEndsFirst) {
            self.take_away(path, StopReason::Drain);
        }
    }

    /// Keeps places elsewhere for a run and for all that has to go along; then asks it to end. Does nothing where there is no room
    /// for all of them: [`what_a_move_waits_for`] says so, and what moves as one is tried once.
    fn move_away(&mut self, path: &Path, without_room: &mut BTreeSet<Path>) {
        let is_here = self.cluster.run(path).is_some_and(|run| is_staying(self.cluster, run));
        if !is_here || !goes_on(self.cluster, path) || self.is_taken_down_with(path) {
            return;
        }
        let whole = moves_as_one(self.cluster, path);
        if whole.as_ref().is_some_and(|whole| without_room.contains(whole)) {
            return;
        }
        if !self.has_place(path) && self.choose_node(path).is_err() {
            without_room.extend(whole);
            return;
        }
        let Moving { leaving, needing } = moving_with(self.cluster, path);
        let needing = if broken(Mutation::MovesAlone) { vec![path.clone()] } else { needing };
        let needing: Vec<Path> = needing.into_iter().filter(|path| !self.has_place(path)).collect();
        if self.find_places(needing).is_err() {
            without_room.extend(whole);
            return;
        }
        for path in &leaving {
            self.take_away(path, StopReason::Drain);
        }
    }
}

/// What wholes miss that move as one, by what makes them one: asked for once, and not once for each run.
#[derive(Default)]
pub(crate) struct Missing {
    /// Why a node cannot take those that stay together.
    together: BTreeMap<Path, BTreeMap<NodeName, String>>,
    /// What others miss where a run would have room on its own.
    others: BTreeMap<Path, String>,
}

impl Missing {
    fn of_those_it_stays_with(&mut self, cluster: &Cluster, path: &Path) -> BTreeMap<NodeName, String> {
        let Some(by) = kept_together_by(cluster, path) else { return BTreeMap::new() };
        let ask = || {
            let Some(together) = colocation(cluster, path) else { return BTreeMap::new() };
            let nodes = cluster.nodes.iter();
            nodes.filter_map(|(name, node)| Some((name.clone(), together.obstacle(name, node)?))).collect()
        };
        self.together.entry(by).or_insert_with(ask).clone()
    }
}

/// What a run on a drained node waits for; `None` where it waits for nothing.
pub(crate) fn what_a_move_waits_for(cluster: &Cluster, path: &Path, known: &mut Missing) -> Option<String> {
    let run = cluster.run(path).filter(|run| run.stopping.is_none())?;
    cluster.nodes.get(&run.node).filter(|node| node.drained)?;
    if let Some(group) = group_of(cluster, path).filter(|_| is_temporary(cluster, path)) {
        return Some(format!("the rest of {group} to leave {}, which is drained: it ends then", run.node));
    }
    let together = known.of_those_it_stays_with(cluster, path);
    let fits = nodes_that_fit(cluster, cluster.process(path)?, |name, _| together.get(name).cloned());
    let reason = match (fits, moves_as_one(cluster, path)) {
        (Err(reason), _) => reason,
        (Ok(_), None) => what_others_miss(cluster, path),
        (Ok(_), Some(whole)) => known.others.entry(whole).or_insert_with(|| what_others_miss(cluster, path)).clone(),
    };
    Some(format!("room to leave {}, which is drained: {reason}", run.node))
}

/// What those miss that have to go along with a run which would have room on its own.
fn what_others_miss(cluster: &Cluster, path: &Path) -> String {
    let needing = moving_with(cluster, path).needing;
    match needing.iter().find_map(|with| Some((with, choose(cluster, with).err()?))) {
        Some((with, reason)) => format!("{with} has to go along, and {reason}"),
        None => format!("no room for all {} that have to move together", needing.len()),
    }
}

fn is_temporary(cluster: &Cluster, path: &Path) -> bool {
    cluster.member(path).is_some_and(|member| member.restart == Restart::Temporary)
}

/// Whether a run is not asked to end yet. What is unreachable moves once its node is back: till then a place would be kept for nobody.
fn is_staying(cluster: &Cluster, run: &Run) -> bool {
    run.stopping.is_none() && !cluster.is_unreachable(run)
}

/// The outermost supervisor above a child that makes it stand and fall, or stay together, with others.
fn group_of(cluster: &Cluster, path: &Path) -> Option<Path> {
    let binds =
        |above: &Path| cluster.supervisor(above).is_some_and(|above| above.strategy.is_group() || above.colocate);
    std::iter::successors(path.parent(), Path::parent).filter(binds).last()
}

/// The drained nodes on which something below a supervisor is to go on, for lack of a place elsewhere. What is temporary is there for
/// its sake.
fn left_of(cluster: &Cluster, group: &Path) -> BTreeSet<NodeName> {
    let below = cluster.walk(group);
    let lasting = below.iter().filter(|path| !is_temporary(cluster, path) && !is_held_or_removed(cluster, path));
    let stays_on = |path: &Path| {
        let process = cluster.process(path)?;
        let (node, session) = match (&process.place, &process.phase) {
            (Some(place), _) => (&place.node, place.session),
            (None, ProcessPhase::Assigned(run)) => match run.stopping {
                Some(StopReason::Drain | StopReason::Shutdown | StopReason::Operator | StopReason::Removed) => {
                    return None;
                }
                Some(StopReason::Group | StopReason::Supervisor | StopReason::Restart | StopReason::Update) | None => {
                    (&run.node, run.session)
                }
            },
            (None, ProcessPhase::Pending(_) | ProcessPhase::Down(_)) => return None,
        };
        let known = cluster.nodes.get(node)?;
        (known.drained && known.current == Some(session)).then(|| node.clone())
    };
    lasting.filter_map(stays_on).collect()
}

/// What makes a run move with others, whichever of those asks: what it stays together with, or its group where each member takes
/// all others along. `None` where others may move without it.
fn moves_as_one(cluster: &Cluster, path: &Path) -> Option<Path> {
    let takes_all = |above: &Path| cluster.supervisor(above).is_some_and(|above| above.strategy == Strategy::OneForAll);
    kept_together_by(cluster, path).or_else(|| path.parent().filter(takes_all))
}

/// What a move off a drained node takes.
struct Moving {
    /// The runs that leave together.
    leaving: BTreeSet<Path>,
    /// The processes that need places first: these, and what their groups take down that cannot start again where it is.
    needing: Vec<Path>,
}

/// The run at `path`, all on drained nodes that stays together with it, and all that the groups of these take along; and so on,
/// for each that joins. What stays together and does not run yet needs its place there too.
fn moving_with(cluster: &Cluster, path: &Path) -> Moving {
    let (mut leaving, mut needing) = (BTreeSet::new(), BTreeSet::new());
    // Whose others have joined: what stays together, and what a group takes along, is walked once and not for each of it.
    let (mut together, mut taken_along) = (BTreeSet::new(), BTreeSet::new());
    let mut joining = vec![path.clone()];
    while let Some(path) = joining.pop() {
        if !leaving.insert(path.clone()) {
            continue;
        }
        if is_temporary(cluster, &path) {
            continue; // It is never started again, and takes nobody along.
        }
        needing.insert(path.clone());
        if let Some(by) = kept_together_by(cluster, &path).filter(|by| together.insert(by.clone())) {
            let (leave, stay): (Vec<Path>, Vec<Path>) =
                cluster.walk(&by).into_iter().partition(|below| is_to_leave(cluster, below));
            // The first is looked at first: its group takes along what those of the later ones do.
            joining.extend(leave.into_iter().rev());
            let starts = |below: &Path| is_to_run(cluster, below) && !has_its_last_run(cluster, below);
            needing.extend(stay.into_iter().filter(|below| starts(below) && !stays_or_has_place(cluster, below)));
        }
        if taken_along.contains(&path) {
            continue; // With one before it.
        }
        for with in restarting_with(cluster, &path) {
            if !stays_or_has_place(cluster, &with) {
                if is_to_leave(cluster, &with) {
                    joining.push(with.clone());
                }
                needing.insert(with.clone());
            }
            taken_along.insert(with);
        }
    }
    Moving { leaving, needing: needing.into_iter().collect() }
}

/// Whether a run goes on, on a node that is drained.
fn is_to_leave(cluster: &Cluster, path: &Path) -> bool {
    let run = cluster.run(path).filter(|run| run.stopping.is_none());
    run.and_then(|run| cluster.nodes.get(&run.node)).is_some_and(|node| node.drained) && goes_on(cluster, path)
}

/// Whether the next run of a process has room without our doing: where it runs, or where it is kept.
fn stays_or_has_place(cluster: &Cluster, path: &Path) -> bool {
    let Some(process) = cluster.process(path) else { return true };
    let takes_work =
        |node, session| cluster.nodes.get(node).is_some_and(|node| !node.drained && node.current == Some(session));
    let place = process.place.as_ref().is_some_and(|place| takes_work(&place.node, place.session));
    place || cluster.run(path).is_some_and(|run| takes_work(&run.node, run.session))
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

/// Whether a child that is to run was last seen on a node, did not go down with it, and is not ready again. Not one that waits for
/// what the node never had.
fn is_missed_since_it_left(cluster: &Cluster, path: &Path, name: &NodeName) -> bool {
    let (Some(member), Some(process)) = (cluster.member(path), cluster.process(path)) else { return false };
    let could_run_there = || {
        cluster
            .nodes
            .get(name)
            .is_some_and(|node| lacking_labels(node, &process.spec).is_none() && process.spec.slots <= node.slots)
    };
    let is_missing = match &process.phase {
        ProcessPhase::Pending(_) => could_run_there(),
        ProcessPhase::Down(_) => is_startable(cluster, path) && could_run_there(),
        ProcessPhase::Assigned(run) => run.node != *name && !matches!(run.stage, Stage::Ready { .. }),
    };
    if !is_missing || !is_to_start(cluster, path) {
        return false;
    }
    // Not the last in the book: a crash that messages were accused of is charged late.
    let endings = member.history.iter().filter_map(|entry| entry.cause.innermost());
    let last = endings.max_by_key(|ending| ending.incarnation);
    last.is_some_and(|last| last.node.as_ref() == Some(name) && last.class != CauseClass::NodeLost)
}

/// Whether a child runs or will: at once, in its turn, or with a supervisor above it that starts again.
fn is_to_start(cluster: &Cluster, path: &Path) -> bool {
    let root = cluster.supervisor(&Path::root(&path.tree()));
    is_to_run(cluster, path) && root.is_some_and(|root| !matches!(root.phase, SupervisorPhase::Failed(_)))
}

/// Those for whose next runs a node keeps room; also what had ended, and starts again with its group.
fn goes_to(cluster: &Cluster, node: &Node) -> Vec<Path> {
    let kept = node.sessions.values().flat_map(|session| session.kept.iter());
    kept.filter(|path| !is_held_or_removed(cluster, path)).cloned().collect()
}

fn runs_on(node: &Node) -> Vec<Path> {
    node.sessions.values().flat_map(|session| session.assigned.iter().cloned()).collect()
}

/// The last in start order of those at or below `path` that are among these.
fn last_of(cluster: &Cluster, path: &Path, among: &OrdSet<Path>) -> Option<Path> {
    match &cluster.member(path)?.body {
        Body::Process(_) => among.contains(path).then(|| path.clone()),
        Body::Supervisor(supervisor) => {
            let children = supervisor.children.iter().rev().map(|id| path.child(id));
            children.filter(|child| any_within(among, child)).find_map(|child| last_of(cluster, &child, among))
        }
    }
}

fn any_within(among: &OrdSet<Path>, path: &Path) -> bool {
    let mut from = among.range(path.clone()..).take_while(|other| other.as_str().starts_with(path.as_str()));
    from.any(|other| other.is_within(path))
}

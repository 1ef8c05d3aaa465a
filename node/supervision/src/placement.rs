//! Where a child runs: a pure function of the state, in phases.
//!
//! Required labels, then capacity, for all that stays together on one node; among those that have both the best by: not refused in this round, preferred labels, penalty
//! of failed starts (these order, they never exclude), spread, fewest children, node name.

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::time::Duration;

use pando_protocol::ids::{Incarnation, NodeName, Path, SessionId};
use pando_protocol::spec::{Label, OnDisconnect, ProcessSpec, Strategy};

use crate::change::Change;
use crate::cluster::{
    Body, Cluster, DownReason, Group, Node, Process, ProcessPhase, Refusal, Run, Stage, Supervisor, SupervisorPhase,
};
use crate::colocation::{colocation, outermost};
use crate::command::EventKind;
use crate::mutation::{Mutation, broken};

/// The time in which a penalty halves.
const PENALTY_HALVES: Duration = Duration::from_secs(60);

impl Refusal {
    /// How many failed starts still count at `now`.
    pub fn count_at(&self, now: Duration) -> u32 {
        let halvings = now.saturating_sub(self.at).as_secs() / PENALTY_HALVES.as_secs();
        self.count.checked_shr(u32::try_from(halvings).unwrap_or(u32::MAX)).unwrap_or(0)
    }
}

impl Change<'_> {
    /// Places every child that may be placed now: those that began to wait, and all that wait where room was freed.
    pub fn place_waiting(&mut self) {
        let now = self.now();
        loop {
            while let Some((_, path)) = self.to_place.pop_first() {
                self.place(&path);
            }
            // A group that finds that one of its places is missing gives up the others, and so frees room.
            if !std::mem::take(&mut self.room_changed) {
                return;
            }
            for (_, path) in self.cluster.pending.clone() {
                if self.cluster.pending_at(&path).is_some_and(|pending| pending.not_before <= now) {
                    self.place(&path);
                }
            }
            self.go_on_draining();
        }
    }

    fn place(&mut self, path: &Path) {
        let placed = match self.cluster.process(path) {
            Some(_) => self.place_process(path),
            None => self.place_group(path),
        };
        let Err(reason) = placed else { return };
        let Some(pending) = self.cluster.pending_at(path) else { return };
        if pending.waits_for.as_ref() == Some(&reason) {
            return;
        }
        match &mut self.member(path).body {
            Body::Process(Process { phase: ProcessPhase::Pending(pending), .. })
            | Body::Supervisor(Supervisor {
                phase: SupervisorPhase::Up { group: Group::Pending { pending, .. }, .. },
                ..
            }) => pending.waits_for = Some(reason.clone()),
            Body::Process(_) | Body::Supervisor(_) => {}
        }
        self.event(EventKind::ChildWaiting, Some(path), None, format!("{path} waits: {reason}"));
    }

    fn place_process(&mut self, path: &Path) -> Result<(), String> {
        let (has_place, has_way_back) = (self.has_place(path), self.has_way_back(path));
        let keeps_way_back = self.keeps_way_back(path);
        let kept = self.take_place(path);
        let (node, session) = match kept {
            Some(kept) if has_place => kept,
            kept => match (self.choose_node(path), kept) {
                (Err(reason), Some((node, session))) if keeps_way_back && !has_way_back => {
                    self.keep_place(path, node, session); // Others that it stays with are elsewhere, for now.
                    return Err(reason);
                }
                (chosen, kept) => {
                    // Room is free that was kept; and it may leave on its own where all of its group could not.
                    self.room_changed |= kept.is_some();
                    let back = || kept.filter(|_| has_way_back).or_else(|| self.beside_those_that_wait_for_it(path));
                    chosen.or_else(|reason| back().ok_or(reason))?
                }
            },
        };
        self.room_changed |= self.is_drained(&node); // It may be free to leave already.
        self.stop_waiting(path);
        self.assign(path, node, session, None, Duration::ZERO);
        Ok(())
    }

    /// Whether a node that did not refuse a child in this round could take it, and the group that would have to go along.
    pub fn could_start_elsewhere(&self, path: &Path) -> bool {
        could_start_elsewhere(self.cluster, path)
    }

    /// The node that should run a child, or what it waits for.
    pub fn choose_node(&self, path: &Path) -> Result<(NodeName, SessionId), String> {
        choose(self.cluster, path)
    }

    /// Whether a child whose run ended can be restarted where it ran: on a drained node only where no other could take it. A
    /// move may wait for room, a restart must not.
    pub fn can_stay(&self, path: &Path, run: &Run) -> bool {
        self.can_return(path, run) && (!self.is_drained(&run.node) || self.choose_node(path).is_err())
    }

    /// Whether the node where a run ended can take the next one, drained or not.
    pub fn can_return(&self, path: &Path, run: &Run) -> bool {
        can_return(self.cluster, path, &run.node, run.session)
    }

    /// Whether a node is drained.
    pub fn is_drained(&self, name: &NodeName) -> bool {
        self.cluster.nodes.get(name).is_some_and(|node| node.drained)
    }

    /// Gives a child its next incarnation on a node.
    pub fn assign(
        &mut self,
        path: &Path,
        node: NodeName,
        session: SessionId,
        after: Option<Incarnation>,
        wait: Duration,
    ) {
        let incarnation = Incarnation(self.cluster.head.next_incarnation);
        if !broken(Mutation::IncarnationsReused) || incarnation.0 < 40 {
            self.cluster.head.next_incarnation += 1;
        }
        let since = self.now();
        self.take_place(path);
        let spec = &self.process(path).spec;
        let (slots, keep) = (spec.slots, spec.on_disconnect == OnDisconnect::Keep);
        let run = Run {
            incarnation,
            node: node.clone(),
            session,
            after,
            delay: wait,
            slots,
            since,
            stage: Stage::Assigned,
            stopping: None,
            keep,
        };
        self.process(path).phase = ProcessPhase::Assigned(run);
        if let Some(session) = self.session(&node, session) {
            session.assigned.insert(path.clone());
            session.used = session.used.saturating_add(slots);
            session.revision += 1;
        }
        let when =
            if wait.is_zero() { String::new() } else { format!(", starts after {}", crate::change::human(wait)) };
        let text = format!("{path} → {node} as incarnation {incarnation}{when}");
        self.event(EventKind::ChildAssigned, Some(path), Some(&node), text);
    }
}

/// The node that should run the child at `path`, with its session; or what the child waits for, in a sentence that names the
/// nodes and what each lacks. Room that is kept for others is taken.
pub fn choose(cluster: &Cluster, path: &Path) -> Result<(NodeName, SessionId), String> {
    let Some(process) = cluster.process(path) else { return Err("it is no process".into()) };
    let colocation = LazyCell::new(|| colocation(cluster, path)); // Where no node has room, none needs to be asked about others.
    let together =
        |name: &NodeName, node: &Node| colocation.as_ref().and_then(|together| together.obstacle(name, node));
    let fits = nodes_that_fit(cluster, process, together)?;
    let siblings = spread_counts(cluster, path, &process.spec);
    // Where a node is chosen for all of a group, the wishes of all count.
    let all = match &*colocation {
        Some(colocation) if colocation.is_open() => colocation.to_come.clone(),
        Some(_) | None => vec![process],
    };
    let best = fits.into_iter().min_by_key(|(name, node)| rank(cluster, name, node, &all, &siblings));
    let chosen = best.and_then(|(name, node)| Some((name.clone(), node.current?)));
    chosen.ok_or_else(|| "no node is up".into())
}

/// Whether a node that did not refuse a child in this round can take it now, and nobody has to go along.
pub(crate) fn fits_elsewhere_alone(cluster: &Cluster, path: &Path) -> bool {
    let Some(process) = cluster.process(path) else { return false };
    let colocation = colocation(cluster, path);
    let together = |name: &NodeName, node: &Node| colocation.as_ref()?.obstacle(name, node);
    let fits = nodes_that_fit(cluster, process, together).unwrap_or_default();
    fits.into_iter().any(|(name, _)| !process.refused_by.contains(name))
}

/// The nodes that can take a process, where `together` says why one cannot for the sake of those that it stays with; or what each
/// lacks.
pub(crate) fn nodes_that_fit<'a>(
    cluster: &'a Cluster,
    process: &Process,
    together: impl Fn(&NodeName, &Node) -> Option<String>,
) -> Result<Vec<(&'a NodeName, &'a Node)>, String> {
    let (mut fits, mut lacks) = (Vec::new(), Vec::new());
    for (name, node) in &cluster.nodes {
        match obstacle(node, process).or_else(|| together(name, node)) {
            None => fits.push((name, node.as_ref())),
            Some(what) => lacks.push(format!("{name} {what}")),
        }
    }
    match (fits.is_empty(), lacks.is_empty()) {
        (false, _) => Ok(fits),
        (true, true) => Err("no node has joined yet".into()),
        (true, false) => Err(format!("no node can take it: {}", shortened(&lacks))),
    }
}

/// Whether a node could take the child at `path` under this session, were it not drained.
pub(crate) fn can_return(cluster: &Cluster, path: &Path, name: &NodeName, session: SessionId) -> bool {
    let node = || cluster.nodes.get(name);
    let is_apart = |node| colocation(cluster, path).is_some_and(|all| all.obstacle_to_return(name, node).is_some());
    can_return_alone(cluster, path, name, session) && node().is_some_and(|node| !is_apart(node))
}

/// The same, wherever others are that the child stays together with: those may come back, too.
pub(crate) fn can_return_alone(cluster: &Cluster, path: &Path, name: &NodeName, session: SessionId) -> bool {
    let Some(node) = cluster.nodes.get(name).filter(|node| node.current == Some(session)) else { return false };
    let Some(process) = cluster.process(path) else { return false };
    has_labels(node, &process.spec) && has_room(node, &process.spec)
}

/// How many nodes could take the child at `path` now.
pub(crate) fn fitting(cluster: &Cluster, path: &Path) -> usize {
    let Some(process) = cluster.process(path) else { return 0 };
    cluster.nodes.values().filter(|node| obstacle(node, process).is_none()).count()
}

/// Why a node cannot take a child; `None` where it can.
fn obstacle(node: &Node, process: &Process) -> Option<String> {
    let spec = &process.spec;
    if node.current.is_none() {
        return Some("is down".into());
    }
    if node.drained && !broken(Mutation::DrainIgnored) {
        return Some("is drained".into());
    }
    if let Some(lacks) = lacking_labels(node, spec) {
        return Some(lacks);
    }
    if !has_room(node, spec) {
        return Some(format!("has {} of {} slots free, {} needed", free(node), node.slots, spec.slots));
    }
    None
}

/// Which labels a node lacks that a child requires; `None` where it has them all.
pub(crate) fn lacking_labels(node: &Node, spec: &ProcessSpec) -> Option<String> {
    if has_labels(node, spec) {
        return None;
    }
    let missing: Vec<_> = spec.place.require.difference(&node.labels).map(ToString::to_string).collect();
    Some(format!("lacks the label {}", missing.join(" and ")))
}

/// The slots that are neither taken nor kept for somebody.
pub(crate) fn free(node: &Node) -> u64 {
    u64::from(node.slots).saturating_sub(used(node))
}

fn could_start_elsewhere(cluster: &Cluster, path: &Path) -> bool {
    let Some(process) = cluster.process(path) else { return false };
    let Some(moving) = moving_along(cluster, path) else { return false };
    let all = || moving.iter().filter_map(|path| cluster.process(path)).chain([process]);
    let needed: u64 = all().map(|process| u64::from(process.spec.slots)).sum();
    cluster.nodes.iter().any(|(name, node)| {
        let theirs = moving.iter().filter_map(|path| cluster.run(path)).filter(|run| run.node == *name);
        let room = free(node) + theirs.map(|run| u64::from(run.slots)).sum::<u64>();
        let refused = process.refused_by.contains(name);
        let fits = needed <= room && all().all(|process| has_labels(node, &process.spec));
        node.current.is_some() && !node.drained && !refused && fits
    })
}

/// The other processes that go along when a child has to go to another node, because they stay together; `None` where some of
/// those would go on where they are, so that the child cannot go either.
fn moving_along(cluster: &Cluster, path: &Path) -> Option<Vec<Path>> {
    let Some(by) = outermost(cluster, path) else { return Some(Vec::new()) };
    let parent = path.parent()?;
    let supervisor = cluster.supervisor(&parent)?;
    let at = supervisor.children.iter().position(|id| id.as_str() == path.name())?;
    let restarting = match supervisor.strategy {
        Strategy::OneForOne => at..at + 1,
        Strategy::OneForAll => 0..supervisor.children.len(),
        Strategy::RestForOne => at..supervisor.children.len(),
    };
    let restarting: Vec<Path> = supervisor.children[restarting].iter().map(|id| parent.child(id)).collect();
    let mut moving = Vec::new();
    for below in cluster.walk(&by).into_iter().filter(|below| below != path) {
        let Some(process) = cluster.process(&below) else { continue };
        match &process.phase {
            ProcessPhase::Down(DownReason::Held | DownReason::Finished | DownReason::Rule) => continue,
            ProcessPhase::Assigned(run) if run.stopping.is_none() => {
                if !restarting.iter().any(|member| below.is_within(member)) {
                    return None;
                }
            }
            ProcessPhase::Assigned(_) | ProcessPhase::Pending(_) | ProcessPhase::Down(DownReason::Supervisor) => {}
        }
        moving.push(below);
    }
    Some(moving)
}

fn has_labels(node: &Node, spec: &ProcessSpec) -> bool {
    broken(Mutation::LabelsIgnored) || spec.place.require.is_subset(&node.labels)
}

fn has_room(node: &Node, spec: &ProcessSpec) -> bool {
    broken(Mutation::SlotsIgnored) || used(node) + u64::from(spec.slots) <= u64::from(node.slots)
}

/// The slots that are taken. Children of an older session of the node may still run and take room of it too.
fn used(node: &Node) -> u64 {
    node.sessions.values().map(|session| u64::from(session.used)).sum()
}

/// Siblings with the same spread key, by the value of that label on their nodes: those where they run next, where that is chosen
/// already, since several that get their places together, or leave a node together, would not see one another.
fn spread_counts(cluster: &Cluster, path: &Path, spec: &ProcessSpec) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    let Some(key) = spec.place.spread.as_ref().filter(|_| !broken(Mutation::SpreadIgnored)) else { return counts };
    let Some((parent, supervisor)) =
        path.parent().and_then(|parent| Some((parent.clone(), cluster.supervisor(&parent)?)))
    else {
        return counts;
    };
    for id in &supervisor.children {
        let sibling = parent.child(id);
        let Some(Body::Process(process)) = cluster.member(&sibling).map(|member| &member.body) else { continue };
        let runs_on = cluster.run(&sibling).map(|run| &run.node);
        let place = process.place.as_ref().filter(|_| !broken(Mutation::SpreadSeesRunsOnly)).map(|place| &place.node);
        if sibling != *path
            && process.spec.place.spread.as_ref() == Some(key)
            && let Some(node) = place.or(runs_on).and_then(|name| cluster.nodes.get(name))
        {
            *counts.entry(label_value(node, key)).or_default() += 1;
        }
    }
    counts
}

type Rank = (bool, std::cmp::Reverse<usize>, u32, u32, usize, NodeName);

fn rank(cluster: &Cluster, name: &NodeName, node: &Node, all: &[&Process], siblings: &BTreeMap<String, u32>) -> Rank {
    let preferred = all.iter().map(|process| process.spec.place.prefer.intersection(&node.labels).count()).sum();
    let penalties = all.iter().filter_map(|process| process.refusals.get(name));
    let penalty = penalties.map(|refusal| refusal.count_at(cluster.head.now)).fold(0, u32::saturating_add);
    let spread = all.first().and_then(|process| process.spec.place.spread.as_ref());
    let crowd = spread.and_then(|key| siblings.get(&label_value(node, key))).copied().unwrap_or(0);
    let children = node.sessions.values().map(|session| session.assigned.len() + session.kept.len()).sum();
    let refused = all.iter().any(|process| process.refused_by.contains(name));
    (refused, std::cmp::Reverse(preferred), penalty, crowd, children, name.clone())
}

/// Nodes without the label count as one place of their own.
fn label_value(node: &Node, key: &str) -> String {
    node.labels.iter().find(|label: &&Label| label.key == key).map(|label| label.value.clone()).unwrap_or_default()
}

fn shortened(reasons: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown = reasons.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if reasons.len() > SHOWN { format!("{shown} and {} more", reasons.len() - SHOWN) } else { shown }
}

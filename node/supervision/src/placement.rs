//! Where a child runs: a pure function of the state, in phases.
//!
//! Required labels, then capacity; among those that have both the best by: not refused in this round, preferred labels, penalty
//! of failed starts (these order, they never exclude), spread, fewest children, node name.

use std::collections::BTreeMap;
use std::time::Duration;

use pando_protocol::ids::{Incarnation, NodeName, Path, SessionId};
use pando_protocol::spec::{Label, ProcessSpec};

use crate::change::Change;
use crate::cluster::{Body, Cluster, Node, Process, ProcessPhase, Refusal, Run, Stage};
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
        while let Some((_, path)) = self.to_place.pop_first() {
            self.place(&path);
        }
        if !std::mem::take(&mut self.room_changed) {
            return;
        }
        for (_, path) in self.cluster.pending.clone() {
            let ProcessPhase::Pending(pending) = &self.process(&path).phase else { continue };
            if pending.not_before <= now {
                self.place(&path);
            }
        }
    }

    fn place(&mut self, path: &Path) {
        match self.choose_node(path) {
            Ok((node, session)) => {
                self.stop_waiting(path);
                self.assign(path, node, session, None, Duration::ZERO);
            }
            Err(reason) => {
                let ProcessPhase::Pending(pending) = &mut self.process(path).phase else { return };
                if pending.waits_for.as_ref() == Some(&reason) {
                    return;
                }
                pending.waits_for = Some(reason.clone());
                self.event(EventKind::ChildWaiting, Some(path), None, format!("{path} waits: {reason}"));
            }
        }
    }

    /// The node that should run a child, or what it waits for.
    pub fn choose_node(&self, path: &Path) -> Result<(NodeName, SessionId), String> {
        choose(self.cluster, path)
    }

    /// Whether a child whose run ended can be restarted where it ran.
    pub fn can_stay(&self, path: &Path, run: &Run) -> bool {
        let Some(node) = self.cluster.nodes.get(&run.node) else { return false };
        let Some(process) = self.cluster.process(path) else { return false };
        node.current == Some(run.session) && has_labels(node, &process.spec) && has_room(node, &process.spec)
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
        let slots = self.process(path).spec.slots;
        let stage = Stage::Assigned;
        let run =
            Run { incarnation, node: node.clone(), session, after, delay: wait, slots, since, stage, stopping: None };
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
/// nodes and what each lacks.
pub fn choose(cluster: &Cluster, path: &Path) -> Result<(NodeName, SessionId), String> {
    let Some(process) = cluster.process(path) else { return Err("it is no process".into()) };
    let mut fits = Vec::new();
    let mut lacks = Vec::new();
    for (name, node) in &cluster.nodes {
        match obstacle(node, process) {
            None => fits.push((name, node)),
            Some(what) => lacks.push(format!("{name} {what}")),
        }
    }
    let siblings = spread_counts(cluster, path, &process.spec);
    let best = fits.into_iter().min_by_key(|(name, node)| rank(cluster, name, node, process, &siblings));
    match best {
        Some((name, node)) => node.current.map(|session| (name.clone(), session)).ok_or_else(|| "no node is up".into()),
        None if lacks.is_empty() => Err("no node has joined yet".into()),
        None => Err(format!("no node can take it: {}", shortened(&lacks))),
    }
}

/// Why a node cannot take a child; `None` where it can.
fn obstacle(node: &Node, process: &Process) -> Option<String> {
    let spec = &process.spec;
    if node.current.is_none() {
        return Some("is down".into());
    }
    if !has_labels(node, spec) {
        let missing: Vec<_> = spec.place.require.difference(&node.labels).map(ToString::to_string).collect();
        return Some(format!("lacks the label {}", missing.join(" and ")));
    }
    if !has_room(node, spec) {
        return Some(format!(
            "has {} of {} slots free, {} needed",
            u64::from(node.slots).saturating_sub(used(node)),
            node.slots,
            spec.slots
        ));
    }
    None
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

/// Siblings with the same spread key, by the value of that label on their nodes.
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
        let ProcessPhase::Assigned(run) = &process.phase else { continue };
        if sibling != *path
            && process.spec.place.spread.as_ref() == Some(key)
            && let Some(node) = cluster.nodes.get(&run.node)
        {
            *counts.entry(label_value(node, key)).or_default() += 1;
        }
    }
    counts
}

type Rank = (bool, std::cmp::Reverse<usize>, u32, u32, usize, NodeName);

fn rank(cluster: &Cluster, name: &NodeName, node: &Node, process: &Process, siblings: &BTreeMap<String, u32>) -> Rank {
    let place = &process.spec.place;
    let preferred = place.prefer.intersection(&node.labels).count();
    let penalty = process.refusals.get(name).map_or(0, |refusal| refusal.count_at(cluster.head.now));
    let crowd = place.spread.as_ref().and_then(|key| siblings.get(&label_value(node, key))).copied().unwrap_or(0);
    let children = node.sessions.values().map(|session| session.assigned.len()).sum();
    let refused = process.refused_by.contains(name);
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

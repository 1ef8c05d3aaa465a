//! Nodes: their sessions, what their runners report, and what their loss means.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pando_protocol::ids::{Incarnation, NodeName, Path, SessionId};
use pando_protocol::rejection::Rejection;
use pando_protocol::session::{Observation, SessionRequest};

use crate::change::Change;
use crate::cluster::{Node, ProcessPhase, Run, Session, Stage, StopReason};
use crate::command::{Done, EndProof, EventKind, Outcome};
use crate::endings::Over;
use crate::mutation::{Mutation, broken};
use crate::restarts::dice;

/// Nodes that a cluster can know.
pub const MAX_NODES: usize = 10_000;
/// Starts of one loss that are not held back.
const FREE_STARTS: usize = 50;
/// The pause between two starts beyond those, over the whole cluster: 50 a second.
const BRAKE_STEP: Duration = Duration::from_millis(20);
/// The most by which such a start is moved at random.
const BRAKE_JITTER_MS: u64 = 1_000;

impl Change<'_> {
    /// A runner asks for a session: grants it, and ends those that it proves over.
    pub fn grant_session(&mut self, request: SessionRequest) -> Outcome {
        let SessionRequest { node: name, nonce, address, role, labels, slots, pid, proven_over } = request;
        if let Some(node) = self.cluster.nodes.get(&name)
            && let Some(current) = node.current
            && node.sessions.get(&current).is_some_and(|session| session.nonce == nonce)
        {
            return Ok(Done::Granted(current));
        }
        if !self.cluster.nodes.contains_key(&name) && self.cluster.nodes.len() >= MAX_NODES {
            let what = format!("{} nodes", self.cluster.nodes.len() + 1);
            return Err(Rejection::TooMany { what, limit: MAX_NODES as u64 });
        }
        for over in proven_over {
            self.end_session(&name, over, "its processes are proven gone");
        }
        let id = SessionId(self.cluster.head.next_session);
        self.cluster.head.next_session += 1;
        let session = Session {
            nonce,
            since: self.now(),
            observed: 0,
            leaving: false,
            assigned: Default::default(),
            used: 0,
            revision: 0,
        };
        let (mut sessions, mut losses) = (BTreeMap::new(), 0);
        if let Some(known) = self.cluster.nodes.get(&name) {
            sessions = known.sessions.clone();
            losses = known.losses;
        }
        sessions.insert(id, session);
        let node = Node {
            address,
            role,
            labels: labels.into_iter().collect(),
            slots,
            pid,
            current: Some(id),
            sessions,
            losses,
        };
        self.cluster.nodes.insert(name.clone(), Arc::new(node));
        self.room_changed = true;
        self.event(EventKind::NodeUp, None, Some(&name), format!("{name} is up (session {id})"));
        Ok(Done::Granted(id))
    }

    /// A session is over: what ran under it is started elsewhere.
    pub fn session_over(&mut self, node: &NodeName, session: SessionId, proof: EndProof) -> Outcome {
        if self.cluster.session(node, session).is_none() {
            return Ok(Done::Ended); // Told twice: nothing is left to do.
        }
        match proof {
            EndProof::Obituary(how) => self.end_session(node, session, &format!("{how} (obituary)")),
            EndProof::Lease => self.end_session(node, session, "silent beyond its lease"),
        }
        Ok(Done::Ended)
    }

    fn end_session(&mut self, name: &NodeName, id: SessionId, how: &str) {
        let Some(ended) = self.cluster.session(name, id) else { return };
        let lost: Vec<Path> = ended.assigned.iter().cloned().collect();
        let at_rest = ended.leaving && lost.is_empty();
        let brakes = self.brakes(lost.len());
        if !at_rest {
            self.node(name).losses += 1;
            let moved: Vec<_> = lost.iter().take(8).map(ToString::to_string).collect();
            let more = if lost.len() > moved.len() {
                format!(" and {} more", lost.len() - moved.len())
            } else {
                String::new()
            };
            let what =
                if moved.is_empty() { "nothing ran there".into() } else { format!("{}{more}", moved.join(", ")) };
            self.event(EventKind::NodeLost, None, Some(name), format!("{name} lost: {how} · {what}"));
        }
        // The session goes first, so that nothing is placed under it while its runs end.
        let node = self.node(name);
        if node.current == Some(id) {
            node.current = None;
        }
        for (path, brake) in lost.iter().zip(brakes) {
            let Some(run) = self.cluster.run(path).cloned() else { continue };
            self.run_over(path, run, Over::Lost { how: how.to_owned(), brake });
        }
        self.node(name).sessions.remove(&id);
    }

    /// How long each of `count` starts after a loss is held back: the first ones not at all, the rest in a queue of the whole
    /// cluster, each moved a little at random.
    fn brakes(&mut self, count: usize) -> Vec<Duration> {
        let now = self.now();
        let mut brakes = vec![Duration::ZERO; count.min(FREE_STARTS)];
        for nth in FREE_STARTS..count {
            let slot = self.cluster.head.brake.max(now) + BRAKE_STEP;
            self.cluster.head.brake = slot;
            let stir = self.cluster.head.next_incarnation.wrapping_add(nth as u64);
            let jitter = Duration::from_millis(dice_of(stir) % BRAKE_JITTER_MS);
            brakes.push(slot - now + jitter);
        }
        brakes
    }

    /// A runner tells what happened. Numbers go up by one; what was applied already changes nothing.
    pub fn observe(&mut self, node: &NodeName, id: SessionId, number: u64, observation: Observation) -> Outcome {
        let Some(session) = self.session(node, id) else { return Err(Rejection::SessionOver(id)) };
        let expected = session.observed + 1;
        if number < expected && !broken(Mutation::ObservationsTwice) {
            return Ok(Done::Observed(session.observed));
        }
        if number > expected {
            return Err(Rejection::OutOfOrder { got: number, expected });
        }
        session.observed = number;
        match observation {
            Observation::Started { path, incarnation, pid } => self.run_started(&path, incarnation, node, id, pid),
            Observation::Ready { path, incarnation } => self.run_ready(&path, incarnation, node, id),
            Observation::Exited { path, incarnation, exit } => {
                if let Some(run) = self.run_of(&path, incarnation, node, id) {
                    self.run_over(&path, run, Over::Exited(exit));
                }
            }
            Observation::NeverStarted { path, incarnation } => {
                if let Some(run) = self.run_of(&path, incarnation, node, id).filter(|run| run.stopping.is_some()) {
                    self.run_over(&path, run, Over::NeverStarted);
                }
            }
            Observation::Leaving => self.leaving(node, id),
            Observation::Left => self.left(node, id),
        }
        Ok(Done::Observed(number))
    }

    /// The run that is meant, where it counts as running under this session. Words about any other are late.
    fn run_of(&self, path: &Path, incarnation: Incarnation, node: &NodeName, session: SessionId) -> Option<Run> {
        let run = self.cluster.run(path)?;
        let is_meant = run.incarnation == incarnation && run.node == *node && run.session == session;
        is_meant.then(|| run.clone())
    }

    fn run_started(&mut self, path: &Path, incarnation: Incarnation, node: &NodeName, session: SessionId, pid: u32) {
        let Some(run) = self.run_of(path, incarnation, node, session) else { return };
        if run.stage != Stage::Assigned {
            return;
        }
        let at = self.now();
        self.process(path).refused_by.clear();
        if let ProcessPhase::Assigned(run) = &mut self.process(path).phase {
            run.stage = Stage::Started { pid, at };
        }
        let after = crate::change::human(at.saturating_sub(run.since));
        let text = format!("{path} started on {node} as incarnation {incarnation}, {after} after it was assigned");
        self.event(EventKind::ChildStarted, Some(path), Some(node), text);
    }

    fn run_ready(&mut self, path: &Path, incarnation: Incarnation, node: &NodeName, session: SessionId) {
        if self.run_of(path, incarnation, node, session).is_none() {
            return;
        }
        let ProcessPhase::Assigned(run) = &mut self.process(path).phase else { return };
        let Stage::Started { pid, at } = run.stage else { return };
        run.stage = Stage::Ready { pid, at };
        let text = format!("{path} is ready on {node} (incarnation {incarnation})");
        self.event(EventKind::ChildReady, Some(path), Some(node), text);
    }

    fn leaving(&mut self, name: &NodeName, id: SessionId) {
        let Some(session) = self.session(name, id) else { return };
        session.leaving = true;
        let runs: Vec<Path> = session.assigned.iter().cloned().collect();
        let node = self.node(name);
        if node.current == Some(id) {
            node.current = None;
        }
        for path in runs.iter().rev() {
            self.stop_run(path, StopReason::Shutdown);
        }
        let text = format!("{name} goes: {} children stop there and start elsewhere", runs.len());
        self.event(EventKind::NodeLeaving, None, Some(name), text);
    }

    /// The runner's own word that nothing runs and nothing ever will: the session is over without a loss.
    fn left(&mut self, name: &NodeName, id: SessionId) {
        if let Some(session) = self.session(name, id) {
            session.leaving = true;
        }
        self.end_session(name, id, "it left with children that had not ended");
        self.event(EventKind::NodeLeft, None, Some(name), format!("{name} left"));
    }
}

fn dice_of(stir: u64) -> u64 {
    let root: Path = "/brake".parse().unwrap_or_else(|_| unreachable!("a legal path"));
    dice(&root, stir)
}

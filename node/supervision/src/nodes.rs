//! Nodes: their sessions, what their runners report, and what their loss means.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use imbl::OrdSet;
use pando_protocol::ids::{Incarnation, NodeName, Path, SessionId};
use pando_protocol::rejection::Rejection;
use pando_protocol::session::{Observation, SessionRequest};

use crate::causes::MAX_WHY;
use crate::change::{Change, clipped};
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
/// The most by which the first of those is moved at random.
const BRAKE_JITTER_MS: u64 = 1_000;

impl Change<'_> {
    /// A runner asks for a session: grants it, and ends those that it proves over.
    pub fn grant_session(&mut self, mut request: SessionRequest) -> Outcome {
        let name = request.node.clone();
        if let Some(granted) = self.granted(&name, request.nonce) {
            return Ok(Done::Granted(granted));
        }
        if !self.cluster.nodes.contains_key(&name) && self.cluster.nodes.len() >= MAX_NODES {
            let what = format!("{} nodes", self.cluster.nodes.len() + 1);
            return Err(Rejection::TooMany { what, limit: MAX_NODES as u64 });
        }
        for over in std::mem::take(&mut request.proven_over) {
            self.end_session(&name, over, "its processes are proven gone");
        }
        if broken(Mutation::NewSessionEndsOld)
            && let Some(current) = self.cluster.nodes.get(&name).and_then(|node| node.current)
        {
            self.end_session(&name, current, "a new session began");
        }
        Ok(Done::Granted(self.begin_session(request)))
    }

    /// Older sessions stay beside the new one until it is known that nothing of them runs. That is known at once of those under
    /// which nothing counts as running: nothing ever will, since only the current one is given work. So requests that were
    /// granted late, one after the other, leave nothing behind.
    fn begin_session(&mut self, request: SessionRequest) -> SessionId {
        let SessionRequest { node: name, nonce, address, role, labels, slots, pid, proven_over: _ } = request;
        let id = SessionId(self.cluster.head.next_session);
        self.cluster.head.next_session += 1;
        self.release_places_on(&name);
        let (since, assigned, kept) = (self.now(), OrdSet::new(), OrdSet::new());
        let session = Session {
            nonce,
            since,
            observed: 0,
            leaving: false,
            assigned,
            kept,
            used: 0,
            revision: 0,
            silent: false,
            hands: Default::default(),
            last_hand: 0,
        };
        let known = self.cluster.nodes.get(&name);
        let (losses, drained) = known.map_or((0, false), |known| (known.losses, known.drained));
        let mut sessions = known.map_or_else(BTreeMap::new, |known| known.sessions.clone());
        sessions.retain(|_, older| !older.assigned.is_empty());
        sessions.insert(id, session);
        let labels = labels.into_iter().collect();
        let node = Node { address, role, labels, slots, pid, current: Some(id), drained, sessions, losses };
        self.cluster.nodes.insert(name.clone(), Arc::new(node));
        self.room_changed = true;
        self.event(EventKind::NodeUp, None, Some(&name), format!("{name} is up (session {id})"));
        id
    }

    /// The session that answered the request with this nonce, where it is not known to be over: a repeated request gets it
    /// again, whatever came meanwhile.
    fn granted(&self, name: &NodeName, nonce: u64) -> Option<SessionId> {
        let node = self.cluster.nodes.get(name)?;
        node.sessions.iter().find(|(_, session)| session.nonce == nonce).map(|(id, _)| *id)
    }

    /// A session is over: what ran under it is started elsewhere.
    pub fn session_over(&mut self, node: &NodeName, session: SessionId, proof: EndProof) -> Outcome {
        if self.cluster.session(node, session).is_none() {
            return Ok(Done::Ended); // Told twice: nothing is left to do.
        }
        match proof {
            EndProof::Obituary(how) => {
                self.end_session(node, session, &format!("{} (obituary)", clipped(&how, MAX_WHY)));
            }
            EndProof::Lease => self.fall_silent(node, session),
        }
        Ok(Done::Ended)
    }

    pub fn end_session(&mut self, name: &NodeName, id: SessionId, how: &str) {
        let Some(ended) = self.cluster.session(name, id) else { return };
        let lost: Vec<Path> = ended.assigned.iter().cloned().collect();
        let was_silent = ended.silent; // Told and counted when it fell silent.
        let at_rest = (ended.leaving || was_silent) && lost.is_empty();
        let brakes = self.brakes(lost.len());
        if !at_rest {
            self.node(name).losses += u64::from(!was_silent);
            let text = format!("{name} lost: {how} · {}", what_ran(&lost));
            self.event(EventKind::NodeLost, None, Some(name), text);
        }
        // The session goes first, so that nothing is placed under it while its runs end.
        let node = self.node(name);
        if node.current == Some(id) {
            node.current = None;
            self.release_places_on(name);
            self.room_changed = true; // Groups that looked at it first may do without it.
        }
        self.mail_lost(name, id, how);
        for (path, brake) in lost.iter().zip(brakes) {
            let Some(run) = self.cluster.run(path).cloned() else { continue };
            self.run_over(path, run, Over::Lost { how: how.to_owned(), brake });
        }
        self.node(name).sessions.remove(&id);
    }

    /// How long each of `count` starts after a loss is held back: the first ones not at all, the rest in one queue of the
    /// whole cluster, which begins at a time that differs from loss to loss.
    pub fn brakes(&mut self, count: usize) -> Vec<Duration> {
        if broken(Mutation::BrakeOff) || count <= FREE_STARTS {
            return vec![Duration::ZERO; count];
        }
        let now = self.now();
        let jitter = Duration::from_millis(dice_of(self.cluster.head.next_incarnation) % BRAKE_JITTER_MS);
        self.cluster.head.brake = self.cluster.head.brake.max(now.saturating_add(jitter));
        let mut brakes = vec![Duration::ZERO; FREE_STARTS];
        for _ in FREE_STARTS..count {
            self.cluster.head.brake = self.cluster.head.brake.saturating_add(BRAKE_STEP);
            brakes.push(self.cluster.head.brake.saturating_sub(now));
        }
        brakes
    }

    /// The same for `count` children of a supervisor that starts: all at once, but while starts after a loss are held back. What
    /// waited for its turn then would have it at once, if only what is above it were restarted.
    pub fn brakes_of_a_start(&mut self, count: usize) -> Vec<Duration> {
        let is_braked = self.cluster.head.brake > self.now();
        if is_braked { self.brakes(count) } else { vec![Duration::ZERO; count] }
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
            Observation::Exited { path, incarnation, exit, started } => {
                if let Some(run) = self.run_of(&path, incarnation, node, id) {
                    self.run_over(&path, run, Over::Exited { exit, started });
                    self.go_on_leaving(node, id);
                }
            }
            Observation::NeverStarted { path, incarnation } => {
                let run = self.run_of(&path, incarnation, node, id).filter(|run| run.stopping.is_some());
                if let Some(run) = run.filter(|_| !broken(Mutation::PromiseForgotten)) {
                    self.run_over(&path, run, Over::NeverStarted);
                    self.go_on_leaving(node, id);
                }
            }
            Observation::Stopping { path, incarnation } => {
                let leaves = self.cluster.session(node, id).is_some_and(|session| session.leaving);
                if leaves && self.run_of(&path, incarnation, node, id).is_some() {
                    self.stop_run(&path, StopReason::Shutdown);
                }
            }
            Observation::Leaving => self.leaving(node, id),
            Observation::Left => self.left(node, id),
            Observation::Kept { sessions, runs } => self.take_over(node, id, &sessions, &runs),
            Observation::WorkerReady { path, incarnation, readiness } => {
                self.worker_ready(&path, incarnation, node, id, readiness);
            }
            Observation::Settled(settlements) => self.settled(node, id, settlements),
        }
        Ok(Done::Observed(number))
    }

    /// The run that is meant, where it counts as running under this session. Words about any other are late.
    pub fn run_of(&self, path: &Path, incarnation: Incarnation, node: &NodeName, session: SessionId) -> Option<Run> {
        let run = self.cluster.run(path)?;
        let is_meant = run.incarnation == incarnation && run.node == *node && run.session == session;
        let is_meant = is_meant || broken(Mutation::LateWordsCount);
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
        self.unsettled.insert(path.clone());
        let text = format!("{path} is ready on {node} (incarnation {incarnation})");
        self.event(EventKind::ChildReady, Some(path), Some(node), text);
    }

    /// The runner's own word that nothing runs and nothing ever will: the session is over without a loss.
    fn left(&mut self, name: &NodeName, id: SessionId) {
        let Some(session) = self.session(name, id) else { return };
        session.leaving = true;
        // A runner that goes says *leaving* before.
        let is_first_word = session.observed == 1;
        if is_first_word {
            self.never_began(name, id);
        }
        self.end_session(name, id, "it left with children that had not ended");
        let text = match is_first_word {
            true => format!("{name} did not begin session {id}, which was granted too late"),
            false => format!("{name} left"),
        };
        self.event(EventKind::NodeLeft, None, Some(name), text);
    }

    /// A session was granted so late that its runner did not want it any more: nothing ran under it, so nothing is lost, and
    /// what was assigned meanwhile is placed again.
    fn never_began(&mut self, name: &NodeName, id: SessionId) {
        let node = self.node(name);
        // It goes first, so that nothing is placed under it again.
        if node.current == Some(id) {
            node.current = None;
            self.release_places_on(name);
        }
        let Some(session) = self.cluster.session(name, id) else { return };
        for path in session.assigned.clone() {
            if let Some(run) = self.cluster.run(&path).cloned() {
                self.run_over(&path, run, Over::NeverStarted);
            }
        }
    }
}

/// What a loss hit, in words: the first few paths and how many more.
pub(crate) fn what_ran(lost: &[Path]) -> String {
    const SHOWN: usize = 8;
    let shown = lost.iter().take(SHOWN).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match lost.len() {
        0 => "nothing ran there".into(),
        count if count > SHOWN => format!("{shown} and {} more", count - SHOWN),
        _ => shown,
    }
}

fn dice_of(stir: u64) -> u64 {
    let root: Path = "/brake".parse().unwrap_or_else(|_| unreachable!("a legal path"));
    dice(&root, stir)
}

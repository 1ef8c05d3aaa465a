//! One cluster with its fake runners; every step is checked.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pando_protocol::cause::ExitHow;
use pando_protocol::ids::{ClientId, NodeName, SessionId};
use pando_protocol::message::{Change, Write};
use pando_protocol::rejection::Rejection;
use pando_protocol::session::{Observation, SessionRequest};
use pando_protocol::spec::Signal;
use pando_supervision::desired::{Local, desired};
use pando_supervision::{
    Applied, Cluster, Command, Done, EndProof, Event, EventKind, Stamp, apply, invariants, next_deadline,
};

use super::copies::Copies;
use super::coverage::Coverage;
use super::drains;
use super::groups;
use super::ledger::Ledger;
use super::payers::Step;
use super::places;
use super::runner::Runner;
use super::unreachable;

/// The wall clock of the first step, in milliseconds.
const WALL: u64 = 1_700_000_000_000;

/// A cluster, its machines, and all that was asked of it.
#[derive(Debug, Clone, Default)]
pub struct Sim {
    /// The state.
    pub cluster: Cluster,
    /// Cluster time.
    pub now: Duration,
    /// The machines.
    pub runners: BTreeMap<NodeName, Runner>,
    /// Runners whose node process is gone while their children still run.
    pub ghosts: Vec<Runner>,
    /// What runs on them.
    pub copies: Copies,
    /// Every command so far.
    pub log: Vec<(Stamp, Command)>,
    /// Every event so far.
    pub events: Vec<Event>,
    /// The newest sequence of each client.
    pub sequences: BTreeMap<u128, u64>,
    /// The books.
    pub ledger: Ledger,
    /// Runners that neither hear nor say anything, while what they run goes on.
    pub silent: BTreeSet<NodeName>,
    /// What was reached.
    pub coverage: Coverage,
    next_nonce: u64,
}

impl Sim {
    /// Applies a command now and checks everything that must hold.
    ///
    /// # Errors
    /// What does not hold, with the evidence.
    pub fn step(&mut self, command: Command) -> Result<Applied, String> {
        let stamp = Stamp { at: self.now, wall: WALL + u64::try_from(self.now.as_millis()).unwrap_or(0) };
        self.log.push((stamp, command.clone()));
        let is_due = next_deadline(&self.cluster).is_some_and(|due| due <= self.now);
        if !is_due {
            return self.checked(stamp, command);
        }
        // What is due is checked as a step of its own; that it makes no difference is checked too.
        let mut direct = self.cluster.clone();
        let at_once = apply(&mut direct, stamp, command.clone()).outcome;
        self.checked(stamp, Command::Tick)?;
        let applied = self.checked(stamp, command)?;
        if direct != self.cluster || at_once != applied.outcome {
            return Err("what is due happens before the command: a tick before it makes a difference".into());
        }
        Ok(applied)
    }

    fn checked(&mut self, stamp: Stamp, command: Command) -> Result<Applied, String> {
        let before = self.cluster.clone();
        let applied = apply(&mut self.cluster, stamp, command.clone());
        self.events.extend(applied.events.iter().cloned());
        if let Some(panicked) = applied.events.iter().find(|event| event.kind == EventKind::RulePanicked) {
            return Err(panicked.text.clone());
        }
        let held = |broken: Result<(), Vec<String>>| broken.map_err(|broken| broken.join("; "));
        held(invariants::check(&self.cluster))?;
        held(invariants::check_step(&before, &self.cluster))?;
        let step = Step { before: &before, command: &command, after: &self.cluster };
        self.ledger.check(step, &applied)?;
        places::check(step, &applied)?;
        groups::check(step, &applied)?;
        drains::check(step, &applied)?;
        unreachable::check(step)?;
        self.coverage.note(step, &applied);
        self.twice_changes_nothing(stamp, &command, &applied)?;
        Ok(applied)
    }

    /// Any command that comes again at the same time changes nothing and is answered the same.
    fn twice_changes_nothing(&self, stamp: Stamp, command: &Command, first: &Applied) -> Result<(), String> {
        let mut again = self.cluster.clone();
        let second = apply(&mut again, stamp, command.clone());
        if again != self.cluster {
            return Err(format!("a command applied twice changes nothing: {command:?} does"));
        }
        // A repeated last word of a session hears that the session is over, which it wanted.
        let may_differ = matches!(command, Command::Observe { .. });
        if second.outcome != first.outcome && !may_differ {
            let (first, second) = (&first.outcome, second.outcome);
            return Err(format!("a repeated command is answered the same: {command:?} got {first:?}, then {second:?}"));
        }
        Ok(())
    }

    /// A client's next write.
    pub fn write(&mut self, client: u128, change: Change) -> Write {
        let sequence = self.sequences.entry(client).or_default();
        *sequence += 1;
        Write { client: ClientId(client), sequence: *sequence, lowest_unanswered: *sequence, change }
    }

    /// A machine asks for a session, under a new nonce.
    pub fn request(&mut self, node: &NodeName, proven_over: Vec<SessionId>) -> Option<SessionRequest> {
        self.next_nonce += 1;
        let nonce = self.next_nonce;
        let runner = self.runners.get_mut(node)?;
        runner.nonce = nonce;
        Some(runner.request(proven_over))
    }

    /// A machine without processes gets a session.
    ///
    /// # Errors
    /// What does not hold, or why it is refused.
    pub fn join(&mut self, node: &NodeName, proven_over: Vec<SessionId>) -> Result<(), String> {
        let over = self.runners.get_mut(node).map(|runner| std::mem::take(&mut runner.over)).unwrap_or_default();
        let proven_over = proven_over.into_iter().chain(over).collect();
        let Some(request) = self.request(node, proven_over) else { return Ok(()) };
        let granted = self.step(Command::GrantSession(request))?.outcome;
        let (Ok(Done::Granted(session)), Some(runner)) = (&granted, self.runners.get_mut(node)) else {
            return Err(format!("{node} gets no session: {granted:?}"));
        };
        runner.begin(*session);
        Ok(())
    }

    /// A machine dies, and the cluster learns of it.
    ///
    /// # Errors
    /// What does not hold.
    pub fn lose(&mut self, node: &NodeName, proof: EndProof) -> Result<(), String> {
        let Some(runner) = self.runners.get_mut(node) else { return Ok(()) };
        let sessions: Vec<SessionId> = runner.former.iter().copied().chain(runner.session).collect();
        match proof {
            EndProof::Lease => runner.fall_silent(&mut self.copies),
            EndProof::Obituary(_) => runner.die(&mut self.copies),
        }
        for session in sessions {
            self.step(Command::EndSession { node: node.clone(), session, proof: proof.clone() })?;
        }
        Ok(())
    }

    /// An operator says of a node that its machine is gone. It is, where that is accepted.
    ///
    /// # Errors
    /// What does not hold.
    pub fn remove_dead(&mut self, node: &NodeName, write: Write) -> Result<Applied, String> {
        let sessions = |known: &std::sync::Arc<pando_supervision::cluster::Node>| {
            known.sessions.values().all(|session| session.silent)
        };
        if self.cluster.nodes.get(node).is_some_and(sessions) {
            self.runners.get_mut(node).into_iter().for_each(|runner| runner.die(&mut self.copies));
            self.end_ghost_processes(node);
        }
        self.step(Command::Write(write))
    }

    /// The machines on which older processes of a node ran are gone.
    fn end_ghost_processes(&mut self, node: &NodeName) {
        let (mine, others): (Vec<Runner>, _) = self.ghosts.drain(..).partition(|ghost| ghost.name == *node);
        self.ghosts = others;
        mine.into_iter().for_each(|mut ghost| ghost.die(&mut self.copies));
    }

    /// The guards of a node's older processes report that all is gone.
    ///
    /// # Errors
    /// What does not hold.
    pub fn bury_ghosts(&mut self, node: &NodeName) -> Result<(), String> {
        let mine = self.ghosts.iter().filter(|ghost| ghost.name == *node);
        let sessions: BTreeSet<SessionId> =
            mine.flat_map(|ghost| ghost.former.iter().chain(&ghost.over).chain(&ghost.session).copied()).collect();
        self.end_ghost_processes(node);
        for session in sessions {
            let proof = EndProof::Obituary("an older process died".into());
            self.step(Command::EndSession { node: node.clone(), session, proof })?;
        }
        Ok(())
    }

    /// A machine is told to go.
    ///
    /// # Errors
    /// What does not hold.
    pub fn leave(&mut self, node: &NodeName) -> Result<(), String> {
        let Some(runner) = self.runners.get_mut(node).filter(|runner| !runner.leaving) else { return Ok(()) };
        runner.leaving = true;
        runner.say(Observation::Leaving);
        Ok(())
    }

    /// A machine that goes is short of time, and stops what runs there.
    pub fn stop_alone(&mut self, node: &NodeName) {
        if let Some(runner) = self.runners.get_mut(node).filter(|runner| runner.leaving) {
            runner.stop_alone();
        }
    }

    /// A machine that goes and runs nothing any more says so, and is off.
    ///
    /// # Errors
    /// What does not hold.
    pub fn finish_leaving(&mut self, node: &NodeName) -> Result<(), String> {
        self.act(node)?;
        let Some(runner) = self.runners.get_mut(node).filter(|runner| runner.leaving) else { return Ok(()) };
        if runner.runs.values().any(|run| run.state != Local::Over) {
            return Ok(());
        }
        runner.say(Observation::Left);
        while self.deliver_one(node)? {}
        if let Some(runner) = self.runners.get_mut(node) {
            runner.die(&mut self.copies);
        }
        Ok(())
    }

    /// A machine is started anew and proves that nothing of its old session runs.
    ///
    /// # Errors
    /// What does not hold.
    pub fn come_back_with_proof(&mut self, node: &NodeName, old: SessionId) -> Result<(), String> {
        if let Some(runner) = self.runners.get_mut(node) {
            runner.die(&mut self.copies);
        }
        self.join(node, vec![old])
    }

    /// A machine's node process is started anew while what the old one started still runs.
    ///
    /// # Errors
    /// What does not hold.
    pub fn come_back_beside_a_ghost(&mut self, node: &NodeName) -> Result<(), String> {
        if let Some(runner) = self.runners.get_mut(node) {
            self.ghosts.push(runner.clone());
            runner.forget();
        }
        self.join(node, Vec::new())
    }

    /// The leases of a machine's old sessions end, and their guards have killed what ran. So does the lease of a session that
    /// was granted to a request nobody waits for any more.
    ///
    /// # Errors
    /// What does not hold.
    pub fn end_ghosts(&mut self, node: &NodeName) -> Result<(), String> {
        let (mine, others): (Vec<Runner>, _) = self.ghosts.drain(..).partition(|ghost| ghost.name == *node);
        self.ghosts = others;
        for mut ghost in mine {
            ghost.fall_silent(&mut self.copies);
            self.ghosts.push(ghost); // What it keeps runs on, and nobody else knows that the rest does not.
        }
        let held = self.runners.get(node).and_then(|runner| runner.session);
        let granted = self.cluster.nodes.get(node).map(|known| known.sessions.keys().copied().collect::<Vec<_>>());
        for session in granted.unwrap_or_default().into_iter().filter(|session| Some(*session) != held) {
            self.step(Command::EndSession { node: node.clone(), session, proof: EndProof::Lease })?;
        }
        Ok(())
    }

    /// A runner looks at what should run and acts.
    ///
    /// # Errors
    /// What does not hold.
    pub fn act(&mut self, node: &NodeName) -> Result<(), String> {
        let Some(runner) = self.runners.get_mut(node) else { return Ok(()) };
        let Some(session) = runner.session else { return Ok(()) };
        match desired(&self.cluster, node, session, self.log.len() as u64) {
            Some(desired) => runner.act(&desired, self.now),
            None => {
                runner.fall_silent(&mut self.copies);
                Ok(())
            }
        }
    }

    /// A runner starts what is due.
    ///
    /// # Errors
    /// What does not hold.
    pub fn start_due(&mut self, node: &NodeName) -> Result<(), String> {
        let Some(runner) = self.runners.get_mut(node) else { return Ok(()) };
        for incarnation in runner.in_state(Local::Waiting) {
            if runner.runs[&incarnation].due <= self.now {
                runner.start(incarnation, self.now, &mut self.copies)?;
            }
        }
        Ok(())
    }

    /// A runner's oldest word reaches the cluster. Whether there was one.
    ///
    /// # Errors
    /// What does not hold.
    pub fn deliver_one(&mut self, node: &NodeName) -> Result<bool, String> {
        let Some(runner) = self.runners.get_mut(node) else { return Ok(false) };
        let Some(session) = runner.session else { return Ok(false) };
        let Some((number, observation)) = runner.outbox.pop_front() else { return Ok(false) };
        runner.told.push((session, number, observation.clone()));
        let word = Command::Observe { node: node.clone(), session, number, observation: observation.clone() };
        let is_over = self.step(word)?.outcome == Err(Rejection::SessionOver(session));
        let Some(runner) = self.runners.get_mut(node) else { return Ok(false) };
        match is_over {
            true => {
                runner.outbox.push_front((number, observation)); // Told by nobody yet.
                runner.fall_silent(&mut self.copies);
            }
            false => runner.was_told(&observation),
        }
        Ok(true)
    }

    /// Lets every runner act, start what is due, end what should end, and tell of it, until nothing more happens.
    ///
    /// # Errors
    /// What does not hold.
    pub fn settle(&mut self) -> Result<(), String> {
        let nodes: Vec<NodeName> = self.runners.keys().filter(|node| !self.silent.contains(*node)).cloned().collect();
        let mut moved = true;
        while moved {
            moved = false;
            for node in &nodes {
                self.act(node)?;
                self.start_due(node)?;
                self.behave(node);
                while self.deliver_one(node)? {
                    moved = true;
                }
            }
        }
        Ok(())
    }

    /// What was started is ready, what is to stop stops.
    pub fn behave(&mut self, node: &NodeName) {
        let now = self.now;
        let Some(runner) = self.runners.get_mut(node) else { return };
        for incarnation in runner.in_state(Local::Stopping) {
            runner.exit(incarnation, ExitHow::Signal(Signal::TERM), Some(""), now, &mut self.copies);
        }
        for incarnation in runner.in_state(Local::Running) {
            if runner.runs[&incarnation].ready.is_none() {
                runner.ready(incarnation, now);
            }
        }
    }

    /// Lets time pass until then, with runners that behave; everything that is due on the way happens when it is due.
    ///
    /// # Errors
    /// What does not hold.
    pub fn advance_to(&mut self, until: Duration) -> Result<(), String> {
        self.settle()?;
        while let Some(next) = self.next_time().filter(|next| *next <= until) {
            self.now = self.now.max(next);
            self.step(Command::Tick)?;
            self.settle()?;
        }
        self.now = self.now.max(until);
        self.step(Command::Tick)?;
        self.settle()
    }

    /// When something happens next without anybody's doing: in the cluster or on a machine.
    pub fn next_time(&self) -> Option<Duration> {
        let due = self.runners.values().filter_map(Runner::next_due).min();
        [next_deadline(&self.cluster), due].into_iter().flatten().min()
    }
}

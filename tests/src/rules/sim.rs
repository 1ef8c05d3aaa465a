//! One cluster with its fake runners; every step is checked.

use std::collections::BTreeMap;
use std::time::Duration;

use pando_protocol::ids::{ClientId, NodeName, SessionId};
use pando_protocol::message::{Change, Write};
use pando_protocol::session::SessionRequest;
use pando_supervision::desired::{Local, desired};
use pando_supervision::{Applied, Cluster, Command, Done, EndProof, Event, Stamp, apply, invariants, next_deadline};

use super::copies::Copies;
use super::runner::Runner;

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
    /// What runs on them.
    pub copies: Copies,
    /// Every command so far.
    pub log: Vec<(Stamp, Command)>,
    /// Every event so far.
    pub events: Vec<Event>,
    /// The newest sequence of each client.
    pub sequences: BTreeMap<u128, u64>,
    next_nonce: u64,
}

impl Sim {
    /// Applies a command now and checks everything that must hold.
    ///
    /// # Errors
    /// What does not hold, with the evidence.
    pub fn step(&mut self, command: Command) -> Result<Applied, String> {
        let stamp = Stamp { at: self.now, wall: WALL + u64::try_from(self.now.as_millis()).unwrap_or(0) };
        let before = self.cluster.clone();
        self.log.push((stamp, command.clone()));
        let applied = apply(&mut self.cluster, stamp, command.clone());
        self.events.extend(applied.events.iter().cloned());
        let held = |broken: Result<(), Vec<String>>| broken.map_err(|broken| broken.join("; "));
        held(invariants::check(&self.cluster))?;
        held(invariants::check_step(&before, &self.cluster))?;
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
        let Some(session) = runner.session else { return Ok(()) };
        runner.die(&mut self.copies);
        self.step(Command::EndSession { node: node.clone(), session, proof })?;
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
                runner.die(&mut self.copies);
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
        let node = node.clone();
        self.step(Command::Observe { node, session, number, observation })?;
        Ok(true)
    }

    /// When something happens next without anybody's doing: in the cluster or on a machine.
    pub fn next_time(&self) -> Option<Duration> {
        let due = self.runners.values().filter_map(Runner::next_due).min();
        [next_deadline(&self.cluster), due].into_iter().flatten().min()
    }
}

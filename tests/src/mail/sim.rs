//! One cluster with a pool of fake workers; every step is checked by the invariants and by the books.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pando_protocol::ids::{ClientId, NodeName, Path, SessionId};
use pando_protocol::mail::{NewMessage, Sent};
use pando_protocol::message::{Change, MailChanged, Write};
use pando_protocol::rejection::Rejection;
use pando_protocol::session::Observation;
use pando_protocol::spec::{
    Backoff, ChildSpec, Command as Program, Intensity, MailboxSpec, Pool, ProcessSpec, Restart, TreeSpec, Work,
};
use pando_supervision::desired::desired;
use pando_supervision::mail::Mailbox;
use pando_supervision::mail::hands::hands;
use pando_supervision::parts::{from_parts, parts};
use pando_supervision::{
    Applied, Cluster, Command, Done, EndProof, EventKind, Stamp, apply, invariants, next_deadline,
};

use super::books::Books;
use super::machines::{Health, Kind, Machine, Worked};
use crate::rules::copies::Copies;
use crate::rules::dice::Dice;
use crate::rules::payers::Step;
use crate::rules::specs::{path, tree};

/// The wall clock of the first step, in milliseconds.
const WALL: u64 = 1_700_000_000_000;

/// What the pool is to be.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// How many workers.
    pub count: u32,
    /// Their mailbox.
    pub mailbox: MailboxSpec,
    /// Grows with each deploy.
    pub version: u32,
    /// Their budget.
    pub intensity: Intensity,
}

impl Default for Wanted {
    fn default() -> Self {
        Self { count: 3, mailbox: MailboxSpec::default(), version: 1, intensity: Intensity::Unlimited }
    }
}

/// A cluster with a pool of workers at `/w/p`.
#[derive(Debug, Clone)]
pub struct MailSim {
    /// The state.
    pub cluster: Cluster,
    /// Cluster time.
    pub now: Duration,
    /// The machines.
    pub machines: BTreeMap<NodeName, Machine>,
    /// What runs on them.
    pub copies: Copies,
    /// The books.
    pub books: Books,
    /// Every command so far.
    pub log: Vec<(Stamp, Command)>,
    /// How workers are.
    pub health: Health,
    /// What the pool is to be.
    pub wanted: Wanted,
    /// Words told before: what a bad network may tell again.
    pub told: Vec<Command>,
    /// Whether every step is checked; a story of very many steps checks now and then.
    pub checks: bool,
    sequence: u64,
    nonce: u64,
}

/// Where the mailbox is.
pub fn at() -> Path {
    path("/w/p")
}

impl MailSim {
    /// Nodes that are up, and rules that know mailboxes.
    ///
    /// # Errors
    /// What does not hold.
    pub fn new(nodes: &[&str], wanted: Wanted, health: Health) -> Result<Self, String> {
        let machines = nodes.iter().map(|name| (name.parse().expect("a name"), Machine::new(name))).collect();
        let mut sim = Self {
            cluster: Cluster::default(),
            now: Duration::ZERO,
            machines,
            copies: Copies::default(),
            books: Books::new(at()),
            log: Vec::new(),
            health,
            wanted,
            told: Vec::new(),
            checks: true,
            sequence: 0,
            nonce: 0,
        };
        sim.step(Command::RaiseRules(2))?;
        for name in nodes {
            sim.join(&name.parse().expect("a name"))?;
        }
        sim.apply_wanted()?;
        Ok(sim)
    }

    /// Applies a command now and checks everything that must hold.
    ///
    /// # Errors
    /// What does not hold, with the evidence.
    pub fn step(&mut self, command: Command) -> Result<Applied, String> {
        let stamp = Stamp { at: self.now, wall: WALL + u64::try_from(self.now.as_millis()).unwrap_or(0) };
        if next_deadline(&self.cluster).is_some_and(|due| due <= self.now) && command != Command::Tick {
            self.checked(stamp, Command::Tick)?;
        }
        self.checked(stamp, command)
    }

    fn checked(&mut self, stamp: Stamp, command: Command) -> Result<Applied, String> {
        let before = self.cluster.clone();
        self.log.push((stamp, command.clone()));
        let applied = apply(&mut self.cluster, stamp, command.clone());
        if let Some(panicked) = applied.events.iter().find(|event| event.kind == EventKind::RulePanicked) {
            return Err(panicked.text.clone());
        }
        let told = |why: String| format!("{why}\n  after {command:?}");
        let held = |broken: Result<(), Vec<String>>| broken.map_err(|broken| told(broken.join("; ")));
        if self.checks {
            held(invariants::check(&self.cluster))?;
            held(invariants::check_step(&before, &self.cluster))?;
            let step = Step { before: &before, command: &command, after: &self.cluster };
            self.books.note(step, &applied).map_err(told)?;
        }
        Ok(applied)
    }

    /// A command that came before comes again: it changes nothing.
    ///
    /// # Errors
    /// It does.
    pub fn again(&mut self, command: Command) -> Result<(), String> {
        let before = self.cluster.clone();
        let stamp = Stamp { at: self.cluster.head.now, wall: WALL };
        apply(&mut self.cluster, stamp, command.clone());
        if self.cluster != before {
            return Err(format!("a word that is told again changes nothing: {command:?} does"));
        }
        Ok(())
    }

    /// A client's change.
    ///
    /// # Errors
    /// What does not hold. What is refused is inside.
    pub fn change(&mut self, change: Change) -> Result<Result<Option<MailChanged>, Rejection>, String> {
        self.sequence += 1;
        let (client, sequence) = (ClientId(self.sequence.into()), 1); // As from the command line.
        let command = Command::Write(Write { client, sequence, lowest_unanswered: sequence, change });
        self.told.push(command.clone());
        match self.step(command)?.outcome {
            Ok(Done::Changed(changed)) => Ok(Ok(changed.mail)),
            Ok(other) => Err(format!("a write is answered with {other:?}")),
            Err(rejection) => Ok(Err(rejection)),
        }
    }

    /// The tree that is wanted.
    pub fn spec(&self) -> TreeSpec {
        let Wanted { count, mailbox, version, intensity } = &self.wanted;
        let program = Program { program: "work".into(), args: vec![version.to_string()] };
        let mut process = ProcessSpec::new(program);
        process.mailbox = Some(mailbox.clone());
        let pool = Pool { count: *count, intensity: *intensity, process: Arc::new(process) };
        let backoff =
            Backoff { base: Duration::from_millis(10), cap: Duration::from_millis(100), ..Backoff::default() };
        let id = "p".parse().expect("a name");
        let child = ChildSpec { id, restart: Restart::Permanent, backoff, significant: false, work: Work::Pool(pool) };
        tree("w", |root| root.intensity = Intensity::Unlimited, vec![child])
    }

    /// Applies what is wanted.
    ///
    /// # Errors
    /// What does not hold, or that it is refused.
    pub fn apply_wanted(&mut self) -> Result<(), String> {
        let spec = self.spec();
        match self.change(Change::Apply(spec))? {
            Ok(_) => Ok(()),
            Err(Rejection::BeingDeleted(_)) => Ok(()), // It is applied again later.
            Err(rejection) => Err(format!("the spec is refused: {rejection:?}")),
        }
    }

    /// Sends messages of these kinds, named by `ids` where there is one.
    ///
    /// # Errors
    /// What does not hold.
    pub fn send(&mut self, kinds: &[(Kind, Option<String>)], asks: bool) -> Result<Option<Sent>, String> {
        let message = |(kind, id): &(Kind, Option<String>)| NewMessage {
            id: id.as_ref().map(|id| id.as_str().into()),
            ..NewMessage::of(kind.payload())
        };
        let messages = kinds.iter().map(message).collect();
        match self.change(Change::Send { to: at(), messages, asks })? {
            Ok(Some(MailChanged::Sent(sent))) => Ok(Some(sent)),
            Ok(other) => Err(format!("a send is answered with {other:?}")),
            Err(_) => Ok(None),
        }
    }

    /// The mailbox.
    pub fn mailbox(&self) -> Option<&Mailbox> {
        self.cluster.mailbox(&at())
    }

    /// A machine asks for a session, and proves that nothing of its older ones runs.
    ///
    /// # Errors
    /// What does not hold.
    pub fn join(&mut self, node: &NodeName) -> Result<(), String> {
        let Some(machine) = self.machines.get_mut(node) else { return Ok(()) };
        machine.die(&mut self.copies);
        self.nonce += 1;
        machine.runner.nonce = self.nonce;
        let over = std::mem::take(&mut machine.runner.over).into_iter().collect();
        let request = machine.runner.request(over);
        match self.step(Command::GrantSession(request))?.outcome {
            Ok(Done::Granted(session)) => {
                self.machines.entry(node.clone()).and_modify(|machine| machine.runner.begin(session));
                Ok(())
            }
            other => Err(format!("{node} gets no session: {other:?}")),
        }
    }

    /// A machine dies. `told`: the cluster learns of it; else when it is back, by its proof.
    ///
    /// # Errors
    /// What does not hold.
    pub fn lose(&mut self, node: &NodeName, told: Option<EndProof>) -> Result<(), String> {
        let Some(machine) = self.machines.get_mut(node) else { return Ok(()) };
        let session = machine.runner.session;
        machine.die(&mut self.copies);
        let (Some(session), Some(proof)) = (session, told) else { return Ok(()) };
        self.step(Command::EndSession { node: node.clone(), session, proof })?;
        Ok(())
    }

    /// A runner looks at what should run and at what its workers are handed, and goes on. `stop`: what is to stop does.
    ///
    /// # Errors
    /// What does not hold.
    pub fn poll(&mut self, node: &NodeName, stop: bool) -> Result<(), String> {
        let Some(machine) = self.machines.get_mut(node) else { return Ok(()) };
        let Some(session) = machine.runner.session else { return Ok(()) };
        let Some(desired) = desired(&self.cluster, node, session, self.log.len() as u64) else {
            machine.die(&mut self.copies);
            return Ok(());
        };
        machine.runner.act(&desired, self.now)?;
        machine.take(hands(&self.cluster, node, session, machine.seen, 1 << 20), self.health.starts);
        machine.go_on(&self.health, stop, self.now, &mut self.copies)
    }

    /// A machine's oldest word reaches the cluster. Whether there was one.
    ///
    /// # Errors
    /// What does not hold.
    pub fn deliver(&mut self, node: &NodeName) -> Result<bool, String> {
        let Some(machine) = self.machines.get_mut(node) else { return Ok(false) };
        let Some(session) = machine.runner.session else { return Ok(false) };
        let Some((number, observation)) = machine.runner.outbox.pop_front() else { return Ok(false) };
        machine.runner.was_told(&observation);
        let has_left = observation == Observation::Left;
        let word = Command::Observe { node: node.clone(), session, number, observation };
        self.told.push(word.clone());
        let is_over = self.step(word)?.outcome == Err(Rejection::SessionOver(session));
        if is_over || has_left {
            self.machines.entry(node.clone()).and_modify(|machine| machine.die(&mut self.copies));
        }
        Ok(true)
    }

    /// A worker on a machine goes a step on. Whether one could.
    ///
    /// # Errors
    /// What does not hold.
    pub fn work(&mut self, node: &NodeName, dice: &mut Dice) -> Result<bool, String> {
        let Some(machine) = self.machines.get_mut(node) else { return Ok(false) };
        let busy: Vec<_> =
            machine.workers.iter().filter(|(_, one)| !one.holds.is_empty()).map(|(run, _)| *run).collect();
        let Some(incarnation) = dice.pick(&busy).copied() else { return Ok(false) };
        match machine.work(incarnation, &self.health, dice, self.now, &mut self.copies) {
            Worked::Here => {}
            Worked::NodeDies => {
                self.lose(node, Some(EndProof::Obituary("it died".into())))?;
                self.books.reached.entry("a message killed its node").and_modify(|count| *count += 1).or_insert(1);
            }
        }
        Ok(true)
    }

    /// A machine that goes and runs nothing any more says so.
    pub fn finish_leaving(&mut self, node: &NodeName) {
        let Some(machine) = self.machines.get_mut(node).filter(|machine| machine.runner.leaving) else { return };
        let runs = machine.runner.runs.values().any(|run| run.state != pando_supervision::desired::Local::Over);
        let has_said = matches!(machine.runner.outbox.back(), Some((_, Observation::Left)));
        if !runs && !has_said {
            machine.runner.say(Observation::Left);
        }
    }

    /// Time passes.
    ///
    /// # Errors
    /// What does not hold.
    pub fn advance(&mut self, by: Duration) -> Result<(), String> {
        self.now += by;
        self.step(Command::Tick).map(|_| ())
    }

    /// A new leader applies the tail of the log to a snapshot: it comes to the same state.
    ///
    /// # Errors
    /// It does not.
    pub fn replay(&self, from: usize) -> Result<(), String> {
        let mut cluster = Cluster::default();
        for (index, (stamp, command)) in self.log.iter().enumerate() {
            if index == from {
                let restored = from_parts(parts(&cluster))?;
                if restored != cluster {
                    return Err(format!("a snapshot is the state: at {index} it is not"));
                }
                cluster = restored;
            }
            apply(&mut cluster, *stamp, command.clone());
        }
        if cluster == self.cluster { Ok(()) } else { Err(format!("a replay from {from} comes to another state")) }
    }

    /// The sessions that the cluster counts of a node and its machine does not act under end with their leases.
    ///
    /// # Errors
    /// What does not hold.
    pub fn end_leases(&mut self, node: &NodeName) -> Result<(), String> {
        let current = self.machines.get(node).and_then(|machine| machine.runner.session);
        let known: Vec<SessionId> =
            self.cluster.nodes.get(node).map(|known| known.sessions.keys().copied().collect()).unwrap_or_default();
        for session in known.into_iter().filter(|session| Some(*session) != current) {
            self.step(Command::EndSession { node: node.clone(), session, proof: EndProof::Lease })?;
        }
        Ok(())
    }
}

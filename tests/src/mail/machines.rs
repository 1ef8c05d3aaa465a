//! Machines with workers: what a message does to the worker that works on it, and what the runner says of that.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pando_protocol::cause::ExitHow;
use pando_protocol::ids::{Incarnation, Path};
use pando_protocol::mail::{Hand, Payload, Readiness, Settlement, Word};
use pando_protocol::session::Observation;
use pando_protocol::spec::Signal;
use pando_supervision::desired::Local;

use crate::rules::copies::Copies;
use crate::rules::dice::Dice;
use crate::rules::runner::Runner;

/// What becomes of the worker that works on a message; stands in its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It is handled.
    Good,
    /// The worker dies.
    Poison,
    /// The worker hangs, and its runner kills it.
    Hang,
    /// The worker says that it failed.
    Fails,
    /// The worker says that it can never be handled.
    Rejected,
    /// The whole node dies.
    KillsNode,
    /// It is given back now and then, and handled in the end.
    Returned,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 7] =
        [Self::Good, Self::Poison, Self::Hang, Self::Fails, Self::Rejected, Self::KillsNode, Self::Returned];

    /// The payload of such a message.
    pub fn payload(self) -> Payload {
        Payload::from(format!("{self:?}").as_str())
    }

    fn of(payload: &Payload) -> Self {
        Self::ALL.into_iter().find(|kind| kind.payload() == *payload).unwrap_or(Self::Good)
    }
}

/// How workers are, all over the cluster.
#[derive(Debug, Clone, Default)]
pub struct Health {
    /// Workers that die of whatever they start.
    pub broken: BTreeSet<Path>,
    /// The newest deploy is bad: all die of whatever they start.
    pub bad_deploy: bool,
    /// The handlers are fixed: nothing harms any more.
    pub fixed: bool,
    /// Whether workers say what they start.
    pub starts: bool,
    /// Most messages that a worker has started at once.
    pub at_once: usize,
    /// What they are ready for.
    pub prefetch: u32,
}

/// One machine.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Its runner.
    pub runner: Runner,
    /// Its workers that said what they are ready for.
    pub workers: BTreeMap<Incarnation, Worker>,
    /// The newest hand that its runner has seen.
    pub seen: u64,
}

/// A worker process.
#[derive(Debug, Clone)]
pub struct Worker {
    /// Who.
    pub path: Path,
    /// What it holds, with what it has started.
    pub holds: BTreeMap<u64, (Kind, bool)>,
}

/// What working led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worked {
    /// Nothing that anybody else sees, or a word of the runner.
    Here,
    /// The whole node is to die.
    NodeDies,
}

impl Machine {
    /// A machine with room for all.
    pub fn new(name: &str) -> Self {
        Self { runner: Runner::new(name, 100, &[]), workers: BTreeMap::new(), seen: 0 }
    }

    /// Starts what is due; what runs says that it is ready, for messages too; what is to stop stops.
    ///
    /// # Errors
    /// Two copies of one child.
    pub fn go_on(&mut self, health: &Health, stop: bool, now: Duration, copies: &mut Copies) -> Result<(), String> {
        for incarnation in self.runner.in_state(Local::Waiting) {
            if self.runner.runs[&incarnation].due <= now {
                self.runner.start(incarnation, now, copies)?;
                self.runner.ready(incarnation, now);
            }
        }
        for incarnation in self.runner.in_state(Local::Running) {
            if !self.workers.contains_key(&incarnation) {
                let path = self.runner.runs[&incarnation].path.clone();
                let readiness = Readiness { starts: health.starts, prefetch: health.prefetch };
                self.runner.say(Observation::WorkerReady { path: path.clone(), incarnation, readiness });
                self.workers.insert(incarnation, Worker { path, holds: BTreeMap::new() });
            }
        }
        if stop {
            for incarnation in self.runner.in_state(Local::Stopping) {
                self.end(incarnation, ExitHow::Signal(Signal::TERM), now, copies);
            }
        }
        Ok(())
    }

    /// The runner hears of hands.
    pub fn take(&mut self, hands: Vec<Hand>, starts: bool) {
        for hand in hands {
            self.seen = self.seen.max(hand.number);
            if let Some(worker) = self.workers.get_mut(&hand.incarnation) {
                worker.holds.insert(hand.number, (Kind::of(&hand.payload), !starts));
            }
        }
    }

    /// A process ends, with all that it had started.
    pub fn end(&mut self, incarnation: Incarnation, how: ExitHow, now: Duration, copies: &mut Copies) {
        let worker = self.workers.remove(&incarnation);
        let holds = worker.map(|worker| worker.holds).unwrap_or_default();
        let started = holds.into_iter().filter(|(_, (_, started))| *started).map(|(hand, _)| hand).collect();
        self.runner.exit(incarnation, how, Some("it went wrong\n"), now, copies);
        self.runner.accuse(started);
    }

    /// A worker goes a step on with what it holds.
    pub fn work(
        &mut self,
        incarnation: Incarnation,
        health: &Health,
        dice: &mut Dice,
        now: Duration,
        copies: &mut Copies,
    ) -> Worked {
        let Some(worker) = self.workers.get_mut(&incarnation) else { return Worked::Here };
        let started = |(_, started): &(Kind, bool)| *started;
        let count = worker.holds.values().filter(|held| started(held)).count();
        let next = worker.holds.iter().find(|(_, held)| !started(held)).map(|(hand, _)| *hand);
        if let Some(hand) = next.filter(|_| count < health.at_once && (count == 0 || dice.once_in(2))) {
            worker.holds.entry(hand).and_modify(|held| held.1 = true);
            if dice.once_in(2) {
                return Worked::Here;
            }
        }
        let begun: Vec<(u64, Kind)> =
            worker.holds.iter().filter(|(_, held)| started(held)).map(|(hand, (kind, _))| (*hand, *kind)).collect();
        let Some((hand, kind)) = dice.pick(&begun).copied() else { return Worked::Here };
        if health.broken.contains(&worker.path) || health.bad_deploy {
            self.end(incarnation, ExitHow::Code(1), now, copies);
            return Worked::Here;
        }
        let kind = if health.fixed { Kind::Good } else { kind };
        let error = || "it went wrong".to_owned();
        let word = match kind {
            Kind::Good => Word::Done { reply: dice.once_in(2).then(|| Payload::from("reply")) },
            Kind::Returned if dice.once_in(2) => Word::Returned,
            Kind::Returned => Word::Done { reply: None },
            Kind::Fails => Word::Failed { error: error() },
            Kind::Rejected => Word::Rejected { error: error() },
            Kind::Poison => {
                let how = if dice.once_in(2) { ExitHow::Signal(Signal(9)) } else { ExitHow::Code(dice.below(3) as u8) };
                self.end(incarnation, how, now, copies);
                return Worked::Here;
            }
            Kind::Hang => {
                self.end(incarnation, ExitHow::Hung(Duration::from_secs(30)), now, copies);
                return Worked::Here;
            }
            Kind::KillsNode => return Worked::NodeDies,
        };
        worker.holds.remove(&hand);
        self.runner.say(Observation::Settled(vec![Settlement { hand, word }]));
        Worked::Here
    }

    /// Everything here is gone.
    pub fn die(&mut self, copies: &mut Copies) {
        self.runner.die(copies);
        self.workers.clear();
        self.seen = 0;
    }
}

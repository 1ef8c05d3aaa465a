//! A pool of workers for stories: they do what the story says, and every step is checked as in the simulation.

use std::time::Duration;

use pando_protocol::cause::ExitHow;
use pando_protocol::ids::{NodeName, Path};
use pando_protocol::mail::{MailboxRow, Settlement, Word};
use pando_protocol::message::{Change, MailChanged};
use pando_protocol::rejection::Rejection;
use pando_protocol::session::Observation;
use pando_protocol::spec::MailboxSpec;
use pando_supervision::EndProof;
use pando_supervision::mail::{Attempt, Mailbox, Message, State, report};

use super::machines::{Health, Kind};
use super::sim::{MailSim, Wanted, at};

/// A pool of workers at `/w/p`. Every method panics with the evidence when something does not hold.
#[derive(Debug, Clone)]
pub struct Story {
    /// What it is made of.
    pub sim: MailSim,
}

impl Story {
    /// A pool of so many workers that say what they start, on these nodes, with this mailbox.
    pub fn new(nodes: &[&str], count: u32, edit: impl FnOnce(&mut MailboxSpec)) -> Self {
        Self::with(nodes, count, Wanted::default(), edit)
    }

    /// As [`Self::new`], beginning with what is wanted otherwise.
    pub fn with(nodes: &[&str], count: u32, mut wanted: Wanted, edit: impl FnOnce(&mut MailboxSpec)) -> Self {
        wanted.count = count;
        edit(&mut wanted.mailbox);
        let health = Health { starts: true, at_once: 1, prefetch: 100, ..Health::default() };
        let mut story = Self { sim: held(MailSim::new(nodes, wanted, health)) };
        story.settle();
        story
    }

    fn nodes(&self) -> Vec<NodeName> {
        self.sim.machines.keys().cloned().collect()
    }

    /// Lets every runner act and tell, until nothing more happens.
    pub fn settle(&mut self) {
        let mut moved = true;
        while moved {
            moved = false;
            for node in self.nodes() {
                held(self.sim.poll(&node, true));
                while held(self.sim.deliver(&node)) {
                    moved = true;
                }
            }
        }
    }

    /// Time passes, and everybody goes on.
    pub fn advance(&mut self, by: Duration) {
        held(self.sim.advance(by));
        self.settle();
    }

    /// Sends so many messages.
    pub fn send(&mut self, count: usize) {
        held(self.sim.send(&vec![(Kind::Good, None); count], false)).expect("they are taken in");
        self.settle();
    }

    /// Sends a message of this id.
    pub fn send_named(&mut self, id: &str) -> pando_protocol::mail::Sent {
        held(self.sim.send(&[(Kind::Good, Some(id.into()))], false)).expect("it is taken in")
    }

    /// A change by the operator.
    pub fn change(&mut self, change: Change) -> Result<Option<MailChanged>, Rejection> {
        let changed = held(self.sim.change(change));
        self.settle();
        changed
    }

    /// Applies the pool with another mailbox.
    pub fn set(&mut self, edit: impl FnOnce(&mut Wanted)) {
        edit(&mut self.sim.wanted);
        held(self.sim.apply_wanted());
        self.settle();
    }

    /// The worker of this index.
    pub fn worker(&self, index: u32) -> Path {
        format!("/w/p/{index}").parse().expect("a path")
    }

    /// Where a worker runs.
    pub fn node_of(&self, index: u32) -> NodeName {
        self.sim.cluster.run(&self.worker(index)).expect("it runs").node.clone()
    }

    /// The messages that a worker holds, by number.
    pub fn holds(&self, index: u32) -> Vec<u64> {
        let worker = self.mailbox().workers.get(&self.worker(index)).and_then(|worker| worker.run.as_ref());
        let mut holds: Vec<u64> = worker.map(|run| run.held.values().copied().collect()).unwrap_or_default();
        holds.sort_unstable();
        holds
    }

    /// Who holds a message.
    pub fn holder(&self, number: u64) -> Option<u32> {
        (0..100).find(|index| {
            let worker = self.mailbox().workers.get(&self.worker(*index)).and_then(|worker| worker.run.as_ref());
            worker.is_some_and(|run| run.held.values().any(|held| *held == number))
        })
    }

    /// Whoever holds a message says this of it.
    pub fn say(&mut self, number: u64, word: Word) {
        let index = self.holder(number).unwrap_or_else(|| panic!("nobody holds {number}: {:?}", self.row()));
        let (node, hand) = (self.node_of(index), self.hand(number));
        let machine = self.sim.machines.get_mut(&node).expect("it is known");
        for worker in machine.workers.values_mut() {
            worker.holds.remove(&hand);
        }
        machine.runner.say(Observation::Settled(vec![Settlement { hand, word }]));
        self.settle();
    }

    /// A message is handled.
    pub fn done(&mut self, number: u64) {
        self.say(number, Word::Done { reply: None });
    }

    /// All that is handed out is handled, until nothing is.
    pub fn all_done(&mut self) {
        while let Some(number) = self.mailbox().messages.iter().find(|(_, one)| is_held(one)).map(|(number, _)| *number)
        {
            self.done(number);
        }
    }

    fn hand(&self, number: u64) -> u64 {
        match self.mailbox().messages.get(&number).map(|message| message.state) {
            Some(State::Held(hand)) => hand,
            other => panic!("{number} is {other:?}"),
        }
    }

    /// A worker dies while it works on these messages; everybody goes on, but time stands still.
    pub fn crash(&mut self, index: u32, started: &[u64]) {
        let node = self.node_of(index);
        let hands: Vec<u64> = started.iter().map(|number| self.hand(*number)).collect();
        let incarnation = self.sim.cluster.run(&self.worker(index)).expect("it runs").incarnation;
        let (now, copies) = (self.sim.now, &mut self.sim.copies);
        let machine = self.sim.machines.get_mut(&node).expect("it is known");
        let worker = machine.workers.get_mut(&incarnation).expect("it is ready");
        for (hand, held) in &mut worker.holds {
            held.1 = hands.contains(hand);
        }
        machine.end(incarnation, ExitHow::Code(1), now, copies);
        self.settle();
    }

    /// Time passes until a worker is ready again.
    pub fn until_ready(&mut self, index: u32) {
        for _ in 0..1_000 {
            let worker = self.sim.mailbox().and_then(|mailbox| mailbox.workers.get(&self.worker(index)));
            if worker.is_some_and(|worker| worker.run.is_some()) {
                return;
            }
            self.advance(Duration::from_millis(10));
        }
        panic!("{index} is never ready: {:?}", self.row());
    }

    /// A node dies with all it runs, and its guard says so.
    pub fn lose(&mut self, node: &NodeName) {
        held(self.sim.lose(node, Some(EndProof::Obituary("it died".into()))));
        self.settle();
    }

    /// A node is back.
    pub fn join(&mut self, node: &NodeName) {
        held(self.sim.join(node));
        self.settle();
    }

    /// The mailbox.
    pub fn mailbox(&self) -> &Mailbox {
        self.sim.mailbox().expect("there is a mailbox")
    }

    /// Its row.
    pub fn row(&self) -> MailboxRow {
        report::mailboxes(&self.sim.cluster, Some(&at())).expect("it is there").remove(0)
    }

    /// How many attempts a message was charged with, whether it waits or is dead.
    pub fn charged(&self, number: u64) -> u32 {
        let dead = self.mailbox().dead.get(&number).map(|letter| letter.trouble.charged);
        dead.or(self.mailbox().messages.get(&number).map(Message::charged)).unwrap_or_else(|| panic!("no {number}"))
    }

    /// The attempts at a message.
    pub fn attempts(&self, number: u64) -> Vec<Attempt> {
        let dead = self.mailbox().dead.get(&number).map(|letter| letter.trouble.clone());
        let trouble = dead.or(self.mailbox().messages.get(&number).and_then(|one| one.trouble.clone()));
        trouble.map(|trouble| trouble.attempts.iter().map(|one| one.as_ref().clone()).collect()).unwrap_or_default()
    }

    /// The dead letters, by number.
    pub fn dead(&self) -> Vec<u64> {
        self.mailbox().dead.keys().copied().collect()
    }

    /// Restarts of a worker that a budget paid for.
    pub fn paid(&self, index: u32) -> u64 {
        self.sim.cluster.member(&self.worker(index)).expect("it is there").charged_restarts()
    }
}

fn is_held(message: &Message) -> bool {
    matches!(message.state, State::Held(_))
}

fn held<T>(result: Result<T, String>) -> T {
    result.unwrap_or_else(|broken| panic!("{broken}"))
}

//! Messages between the cluster and the workers here: hands are passed on once, and settlements are told in batches.
//!
//! While a batch is not confirmed the next one gathers: so few words are on their way however much is settled, and none waits
//! where little is. Where much is not confirmed, since nobody leads or the way is slow, workers are not read any more: what they
//! have done waits in their sockets, and nothing of it is lost.

use std::collections::VecDeque;

use openraft::AsyncRuntime;
use pando_protocol::ids::Incarnation;
use pando_protocol::mail::{Hand, Settlement};
use pando_protocol::session::Observation;

use super::{Runner, Session, Standing};
use crate::guard::BootTime;
use crate::runner::processes::Processes;
use crate::runner::voters::Voters;

/// Settlements in one observation.
const BATCH: usize = 1_000;
/// Bytes of replies and errors in one observation, but for a single one: far below what a frame takes.
const BATCH_BYTES: usize = 1 << 20;

/// At so much that is not confirmed workers are held up, until it is half. What they had said by then comes on top.
const MOST_UNCONFIRMED: usize = 4 << 20;

/// What a session knows of messages.
#[derive(Debug, Default)]
pub(super) struct Mail {
    /// The number of the newest hand that was passed on. They come in order, and again from a new leader.
    newest: u64,
    /// What workers settled that is not said yet, in order.
    gathered: VecDeque<Settlement>,
    /// What that weighs.
    bytes: usize,
    /// The number of the newest batch that was said.
    said: u64,
    /// The numbers of the batches that are not confirmed, in order, and what each weighs.
    on_the_way: VecDeque<(u64, usize)>,
    /// What these weigh together.
    bytes_on_the_way: usize,
    /// Workers are held up.
    holds_workers: bool,
}

impl Mail {
    /// The hands that were not passed on before.
    pub(super) fn fresh(&mut self, mut hands: Vec<Hand>) -> Vec<Hand> {
        hands.retain(|hand| {
            let is_fresh = hand.number > self.newest;
            self.newest = self.newest.max(hand.number);
            is_fresh
        });
        hands
    }

    /// The number of the newest hand that has come.
    pub(super) fn newest(&self) -> u64 {
        self.newest
    }

    /// Batches up to this number are applied.
    pub(super) fn applied(&mut self, through: u64) {
        while let Some((_, bytes)) = self.on_the_way.pop_front_if(|(number, _)| *number <= through) {
            self.bytes_on_the_way -= bytes;
        }
    }

    /// Whether workers are to be held up, where that changes.
    pub(super) fn holds_workers(&mut self) -> Option<bool> {
        let most = if self.holds_workers { MOST_UNCONFIRMED / 2 } else { MOST_UNCONFIRMED };
        let holds = self.bytes + self.bytes_on_the_way > most;
        (std::mem::replace(&mut self.holds_workers, holds) != holds).then_some(holds)
    }

    /// Whether workers are held up.
    pub(super) fn is_holding_workers(&self) -> bool {
        self.holds_workers
    }

    fn gather(&mut self, settlements: Vec<Settlement>) {
        self.bytes += settlements.iter().map(Settlement::weight).sum::<usize>();
        self.gathered.extend(settlements);
    }

    fn is_full(&self) -> bool {
        self.gathered.len() >= BATCH || self.bytes >= BATCH_BYTES
    }

    /// The oldest of what gathered, as much as goes together; at least one where there is one.
    fn take(&mut self) -> Vec<Settlement> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some(next) = self.gathered.front().map(Settlement::weight) {
            if batch.len() == BATCH || (bytes + next > BATCH_BYTES && !batch.is_empty()) {
                break;
            }
            bytes += next;
            batch.extend(self.gathered.pop_front());
        }
        self.bytes -= bytes;
        batch
    }
}

impl<R: AsyncRuntime, P: Processes> Runner<R, P> {
    /// A worker settled messages. Those of a session that is over are nobody's any more.
    pub(super) fn settled(&mut self, incarnation: Incarnation, settlements: Vec<Settlement>) {
        let now = self.processes.now();
        let Standing::Held(session) = &mut self.standing else { return };
        if session.runs.is_alive(incarnation) {
            session.mail.gather(settlements);
            session.say_settled(&self.voters, now);
            if let Some(holds) = session.mail.holds_workers() {
                self.processes.hold_workers(holds);
            }
        }
    }

    /// Says all that was settled, whatever is not confirmed.
    pub(super) fn say_all_settled(&mut self) {
        let now = self.processes.now();
        let Standing::Held(session) = &mut self.standing else { return };
        while !session.mail.gathered.is_empty() {
            session.say_batch(&self.voters, now);
        }
    }
}

impl<R: AsyncRuntime> Session<R> {
    /// Says what was settled, where nothing of that is on its way, or where it is enough.
    pub(super) fn say_settled(&mut self, voters: &Voters, now: BootTime) {
        while !self.mail.gathered.is_empty() && (self.mail.is_full() || !self.outbox.holds(self.mail.said)) {
            self.say_batch(voters, now);
        }
    }

    fn say_batch(&mut self, voters: &Voters, now: BootTime) {
        let batch = self.mail.take();
        let bytes = batch.iter().map(Settlement::weight).sum();
        self.mail.said = self.observe(voters, now, Observation::Settled(batch));
        self.mail.on_the_way.push_back((self.mail.said, bytes));
        self.mail.bytes_on_the_way += bytes;
    }
}

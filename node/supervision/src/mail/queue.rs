//! Where a message that waits stands, and which workers can take one.

use std::sync::Arc;
use std::time::Duration;

use pando_protocol::ids::Path;

use super::{Mailbox, Message, Queues, State, Trouble, Worker, WorkerRun};
use crate::mutation::{Mutation, broken};

impl Queues {
    fn insert(&mut self, number: u64, state: State) {
        match state {
            State::Fresh => drop(self.fresh.insert(number)),
            State::Again => drop(self.again.insert(number)),
            State::Risky => drop(self.risky.insert(number)),
            State::Suspect => drop(self.suspects.insert(number)),
            State::RiskySuspect => drop(self.risky_suspects.insert(number)),
            State::Delayed(until) => drop(self.delayed.insert((until, number))),
            State::Undecided => drop(self.undecided.insert(number)),
            State::Held(_) => {}
        }
    }

    fn remove(&mut self, number: u64, state: State) {
        match state {
            State::Fresh => drop(self.fresh.remove(&number)),
            State::Again => drop(self.again.remove(&number)),
            State::Risky => drop(self.risky.remove(&number)),
            State::Suspect => drop(self.suspects.remove(&number)),
            State::RiskySuspect => drop(self.risky_suspects.remove(&number)),
            State::Delayed(until) => drop(self.delayed.remove(&(until, number))),
            State::Undecided => drop(self.undecided.remove(&number)),
            State::Held(_) => {}
        }
    }
}

impl Mailbox {
    /// Puts a new message in, where it is to stand.
    pub(super) fn put(&mut self, number: u64, message: Message) {
        self.bytes += message.weight();
        self.queues.insert(number, message.state);
        self.messages.insert(number, message);
    }

    /// Takes back a message from a snapshot, which counted it already.
    pub(crate) fn take_back(&mut self, number: u64, message: Message) {
        self.ids.extend(message.content.id.clone().map(|id| (id, number)));
        self.queues.insert(number, message.state);
        self.messages.insert(number, message);
    }

    /// Takes a message out, wherever it stands.
    pub(super) fn take(&mut self, number: u64) -> Option<Message> {
        let message = self.messages.remove(&number)?;
        self.queues.remove(number, message.state);
        self.risky.remove(&number);
        self.bytes -= message.weight();
        Some(message)
    }

    /// Moves a message to where `state` says.
    pub(super) fn stand(&mut self, number: u64, state: State) {
        let Some(message) = self.messages.get_mut(&number) else { return };
        self.queues.remove(number, message.state);
        self.queues.insert(number, state);
        message.state = state;
        if !matches!(state, State::Held(_)) {
            self.risky.remove(&number);
        }
    }

    /// Where a message that nobody holds is to stand; `after` is the end of its retry delay.
    pub(super) fn place_of(&self, message: &Message, after: Option<Duration>) -> State {
        let Some(trouble) = &message.trouble else { return State::Fresh };
        if self.spec.max_attempts.are_spent(trouble.charged + trouble.undecided) {
            return State::Undecided;
        }
        let is_risky = trouble.node_losses > 0 && !broken(Mutation::RiskyTogether);
        match after {
            _ if trouble.accusation.is_some() && is_risky => State::RiskySuspect,
            _ if trouble.accusation.is_some() => State::Suspect,
            Some(until) => State::Delayed(until),
            None if is_risky => State::Risky,
            None if trouble.accused || trouble.life > 1 => State::Again,
            None => State::Fresh,
        }
    }

    /// Changes what a message went through. Only called with messages that are there.
    pub(super) fn trouble<T>(&mut self, number: u64, change: impl FnOnce(&mut Trouble) -> T) -> Option<T> {
        let message = self.messages.get_mut(&number)?;
        self.bytes -= message.weight();
        let result = change(Arc::make_mut(message.trouble.get_or_insert_default()));
        self.bytes += message.weight();
        Some(result)
    }

    /// Changes a worker, and keeps the lists of workers that are free or have a streak.
    pub(super) fn worker<T>(&mut self, path: &Path, change: impl FnOnce(&mut Worker) -> T) -> T {
        let was_trusting = self.streaks.is_empty();
        let mut worker = self.workers.get(path).cloned().unwrap_or_default();
        if self.is_free(&worker) {
            self.free.remove(&(worker.held(), path.clone()));
        }
        self.well -= u64::from(worker.is_well());
        let result = change(Arc::make_mut(&mut worker));
        self.well += u64::from(worker.is_well());
        if self.is_free(&worker) {
            self.free.insert((worker.held(), path.clone()));
        }
        if worker.streak.is_empty() {
            self.streaks.remove(path);
        } else {
            self.streaks.insert(path.clone());
        }
        self.workers.insert(path.clone(), worker);
        self.recount_where(was_trusting);
        result
    }

    /// Forgets a worker that is gone.
    pub(super) fn forget_worker(&mut self, path: &Path) {
        let was_trusting = self.streaks.is_empty();
        if let Some(worker) = self.workers.remove(path) {
            self.free.remove(&(worker.held(), path.clone()));
            self.streaks.remove(path);
            self.well -= u64::from(worker.is_well());
        }
        self.recount_where(was_trusting);
    }

    /// The first streak, and the end of the last one, change what all workers may hold.
    fn recount_where(&mut self, was_trusting: bool) {
        if self.streaks.is_empty() != was_trusting {
            self.recount_free();
        }
    }

    /// Whether a worker can take a message more.
    pub(super) fn is_free(&self, worker: &Worker) -> bool {
        let Some(run) = &worker.run else { return false };
        !run.stopping && !run.alone && worker.held() < u64::from(self.credit(worker))
    }

    /// Most messages that a worker may hold now.
    pub(super) fn credit(&self, worker: &Worker) -> u32 {
        match &worker.run {
            None => 0,
            Some(_) if worker.sick && !broken(Mutation::SickWorkerPrefetches) => 1,
            Some(run) if run.readiness.starts => self.allowance(run) + self.ahead(run),
            Some(run) if broken(Mutation::CreditWithoutStarts) => run.readiness.prefetch.min(self.spec.prefetch).max(1),
            Some(_) => 1, // Getting it is starting it.
        }
    }

    /// Most messages that a worker which says what it starts may have been given.
    pub(super) fn allowance(&self, run: &WorkerRun) -> u32 {
        run.readiness.prefetch.min(self.spec.prefetch).max(1)
    }

    /// What is handed out beyond that. Nothing while a crash is unexplained: whether its worker is sick shows by messages that others
    /// must not have taken. And nothing where the limit was lowered since the run began, whose desk goes by the former one.
    fn ahead(&self, run: &WorkerRun) -> u32 {
        let is_trusting = self.streaks.is_empty() || broken(Mutation::AheadInDoubt);
        if is_trusting && run.readiness.prefetch <= self.spec.prefetch { run.pace.ahead } else { 0 }
    }

    /// Makes the list of free workers anew, after what they may hold has changed.
    pub(crate) fn recount_free(&mut self) {
        let free = self.workers.iter().filter(|(_, worker)| self.is_free(worker));
        self.free = free.map(|(path, worker)| (worker.held(), path.clone())).collect();
    }
}

//! What workers say of the messages that they hold.

use std::sync::Arc;

use pando_protocol::ids::{Incarnation, NodeName, Path, SessionId};
use pando_protocol::mail::{
    AttemptEnd, DeathKind, MAX_FAILURE, MAX_MAIL_BYTES, MAX_PAYLOAD, Payload, Readiness, Settlement, Word,
};

use super::blame::Verdict;
use super::{ATTEMPTS_KEPT, Attempt, FIRST_KEPT, Held, LIFE_KEPT, Pace, Payer, SHORT_WHY, Trouble, WorkerRun};
use crate::change::{Change, clipped};
use crate::mutation::{Mutation, broken};

impl Change<'_> {
    /// A worker is ready for messages.
    pub fn worker_ready(
        &mut self,
        worker: &Path,
        incarnation: Incarnation,
        node: &NodeName,
        session: SessionId,
        readiness: Readiness,
    ) {
        let Some(run) = self.run_of(worker, incarnation, node, session) else { return };
        let leaving = self.cluster.session(node, session).is_some_and(|session| session.leaving);
        let Some(at) = self.cluster.mailbox_of(worker).filter(|at| self.cluster.mail.contains_key(at)) else { return };
        let (stopping, pace) = (run.stopping.is_some() || leaving, Pace::new(self.now()));
        self.mailbox(&at).worker(worker, |worker| {
            let known = worker.run.as_mut().filter(|known| known.incarnation == incarnation);
            if known.is_some() {
                return; // Told twice: what it said first holds.
            }
            let (alone, succeeded, held) = (false, false, Default::default());
            let node = node.clone();
            worker.run =
                Some(WorkerRun { incarnation, node, session, readiness, stopping, alone, succeeded, pace, held });
        });
        self.mail_changed(&at);
    }

    /// A worker gets nothing more: it is being stopped, or its node goes.
    pub fn worker_stops(&mut self, worker: &Path) {
        let Some(at) = self.mailbox_with(worker) else { return };
        self.mailbox(&at).worker(worker, |worker| {
            if let Some(run) = &mut worker.run {
                run.stopping = true;
            }
        });
        self.mail_changed(&at);
    }

    /// Workers under a session settled what they hold. Words about what they do not hold any more are late, and change nothing.
    pub fn settled(&mut self, node: &NodeName, session: SessionId, settlements: Vec<Settlement>) {
        for Settlement { hand, word } in settlements {
            let Some(held) = self.session(node, session).and_then(|standing| standing.hands.remove(&hand)) else {
                continue;
            };
            self.settle_one(node, hand, &held, word);
        }
    }

    fn settle_one(&mut self, node: &NodeName, hand: u64, held: &Held, word: Word) {
        let Held { mailbox: at, message: number, worker, .. } = held;
        let now = self.now();
        self.mail_changed(at);
        self.mailbox(at).worker(worker, |worker| {
            if let Some(run) = &mut worker.run {
                run.held.remove(&hand);
                run.pace.settle(now);
                run.alone &= !run.held.is_empty();
            }
        });
        match word {
            Word::Done { reply } => self.done(held, reply),
            Word::Failed { error } => {
                let attempt = self.attempt(held, node, AttemptEnd::Failed, &error, Payer::Message);
                self.note_attempt(at, *number, attempt);
                self.absolve(at, *number, Verdict::Innocent);
                self.charge_message(at, *number);
                self.put_back(at, *number, true);
            }
            Word::Rejected { error } => {
                let attempt = self.attempt(held, node, AttemptEnd::Rejected, &error, Payer::Nobody);
                self.note_attempt(at, *number, attempt);
                self.absolve(at, *number, Verdict::Innocent);
                let why = format!("{worker} said that it can never be handled: {}", clipped(&error, 200));
                self.die(at, *number, DeathKind::Rejected, why);
            }
            Word::Returned => {
                let attempt = self.attempt(held, node, AttemptEnd::Returned, "the worker gave it back", Payer::Nobody);
                self.note_attempt(at, *number, attempt);
                if broken(Mutation::ReturnsAreCharged) {
                    self.charge_message(at, *number);
                }
                self.put_back(at, *number, false);
            }
        }
    }

    fn done(&mut self, held: &Held, reply: Option<Payload>) {
        let Held { mailbox: at, message: number, worker, at: handed, .. } = held;
        let (number, now) = (*number, self.now());
        let reply = reply.filter(|reply| reply.len() <= MAX_PAYLOAD);
        self.absolve(at, number, Verdict::Innocent);
        self.end_message(at, number, Ok(reply));
        let mailbox = self.mailbox(at);
        mailbox.ledger.done += 1;
        mailbox.ledger.worked += now.saturating_sub(*handed);
        mailbox.done_rate.count_many(now, 1);
        mailbox.worker(worker, |worker| {
            worker.done += 1;
            if let Some(run) = &mut worker.run {
                run.succeeded = true;
            }
        });
        self.worker_is_well(at, worker);
    }

    /// An attempt that ended now.
    pub(super) fn attempt(&self, held: &Held, node: &NodeName, how: AttemptEnd, why: &str, payer: Payer) -> Attempt {
        let Held { mailbox, message, worker, incarnation, began, at: _ } = held;
        let life = self.cluster.mailbox(mailbox).and_then(|mailbox| Some(mailbox.messages.get(message)?.life()));
        Attempt {
            life: life.unwrap_or(1),
            worker: worker.clone(),
            node: node.clone(),
            incarnation: *incarnation,
            began: *began,
            ended: self.wall,
            how,
            class: None,
            why: clipped(why, MAX_FAILURE).to_owned(),
            stderr: String::new(),
            payer,
        }
    }

    /// Adds an attempt to the evidence of a message.
    pub(super) fn note_attempt(&mut self, at: &Path, number: u64, mut attempt: Attempt) {
        let ledger = &mut self.mailbox(at).ledger;
        match attempt.payer {
            Payer::Worker => ledger.worker_paid += 1,
            Payer::NodeLoss => ledger.node_losses += 1,
            Payer::Nobody => ledger.unpaid += 1,
            Payer::Message | Payer::Undecided | Payer::OneOfSeveral | Payer::Replaced => {} // Counted once that is decided.
        }
        // What is kept of an attempt cannot be refused: where there is no room for it, it is short.
        let is_full = self.cluster.head.mail_bytes >= MAX_MAIL_BYTES;
        let mailbox = self.mailbox(at);
        if is_full || mailbox.bytes >= mailbox.spec.max_bytes {
            attempt.stderr.clear();
            attempt.why.truncate(attempt.why.floor_char_boundary(SHORT_WHY));
        }
        mailbox.trouble(number, |trouble| {
            trouble.last_worker = Some(attempt.worker.clone());
            trouble.make_room();
            trouble.attempts.push(Arc::new(attempt));
        });
    }

    /// A message pays for its newest attempt.
    pub(super) fn charge_message(&mut self, at: &Path, number: u64) {
        let mailbox = self.mailbox(at);
        mailbox.ledger.charged += 1;
        mailbox.trouble(number, |trouble| trouble.charged += 1);
    }
}

impl Trouble {
    /// Makes room for one attempt more: of each life the first and the newest stay, and of all lives together, too.
    fn make_room(&mut self) {
        if broken(Mutation::EvidenceUnbounded) {
            return;
        }
        let begin = self.attempts.partition_point(|attempt| attempt.life < self.life);
        let dispensable = if self.attempts.len() - begin >= LIFE_KEPT {
            begin + FIRST_KEPT..self.attempts.len()
        } else if self.attempts.len() >= ATTEMPTS_KEPT {
            FIRST_KEPT..begin.max(FIRST_KEPT + 1)
        } else {
            return;
        };
        let first = dispensable.start;
        // What was given back says least.
        let least = self.attempts[dispensable].iter().position(|kept| kept.payer == Payer::Nobody);
        self.attempts.remove(first + least.unwrap_or(0));
        self.left_out += 1;
    }
}

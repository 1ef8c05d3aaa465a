//! Who is to blame when a worker ends: a message that it had started, one of several, or the worker itself. Design section 7.
//!
//! ```text
//!   started  one      ──► its charge is undecided: a streak of the worker
//!            several  ──► each is handed out alone; none dies alone ──► the worker's budget pays
//!            none     ──► the worker's budget pays
//!
//!   streak   a success, or nothing left to try  ──► the messages pay
//!            suspect_after different messages   ──► the worker is taken for sick, and its budget pays for what follows
//!            the worker is replaced while sick  ──► nobody pays
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use pando_protocol::cause::CauseChain;
use pando_protocol::ids::{Incarnation, Path};
use pando_protocol::mail::{AttemptEnd, DeathKind, MAX_FAILURE};

use super::{ATTEMPT_STDERR, Accusation, Attempt, Held, Mailbox, Payer, State, Strike, Trouble};
use crate::change::{Change, clipped};
use crate::cluster::{Run, StopReason};
use crate::command::EventKind;
use crate::mutation::{Mutation, broken};

/// What a trial of a suspect says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It did no harm alone.
    Innocent,
    /// It killed a worker alone.
    Guilty,
    /// It cannot be tried any more.
    Unknown,
}

impl Change<'_> {
    /// A worker's run is over: what it held goes back, and what it had started is accused where nobody asked for the ending. Who
    /// pays for the ending where it is not the worker.
    pub fn worker_over(
        &mut self,
        worker: &Path,
        run: &Run,
        started: &[u64],
        cause: &Arc<CauseChain>,
    ) -> Option<String> {
        let at = self.mailbox_with(worker)?;
        self.mail_changed(&at);
        let ended = self.mailbox(&at).worker(worker, |worker| {
            let is_it = worker.run.as_ref().is_some_and(|known| known.incarnation == run.incarnation);
            if is_it { worker.run.take() } else { None }
        })?;
        if ended.succeeded {
            self.member(worker).delays = 0; // It was of use: the delay begins at its base again.
        }
        let mut accused = Vec::new();
        for (hand, number) in &ended.held {
            let Some(held) = self.session(&run.node, run.session).and_then(|standing| standing.hands.remove(hand))
            else {
                continue;
            };
            match (started.contains(hand), run.stopping) {
                (true, None) => accused.push((*number, held)),
                (true, Some(_)) if broken(Mutation::ReturnsAreCharged) => accused.push((*number, held)),
                (true, Some(reason)) => {
                    let why = StopReason::as_str(reason);
                    let attempt = self.attempt(&held, &run.node, AttemptEnd::Returned, why, Payer::Nobody);
                    self.note_attempt(&at, *number, attempt);
                    self.put_back(&at, *number, false);
                }
                (false, _) if broken(Mutation::NeighboursAccused) && run.stopping.is_none() => {
                    accused.push((*number, held));
                }
                (false, _) => self.put_back(&at, *number, false),
            }
        }
        match accused.as_slice() {
            [] => None,
            [(number, held)] => self.blame(&at, *number, held, run, cause),
            several => Some(self.accuse(&at, worker, several, run, cause)),
        }
    }

    /// A worker ended while it worked on one message.
    fn blame(&mut self, at: &Path, number: u64, held: &Held, run: &Run, cause: &Arc<CauseChain>) -> Option<String> {
        let worker = &held.worker;
        self.absolve(at, number, Verdict::Guilty);
        let is_sick = self.cluster.mailbox(at)?.workers.get(worker)?.sick;
        let payer = if is_sick { Payer::Worker } else { Payer::Undecided };
        let attempt = self.crash_attempt(held, run, cause, payer);
        self.note_attempt(at, number, attempt);
        let mailbox = self.mailbox(at);
        let message = mailbox.messages.get(&number)?;
        let (id, life) = (message.content.shown_id(number), message.life());
        mailbox.trouble(number, |trouble| {
            trouble.accused = true;
            trouble.undecided += u32::from(!is_sick);
        });
        if is_sick {
            self.put_back(at, number, true);
            return None;
        }
        let strike = Strike { message: number, life, incarnation: run.incarnation };
        mailbox.worker(worker, |worker| worker.streak.push(strike));
        self.put_back(at, number, true);
        self.suspect(at, worker);
        Some(format!("nobody: message {id} of {at}, which it worked on, pays"))
    }

    /// A worker that crashes on one message after the other is taken for sick, as long as there is something to try it with.
    fn suspect(&mut self, at: &Path, worker: &Path) {
        let Some(mailbox) = self.cluster.mailbox(at) else { return };
        let Some(known) = mailbox.workers.get(worker) else { return };
        let different = known.different();
        let enough = u32::try_from(different).unwrap_or(u32::MAX) >= mailbox.spec.suspect_after;
        if !enough || mailbox.queues.fresh.is_empty() || broken(Mutation::NobodyIsSick) {
            return;
        }
        self.mailbox(at).worker(worker, |worker| worker.sick = true);
        let text = format!(
            "{worker} crashed on {different} different messages of {at} with no success between: it is taken for sick, gets one new \
             message at a time, and pays for its crashes itself"
        );
        self.event(EventKind::WorkerSick, Some(worker), None, text);
    }

    /// A worker ended while it worked on several messages: each is handed out alone.
    fn accuse(
        &mut self,
        at: &Path,
        worker: &Path,
        several: &[(u64, Held)],
        run: &Run,
        cause: &Arc<CauseChain>,
    ) -> String {
        let mailbox = self.mailbox(at);
        mailbox.accused += 1;
        let name = mailbox.accused;
        let open: BTreeSet<u64> = several.iter().map(|(number, _)| *number).collect();
        let accusation = Accusation { worker: worker.clone(), cause: cause.clone(), open, explained: false };
        mailbox.accusations.insert(name, Arc::new(accusation));
        for (number, held) in several {
            let attempt = self.crash_attempt(held, run, cause, Payer::OneOfSeveral);
            self.note_attempt(at, *number, attempt);
            if broken(Mutation::SeveralPay) {
                self.charge_message(at, *number);
            }
            self.mailbox(at).trouble(*number, |trouble| {
                trouble.accused = true;
                trouble.accusation = Some(name);
            });
            self.put_back(at, *number, false);
        }
        let count = several.len();
        format!("nobody yet: it worked on {count} messages of {at}, and each is handed out alone to see which did it")
    }

    /// A suspect was alone with a worker, or cannot be any more.
    pub(super) fn absolve(&mut self, at: &Path, number: u64, verdict: Verdict) {
        let mailbox = self.mailbox(at);
        let name = mailbox.messages.get(&number).and_then(|message| message.trouble.as_ref()?.accusation);
        let Some(name) = name else { return };
        mailbox.trouble(number, |trouble| trouble.accusation = None);
        let Some(accusation) = mailbox.accusations.get_mut(&name) else { return };
        let accusation = Arc::make_mut(accusation);
        accusation.open.remove(&number);
        accusation.explained |= verdict != Verdict::Innocent;
        if !accusation.open.is_empty() {
            return;
        }
        let Accusation { worker, cause, explained, .. } = accusation.clone();
        mailbox.accusations.remove(&name);
        if !explained && !broken(Mutation::NobodyPaysLate) {
            self.charge_late(&worker, cause);
        }
    }

    fn crash_attempt(&self, held: &Held, run: &Run, cause: &CauseChain, payer: Payer) -> Attempt {
        let mut attempt = self.attempt(held, &run.node, AttemptEnd::Crashed, "", payer);
        if let Some(cause) = cause.outermost() {
            attempt.class = Some(cause.class);
            attempt.why = cause.message[..cause.message.floor_char_boundary(MAX_FAILURE)].to_owned();
            attempt.stderr = clipped(&cause.stderr, ATTEMPT_STDERR).to_owned();
        }
        attempt
    }

    /// A worker succeeded with something: it is well, so the messages of its streak pay.
    pub(super) fn worker_is_well(&mut self, at: &Path, worker: &Path) {
        let (streak, was_sick) = self.end_streak(at, worker);
        for strike in streak {
            self.decide(at, strike, Payer::Message);
        }
        if was_sick {
            let text = format!("{worker} is well again: the messages of {at} that it crashed on pay");
            self.event(EventKind::WorkerWell, Some(worker), None, text);
        }
    }

    /// A worker is replaced by another version, or is gone. One that was taken for sick takes its verdict along.
    pub fn worker_replaced(&mut self, worker: &Path) {
        let Some(at) = self.mailbox_with(worker) else { return };
        self.mail_changed(&at);
        let (streak, was_sick) = self.end_streak(&at, worker);
        let nobody = was_sick && !broken(Mutation::ReplacedPays);
        let payer = if nobody { Payer::Replaced } else { Payer::Message };
        for strike in streak {
            self.decide(&at, strike, payer);
        }
    }

    /// A worker is forgotten.
    pub fn worker_gone(&mut self, worker: &Path) {
        let Some(at) = self.mailbox_with(worker) else { return };
        self.worker_replaced(worker);
        self.mailbox(&at).forget_worker(worker);
    }

    fn end_streak(&mut self, at: &Path, worker: &Path) -> (Vec<Strike>, bool) {
        self.mailbox(at).worker(worker, |worker| (std::mem::take(&mut worker.streak), std::mem::take(&mut worker.sick)))
    }

    fn decide(&mut self, at: &Path, strike: Strike, payer: Payer) {
        let Strike { message: number, life, incarnation } = strike;
        let charged = payer == Payer::Message;
        let mailbox = self.mailbox(at);
        if mailbox.messages.get(&number).is_none_or(|message| message.life() != life) {
            return; // It was done, redriven or purged meanwhile.
        }
        mailbox.trouble(number, |trouble| trouble.decide(incarnation, payer));
        mailbox.ledger.charged += u64::from(charged);
        mailbox.ledger.unpaid += u64::from(payer == Payer::Replaced);
        match mailbox.messages.get(&number).map(|message| message.state) {
            None | Some(State::Held(_)) => {}         // Looked at when it comes back.
            Some(_) if mailbox.closed.is_some() => {} // Swept with all that is left over.
            Some(State::Delayed(until)) => self.put_back_until(at, number, Some(until)),
            Some(_) => self.put_back(at, number, false),
        }
    }

    /// Where nothing is left to try a worker with, and nothing that it holds will tell, the messages of its streak pay.
    pub(super) fn judge(&mut self, at: &Path) {
        if broken(Mutation::VerdictsNeverEnd) {
            return;
        }
        let is_open = |mailbox: &&Mailbox| !mailbox.streaks.is_empty() && mailbox.queues.fresh.is_empty();
        let Some(mailbox) = self.cluster.mailbox(at).filter(is_open) else { return };
        let holds_nothing = |path: &&Path| mailbox.workers.get(*path).is_none_or(|worker| worker.held() == 0);
        for worker in mailbox.streaks.iter().filter(holds_nothing).cloned().collect::<Vec<_>>() {
            self.worker_is_well(at, &worker);
        }
    }

    /// Puts a message that nobody holds where it belongs: dead where it has had all its attempts. `delayed`: its retry delay begins.
    pub(super) fn put_back(&mut self, at: &Path, number: u64, delayed: bool) {
        let now = self.now();
        let mailbox = self.mailbox(at);
        let Some(message) = mailbox.messages.get(&number) else { return };
        let wait = mailbox.spec.retry_after(message.counted().max(1));
        let stir = dice_of(at, number, message.counted());
        // Up to a quarter longer, so that what failed together is not tried together.
        let wait = wait + wait / 4 / 1024 * u32::try_from(stir % 1025).unwrap_or_default();
        self.put_back_until(
            at,
            number,
            Some(now + wait).filter(|_| delayed && !wait.is_zero() && !broken(Mutation::RetriesAtOnce)),
        );
    }

    pub(super) fn put_back_until(&mut self, at: &Path, number: u64, until: Option<std::time::Duration>) {
        let mailbox = self.mailbox(at);
        mailbox.trouble(number, |trouble| trouble.handed = true);
        let Some(message) = mailbox.messages.get(&number) else { return };
        let charged = message.charged();
        let counted = if broken(Mutation::OneAttemptMore) { charged.saturating_sub(1) } else { charged };
        if mailbox.spec.max_attempts.are_spent(counted) {
            let why = format!("{charged} attempts were charged to it, and max_attempts allows no more");
            return self.die(at, number, DeathKind::Attempts, why);
        }
        if mailbox.closed.is_some() {
            return self.leave_over(at, number);
        }
        let state = mailbox.place_of(message, until);
        mailbox.stand(number, state);
    }
}

impl Trouble {
    /// Says who pays for the undecided attempt of a run. Its evidence may not be kept any more; it counts all the same.
    fn decide(&mut self, incarnation: Incarnation, payer: Payer) {
        self.undecided -= 1;
        self.charged += u32::from(payer == Payer::Message);
        let mut attempts = self.attempts.iter_mut().rev();
        let is_it =
            |attempt: &&mut Arc<Attempt>| attempt.incarnation == incarnation && attempt.payer == Payer::Undecided;
        if let Some(attempt) = attempts.find(is_it) {
            Arc::make_mut(attempt).payer = payer;
        }
    }
}

fn dice_of(at: &Path, number: u64, attempt: u32) -> u64 {
    crate::restarts::dice(at, number.rotate_left(8) ^ u64::from(attempt))
}

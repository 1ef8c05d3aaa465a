//! Handing out: which message goes to which worker next. In the log before any worker sees it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use imbl::OrdSet;
use pando_protocol::ids::{NodeName, Path};

use super::{Held, Mailbox, Queues, State, Worker, WorkerRun};
use crate::change::Change;
use crate::mutation::{Mutation, broken, look};

/// A message and the worker that gets it.
struct Choice {
    number: u64,
    worker: Path,
    /// It is a suspect: the worker gets nothing beside it.
    alone: bool,
}

impl Change<'_> {
    /// Hands out of a mailbox whatever can be, after judging the workers whose streak nothing can decide any more.
    pub fn hand_out(&mut self, at: &Path) {
        loop {
            self.judge(at);
            let Some(mailbox) = self.cluster.mailbox(at) else { return };
            let is_paused = mailbox.paused && !broken(Mutation::PauseIgnored);
            if is_paused || mailbox.closed.is_some() || !mailbox.sweeps.is_empty() {
                return;
            }
            let Some(choice) = choose(mailbox, self.now()) else { return };
            if self.give(at, choice).is_none() {
                return; // No session: only a bug of ours. Nothing is handed out, rather than for ever.
            }
        }
    }

    fn give(&mut self, at: &Path, choice: Choice) -> Option<()> {
        let Choice { number, worker, alone } = choice;
        let (began, now) = (self.wall, self.now());
        let run = self.cluster.mailbox(at).and_then(|mailbox| mailbox.workers.get(&worker)?.run.clone());
        let WorkerRun { incarnation, node, session, .. } = run?;
        let standing = self.session(&node, session)?;
        standing.last_hand += 1;
        let hand = standing.last_hand;
        let held = Held { mailbox: at.clone(), message: number, worker: worker.clone(), incarnation, began, at: now };
        standing.hands.insert(hand, held);
        let mailbox = self.mailbox(at);
        mailbox.stand(number, State::Held(hand));
        mailbox.worker(&worker, |worker| {
            if let Some(run) = &mut worker.run {
                if run.held.is_empty() {
                    run.pace.begin(now);
                }
                run.held.insert(hand, number);
                run.alone = alone;
            }
        });
        mailbox.ledger.handed += 1;
        let message = mailbox.messages.get(&number)?;
        if message.trouble.as_ref().is_some_and(|trouble| trouble.node_losses > 0) {
            mailbox.risky.insert(number, node);
        }
        if message.trouble.as_ref().is_some_and(|trouble| trouble.handed) {
            mailbox.ledger.redelivered += 1;
            return Some(());
        }
        if message.life() == 1 {
            mailbox.ledger.waited += now.saturating_sub(message.content.at);
        }
        if let Some(trouble) = mailbox.messages.get_mut(&number).and_then(|message| message.trouble.as_mut()) {
            Arc::make_mut(trouble).handed = true; // Of a message without trouble, whatever ends the attempt notes it.
        }
        Some(())
    }
}

fn choose(mailbox: &Mailbox, now: Duration) -> Option<Choice> {
    if let Some(choice) = probe(mailbox) {
        return Some(choice);
    }
    let (suspect, reserved) = alone(mailbox, now);
    if suspect.is_some() {
        return suspect;
    }
    // In the order in which they were sent, but for those that cannot be placed now: nothing waits behind them.
    risky(mailbox, reserved.as_ref(), now).or_else(|| usual(mailbox, reserved.as_ref(), now))
}

/// Workers that can take one message more, those that hold least first.
fn able(mailbox: &Mailbox, now: Duration) -> impl Iterator<Item = &Path> {
    let is_able = move |path: &&Path| {
        mailbox.workers.get(*path).is_some_and(|worker| !worker.sick && !is_stuck(mailbox, worker, now))
    };
    mailbox.free.iter().map(|(_, path)| path).inspect(|_| look()).filter(is_able)
}

/// Whether a worker was quick and has settled nothing of late: it has enough to do, and others would do more sooner.
fn is_stuck(mailbox: &Mailbox, worker: &Worker, now: Duration) -> bool {
    let stuck = |run: &WorkerRun| worker.held() >= mailbox.allowance(run).into() && run.pace.is_stale(now);
    worker.run.as_ref().is_some_and(stuck) && !broken(Mutation::AheadOfTheStuck)
}

/// Those that may get a message that was accused: a worker with a streak gets none while another is well, for what it dies of then
/// would say little of either.
fn able_for_accused(mailbox: &Mailbox, now: Duration) -> impl Iterator<Item = &Path> {
    let no_other = mailbox.well == 0 || broken(Mutation::DoubtIgnored);
    able(mailbox, now).filter(move |path| no_other || !mailbox.streaks.contains(*path))
}

/// A never-accused message from the far end of the queue, for a worker that is taken for sick.
fn probe(mailbox: &Mailbox) -> Option<Choice> {
    if mailbox.streaks.is_empty() {
        return None;
    }
    let number = *mailbox.queues.fresh.get_max()?;
    let is_sick_and_free = |path: &&Path| {
        let worker = mailbox.workers.get(*path);
        worker.is_some_and(|worker| worker.sick && worker.held() == 0 && mailbox.is_free(worker))
    };
    let worker = mailbox.streaks.iter().find(is_sick_and_free)?.clone();
    Some(Choice { number, worker, alone: false })
}

/// A suspect for a worker that holds nothing; else the worker that is to be left alone until it holds nothing. Only the first of
/// each kind is looked at: where that cannot go, none of its kind can.
fn alone(mailbox: &Mailbox, now: Duration) -> (Option<Choice>, Option<Path>) {
    let Queues { suspects, risky_suspects, .. } = &mailbox.queues;
    let first_of_each = [(suspects.get_min(), false), (risky_suspects.get_min(), true)];
    let mut first_of_each: Vec<(u64, bool)> =
        first_of_each.into_iter().filter_map(|(number, is_risky)| Some((*number?, is_risky))).collect();
    first_of_each.sort_unstable();
    let mut reserved = None;
    for (number, is_risky) in first_of_each {
        look();
        let risky_nodes = risky_nodes(mailbox);
        let mut candidates =
            able_for_accused(mailbox, now).filter(|path| !is_risky || is_on_another_node(mailbox, path, &risky_nodes));
        let Some(first) = candidates.next() else { continue };
        let is_empty = |path: &Path| mailbox.workers.get(path).is_some_and(|worker| worker.held() == 0);
        if is_empty(first) || broken(Mutation::SuspectsTogether) {
            let alone = !broken(Mutation::SuspectsTogether);
            let worker = another(mailbox, number, first, candidates.filter(|path| is_empty(path)));
            return (Some(Choice { number, worker, alone }), None);
        }
        reserved.get_or_insert_with(|| first.clone());
    }
    (None, reserved)
}

/// A message that is accused of the loss of a node, for a node that holds no other such one. Where the first cannot go, none can.
fn risky(mailbox: &Mailbox, reserved: Option<&Path>, now: Duration) -> Option<Choice> {
    let number = *mailbox.queues.risky.get_min()?;
    let risky_nodes = risky_nodes(mailbox);
    let is_open = |path: &&Path| Some(*path) != reserved && is_on_another_node(mailbox, path, &risky_nodes);
    let mut candidates = able_for_accused(mailbox, now).filter(is_open);
    let first = candidates.next()?;
    let worker = another(mailbox, number, first, candidates);
    Some(Choice { number, worker, alone: false })
}

/// Nodes that hold a message that is accused of the loss of a node: one each.
fn risky_nodes(mailbox: &Mailbox) -> BTreeSet<&NodeName> {
    mailbox.risky.values().collect()
}

fn is_on_another_node(mailbox: &Mailbox, worker: &Path, than: &BTreeSet<&NodeName>) -> bool {
    let run = mailbox.workers.get(worker).and_then(|worker| worker.run.as_ref());
    run.is_some_and(|run| !than.contains(&run.node))
}

fn usual(mailbox: &Mailbox, reserved: Option<&Path>, now: Duration) -> Option<Choice> {
    let first_of = |queue: &OrdSet<u64>| queue.get_min().copied();
    let (fresh, again) = (first_of(&mailbox.queues.fresh), first_of(&mailbox.queues.again));
    let is_open = |path: &&Path| Some(*path) != reserved;
    let first = able(mailbox, now).find(is_open)?;
    // A worker that crashed on something tells more by a message that is accused of nothing.
    let in_doubt = mailbox.streaks.contains(first) && !broken(Mutation::NobodyIsSick);
    let number = fresh.filter(|_| in_doubt).or_else(|| fresh.into_iter().chain(again).min())?;
    let worker = if Some(number) == again {
        let mut candidates = able_for_accused(mailbox, now).filter(is_open);
        let first = candidates.next()?;
        another(mailbox, number, first, candidates)
    } else {
        another(mailbox, number, first, able(mailbox, now).filter(is_open).skip(1))
    };
    Some(Choice { number, worker, alone: false })
}

/// Another worker than the one that had the message last, where one is free.
fn another<'m>(mailbox: &Mailbox, number: u64, first: &Path, mut others: impl Iterator<Item = &'m Path>) -> Path {
    let last = mailbox.messages.get(&number).and_then(|message| message.trouble.as_ref()?.last_worker.as_ref());
    let had_it = last == Some(first) && !broken(Mutation::SameWorkerAgain);
    if !had_it {
        return first.clone();
    }
    others.next().unwrap_or(first).clone()
}

//! What must always hold of mailboxes: of one state, and between a state and the one after it. Design section 7.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdSet;
use pando_protocol::ids::{NodeName, Path};
use pando_protocol::mail::{DeathKind, MAX_FAILURE};

use super::Broken;
use crate::cluster::Cluster;
use crate::mail::{
    ATTEMPT_STDERR, ATTEMPTS_KEPT, Chore, DeadLetter, IDS_KEPT, LIFE_KEPT, MAIL_REPLIES_KEPT, Mailbox, Message, Payer,
    Queues, State, Trouble, Worker, WorkerRun,
};
use crate::mutation::swept_at_once;

fn each(cluster: &Cluster, holds: impl Fn(&Path, &Mailbox) -> Result<(), Broken>) -> Result<(), Broken> {
    cluster.mail.iter().try_for_each(|(path, mailbox)| holds(path, mailbox).map_err(|why| format!("{path}: {why}")))
}

pub(super) fn messages_are_conserved(cluster: &Cluster) -> Result<(), Broken> {
    each(cluster, |_, mailbox| {
        let (waiting, in_flight, dead) = (mailbox.waiting(), mailbox.in_flight(), mailbox.dead.len() as u64);
        let ledger = &mailbox.ledger;
        if ledger.enqueued != ledger.done + dead + waiting + in_flight + ledger.purged {
            return Err(format!("{ledger:?}, {dead} dead, {waiting} waiting, {in_flight} in flight"));
        }
        match mailbox.messages.keys().find(|number| mailbox.dead.contains_key(*number)) {
            Some(number) => Err(format!("{number} is both a message and a dead letter")),
            None => Ok(()),
        }
    })
}

pub(super) fn each_message_stands_where_its_state_says(cluster: &Cluster) -> Result<(), Broken> {
    each(cluster, |_, mailbox| {
        let mut expected = Queues::default();
        for (number, message) in &mailbox.messages {
            match message.state {
                State::Fresh => _ = expected.fresh.insert(*number),
                State::Again => _ = expected.again.insert(*number),
                State::Risky => _ = expected.risky.insert(*number),
                State::Suspect => _ = expected.suspects.insert(*number),
                State::RiskySuspect => _ = expected.risky_suspects.insert(*number),
                State::Delayed(until) => _ = expected.delayed.insert((until, *number)),
                State::Undecided => _ = expected.undecided.insert(*number),
                State::Held(_) => {}
            }
        }
        if expected != mailbox.queues {
            return Err(format!("the queues are {:?}, by the messages {expected:?}", mailbox.queues));
        }
        Ok(())
    })
}

/// Session, message and worker agree on who holds what, and the holder is the run that is assigned.
pub(super) fn no_message_is_held_by_a_run_that_is_over(cluster: &Cluster) -> Result<(), Broken> {
    let mut listed = BTreeSet::new();
    for (name, node) in &cluster.nodes {
        for (id, session) in &node.sessions {
            if session.hands.get_max().is_some_and(|(hand, _)| *hand > session.last_hand) {
                return Err(format!("{name} {id} has hands beyond {}", session.last_hand));
            }
            for (hand, held) in &session.hands {
                let mailbox = cluster.mailbox(&held.mailbox).ok_or_else(|| format!("{hand} is of no mailbox"))?;
                let state = mailbox.messages.get(&held.message).map(|message| message.state);
                if state != Some(State::Held(*hand)) {
                    return Err(format!("{name} {id} holds {} of {}, which is {state:?}", held.message, held.mailbox));
                }
                let run = cluster.run(&held.worker).ok_or_else(|| format!("{} holds and has no run", held.worker))?;
                if (run.incarnation, &run.node, run.session) != (held.incarnation, name, *id) {
                    return Err(format!("{} holds {} and {} runs", held.incarnation, held.message, run.incarnation));
                }
                let known = mailbox.workers.get(&held.worker).and_then(|worker| worker.run.as_ref());
                if known.and_then(|known| known.held.get(hand)) != Some(&held.message) {
                    return Err(format!("{} does not know that it holds {}", held.worker, held.message));
                }
                listed.insert((held.mailbox.clone(), held.message));
            }
        }
    }
    each(cluster, |path, mailbox| {
        let is_held = |(_, message): &(&u64, &Message)| matches!(message.state, State::Held(_));
        let lost =
            mailbox.messages.iter().filter(is_held).find(|(number, _)| !listed.contains(&(path.clone(), **number)));
        if let Some((number, _)) = lost {
            return Err(format!("{number} is held under no session"));
        }
        for (worker, known) in &mailbox.workers {
            let Some(WorkerRun { incarnation, node, session, held, .. }) = &known.run else { continue };
            let run = cluster.run(worker).map(|run| (run.incarnation, &run.node, run.session));
            if run != Some((*incarnation, node, *session)) {
                return Err(format!("{worker} is known as {incarnation}, and {run:?} runs"));
            }
            let hands = cluster.session(node, *session).map(|standing| &standing.hands);
            let is_known = |hand: &u64| hands.is_some_and(|hands| hands.contains_key(hand));
            if !held.keys().all(is_known) {
                return Err(format!("{worker} holds {held:?}, and its session {hands:?}"));
            }
        }
        Ok(())
    })
}

pub(super) fn a_mailbox_knows_what_it_weighs(cluster: &Cluster) -> Result<(), Broken> {
    each(cluster, |_, mailbox| {
        let messages: u64 = mailbox.messages.values().map(Message::weight).sum();
        let dead: u64 = mailbox.dead.values().map(|letter| letter.weight()).sum();
        let replies: u64 = mailbox.replies.values().map(|reply| reply.weight()).sum();
        if mailbox.bytes != messages + dead + replies {
            return Err(format!("{} bytes are counted, and {messages} + {dead} + {replies} there", mailbox.bytes));
        }
        if mailbox.summed != mailbox.bytes {
            return Err(format!("{} bytes are counted, and {} of them in the sum", mailbox.bytes, mailbox.summed));
        }
        Ok(())
    })?;
    let (sum, all) = (cluster.head.mail_bytes, cluster.mail.values().map(|mailbox| mailbox.bytes).sum::<u64>());
    if sum == all { Ok(()) } else { Err(format!("the sum of all is {sum}, and together they weigh {all}")) }
}

fn credit(mailbox: &Mailbox, worker: &Worker) -> u64 {
    match &worker.run {
        None => 0,
        Some(run) if run.readiness.starts && !worker.sick => {
            let in_doubt = mailbox.workers.values().any(|worker| !worker.streak.is_empty());
            let was_lowered = mailbox.spec.prefetch < run.readiness.prefetch;
            let ahead = if in_doubt || was_lowered { 0 } else { run.pace.ahead };
            u64::from(run.readiness.prefetch.min(mailbox.spec.prefetch).max(1)) + u64::from(ahead)
        }
        Some(_) => 1,
    }
}

fn is_free(mailbox: &Mailbox, worker: &Worker) -> bool {
    worker.run.as_ref().is_some_and(|run| !run.stopping && !run.alone) && worker.held() < credit(mailbox, worker)
}

/// Ready, not being stopped, and no crash of it is unexplained.
fn is_well(worker: &Worker) -> bool {
    worker.streak.is_empty() && worker.run.as_ref().is_some_and(|run| !run.stopping)
}

pub(super) fn the_lists_of_workers_are_true(cluster: &Cluster) -> Result<(), Broken> {
    each(cluster, |_, mailbox| {
        let free = mailbox.workers.iter().filter(|(_, worker)| is_free(mailbox, worker));
        let free: OrdSet<(u64, Path)> = free.map(|(path, worker)| (worker.held(), path.clone())).collect();
        let streaks = mailbox.workers.iter().filter(|(_, worker)| !worker.streak.is_empty());
        let streaks: OrdSet<Path> = streaks.map(|(path, _)| path.clone()).collect();
        if (&free, &streaks) != (&mailbox.free, &mailbox.streaks) {
            let (listed, in_streak) = (&mailbox.free, &mailbox.streaks);
            return Err(format!("free are {free:?}, listed {listed:?}; streaks {streaks:?}, listed {in_streak:?}"));
        }
        let well = mailbox.workers.values().filter(|worker| is_well(worker)).count() as u64;
        if well != mailbox.well {
            return Err(format!("{well} workers are well, and {} are counted", mailbox.well));
        }
        match mailbox.workers.iter().find(|(_, worker)| worker.sick && worker.streak.is_empty()) {
            Some((path, _)) => Err(format!("{path} is taken for sick without a streak")),
            None => Ok(()),
        }
    })
}

fn node_losses(message: &Message) -> u32 {
    message.trouble.as_ref().map_or(0, |trouble| trouble.node_losses)
}

/// What is accused of the loss of a node is alone there with its accusation.
pub(super) fn suspects_of_a_loss_are_kept_on_different_nodes(cluster: &Cluster) -> Result<(), Broken> {
    each(cluster, |_, mailbox| {
        let mut on: BTreeMap<u64, NodeName> = BTreeMap::new();
        for worker in mailbox.workers.values() {
            let Some(run) = &worker.run else { continue };
            let is_risky =
                |number: &&u64| mailbox.messages.get(*number).is_some_and(|message| node_losses(message) > 0);
            on.extend(run.held.values().filter(is_risky).map(|number| (*number, run.node.clone())));
        }
        let different: BTreeSet<&NodeName> = on.values().collect();
        if different.len() != on.len() || on != mailbox.risky.iter().map(|(at, node)| (*at, node.clone())).collect() {
            return Err(format!("they are on {on:?}, listed {:?}", mailbox.risky));
        }
        Ok(())
    })
}

/// A suspect is handed out alone, and a worker that is taken for sick holds one message.
pub(super) fn a_suspect_is_alone_with_its_worker(cluster: &Cluster) -> Result<(), Broken> {
    each(cluster, |_, mailbox| {
        for (path, worker) in &mailbox.workers {
            let Some(run) = &worker.run else { continue };
            let accused = |number: &u64| {
                mailbox.messages.get(number).and_then(|message| message.trouble.as_ref()?.accusation).is_some()
            };
            let suspects = run.held.values().filter(|number| accused(number)).count();
            if suspects > 0 && (run.held.len() > 1 || !run.alone) {
                return Err(format!("{path} holds {:?}, {suspects} of them suspects", run.held));
            }
            if worker.sick && run.held.len() > 1 {
                return Err(format!("{path} is taken for sick and holds {:?}", run.held));
            }
        }
        Ok(())
    })
}

pub(super) fn nothing_waits_that_a_free_worker_could_take(cluster: &Cluster) -> Result<(), Broken> {
    each(cluster, |_, mailbox| {
        if mailbox.paused || mailbox.closed.is_some() || !mailbox.sweeps.is_empty() {
            return Ok(());
        }
        let Queues { fresh, again, risky, suspects, risky_suspects, delayed: _, undecided: _ } = &mailbox.queues;
        let one_is_well = mailbox.workers.values().any(|worker| is_well(worker));
        let mut left_alone = false; // One that is to hold nothing before it gets a suspect.
        let risky_nodes: BTreeSet<&NodeName> = mailbox.risky.values().collect();
        for (path, worker) in mailbox.workers.iter().filter(|(_, worker)| is_free(mailbox, worker)) {
            let Some(run) = &worker.run else { continue };
            if worker.sick {
                if worker.held() == 0 && !fresh.is_empty() {
                    return Err(format!("{path} is taken for sick and could be tried with {:?}", fresh.get_max()));
                }
                continue;
            }
            // Beyond its prefetch only one that settles gets more: within 4 times the 25 ms of its pace.
            let prefetch = u64::from(run.readiness.prefetch.min(mailbox.spec.prefetch).max(1));
            if worker.held() >= prefetch && run.pace.is_stale(cluster.head.now) {
                continue;
            }
            let fits = |number: &&u64| {
                let is_risky = mailbox.messages.get(*number).is_some_and(|message| node_losses(message) > 0);
                !is_risky || !risky_nodes.contains(&run.node)
            };
            // What was accused is kept from a worker in doubt while another one is well.
            let is_kept_away = one_is_well && !worker.streak.is_empty();
            let suspect = suspects.iter().chain(risky_suspects).find(fits).filter(|_| !is_kept_away);
            if worker.held() == 0 && suspect.is_some() {
                return Err(format!("{path} holds nothing and could be alone with {suspect:?}"));
            }
            let accused = again.get_min().or(risky.iter().find(fits)).filter(|_| !is_kept_away);
            let other = fresh.get_min().or(accused);
            if other.is_none() {
                continue;
            }
            if suspect.is_none() || std::mem::replace(&mut left_alone, true) {
                return Err(format!("{path} could take {other:?}"));
            }
        }
        Ok(())
    })
}

/// What is undecided has a worker whose next success or crash decides it.
pub(super) fn each_undecided_charge_is_of_a_streak(cluster: &Cluster) -> Result<(), Broken> {
    each(cluster, |_, mailbox| {
        let mut strikes: BTreeMap<(u64, u32), u32> = BTreeMap::new();
        for strike in mailbox.workers.values().flat_map(|worker| &worker.streak) {
            *strikes.entry((strike.message, strike.life)).or_default() += 1;
        }
        for (number, message) in &mailbox.messages {
            let undecided = message.trouble.as_ref().map_or(0, |trouble| trouble.undecided);
            let struck = strikes.get(&(*number, message.life())).copied().unwrap_or(0);
            if undecided != struck {
                return Err(format!("{number} has {undecided} undecided charges, and streaks say {struck}"));
            }
        }
        let holds_nothing = |path: &&Path| mailbox.workers.get(*path).is_none_or(|worker| worker.held() == 0);
        match mailbox.streaks.iter().find(|path| mailbox.queues.fresh.is_empty() && holds_nothing(path)) {
            Some(path) => Err(format!("nothing is left to try {path} with, and its streak goes on")),
            None => Ok(()),
        }
    })
}

pub(super) fn accusations_name_those_who_are_accused(cluster: &Cluster) -> Result<(), Broken> {
    each(cluster, |_, mailbox| {
        let mut open: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for (number, message) in &mailbox.messages {
            if let Some(name) = message.trouble.as_ref().and_then(|trouble| trouble.accusation) {
                open.entry(name).or_default().insert(*number);
            }
        }
        let known = mailbox.accusations.iter().map(|(name, accusation)| (*name, accusation.open.clone()));
        let known: BTreeMap<u64, BTreeSet<u64>> = known.collect();
        if open != known { Err(format!("by the messages {open:?}, by the accusations {known:?}")) } else { Ok(()) }
    })
}

/// Whether something is still to be done with a message, as with all others.
fn is_unswept(mailbox: &Mailbox, number: u64) -> bool {
    mailbox.sweeps.values().any(|sweep| sweep.after < number && number <= sweep.upto)
}

pub(super) fn messages_that_had_all_their_attempts_are_dead(cluster: &Cluster) -> Result<(), Broken> {
    each(cluster, |_, mailbox| {
        let waits = |(_, message): &(&u64, &Message)| !matches!(message.state, State::Held(_));
        let spent = |message: &Message| mailbox.spec.max_attempts.are_spent(message.charged());
        let is_swept = |(number, _): &(&u64, &Message)| !is_unswept(mailbox, **number);
        let mut swept = mailbox.messages.iter().filter(waits).filter(is_swept);
        if let Some((number, message)) = swept.find(|(_, message)| spent(message)) {
            return Err(format!("{number} waits with {} charged attempts", message.charged()));
        }
        let closing = |chore: &Chore| matches!(chore, Chore::SetAside | Chore::PurgeDead);
        if mailbox.closed.is_none() && mailbox.sweeps.keys().any(closing) {
            return Err(format!("it is open, and still being closed: {:?}", mailbox.sweeps));
        }
        if mailbox.closed.is_some() && mailbox.messages.iter().filter(waits).any(|one| is_swept(&one)) {
            return Err(format!("it is closed, and {} messages wait", mailbox.waiting()));
        }
        let is_spent = |trouble: &Trouble| mailbox.spec.max_attempts.are_spent(trouble.charged + trouble.undecided);
        let undecided = |message: &Message| message.trouble.as_ref().is_some_and(|trouble| is_spent(trouble));
        let stands = |message: &Message| message.state == State::Undecided;
        let mut swept = mailbox.messages.iter().filter(waits).filter(is_swept);
        match swept.find(|(_, one)| undecided(one) != stands(one)) {
            Some((number, message)) => Err(format!("{number} is {:?} with {:?}", message.state, message.trouble)),
            None => Ok(()),
        }
    })
}

/// Each charge of the life has its evidence, as far as evidence is kept.
pub(super) fn each_charge_has_its_evidence(cluster: &Cluster) -> Result<(), Broken> {
    each(cluster, |_, mailbox| {
        let waiting = mailbox.messages.iter().filter_map(|(number, message)| Some((number, message.trouble.as_ref()?)));
        let dead = mailbox.dead.iter().map(|(number, letter)| (number, &letter.trouble));
        for (number, trouble) in waiting.chain(dead) {
            let count = |payer: Payer| {
                let of_life = trouble.attempts.iter().filter(|one| one.life == trouble.life && one.payer == payer);
                u32::try_from(of_life.count()).unwrap_or(u32::MAX)
            };
            let (charged, undecided) = (count(Payer::Message), count(Payer::Undecided));
            if trouble.left_out == 0 && (charged, undecided) != (trouble.charged, trouble.undecided) {
                return Err(format!(
                    "{number} has evidence of {charged} charges and {undecided} undecided: {trouble:?}"
                ));
            }
            let mut of_life: BTreeMap<u32, usize> = BTreeMap::new();
            for attempt in &trouble.attempts {
                *of_life.entry(attempt.life).or_default() += 1;
                if attempt.stderr.len() > ATTEMPT_STDERR || attempt.why.len() > MAX_FAILURE {
                    return Err(format!("{number} keeps more of an attempt than is allowed: {attempt:?}"));
                }
            }
            if trouble.attempts.len() > ATTEMPTS_KEPT || of_life.values().any(|kept| *kept > LIFE_KEPT) {
                return Err(format!("{number} keeps {} attempts, by lives {of_life:?}", trouble.attempts.len()));
            }
        }
        Ok(())
    })
}

pub(super) fn what_a_mailbox_keeps_is_bounded(cluster: &Cluster) -> Result<(), Broken> {
    each(cluster, |path, mailbox| {
        if mailbox.replies.len() > MAIL_REPLIES_KEPT || mailbox.ended_ids.len() > IDS_KEPT {
            return Err(format!("{} replies, {} ids", mailbox.replies.len(), mailbox.ended_ids.len()));
        }
        let mut ids: BTreeMap<&Arc<str>, u64> = BTreeMap::new();
        let named = mailbox.messages.iter().map(|(number, message)| (number, &message.content));
        let named = named.chain(mailbox.dead.iter().map(|(number, letter)| (number, &letter.content)));
        ids.extend(named.filter_map(|(number, content)| Some((content.id.as_ref()?, *number))));
        ids.extend(mailbox.ended_ids.iter().map(|((_, number), id)| (id, *number)));
        if !ids.into_iter().eq(mailbox.ids.iter().map(|(id, number)| (id, *number))) {
            return Err(format!("the ids that are known are not those of its messages: {:?}", mailbox.ids));
        }
        let timer = mailbox.wake.map(|at| (at, path.clone()));
        if !cluster.mail_timers.iter().filter(|(_, of)| of == path).eq(timer.iter()) {
            return Err(format!("it wakes at {:?}, and its timers differ", mailbox.wake));
        }
        let newest = mailbox.replies.keys().map(|(at, number)| (*number, *at)).collect::<BTreeMap<_, _>>();
        if !newest.iter().eq(mailbox.replied.iter()) {
            return Err(format!("the newest replies are {newest:?}, listed {:?}", mailbox.replied));
        }
        if !mailbox.sweeps.is_empty() && mailbox.wake.is_none() {
            return Err(format!("{:?} are left, and nothing goes on with them", mailbox.sweeps));
        }
        // Too many may be due for one entry of the log: then the next is soon.
        let next = mailbox.queues.delayed.get_min().map(|(until, _)| *until).filter(|next| *next > cluster.head.now);
        let is_due = !mailbox.queues.delayed.is_empty() && mailbox.wake.is_none();
        if is_due || next.is_some_and(|next| mailbox.wake.is_none_or(|wake| wake > next)) {
            return Err(format!("it wakes at {:?}, and a delay ends at {next:?}", mailbox.wake));
        }
        Ok(())
    })
}

/// What a message went through, wherever it is.
fn went_through(mailbox: &Mailbox, number: u64) -> Option<(u32, u32)> {
    let waiting = mailbox.messages.get(&number).map(|message| (message.life(), message.charged()));
    waiting.or_else(|| mailbox.dead.get(&number).map(|letter| (letter.trouble.life, letter.trouble.charged)))
}

pub(super) fn charged_never_falls_within_a_life(before: &Cluster, after: &Cluster) -> Result<(), Broken> {
    for (path, old) in &before.mail {
        let Some(new) = after.mailbox(path).filter(|new| !std::ptr::eq(*new, old.as_ref())) else { continue };
        for number in old.messages.keys().chain(old.dead.keys()) {
            let (Some(was), Some(is)) = (went_through(old, *number), went_through(new, *number)) else { continue };
            if is.0 < was.0 || (is.0 == was.0 && is.1 < was.1) {
                return Err(format!("{number} of {path} was in life {} charged {}, and is {is:?}", was.0, was.1));
            }
            if is.0 > was.0 && !old.dead.contains_key(number) {
                return Err(format!("{number} of {path} got a new life and was not dead"));
            }
        }
    }
    Ok(())
}

pub(super) fn counts_of_a_mailbox_only_grow(before: &Cluster, after: &Cluster) -> Result<(), Broken> {
    for (path, old) in &before.mail {
        let Some(new) = after.mailbox(path) else { continue };
        let counts = |mailbox: &Mailbox| {
            let ledger = &mailbox.ledger;
            [
                ledger.enqueued,
                ledger.done,
                ledger.purged,
                ledger.charged,
                ledger.handed,
                ledger.redelivered,
                mailbox.named,
            ]
        };
        if counts(new).iter().zip(counts(old)).any(|(new, old)| *new < old) {
            return Err(format!("{path} counted {:?}, then {:?}", old.ledger, new.ledger));
        }
    }
    for (name, node) in &before.nodes {
        for (id, session) in &node.sessions {
            if after.session(name, *id).is_some_and(|now| now.last_hand < session.last_hand) {
                return Err(format!("the hands of {name} {id} fell"));
            }
        }
    }
    Ok(())
}

pub(super) fn a_message_dies_only_when_the_rule_says(before: &Cluster, after: &Cluster) -> Result<(), Broken> {
    for (path, new) in &after.mail {
        let known = before.mailbox(path);
        if known.is_some_and(|old| old.dead.ptr_eq(&new.dead)) {
            continue;
        }
        for (number, letter) in
            new.dead.iter().filter(|(number, _)| known.is_none_or(|old| !old.dead.contains_key(*number)))
        {
            let old = known.unwrap_or(new);
            let spent = |mailbox: &Mailbox| mailbox.spec.max_attempts.are_spent(letter.trouble.charged);
            let is_due = match letter.kind {
                DeathKind::Attempts => spent(old) || spent(new),
                DeathKind::NodeLosses => {
                    letter.trouble.node_losses >= old.spec.max_node_losses.min(new.spec.max_node_losses)
                }
                DeathKind::Rejected => true,
                DeathKind::Closed => new.closed.is_some(),
            };
            if !is_due {
                return Err(format!("{number} of {path} died by {}: {:?}", letter.kind, letter.trouble));
            }
        }
    }
    Ok(())
}

/// No entry of the log ends the waiting of more messages than it may: those that are purged or set aside, and the letters of a
/// mailbox that it closes.
pub(super) fn an_entry_sweeps_so_many_and_no_more(before: &Cluster, after: &Cluster) -> Result<(), Broken> {
    for (path, old) in &before.mail {
        let Some(new) = after.mailbox(path) else { continue };
        // What a verdict decides on dies of an attempt more than it had.
        let is_swept = |(number, message): &(&u64, &Message)| {
            let is_charged = |letter: &Arc<DeadLetter>| {
                letter.kind == DeathKind::Attempts && letter.trouble.charged > message.charged()
            };
            let waited = !matches!(message.state, State::Held(_));
            waited && !new.messages.contains_key(*number) && !new.dead.get(*number).is_some_and(is_charged)
        };
        let messages =
            if old.messages.ptr_eq(&new.messages) { 0 } else { old.messages.iter().filter(is_swept).count() };
        // Where it was closed before, an operator may have purged letters, which goes at once.
        let is_closed_now = old.closed.is_none() && new.closed.is_some();
        let purged = old.dead.keys().filter(|number| is_closed_now && !new.dead.contains_key(*number));
        let swept = messages + purged.count();
        // What its timer and the command do.
        if swept > 2 * swept_at_once() {
            return Err(format!("{swept} messages of {path} were purged or set aside in one entry"));
        }
    }
    Ok(())
}

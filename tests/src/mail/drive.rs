//! Random runs by a seed: what happens, in which order, and the healing at the end.

use std::time::Duration;

use pando_protocol::ids::{NodeName, Path};
use pando_protocol::mail::{Leftover, Letters};
use pando_protocol::message::Change;
use pando_protocol::session::Observation;
use pando_protocol::spec::{Attempts, MailboxSpec};
use pando_supervision::EndProof;
#[cfg(feature = "mutations")]
use pando_supervision::mutation::with_sweeps_of;

use super::books::Books;
use super::machines::{Health, Kind};
use super::sim::{MailSim, Wanted, at};
use crate::rules::dice::Dice;
use crate::rules::specs::ms;

/// Rounds within which all is done or dead once everything is well.
const HEALING_ROUNDS: usize = 3_000;

/// What kind of trouble a run has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// Only messages do harm, and nodes come and go.
    Messages,
    /// Workers are killed at random, too.
    Kills,
    /// One worker dies of whatever it starts.
    OneBroken,
    /// Deploys are bad now and then.
    Deploys,
}

/// Runs a seed; what it reached.
///
/// # Errors
/// What does not hold.
pub fn run(seed: u64, actions: usize) -> Result<Books, String> {
    // A few messages in each step of a sweep, so that much happens between two of them; and what is swept at once beside.
    match seed % 3 {
        0 => drive(seed, actions),
        rest => with_sweeps_of(rest as usize * 2 - 1, || drive(seed, actions)),
    }
}

/// Without the switch, all is swept at once.
#[cfg(not(feature = "mutations"))]
fn with_sweeps_of<T>(_messages: usize, body: impl FnOnce() -> T) -> T {
    body()
}

fn drive(seed: u64, actions: usize) -> Result<Books, String> {
    let mut dice = Dice::new(seed);
    let trouble = *dice
        .pick(&[Trouble::Messages, Trouble::Messages, Trouble::Kills, Trouble::OneBroken, Trouble::Deploys])
        .unwrap_or(&Trouble::Messages);
    let starts = !dice.once_in(4);
    let at_once = if starts { 1 + dice.below(3) } else { 1 };
    let prefetch = 1 + dice.below(6) as u32;
    let health = Health { starts, at_once, prefetch, ..Health::default() };
    let wanted = Wanted { count: 1 + dice.below(4) as u32, mailbox: mailbox(&mut dice), ..Wanted::default() };
    let mut sim = MailSim::new(&["n1", "n2", "n3"], wanted, health)?;
    let nodes: Vec<NodeName> = sim.machines.keys().cloned().collect();
    for node in &nodes {
        sim.poll(node, true)?;
    }
    if trouble == Trouble::OneBroken {
        sim.health.broken.extend(at().to_string().parse::<Path>().ok().map(|pool| worker(&pool, 0)));
    }
    for _ in 0..actions {
        act(&mut sim, &nodes, trouble, &mut dice)?;
        if trouble == Trouble::Messages
            && let Some(mailbox) = sim.mailbox()
        {
            Books::innocents_are_not_charged(mailbox, is_innocent)?;
        }
    }
    heal(&mut sim, &nodes, &mut dice)?;
    sim.replay(dice.below(sim.log.len()))?;
    Ok(sim.books)
}

fn worker(pool: &Path, index: u32) -> Path {
    format!("{pool}/{index}").parse().unwrap_or_else(|_| pool.clone())
}

fn is_innocent(payload: &[u8]) -> bool {
    [Kind::Good, Kind::Fails, Kind::Rejected, Kind::Returned].iter().any(|kind| kind.payload().bytes() == payload)
}

fn mailbox(dice: &mut Dice) -> MailboxSpec {
    let retry_delay = *dice.pick(&[ms(0), ms(0), ms(10), ms(100)]).unwrap_or(&Duration::ZERO);
    let limited = Attempts::Limited(1 + dice.below(4) as u32);
    MailboxSpec {
        max_attempts: if retry_delay > Duration::ZERO && dice.once_in(6) { Attempts::Unlimited } else { limited },
        retry_delay,
        prefetch: 1 + dice.below(6) as u32,
        suspect_after: 2 + dice.below(3) as u32,
        max_node_losses: 1 + dice.below(3) as u32,
        max_messages: if dice.once_in(8) { 20 } else { 100_000 },
        ..MailboxSpec::default()
    }
}

fn act(sim: &mut MailSim, nodes: &[NodeName], trouble: Trouble, dice: &mut Dice) -> Result<(), String> {
    let node = dice.pick(nodes).cloned().unwrap_or_else(|| nodes[0].clone());
    match dice.below(100) {
        0..30 => {
            sim.poll(&node, !dice.once_in(3))?;
            for _ in 0..=dice.below(4) {
                sim.deliver(&node)?;
            }
        }
        30..62 => {
            sim.work(&node, dice)?;
            if dice.once_in(2) {
                sim.deliver(&node)?;
            }
        }
        62..72 => sim.advance(ms(1 + dice.below(120) as u64))?,
        72..82 => send(sim, trouble, dice)?,
        82..84 => {
            let proof = *dice.pick(&[Some(true), Some(false), None]).unwrap_or(&None);
            let proof =
                proof.map(|obituary| if obituary { EndProof::Obituary("it died".into()) } else { EndProof::Lease });
            sim.lose(&node, proof)?;
        }
        84..87 => {
            let is_off = |node: &&NodeName| sim.machines[*node].runner.session.is_none();
            let off: Vec<NodeName> = nodes.iter().filter(is_off).cloned().collect();
            for node in off {
                sim.join(&node)?;
            }
        }
        87 => {
            let runner = sim.machines.get_mut(&node).map(|machine| &mut machine.runner);
            if let Some(runner) = runner.filter(|runner| runner.session.is_some() && !runner.leaving) {
                runner.leaving = true;
                runner.say(Observation::Leaving);
            }
        }
        88 => {
            let machine = sim.machines.get_mut(&node).filter(|machine| machine.runner.leaving);
            match machine {
                Some(machine) if dice.once_in(2) => machine.runner.stop_alone(),
                _ => sim.finish_leaving(&node),
            }
        }
        89 => {
            let change = if dice.once_in(2) { Change::Drain(node) } else { Change::Undrain(node) };
            sim.change(change)?.ok();
        }
        90 => {
            let change = if dice.once_in(3) { Change::Pause(at()) } else { Change::Resume(at()) };
            sim.change(change)?.ok();
        }
        91..93 => redrive(sim, dice)?,
        93 => {
            let change = match dice.below(8) {
                0 => Change::PurgeWaiting(at()),
                1..4 => Change::PurgeDead { from: at(), letters: some_letter(sim, dice) },
                _ => Change::Resume(at()),
            };
            sim.change(change)?.ok();
        }
        94 => {
            sim.wanted.count = 1 + dice.below(4) as u32;
            let count = sim.wanted.count;
            sim.change(Change::Scale { pool: at(), count })?.ok();
        }
        95 => {
            sim.wanted.mailbox = mailbox(dice);
            sim.apply_wanted()?;
        }
        96 if trouble == Trouble::Deploys || dice.once_in(6) => {
            sim.wanted.version += 1;
            sim.health.bad_deploy = trouble == Trouble::Deploys && dice.once_in(2);
            sim.apply_wanted()?;
        }
        97 if trouble != Trouble::Messages => kill(sim, &node, dice),
        98 => {
            if let Some(command) = dice.pick(&sim.told).cloned() {
                sim.again(command)?;
            }
        }
        99 if dice.once_in(4) => {
            let leftover =
                *dice.pick(&[Leftover::Refuse, Leftover::DeadLetter, Leftover::Purge]).unwrap_or(&Leftover::Refuse);
            sim.change(Change::DeleteLeaving("w".parse().expect("a name"), leftover))?.ok();
        }
        99 => sim.apply_wanted()?,
        _ => {}
    }
    Ok(())
}

fn kill(sim: &mut MailSim, node: &NodeName, dice: &mut Dice) {
    let (now, copies) = (sim.now, &mut sim.copies);
    let Some(machine) = sim.machines.get_mut(node) else { return };
    let running = machine.runner.in_state(pando_supervision::desired::Local::Running);
    if let Some(incarnation) = dice.pick(&running).copied() {
        let signal = pando_protocol::spec::Signal(9);
        machine.end(incarnation, pando_protocol::cause::ExitHow::Signal(signal), now, copies);
    }
}

fn send(sim: &mut MailSim, trouble: Trouble, dice: &mut Dice) -> Result<(), String> {
    let harmful = dice.once_in(2);
    let asks = dice.once_in(5);
    let count = if asks { 1 } else { 1 + dice.below(6) };
    let mut kinds = Vec::new();
    for _ in 0..count {
        let kind = match dice.below(12) {
            0 | 1 if harmful => Kind::Poison,
            2 if harmful => Kind::Hang,
            3 if harmful => Kind::KillsNode,
            4 => Kind::Fails,
            5 if dice.once_in(2) => Kind::Rejected,
            6 => Kind::Returned,
            _ => Kind::Good,
        };
        let kind = if trouble == Trouble::OneBroken && kind == Kind::KillsNode { Kind::Good } else { kind };
        let id = dice.once_in(3).then(|| format!("m{}", dice.below(30)));
        kinds.push((kind, id));
    }
    sim.send(&kinds, asks).map(|_| ())
}

fn some_letter(sim: &MailSim, dice: &mut Dice) -> Letters {
    let dead: Vec<String> = sim.mailbox().map_or_else(Vec::new, |mailbox| {
        mailbox.dead.iter().map(|(number, letter)| letter.content.shown_id(*number)).collect()
    });
    let ids = if dice.once_in(3) { Vec::new() } else { dice.pick(&dead).cloned().into_iter().collect() };
    Letters { ids, ..Letters::default() }
}

fn redrive(sim: &mut MailSim, dice: &mut Dice) -> Result<(), String> {
    let letters = some_letter(sim, dice);
    let rate = dice.once_in(2).then(|| 1 + dice.below(20) as u32);
    let change = Change::Redrive { from: at(), letters, rate };
    sim.change(change.clone())?.ok();
    if dice.once_in(3) {
        sim.change(change)?.ok();
    }
    Ok(())
}

/// Everything is well from here on: every message is done or dead within a bounded time.
fn heal(sim: &mut MailSim, nodes: &[NodeName], dice: &mut Dice) -> Result<(), String> {
    sim.health.broken.clear();
    sim.health.bad_deploy = false;
    // Without a limit, what always fails is never done.
    sim.health.fixed = sim.wanted.mailbox.max_attempts == Attempts::Unlimited || dice.once_in(4);
    for node in nodes {
        if sim.machines[node].runner.session.is_none() || sim.machines[node].runner.leaving {
            sim.lose(node, Some(EndProof::Obituary("healed".into())))?;
            sim.join(node)?;
        }
        sim.end_leases(node)?;
        sim.change(Change::Undrain(node.clone()))?.ok();
    }
    for round in 0..HEALING_ROUNDS {
        for node in nodes {
            if sim.machines[node].runner.session.is_none() {
                sim.join(node)?;
            }
            sim.poll(node, true)?;
            while sim.deliver(node)? {}
            for _ in 0..4 {
                sim.work(node, dice)?;
            }
            while sim.deliver(node)? {}
        }
        sim.advance(ms(20))?;
        let is_there = sim.mailbox().is_some_and(|mailbox| mailbox.closed.is_none());
        if !is_there && round % 10 == 0 {
            sim.apply_wanted()?;
        }
        // One that is opened again only now is paused as it was.
        if round % 10 == 0 {
            sim.change(Change::Resume(at()))?.ok();
        }
        let no_trouble = sim.mailbox().is_none_or(|mailbox| mailbox.messages.is_empty() && mailbox.streaks.is_empty());
        if no_trouble && is_there && sim.books.open() == 0 {
            return Ok(());
        }
    }
    let rows = pando_supervision::mail::report::mailboxes(&sim.cluster, None);
    let messages = sim.mailbox().map(|mailbox| (&mailbox.messages, &mailbox.queues, &mailbox.workers));
    Err(format!("once all is well everything is done or dead, and not all is: {rows:?}\n{messages:?}"))
}

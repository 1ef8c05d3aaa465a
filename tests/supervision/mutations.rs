//! Each rule that can be broken on purpose is broken, and some invariant notices within a bounded number of sequences.

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::time::Duration;

use pando_protocol::cause::ExitHow;
use pando_protocol::message::Change;
use pando_protocol::spec::{Attempts, Intensity};
use pando_supervision::apply::CLIENTS_KEPT;
use pando_supervision::change::HISTORY_KEPT;
use pando_supervision::mutation::{Mutation, with_mutation};
use pando_supervision::{Command, Done, EventKind, Stamp, apply, report};
use pando_tests::mail::drive;
use pando_tests::mail::machines::{Health, Kind};
use pando_tests::mail::sim::{MailSim, Wanted, at};
use pando_tests::rules::dice::Dice;
use pando_tests::rules::generator;
use pando_tests::rules::runner::Runner;
use pando_tests::rules::sim::Sim;
use pando_tests::rules::specs::{path, permanent, tree};
use pando_tests::rules::world::World;

/// Commands of one sequence.
const COMMANDS: usize = 200;
/// Sequences within which each mutation must be found.
const BOUND: u64 = 3_000;

/// What became of the sequences with one rule broken.
#[derive(Default)]
struct Found {
    /// The first sequence in which an invariant noticed, and what it noticed.
    noticed: Option<(u64, String)>,
    /// Sequences before that in which a rule panicked, which proves no invariant.
    panicked: u64,
}

fn found(mutation: Mutation) -> Found {
    let mut found = Found::default();
    for seed in 1..=BOUND {
        match catch_unwind(AssertUnwindSafe(|| with_mutation(mutation, || sequence(mutation, seed)))) {
            Ok(Ok(())) => {}
            Ok(Err(broken)) => {
                found.noticed = Some((seed, broken));
                break;
            }
            Err(_) => found.panicked += 1,
        }
        if is_of_long_lives(mutation) || is_of_long_mail(mutation) {
            break; // It has no dice.
        }
    }
    found
}

fn sequence(mutation: Mutation, seed: u64) -> Result<(), String> {
    if is_of_long_mail(mutation) {
        long_life_of_a_mailbox()
    } else if is_of_long_lives(mutation) {
        long_life()
    } else if is_of_mail(mutation) {
        drive::run(seed, COMMANDS).map(|_| ())
    } else {
        generator::run(seed, COMMANDS).map(|_| ())
    }
}

/// Mailboxes have a simulation of their own.
fn is_of_mail(mutation: Mutation) -> bool {
    mutation as u8 >= Mutation::RiskyTogether as u8
}

/// What is kept is bounded by thousands, which no sequence of some hundred commands reaches.
fn is_of_long_lives(mutation: Mutation) -> bool {
    use Mutation::{ClientsKeptForEver, EventsKeptForEver, HistoryKeptForEver};
    matches!(mutation, ClientsKeptForEver | EventsKeptForEver | HistoryKeptForEver)
}

/// What takes thousands of messages, dozens of attempts or ten minutes.
fn is_of_long_mail(mutation: Mutation) -> bool {
    use Mutation::{BytesIgnored, EvidenceUnbounded, IdsKnownForEver, SweepsAtOnce};
    matches!(mutation, BytesIgnored | EvidenceUnbounded | IdsKnownForEver | SweepsAtOnce)
}

/// An id that is sent again after ten minutes, a message that fails dozens of times, and more messages than a mailbox holds or than
/// one entry of the log purges, each step checked like any other.
fn long_life_of_a_mailbox() -> Result<(), String> {
    let mut wanted = Wanted { count: 1, ..Wanted::default() };
    wanted.mailbox.max_attempts = Attempts::Unlimited;
    wanted.mailbox.retry_delay = Duration::from_millis(1);
    wanted.mailbox.max_bytes = 400_000;
    let health = Health { starts: true, at_once: 1, prefetch: 1, ..Health::default() };
    let mut sim = MailSim::new(&["n1"], wanted, health)?;
    let mut dice = Dice::new(1);
    let mut go_on = |sim: &mut MailSim, rounds: usize| {
        let nodes: Vec<_> = sim.machines.keys().cloned().collect();
        for _ in 0..rounds {
            for node in &nodes {
                sim.poll(node, true)?;
                sim.work(node, &mut dice)?;
                while sim.deliver(node)? {}
            }
            sim.advance(Duration::from_millis(200))?;
        }
        Ok::<(), String>(())
    };
    let named = [(Kind::Good, Some("order-7".to_owned()))];
    sim.send(&named, false)?;
    go_on(&mut sim, 20)?;
    sim.advance(Duration::from_secs(620))?;
    sim.send(&named, false)?;
    sim.send(&[(Kind::Fails, None)], false)?;
    go_on(&mut sim, 150)?;
    sim.change(Change::Pause(at()))?.ok();
    for _ in 0..4 {
        sim.send(&vec![(Kind::Good, None); 1_000], false)?;
    }
    sim.change(Change::PurgeWaiting(at()))?.ok();
    for _ in 0..4 {
        sim.advance(Duration::from_millis(1))?;
    }
    Ok(())
}

/// More endings that differ, events and clients than are kept, each step checked like any other.
fn long_life() -> Result<(), String> {
    let mut sim = Sim::default();
    let runner = Runner::new("n1", 100, &[]);
    let node = runner.name.clone();
    sim.runners.insert(node.clone(), runner);
    sim.join(&node, Vec::new())?;
    let spec = tree("t", |root| root.intensity = Intensity::Unlimited, vec![permanent("a")]);
    write(&mut sim, 0, Change::Apply(spec))?;
    sim.settle()?;
    for code in 0..=u8::try_from(HISTORY_KEPT).expect("it is 100") {
        while !report::settled(&sim.cluster, &path("/t")).is_some_and(|settled| settled.whole) {
            let next = sim.next_time().ok_or("it waits for nothing")?;
            sim.advance_to(next)?;
            sim.settle()?;
        }
        let incarnation = sim.cluster.run(&path("/t/a")).ok_or("it does not run")?.incarnation;
        let now = sim.now;
        let runner = sim.runners.get_mut(&node).ok_or("there is one node")?;
        runner.exit(incarnation, ExitHow::Code(code), None, now, &mut sim.copies);
        sim.settle()?;
    }
    for client in 1..=CLIENTS_KEPT as u128 + 1 {
        let path = path("/t/a");
        write(&mut sim, client, if client % 2 == 1 { Change::Stop(path) } else { Change::Start(path) })?;
    }
    Ok(())
}

fn write(sim: &mut Sim, client: u128, change: Change) -> Result<(), String> {
    let write = sim.write(client, change);
    sim.step(Command::Write(write)).map(|_| ())
}

#[test]
fn a_long_life_breaks_no_rule() {
    long_life().unwrap_or_else(|broken| panic!("{broken}"));
    long_life_of_a_mailbox().unwrap_or_else(|broken| panic!("{broken}"));
}

#[test]
fn every_broken_rule_is_noticed() {
    all_are_noticed(|mutation| !is_of_mail(mutation));
}

#[test]
fn every_broken_rule_of_mailboxes_is_noticed() {
    all_are_noticed(is_of_mail);
}

fn all_are_noticed(which: fn(Mutation) -> bool) {
    let hook = take_hook();
    set_hook(Box::new(|_| {})); // A panic of a broken rule is counted, not shown.
    let half = |parity: usize| {
        let mine = Mutation::ALL.into_iter().enumerate().filter(|(_, mutation)| which(*mutation));
        let mine = mine.filter(move |(nth, _)| nth % 2 == parity);
        mine.map(|(nth, mutation)| (nth, mutation, found(mutation))).collect::<Vec<_>>()
    };
    let mut results = std::thread::scope(|scope| {
        let even = scope.spawn(|| half(0));
        let mut results = half(1);
        results.extend(even.join().expect("panics are counted"));
        results
    });
    set_hook(hook);
    results.sort_by_key(|(nth, ..)| *nth);
    let (mut survivors, mut only_panics) = (Vec::new(), Vec::new());
    for (_, mutation, Found { noticed, panicked }) in results {
        let panics = if panicked == 0 { String::new() } else { format!(" (and {panicked} panics before)") };
        match noticed {
            Some((seed, broken)) => {
                let first: String = broken.lines().next().unwrap_or_default().chars().take(110).collect();
                println!("{:<24} after {seed:>3} sequences{panics}: {first}", format!("{mutation:?}"));
            }
            None if panicked > 0 => only_panics.push(mutation),
            None => survivors.push(mutation),
        }
    }
    assert!(survivors.is_empty(), "these broken rules were not noticed in {BOUND} sequences: {survivors:?}");
    assert!(only_panics.is_empty(), "of these broken rules only panics told, no invariant: {only_panics:?}");
}

#[test]
fn a_rule_that_panics_on_what_is_due_takes_no_command_and_no_other_delay_with_it() {
    let mut world = World::new(&["n1"]);
    world.apply(&tree("t", |_| {}, vec![permanent("a0"), permanent("b")]));
    // Delays that a lost node had begun are waited out by the cluster.
    world.crash("/t/a0", 1);
    world.crash("/t/b", 1);
    world.lose("n1");
    world.rejoin("n1");
    let mut cluster = world.sim.cluster.clone();
    assert_eq!(cluster.timers.len(), 2, "both wait: {:?}", cluster.timers);
    let mut other = cluster.clone();
    let stamp = Stamp { at: cluster.head.now + Duration::from_secs(60), wall: 1 };

    let applied = with_mutation(Mutation::DelayPanics, || apply(&mut cluster, stamp, Command::RaiseRules(2)));
    assert_eq!(applied.outcome, Ok(Done::Rules(2)));
    let alerts = applied.events.iter().filter(|event| event.kind == EventKind::RulePanicked);
    assert_eq!(alerts.map(|event| event.path.clone()).collect::<Vec<_>>(), [Some(path("/t/a0"))]);
    assert!(cluster.run(&path("/t/b")).is_some() && cluster.run(&path("/t/a0")).is_none());
    let again = with_mutation(Mutation::DelayPanics, || apply(&mut cluster.clone(), stamp, Command::Tick));
    assert_eq!(again.events, [], "it is not due again");
    let elsewhere = with_mutation(Mutation::DelayPanics, || apply(&mut other, stamp, Command::RaiseRules(2)));
    assert!(other == cluster && elsewhere == applied, "every voter drops the same");

    // As the event tells an operator.
    let restart = world.sim.write(77, Change::Restart(path("/t/a0")));
    assert!(apply(&mut cluster, stamp, Command::Write(restart)).outcome.is_ok());
    assert!(cluster.run(&path("/t/a0")).is_some());
}

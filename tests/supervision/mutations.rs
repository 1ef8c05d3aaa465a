//! Each rule that can be broken on purpose is broken, and some invariant notices within a bounded number of sequences.

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

use std::time::Duration;

use pando_protocol::message::Change;
use pando_supervision::mutation::{Mutation, with_mutation};
use pando_supervision::{Command, Done, EventKind, Stamp, apply};
use pando_tests::rules::generator;
use pando_tests::rules::specs::{path, permanent, tree};
use pando_tests::rules::world::World;

/// Commands of one sequence.
const COMMANDS: usize = 200;
/// Sequences within which each mutation must be found.
const BOUND: u64 = 400;

/// The first sequence that notices, and what it noticed.
fn found(mutation: Mutation) -> Option<(u64, String)> {
    (1..=BOUND).find_map(|seed| {
        let run = || with_mutation(mutation, || generator::run(seed, COMMANDS));
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(_)) => None,
            Ok(Err(broken)) => Some((seed, broken)),
            Err(_) => Some((seed, "a rule panicked".into())),
        }
    })
}

#[test]
fn every_broken_rule_is_noticed() {
    let hook = take_hook();
    set_hook(Box::new(|_| {})); // A panic of a broken rule is a finding, not a report.
    let half = |parity: usize| {
        let mine = Mutation::ALL.into_iter().enumerate().filter(move |(nth, _)| nth % 2 == parity);
        mine.map(|(nth, mutation)| (nth, mutation, found(mutation))).collect::<Vec<_>>()
    };
    let mut results = std::thread::scope(|scope| {
        let even = scope.spawn(|| half(0));
        let mut results = half(1);
        results.extend(even.join().expect("panics are findings"));
        results
    });
    set_hook(hook);
    results.sort_by_key(|(nth, ..)| *nth);
    let mut survivors = Vec::new();
    for (_, mutation, found) in results {
        match found {
            Some((seed, broken)) => {
                let first: String = broken.lines().next().unwrap_or_default().chars().take(110).collect();
                println!("{:<24} after {seed:>3} sequences: {first}", format!("{mutation:?}"));
            }
            None => survivors.push(mutation),
        }
    }
    assert!(survivors.is_empty(), "these broken rules were not noticed in {BOUND} sequences: {survivors:?}");
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

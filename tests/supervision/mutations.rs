//! Each rule that can be broken on purpose is broken, and some invariant notices within a bounded number of sequences.

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

use pando_supervision::mutation::{Mutation, with_mutation};
use pando_tests::rules::generator;

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

//! Thousands of random sequences, each step checked.
//!
//! `PANDO_SEED` sets the first seed, `PANDO_SEQUENCES` how many follow; a failing sequence prints the line that repeats it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pando_tests::rules::coverage::Coverage;
use pando_tests::rules::generator;

/// Commands of one sequence, before its healing.
const COMMANDS: usize = 200;
/// Sequences of a full run.
const SEQUENCES: u64 = 5_000;
/// How often each command, observation, change and kind of event must be reached in a full run.
const LEAST: u64 = 50;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Runs one sequence; a panic in the rules is a failure like another.
fn run(seed: u64) -> Result<Coverage, String> {
    let result = catch_unwind(AssertUnwindSafe(|| generator::run(seed, COMMANDS)));
    let result = result.unwrap_or_else(|_| Err("the rules panicked (see above)".into()));
    result.map(|sim| sim.coverage).map_err(|broken| {
        format!(
            "{broken}\n\nrepeat with: PANDO_SEED={seed} PANDO_SEQUENCES=1 cargo test -p pando-tests --test supervision random"
        )
    })
}

#[test]
fn random_sequences_break_no_rule_and_heal() {
    let first = number("PANDO_SEED").unwrap_or(1);
    let count = number("PANDO_SEQUENCES").unwrap_or(SEQUENCES);
    println!("seeds {first} to {}, {COMMANDS} commands each", first + count - 1);
    let half = |parity: u64| {
        let mut coverage = Coverage::default();
        for seed in (first..first + count).filter(|seed| seed % 2 == parity) {
            coverage.add(&run(seed)?);
        }
        Ok::<Coverage, String>(coverage)
    };
    let (even, odd) = std::thread::scope(|scope| {
        let even = scope.spawn(|| half(0));
        let odd = half(1); // Before the other half is waited for.
        (even.join().expect("failures are results"), odd)
    });
    let mut coverage = even.unwrap_or_else(|broken| panic!("{broken}"));
    coverage.add(&odd.unwrap_or_else(|broken| panic!("{broken}")));
    println!("{coverage}");
    if count >= SEQUENCES {
        assert_eq!(coverage.short_of(LEAST), Vec::<String>::new(), "not reached often enough");
    }
}

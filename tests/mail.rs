//! The simulation of mailboxes: thousands of seeds, each step checked by the invariants and by the books.
//!
//! `PANDO_SEED` sets the first seed, `PANDO_SEQUENCES` how many follow; a failing seed prints the line that repeats it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pando_tests::mail::drive;

/// What happens in one run, before its healing.
const ACTIONS: usize = 150;
/// Seeds of a full run.
const SEEDS: u64 = 2_000;
/// How often each thing that the books tell apart must be reached in the full run of the first seeds.
const LEAST: u64 = 3;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn run(seed: u64) -> Result<BTreeMap<&'static str, u64>, String> {
    let result = catch_unwind(AssertUnwindSafe(|| drive::run(seed, ACTIONS)));
    let result = result.unwrap_or_else(|_| Err("the rules panicked (see above)".into()));
    result.map(|books| books.reached).map_err(|broken| {
        format!("{broken}\n\nrepeat with: PANDO_SEED={seed} PANDO_SEQUENCES=1 cargo test -p pando-tests --test mail")
    })
}

#[test]
fn mailboxes_keep_their_books_whatever_happens_and_drain_once_all_is_well() {
    let first = number("PANDO_SEED").unwrap_or(1);
    let count = number("PANDO_SEQUENCES").unwrap_or(SEEDS);
    println!("seeds {first} to {}, {ACTIONS} actions each", first + count - 1);
    let half = |parity: u64| {
        let mut reached = BTreeMap::new();
        for seed in (first..first + count).filter(|seed| seed % 2 == parity) {
            for (what, times) in run(seed)? {
                *reached.entry(what).or_insert(0) += times;
            }
        }
        Ok::<_, String>(reached)
    };
    let (even, odd) = std::thread::scope(|scope| {
        let even = scope.spawn(|| half(0));
        let odd = half(1);
        (even.join().expect("failures are results"), odd)
    });
    let mut reached = even.unwrap_or_else(|broken| panic!("{broken}"));
    for (what, times) in odd.unwrap_or_else(|broken| panic!("{broken}")) {
        *reached.entry(what).or_insert(0) += times;
    }
    for (what, times) in &reached {
        println!("{what:<32} {times:>9}");
    }
    if first == 1 && count >= SEEDS {
        let rare: Vec<_> =
            REACHED.iter().filter(|what| reached.get(*what).is_none_or(|times| *times < LEAST)).collect();
        assert!(rare.is_empty(), "not reached often enough: {rare:?}");
    }
}

/// What the books tell apart.
const REACHED: [&str; 24] = [
    "a message killed its node",
    "a probe crashed",
    "crashed alone",
    "died of a lower limit",
    "died of attempts",
    "died of losses",
    "died with its mailbox",
    "failed",
    "known by its id",
    "lost with its node",
    "nothing left to try",
    "opened while it was closed",
    "purged while waiting",
    "purged with its mailbox",
    "redriven",
    "rejected",
    "replaced while sick",
    "returned",
    "returned by a stop",
    "several accused",
    "swept in steps",
    "taken for sick",
    "the budget pays late",
    "well again",
];

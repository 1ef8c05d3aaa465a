//! 10,000 messages of which 10 cannot be handled, and the time until all is settled: 9,990 done, 10 dead, 30 attempts charged.

use std::time::Instant;

use pando_protocol::mail::{DeadLetterRow, Letters};
use pando_protocol::message::{Found, Query};

use super::load::{Load, MAILBOX, message, publish};
use super::measured::Measured;
use super::rows::Row;
use crate::cluster::path;

const MESSAGES: u32 = 10_000;
/// One of so many cannot be handled.
const EACH: u32 = 1_000;
/// The first of them, as those of the peers' clients.
const FIRST: u32 = 37;
const ATTEMPTS: u64 = 3;

/// The worker says that they failed.
pub async fn failing() -> Measured {
    run("fail", Row::Failing).await
}

/// The worker dies of them.
pub async fn aborting() -> Measured {
    run("abort", Row::Aborting).await
}

async fn run(poison: &str, row: Row) -> Measured {
    let load = Load::start("", &[]).await;
    load.pause().await;
    let messages = (0..MESSAGES).map(|number| message(if is_poison(number) { poison } else { "order" }, number));
    publish(&load.producer(), messages).await;
    let began = Instant::now();
    load.resume().await;
    let settled = load.settled(u64::from(MESSAGES)).await;
    let took = began.elapsed();
    let mut measured = Measured::default();
    measured.put(row, took.as_secs_f64());
    measured.notes.push(format!("{} handed out again", settled.redelivered));

    let dead = u64::from(MESSAGES / EACH);
    let expected = (u64::from(MESSAGES) - dead, dead, dead * ATTEMPTS);
    if (settled.done, settled.dead, settled.charged) != expected {
        let said = format!("{} done, {} dead, {} charged", settled.done, settled.dead, settled.charged);
        measured.faults.push(said);
    }
    let of = Query::DeadLetters { of: path(MAILBOX), letters: Letters::default(), after: 0, limit: 100, whole: true };
    let Found::DeadLetters { letters, .. } = load.cluster.ask(of).await else { panic!("no dead letters") };
    let innocents = letters.iter().filter(|letter| !letter.payload.starts_with(poison)).count();
    if innocents > 0 {
        measured.faults.push(format!("{innocents} innocents are dead letters"));
    }
    let miscounted = letters.iter().filter(|letter| charged(letter) != ATTEMPTS).count();
    if miscounted > 0 {
        measured.faults.push(format!("{miscounted} dead letters were not charged {ATTEMPTS} times"));
    }
    measured
}

fn is_poison(number: u32) -> bool {
    number % EACH == FIRST
}

fn charged(letter: &DeadLetterRow) -> u64 {
    letter.attempts.iter().filter(|attempt| attempt.charged).count() as u64
}

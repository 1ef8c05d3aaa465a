//! The leader is killed during steady publish and consume: how long nothing is confirmed, how long nothing is handled, and whether
//! anything is lost or counted anew.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use pando_protocol::client::Producer;
use pando_protocol::mail::NewMessage;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::load::{LIMIT, Load, MAILBOX, durable, message};
use super::measured::Measured;
use super::rows::Row;
use super::worker::{Handled, now};
use crate::cluster::path;

/// Between two messages: 500 a second, as the peers' clients send them.
const EVERY: Duration = Duration::from_millis(2);
/// One of so many fails again and again, so that its count would tell if it was begun anew.
const FAILS: u32 = 100;
/// Messages before the leader dies: three seconds of them.
const BEFORE: u32 = 1_500;
/// And after.
const AFTER: u32 = 2_500;
const ATTEMPTS: u64 = 3;

/// A worker on each node; the client knows the two nodes that survive.
pub async fn run() -> Measured {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("handled");
    let mut load = Load::start("count = 3", &[file.to_str().expect("a path that is text")]).await;
    let leader = load.leader.clone();
    let survivors = load.cluster.others(&leader);
    let client = Arc::new(load.cluster.client_of_some(&survivors));
    let producer = Producer::new(client, path(MAILBOX), LIMIT);

    let (mut confirmations, mut killed) = (JoinSet::new(), 0);
    let mut turn = interval(EVERY);
    turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 0..BEFORE + AFTER {
        turn.tick().await;
        if number == BEFORE {
            killed = now();
            load.cluster.node(&leader).kill();
        }
        let word = if fails(number) { "fail" } else { "order" };
        let message = NewMessage { id: Some(number.to_string().into()), ..message(word, number) };
        let pending = producer.submit(message).await;
        confirmations.spawn(async move {
            durable(pending).await;
            now()
        });
    }
    let confirmed = confirmations.join_all().await;
    let (all, failing) = (u64::from(BEFORE + AFTER), u64::from((BEFORE + AFTER) / FAILS));
    let row = load.settled(all).await;

    let mut measured = Measured::default();
    let handled = Handled::read(&fs::read_to_string(&file).unwrap_or_default());
    measured.put(Row::LeaderConfirms, longest_gap(confirmed, killed));
    measured.put(Row::LeaderHandles, longest_gap(handled.iter().map(|one| one.at).collect(), killed));
    let expected = (all, all - failing, failing, failing * ATTEMPTS);
    if (row.enqueued, row.done, row.dead, row.charged) != expected {
        let (enqueued, done, dead, charged) = (row.enqueued, row.done, row.dead, row.charged);
        measured.faults.push(format!("{enqueued} taken in, {done} done, {dead} dead, {charged} charged"));
    }
    let distinct: BTreeSet<&str> = handled.iter().map(|one| one.id.as_str()).collect();
    let lost = (all - failing).saturating_sub(distinct.len() as u64);
    if lost > 0 {
        measured.faults.push(format!("{lost} were confirmed and never handled"));
    }
    measured.notes.push(format!("{} handled again", handled.len() - distinct.len()));
    measured
}

fn fails(number: u32) -> bool {
    number % FAILS == FAILS / 2
}

/// The longest time in milliseconds between two of them that ends after `from`.
fn longest_gap(mut times: Vec<u64>, from: u64) -> f64 {
    times.sort_unstable();
    let gaps = times.windows(2).filter(|pair| pair[1] > from).map(|pair| pair[1] - pair[0]);
    gaps.max().unwrap_or_default() as f64 / 1e3
}

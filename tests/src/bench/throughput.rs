//! Messages a second: in, out, and both at once.

use std::time::Instant;

use super::cost::Cpu;
use super::load::{Load, message, publish};
use super::measured::Measured;
use super::rows::Row;

/// Messages of each row, as those of the peers' clients.
pub const MESSAGES: u32 = 100_000;

/// Publishes them while nothing is handed out, has them worked off, and then does both at once with as many more.
pub async fn run() -> Measured {
    let mut load = Load::start("", &[]).await;
    let mut measured = Measured::default();
    let all = u64::from(MESSAGES);
    load.pause().await;
    let producer = load.producer();

    let begin = Begin::now(&mut load).await;
    publish(&producer, messages()).await;
    begin.end(Row::Publish, &mut load, &mut measured).await;

    let begin = Begin::now(&mut load).await;
    load.resume().await;
    load.settled(all).await;
    begin.end(Row::Consume, &mut load, &mut measured).await;

    let begin = Begin::now(&mut load).await;
    publish(&producer, messages()).await;
    let row = load.settled(2 * all).await;
    begin.end(Row::Both, &mut load, &mut measured).await;

    if (row.enqueued, row.done, row.charged) != (2 * all, 2 * all, 0) {
        measured.faults.push(format!("{} taken in, {} done, {} charged", row.enqueued, row.done, row.charged));
    }
    let home = load.cluster.home(super::load::MAILBOX).await;
    let place = if home == load.leader { "the leader" } else { "a follower" };
    measured.notes.push(format!("the worker ran on {place}"));
    measured
}

fn messages() -> impl Iterator<Item = pando_protocol::mail::NewMessage> {
    (0..MESSAGES).map(|number| message("order", number))
}

/// How things stood when a row began.
struct Begin {
    cpu: Cpu,
    entries: u64,
    at: Instant,
}

impl Begin {
    async fn now(load: &mut Load) -> Self {
        let entries = load.cluster.status().await.applied;
        Self { cpu: Cpu::now(&mut load.cluster, &load.leader), entries, at: Instant::now() }
    }

    async fn end(self, row: Row, load: &mut Load, measured: &mut Measured) {
        let took = self.at.elapsed();
        let cpu = Cpu::now(&mut load.cluster, &load.leader);
        let entries = load.cluster.status().await.applied - self.entries;
        measured.put(row, f64::from(MESSAGES) / took.as_secs_f64());
        measured.costs.insert(row, cpu.since(&self.cpu, MESSAGES));
        measured.entries.insert(row, entries as f64 / took.as_secs_f64());
    }
}

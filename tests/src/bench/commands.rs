//! Durable commands: each client sends one, waits until a majority has it on disk, and sends the next.
//!
//! A command puts a message of 100 B into a mailbox, as a command of etcd puts a value of 100 B under a key. Both talk to the leader, over as
//! many connections.

use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pando_protocol::message::Change;
use tokio::task::JoinSet;

use super::load::{LIMIT, Load, MAILBOX, message};
use super::measured::{Measured, median};
use super::rows::Row;
use crate::cluster::path;

/// Before anything is counted.
const WARM_UP: Duration = Duration::from_secs(1);
/// What is counted.
const COUNTED: Duration = Duration::from_secs(5);
/// Bytes of a block that the floor writes, as those of a log.
const BLOCK: usize = 4 << 10;

/// Clients, and the connections that they share.
pub const CLIENTS: [(Row, usize, usize); 3] =
    [(Row::Command, 1, 1), (Row::Commands64, 64, 8), (Row::Commands1000, 1_000, 8)];

/// With one client, with 64, and with 1,000.
pub async fn run() -> Measured {
    let load = Load::start("", &[]).await;
    load.pause().await;
    let mut measured = Measured::default();
    for (row, clients, connections) in CLIENTS {
        let waits = waits(&load, clients, connections).await;
        let rate = waits.len() as f64 / COUNTED.as_secs_f64();
        let median = median(&waits).unwrap_or_default();
        measured.put(row, if row == Row::Command { median } else { rate });
        measured.notes.push(format!("{clients} clients: {rate:.0}/s, each waits {median:.2} ms"));
    }
    measured
}

/// What each counted command waited, in milliseconds.
async fn waits(load: &Load, clients: usize, connections: usize) -> Vec<f64> {
    let connections: Vec<_> = (0..connections).map(|_| Arc::new(load.cluster.client_of(&load.leader))).collect();
    let begin = Instant::now() + WARM_UP;
    let end = begin + COUNTED;
    let mut sending = JoinSet::new();
    for number in 0..clients {
        let client = connections[number % connections.len()].clone();
        sending.spawn(async move {
            let mut waits = Vec::new();
            loop {
                let sent = Instant::now();
                if sent >= end {
                    return waits;
                }
                let messages = vec![message("order", number as u32)];
                let change = Change::Send { to: path(MAILBOX), messages, asks: false };
                client.change(change, LIMIT).await.unwrap_or_else(|error| panic!("a command: {error}"));
                if sent >= begin && Instant::now() < end {
                    waits.push(sent.elapsed().as_secs_f64() * 1e3);
                }
            }
        });
    }
    sending.join_all().await.concat()
}

/// The floor of one client: a block is appended to a file and synced, again and again. The median of one, in milliseconds.
///
/// # Errors
/// What the disk says.
pub fn floor() -> Result<Measured, String> {
    let said = |error: std::io::Error| format!("a file in the folder of temporary files: {error}");
    let folder = tempfile::tempdir().map_err(said)?;
    let mut file = File::create(folder.path().join("log")).map_err(said)?;
    let end = Instant::now() + WARM_UP;
    let mut waits = Vec::new();
    while Instant::now() < end {
        let began = Instant::now();
        file.write_all(&[b'x'; BLOCK]).and_then(|()| file.sync_data()).map_err(said)?;
        waits.push(began.elapsed().as_secs_f64() * 1e3);
    }
    let mut measured = Measured::default();
    measured.put(Row::Command, median(&waits).unwrap_or_default());
    measured.notes.push("4 KiB appended to a growing file, and fdatasync".into());
    Ok(measured)
}

//! The leader dies or hangs while clients write: how long nothing is acknowledged, and how long one waits who connects just then.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use pando_protocol::client::Client;
use pando_protocol::message::{Change, Reply};
use rustix::process::Signal;
use tokio::task::JoinSet;

use super::measured::Measured;
use super::rows::Row;
use crate::cluster::{Cluster, SOON, path, sleepers};
use crate::wait::wait_until;

const CLIENTS: usize = 8;
/// Leaders that are killed in a run: twenty in the five that are usual.
const KILLS: usize = 4;
/// Leaders that are stopped in a run.
const STOPS: usize = 2;
/// Acknowledged writes before something happens to the leader, and after it.
const WRITES: usize = 500;

/// When a write was acknowledged, of all clients.
type Acknowledged = Arc<Mutex<Vec<Instant>>>;

/// One cluster; whoever was killed or stopped is back, and has caught up, before the next one goes.
pub async fn run() -> Measured {
    let mut cluster = Cluster::start().await;
    cluster.bring_up(&sleepers("name = \"t\"", &["a"])).await;
    let mut measured = Measured::default();
    for turn in 0..KILLS + STOPS {
        let leader = cluster.leader().await;
        let others = cluster.others(&leader);
        let (done, mut writers) = (Acknowledged::default(), JoinSet::new());
        for nth in 0..CLIENTS {
            writers.spawn(write(cluster.client_of(&others[nth % others.len()]), done.clone()));
        }
        let count = async || acknowledged(&done).len();
        wait_until("writes", SOON, count, |count| *count > WRITES).await;
        let happened = Instant::now();
        let hangs = turn >= KILLS;
        if hangs {
            cluster.node(&leader).signal(Signal::STOP);
        } else {
            cluster.node(&leader).kill();
        }
        let late = served(cluster.client_of_some(&others)).await;
        let before = count().await;
        wait_until("writes again", SOON, count, |now| *now > before + WRITES).await;
        writers.shutdown().await;
        let mut times = acknowledged(&done);
        times.sort_unstable();
        let pairs = times.windows(2).filter(|pair| pair[1] > happened);
        let longest = pairs.max_by_key(|pair| pair[1] - pair[0]).expect("writes after it");
        measured.put(if hangs { Row::WriteGapHung } else { Row::WriteGap }, millis(longest[0], longest[1]));
        if !hangs {
            measured.put(Row::LateClient, millis(longest[1], late));
        }
        if hangs {
            cluster.node(&leader).signal(Signal::CONT);
        } else {
            cluster.node(&leader).start();
        }
        cluster.all_up().await;
        cluster.whole("/t").await;
        cluster.caught_up().await;
    }
    measured
}

/// Writes one after the other. Each changes nothing, and goes through the log like any other.
async fn write(client: Client, done: Acknowledged) {
    loop {
        if let Ok(Reply::Changed(_)) = client.change(Change::Start(path("/t/a")), SOON).await {
            done.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
        }
    }
}

/// When a client that connects now was served.
async fn served(client: Client) -> Instant {
    let reply = client.change(Change::Start(path("/t/a")), SOON).await;
    reply.unwrap_or_else(|error| panic!("a client that connected at the death of the leader: {error}"));
    Instant::now()
}

fn acknowledged(done: &Acknowledged) -> Vec<Instant> {
    done.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn millis(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64() * 1e3
}

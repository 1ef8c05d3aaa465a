//! Nothing to do: three nodes, and a hundred children that sleep.

use std::time::Duration;

use super::cost::{pss_bytes, scheduled};
use super::measured::Measured;
use super::rows::Row;
use crate::cluster::{Cluster, sleepers};

const CHILDREN: usize = 100;
/// After the last child was ready: what its start left behind is done.
const SETTLES: Duration = Duration::from_secs(10);
const WATCHED: Duration = Duration::from_secs(30);

/// The node that takes most, with its guard and its reapers.
pub async fn run() -> Measured {
    let mut cluster = Cluster::start().await;
    let ids: Vec<String> = (0..CHILDREN).map(|number| format!("c{number}")).collect();
    cluster.bring_up(&sleepers("name = \"t\"", &ids.iter().map(String::as_str).collect::<Vec<_>>())).await;
    tokio::time::sleep(SETTLES).await;
    let nodes: Vec<Vec<u32>> =
        cluster.nodes().map(|node| [node.pid(), node.guard()].into_iter().chain(node.reapers()).collect()).collect();
    let taken = || nodes.iter().map(|pids| pids.iter().map(|pid| scheduled(*pid)).sum()).collect::<Vec<Duration>>();
    let before = taken();
    tokio::time::sleep(WATCHED).await;
    let of_a_core = taken().into_iter().zip(before).map(|(now, then)| (now - then).as_secs_f64());
    let largest = of_a_core.fold(0.0, f64::max) / WATCHED.as_secs_f64() * 100.0;
    let memory = nodes.iter().map(|pids| pids.iter().map(|pid| pss_bytes(*pid)).sum::<u64>()).max();
    let mut measured = Measured::default();
    measured.put(Row::IdleCpu, largest);
    measured.put(Row::IdleMemory, memory.unwrap_or_default() as f64 / 1e6);
    measured
}

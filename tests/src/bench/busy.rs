//! A machine that has too much to do: every core is kept busy by others, and no node may be taken for dead.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pando_protocol::view::NodeRow;

use super::measured::Measured;
use super::rows::Row;
use crate::cluster::{Cluster, sleepers};

const WATCHED: Duration = Duration::from_secs(600);
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// As many busy loops as there are cores, of the same priority.
pub async fn run() -> Measured {
    let cluster = Cluster::start().await;
    cluster.bring_up(&sleepers("name = \"t\"", &["a", "b", "c"])).await;
    let (losses, term) = (losses(&cluster.node_rows().await), cluster.status().await.term);
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let loops: Vec<Busy> = (0..cores).map(|_| Busy::start()).collect();
    let (end, mut slowest) = (Instant::now() + WATCHED, Duration::ZERO);
    while Instant::now() < end {
        tokio::time::sleep(LOOK_EVERY).await;
        let asked = Instant::now();
        cluster.tree().await;
        slowest = slowest.max(asked.elapsed());
    }
    drop(loops);
    let mut measured = Measured::default();
    let lost = self::losses(&cluster.node_rows().await) - losses;
    measured.put(Row::BusyLosses, lost as f64);
    measured.put(Row::BusyElections, (cluster.status().await.term - term) as f64);
    measured.notes.push(format!("the slowest answer took {:.0} ms", slowest.as_secs_f64() * 1e3));
    measured
}

fn losses(rows: &[NodeRow]) -> u64 {
    rows.iter().map(|row| row.losses).sum()
}

/// A loop that takes a core. Dropped, it ends.
struct Busy(Child);

impl Busy {
    fn start() -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
        Self(command.spawn().expect("a busy loop"))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

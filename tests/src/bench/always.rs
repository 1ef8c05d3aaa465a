//! A child that always fails: how often it starts in its first three seconds, and what that takes of the machine.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::cost::Scheduled;
use super::measured::Measured;
use super::rows::Row;
use crate::cluster::{Cluster, sleepers};
use crate::programs;

const WATCHED: Duration = Duration::from_secs(3);
/// Reapers are looked at so often: they live as long as their child.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long the child lives before it fails, in milliseconds: long enough that its reaper is looked at.
const LIVES: &str = "20";

/// Watches the idle cluster, and then as long with the child.
pub async fn run() -> Measured {
    let mut cluster = Cluster::start().await;
    cluster.bring_up(&sleepers("name = \"idle\"", &["a"])).await;
    let idle = watch(&mut cluster).await;
    let file = cluster.folder().join("starts");
    let stamp = programs::own("stamp").display().to_string();
    let spec = format!(
        "name = \"t\"\n[[children]]\nid = \"always\"\ncommand = [{stamp:?}, {:?}, \"{LIVES}\"]\n\
         backoff = {{ base = \"50ms\", cap = \"1s\" }}\nintensity = \"unlimited\"\n",
        file.display().to_string()
    );
    cluster.apply(&spec).await;
    let failing = watch(&mut cluster).await;
    let mut measured = Measured::default();
    measured.put(Row::FailingRestarts, restarts(&file));
    measured.put(Row::FailingCpu, failing.saturating_sub(idle).as_secs_f64() * 1e3);
    measured.notes.push(format!("idle {:.0} ms in as long", idle.as_secs_f64() * 1e3));
    measured
}

/// The CPU time that Pando takes in three seconds.
async fn watch(cluster: &mut Cluster) -> Duration {
    let (mut scheduled, end) = (Scheduled::default(), Instant::now() + WATCHED);
    while Instant::now() < end {
        scheduled.look(cluster);
        tokio::time::sleep(LOOK_EVERY).await;
    }
    scheduled.look(cluster);
    scheduled.taken()
}

/// Starts after the first one, within three seconds of it.
fn restarts(file: &Path) -> f64 {
    let stamps = super::restart::stamps(&fs::read_to_string(file).unwrap_or_default());
    let starts: Vec<u64> = stamps.iter().filter(|stamp| stamp.is_start).map(|stamp| stamp.at).collect();
    let Some(first) = starts.first() else { return 0.0 };
    starts.iter().skip(1).filter(|at| *at - first < WATCHED.as_nanos() as u64).count() as f64
}

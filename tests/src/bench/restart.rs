//! A child exits and is started again on its node: from its last instruction to the first of the next run.
//!
//! What Pando waits on purpose, its backoff, is taken off: it has no jitter here. The decision to start it again is in the log of a
//! majority before it starts. The floor waits for the same program and spawns it again, and remembers nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::load::LIMIT;
use super::measured::Measured;
use super::rows::Row;
use crate::cluster::{Cluster, send};
use crate::programs;
use crate::wait::{wait_until, wait_until_blocking};

/// Restarts in a run.
const RESTARTS: usize = 100;
/// Those of a peer that waits for a second where a child did not live for one.
const OF_RUNSV: usize = 5;
/// How long a child lives, in milliseconds.
const LIVES: u64 = 20;
/// The same for runsv: it starts a child at once that lived for a second.
const LIVES_FOR_RUNSV: u64 = 1_200;
const BACKOFF: Duration = Duration::from_millis(10);

/// A moment of the child, by the monotonic clock in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Its first instruction, or its last.
    pub is_start: bool,
    /// When.
    pub at: u64,
}

/// What children wrote down.
pub fn stamps(text: &str) -> Vec<Stamp> {
    let stamp = |line: &str| {
        let (what, at) = line.split_once(' ')?;
        Some(Stamp { is_start: what == "start", at: at.parse().ok()? })
    };
    text.lines().filter_map(stamp).collect()
}

/// From each exit to the start after it, in milliseconds.
fn gaps(file: &Path) -> Vec<f64> {
    let stamps = stamps(&fs::read_to_string(file).unwrap_or_default());
    let pairs = stamps.windows(2).filter(|pair| !pair[0].is_start && pair[1].is_start);
    pairs.map(|pair| pair[1].at.saturating_sub(pair[0].at) as f64 / 1e6).collect()
}

/// A cluster with one child.
pub async fn run() -> Measured {
    let cluster = Cluster::start().await;
    let file = cluster.folder().join("stamps");
    let spec = format!(
        "name = \"t\"\n[[children]]\nid = \"a\"\ncommand = [{:?}, {:?}, \"{LIVES}\"]\nintensity = \"unlimited\"\n\
         backoff = {{ base = \"{BACKOFF:?}\", cap = \"{BACKOFF:?}\", jitter = 0 }}\n",
        programs::own("stamp").display().to_string(),
        file.display().to_string()
    );
    cluster.apply(&spec).await;
    let found = wait_until("restarts", LIMIT, async || gaps(&file), |gaps| gaps.len() >= RESTARTS).await;
    let mut measured = Measured::default();
    for gap in found {
        measured.put(Row::Restart, gap - BACKOFF.as_secs_f64() * 1e3);
    }
    measured
}

/// Waits for the child and spawns it again.
///
/// # Errors
/// The child does not start.
pub fn floor() -> Result<Measured, String> {
    let folder = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
    let file = folder.path().join("stamps");
    for _ in 0..=RESTARTS {
        let mut command = Command::new(programs::own("stamp"));
        command.arg(&file).arg(LIVES.to_string()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().map_err(|error| format!("the child: {error}"))?;
    }
    let mut measured = Measured::default();
    gaps(&file).into_iter().for_each(|gap| measured.put(Row::Restart, gap));
    measured.notes.push("waitpid and spawn".into());
    Ok(measured)
}

/// The same child under runsv.
///
/// # Errors
/// It is not installed, or did not restart the child.
pub fn runsv() -> Result<Measured, String> {
    let said = |error: std::io::Error| format!("runsv: {error}");
    let folder = tempfile::tempdir().map_err(said)?;
    let (file, service) = (folder.path().join("stamps"), folder.path().join("service"));
    fs::create_dir(&service).map_err(said)?;
    let stamp = programs::own("stamp");
    let script = format!("#!/bin/sh\nexec {} {} {LIVES_FOR_RUNSV}\n", stamp.display(), file.display());
    executable(&service.join("run"), &script).map_err(said)?;
    let runsv = Command::new("runsv").arg(&service).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut runsv = runsv.map_err(|_| "runsv is not installed: apt-get install runit".to_owned())?;
    let end = Instant::now() + Duration::from_millis(LIVES_FOR_RUNSV * (OF_RUNSV as u64 + 2) * 2);
    while gaps(&file).len() < OF_RUNSV && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    // It tells its child to end, and goes.
    send(runsv.id(), Signal::TERM);
    wait_until_blocking("the end of runsv", LIMIT, || runsv.try_wait().ok().flatten(), Option::is_some);
    let mut measured = Measured::default();
    gaps(&file).into_iter().for_each(|gap| measured.put(Row::Restart, gap));
    if measured.values.is_empty() { Err("runsv did not restart the child".into()) } else { Ok(measured) }
}

fn executable(file: &PathBuf, text: &str) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::write(file, text)?;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))
}

//! A million messages wait: what a voter holds in memory, and what others wait while it writes a snapshot of them.
//!
//! ```text
//!   publish 1,000,000 ──► let the log grow ──► a snapshot is begun ──► it takes its place ──► look again
//!                                                 └── small writes, one after the other ──┘
//! ```

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pando_protocol::ids::Path as MemberPath;
use pando_protocol::mail::NewMessage;
use pando_protocol::message::Change;

use super::cost::pss_bytes;
use super::load::{LIMIT, Load, message, publish};
use super::measured::{Measured, median};
use super::rows::Row;
use crate::cluster::path;

const MESSAGES: u32 = 1_000_000;
/// They are published in so many parts, and memory is looked at after each.
const PARTS: u32 = 20;
/// What makes the log grow until a snapshot is due: payloads of so many bytes, which are purged again.
const FILLER: usize = 1 << 20;
/// More of it than a snapshot is ever awaited for, at the usual size of the log.
const MOST_FILLER: u32 = 600;
/// So many of them are purged at once.
const PURGE_EACH: u32 = 16;

/// Voters write their snapshots side by side, or one after the other within this time.
const SOON_AFTER: Duration = Duration::from_secs(2);

/// What the data folder of a voter tells of its snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Snapshots {
    /// The file that is in force; 0: none.
    current: u64,
    /// Whether another one is being written.
    is_written: bool,
}

/// Publishes them and looks.
pub async fn run() -> Measured {
    let mut load = Load::start("", &[]).await;
    load.cluster.apply(&filler_tree()).await;
    let to = path("/filler/work");
    load.pause().await;
    load.cluster.change(Change::Pause(to.clone())).await.unwrap_or_else(|error| panic!("pause: {error}"));
    let mut peak = 0;
    let producer = load.producer();
    for part in 0..PARTS {
        let numbers = part * (MESSAGES / PARTS)..(part + 1) * (MESSAGES / PARTS);
        publish(&producer, numbers.map(|number| message("order", number))).await;
        peak = peak.max(load.largest());
    }
    let stall = load.force_snapshots(&to, &mut peak).await;
    let mut measured = Measured::default();
    let row = load.row().await;
    if row.waiting != u64::from(MESSAGES) {
        measured.faults.push(format!("{} wait", row.waiting));
    }
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    measured.put(Row::Memory, megabytes(load.largest()));
    measured.put(Row::MemoryPeak, megabytes(peak));
    match stall.as_slice() {
        [] => measured.faults.push("no snapshot was written".into()),
        waits => {
            let longest = waits.iter().copied().fold(0.0, f64::max);
            measured.put(Row::SnapshotStall, longest);
            let usual = median(waits).unwrap_or_default();
            measured.notes.push(format!("{} small writes during it, median {usual:.1} ms", waits.len()));
        }
    }
    measured
}

impl Load {
    /// The largest voter, in bytes.
    fn largest(&mut self) -> u64 {
        self.cluster.nodes().map(|node| pss_bytes(node.pid())).max().unwrap_or_default()
    }

    fn snapshots(&mut self) -> Vec<Snapshots> {
        let folders: Vec<PathBuf> = self.cluster.nodes().map(|node| node.data()).collect();
        folders.iter().map(|folder| Snapshots::of(folder)).collect()
    }

    /// Lets the log grow until voters write snapshots, and waits until each has a new one. What small writes waited while one was
    /// written and nothing else was sent, in milliseconds.
    async fn force_snapshots(&mut self, filler: &MemberPath, peak: &mut u64) -> Vec<f64> {
        let before = self.snapshots();
        let is_new = |(now, then): (&Snapshots, &Snapshots)| now.current != then.current;
        let mut sent = 0;
        let mut waits = Vec::new();
        let end = Instant::now() + LIMIT;
        let mut written_last = None;
        loop {
            let now = self.snapshots();
            if now.iter().zip(&before).all(is_new) && !now.iter().any(|one| one.is_written) {
                return waits;
            }
            assert!(Instant::now() < end && sent < MOST_FILLER, "after {sent} MiB no snapshot of all: {now:?}");
            // Another voter begins a moment later, unless it had just written one.
            let is_soon = written_last.is_some_and(|at: Instant| at.elapsed() < SOON_AFTER);
            if now.iter().any(|one| one.is_written) {
                written_last = Some(Instant::now());
                let began = Instant::now();
                self.small_write().await;
                waits.push(began.elapsed().as_secs_f64() * 1e3);
            } else if is_soon {
                tokio::time::sleep(Duration::from_millis(1)).await;
            } else {
                self.fill(filler, sent).await;
                sent += 1;
            }
            *peak = (*peak).max(self.largest());
        }
    }

    /// One that changes nothing goes through the log like any other.
    async fn small_write(&self) {
        let change = Change::Start(path(super::load::MAILBOX));
        self.cluster.change(change).await.unwrap_or_else(|error| panic!("a small write: {error}"));
    }

    async fn fill(&self, to: &MemberPath, number: u32) {
        let messages = vec![NewMessage::of(vec![b'x'; FILLER])];
        let sent = self.cluster.change(Change::Send { to: to.clone(), messages, asks: false }).await;
        sent.unwrap_or_else(|error| panic!("filler: {error}"));
        if number % PURGE_EACH == PURGE_EACH - 1 {
            let purged = self.cluster.change(Change::PurgeWaiting(to.clone())).await;
            purged.unwrap_or_else(|error| panic!("purge: {error}"));
        }
    }
}

impl Snapshots {
    fn of(folder: &Path) -> Self {
        let current = std::fs::metadata(folder.join("snapshot")).map_or(0, |file| file.ino());
        let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let is_written = names
            .filter_map(|name| name.into_string().ok())
            .any(|name| name.starts_with("snapshot-") && name.ends_with(".tmp"));
        Self { current, is_written }
    }
}

/// A worker that runs nowhere, since no node has that label: only its mailbox is needed.
fn filler_tree() -> String {
    "name = \"filler\"\n[[children]]\nid = \"work\"\ncommand = [\"true\"]\nplace = { require = [\"no=where\"] }\n\
     mailbox = { max_bytes = \"64MiB\" }\n"
        .into()
}

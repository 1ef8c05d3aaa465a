//! Decides when to take a snapshot and how much of the log to forget: by bytes, so that disk and memory stay bounded.
//!
//! ```text
//!   log files:   [────][────][────][────][──
//!                     │         │         └ last entry
//!                     │         └ snapshot: nothing after it is ever forgotten
//!                     └ forgotten up to here: what followers still need and a margin are kept, below a bound
//! ```
//!
//! [`step`] decides from plain numbers; [`Retention::run`] looks, asks it, and tells openraft, which does it.

use std::time::Duration;

use openraft::{AsyncRuntime, Raft, RaftMetrics};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::StorageError;
use super::log::{FileExtent, LogExtent, LogStore};
use super::snapshot::SnapshotStore;
use crate::raft::state_machine::StateMachine;
use crate::raft::types::Types;

/// The size of a log from which the defaults of all bounds follow: 64 MiB.
pub const DEFAULT_LOG_BYTES: u64 = 64 << 20;

/// The bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// A snapshot is taken once the log has grown by as many bytes as the last snapshot has, but not below this. Default
    /// 64 MiB.
    pub snapshot_after_at_least: u64,
    /// Nor above this: it bounds what a restart applies again. Default 512 MiB.
    pub snapshot_after_at_most: u64,
    /// Entries kept before the snapshot even where no follower is known to need them, so that one that was away for a moment
    /// is served from the log. Default 64 MiB.
    pub keep: u64,
    /// Entries kept for followers that lag behind; beyond it they get a snapshot. Default 256 MiB. What comes after the
    /// snapshot is kept even beyond this.
    pub keep_for_followers: u64,
    /// How often it is looked. Default 1 s.
    pub interval: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self::for_size(DEFAULT_LOG_BYTES)
    }
}

impl Limits {
    /// The bounds of a log of this many bytes, in the proportions of the defaults.
    pub const fn for_size(bytes: u64) -> Self {
        Self {
            snapshot_after_at_least: bytes,
            snapshot_after_at_most: bytes.saturating_mul(8),
            keep: bytes,
            keep_for_followers: bytes.saturating_mul(4),
            interval: Duration::from_secs(1),
        }
    }
}

/// What is known when it is decided.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reading {
    /// The log, file by file.
    pub log: LogExtent,
    /// The index of the newest snapshot.
    pub snapshot: Option<u64>,
    /// Its size in bytes.
    pub snapshot_bytes: u64,
    /// The index of the last applied entry.
    pub applied: Option<u64>,
    /// On the leader, up to where each other voter or learner is known to have the log (`None`: nothing is known); empty
    /// elsewhere.
    pub followers: Vec<Option<u64>>,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Decision {
    /// Take a snapshot of what is applied.
    pub take_snapshot: bool,
    /// Forget entries up to and including this index.
    pub purge: Option<u64>,
}

/// Decides. Forgets whole files only, since nothing less gives space back, and never an entry after the snapshot.
pub fn step(reading: &Reading, limits: &Limits) -> Decision {
    Decision { take_snapshot: is_snapshot_due(reading, limits), purge: purge(reading, limits) }
}

fn is_snapshot_due(reading: &Reading, limits: &Limits) -> bool {
    let least = limits.snapshot_after_at_least.min(limits.snapshot_after_at_most);
    let due = reading.snapshot_bytes.clamp(least, limits.snapshot_after_at_most);
    reading.applied > reading.snapshot && bytes_after(&reading.log, reading.snapshot) >= due
}

/// Bytes of the files that begin after `index`. The file that holds `index` is left out: counted, it could alone make the
/// next snapshot due as soon as one was taken.
fn bytes_after(log: &LogExtent, index: Option<u64>) -> u64 {
    let mut bytes = 0;
    let mut ends_before = None;
    for FileExtent { last, bytes: size } in &log.files {
        if ends_before >= index {
            bytes += size;
        }
        ends_before = *last;
    }
    bytes
}

fn purge(reading: &Reading, limits: &Limits) -> Option<u64> {
    let snapshot = reading.snapshot?;
    let needed = reading.followers.iter().map(|matched| matched.unwrap_or(0)).min();
    let mut after: u64 = reading.log.files.iter().map(|file| file.bytes).sum();
    let mut forget = None;
    for FileExtent { last, bytes } in &reading.log.files {
        after -= bytes;
        let Some(last) = *last else { continue };
        let is_spare = after >= limits.keep && needed.is_none_or(|needed| last <= needed);
        let is_beyond_bound = after + bytes > limits.keep_for_followers;
        if last > snapshot || !(is_spare || is_beyond_bound) {
            break;
        }
        forget = Some(last);
    }
    forget.filter(|forget| Some(*forget) > reading.log.purged)
}

/// What a voter keeps on disk, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OnDisk {
    /// Of the log, all files.
    pub log: u64,
    /// Of the newest snapshot.
    pub snapshot: u64,
}

/// Looks, decides and tells openraft, again and again.
#[derive(Debug)]
pub struct Retention {
    /// The log.
    pub log: LogStore,
    /// The snapshots.
    pub snapshots: SnapshotStore,
    /// The bounds.
    pub limits: Limits,
    /// Told what is on disk, each time it was looked.
    pub kept: watch::Sender<OnDisk>,
}

impl Retention {
    /// Runs until `stop`, or until Raft has ended.
    ///
    /// # Errors
    /// [`StorageError::Io`] where the log cannot be looked at.
    pub async fn run<R: AsyncRuntime>(
        self,
        raft: Raft<Types<R>, StateMachine<R>>,
        stop: CancellationToken,
    ) -> Result<(), StorageError> {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                () = R::sleep(self.limits.interval) => {}
            }
            let reading = self.look(&raft)?;
            let log = reading.log.files.iter().map(|file| file.bytes).sum();
            self.kept.send_replace(OnDisk { log, snapshot: reading.snapshot_bytes });
            let decision = step(&reading, &self.limits);
            if carry_out(&raft, decision).await.is_err() {
                // Whoever watches Raft itself reports why it ended.
                return Ok(());
            }
        }
    }

    fn look<R: AsyncRuntime>(&self, raft: &Raft<Types<R>, StateMachine<R>>) -> Result<Reading, StorageError> {
        use openraft::async_runtime::watch::WatchReceiver;
        let log = self.log.extent()?;
        let current = self.snapshots.current();
        let metrics = raft.metrics().borrow_watched().clone();
        Ok(Reading {
            log,
            snapshot: metrics.snapshot.as_ref().map(|id| id.index),
            snapshot_bytes: current.map_or(0, |snapshot| snapshot.size()),
            applied: metrics.last_applied.as_ref().map(|id| id.index),
            followers: followers(&metrics),
        })
    }
}

fn followers<R: AsyncRuntime>(metrics: &RaftMetrics<Types<R>>) -> Vec<Option<u64>> {
    let replication = metrics.replication.iter().flatten();
    let others = replication.filter(|(id, _)| **id != metrics.id);
    others.map(|(_, matched)| matched.as_ref().map(|id| id.index)).collect()
}

async fn carry_out<R: AsyncRuntime>(
    raft: &Raft<Types<R>, StateMachine<R>>,
    decision: Decision,
) -> Result<(), openraft::errors::Fatal<Types<R>>> {
    if decision.take_snapshot {
        // Repeated while one is being built it changes nothing.
        raft.trigger().snapshot().await?;
    }
    if let Some(index) = decision.purge {
        raft.trigger().purge_log(index).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        snapshot_after_at_least: 300,
        snapshot_after_at_most: 600,
        keep: 200,
        keep_for_followers: 400,
        interval: Duration::from_secs(1),
    };

    /// Files of 100 bytes and ten entries each: 0–9, 10–19, …
    fn log(files: u64) -> LogExtent {
        let files: Vec<_> = (1..=files).map(|n| FileExtent { last: Some(n * 10 - 1), bytes: 100 }).collect();
        LogExtent { purged: None, last: files.last().and_then(|file| file.last), files }
    }

    fn reading(files: u64, snapshot: Option<u64>, followers: &[Option<u64>]) -> Reading {
        let log = log(files);
        let applied = log.last;
        Reading { log, snapshot, snapshot_bytes: 100, applied, followers: followers.to_vec() }
    }

    #[test]
    fn the_first_snapshot_comes_with_the_least_growth() {
        assert!(!step(&reading(2, None, &[]), &LIMITS).take_snapshot);
        assert!(step(&reading(3, None, &[]), &LIMITS).take_snapshot);
    }

    #[test]
    fn a_large_snapshot_asks_for_as_much_growth_up_to_the_bound() {
        let mut large = Reading { snapshot_bytes: 500, ..reading(6, Some(9), &[]) };
        assert!(step(&large, &LIMITS).take_snapshot);
        large.log.files.pop();
        assert!(!step(&large, &LIMITS).take_snapshot);
        assert!(step(&Reading { snapshot_bytes: 9000, ..reading(7, Some(9), &[]) }, &LIMITS).take_snapshot);
    }

    #[test]
    fn the_file_that_holds_the_snapshot_never_makes_the_next_one_due() {
        let mut just_taken = reading(1, Some(0), &[]);
        just_taken.log.files[0].bytes = 10_000;
        assert!(!step(&just_taken, &LIMITS).take_snapshot);
    }

    #[test]
    fn nothing_is_taken_while_nothing_new_is_applied() {
        let behind = Reading { applied: Some(9), ..reading(9, Some(9), &[]) };
        assert!(!step(&behind, &LIMITS).take_snapshot);
    }

    #[test]
    fn without_a_snapshot_nothing_is_forgotten_and_nothing_after_it_ever() {
        assert_eq!(step(&reading(50, None, &[]), &LIMITS).purge, None);
        assert_eq!(step(&reading(50, Some(25), &[]), &LIMITS).purge, Some(19));
    }

    #[test]
    fn a_margin_is_kept_for_those_who_were_away_for_a_moment() {
        assert_eq!(step(&reading(4, Some(39), &[Some(39), Some(39)]), &LIMITS).purge, Some(19));
    }

    #[test]
    fn what_a_follower_needs_is_kept_up_to_the_bound() {
        assert_eq!(step(&reading(4, Some(39), &[Some(39), Some(12)]), &LIMITS).purge, Some(9));
        assert_eq!(step(&reading(4, Some(39), &[Some(39), None]), &LIMITS).purge, None);
        assert_eq!(step(&reading(6, Some(59), &[Some(59), None]), &LIMITS).purge, Some(19));
    }

    #[test]
    fn what_is_forgotten_is_not_forgotten_again() {
        let mut done = reading(4, Some(39), &[]);
        done.log.purged = Some(19);
        assert_eq!(step(&done, &LIMITS).purge, None);
    }
}

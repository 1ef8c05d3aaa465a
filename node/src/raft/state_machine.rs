//! Applies committed entries to the state and lets everyone see it: openraft's `RaftStateMachine`.
//!
//! ```text
//!   committed entry ──► apply each command ──► publish state ──► answer proposers ──► events
//!                          │ panic: as if it had not been there, answered *internal*, counted
//!   trigger snapshot ──► clone (a few pointers) ──► write and verify, aside ──► SnapshotStore
//! ```
//!
//! The state lives in memory. What is on disk is the newest snapshot and the log after it; a start loads the one and applies
//! the other again, so events of entries after the snapshot are sent again after a restart, with the same numbers.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{AsyncRuntime, EntryPayload, Instant, OptionalSend, RaftSnapshotBuilder};
use pando_protocol::codec::CodecError;
use pando_protocol::rejection::Rejection;
use pando_supervision::{Applied, Batch, Cluster, Command, Event, EventKind, Outcome, Stamp};
use rustix::process::setpriority_process;
use rustix::thread::gettid;
use tokio::sync::{broadcast, watch};

use super::sealed::Sealed;
use super::types::{CommittedLeaderId, Entry, LogId, Outcomes, RaftId, Types, Voter};
use crate::instruments::{Durations, Instruments};
use crate::storage::StorageError;
use crate::storage::format::{SnapshotMeta, StoredMembership};
use crate::storage::log::not_understood;
use crate::storage::snapshot::{Header, Snapshot, SnapshotStore};

/// Batches of events that a slow reader may lag behind before it loses some and is told so.
pub const EVENT_BACKLOG: usize = 1024;
/// The nice value of whoever writes a snapshot: a tenth of a core where all are busy, so that it comes to its end, and the log too.
const LOW_PRIORITY: i32 = 10;

/// The rules, as values so that a test can put others in their place.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Applies a command: [`pando_supervision::apply()`].
    pub apply: fn(&mut Cluster, Stamp, Command) -> Applied,
    /// The version of the rules that a state is under.
    pub version: fn(&Cluster) -> u32,
    /// The newest version that this build knows. A state beyond it stops the node: voters would differ.
    pub known: u32,
}

impl Rules {
    fn check(&self, version: u32) -> Result<(), StorageError> {
        if version <= self.known { Ok(()) } else { Err(StorageError::NewerRules { found: version, known: self.known }) }
    }
}

/// A snapshot as openraft hands it around.
pub type RaftSnapshot = openraft::storage::Snapshot<CommittedLeaderId, RaftId, Voter, Snapshot>;

/// The state as of an entry, with what belongs to it. Cloning costs a few pointers.
#[derive(Debug, Clone)]
pub struct Published<R: AsyncRuntime> {
    /// The state.
    pub cluster: Cluster,
    /// The last entry whose effects are in it; `None` before the first.
    pub applied: Option<LogId>,
    /// Who votes, as of that entry.
    pub membership: Arc<StoredMembership>,
    /// When this node applied the newest stamp, by its monotonic clock: from here a new leader carries cluster time on.
    /// Entries without a stamp, such as a leader's own first one, do not move it.
    pub at: R::Instant,
    /// Commands, and delays that were over, that panicked in the rules since this process began. More than zero is an alert: a bug.
    pub panics: u64,
}

/// The events as they happen, batch by batch. A handle.
#[derive(Debug, Clone)]
pub struct EventFeed(broadcast::Sender<Arc<Vec<Event>>>);

impl Default for EventFeed {
    fn default() -> Self {
        Self(broadcast::Sender::new(EVENT_BACKLOG))
    }
}

impl EventFeed {
    /// Every batch of events from now on. Who lags more than [`EVENT_BACKLOG`] batches is told how many were lost.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Vec<Event>>> {
        self.0.subscribe()
    }
}

/// The state machine on the runtime `R`.
#[derive(Debug)]
pub struct StateMachine<R: AsyncRuntime> {
    rules: Rules,
    snapshots: SnapshotStore,
    cluster: Cluster,
    applied: Option<LogId>,
    membership: Arc<StoredMembership>,
    /// As [`Published::at`].
    at: R::Instant,
    panics: u64,
    published: watch::Sender<Published<R>>,
    events: EventFeed,
    instruments: Instruments,
}

impl<R: AsyncRuntime> StateMachine<R> {
    /// Loads the current snapshot of `snapshots`, verified whole, or begins with the empty state. What the log holds beyond
    /// it is applied when Raft starts.
    ///
    /// Returns with it what others watch: the state, published after each entry and before its proposer is answered, and
    /// the events. Blocks on the disk.
    ///
    /// # Errors
    /// [`StorageError::Damaged`] with the place where the snapshot is; [`StorageError::NewerRules`].
    pub fn open(
        snapshots: SnapshotStore,
        rules: Rules,
    ) -> Result<(Self, watch::Receiver<Published<R>>, EventFeed), StorageError> {
        let (header, cluster) = match snapshots.current() {
            Some(snapshot) => {
                rules.check(snapshot.header().rules)?;
                snapshot.read()?
            }
            None => (Header::default(), Cluster::default()),
        };
        let Header { applied, membership, rules: _ } = header;
        let membership = Arc::new(membership);
        let at = R::Instant::now();
        let first = Published { cluster: cluster.clone(), applied, membership: membership.clone(), at, panics: 0 };
        let (published, watcher) = watch::channel(first);
        let events = EventFeed::default();
        let machine = Self {
            rules,
            snapshots,
            cluster,
            applied,
            membership,
            at,
            panics: 0,
            published,
            events: events.clone(),
            instruments: Instruments::default(),
        };
        Ok((machine, watcher, events))
    }

    /// The same state machine, which notes how long its work takes.
    #[must_use]
    pub fn noting(mut self, instruments: Instruments) -> Self {
        self.instruments = instruments;
        self
    }

    fn apply_entry(&mut self, entry: Entry) -> Result<(Outcomes, Vec<Event>), CodecError> {
        let Entry { log_id, payload } = entry;
        let result = match payload {
            EntryPayload::Blank => Default::default(),
            EntryPayload::Membership(membership) => {
                self.membership = Arc::new(StoredMembership::new(Some(log_id), membership));
                Default::default()
            }
            EntryPayload::Normal(sealed) => {
                let before = self.cluster.head.now;
                let result = apply_batch(self.rules, &mut self.cluster, &sealed)?;
                for (position, text) in &result.panics {
                    tracing::error!(index = log_id.index, position, text, "a command panicked and was left out");
                }
                let due = result.events.iter().filter(|event| event.kind == EventKind::RulePanicked);
                for event in due.clone() {
                    tracing::error!(index = log_id.index, path = ?event.path, "what was due panicked and was left out");
                }
                self.panics += result.panics.len() as u64 + due.count() as u64;
                // A stamp that is behind the state's time moves nothing, so what passed since the newest one still counts.
                if self.cluster.head.now > before {
                    self.at = R::Instant::now();
                }
                (Outcomes(result.outcomes), result.events)
            }
        };
        self.applied = Some(log_id);
        Ok(result)
    }

    fn publish(&self) {
        self.published.send_replace(Published {
            cluster: self.cluster.clone(),
            applied: self.applied,
            membership: self.membership.clone(),
            at: self.at,
            panics: self.panics,
        });
    }

    fn header(&self) -> Header {
        let rules = (self.rules.version)(&self.cluster);
        Header { applied: self.applied, membership: (*self.membership).clone(), rules }
    }
}

/// What applying a batch did.
#[derive(Debug, Default)]
struct BatchResult {
    /// One for each command, in order.
    outcomes: Vec<Outcome>,
    events: Vec<Event>,
    /// The positions of the commands that panicked, with what they said.
    panics: Vec<(usize, String)>,
}

/// Applies the commands of `batch` in order. The state and the answers are those of the batch without the commands that
/// panic; these are answered [`Rejection::Internal`].
///
/// A panic may leave the state half changed, so the commands before it are applied again to the state of before, which is
/// kept as one clone. After that the clone is renewed, so that however many commands panic, none is applied more than twice.
///
/// # Errors
/// The batch cannot be read: it is of a newer build.
///
/// # Panics
/// Where a command that passed panics when it is applied again: then the rules are not deterministic, voters differ, and
/// Raft on this node had better stop.
fn apply_batch(rules: Rules, cluster: &mut Cluster, sealed: &Sealed) -> Result<BatchResult, CodecError> {
    let Batch { stamp, commands } = sealed.open()?;
    let mut result = BatchResult::default();
    let mut kept = cluster.clone();
    let mut since_kept = 0;
    for (position, command) in commands.into_iter().enumerate() {
        // The state is thrown away after a panic, so nobody sees what it broke.
        let attempt = catch_unwind(AssertUnwindSafe(|| (rules.apply)(cluster, stamp, command)));
        match attempt {
            Ok(Applied { outcome, events }) => {
                result.outcomes.push(outcome);
                result.events.extend(events);
            }
            Err(panic) => {
                *cluster = kept;
                let before = sealed.decode()?.commands.into_iter().take(position).skip(since_kept);
                for earlier in before {
                    (rules.apply)(cluster, stamp, earlier);
                }
                kept = cluster.clone();
                since_kept = position + 1;
                let text = panic_text(panic.as_ref());
                result.outcomes.push(Err(Rejection::Internal(text.clone())));
                result.panics.push((position, text));
            }
        }
    }
    Ok(result)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a text").to_owned()
}

impl<R: AsyncRuntime> RaftStateMachine<Types<R>> for StateMachine<R> {
    type SnapshotData = Snapshot;
    type SnapshotBuilder = SnapshotBuilder<R>;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok((self.applied, (*self.membership).clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types<R>>>> + Unpin + OptionalSend,
    {
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            let began = R::Instant::now();
            let index = entry.log_id.index;
            let (outcomes, events) = self
                .apply_entry(entry)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, not_understood(index, &error)))?;
            self.instruments.apply.note(began.elapsed());
            // Whoever is answered must find in the state what it was told.
            self.publish();
            if let Some(responder) = responder {
                responder.send(outcomes);
            }
            if !events.is_empty() {
                // Nobody listening is no error.
                let _ = self.events.0.send(Arc::new(events));
            }
            self.rules.check((self.rules.version)(&self.cluster))?;
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder<R> {
        let (header, cluster, took) = (self.header(), self.cluster.clone(), self.instruments.snapshot.clone());
        SnapshotBuilder { snapshots: self.snapshots.clone(), header, cluster, took, runtime: Default::default() }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: Snapshot) -> io::Result<()> {
        let (snapshots, announced, rules) = (self.snapshots.clone(), meta.clone(), self.rules);
        let (header, cluster) = aside::<R, _>(&self.snapshots, move || {
            rules.check(snapshot.header().rules)?;
            let (header, cluster) = snapshot.read()?;
            if header.meta() != announced {
                let what = format!("it ends at {:?}, announced was {:?}", header.applied, announced.last_log_id);
                return Err(StorageError::BadTransfer { offset: 0, place: "header".into(), what });
            }
            snapshots.adopt(&snapshot)?;
            Ok((header, cluster))
        })
        .await?;
        let Header { applied, membership, rules: _ } = header;
        self.at = carried_over::<R>(self.cluster.head.now, self.at, cluster.head.now);
        (self.cluster, self.applied, self.membership) = (cluster, applied, Arc::new(membership));
        let index = self.applied.map(|applied| applied.index);
        tracing::info!(index, "a snapshot of the leader took the place of the state");
        self.publish();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<RaftSnapshot>> {
        Ok(self.snapshots.current().map(as_raft_snapshot))
    }
}

/// Writes a snapshot of the state as it was when this was made.
#[derive(Debug)]
pub struct SnapshotBuilder<R> {
    snapshots: SnapshotStore,
    header: Header,
    cluster: Cluster,
    took: Durations,
    runtime: std::marker::PhantomData<fn() -> R>,
}

impl<R: AsyncRuntime> RaftSnapshotBuilder<Types<R>> for SnapshotBuilder<R> {
    type SnapshotData = Snapshot;

    async fn build_snapshot(&mut self) -> io::Result<RaftSnapshot> {
        let (snapshots, header, cluster) = (self.snapshots.clone(), self.header.clone(), self.cluster.clone());
        let (began, has_thread) = (R::Instant::now(), snapshots.is_on_disk());
        let write = move || snapshots.write(&header, &cluster);
        let built = aside::<R, _>(&self.snapshots, move || if has_thread { yielding(write) } else { write() }).await?;
        self.took.note(began.elapsed());
        Ok(as_raft_snapshot(built))
    }
}

/// When the stamp of an installed snapshot counts as applied. How long ago the snapshot was taken nobody says; but cluster time
/// has come at least as far as the stamp known before it, `before`, and what passed here since that was applied `at`.
fn carried_over<R: AsyncRuntime>(before: Duration, at: R::Instant, stamp: Duration) -> R::Instant {
    let now = R::Instant::now();
    now - (before + (now - at)).saturating_sub(stamp)
}

fn as_raft_snapshot(snapshot: Snapshot) -> RaftSnapshot {
    openraft::storage::Snapshot { meta: snapshot.header().meta(), snapshot }
}

/// Does blocking work where it stalls no task; in place where no disk is touched, as a simulated runtime has no threads.
async fn aside<R: AsyncRuntime, T: Send + 'static>(
    snapshots: &SnapshotStore,
    work: impl FnOnce() -> Result<T, StorageError> + Send + 'static,
) -> io::Result<T> {
    let done = if snapshots.is_on_disk() { R::spawn_blocking(work).await? } else { work() };
    done.map_err(io::Error::from)
}

/// Does work in a thread that yields to all others: nobody waits for a snapshot, and nothing is to wait behind one.
fn yielding<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let working = move || {
        // Where it is refused, the work is done all the same.
        _ = setpriority_process(Some(gettid()), LOW_PRIORITY);
        work()
    };
    std::thread::scope(|scope| match scope.spawn(working).join() {
        Ok(done) => done,
        Err(panic) => resume_unwind(panic),
    })
}

#[cfg(test)]
mod tests;

//! The Raft log on disk: [`LogStore`], openraft's `RaftLogStorage` on raft-log.
//!
//! ```text
//!   RaftCore ── append ──► encode ──► raft-log: buffer, index, cache ──► its flush thread: write, fdatasync ──► answer
//!   replication, apply ◄── decode ◄── cache, or a file of an older part of the log
//! ```
//!
//! **The rule on damage.** An entry is acknowledged only after an fsync that covers it. When the log is opened:
//!
//! 1. Where the last file ends inside a record, or in zeros only, that end is cut: this is what a crash in the middle of a
//!    write leaves, or a disk that is full, before any fsync covered it. What is left is synced before the log counts as open: a
//!    process that was killed may have written whole records without.
//! 2. Anything else that is not as it was written refuses to open and names file and byte: a flipped bit anywhere, in a
//!    length, a type or a checksum too; a hole; a missing file before the last; entries that do not follow each other.
//!    Nothing is changed.
//!    A torn write whose blocks came to the disk out of order (garbage, then the end) is refused as well: it cannot be told
//!    from damage, and losing what was acknowledged is worse than a node that must rejoin.
//! 3. What no log can tell: a disk that lost a synced end of the log as a whole (the end of the last file, or that file)
//!    looks like case 1. No entry before an intact later record is ever lost; those after it are, on this node. A voter whose
//!    disk lies must be wiped, so that it comes back under a new id. Where it is not, the leader sends it again what it lost:
//!    see `allow_log_reversion` in [`crate::raft::config`].
//!
//! A write that fails is never tried again: the log takes no more, and says why each time, until the process has ended.
//!
//! What blocks: an append copies into a buffer and hands it to the flush thread; it waits only where more than
//! [`LogOptions::flush_queue_bytes`] are on their way to the disk. Reads of older entries hold the lock of the log for at
//! most 64 KiB at a time, so that an append never waits for a long read.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::{AsyncRuntime, EntryPayload, Instant, LogState, OptionalSend, RaftLogReader};
use pando_protocol::codec::CodecError;
use pando_supervision::Command;
use raft_log::RaftLog;
use raft_log::api::raft_log_writer::RaftLogWriter;

use super::damage;
pub use super::damage::Cut;
use super::error::StorageError;
use super::folder;
use super::format::{StoredLogId, StoredVote, decode_payload, encode_payload, newer_codec};
use super::wal::{Flushed, RecordedPayload, Records};
use crate::instruments::{Durations, Instruments};
use crate::raft::sealed::Sealed;
use crate::raft::types::{Entry, LogId, Types, Vote};

/// Most bytes of entries that one read for replication returns, unless the first entry alone is larger.
pub const READ_LIMIT: usize = 1 << 20;
// An append waits for at most one such read: about 50 µs from the page cache.
const LOCKED_READ: usize = 64 << 10;

/// Bytes of batches that are kept open until they are applied, and a little beyond.
const TAKEN_IN: usize = 4 << 20;

/// How the log is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOptions {
    /// Bytes of entries kept in memory, beside those of the newest file. Default 32 MiB.
    pub cache_bytes: usize,
    /// Bytes after which a new file is begun; purging frees whole files. Default 16 MiB.
    pub file_bytes: usize,
    /// How long the flush thread waits for more to write before it syncs. Default 250 µs: 1 ms costs a lone writer more than
    /// half of its rate, 0 costs a busy leader a third.
    pub flush_window: Duration,
    /// Bytes that may be on their way to the disk before an append waits. Default 64 MiB.
    pub flush_queue_bytes: usize,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 32 << 20,
            file_bytes: 16 << 20,
            flush_window: Duration::from_micros(250),
            flush_queue_bytes: 64 << 20,
        }
    }
}

impl LogOptions {
    /// Options for a log that is to have about so many bytes: a quarter of it a file, so that purging gives back in steps. Never
    /// above the defaults.
    pub fn for_size(bytes: u64) -> Self {
        let most = Self::default();
        let within = |bytes: u64, most: usize| usize::try_from(bytes).unwrap_or(most).min(most);
        Self { cache_bytes: within(bytes, most.cache_bytes), file_bytes: within(bytes / 4, most.file_bytes), ..most }
    }
}

/// The Raft log. A handle: clones are the same log. The folder stays locked until the last one is gone.
#[derive(Debug, Clone)]
pub struct LogStore {
    log: Arc<Mutex<RaftLog<Records>>>,
    folder: Arc<Path>,
    took: Durations,
    cuts: Arc<[Cut]>,
    taken_in: Arc<Mutex<TakenIn>>,
}

/// The newest batches that are open already, so that they need not be opened again to be applied.
#[derive(Debug, Default)]
struct TakenIn {
    /// By index, rising.
    batches: VecDeque<(StoredLogId, Sealed)>,
    bytes: usize,
}

impl TakenIn {
    fn add(&mut self, entries: Vec<Entry>) {
        for Entry { log_id, payload } in entries {
            let EntryPayload::Normal(sealed) = payload else { continue };
            if !sealed.is_open() {
                continue;
            }
            let id = StoredLogId::from(&log_id);
            // What stood there was cut.
            while let Some((_, former)) = self.batches.pop_back_if(|(former, _)| former.index >= id.index) {
                self.bytes -= former.bytes().len();
            }
            self.bytes += sealed.bytes().len();
            self.batches.push_back((id, sealed));
            while self.bytes > TAKEN_IN
                && let Some((_, oldest)) = self.batches.pop_front()
            {
                self.bytes -= oldest.bytes().len();
            }
        }
    }

    fn find(&self, id: StoredLogId) -> Option<Sealed> {
        let at = self.batches.binary_search_by_key(&id.index, |(found, _)| found.index).ok()?;
        self.batches.get(at).filter(|(found, _)| *found == id).map(|(_, sealed)| sealed.clone())
    }
}

/// How large the log is, file by file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogExtent {
    /// The index up to which entries are gone, inclusive.
    pub purged: Option<u64>,
    /// The index of the last entry; equals `purged` where there is none.
    pub last: Option<u64>,
    /// The files, the oldest first; never empty for an open log.
    pub files: Vec<FileExtent>,
}

/// One file of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileExtent {
    /// The index of the last entry in the log where this file ends.
    pub last: Option<u64>,
    /// Its size in bytes.
    pub bytes: u64,
}

impl LogStore {
    /// Opens the log in `folder`, which is made if it is missing, and cuts a torn end.
    ///
    /// # Errors
    /// [`StorageError::Damaged`] and [`StorageError::Contradiction`] as in the rule above; [`StorageError::InUse`] where
    /// another process, or another handle of this one, has it open; [`StorageError::NewerFormat`].
    pub fn open(folder: &Path, options: &LogOptions) -> Result<Self, StorageError> {
        folder::make(folder).map_err(StorageError::io("create", folder))?;
        let before = damage::sizes(folder)?;
        let log =
            RaftLog::open(Arc::new(configuration(folder, options)?)).map_err(|e| damage::why_refused(folder, e))?;
        let took = Instruments::default().sync;
        let cuts = damage::cut_off(before)?.into();
        let store =
            Self { log: Arc::new(Mutex::new(log)), folder: folder.into(), took, cuts, taken_in: Arc::default() };
        store.sync_newest()?;
        store.ensure_contiguous()?;
        store.ensure_known_format()?;
        Ok(store)
    }

    /// The same log, which notes how long each append takes to be on disk.
    #[must_use]
    pub fn noting(mut self, took: Durations) -> Self {
        self.took = took;
        self
    }

    /// What was cut off its end when it was opened, file by file; empty where it ended with a whole record.
    pub fn cuts(&self) -> &[Cut] {
        &self.cuts
    }

    /// Whether nothing was ever written: no vote and no entry.
    ///
    /// # Errors
    /// After a panic inside the log.
    pub fn is_pristine(&self) -> Result<bool, StorageError> {
        let log = self.look()?;
        Ok(log.log_state().vote().is_none() && log.log_state().last().is_none())
    }

    /// Refuses a log whose first entries are gone while no snapshot covers them, and one that is gone as a whole while there is a
    /// snapshot: with it went a vote, which must not be given twice.
    ///
    /// # Errors
    /// [`StorageError::Contradiction`] where entries after `snapshot` are missing, or everything is.
    pub fn ensure_follows(&self, snapshot: Option<u64>) -> Result<(), StorageError> {
        let purged = self.extent()?.purged;
        // Whoever has a snapshot took part, and kept its vote here before.
        if snapshot.is_some() && self.is_pristine()? {
            return Err(
                self.contradiction("it is empty, but there is a snapshot: the log that belongs to it is gone".into())
            );
        }
        if purged <= snapshot {
            return Ok(());
        }
        let covered = snapshot.map_or_else(|| "there is no snapshot".into(), |at| format!("the snapshot ends at {at}"));
        let begins = purged.map_or(0, |at| at + 1);
        Err(self.contradiction(format!("its first entry is {begins}, but {covered}: the newer snapshot is missing")))
    }

    /// Refuses a log that raises the rules beyond `known` after the entry `after`: this build would apply what follows there by
    /// other rules than the voters that wrote it. Raft itself would notice only once it runs, and has voted. Reads all that
    /// follows `after`, which a start reads once more to apply it.
    ///
    /// # Errors
    /// [`StorageError::NewerRules`]; [`StorageError::Contradiction`] where an entry before any such cannot be understood.
    pub fn ensure_known_rules(&self, after: Option<u64>, known: u32) -> Result<(), StorageError> {
        let LogExtent { purged, last, files: _ } = self.extent()?;
        let mut next = purged.max(after).map_or(0, |index| index + 1);
        let end = last.map_or(0, |last| last + 1);
        while next < end {
            let records =
                self.read_locked(next, end, LOCKED_READ).map_err(StorageError::io("read", self.folder.as_ref()))?;
            if records.is_empty() {
                break;
            }
            next += records.len() as u64;
            for (id, payload) in records {
                let entry = self.entry(id, &payload).map_err(|error| self.contradiction(error.to_string()))?;
                let EntryPayload::Normal(sealed) = entry.payload else { continue };
                let batch = sealed.decode().map_err(|error| self.contradiction(not_understood(id.index, &error)))?;
                let raised = batch.commands.iter().filter_map(|command| match command {
                    Command::RaiseRules(version) => Some(*version),
                    _ => None,
                });
                if let Some(found) = raised.max().filter(|version| *version > known) {
                    return Err(StorageError::NewerRules { found, known });
                }
            }
        }
        Ok(())
    }

    /// How large the log is now.
    ///
    /// # Errors
    /// After a panic inside the log.
    pub fn extent(&self) -> Result<LogExtent, StorageError> {
        let log = self.look()?;
        let stat = log.stat();
        let files = stat.closed_chunks.iter().chain([&stat.open_chunk]);
        let files = files.map(|file| FileExtent { last: file.log_state.last().map(|id| id.index), bytes: file.size });
        Ok(LogExtent {
            purged: log.log_state().purged().map(|id| id.index),
            last: log.log_state().last().map(|id| id.index),
            files: files.collect(),
        })
    }

    fn lock(&self) -> io::Result<MutexGuard<'_, RaftLog<Records>>> {
        self.log.lock().map_err(|_| io::Error::other("the log panicked before; restart the node"))
    }

    fn look(&self) -> Result<MutexGuard<'_, RaftLog<Records>>, StorageError> {
        self.lock().map_err(StorageError::io("look at the log in", self.folder.as_ref()))
    }

    // A process that was killed leaves records which it wrote and did not sync. From here on they count as kept, so they must
    // outlive a power failure. The files before the newest were synced before that one got its first record.
    fn sync_newest(&self) -> Result<(), StorageError> {
        let files = damage::log_files(&self.folder)?;
        if let Some(newest) = files.last() {
            File::open(newest).and_then(|file| file.sync_all()).map_err(StorageError::io("sync", newest))?;
        }
        folder::sync(&self.folder).map_err(StorageError::io("sync the folder", self.folder.as_ref()))
    }

    // raft-log checks that records follow each other, not that the files it was given are all there were.
    fn ensure_contiguous(&self) -> Result<(), StorageError> {
        let log = self.look()?;
        let state = log.log_state();
        let first = state.purged().map_or(0, |id| id.index + 1);
        let Some(last) = state.last().map(|id| id.index).filter(|last| *last >= first) else { return Ok(()) };
        for index in [first, last] {
            if log.read(index, index + 1).next().is_none() {
                return Err(self.contradiction(format!("entry {index} is missing: a file of the log is gone")));
            }
        }
        Ok(())
    }

    // The newest entry tells: a build never writes behind an entry that it does not know.
    fn ensure_known_format(&self) -> Result<(), StorageError> {
        let last = self.look()?.log_state().last().map_or(0, |id| id.index);
        let newest = self.read_locked(last, last + 1, 1).map_err(StorageError::io("read", self.folder.as_ref()))?;
        let Some((id, payload)) = newest.first() else { return Ok(()) };
        match decode_payload(payload).err().as_ref().and_then(newer_codec) {
            Some(newer) => {
                let path = self.folder.to_path_buf();
                Err(StorageError::NewerFormat {
                    path,
                    what: format!("{newer}, since its entry {} at the latest", id.index),
                })
            }
            None => Ok(()),
        }
    }

    /// The answer to a write for which the disk has no answer yet: it names the folder where the disk refuses.
    fn answer(&self, answer: impl FnOnce(io::Result<()>) + Send + 'static) -> Flushed {
        let folder = self.folder.clone();
        Flushed(Box::new(move |result| answer(result.map_err(|error| unwritten(&folder, error)))))
    }

    /// Why the log took no more, in words that name the folder. Once the disk has refused, raft-log says of every later write
    /// only that its thread is gone; what the thread ended with is the reason.
    fn refused(&self, log: &RaftLog<Records>, error: io::Error) -> io::Error {
        if damage::is_from_the_system(&error) {
            return unwritten(&self.folder, error);
        }
        match log.wait_worker_idle() {
            Ok(()) => error,
            Err(first) => unwritten(&self.folder, first),
        }
    }

    fn contradiction(&self, what: String) -> StorageError {
        StorageError::Contradiction { path: self.folder.to_path_buf(), what }
    }

    /// Entries from `from` up to but not including `to`, until `limit` bytes are reached; the entry that reaches it is in.
    fn read(&self, from: u64, to: u64, limit: usize) -> io::Result<Vec<Entry>> {
        let mut entries: Vec<Entry> = vec![];
        let mut read = 0;
        while read < limit {
            let next = from + entries.len() as u64;
            let records = self.read_locked(next, to, LOCKED_READ.min(limit - read))?;
            if records.is_empty() {
                break;
            }
            for (id, payload) in records {
                // Between two locks the log may have been cut or purged: what follows then is another story.
                if id.index != from + entries.len() as u64 {
                    return Ok(entries);
                }
                read += payload.len();
                entries.push(self.entry(id, &payload)?);
            }
        }
        Ok(entries)
    }

    fn entry(&self, id: StoredLogId, payload: &Bytes) -> io::Result<Entry> {
        let open = self.taken_in.lock().unwrap_or_else(PoisonError::into_inner).find(id);
        let payload = match open {
            Some(sealed) => EntryPayload::Normal(sealed),
            None => decode_payload(payload)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, not_understood(id.index, &error)))?,
        };
        Ok(Entry { log_id: id.into(), payload })
    }

    /// Whether the log has entries at or after `index`.
    fn holds_beyond(&self, index: u64) -> io::Result<bool> {
        Ok(self.lock()?.log_state().last().is_some_and(|last| last.index >= index))
    }

    fn read_locked(&self, from: u64, to: u64, limit: usize) -> io::Result<Vec<(StoredLogId, Bytes)>> {
        let mut records = vec![];
        if from >= to {
            return Ok(records);
        }
        let log = self.lock()?;
        let mut read = 0;
        for record in log.read(from, to) {
            let (id, RecordedPayload(payload)) = record?;
            read += payload.len();
            records.push((id, payload));
            if read >= limit {
                break;
            }
        }
        Ok(records)
    }
}

fn configuration(folder: &Path, options: &LogOptions) -> Result<raft_log::Config, StorageError> {
    let Some(text) = folder.to_str() else {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "the path is not UTF-8");
        return Err(StorageError::Io { doing: "use", path: folder.to_owned(), source });
    };
    let mut config = raft_log::Config::new(text);
    config.log_cache_capacity = Some(options.cache_bytes);
    // Bounded by bytes alone: a million empty entries are 128 MB at most.
    config.log_cache_max_items = Some(1 << 20);
    config.wal.chunk_max_size = Some(options.file_bytes);
    config.wal.flush_batch_wait = Some(options.flush_window);
    config.wal.flush_queue_max_bytes = Some(options.flush_queue_bytes);
    // Files are read once, front to back; the default of 64 MiB gains nothing.
    config.wal.read_buffer_size = Some(1 << 20);
    config.wal.truncate_incomplete_record = Some(true);
    Ok(config)
}

fn unwritten(folder: &Path, error: io::Error) -> io::Error {
    StorageError::io("write the log in", folder)(error).into()
}

/// What is said of an entry that this build cannot read.
pub fn not_understood(index: u64, error: &CodecError) -> String {
    format!("log entry {index} cannot be understood: {error}; start the version of pando-node that ran here last")
}

fn half_open(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let from = match range.start_bound() {
        Bound::Included(index) => *index,
        Bound::Excluded(index) => index.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(index) => index.saturating_add(1),
        Bound::Excluded(index) => *index,
        Bound::Unbounded => u64::MAX,
    };
    (from, to)
}

impl<R: AsyncRuntime> RaftLogReader<Types<R>> for LogStore {
    // Reads as the entries are applied: the whole range may be all of the log.
    async fn entries_stream<RB>(&mut self, range: RB) -> impl Stream<Item = io::Result<Entry>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = half_open(&range);
        let start = (self.clone(), from, VecDeque::new());
        futures_util::stream::try_unfold(start, move |(store, next, mut ready)| async move {
            if ready.is_empty() && next < to {
                ready.extend(store.read(next, to, READ_LIMIT)?);
            }
            match ready.pop_front() {
                Some(entry) => Ok(Some((entry, (store, next + 1, ready)))),
                None if next < to && store.holds_beyond(next)? => {
                    Err(io::Error::new(io::ErrorKind::InvalidData, format!("log entry {next} is missing")))
                }
                None => Ok(None),
            }
        })
    }

    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<Entry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = half_open(&range);
        let records = self.read_locked(from, to, usize::MAX)?;
        records.into_iter().map(|(id, payload)| self.entry(id, &payload)).collect()
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.lock()?.log_state().vote().map(|vote| Vote::from(*vote)))
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.read(start, end, READ_LIMIT)
    }
}

impl<R: AsyncRuntime> RaftLogStorage<Types<R>> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types<R>>> {
        let log = self.lock()?;
        let state = log.log_state();
        Ok(LogState {
            last_purged_log_id: state.purged().map(|id| LogId::from(*id)),
            last_log_id: state.last().map(|id| LogId::from(*id)),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let (flushed, done) = tokio::sync::oneshot::channel();
        {
            let answer = self.answer(|result| drop(flushed.send(result)));
            let mut log = self.lock()?;
            let handed_over = log.save_vote(StoredVote::from(vote)).and_then(|_| log.flush(true, Some(answer)));
            handed_over.map_err(|error| self.refused(&log, error))?;
        }
        match done.await {
            Ok(result) => result,
            Err(_) => {
                let error = io::Error::other("the log's flush thread ended before the vote was on disk");
                Err(self.refused(&*self.lock()?, error))
            }
        }
    }

    // Not synced: it only spares a restarted node the wait for a leader, and the next append syncs it along.
    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        let Some(committed) = committed.as_ref().map(StoredLogId::from) else { return Ok(()) };
        let mut log = self.lock()?;
        // After a snapshot was installed, what is committed may lie beyond the log until that is purged.
        if Some(&committed) <= log.log_state().last() && Some(&committed) > log.log_state().committed() {
            log.commit(committed).map_err(|error| self.refused(&log, error))?;
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.lock()?.log_state().committed().map(|id| LogId::from(*id)))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types<R>>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        // Encoded before the lock is taken, so that readers never wait for it.
        let entries: Vec<Entry> = entries.into_iter().collect();
        let records = entries.iter().map(record).collect::<io::Result<Vec<_>>>()?;
        self.taken_in.lock().unwrap_or_else(PoisonError::into_inner).add(entries);
        let (took, began) = (self.took.clone(), R::Instant::now());
        let answer = self.answer(move |result| {
            took.note(began.elapsed());
            callback.io_completed(result);
        });
        let mut log = self.lock()?;
        let handed_over = log.append(records).and_then(|_| log.flush(true, Some(answer)));
        handed_over.map_err(|error| self.refused(&log, error))
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let first_gone = last.map_or(0, |id| id.index + 1);
        if !self.holds_beyond(first_gone)? {
            return Ok(());
        }
        let mut log = self.lock()?;
        log.truncate(first_gone).and_then(|_| log.flush(true, None)).map_err(|error| self.refused(&log, error))
    }

    async fn purge(&mut self, through: LogId) -> io::Result<()> {
        let mut log = self.lock()?;
        let purged = log.purge(StoredLogId::from(&through)).and_then(|_| log.flush(true, None));
        purged.map_err(|error| self.refused(&log, error))
    }
}

fn record(entry: &Entry) -> io::Result<(StoredLogId, RecordedPayload)> {
    let payload = encode_payload(&entry.payload)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, format!("log entry {}: {e}", entry.log_id.index)))?;
    Ok((StoredLogId::from(&entry.log_id), RecordedPayload(payload)))
}

#[cfg(test)]
mod tests;

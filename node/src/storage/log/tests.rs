use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use futures_util::StreamExt;
use openraft::storage::RaftLogStorageExt;
use pando_protocol::ids::{ClientId, TreeName};
use pando_protocol::message::{Change, Write};
use pando_supervision::{Batch, Stamp};
use tempfile::TempDir;

use super::*;
use crate::raft::types::{LeaderId, NodeTypes};

fn id(term: u64, index: u64) -> LogId {
    LogId::new(LeaderId { term, node_id: 7 }, index)
}

fn entry(term: u64, index: u64, weight: usize) -> Entry {
    let tree = |n: usize| -> TreeName { format!("t{n}").parse().unwrap() };
    let command = |n: usize| {
        let change = Change::Delete(tree(n));
        Command::Write(Write { client: ClientId(1), sequence: n as u64, lowest_unanswered: 0, change })
    };
    let commands = (0..weight).map(command).collect();
    let batch = Batch { stamp: Stamp { at: Duration::from_millis(index), wall: 1 }, commands };
    Entry { log_id: id(term, index), payload: EntryPayload::Normal(Sealed::new(&batch).unwrap()) }
}

fn options() -> LogOptions {
    LogOptions { flush_window: Duration::ZERO, ..LogOptions::default() }
}

fn open(folder: &Path) -> Result<LogStore, StorageError> {
    LogStore::open(folder, &options())
}

async fn append(log: &mut LogStore, entries: Vec<Entry>) {
    RaftLogStorageExt::<NodeTypes>::blocking_append(log, entries).await.unwrap();
}

async fn all(log: &mut LogStore) -> Vec<Entry> {
    RaftLogReader::<NodeTypes>::try_get_log_entries(log, 0..).await.unwrap()
}

async fn purge(log: &mut LogStore, through: LogId) {
    RaftLogStorage::<NodeTypes>::purge(log, through).await.unwrap();
}

/// A log of one file that holds every kind of record.
async fn small_log(folder: &Path) -> PathBuf {
    let mut log = open(folder).unwrap();
    let vote = Vote { leader_id: LeaderId { term: 1, node_id: 7 }, committed: true };
    RaftLogStorage::<NodeTypes>::save_vote(&mut log, &vote).await.unwrap();
    append(&mut log, (0..3).map(|index| entry(1, index, 1)).collect()).await;
    RaftLogStorage::<NodeTypes>::save_committed(&mut log, Some(id(1, 1))).await.unwrap();
    RaftLogStorage::<NodeTypes>::truncate_after(&mut log, Some(id(1, 1))).await.unwrap();
    append(&mut log, vec![entry(2, 2, 1)]).await;
    purge(&mut log, id(1, 0)).await;
    append(&mut log, vec![entry(2, 3, 1)]).await;
    only_file(folder)
}

fn only_file(folder: &Path) -> PathBuf {
    let mut files = damage::log_files(folder).unwrap();
    assert_eq!(files.len(), 1, "{files:?}");
    files.remove(0)
}

fn copy(name: &Path, bytes: &[u8]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name.file_name().unwrap());
    fs::write(&path, bytes).unwrap();
    (folder, path)
}

/// Where the records of a log file begin, and where the last one ends.
fn record_bounds(bytes: &[u8]) -> Vec<usize> {
    use raft_log::codeq::Decode;
    let mut rest = bytes;
    let mut bounds = vec![0];
    while !rest.is_empty() {
        raft_log::RaftLogRecord::<Records>::decode(&mut rest).unwrap();
        bounds.push(bytes.len() - rest.len());
    }
    bounds
}

#[tokio::test]
async fn every_flipped_bit_refuses_to_open_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = small_log(folder.path()).await;
    let good = fs::read(&path).unwrap();
    let (spoiled, path) = copy(&path, &good);
    let bounds = record_bounds(&good);
    assert_eq!(bounds.len() - 1, 10, "checkpoint, vote, 3 entries, commit, truncation, entry, purge, entry");
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    for (record, span) in bounds.windows(2).enumerate() {
        let (begin, after) = (span[0], span[1]);
        // As the last record, whose end is the end of the file, then with intact records after it.
        for end in [after, good.len()] {
            file.set_len(end as u64).unwrap();
            file.write_all_at(&good[..end], 0).unwrap();
            for (at, bit) in (begin..after).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
                file.write_all_at(&[good[at] ^ (1 << bit)], at as u64).unwrap();
                let refused = open(spoiled.path()).err();
                let Some(StorageError::Damaged { path: named, offset, place, .. }) = &refused else {
                    panic!("bit {bit} of byte {at} of {end} in record {record}: {refused:?}");
                };
                assert_eq!((named, *offset, place), (&path, begin as u64, &format!("record {record}")));
                assert_eq!(io::Error::from(refused.unwrap()).kind(), io::ErrorKind::InvalidData);
                assert_eq!(file.metadata().unwrap().len(), end as u64, "a refused log was cut");
                file.write_all_at(&good[at..=at], at as u64).unwrap();
            }
            assert_eq!(fs::read(&path).unwrap(), good[..end], "a refused log was changed");
        }
    }
}

#[tokio::test]
async fn a_torn_end_is_cut_and_what_was_acknowledged_before_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = small_log(folder.path()).await;
    let good = fs::read(&path).unwrap();
    let bounds = record_bounds(&good);
    let before = vec![entry(1, 1, 1), entry(2, 2, 1)];
    for end in bounds[bounds.len() - 2]..good.len() {
        for zeros in [0, good.len() - end, 5000] {
            let mut torn = good[..end].to_vec();
            torn.resize(end + zeros, 0);
            let (folder, _) = copy(&path, &torn);
            match open(folder.path()) {
                Ok(mut log) => {
                    assert_eq!(all(&mut log).await, before, "{end} bytes and {zeros} zeros");
                    let (whole, size) = (bounds[bounds.len() - 2] as u64, torn.len() as u64);
                    let cuts: Vec<_> = log.cuts().iter().map(|cut| (cut.offset, cut.bytes)).collect();
                    let torn = (size > whole).then(|| (whole, size - whole));
                    assert_eq!(cuts, Vec::from_iter(torn), "it says what it cut");
                    append(&mut log, vec![entry(2, 3, 2)]).await;
                    drop(log);
                    let again = all(&mut open(folder.path()).unwrap()).await;
                    assert_eq!(again.last(), Some(&entry(2, 3, 2)));
                }
                // Half a record before zeros cannot be told from damage.
                Err(StorageError::Damaged { .. }) => assert!(zeros > 0 && end > bounds[bounds.len() - 2]),
                Err(other) => panic!("{end} bytes and {zeros} zeros: {other}"),
            }
        }
    }
}

/// A log of several files.
async fn long_log(folder: &Path) -> LogStore {
    let mut log = LogStore::open(folder, &LogOptions { file_bytes: 4096, cache_bytes: 1024, ..options() }).unwrap();
    for index in 0..400 {
        append(&mut log, vec![entry(1, index, 3)]).await;
    }
    log
}

/// A disk that is full when a file is begun leaves it so.
#[tokio::test]
async fn a_last_file_that_ends_inside_its_first_record_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    drop(long_log(folder.path()).await);
    let files = damage::log_files(folder.path()).unwrap();
    let [.., before, last] = files.as_slice() else { panic!("{files:?}") };
    fs::remove_file(last).unwrap();
    let mut log = open(folder.path()).unwrap();
    let whole = all(&mut log).await;
    drop(log);
    let (name, begun) = (last, fs::read(before).unwrap());
    let first = record_bounds(&begun)[1];
    for bytes in [0, 1, first - 1] {
        // What was opened above has begun a last file of its own.
        for newer in damage::log_files(folder.path()).unwrap().into_iter().filter(|path| path > before) {
            fs::remove_file(newer).unwrap();
        }
        fs::write(name, &begun[..bytes]).unwrap();
        let mut log = open(folder.path()).unwrap();
        assert_eq!(all(&mut log).await, whole);
        let cut = Cut { path: name.clone(), offset: 0, bytes: bytes as u64 };
        assert_eq!(log.cuts(), Vec::from_iter((bytes > 0).then_some(cut)));
    }
}

#[tokio::test]
async fn a_missing_file_refuses_to_open() {
    let folder = tempfile::tempdir().unwrap();
    drop(long_log(folder.path()).await);
    let files = damage::log_files(folder.path()).unwrap();
    assert!(files.len() > 3);
    for missing in [0, 1] {
        let other = tempfile::tempdir().unwrap();
        for (number, file) in files.iter().enumerate().filter(|(number, _)| *number != missing) {
            fs::copy(file, other.path().join(file.file_name().unwrap())).unwrap_or_else(|e| panic!("{number}: {e}"));
        }
        let refused = open(other.path()).unwrap_err();
        assert!(matches!(refused, StorageError::Contradiction { .. }), "{refused}");
        assert_eq!(io::Error::from(refused).kind(), io::ErrorKind::InvalidData);
    }
}

#[tokio::test]
async fn a_torn_file_that_is_not_the_last_refuses_to_open() {
    let folder = tempfile::tempdir().unwrap();
    drop(long_log(folder.path()).await);
    let files = damage::log_files(folder.path()).unwrap();
    let bytes = fs::read(&files[1]).unwrap();
    fs::write(&files[1], &bytes[..bytes.len() - 3]).unwrap();
    let refused = open(folder.path()).unwrap_err();
    assert!(matches!(&refused, StorageError::Damaged { path, .. } if *path == files[1]), "{refused}");
}

#[tokio::test]
async fn entries_stream_through_all_files_and_say_where_one_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = long_log(folder.path()).await;
    let expected: Vec<_> = (5..400).map(|index| entry(1, index, 3)).collect();
    let stream = RaftLogReader::<NodeTypes>::entries_stream(&mut log, 5..).await;
    let streamed: Vec<_> = std::pin::pin!(stream).map(Result::unwrap).collect().await;
    assert_eq!(streamed, expected);
    purge(&mut log, id(1, 300)).await;
    let gone = RaftLogReader::<NodeTypes>::entries_stream(&mut log, 299..303).await;
    let items: Vec<_> = std::pin::pin!(gone).collect().await;
    assert_eq!(items.len(), 1);
    assert_eq!(items[0].as_ref().unwrap_err().to_string(), "log entry 299 is missing");
}

#[tokio::test]
async fn a_read_for_replication_is_bounded_in_bytes_and_never_empty() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = open(folder.path()).unwrap();
    // About 300 KiB each, then one beyond the limit by itself.
    let weights = [20_000, 20_000, 20_000, 20_000, 20_000, 120_000, 1];
    append(&mut log, (0u64..).zip(weights).map(|(index, weight)| entry(1, index, weight)).collect()).await;
    let mut next = 0;
    let mut reads = vec![];
    while next < weights.len() as u64 {
        let read = RaftLogReader::<NodeTypes>::limited_get_log_entries(&mut log, next, 7).await.unwrap();
        next += read.len() as u64;
        reads.push(read.len());
    }
    assert!(reads.iter().all(|count| (1..=4).contains(count)), "{reads:?}");
    assert!(reads.len() > 1, "{reads:?}");
}

#[tokio::test]
async fn purging_gives_space_back_and_the_rest_survives() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = long_log(folder.path()).await;
    let before = log.extent().unwrap();
    purge(&mut log, id(1, 300)).await;
    append(&mut log, vec![entry(1, 400, 1)]).await;
    let after = log.extent().unwrap();
    assert!(after.files.len() < before.files.len() / 2, "{after:?}");
    assert_eq!((after.purged, after.last), (Some(300), Some(400)));
    assert!(log.ensure_follows(Some(300)).is_ok());
    assert!(log.ensure_follows(Some(299)).unwrap_err().to_string().contains("its first entry is 301"));
    drop(log);
    let mut log = open(folder.path()).unwrap();
    assert_eq!(all(&mut log).await.len(), 100);
    assert_eq!(log.extent().unwrap().purged, Some(300));
}

#[tokio::test]
async fn an_empty_log_beside_a_snapshot_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = open(folder.path()).unwrap();
    assert!(log.ensure_follows(None).is_ok());
    let refused = log.ensure_follows(Some(7)).unwrap_err().to_string();
    assert!(refused.contains("the log that belongs to it is gone"), "{refused}");
    // One that catches up by its first snapshot kept its vote before.
    let vote = Vote { leader_id: LeaderId { term: 1, node_id: 8 }, committed: true };
    RaftLogStorage::<NodeTypes>::save_vote(&mut log, &vote).await.unwrap();
    assert!(log.ensure_follows(Some(7)).is_ok());
}

#[tokio::test]
async fn a_log_in_use_is_refused_until_its_last_handle_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path()).unwrap();
    assert!(log.is_pristine().unwrap());
    let other = log.clone();
    drop(log);
    assert!(matches!(open(folder.path()), Err(StorageError::InUse(_))));
    drop(other);
    assert!(open(folder.path()).is_ok());
}

#[tokio::test]
async fn what_is_committed_beyond_the_log_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = open(folder.path()).unwrap();
    append(&mut log, vec![entry(1, 0, 1)]).await;
    RaftLogStorage::<NodeTypes>::save_committed(&mut log, Some(id(1, 9))).await.unwrap();
    assert_eq!(RaftLogStorage::<NodeTypes>::read_committed(&mut log).await.unwrap(), None);
    RaftLogStorage::<NodeTypes>::save_committed(&mut log, Some(id(1, 0))).await.unwrap();
    assert_eq!(RaftLogStorage::<NodeTypes>::read_committed(&mut log).await.unwrap(), Some(id(1, 0)));
}

#[tokio::test]
async fn a_log_whose_newest_entry_is_of_a_newer_format_is_refused_in_words_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = open(folder.path()).unwrap();
    append(&mut log, vec![entry(1, 0, 1)]).await;
    let (id, RecordedPayload(payload)) = record(&entry(1, 1, 1)).unwrap();
    let mut newer = payload.to_vec();
    newer[0] = pando_protocol::codec::VERSION + 1;
    {
        let mut log = log.lock().unwrap();
        log.append([(id, RecordedPayload(newer.into()))]).unwrap();
        log.flush(true, None).unwrap();
    }
    drop(log);
    let path = only_file(folder.path());
    let before = fs::read(&path).unwrap();
    let refused = open(folder.path()).unwrap_err().to_string();
    let expected =
        format!("{} is of codec version 2, after 1, since its entry 1 at the latest", folder.path().display());
    assert!(refused.starts_with(&expected), "{refused}");
    assert!(refused.contains("nothing was changed. Start the newer version of pando-node that ran here"), "{refused}");
    assert_eq!(fs::read(&path).unwrap(), before);
}

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use pando_supervision::{Command, Stamp, apply};

use super::*;
use crate::raft::types::{LeaderId, LogId, Membership, Voter};
use crate::storage::format::StoredMembership;

fn header(index: u64) -> Header {
    let id = |index| LogId::new(LeaderId { term: 3, node_id: 7 }, index);
    let voter = Voter { name: Some("n1".parse().unwrap()), address: "n1:4600".into() };
    let members = Membership::new(vec![BTreeSet::from([7])], BTreeMap::from([(7, voter)])).unwrap();
    Header { applied: Some(id(index)), membership: StoredMembership::new(Some(id(1)), members), rules: 1 }
}

fn cluster(seconds: u64) -> Cluster {
    let mut cluster = Cluster::default();
    apply(&mut cluster, Stamp { at: Duration::from_secs(seconds), wall: 0 }, Command::Tick);
    cluster
}

fn file(folder: &Path) -> PathBuf {
    folder.join("snapshot")
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_snapshot_comes_back_after_a_restart_and_leaves_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    SnapshotStore::open(folder.path()).unwrap().write(&header(9), &cluster(5)).unwrap();
    fs::write(folder.path().join("snapshot-3.tmp"), "half").unwrap();
    let current = SnapshotStore::open(folder.path()).unwrap().current().unwrap();
    assert_eq!(current.header(), &header(9));
    assert_eq!(current.read().unwrap(), (header(9), cluster(5)));
    assert_eq!(names(folder.path()), ["snapshot"]);
}

#[test]
fn an_older_snapshot_never_replaces_a_newer_one() {
    let folder = tempfile::tempdir().unwrap();
    let store = SnapshotStore::open(folder.path()).unwrap();
    store.write(&header(9), &cluster(5)).unwrap();
    let older = store.write(&header(8), &cluster(4)).unwrap();
    assert_eq!(store.current().unwrap().header(), &header(9));
    assert_eq!(older.read().unwrap().1, cluster(4), "it stays readable for whoever holds it");
    drop(older);
    assert_eq!(names(folder.path()), ["snapshot"]);
}

#[test]
fn one_that_was_replaced_stays_readable() {
    let folder = tempfile::tempdir().unwrap();
    let store = SnapshotStore::open(folder.path()).unwrap();
    let first = store.write(&header(8), &cluster(4)).unwrap();
    store.write(&header(9), &cluster(5)).unwrap();
    assert_eq!(first.read().unwrap(), (header(8), cluster(4)));
}

/// Every single-bit flip, every cut and every surplus byte of a snapshot, with the offset that it begins at.
fn spoiled(good: &[u8]) -> impl Iterator<Item = (String, Vec<u8>)> + '_ {
    let flips = (0..good.len() * 8).map(|at| {
        let mut bad = good.to_vec();
        bad[at / 8] ^= 1 << (at % 8);
        (format!("bit {} of byte {}", at % 8, at / 8), bad)
    });
    let cuts = (0..good.len()).map(|end| (format!("cut at {end}"), good[..end].to_vec()));
    flips.chain(cuts).chain([("a byte too many".into(), [good, &[0]].concat())])
}

#[test]
fn every_flipped_bit_cut_and_surplus_byte_is_refused_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    SnapshotStore::open(folder.path()).unwrap().write(&header(9), &cluster(5)).unwrap();
    let good = fs::read(file(folder.path())).unwrap();
    for (what, bad) in spoiled(&good) {
        fs::write(file(folder.path()), &bad).unwrap();
        let read = SnapshotStore::open(folder.path()).and_then(|store| store.current().unwrap().read());
        if bad.get(7).is_some_and(|version| version.is_ascii_digit() && *version > good[7]) {
            assert!(matches!(read, Err(StorageError::NewerFormat { .. })), "{what}: {read:?}");
            continue;
        }
        let Err(StorageError::Damaged { path, offset, .. }) = &read else { panic!("{what}: {read:?}") };
        assert_eq!(*path, file(folder.path()));
        assert!(*offset <= good.len() as u64);
        let text = read.unwrap_err().to_string();
        assert!(
            text.contains("is damaged at byte")
                && text.contains("move the data folder away")
                && text.contains("never restore an older copy"),
            "{text}"
        );
    }
}

#[test]
fn a_transfer_arrives_whole_or_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for (sender, receiver) in [
        (SnapshotStore::in_memory(), SnapshotStore::open(folder.path()).unwrap()),
        (SnapshotStore::open(&folder.path().join("other")).unwrap(), SnapshotStore::in_memory()),
    ] {
        let sent = sender.write(&header(9), &cluster(5)).unwrap();
        let chunks: Vec<_> = sent.chunks().map(Result::unwrap).collect();
        let mut receiving = receiver.receive().unwrap();
        for chunk in &chunks {
            receiving.push(chunk).unwrap();
        }
        let received = receiving.finish().unwrap();
        assert!(receiver.current().is_none(), "receiving is not installing");
        assert_eq!(received.header(), &header(9));
        receiver.adopt(&received).unwrap();
        assert_eq!(receiver.current().unwrap().read().unwrap(), (header(9), cluster(5)));
        for (what, bad) in spoiled(&chunks.concat()).step_by(7) {
            let mut receiving = receiver.receive().unwrap();
            receiving.push(&bad).unwrap();
            let refused = receiving.finish();
            assert!(matches!(refused, Err(StorageError::BadTransfer { .. })), "{what}: {refused:?}");
        }
    }
    assert_eq!(names(folder.path()), ["other", "snapshot"]);
}

#[test]
fn a_large_state_is_cut_into_sections_and_chunks() {
    let many = || std::iter::repeat_with(|| pando_supervision::parts::parts(&cluster(5))).flatten().take(300_000);
    let mut bytes = vec![];
    let size = format::write(&mut bytes, &header(9), many()).unwrap();
    assert_eq!(size, bytes.len() as u64);
    assert!(size > 2 * format::SECTION_BYTES as u64, "{size}");
    let (read, mut reader) = Reader::open(&bytes[..]).unwrap();
    assert_eq!(read, header(9));
    for part in many() {
        assert_eq!(reader.next_part().unwrap(), Some(part));
    }
    assert_eq!(reader.next_part().unwrap(), None);
    let last_section = bytes.len() - 100;
    bytes[last_section] ^= 1;
    let (_, mut reader) = Reader::open(&bytes[..]).unwrap();
    let damage = std::iter::from_fn(|| reader.next_part().transpose()).find_map(Result::err);
    let Some(ReadError::Damaged(damage)) = damage else { panic!("{damage:?}") };
    assert!(damage.place.starts_with("section ") && damage.place != "section 1", "{damage:?}");
}

#[test]
fn header_and_footer_keep_their_bytes() {
    let mut bytes = vec![];
    format::write(&mut bytes, &header(9), std::iter::empty()).unwrap();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let expected = [
        "50414e444f534e31",
        "1c000000 7556624f 01 01 01030709 01030701 010107 010701026e31076e313a34363030 01 14c71230",
        "05000000 26fa76bc 03 01 000000 cd87ff19",
    ];
    assert_eq!(hex, expected.concat().replace(' ', ""));
}

#[test]
fn a_snapshot_of_a_newer_format_is_refused_in_words_and_the_folder_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    SnapshotStore::open(folder.path()).unwrap().write(&header(9), &cluster(5)).unwrap();
    let good = fs::read(file(folder.path())).unwrap();
    fs::write(folder.path().join("snapshot-3.tmp"), "half").unwrap();
    let magic = [&b"PANDOSN2"[..], &good[8..]].concat();
    // The header's block, with a body that the next version of the codec wrote: both checksums fit.
    let length = usize::from(good[8]);
    let mut body = good[16..16 + length].to_vec();
    body[1] = pando_protocol::codec::VERSION + 1;
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&0u64.to_le_bytes()), &body).to_le_bytes();
    let codec = [&good[..16], &body, &checksum, &good[16 + length + 4..]].concat();
    for (bytes, what) in [(magic, "snapshot format 2, after 1"), (codec, "codec version 2, after 1")] {
        fs::write(file(folder.path()), &bytes).unwrap();
        let refused = SnapshotStore::open(folder.path()).unwrap_err().to_string();
        assert!(refused.contains(&format!("snapshot is of {what}, which this build")), "{refused}");
        assert!(
            refused.contains("nothing was changed. Start the newer version of pando-node that ran here"),
            "{refused}"
        );
        assert_eq!(fs::read(file(folder.path())).unwrap(), bytes);
        assert_eq!(names(folder.path()), ["snapshot", "snapshot-3.tmp"]);
        let mut receiving = SnapshotStore::in_memory().receive().unwrap();
        receiving.push(&bytes).unwrap();
        let refused = receiving.finish().unwrap_err().to_string();
        assert!(refused.contains(&format!("it is of {what}, which this build")), "{refused}");
    }
}

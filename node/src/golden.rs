//! Golden bytes of what only nodes send and keep: Raft's messages, words of node, guard and reapers, and the files of a data
//! folder, in `node/tests/fixtures/golden`. What clients and the state hold too stands in the test `wire`.
//!
//! The files of a folder are compared whole, and then the golden ones are opened as a node opens them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use openraft::{EntryPayload, RaftLogReader};
use pando_protocol::codec;
use pando_protocol::golden::Golden;
use pando_protocol::ids::{Incarnation, SessionId};
use pando_protocol::message::{Call, LogLine};
use pando_protocol::rejection::Rejection;
use pando_protocol::session::{self, Members, Obituary};
use pando_protocol::spec::Signal;
use pando_supervision::{Batch, Cluster, Command, Stamp, apply};

use crate::directory::{self, Directory, Known};
use crate::guard::BootTime;
use crate::guard::words::{
    Configuration, EndedHow, Ending, FromGuard, Order, RunId, StartOrder, ToGuard, VoterAddress, Word,
};
use crate::peer::{PeerAnswer, PeerCall, PeerItem};
use crate::raft::sealed::Sealed;
use crate::raft::types::{self, NodeTypes};
use crate::raft::wire::{
    Answer, AppendAnswer, AppendHeader, Ballot, Chunk, Entry, Envelope, Introduction, Leader, LogId, Member,
    Membership, Payload, Progress, Request, SnapshotHeader, Transfer, TransferAnswer, Vote, VoteAnswer, entry_frame,
    entry_in,
};
use crate::runner::place::Place;
use crate::runner::record::SessionRecord;
use crate::storage::format::{StoredMembership, decode_payload, encode_payload};
use crate::storage::identity::DataFolder;
use crate::storage::log::{LogOptions, LogStore};
use crate::storage::snapshot::{Header, SnapshotStore};
use crate::transport::liveness::FirstWord;

#[tokio::test]
async fn golden_bytes_of_what_nodes_send_and_keep_are_written_and_read_as_they_were() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/golden");
    let mut golden = Golden::open(&root);
    raft_messages(&mut golden);
    words_of_guards(&mut golden);
    words_between_nodes(&mut golden);
    payloads(&mut golden);
    log_file(&mut golden).await;
    snapshot_file(&mut golden);
    identity_file(&mut golden);
    session_file(&mut golden);
    members_file(&mut golden);
    golden.surveyed_elsewhere(&["Call", "Rejection", "Command"]);
    golden.finish();
}

fn raft_messages(golden: &mut Golden) {
    golden.values("RaftAppendHeader", &[append_header(Some(log_id(7))), append_header(None)]);
    let payloads = [Payload::Blank, Payload::Batch(batch()), Payload::Membership(membership())];
    let entries = payloads.map(|payload| Entry { log_id: log_id(300), payload });
    for entry in &entries {
        // What is really sent is put together from parts.
        let frame = codec::frame(entry).unwrap();
        let taken_in = entry_in(&frame[codec::LENGTH_BYTES..]).unwrap();
        assert_eq!(entry_frame(&taken_in).unwrap(), frame);
    }
    golden.values("RaftEntry", &entries);
    let answers = [
        AppendAnswer::Matches(None),
        AppendAnswer::Matches(Some(log_id(8))),
        AppendAnswer::Conflict(log_id(9)),
        AppendAnswer::HigherVote(vote(true)),
        AppendAnswer::Refused("it is for another voter".into()),
    ];
    golden.values("RaftAppendAnswer", &answers);
    let ballot = Ballot { vote: vote(false), last: Some(log_id(7)), transfer: true };
    let header = SnapshotHeader {
        vote: vote(true),
        last: Some(log_id(7)),
        membership_at: Some(log_id(1)),
        membership: membership(),
    };
    let requests = [
        Request::Vote(ballot),
        Request::PreVote(Ballot { last: None, transfer: false, ..ballot }),
        Request::Transfer(Transfer { from: vote(true), to: u64::MAX, last: Some(log_id(7)) }),
        Request::Snapshot(header),
        Request::WhoAreYou,
        Request::ClusterExists(Members {
            index: 300,
            members: vec![session::Member {
                name: "n1".parse().unwrap(),
                raft_id: u64::MAX,
                address: "n1:7400".into(),
                votes: true,
            }],
        }),
        Request::HaveYouTakenPart,
    ];
    golden.values("RaftEnvelope", &requests.map(|request| Envelope { to: Some(u64::MAX), request }));
    golden.values("RaftChunk", &[Chunk { bytes: Bytes::from_static(b"bytes"), last: true }]);
    let progress = [
        Progress::Taken,
        Progress::Installing,
        Progress::Installed(vote(true)),
        Progress::Failed("the disk is full".into()),
    ];
    golden.values("RaftProgress", &progress);
    let introduction = Introduction { name: "n1".parse().unwrap(), raft_id: u64::MAX, initialised: true, rules: 1 };
    let answers: [Result<Answer, String>; 8] = [
        Ok(Answer::Vote(VoteAnswer { vote: vote(false), granted: true, last: Some(log_id(7)) })),
        Ok(Answer::Transfer(TransferAnswer::Accepted)),
        Ok(Answer::Transfer(TransferAnswer::VoteChanged { expected: vote(true), actual: vote(false) })),
        Ok(Answer::Transfer(TransferAnswer::NotFlushed { expected: Some(log_id(8)), actual: Some(log_id(7)) })),
        Ok(Answer::IAm(introduction)),
        Ok(Answer::Noted),
        Err("it is for another voter".into()),
        Ok(Answer::TakenPart(true)),
    ];
    golden.values("RaftAnswer", &answers);
}

fn words_of_guards(golden: &mut Golden) {
    let run = RunId { incarnation: Incarnation(300), probe: 1 };
    let session = SessionId(3);
    let kill_at = BootTime::after_boot(Duration::from_millis(1_850));
    let voter = VoterAddress { name: "n1".parse().unwrap(), address: "n1:7400".into() };
    let configuration = Configuration {
        node: "n1".parse().unwrap(),
        identity: b"/etc/pando".to_vec(),
        voters: vec![voter],
        obituary_limit: Duration::from_secs(60),
    };
    let start = StartOrder {
        run,
        session,
        command: vec!["shop-web".into(), "--port".into(), "8080".into()],
        environment: vec![b"HOME=/".to_vec()],
        folder: b"/var/lib/pando/children/shop/web".to_vec(),
        make_folder: true,
        keep: true,
    };
    let to_guard = [
        ToGuard::Configure(configuration),
        ToGuard::Renew { session, kill_at },
        ToGuard::Start(start),
        ToGuard::Stop { run, signal: Signal::TERM, grace: Some(Duration::from_secs(5)) },
        ToGuard::Stop { run, signal: Signal::TERM, grace: None },
        ToGuard::Kill { run },
        ToGuard::Signal { run, signal: Signal(10) },
        ToGuard::EndSession { session },
        ToGuard::Leave,
        ToGuard::Call { number: 300 },
    ];
    golden.values("ToGuard", &to_guard);
    let how = [
        EndedHow::Code(78),
        EndedHow::Signal(Signal::KILL),
        EndedHow::StartFailed("no such program".into()),
        EndedHow::ReaperLost,
    ];
    let endings = how.map(|how| Ending { how, ran: Duration::from_millis(12), killed: true });
    let mut from_guard = vec![
        FromGuard::Configured,
        FromGuard::Renewed { session, kill_at },
        FromGuard::Started { run, pid: 4_242, reaper: 4_241 },
        FromGuard::NotStarted { run },
        FromGuard::Fenced { session },
        FromGuard::Gone { session },
        FromGuard::Here { number: 300 },
    ];
    from_guard.extend(endings.iter().cloned().map(|ending| FromGuard::Ended { run, ending }));
    golden.values("FromGuard", &from_guard);
    let grace = Some(Duration::from_secs(5));
    golden.values("Order", &[Order::Stop { signal: Signal::TERM, grace }, Order::Kill, Order::Signal(Signal(10))]);
    let [first, ..] = endings;
    golden.values("Word", &[Word::Started { pid: 4_242 }, Word::Ended(first)]);
}

fn words_between_nodes(golden: &mut Golden) {
    let path: pando_protocol::ids::Path = "/shop/web".parse().unwrap();
    let call = Call::Kill { path: path.clone(), signal: Signal::KILL };
    let calls = [
        PeerCall::Lead(call),
        PeerCall::Signal { path: path.clone(), signal: Signal(10) },
        PeerCall::Logs { path, tail: 100, follow: true },
    ];
    golden.values("PeerCall", &calls);
    let answers = [
        PeerAnswer::Led(Err(Rejection::Unknown)),
        PeerAnswer::NotLeader,
        PeerAnswer::Signalled { incarnation: Incarnation(300), pid: 4_242 },
        PeerAnswer::NotSignalled("it does not run here".into()),
        PeerAnswer::Lost,
    ];
    golden.values("PeerAnswer", &answers);
    let line = LogLine {
        node: "n1".parse().unwrap(),
        incarnation: Incarnation(4),
        at: Duration::new(1_700_000_000, 5),
        is_stderr: true,
        line: "words".into(),
    };
    golden.values("PeerItem", &[PeerItem::Line(line), PeerItem::Failed("the disk is gone".into())]);
    let obituary = Obituary { node: "n1".parse().unwrap(), session: SessionId(3), how: "signal 9".into() };
    golden.values("FirstWord", &[FirstWord::Hold, FirstWord::Obituary(obituary)]);
}

fn payloads(golden: &mut Golden) {
    let members: types::Membership = membership().try_into().unwrap();
    let payloads =
        [EntryPayload::Blank, EntryPayload::Normal(Sealed::new(&batch()).unwrap()), EntryPayload::Membership(members)];
    let written =
        payloads.each_ref().map(|payload| (format!("{payload:?}"), encode_payload(payload).unwrap().to_vec()));
    for bytes in golden.bytes("stored-payload", &written) {
        assert!(
            payloads.contains(&decode_payload(&bytes.clone().into()).unwrap()),
            "{bytes:?} are no payload of the samples"
        );
    }
}

/// A file of the log with a record of each kind.
async fn log_file(golden: &mut Golden) {
    let entry = |index| types::Entry {
        log_id: log_id(index).into(),
        payload: EntryPayload::Normal(Sealed::new(&batch()).unwrap()),
    };
    let folder = tempfile::tempdir().unwrap();
    let options = LogOptions { flush_window: Duration::ZERO, ..LogOptions::default() };
    let mut log = LogStore::open(folder.path(), &options).unwrap();
    RaftLogStorage::<NodeTypes>::save_vote(&mut log, &vote(true).into()).await.unwrap();
    RaftLogStorageExt::<NodeTypes>::blocking_append(&mut log, (0..4).map(entry)).await.unwrap();
    RaftLogStorage::<NodeTypes>::save_committed(&mut log, Some(log_id(1).into())).await.unwrap();
    RaftLogStorage::<NodeTypes>::truncate_after(&mut log, Some(log_id(2).into())).await.unwrap();
    RaftLogStorage::<NodeTypes>::purge(&mut log, log_id(0).into()).await.unwrap();
    RaftLogStorageExt::<NodeTypes>::blocking_append(&mut log, [entry(3)]).await.unwrap();
    drop(log);
    let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect();
    let files: Vec<_> = files.iter().filter(|file| file.extension().is_some_and(|kind| kind == "wal")).collect();
    let [file] = files[..] else { panic!("{files:?}: expected one file") };
    let name = file.file_name().unwrap().to_owned();
    let written = [(format!("{} with a record of each kind", name.display()), fs::read(file).unwrap())];
    for bytes in golden.bytes("log", &written) {
        let former = tempfile::tempdir().unwrap();
        fs::write(former.path().join(&name), bytes).unwrap();
        let mut log = LogStore::open(former.path(), &options).unwrap();
        let read = RaftLogReader::<NodeTypes>::try_get_log_entries(&mut log, 1..).await.unwrap();
        assert_eq!(read, [entry(1), entry(2), entry(3)]);
        assert_eq!(RaftLogReader::<NodeTypes>::read_vote(&mut log).await.unwrap(), Some(vote(true).into()));
    }
}

fn snapshot_file(golden: &mut Golden) {
    let mut cluster = Cluster::default();
    apply(&mut cluster, stamp(), Command::Tick);
    let members: types::Membership = membership().try_into().unwrap();
    let membership = StoredMembership::new(Some(log_id(1).into()), members);
    let header = Header { applied: Some(log_id(7).into()), membership, rules: 1 };
    let folder = tempfile::tempdir().unwrap();
    SnapshotStore::open(folder.path()).unwrap().write(&header, &cluster).unwrap();
    let written = [("the state after one tick".into(), fs::read(folder.path().join("snapshot")).unwrap())];
    for bytes in golden.bytes("snapshot", &written) {
        let former = tempfile::tempdir().unwrap();
        fs::write(former.path().join("snapshot"), bytes).unwrap();
        let snapshot = SnapshotStore::open(former.path()).unwrap().current().unwrap();
        assert_eq!(snapshot.read().unwrap(), (header.clone(), cluster.clone()));
    }
}

fn identity_file(golden: &mut Golden) {
    let open = |folder: &Path| DataFolder::open(folder, "shop", &"n1".parse().unwrap(), || u64::MAX).unwrap();
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()));
    let written = [("node n1 of cluster shop".into(), fs::read(folder.path().join("node.id")).unwrap())];
    for bytes in golden.bytes("node-id", &written) {
        let former = tempfile::tempdir().unwrap();
        fs::write(former.path().join("node.id"), bytes).unwrap();
        let opened = open(former.path());
        assert_eq!((opened.raft_id(), opened.is_fresh()), (u64::MAX, false));
    }
}

fn session_file(golden: &mut Golden) {
    let here = || "b,8,77,4026531836,1000,0123456789abcdef0123456789abcdef".parse::<Place>().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut record = SessionRecord::open(folder.path(), here()).unwrap();
    record.begin(SessionId(3), &BTreeSet::new()).unwrap();
    record.begin(SessionId(300), &BTreeSet::from([SessionId(3)])).unwrap();
    let written = [("sessions 3 and 300".into(), fs::read(record.path()).unwrap())];
    for bytes in golden.bytes("sessions", &written) {
        let former = tempfile::tempdir().unwrap();
        fs::write(former.path().join("sessions"), bytes).unwrap();
        let read = SessionRecord::open(former.path(), here()).unwrap().sessions();
        assert_eq!(read, [SessionId(3), SessionId(300)]);
    }
}

fn members_file(golden: &mut Golden) {
    let member = |name: &str, raft_id, votes| session::Member {
        name: name.parse().unwrap(),
        raft_id,
        address: format!("{name}:7400"),
        votes,
    };
    let members = Members { index: 300, members: vec![member("n1", u64::MAX, true), member("n4", 4, false)] };
    let folder = tempfile::tempdir().unwrap();
    directory::write(folder.path(), &members).unwrap();
    let written = [("a voter and a learner".into(), fs::read(folder.path().join(directory::FILE)).unwrap())];
    for bytes in golden.bytes("members", &written) {
        let former = tempfile::tempdir().unwrap();
        fs::write(former.path().join(directory::FILE), bytes).unwrap();
        let known = Directory::open(former.path(), BTreeMap::new()).watch().borrow().clone();
        assert_eq!(known, Known { members: members.clone(), is_told: false });
    }
}

fn append_header(place: Option<LogId>) -> AppendHeader {
    AppendHeader { to: u64::MAX, vote: vote(true), previous: place, committed: place, entries: 3 }
}

fn leader() -> Leader {
    Leader { term: 3, node: 7 }
}

fn log_id(index: u64) -> LogId {
    LogId { leader: leader(), index }
}

fn vote(committed: bool) -> Vote {
    Vote { leader: leader(), committed }
}

fn membership() -> Membership {
    let member = Member { name: "n1".parse().ok(), address: "n1:7400".into() };
    Membership { configs: vec![BTreeSet::from([7])], nodes: BTreeMap::from([(7, member)]) }
}

fn batch() -> Batch {
    Batch { stamp: stamp(), commands: vec![Command::Tick] }
}

fn stamp() -> Stamp {
    Stamp { at: Duration::from_millis(1_234), wall: 1_700_000_000_000 }
}

use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::impls::TokioRuntime;
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::{AnyError, Raft, ServerState, StorageError as RaftStorageError};
use openraft_rt_sim::SimRuntime;
use pando_supervision::{Done, apply};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::raft::config::{Times, raft_config};
use crate::raft::types::{NodeTypes, Vote};
use crate::storage::log::{LogOptions, LogStore};
use crate::storage::retention::{Limits, OnDisk, Retention};

const LIMIT: Duration = Duration::from_secs(20);
/// Panics in [`PANICKING_RULES`].
const POISON: Command = Command::RaiseRules(u32::MAX);

type Machine = StateMachine<TokioRuntime>;

/// As the real ones, but one command changes the state and then panics.
fn apply_or_panic(cluster: &mut Cluster, stamp: Stamp, command: Command) -> Applied {
    if command == POISON {
        apply(cluster, Stamp { at: stamp.at + Duration::from_secs(1000), ..stamp }, Command::Tick);
        panic!("this command is {}", "poison");
    }
    apply(cluster, stamp, command)
}

const RULES: Rules = Rules { apply, version: |_| 1, known: 1 };
const PANICKING_RULES: Rules = Rules { apply: apply_or_panic, ..RULES };

fn batch(seconds: u64, commands: Vec<Command>) -> Sealed {
    Sealed::new(&Batch { stamp: Stamp { at: Duration::from_secs(seconds), wall: seconds }, commands }).unwrap()
}

/// What the rules make of one tick after another.
fn ticked(seconds: impl IntoIterator<Item = u64>) -> Cluster {
    let mut cluster = Cluster::default();
    for at in seconds {
        apply(&mut cluster, Stamp { at: Duration::from_secs(at), wall: at }, Command::Tick);
    }
    cluster
}

#[test]
fn a_panicking_command_leaves_the_state_and_the_others_as_if_it_had_not_been_there() {
    let mut with = ticked([1]);
    let commands = vec![Command::Tick, POISON, Command::Tick, POISON, POISON, Command::Tick];
    let result = apply_batch(PANICKING_RULES, &mut with, &batch(2, commands)).unwrap();
    let mut without = ticked([1]);
    let expected = apply_batch(RULES, &mut without, &batch(2, vec![Command::Tick; 3])).unwrap();
    assert_eq!(with, without);
    let internal = Err(Rejection::Internal("this command is poison".into()));
    for poisoned in [1, 3, 4] {
        assert_eq!(result.outcomes[poisoned], internal);
    }
    let others: Vec<_> = [0, 2, 5].map(|at| result.outcomes[at].clone()).into();
    assert_eq!((others, result.events), (expected.outcomes, expected.events));
    assert_eq!(result.panics.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [1, 3, 4]);
}

struct Disk;

impl StoreBuilder<NodeTypes, LogStore, Machine, TempDir> for Disk {
    async fn build(&self) -> Result<(TempDir, LogStore, Machine), RaftStorageError<NodeTypes>> {
        let folder = tempfile::tempdir().unwrap();
        let log = LogStore::open(&folder.path().join("log"), &LogOptions::default()).unwrap();
        let (machine, _, _) = Machine::open(SnapshotStore::open(folder.path()).unwrap(), RULES).unwrap();
        Ok((folder, log, machine))
    }
}

#[tokio::test]
async fn openrafts_own_suite_for_storage_passes() {
    Suite::test_all(Disk).await.unwrap();
}

/// A network without other nodes.
struct Alone;

fn nobody() -> Unreachable<NodeTypes> {
    Unreachable::new(&AnyError::error("there is no other node"))
}

impl RaftNetworkFactory<NodeTypes> for Alone {
    type Network = Alone;
    async fn new_client(&mut self, _: RaftId, _: &Voter) -> Alone {
        Alone
    }
}

impl RaftNetworkV2<NodeTypes> for Alone {
    type SnapshotData = Snapshot;
    async fn append_entries(
        &mut self,
        _: AppendEntriesRequest<NodeTypes>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<NodeTypes>, RPCError<NodeTypes>> {
        Err(RPCError::Unreachable(nobody()))
    }
    async fn vote(
        &mut self,
        _: VoteRequest<NodeTypes>,
        _: RPCOption,
    ) -> Result<VoteResponse<NodeTypes>, RPCError<NodeTypes>> {
        Err(RPCError::Unreachable(nobody()))
    }
    async fn full_snapshot(
        &mut self,
        _: Vote,
        _: RaftSnapshot,
        _: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<NodeTypes>, StreamingError<NodeTypes>> {
        Err(StreamingError::Unreachable(nobody()))
    }
}

/// One voter on one folder.
struct Node {
    raft: Raft<NodeTypes, Machine>,
    log: LogStore,
    snapshots: SnapshotStore,
    published: watch::Receiver<Published<TokioRuntime>>,
}

impl Node {
    async fn start(folder: &Path, rules: Rules) -> Self {
        let snapshots = SnapshotStore::open(folder).unwrap();
        let options = LogOptions { file_bytes: 4096, cache_bytes: 4096, ..LogOptions::default() };
        let log = LogStore::open(&folder.join("log"), &options).unwrap();
        let (machine, published, _) = Machine::open(snapshots.clone(), rules).unwrap();
        log.ensure_follows(published.borrow().applied.as_ref().map(|id| id.index)).unwrap();
        let [heartbeat, election_min, election_max] = [30, 100, 200].map(Duration::from_millis);
        let config = raft_config("shop", &Times { heartbeat, election_min, election_max });
        let config = Arc::new(config.validate().unwrap());
        let raft = Raft::new(1, config, Alone, log.clone(), machine).await.unwrap();
        if !raft.is_initialized().await.unwrap() {
            raft.initialize(BTreeMap::from([(1, Voter::default())])).await.unwrap();
        }
        let wait = raft.wait(Some(LIMIT));
        let led = wait.state(ServerState::Leader, "it leads").await.unwrap();
        wait.applied_index_at_least(led.last_log_index, "all of the log is applied").await.unwrap();
        Self { raft, log, snapshots, published }
    }

    async fn write(&self, batch: Sealed) -> Vec<Outcome> {
        self.raft.client_write(batch).await.unwrap().data.0
    }

    fn state(&self) -> Cluster {
        self.published.borrow().cluster.clone()
    }
}

/// The folder as a node finds it that was killed now.
fn as_killed(folder: &Path) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    fs::create_dir(copy.path().join("log")).unwrap();
    for part in ["", "log"] {
        for entry in fs::read_dir(folder.join(part)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                fs::copy(entry.path(), copy.path().join(part).join(entry.file_name())).unwrap();
            }
        }
    }
    copy
}

#[tokio::test]
async fn what_was_answered_is_there_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(folder.path(), RULES).await;
    for seconds in 1..50 {
        node.write(batch(seconds, vec![Command::Tick, Command::Tick])).await;
        // Published before answered.
        assert_eq!(node.state(), ticked((1..=seconds).flat_map(|at| [at, at])));
    }
    let killed = as_killed(folder.path());
    let before = node.state();
    let again = Node::start(killed.path(), RULES).await;
    assert_eq!(again.state(), before);
    assert_eq!(again.published.borrow().membership.membership().voter_ids().collect::<Vec<_>>(), [1]);
    node.raft.shutdown().await.unwrap();
    again.raft.shutdown().await.unwrap();
}

#[tokio::test]
async fn by_bytes_a_snapshot_is_taken_the_log_is_cut_and_a_restart_finds_the_same_state() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(folder.path(), RULES).await;
    let limits = Limits {
        snapshot_after_at_least: 8192,
        snapshot_after_at_most: 16384,
        keep: 4096,
        keep_for_followers: 65536,
        interval: Duration::from_millis(5),
    };
    let retention = Retention {
        log: node.log.clone(),
        snapshots: node.snapshots.clone(),
        limits,
        kept: watch::channel(OnDisk::default()).0,
    };
    let stop = CancellationToken::new();
    let retaining = tokio::spawn(retention.run(node.raft.clone(), stop.clone()));
    let write_much = async {
        for seconds in 1..600 {
            node.write(batch(seconds, vec![Command::Tick; 30])).await;
        }
        node.raft.wait(Some(LIMIT)).metrics(|seen| seen.purged.is_some(), "the log is cut").await.unwrap()
    };
    let seen = tokio::time::timeout(LIMIT, write_much).await.unwrap();
    assert!(seen.purged <= seen.snapshot, "{:?} {:?}", seen.purged, seen.snapshot);
    stop.cancel();
    retaining.await.unwrap().unwrap();
    let before = node.state();
    node.raft.shutdown().await.unwrap();
    let killed = as_killed(folder.path());
    let again = Node::start(killed.path(), RULES).await;
    assert_eq!(again.state(), before);
    assert!(again.snapshots.current().is_some());
    assert!(again.log.extent().unwrap().purged.is_some());
    again.raft.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_panic_in_the_rules_is_answered_counted_and_survived_also_by_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(folder.path(), PANICKING_RULES).await;
    let outcomes = node.write(batch(1, vec![Command::Tick, POISON, Command::Tick])).await;
    assert_eq!(outcomes[0], Ok(Done::Ticked));
    assert!(matches!(&outcomes[1], Err(Rejection::Internal(text)) if text == "this command is poison"));
    assert_eq!(outcomes[2], Ok(Done::Ticked));
    assert_eq!((node.state(), node.published.borrow().panics), (ticked([1, 1]), 1));
    assert_eq!(node.write(batch(2, vec![Command::Tick])).await, [Ok(Done::Ticked)]);
    let killed = as_killed(folder.path());
    let again = Node::start(killed.path(), PANICKING_RULES).await;
    assert_eq!((again.state(), again.published.borrow().panics), (node.state(), 1));
    node.raft.shutdown().await.unwrap();
    again.raft.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_state_under_rules_that_this_build_does_not_know_stops_the_node() {
    let folder = tempfile::tempdir().unwrap();
    let newer = Rules { version: |_| 2, known: 2, ..RULES };
    let node = Node::start(folder.path(), newer).await;
    node.raft.trigger().snapshot().await.unwrap();
    node.raft.wait(Some(LIMIT)).metrics(|seen| seen.snapshot.is_some(), "a snapshot").await.unwrap();
    let killed = as_killed(folder.path());
    let older = Rules { known: 1, ..newer };
    let refused = Machine::open(SnapshotStore::open(killed.path()).unwrap(), older).err().unwrap();
    assert!(matches!(refused, StorageError::NewerRules { found: 2, known: 1 }), "{refused}");
    node.raft.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_log_that_raises_the_rules_beyond_what_this_build_knows_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let newer = Rules { version: |cluster| cluster.head.rules, known: 2, ..RULES };
    let node = Node::start(folder.path(), newer).await;
    node.write(batch(1, vec![Command::Tick])).await;
    node.write(batch(1, vec![Command::Tick, Command::RaiseRules(2)])).await;
    node.raft.shutdown().await.unwrap();
    let raised = node.published.borrow().applied.map(|applied| applied.index);
    let killed = as_killed(folder.path());
    let before = contents(killed.path());
    let log = LogStore::open(&killed.path().join("log"), &LogOptions::default()).unwrap();
    let refused = log.ensure_known_rules(None, 1).unwrap_err().to_string();
    assert!(refused.contains("the state is under rules of version 2, this build knows them up to 1"), "{refused}");
    assert!(refused.contains("nothing was changed. Start the newer version of pando-node that ran here"), "{refused}");
    assert_eq!(contents(killed.path()), before);
    assert!(log.ensure_known_rules(None, 2).is_ok());
    assert!(log.ensure_known_rules(raised, 1).is_ok(), "what a snapshot covers is checked by its header");
}

/// Every file of a node's folder.
fn contents(folder: &Path) -> BTreeMap<std::ffi::OsString, Vec<u8>> {
    let files = ["", "log"].into_iter().flat_map(|part| fs::read_dir(folder.join(part)).unwrap());
    let files = files.map(|file| file.unwrap().path()).filter(|path| path.is_file());
    files.map(|path| (path.file_name().unwrap().to_owned(), fs::read(&path).unwrap())).collect()
}

#[test]
fn on_a_simulated_runtime_snapshots_stay_in_memory() {
    SimRuntime::run(async {
        let store = SnapshotStore::in_memory();
        let (mut machine, _, _) = StateMachine::<SimRuntime>::open(store.clone(), RULES).unwrap();
        apply(&mut machine.cluster, Stamp { at: LIMIT, wall: 0 }, Command::Tick);
        let built = machine.get_snapshot_builder().await.build_snapshot().await.unwrap();
        let (mut other, published, _) = StateMachine::<SimRuntime>::open(SnapshotStore::in_memory(), RULES).unwrap();
        other.install_snapshot(&built.meta, built.snapshot).await.unwrap();
        assert_eq!(published.borrow().cluster, machine.cluster);
    });
}

#[tokio::test]
async fn a_snapshot_is_installed_whole_or_not_at_all() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let node = Node::start(folders[0].path(), RULES).await;
    node.write(batch(7, vec![Command::Tick])).await;
    let applied = node.published.borrow().applied;
    node.raft.trigger().snapshot().await.unwrap();
    node.raft.wait(Some(LIMIT)).metrics(|seen| seen.snapshot == applied, "a snapshot of all").await.unwrap();
    let RaftSnapshot { meta, snapshot } = node.raft.get_snapshot().await.unwrap().unwrap();

    let store = SnapshotStore::open(folders[1].path()).unwrap();
    let mut receiver = store.receive().unwrap();
    for chunk in snapshot.chunks() {
        receiver.push(&chunk.unwrap()).unwrap();
    }
    let received = receiver.finish().unwrap();
    let (mut machine, published, _) = Machine::open(store.clone(), RULES).unwrap();
    let other = SnapshotMeta { last_log_id: None, ..meta.clone() };
    assert!(machine.install_snapshot(&other, received.clone()).await.is_err());
    assert!(store.current().is_none() && published.borrow().applied.is_none());
    machine.install_snapshot(&meta, received).await.unwrap();
    assert_eq!(published.borrow().cluster, node.state());
    assert_eq!(machine.applied_state().await.unwrap().0, applied);
    node.raft.shutdown().await.unwrap();
    drop(machine);
    let (_, again, _) = Machine::open(SnapshotStore::open(folders[1].path()).unwrap(), RULES).unwrap();
    assert_eq!(again.borrow().cluster, node.state());
}

/// An entry as a leader of the first term writes it.
fn entry(index: u64, payload: EntryPayload<Sealed, RaftId, Voter>) -> Entry {
    Entry { log_id: LogId::new(crate::raft::types::LeaderId { term: 1, node_id: 1 }, index), payload }
}

#[test]
fn cluster_time_goes_on_from_the_newest_stamp_whatever_is_applied_after_it() {
    SimRuntime::run(async {
        let second = Duration::from_secs(1);
        let (mut machine, published, _) = StateMachine::<SimRuntime>::open(SnapshotStore::in_memory(), RULES).unwrap();
        let now = || {
            let published = published.borrow();
            published.cluster.head.now + published.at.elapsed()
        };
        let tick = |seconds| EntryPayload::Normal(batch(seconds, vec![Command::Tick]));
        let membership = || EntryPayload::Membership(crate::raft::types::Membership::default());
        let entries = [(1, tick(100)), (2, EntryPayload::Blank), (3, membership()), (4, tick(50))];
        for (index, payload) in entries {
            machine.apply(futures_util::stream::iter([Ok((entry(index, payload), None))])).await.unwrap();
            assert_eq!(now(), second * 100 + second * 7 * u32::try_from(index - 1).unwrap(), "entry {index}");
            SimRuntime::sleep(second * 7).await;
        }
        let mut built = machine.get_snapshot_builder().await;
        for (taken, expected) in [(101, 128), (200, 200)] {
            apply(&mut built.cluster, Stamp { at: second * taken, wall: 0 }, Command::Tick);
            let snapshot = built.build_snapshot().await.unwrap();
            machine.install_snapshot(&snapshot.meta, snapshot.snapshot).await.unwrap();
            assert_eq!(now(), second * expected, "a snapshot of {taken} s");
        }
    });
}

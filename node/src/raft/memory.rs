//! Log and state in memory, for tests.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use openraft::storage::{
    EntryResponder, IOFlushed, LogState, RaftLogReader, RaftLogStorage, RaftSnapshotBuilder, RaftStateMachine,
};
use openraft::{AnyError, AsyncRuntime, Config, EntryPayload, OptionalSend, Raft, StoredMembership};
use pando_supervision::Command;

use super::network::SnapshotSource;
use super::service::{SnapshotSink, SnapshotStore};
use super::types::{CommittedLeaderId, Entry, LogId, Outcomes, RaftId, Types, Vote, Voter as VoterNode};
use super::wire::SnapshotMeta;

type Snapshot = openraft::Snapshot<CommittedLeaderId, RaftId, VoterNode, MemorySnapshot>;

#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<LogParts>>);

#[derive(Default)]
struct LogParts {
    entries: BTreeMap<u64, Entry>,
    purged: Option<LogId>,
    vote: Option<Vote>,
}

impl<R: AsyncRuntime> RaftLogReader<Types<R>> for Log {
    async fn try_get_log_entries<B: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: B,
    ) -> io::Result<Vec<Entry>> {
        Ok(self.0.lock().unwrap().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }
    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.0.lock().unwrap().vote)
    }
}

impl<R: AsyncRuntime> RaftLogStorage<Types<R>> for Log {
    type LogReader = Self;
    async fn get_log_state(&mut self) -> io::Result<LogState<Types<R>>> {
        let parts = self.0.lock().unwrap();
        let last = parts.entries.last_key_value().map(|(_, entry)| entry.log_id);
        Ok(LogState { last_purged_log_id: parts.purged, last_log_id: last.or(parts.purged) })
    }
    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }
    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.0.lock().unwrap().vote = Some(*vote);
        Ok(())
    }
    async fn append<I>(&mut self, entries: I, done: IOFlushed<Types<R>>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.0.lock().unwrap().entries.extend(entries.into_iter().map(|entry| (entry.log_id.index, entry)));
        done.io_completed(Ok(()));
        Ok(())
    }
    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let first_gone = last.map_or(0, |last| last.index + 1);
        self.0.lock().unwrap().entries.split_off(&first_gone);
        Ok(())
    }
    async fn purge(&mut self, through: LogId) -> io::Result<()> {
        let mut parts = self.0.lock().unwrap();
        parts.entries = parts.entries.split_off(&(through.index + 1));
        parts.purged = Some(through);
        Ok(())
    }
}

/// A snapshot in pieces of a size that fits no chunk.
#[derive(Debug, Clone)]
pub(crate) struct MemorySnapshot {
    rest: Bytes,
}

impl MemorySnapshot {
    pub(crate) fn new(size: usize) -> Self {
        Self { rest: vec![0; size].into() }
    }
}

impl SnapshotSource for MemorySnapshot {
    fn pieces(&self) -> Box<dyn Iterator<Item = io::Result<Bytes>> + Send> {
        let mut rest = self.rest.clone();
        Box::new(std::iter::from_fn(move || {
            let size = rest.len().min(1_500_000);
            (size > 0).then(|| Ok(rest.split_to(size)))
        }))
    }
}

#[derive(Clone)]
pub(crate) struct Store;
pub(crate) struct Sink(Vec<u8>);

impl SnapshotStore for Store {
    type Snapshot = MemorySnapshot;
    type Sink = Sink;
    async fn begin(&self, _: &SnapshotMeta) -> io::Result<Sink> {
        Ok(Sink(Vec::new()))
    }
}

impl SnapshotSink for Sink {
    type Snapshot = MemorySnapshot;
    async fn push(&mut self, piece: Bytes) -> io::Result<()> {
        assert!(piece.len() <= 1 << 20);
        self.0.extend_from_slice(&piece);
        Ok(())
    }
    async fn finish(self) -> io::Result<MemorySnapshot> {
        Ok(MemorySnapshot { rest: self.0.into() })
    }
}

/// Remembers the wall times of the batches applied.
#[derive(Clone, Default)]
pub(crate) struct Machine(Arc<Mutex<MachineParts>>);

#[derive(Default)]
struct MachineParts {
    meta: SnapshotMeta,
    walls: Vec<u64>,
    snapshot: Option<Snapshot>,
    installed: usize,
    rules: u32,
}

impl Machine {
    pub(crate) fn walls(&self) -> Vec<u64> {
        self.0.lock().unwrap().walls.clone()
    }

    /// The highest version of the rules that was asked for.
    pub(crate) fn rules(&self) -> u32 {
        self.0.lock().unwrap().rules.max(1)
    }

    pub(crate) fn installed(&self) -> usize {
        self.0.lock().unwrap().installed
    }
}

impl<R: AsyncRuntime> RaftSnapshotBuilder<Types<R>> for Machine {
    type SnapshotData = MemorySnapshot;
    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        let mut parts = self.0.lock().unwrap();
        let mut bytes: Vec<u8> = parts.walls.iter().flat_map(|wall| wall.to_le_bytes()).collect();
        // Several chunks.
        bytes.resize(bytes.len() + (3 << 20), 0xff);
        let snapshot = Snapshot { meta: parts.meta.clone(), snapshot: MemorySnapshot { rest: bytes.into() } };
        parts.snapshot = Some(snapshot.clone());
        Ok(snapshot)
    }
}

impl<R: AsyncRuntime> RaftStateMachine<Types<R>> for Machine {
    type SnapshotData = MemorySnapshot;
    type SnapshotBuilder = Self;
    async fn applied_state(
        &mut self,
    ) -> io::Result<(Option<LogId>, StoredMembership<CommittedLeaderId, RaftId, VoterNode>)> {
        let parts = self.0.lock().unwrap();
        Ok((parts.meta.last_log_id, parts.meta.last_membership.clone()))
    }
    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types<R>>>> + Unpin + OptionalSend,
    {
        while let Some(next) = entries.next().await {
            let (entry, responder) = next?;
            {
                let mut parts = self.0.lock().unwrap();
                parts.meta.last_log_id = Some(entry.log_id);
                match entry.payload {
                    EntryPayload::Blank => {}
                    EntryPayload::Normal(batch) => {
                        let batch = batch.open().expect("a batch");
                        parts.walls.push(batch.stamp.wall);
                        for command in batch.commands {
                            if let Command::RaiseRules(version) = command {
                                parts.rules = parts.rules.max(version);
                            }
                        }
                    }
                    EntryPayload::Membership(membership) => {
                        parts.meta.last_membership = StoredMembership::new(Some(entry.log_id), membership);
                    }
                }
            }
            if let Some(responder) = responder {
                responder.send(Outcomes::default());
            }
        }
        Ok(())
    }
    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }
    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: MemorySnapshot) -> io::Result<()> {
        let mut parts = self.0.lock().unwrap();
        let words = snapshot.rest.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        parts.walls = words.take_while(|word| *word != u64::MAX).collect();
        parts.meta = meta.clone();
        parts.snapshot = Some(Snapshot { meta: meta.clone(), snapshot });
        parts.installed += 1;
        Ok(())
    }
    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        Ok(self.0.lock().unwrap().snapshot.clone())
    }
}

/// A network that reaches nobody.
pub(crate) struct Alone;

fn nobody<R: AsyncRuntime>() -> Unreachable<Types<R>> {
    Unreachable::new(&AnyError::error("nobody is reached"))
}

impl<R: AsyncRuntime> RaftNetworkFactory<Types<R>> for Alone {
    type Network = Self;
    async fn new_client(&mut self, _: RaftId, _: &VoterNode) -> Self {
        Self
    }
}

impl<R: AsyncRuntime> RaftNetworkV2<Types<R>> for Alone {
    type SnapshotData = MemorySnapshot;
    async fn append_entries(
        &mut self,
        _: AppendEntriesRequest<Types<R>>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<Types<R>>, RPCError<Types<R>>> {
        Err(RPCError::Unreachable(nobody()))
    }
    async fn vote(
        &mut self,
        _: VoteRequest<Types<R>>,
        _: RPCOption,
    ) -> Result<VoteResponse<Types<R>>, RPCError<Types<R>>> {
        Err(RPCError::Unreachable(nobody()))
    }
    async fn full_snapshot(
        &mut self,
        _: Vote,
        _: Snapshot,
        _: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Types<R>>, StreamingError<Types<R>>> {
        Err(StreamingError::Unreachable(nobody()))
    }
}

/// An empty Raft on any runtime that reaches nobody, with time-outs in which no test ends.
pub(crate) async fn alone<R: AsyncRuntime>(raft_id: RaftId) -> Raft<Types<R>, Machine> {
    let config = Config {
        heartbeat_interval: 1_000,
        election_timeout_min: 3_600_000,
        election_timeout_max: 7_200_000,
        enable_leader_restore: Some(false),
        ..Default::default()
    };
    let (log, machine): (Log, Machine) = Default::default();
    Raft::new(raft_id, Arc::new(config.validate().unwrap()), Alone, log, machine).await.unwrap()
}

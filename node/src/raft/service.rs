//! Raft's side that answers: streams of other voters, checked for who speaks, passed to openraft.
//!
//! A voter's certificate carries its name; its messages claim a Raft id. Where the membership knows the id, the names must be
//! the same. An id that it does not know is taken only from a voter by name, in the membership or in the directory: a wiped
//! voter comes back under a new id, which a follower that lags behind learns from that very voter's appends; and a node that
//! waits to be added knows nobody but those whom the directory names.
//!
//! What is for another Raft id than this voter's is refused: it is for the voter that was here before its data was lost. It
//! also shows that a cluster exists, of which an empty node must not begin a second one.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::AppendEntriesRequest;
use openraft::storage::RaftStateMachine;
use openraft::{OptionalSend, Raft, Snapshot};
use pando_protocol::client::frames::{FrameReader, FrameWriter};
use pando_protocol::client::identity::PeerName;
use pando_protocol::ids::NodeName;
use pando_protocol::session::Members;
use tokio::time::{interval, timeout};

use super::types::{Membership, NodeTypes, RaftId, Vote};
use super::wire::{
    self, Answer, AppendAnswer, AppendHeader, Chunk, Envelope, Introduction, Progress, Request, SnapshotHeader,
    SnapshotMeta,
};
use crate::directory::Directory;
use crate::transport::server::IncomingStream;

/// Takes snapshots from the network.
pub trait SnapshotStore: Clone + Send + Sync + 'static {
    /// The state machine's snapshot.
    type Snapshot: OptionalSend + 'static;
    /// One that is being received.
    type Sink: SnapshotSink<Snapshot = Self::Snapshot>;

    /// Begins to receive a snapshot.
    fn begin(&self, meta: &SnapshotMeta) -> impl Future<Output = io::Result<Self::Sink>> + Send;
}

/// A snapshot that is being received. Dropped before [`Self::finish`], it leaves nothing behind.
pub trait SnapshotSink: Send + 'static {
    /// The state machine's snapshot.
    type Snapshot;

    /// Takes the next piece, at most 1 MiB, cut anywhere.
    fn push(&mut self, piece: Bytes) -> impl Future<Output = io::Result<()>> + Send;

    /// Checks that it is whole and makes a snapshot of it.
    fn finish(self) -> impl Future<Output = io::Result<Self::Snapshot>> + Send;
}

/// Serves the streams of other voters. Cheap to clone.
pub struct Service<SM: RaftStateMachine<NodeTypes>, St> {
    raft: Raft<NodeTypes, SM>,
    store: St,
    own: NodeName,
    directory: Directory,
    evidence: Evidence,
    rules: u32,
}

/// Whether anything that came to this process shows that a cluster exists. Cheap to clone; once it is so, it stays so.
#[derive(Debug, Clone, Default)]
pub struct Evidence(Arc<AtomicBool>);

impl Evidence {
    /// A cluster exists.
    pub fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether one does, as far as is known.
    pub fn is_there(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

// By hand, because a derive would ask `SM` for it.
impl<SM: RaftStateMachine<NodeTypes>, St: Clone> Clone for Service<SM, St> {
    fn clone(&self) -> Self {
        let Self { raft, store, own, directory, evidence, rules } = self;
        let (raft, store, own) = (raft.clone(), store.clone(), own.clone());
        Self { raft, store, own, directory: directory.clone(), evidence: evidence.clone(), rules: *rules }
    }
}

impl<SM, St> Service<SM, St>
where
    SM: RaftStateMachine<NodeTypes>,
    St: SnapshotStore<Snapshot = SM::SnapshotData>,
{
    /// Serves `raft` under the name `own`; the directory names those who may speak beside the members, `evidence` takes what
    /// shows that a cluster exists, and `rules` is the newest version of the rules that this node knows.
    pub fn new(
        raft: Raft<NodeTypes, SM>,
        store: St,
        own: NodeName,
        directory: Directory,
        evidence: Evidence,
        rules: u32,
    ) -> Self {
        Self { raft, store, own, directory, evidence, rules }
    }

    /// Serves one stream of [`pando_protocol::message::Channel::RaftAppend`] until its leader ends it or leads no more.
    ///
    /// # Errors
    /// What ended it early; nothing needs to be done about it.
    pub async fn serve_append(&self, stream: IncomingStream) -> io::Result<()> {
        let IncomingStream { peer, reader, mut writer, connection: _connection, .. } = stream;
        let refusal = Arc::new(OnceLock::new());
        let state = (reader, self.clone(), peer, refusal.clone());
        let requests = stream::unfold(state, |(mut reader, service, peer, refusal)| async move {
            match service.next_append(&mut reader, &peer).await {
                Ok(request) => request.map(|request| (request, (reader, service, peer, refusal))),
                Err(error) => {
                    tracing::debug!(%peer, %error, "an append was refused");
                    // It is the first: the stream ends with it.
                    let _ = refusal.set(error.to_string());
                    None
                }
            }
        });
        let mut results = std::pin::pin!(self.raft.stream_append(requests));
        while let Some(result) = results.next().await {
            let result = result.map_err(io::Error::other)?;
            in_time(writer.send(&wire::append_answer(result))).await??;
        }
        if let Some(why) = refusal.get() {
            in_time(writer.send(&AppendAnswer::Refused(why.clone()))).await??;
        }
        writer.finish();
        let _ = in_time(writer.stopped()).await;
        Ok(())
    }

    /// Serves one stream of [`pando_protocol::message::Channel::RaftCall`].
    ///
    /// # Errors
    /// What kept the answer from being given; nothing needs to be done about it.
    pub async fn serve_call(&self, stream: IncomingStream) -> io::Result<()> {
        let IncomingStream { peer, mut reader, mut writer, connection: _connection, .. } = stream;
        let Envelope { to, request } = in_time(reader.expect::<Envelope>()).await??;
        if let Request::Snapshot(header) = request {
            return self.receive_snapshot(to, header, &peer, &mut reader, &mut writer).await;
        }
        let answer: Result<Answer, String> = self.answer(to, request, &peer).await.map_err(|error| error.to_string());
        in_time(writer.send(&answer)).await??;
        writer.finish();
        // The stream is dropped after the answer has arrived, or is past hope.
        let _ = in_time(writer.stopped()).await;
        Ok(())
    }

    async fn next_append(
        &self,
        reader: &mut FrameReader,
        peer: &PeerName,
    ) -> io::Result<Option<AppendEntriesRequest<NodeTypes>>> {
        let Some(header) = reader.next::<AppendHeader>().await? else { return Ok(None) };
        self.check(peer, header.vote.leader.node, Some(header.to))?;
        let mut entries = Vec::new();
        let mut bytes = 0;
        for _ in 0..header.entries {
            let body = in_time(reader.next_body()).await??.ok_or(io::ErrorKind::UnexpectedEof)?;
            bytes += body.len();
            if bytes > APPEND {
                return Err(senseless(format!("an append of more than {APPEND} bytes")));
            }
            entries.push(wire::entry_in(&body).map_err(|error| senseless(error.to_string()))?);
        }
        Ok(Some(wire::append_request(header, entries)))
    }

    async fn answer(&self, to: Option<RaftId>, request: Request, peer: &PeerName) -> io::Result<Answer> {
        match request {
            Request::Vote(ballot) => {
                self.check(peer, ballot.vote.leader.node, to)?;
                let response = self.raft.vote(ballot.into()).await.map_err(io::Error::other)?;
                Ok(Answer::Vote(response.into()))
            }
            Request::PreVote(ballot) => {
                self.check(peer, ballot.vote.leader.node, to)?;
                let response = self.raft.pre_vote(ballot.into()).await.map_err(io::Error::other)?;
                Ok(Answer::Vote(response.into()))
            }
            Request::Transfer(transfer) => {
                self.check(peer, transfer.from.leader.node, to)?;
                let response = self.raft.handle_transfer_leader(transfer.into()).await.map_err(io::Error::other)?;
                Ok(Answer::Transfer(wire::transfer_answer(response)))
            }
            Request::WhoAreYou => self.introduce(peer).await.map(Answer::IAm),
            Request::ClusterExists(members) => self.take_note(members, peer).await,
            Request::HaveYouTakenPart => self.has_taken_part(peer).map(Answer::TakenPart),
            Request::Snapshot(_) => Err(senseless("a snapshot where a question was expected".to_owned())),
        }
    }

    async fn introduce(&self, peer: &PeerName) -> io::Result<Introduction> {
        if peer.node().is_none() {
            return Err(refused(format!("{peer} is no node")));
        }
        let initialised = self.raft.is_initialized().await.map_err(io::Error::other)?;
        Ok(Introduction { name: self.own.clone(), raft_id: *self.raft.node_id(), initialised, rules: self.rules })
    }

    fn has_taken_part(&self, peer: &PeerName) -> io::Result<bool> {
        if peer.node().is_none() {
            return Err(refused(format!("{peer} is no node")));
        }
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let committed = metrics.committed_membership_config.membership();
        Ok(committed.get_node(self.raft.node_id()).is_some())
    }

    /// Only an empty node takes anybody's word for who the members are: any other hears it from a leader that it can check.
    async fn take_note(&self, members: Members, peer: &PeerName) -> io::Result<Answer> {
        if peer.node().is_none() {
            return Err(refused(format!("{peer} is no node")));
        }
        self.evidence.note();
        if !self.raft.is_initialized().await.map_err(io::Error::other)? {
            self.directory.learn(members);
        }
        Ok(Answer::Noted)
    }

    async fn receive_snapshot(
        &self,
        to: Option<RaftId>,
        header: SnapshotHeader,
        peer: &PeerName,
        reader: &mut FrameReader,
        writer: &mut FrameWriter,
    ) -> io::Result<()> {
        let word = match self.take_snapshot(to, header, peer, reader, writer).await {
            Ok(vote) => Progress::Installed(vote.into()),
            Err(error) => {
                // Told here too: it may be this node's disk that has no room for it, and only this node's operator can help.
                let why = format!("{:#}", anyhow::Error::new(error));
                tracing::warn!(%peer, why, "the snapshot of the leader cannot be taken; it sends it again");
                Progress::Failed(why)
            }
        };
        in_time(writer.send(&word)).await??;
        writer.finish();
        let _ = in_time(writer.stopped()).await;
        Ok(())
    }

    async fn take_snapshot(
        &self,
        to: Option<RaftId>,
        header: SnapshotHeader,
        peer: &PeerName,
        reader: &mut FrameReader,
        writer: &mut FrameWriter,
    ) -> io::Result<Vote> {
        self.check(peer, header.vote.leader.node, to)?;
        let (vote, meta) = header.into_parts().map_err(|error| senseless(error.to_string()))?;
        let mut sink = self.store.begin(&meta).await?;
        loop {
            let Chunk { bytes, last } = in_time(reader.expect::<Chunk>()).await??;
            if last {
                break;
            }
            sink.push(bytes).await?;
            in_time(writer.send(&Progress::Taken)).await??;
        }
        let install = async {
            let snapshot = sink.finish().await?;
            self.raft.install_full_snapshot(vote, Snapshot { meta, snapshot }).await.map_err(io::Error::other)
        };
        let mut install = std::pin::pin!(install);
        // Checking and installing take as long as the snapshot is large: the sender must not take that for a hang.
        let mut signs = interval(SIGN_OF_LIFE);
        loop {
            tokio::select! {
                biased;
                installed = &mut install => return Ok(installed?.vote),
                _ = signs.tick() => in_time(writer.send(&Progress::Installing)).await??,
            }
        }
    }

    /// Whether `peer` may speak as the voter `claimed`, and speaks to this one.
    fn check(&self, peer: &PeerName, claimed: RaftId, to: Option<RaftId>) -> io::Result<()> {
        let own = *self.raft.node_id();
        if to != Some(own) {
            if to.is_some() && peer.node().is_some() {
                self.evidence.note();
            }
            let other = to.map_or("nobody".to_owned(), |to| format!("Raft id {to}"));
            return Err(refused(format!("this is Raft id {own}, and the message is for {other}")));
        }
        let metrics = self.raft.server_metrics();
        let membership = metrics.borrow_watched().membership_config.clone();
        check_sender(peer, claimed, membership.membership(), &self.directory).map_err(refused)
    }
}

/// Whether the holder of a certificate may speak as the voter `claimed`.
fn check_sender(
    peer: &PeerName,
    claimed: RaftId,
    membership: &Membership,
    directory: &Directory,
) -> Result<(), String> {
    let Some(name) = peer.node() else { return Err(format!("{peer} is no node")) };
    match membership.get_node(&claimed) {
        Some(member) if member.name.as_ref() == Some(name) => Ok(()),
        Some(member) => {
            let known = member.name.as_ref().map_or("nobody", NodeName::as_str);
            Err(format!("{peer} claims the Raft id {claimed}, which belongs to {known}"))
        }
        None if directory.knows(name) || membership.nodes().any(|(_, node)| node.name.as_ref() == Some(name)) => Ok(()),
        None => Err(format!("{peer} is no voter of this cluster")),
    }
}

async fn in_time<T>(work: impl Future<Output = T>) -> io::Result<T> {
    timeout(STEP, work).await.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, format!("no step within {STEP:?}")))
}

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

fn senseless(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Time for one step of a conversation that the other side has begun.
const STEP: Duration = Duration::from_secs(10);
/// Between signs of life while a snapshot is installed.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);
/// Most bytes of entries in one append: what a follower is willing to hold at once.
const APPEND: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::super::types::Voter;
    use super::*;
    use pando_protocol::client::identity::Role;

    fn peer(name: &str, role: Role) -> PeerName {
        PeerName { name: name.parse().unwrap(), role, cluster: "grove".to_owned() }
    }

    fn directory(names: &[&str]) -> Directory {
        Directory::new(names.iter().map(|name| (name.parse().unwrap(), format!("{name}:7070"))).collect())
    }

    #[test]
    fn a_sender_must_be_who_its_id_belongs_to() {
        let voter = |name: &str| Voter { name: name.parse().ok(), address: format!("{name}:7070") };
        let nodes: BTreeMap<RaftId, Voter> = [(1, voter("n1")), (2, voter("n2"))].into();
        let membership = Membership::new(vec![BTreeSet::from([1, 2])], nodes).unwrap();
        let configured = directory(&["n1", "n2", "n3"]);
        let may = |name, role, id| check_sender(&peer(name, role), id, &membership, &configured).is_ok();
        assert!(may("n1", Role::Node, 1));
        assert!(!may("n2", Role::Node, 1), "another's id");
        assert!(!may("n1", Role::Admin, 1), "not a node");
        assert!(may("n2", Role::Node, 77), "a voter with a new id");
        assert!(may("n3", Role::Node, 78), "a configured voter before it is a member");
        assert!(!may("a1", Role::Node, 79), "an agent");
    }

    #[test]
    fn before_initialisation_only_configured_voters_are_heard() {
        let configured = directory(&["n1"]);
        let none = Membership::default();
        assert!(check_sender(&peer("n1", Role::Node), 5, &none, &configured).is_ok());
        assert!(check_sender(&peer("n2", Role::Node), 5, &none, &configured).is_err());
    }
}

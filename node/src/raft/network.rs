//! Raft's side that asks: openraft's network over the pool of peers.
//!
//! ```text
//!   append     one stream to a follower, requests and answers pipelined; the oldest unanswered has a deadline
//!   heartbeat  the same over a connection of its own, so that no append is before it
//!   vote, pre-vote, transfer   a stream each
//!   snapshot   a stream, chunks of at most 1 MiB; its deadline counts from the last sign of progress
//! ```
//!
//! The side that answers is [`super::service`].

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{
    Backoff, NetBackoff, NetSnapshot, NetStreamAppend, NetTransferLeader, NetVote, RPCOption, RaftNetworkFactory,
};
use openraft::raft::{
    AppendEntriesRequest, SnapshotResponse, StreamAppendResult, TransferLeaderRequest, TransferLeaderResponse,
    VoteRequest, VoteResponse,
};
use openraft::{AnyError, OptionalSend, Snapshot};
use pando_protocol::client::frames::{FrameReader, FrameWriter};
use pando_protocol::codec;
use pando_protocol::ids::NodeName;
use pando_protocol::message::Channel;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::types::{CommittedLeaderId, NodeTypes, RaftId, Vote, Voter};
use super::wire::{self, Answer, AppendAnswer, Chunk, Envelope, Progress, Request, SnapshotHeader};
use crate::transport::peers::{Lane, Peers};

/// A snapshot that can be sent.
pub trait SnapshotSource: Send + 'static {
    /// Its bytes from the beginning, in pieces of any size, read as they are asked for.
    fn pieces(&self) -> Box<dyn Iterator<Item = io::Result<Bytes>> + Send>;
}

/// The deadlines of Raft's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// For the oldest unanswered append, after which the stream is given up and begun anew; also for opening one.
    pub append: Duration,
    /// For the next sign of progress of a snapshot.
    pub snapshot: Duration,
}

impl Deadlines {
    /// Those that go with a heartbeat interval: long enough for a slow disk, short enough that a hung stream costs less than
    /// two elections.
    pub fn for_heartbeat(heartbeat: Duration) -> Self {
        Self { append: heartbeat * 8, snapshot: (heartbeat * 40).max(Duration::from_secs(5)) }
    }
}

/// Makes the clients with which openraft speaks to other voters. `S` is the state machine's snapshot.
#[derive(Debug)]
pub struct Network<S> {
    peers: Peers,
    deadlines: Deadlines,
    snapshot: std::marker::PhantomData<fn() -> S>,
}

/// Speaks to one voter over one lane.
#[derive(Debug)]
pub struct Link<S> {
    peers: Peers,
    deadlines: Deadlines,
    lane: Lane,
    to: RaftId,
    // `None` for a member without a name, which only openraft's default value is.
    name: Option<NodeName>,
    address: String,
    snapshot: std::marker::PhantomData<fn() -> S>,
}

impl<S> Network<S> {
    /// A network over `peers`.
    pub fn new(peers: Peers, deadlines: Deadlines) -> Self {
        Self { peers, deadlines, snapshot: std::marker::PhantomData }
    }

    fn link(&self, lane: Lane, to: RaftId, voter: &Voter) -> Link<S> {
        let Voter { name, address } = voter.clone();
        let (peers, deadlines) = (self.peers.clone(), self.deadlines);
        Link { peers, deadlines, lane, to, name, address, snapshot: std::marker::PhantomData }
    }
}

impl<S: SnapshotSource> RaftNetworkFactory<NodeTypes> for Network<S> {
    type Network = Link<S>;

    async fn new_client(&mut self, to: RaftId, voter: &Voter) -> Link<S> {
        self.link(Lane::Raft, to, voter)
    }

    async fn new_heartbeat_client(&mut self, to: RaftId, voter: &Voter) -> Link<S> {
        self.link(Lane::Heartbeat, to, voter)
    }
}

type RpcError = RPCError<NodeTypes>;
type Appended = StreamAppendResult<NodeTypes>;

impl<S> Link<S> {
    fn name(&self) -> io::Result<&NodeName> {
        self.name.as_ref().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the member has no name"))
    }

    async fn open(&self, channel: Channel, limit: Duration) -> io::Result<(FrameWriter, FrameReader)> {
        self.peers.open(self.lane, channel, self.name()?, &self.address, limit).await
    }

    async fn call(&self, request: Request, limit: Duration) -> Result<Answer, RpcError> {
        let call = async {
            let name = self.name()?;
            let envelope = Envelope { to: Some(self.to), request };
            self.peers
                .call::<_, Result<Answer, String>>(self.lane, Channel::RaftCall, name, &self.address, &envelope, limit)
                .await?
                .map_err(io::Error::other)
        };
        call.await.map_err(|error| unreachable(&error))
    }

    async fn vote_call(&self, request: Request, option: RPCOption) -> Result<VoteResponse<NodeTypes>, RpcError> {
        match self.call(request, option.soft_ttl()).await? {
            Answer::Vote(answer) => Ok(answer.into()),
            other => Err(misunderstood(&other)),
        }
    }

    async fn append<I>(&self, requests: I) -> io::Result<BoxStream<'static, Result<Appended, RpcError>>>
    where
        I: Stream<Item = AppendEntriesRequest<NodeTypes>> + OptionalSend + Unpin + 'static,
    {
        let (writer, reader) = self.open(Channel::RaftAppend, self.deadlines.append).await?;
        let sent = Arc::new(AtomicU64::new(0));
        let sending = Task(tokio::spawn(send_appends(self.to, requests, writer, sent.clone(), self.deadlines.append)));
        let answers = Answers { reader, sent, received: 0, deadline: self.deadlines.append, _sending: sending };
        Ok(Box::pin(stream::unfold(Some(answers), |answers| async { answers?.next().await })))
    }
}

/// Writes appends as they come, until one cannot be sent: then the stream is reset, which ends the answers too.
async fn send_appends(
    to: RaftId,
    mut requests: impl Stream<Item = AppendEntriesRequest<NodeTypes>> + Unpin,
    mut writer: FrameWriter,
    sent: Arc<AtomicU64>,
    deadline: Duration,
) {
    while let Some(request) = requests.next().await {
        // Before it is written, so that an answer never comes for what was not counted.
        sent.fetch_add(1, Ordering::SeqCst);
        let written = match encode(to, &request) {
            Ok(frames) => timeout(deadline, writer.send_frames(&frames)).await.map_err(io::Error::from),
            Err(error) => {
                // An entry beyond the limit of a frame can never be replicated: the proposer must not write one.
                tracing::error!(%error, "an append cannot be sent");
                Err(error)
            }
        };
        if !matches!(written, Ok(Ok(()))) {
            return writer.abandon();
        }
    }
    writer.finish();
}

/// An append as frames: a header, and a frame for each entry, so that only a single entry has to fit into a frame.
fn encode(to: RaftId, request: &AppendEntriesRequest<NodeTypes>) -> io::Result<Vec<u8>> {
    let header = wire::append_header(to, request).map_err(io::Error::other)?;
    let mut frames = codec::frame(&header).map_err(io::Error::other)?;
    for entry in &request.entries {
        frames.extend_from_slice(&wire::entry_frame(entry).map_err(io::Error::other)?);
    }
    Ok(frames)
}

/// The answers to a stream of appends.
struct Answers {
    reader: FrameReader,
    sent: Arc<AtomicU64>,
    received: u64,
    deadline: Duration,
    _sending: Task,
}

impl Answers {
    async fn next(mut self) -> Option<(Result<Appended, RpcError>, Option<Self>)> {
        loop {
            let due = self.sent.load(Ordering::SeqCst) > self.received;
            match timeout(self.deadline, self.reader.next::<AppendAnswer>()).await {
                Ok(Ok(Some(answer))) => {
                    self.received += 1;
                    let result = match wire::append_result(answer) {
                        Ok(result) => result,
                        Err(why) => return Some((Err(unreachable(&io::Error::other(why))), None)),
                    };
                    // After a conflict or a higher vote the follower takes nothing more from this stream.
                    let rest = result.is_ok().then_some(self);
                    return Some((Ok(result), rest));
                }
                Ok(Ok(None)) => return None,
                Ok(Err(error)) => return Some((Err(unreachable(&error.into())), None)),
                // Whole deadlines only: what was sent in the course of this one gets one of its own.
                Err(_) if due => return Some((Err(unreachable(&stalled(self.deadline))), None)),
                Err(_) => {}
            }
        }
    }
}

/// A task that ends with its owner.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<S: SnapshotSource> NetStreamAppend<NodeTypes> for Link<S> {
    fn stream_append<'s, I>(
        &'s mut self,
        input: I,
        _: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Result<Appended, RpcError>>, RpcError>>
    where
        I: Stream<Item = AppendEntriesRequest<NodeTypes>> + OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            let answers: BoxStream<'s, _> = self.append(input).await.map_err(|error| unreachable(&error))?;
            Ok(answers)
        })
    }
}

impl<S: SnapshotSource> NetVote<NodeTypes> for Link<S> {
    async fn vote(
        &mut self,
        request: VoteRequest<NodeTypes>,
        option: RPCOption,
    ) -> Result<VoteResponse<NodeTypes>, RpcError> {
        self.vote_call(Request::Vote(request.into()), option).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<NodeTypes>,
        option: RPCOption,
    ) -> Result<VoteResponse<NodeTypes>, RpcError> {
        self.vote_call(Request::PreVote(request.into()), option).await
    }
}

impl<S: SnapshotSource> NetTransferLeader<NodeTypes> for Link<S> {
    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<NodeTypes>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<NodeTypes>, RpcError> {
        match self.call(Request::Transfer((&request).into()), option.soft_ttl()).await? {
            Answer::Transfer(answer) => Ok(wire::transfer_response(answer)),
            other => Err(misunderstood(&other)),
        }
    }
}

impl<S: SnapshotSource> NetBackoff<NodeTypes> for Link<S> {
    fn backoff(&self) -> Option<Backoff> {
        // The pool of peers has pauses of its own after failed dials.
        Some(Backoff::new(std::iter::repeat(BACKOFF)))
    }
}

impl<S: SnapshotSource> NetSnapshot<NodeTypes> for Link<S> {
    type SnapshotData = S;

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot<CommittedLeaderId, RaftId, Voter, S>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<NodeTypes>, StreamingError<NodeTypes>> {
        let Snapshot { meta, snapshot } = snapshot;
        let header = SnapshotHeader::new(vote, &meta);
        tokio::select! {
            biased;
            closed = cancel => Err(StreamingError::Closed(closed)),
            done = self.send_snapshot(header, snapshot) => match done {
                Ok(vote) => Ok(SnapshotResponse::new(vote)),
                Err(error) => Err(StreamingError::Unreachable(Unreachable::new(&error))),
            },
        }
    }
}

impl<S: SnapshotSource> Link<S> {
    async fn send_snapshot(&self, header: SnapshotHeader, snapshot: S) -> io::Result<Vote> {
        let limit = self.deadlines.snapshot;
        let (writer, reader) = self.open(Channel::RaftCall, limit).await?;
        // The receiver speaks after each chunk, so its words alone tell whether anything moves, in either direction.
        let receiving = receive_progress(reader, limit);
        let reading = async {
            let envelope = Envelope { to: Some(self.to), request: Request::Snapshot(header) };
            send_chunks(envelope, snapshot, writer).await?;
            std::future::pending::<io::Result<Vote>>().await
        };
        tokio::select! {
            biased;
            vote = receiving => vote,
            unreadable = reading => unreadable,
        }
    }
}

/// Sends all of a snapshot. It fails only where the snapshot cannot be read: where the receiver takes no more, its last word
/// or its silence says why.
async fn send_chunks<S: SnapshotSource>(envelope: Envelope, snapshot: S, mut writer: FrameWriter) -> io::Result<()> {
    let mut taken = writer.send(&envelope).await.is_ok();
    let mut pieces = snapshot.pieces();
    while taken {
        let Some(mut piece) = pieces.next().transpose()? else { break };
        while taken && !piece.is_empty() {
            let bytes = piece.split_to(piece.len().min(CHUNK));
            taken = writer.send(&Chunk { bytes, last: false }).await.is_ok();
        }
    }
    if taken && writer.send(&Chunk { bytes: Bytes::new(), last: true }).await.is_ok() {
        writer.finish();
    }
    Ok(())
}

async fn receive_progress(mut reader: FrameReader, limit: Duration) -> io::Result<Vote> {
    loop {
        let until = Instant::now() + limit;
        let word = timeout_at(until, reader.expect::<Progress>()).await.map_err(|_| stalled(limit))??;
        match word {
            Progress::Taken | Progress::Installing => {}
            Progress::Installed(vote) => return Ok(vote.into()),
            Progress::Failed(why) => return Err(io::Error::other(why)),
        }
    }
}

fn unreachable(error: &io::Error) -> RpcError {
    RPCError::Unreachable(Unreachable::new(error))
}

fn misunderstood(answer: &Answer) -> RpcError {
    RPCError::Network(NetworkError::new(&AnyError::error(format!("an answer to another question: {answer:?}"))))
}

fn stalled(limit: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no progress within {limit:?}"))
}

/// Between tries to reach a voter that does not answer.
const BACKOFF: Duration = Duration::from_millis(100);
/// Most bytes in one chunk of a snapshot.
const CHUNK: usize = 1 << 20;

#[cfg(test)]
mod tests;

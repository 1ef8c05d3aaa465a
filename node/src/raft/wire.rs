//! Raft's messages on the wire: types of ours, to and from openraft's.
//!
//! Openraft's own structs are never sent: they change between versions, and a positional format cannot skip what one side
//! does not know. These change only by new variants and new messages, under a new ALPN.
//!
//! ```text
//!   RaftAppend:  AppendHeader, Entry × entries  ──►     ◄── AppendAnswer, one for each header, in order
//!   RaftCall:    Envelope                       ──►     ◄── Result<Answer, String>
//!                Envelope of a Snapshot, Chunk … ─►     ◄── Progress …, the last one Installed or Failed
//! ```
//!
//! What counts toward a majority names the Raft id that it is for. A voter that lost its data folder answers at the same
//! address, under the same name, with a new id: it must not acknowledge or vote in place of the one that it was.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use openraft::EntryPayload;
use openraft::raft::{
    AppendEntriesRequest, StreamAppendError, StreamAppendResult, TransferLeaderRequest, VoteRequest, VoteResponse,
};
use openraft::raft::{TransferLeaderError, TransferLeaderResponse};
use openraft::{AsyncRuntime, StoredMembership};
use pando_protocol::ids::NodeName;
use pando_supervision::Batch;
use serde::{Deserialize, Serialize};

use super::types::{self, RaftId, Types, Voter};

/// What the state machine had when a snapshot was made.
pub type SnapshotMeta = openraft::storage::SnapshotMeta<types::CommittedLeaderId, RaftId, Voter>;

/// Bytes that are valid in form but make no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a Raft message makes no sense: {0}")]
pub struct Senseless(String);

/// Who leads, or would, in which term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Leader {
    /// The term.
    pub term: u64,
    /// The voter.
    pub node: RaftId,
}

/// A place in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LogId {
    /// The leader that wrote it.
    pub leader: Leader,
    /// Counted from 0.
    pub index: u64,
}

/// A vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    /// For whom.
    pub leader: Leader,
    /// Whether a majority gave it.
    pub committed: bool,
}

/// A log entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its place.
    pub log_id: LogId,
    /// What it carries.
    pub payload: Payload,
}

/// What an entry carries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    /// Nothing: a leader's first entry.
    Blank,
    /// Commands.
    Batch(Batch),
    /// Who votes from here on.
    Membership(Membership),
}

/// Who votes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Groups of voters, of each of which a majority is needed: two while a change is under way.
    pub configs: Vec<BTreeSet<RaftId>>,
    /// Everybody, learners included.
    pub nodes: BTreeMap<RaftId, Member>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its name.
    pub name: Option<NodeName>,
    /// `host:port`.
    pub address: String,
}

/// Before the entries of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppendHeader {
    /// The voter it is for.
    pub to: RaftId,
    /// The leader's.
    pub vote: Vote,
    /// The place before the first entry.
    pub previous: Option<LogId>,
    /// How far the leader's log is committed.
    pub committed: Option<LogId>,
    /// How many [`Entry`] frames follow.
    pub entries: u32,
}

/// The answer to an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AppendAnswer {
    /// The log is the leader's up to here, and on disk.
    Matches(Option<LogId>),
    /// The log has something else here.
    Conflict(LogId),
    /// A higher vote was seen: the sender no longer leads.
    HigherVote(Vote),
}

/// A request with the voter it is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// The Raft id of the receiver; `None` where the asker does not know it yet, which only [`Request::WhoAreYou`] allows.
    pub to: Option<RaftId>,
    /// What is asked.
    pub request: Request,
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Asks for a vote.
    Vote(Ballot),
    /// Asks whether a vote would be given.
    PreVote(Ballot),
    /// Asks the receiver to lead, or to let another lead.
    Transfer(Transfer),
    /// [`Chunk`]s follow.
    Snapshot(SnapshotHeader),
    /// Asks for an [`Introduction`].
    WhoAreYou,
}

/// A candidate's case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ballot {
    /// The vote asked for.
    pub vote: Vote,
    /// How far the candidate's log reaches.
    pub last: Option<LogId>,
    /// Whether voters should grant it although they hear from a leader.
    pub transfer: bool,
}

/// Leadership to hand over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// The leader's vote.
    pub from: Vote,
    /// Who shall lead.
    pub to: RaftId,
    /// What that one must have on disk first.
    pub last: Option<LogId>,
}

/// Before the chunks of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotHeader {
    /// The leader's.
    pub vote: Vote,
    /// The last entry in it.
    pub last: Option<LogId>,
    /// The entry that set the membership in it.
    pub membership_at: Option<LogId>,
    /// That membership.
    pub membership: Membership,
}

/// A piece of a snapshot. Pieces need not be those in which it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// At most 1 MiB.
    pub bytes: Bytes,
    /// Whether nothing follows: a stream that ends without it was cut.
    pub last: bool,
}

/// What the receiver of a snapshot says while it goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Progress {
    /// A chunk was taken.
    Taken,
    /// All is here and being checked and installed.
    Installing,
    /// Done; with the receiver's vote.
    Installed(Vote),
    /// It came to nothing; why.
    Failed(String),
}

/// The answer to a [`Request`] other than a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// To a vote or pre-vote.
    Vote(VoteAnswer),
    /// To a transfer.
    Transfer(TransferAnswer),
    /// To who are you.
    IAm(Introduction),
}

/// What a voter says to a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoteAnswer {
    /// The voter's own vote now.
    pub vote: Vote,
    /// Whether it is granted.
    pub granted: bool,
    /// How far the voter's log reaches.
    pub last: Option<LogId>,
}

/// What comes of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransferAnswer {
    /// It campaigns, or lets another.
    Accepted,
    /// Somebody else leads or did meanwhile.
    VoteChanged {
        /// The vote in the request.
        expected: Vote,
        /// The vote now.
        actual: Vote,
    },
    /// Its log is not there yet.
    NotFlushed {
        /// What must be on disk.
        expected: Option<LogId>,
        /// What is.
        actual: Option<LogId>,
    },
}

/// Who a node is, for the bootstrap rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// Its name.
    pub name: NodeName,
    /// Its id, made with its data folder.
    pub raft_id: RaftId,
    /// Whether its log or vote ever held anything.
    pub initialised: bool,
}

impl From<types::LeaderId> for Leader {
    fn from(types::LeaderId { term, node_id }: types::LeaderId) -> Self {
        Self { term, node: node_id }
    }
}
impl From<Leader> for types::LeaderId {
    fn from(Leader { term, node }: Leader) -> Self {
        Self { term, node_id: node }
    }
}

impl From<types::LogId> for LogId {
    fn from(types::LogId { leader_id, index }: types::LogId) -> Self {
        Self { leader: leader_id.into(), index }
    }
}
impl From<LogId> for types::LogId {
    fn from(LogId { leader, index }: LogId) -> Self {
        Self { leader_id: leader.into(), index }
    }
}

impl From<types::Vote> for Vote {
    fn from(types::Vote { leader_id, committed }: types::Vote) -> Self {
        Self { leader: leader_id.into(), committed }
    }
}
impl From<Vote> for types::Vote {
    fn from(Vote { leader, committed }: Vote) -> Self {
        Self { leader_id: leader.into(), committed }
    }
}

impl From<types::Entry> for Entry {
    fn from(entry: types::Entry) -> Self {
        let types::Entry { log_id, payload } = entry;
        let payload = match payload {
            EntryPayload::Blank => Payload::Blank,
            EntryPayload::Normal(batch) => Payload::Batch(batch),
            EntryPayload::Membership(membership) => Payload::Membership((&membership).into()),
        };
        Self { log_id: log_id.into(), payload }
    }
}
impl TryFrom<Entry> for types::Entry {
    type Error = Senseless;
    fn try_from(Entry { log_id, payload }: Entry) -> Result<Self, Senseless> {
        let payload = match payload {
            Payload::Blank => EntryPayload::Blank,
            Payload::Batch(batch) => EntryPayload::Normal(batch),
            Payload::Membership(membership) => EntryPayload::Membership(membership.try_into()?),
        };
        Ok(Self { log_id: log_id.into(), payload })
    }
}

impl From<&types::Membership> for Membership {
    fn from(membership: &types::Membership) -> Self {
        let nodes = membership.nodes().map(|(id, Voter { name, address })| {
            let member = Member { name: name.clone(), address: address.clone() };
            (*id, member)
        });
        Self { configs: membership.get_joint_config().clone(), nodes: nodes.collect() }
    }
}
impl TryFrom<Membership> for types::Membership {
    type Error = Senseless;
    fn try_from(Membership { configs, nodes }: Membership) -> Result<Self, Senseless> {
        if configs.is_empty() && nodes.is_empty() {
            return Ok(Self::default());
        }
        let nodes: BTreeMap<RaftId, Voter> =
            nodes.into_iter().map(|(id, Member { name, address })| (id, Voter { name, address })).collect();
        Self::new(configs, nodes).map_err(|error| Senseless(error.to_string()))
    }
}

impl<R: AsyncRuntime> From<VoteRequest<Types<R>>> for Ballot {
    fn from(VoteRequest { vote, last_log_id, leadership_transfer }: VoteRequest<Types<R>>) -> Self {
        Self { vote: vote.into(), last: last_log_id.map(LogId::from), transfer: leadership_transfer }
    }
}
impl<R: AsyncRuntime> From<Ballot> for VoteRequest<Types<R>> {
    fn from(Ballot { vote, last, transfer }: Ballot) -> Self {
        Self { vote: vote.into(), last_log_id: last.map(Into::into), leadership_transfer: transfer }
    }
}

impl<R: AsyncRuntime> From<VoteResponse<Types<R>>> for VoteAnswer {
    fn from(VoteResponse { vote, vote_granted, last_log_id }: VoteResponse<Types<R>>) -> Self {
        Self { vote: vote.into(), granted: vote_granted, last: last_log_id.map(LogId::from) }
    }
}
impl<R: AsyncRuntime> From<VoteAnswer> for VoteResponse<Types<R>> {
    fn from(VoteAnswer { vote, granted, last }: VoteAnswer) -> Self {
        Self { vote: vote.into(), vote_granted: granted, last_log_id: last.map(Into::into) }
    }
}

impl<R: AsyncRuntime> From<&TransferLeaderRequest<Types<R>>> for Transfer {
    fn from(request: &TransferLeaderRequest<Types<R>>) -> Self {
        let last = request.last_log_id().copied().map(LogId::from);
        Self { from: (*request.from_leader()).into(), to: *request.to_node_id(), last }
    }
}
impl<R: AsyncRuntime> From<Transfer> for TransferLeaderRequest<Types<R>> {
    fn from(Transfer { from, to, last }: Transfer) -> Self {
        Self::new(from.into(), to, last.map(Into::into))
    }
}

/// A transfer's outcome for the wire.
pub fn transfer_answer<R: AsyncRuntime>(response: TransferLeaderResponse<Types<R>>) -> TransferAnswer {
    match response {
        Ok(()) => TransferAnswer::Accepted,
        Err(TransferLeaderError::VoteChanged { expected, actual }) => {
            TransferAnswer::VoteChanged { expected: expected.into(), actual: actual.into() }
        }
        Err(TransferLeaderError::LogNotFlushed { expected, actual }) => {
            TransferAnswer::NotFlushed { expected: expected.map(LogId::from), actual: actual.map(LogId::from) }
        }
    }
}

/// A transfer's outcome from the wire.
pub fn transfer_response<R: AsyncRuntime>(answer: TransferAnswer) -> TransferLeaderResponse<Types<R>> {
    Err(match answer {
        TransferAnswer::Accepted => return Ok(()),
        TransferAnswer::VoteChanged { expected, actual } => {
            TransferLeaderError::VoteChanged { expected: expected.into(), actual: actual.into() }
        }
        TransferAnswer::NotFlushed { expected, actual } => {
            TransferLeaderError::LogNotFlushed { expected: expected.map(Into::into), actual: actual.map(Into::into) }
        }
    })
}

/// An append's outcome for the wire.
pub fn append_answer<R: AsyncRuntime>(result: StreamAppendResult<Types<R>>) -> AppendAnswer {
    match result {
        Ok(matching) => AppendAnswer::Matches(matching.map(LogId::from)),
        Err(StreamAppendError::Conflict(at)) => AppendAnswer::Conflict(at.into()),
        Err(StreamAppendError::HigherVote(vote)) => AppendAnswer::HigherVote(vote.into()),
    }
}

/// An append's outcome from the wire.
pub fn append_result<R: AsyncRuntime>(answer: AppendAnswer) -> StreamAppendResult<Types<R>> {
    match answer {
        AppendAnswer::Matches(matching) => Ok(matching.map(Into::into)),
        AppendAnswer::Conflict(at) => Err(StreamAppendError::Conflict(at.into())),
        AppendAnswer::HigherVote(vote) => Err(StreamAppendError::HigherVote(vote.into())),
    }
}

/// An append to a voter, as its header and entries.
///
/// # Errors
/// [`Senseless`] where there are more entries than a header can count.
pub fn append_parts<R: AsyncRuntime>(
    to: RaftId,
    request: AppendEntriesRequest<Types<R>>,
) -> Result<(AppendHeader, Vec<Entry>), Senseless> {
    let AppendEntriesRequest { vote, prev_log_id, entries, leader_commit } = request;
    let count = u32::try_from(entries.len()).map_err(|_| Senseless(format!("{} entries at once", entries.len())))?;
    let header = AppendHeader {
        to,
        vote: vote.into(),
        previous: prev_log_id.map(LogId::from),
        committed: leader_commit.map(LogId::from),
        entries: count,
    };
    Ok((header, entries.into_iter().map(Entry::from).collect()))
}

/// An append from its header and entries.
pub fn append_request<R: AsyncRuntime>(
    header: AppendHeader,
    entries: Vec<types::Entry>,
) -> AppendEntriesRequest<Types<R>> {
    let AppendHeader { to: _, vote, previous, committed, entries: _ } = header;
    AppendEntriesRequest {
        vote: vote.into(),
        prev_log_id: previous.map(Into::into),
        entries,
        leader_commit: committed.map(Into::into),
    }
}

impl SnapshotHeader {
    /// The header for a snapshot that the leader with this vote sends.
    pub fn new(vote: types::Vote, meta: &SnapshotMeta) -> Self {
        let SnapshotMeta { last_log_id, last_membership } = meta;
        Self {
            vote: vote.into(),
            last: last_log_id.map(LogId::from),
            membership_at: last_membership.log_id().map(LogId::from),
            membership: last_membership.membership().into(),
        }
    }

    /// The vote and what the snapshot holds.
    ///
    /// # Errors
    /// [`Senseless`] where the membership is none.
    pub fn into_parts(self) -> Result<(types::Vote, SnapshotMeta), Senseless> {
        let Self { vote, last, membership_at, membership } = self;
        let last_membership = StoredMembership::new(membership_at.map(Into::into), membership.try_into()?);
        Ok((vote.into(), SnapshotMeta { last_log_id: last.map(Into::into), last_membership }))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use openraft::impls::TokioRuntime;
    use pando_protocol::codec;
    use pando_supervision::{Command, Stamp};

    use super::*;

    type Tokio = TokioRuntime;

    fn log_id(index: u64) -> types::LogId {
        types::LogId { leader_id: types::LeaderId { term: 3, node_id: 9 }, index }
    }

    fn members(ids: [u64; 2]) -> types::Membership {
        let nodes: BTreeMap<RaftId, Voter> = ids
            .into_iter()
            .map(|id| (id, Voter { name: format!("n{id}").parse().ok(), address: format!("host{id}:7070") }))
            .collect();
        types::Membership::new(vec![BTreeSet::from(ids)], nodes).unwrap()
    }

    fn over_the_wire<T: Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
        let body = codec::encode::<{ codec::FRAME_LIMIT }>(value).unwrap();
        codec::decode::<T, { codec::FRAME_LIMIT }>(&body).unwrap()
    }

    #[test]
    fn an_append_with_every_kind_of_entry_comes_back_equal() {
        let batch = Batch { stamp: Stamp { at: Duration::from_secs(5), wall: 7 }, commands: vec![Command::Tick] };
        let payloads = [EntryPayload::Blank, EntryPayload::Normal(batch), EntryPayload::Membership(members([9, 10]))];
        let entries: Vec<types::Entry> =
            (1..).zip(payloads).map(|(index, payload)| types::Entry { log_id: log_id(index), payload }).collect();
        let request = AppendEntriesRequest::<Types<Tokio>> {
            vote: types::Vote { leader_id: types::LeaderId { term: 3, node_id: 9 }, committed: true },
            prev_log_id: Some(log_id(0)),
            entries: entries.clone(),
            leader_commit: None,
        };
        let (header, sent) = append_parts(10, request).unwrap();
        let received: Vec<types::Entry> =
            over_the_wire(&sent).into_iter().map(|entry| entry.try_into().unwrap()).collect();
        let back = append_request::<Tokio>(over_the_wire(&header), received);
        assert_eq!((back.prev_log_id, back.leader_commit, back.vote.committed), (Some(log_id(0)), None, true));
        assert_eq!(back.entries, entries);
    }

    #[test]
    fn a_snapshot_header_comes_back_equal_with_and_without_a_membership() {
        let vote = types::Vote { leader_id: types::LeaderId { term: 3, node_id: 9 }, committed: true };
        let last_membership = StoredMembership::new(Some(log_id(2)), members([9, 10]));
        for meta in [SnapshotMeta { last_log_id: Some(log_id(8)), last_membership }, SnapshotMeta::default()] {
            let header = over_the_wire(&SnapshotHeader::new(vote, &meta));
            assert_eq!(header.into_parts().unwrap(), (vote, meta));
        }
    }

    #[test]
    fn a_membership_without_its_voters_is_senseless() {
        let broken = Membership { configs: vec![BTreeSet::from([1])], nodes: BTreeMap::new() };
        assert!(types::Membership::try_from(broken).is_err());
    }

    #[test]
    fn answers_come_back_equal() {
        let vote = types::Vote { leader_id: types::LeaderId { term: 3, node_id: 9 }, committed: false };
        let results: [StreamAppendResult<Types<Tokio>>; 4] = [
            Ok(None),
            Ok(Some(log_id(4))),
            Err(StreamAppendError::Conflict(log_id(4))),
            Err(StreamAppendError::HigherVote(vote)),
        ];
        for result in results {
            assert_eq!(append_result::<Tokio>(over_the_wire(&append_answer(result.clone()))), result);
        }
        let responses: [TransferLeaderResponse<Types<Tokio>>; 2] =
            [Ok(()), Err(TransferLeaderError::LogNotFlushed { expected: Some(log_id(1)), actual: None })];
        for response in responses {
            assert_eq!(transfer_response::<Tokio>(over_the_wire(&transfer_answer(response.clone()))), response);
        }
        let ballot = VoteRequest::<Types<Tokio>> { vote, last_log_id: None, leadership_transfer: true };
        assert_eq!(VoteRequest::from(over_the_wire(&Ballot::from(ballot.clone()))), ballot);
    }
}

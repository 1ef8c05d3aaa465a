//! To and from openraft's types. Every struct is taken apart by name, so that a new field of openraft's breaks the build.

use std::collections::BTreeMap;

use openraft::raft::{
    AppendEntriesRequest, StreamAppendError, StreamAppendResult, TransferLeaderError, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{AsyncRuntime, EntryPayload, StoredMembership};
use pando_protocol::codec::{self, CodecError, FRAME_LIMIT};

use super::super::sealed::Sealed;
use super::super::types::{self, RaftId, Types, Voter};
use super::{
    AppendAnswer, AppendHeader, Ballot, Entry, Leader, LogId, Member, Membership, Payload, Senseless, SnapshotHeader,
    SnapshotMeta, Transfer, TransferAnswer, Vote, VoteAnswer,
};

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

/// An entry as a frame: the bytes of an [`Entry`], of which a batch is copied as it is.
///
/// # Errors
/// [`CodecError::TooLarge`] where it exceeds a frame.
pub fn entry_frame(types::Entry { log_id, payload }: &types::Entry) -> Result<Vec<u8>, CodecError> {
    let log_id = LogId::from(*log_id);
    let payload = match payload {
        EntryPayload::Normal(sealed) => return codec::frame_behind(&log_id, sealed.behind_the_id()),
        EntryPayload::Blank => Payload::Blank,
        EntryPayload::Membership(membership) => Payload::Membership(membership.into()),
    };
    codec::frame(&Entry { log_id, payload })
}

/// The entry in the body of a frame.
///
/// # Errors
/// [`Senseless`] where it is none, or is not written as [`entry_frame`] does.
pub fn entry_in(body: &[u8]) -> Result<types::Entry, Senseless> {
    let said = |error: CodecError| Senseless(error.to_string());
    let Entry { log_id, payload } = codec::decode::<Entry, FRAME_LIMIT>(body).map_err(said)?;
    let payload = match payload {
        Payload::Blank => EntryPayload::Blank,
        Payload::Batch(batch) => {
            let id = codec::encode::<FRAME_LIMIT>(&log_id).map_err(said)?;
            let sealed = body.strip_prefix(id.as_slice()).and_then(|rest| Sealed::received(rest, batch));
            EntryPayload::Normal(
                sealed.ok_or_else(|| Senseless("a number that takes more bytes than it needs".into()))?,
            )
        }
        Payload::Membership(membership) => EntryPayload::Membership(membership.try_into()?),
    };
    Ok(types::Entry { log_id: log_id.into(), payload })
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
///
/// # Errors
/// Why the follower refused to look at it.
pub fn append_result<R: AsyncRuntime>(answer: AppendAnswer) -> Result<StreamAppendResult<Types<R>>, String> {
    Ok(match answer {
        AppendAnswer::Matches(matching) => Ok(matching.map(Into::into)),
        AppendAnswer::Conflict(at) => Err(StreamAppendError::Conflict(at.into())),
        AppendAnswer::HigherVote(vote) => Err(StreamAppendError::HigherVote(vote.into())),
        AppendAnswer::Refused(why) => return Err(why),
    })
}

/// An append to a voter, as its header and entries.
///
/// # Errors
/// [`Senseless`] where there are more entries than a header can count.
pub fn append_header<R: AsyncRuntime>(
    to: RaftId,
    request: &AppendEntriesRequest<Types<R>>,
) -> Result<AppendHeader, Senseless> {
    let AppendEntriesRequest { vote, prev_log_id, entries, leader_commit } = request;
    let count = u32::try_from(entries.len()).map_err(|_| Senseless(format!("{} entries at once", entries.len())))?;
    Ok(AppendHeader {
        to,
        vote: (*vote).into(),
        previous: prev_log_id.map(LogId::from),
        committed: leader_commit.map(LogId::from),
        entries: count,
    })
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
    use std::collections::BTreeSet;
    use std::time::Duration;

    use openraft::impls::TokioRuntime;
    use pando_protocol::codec;
    use pando_supervision::{Batch, Command, Stamp};
    use serde::Serialize;

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
        let body = codec::encode::<FRAME_LIMIT>(value).unwrap();
        codec::decode::<T, FRAME_LIMIT>(&body).unwrap()
    }

    #[test]
    fn an_append_with_every_kind_of_entry_comes_back_equal() {
        let batch = Batch { stamp: Stamp { at: Duration::from_secs(5), wall: 7 }, commands: vec![Command::Tick] };
        let payloads = [
            EntryPayload::Blank,
            EntryPayload::Normal(Sealed::new(&batch).unwrap()),
            EntryPayload::Membership(members([9, 10])),
        ];
        let entries: Vec<types::Entry> =
            (1..).zip(payloads).map(|(index, payload)| types::Entry { log_id: log_id(index), payload }).collect();
        let request = AppendEntriesRequest::<Types<Tokio>> {
            vote: types::Vote { leader_id: types::LeaderId { term: 3, node_id: 9 }, committed: true },
            prev_log_id: Some(log_id(0)),
            entries: entries.clone(),
            leader_commit: None,
        };
        let header = append_header(10, &request).unwrap();
        let bodies = entries.iter().map(|entry| entry_frame(entry).unwrap().split_off(codec::LENGTH_BYTES));
        let received: Vec<types::Entry> = bodies.map(|body| entry_in(&body).unwrap()).collect();
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
    fn what_a_follower_took_in_is_opened_once_and_what_the_leader_wrote_from_its_bytes() {
        let batch = Batch { stamp: Stamp { at: Duration::from_secs(5), wall: 7 }, commands: vec![Command::Tick; 3] };
        let sealed = Sealed::new(&batch).unwrap();
        assert!(!sealed.is_open());
        let entry = types::Entry { log_id: log_id(300), payload: EntryPayload::Normal(sealed.clone()) };
        let body = entry_frame(&entry).unwrap().split_off(codec::LENGTH_BYTES);
        let EntryPayload::Normal(received) = entry_in(&body).unwrap().payload else { panic!("no batch") };
        let also = received.clone();
        assert!(also.is_open());
        assert_eq!((received.bytes(), received.open().unwrap()), (sealed.bytes(), batch.clone()));
        assert!(!also.is_open());
        assert_eq!((also.open().unwrap(), sealed.open().unwrap()), (batch.clone(), batch));
    }

    #[test]
    fn an_entry_whose_place_is_not_written_as_short_as_it_can_be_is_senseless() {
        let batch = Sealed::new(&Batch { stamp: Stamp { at: Duration::ZERO, wall: 7 }, commands: vec![] }).unwrap();
        let entry = types::Entry { log_id: log_id(5), payload: EntryPayload::Normal(batch) };
        let body = entry_frame(&entry).unwrap().split_off(codec::LENGTH_BYTES);
        assert_eq!(entry_in(&body).unwrap(), entry);
        // Version, term, node and index take a byte each; 251 stands before a number of two bytes.
        let longer = [&body[..3], &[251, 5, 0], &body[4..]].concat();
        assert!(codec::decode::<Entry, FRAME_LIMIT>(&longer).is_ok(), "the codec takes it");
        assert!(entry_in(&longer).unwrap_err().to_string().contains("takes more bytes than it needs"));
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
            assert_eq!(append_result::<Tokio>(over_the_wire(&append_answer(result.clone()))), Ok(result));
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

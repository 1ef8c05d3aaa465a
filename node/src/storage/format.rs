//! How openraft's values are written: our own types in between, so that an upgrade of openraft changes no byte on disk.
//!
//! ```text
//!   log id, vote   = mark | fields (little endian) | CRC32C           fixed size, checked before use
//!   payload        = version | kind | body                            the codec's version byte, then the variant
//! ```
//!
//! The mark of a log id and of a vote differ from each other and from every tag that the log writes before them. So a
//! record whose type was damaged is noticed at its first byte, before any length in it is believed.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use openraft::EntryPayload;
use pando_protocol::codec::{self, CodecError, ENTRY_LIMIT};
use pando_supervision::Batch;
use serde::{Deserialize, Serialize};

use crate::raft::sealed::Sealed;
use crate::raft::types::{CommittedLeaderId, LeaderId, LogId, Membership, Payload, RaftId, Vote, Voter};

/// A membership, and where in the log it stands.
pub type StoredMembership = openraft::StoredMembership<CommittedLeaderId, RaftId, Voter>;
/// What openraft says of a snapshot beside its content.
pub type SnapshotMeta = openraft::SnapshotMeta<CommittedLeaderId, RaftId, Voter>;

/// A log id as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StoredLogId {
    /// The term of the leader that proposed the entry.
    pub term: u64,
    /// That leader.
    pub node: RaftId,
    /// The index of the entry.
    pub index: u64,
}

/// A vote as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StoredVote {
    /// The term.
    pub term: u64,
    /// Who is voted for.
    pub node: RaftId,
    /// Whether a majority granted it.
    pub committed: bool,
}

/// A membership as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StoredMembers {
    /// One set of voters, or two while they change.
    pub configs: Vec<BTreeSet<RaftId>>,
    /// Everyone who is told of entries: voters and learners.
    pub nodes: BTreeMap<RaftId, Voter>,
}

/// What an entry carries, as it is stored. Variants are only ever appended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum StoredPayload {
    Blank,
    /// Never made here: [`Sealed`] has its bytes.
    Batch(Batch),
    Members(StoredMembers),
}

/// Writes what an entry carries.
///
/// # Errors
/// [`CodecError::TooLarge`] where it needs more than [`ENTRY_LIMIT`] bytes.
pub fn encode_payload(payload: &Payload) -> Result<Bytes, CodecError> {
    let stored = match payload {
        EntryPayload::Normal(sealed) => return Ok(sealed.bytes().clone()),
        EntryPayload::Blank => StoredPayload::Blank,
        EntryPayload::Membership(membership) => StoredPayload::Members(membership.into()),
    };
    // Cut to its length: the log keeps it for long, and counts no more than that.
    Ok(codec::encode::<ENTRY_LIMIT>(&stored)?.into_boxed_slice().into())
}

/// Reads what [`encode_payload`] wrote. A batch is not looked into: whoever opens it hears whether it can be read.
///
/// # Errors
/// Every kind of [`CodecError`].
pub fn decode_payload(bytes: &Bytes) -> Result<Payload, CodecError> {
    if let Some(sealed) = Sealed::stored(bytes) {
        return Ok(EntryPayload::Normal(sealed));
    }
    Ok(match codec::decode::<StoredPayload, ENTRY_LIMIT>(bytes)? {
        StoredPayload::Blank => EntryPayload::Blank,
        StoredPayload::Batch(batch) => EntryPayload::Normal(Sealed::new(&batch)?),
        StoredPayload::Members(members) => EntryPayload::Membership(members.try_into()?),
    })
}

/// Which format, and which one is known, where the bytes are a newer build's.
pub fn newer_codec(error: &CodecError) -> Option<String> {
    match error {
        CodecError::Version { found: Some(found) } if *found > codec::VERSION => {
            Some(format!("codec version {found}, after {}", codec::VERSION))
        }
        CodecError::Version { .. }
        | CodecError::TooLarge { .. }
        | CodecError::Malformed(_)
        | CodecError::Trailing(_) => None,
    }
}

impl From<&LogId> for StoredLogId {
    fn from(id: &LogId) -> Self {
        Self { term: id.leader_id.term, node: id.leader_id.node_id, index: id.index }
    }
}
impl From<StoredLogId> for LogId {
    fn from(stored: StoredLogId) -> Self {
        let StoredLogId { term, node, index } = stored;
        Self::new(CommittedLeaderId { term, node_id: node }, index)
    }
}

impl From<&Vote> for StoredVote {
    fn from(vote: &Vote) -> Self {
        Self { term: vote.leader_id.term, node: vote.leader_id.node_id, committed: vote.committed }
    }
}
impl From<StoredVote> for Vote {
    fn from(stored: StoredVote) -> Self {
        let StoredVote { term, node, committed } = stored;
        Self { leader_id: LeaderId { term, node_id: node }, committed }
    }
}

impl From<&Membership> for StoredMembers {
    fn from(membership: &Membership) -> Self {
        Self {
            configs: membership.get_joint_config().clone(),
            nodes: membership.nodes().map(|(id, voter)| (*id, voter.clone())).collect(),
        }
    }
}
impl TryFrom<StoredMembers> for Membership {
    type Error = CodecError;
    fn try_from(stored: StoredMembers) -> Result<Self, CodecError> {
        Self::new(stored.configs, stored.nodes).map_err(|e| CodecError::Malformed(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pando_supervision::{Command, Stamp};

    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn every_kind_of_payload_comes_back_and_keeps_its_bytes() {
        let stamp = Stamp { at: Duration::from_millis(1500), wall: 7 };
        let voter = Voter { name: Some("n1".parse().unwrap()), address: "n1:4600".into() };
        let members = StoredMembers { configs: vec![BTreeSet::from([5])], nodes: BTreeMap::from([(5, voter)]) };
        let golden = [
            (Payload::Blank, "0100"),
            (
                Payload::Normal(Sealed::new(&Batch { stamp, commands: vec![Command::Tick] }).unwrap()),
                "010101fc0065cd1d070100",
            ),
            (Payload::Membership(members.try_into().unwrap()), "0102010105010501026e31076e313a34363030"),
        ];
        for (payload, bytes) in golden {
            let written = encode_payload(&payload).unwrap();
            assert_eq!(hex(&written), bytes, "{payload:?}");
            assert_eq!(decode_payload(&written).unwrap(), payload);
        }
    }

    #[test]
    fn stored_ids_and_votes_sort_as_openraft_sorts_them() {
        let ids = [(1, 9, 5), (2, 1, 4), (2, 3, 1)].map(|(term, node, index)| StoredLogId { term, node, index });
        assert!(ids.is_sorted());
        assert!(ids.map(LogId::from).is_sorted());
        let votes = [(1, 9, true), (2, 1, false), (2, 1, true), (2, 3, false)]
            .map(|(term, node, committed)| StoredVote { term, node, committed });
        assert!(votes.is_sorted());
        assert!(votes.map(Vote::from).is_sorted());
    }

    #[test]
    fn a_membership_without_a_voters_address_is_refused() {
        let members = StoredMembers { configs: vec![BTreeSet::from([5])], nodes: BTreeMap::new() };
        assert!(Membership::try_from(members).is_err());
    }
}

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

mod conversions;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use pando_protocol::ids::NodeName;
use pando_protocol::session::Members;
use pando_supervision::Batch;
use serde::{Deserialize, Serialize};

pub use self::conversions::{
    append_answer, append_header, append_request, append_result, entry_frame, entry_in, transfer_answer,
    transfer_response,
};
use super::types::{self, RaftId, Voter};

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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AppendAnswer {
    /// The log is the leader's up to here, and on disk.
    Matches(Option<LogId>),
    /// The log has something else here.
    Conflict(LogId),
    /// A higher vote was seen: the sender no longer leads.
    HigherVote(Vote),
    /// It was not looked at, and nothing more is taken from this stream; why.
    Refused(String),
}

/// A request with the voter it is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// The Raft id of the receiver; `None` where the asker does not know it yet, which only questions of
    /// [`super::neighbours`] allow.
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
    /// A leader says that its cluster exists, and who its members are, to a node that may not know: one that came back empty
    /// with an old configuration must not begin another cluster, and has to find this one.
    ClusterExists(Members),
    /// Asks one whose log holds something whether it ever took part.
    HaveYouTakenPart,
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
    /// To the word that a cluster exists.
    Noted,
    /// Whether a committed membership that is known there has its id. One that has entries and no such membership was added by
    /// a change that came to nothing: what it holds is of no consequence.
    TakenPart(bool),
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
    /// The newest version of the rules that it knows.
    pub rules: u32,
}

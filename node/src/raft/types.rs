//! The types with which openraft is used, generic over the runtime: the node runs them on tokio, a simulator on virtual
//! time. Entries, log ids and votes are the same concrete types on both.

use std::cmp::Ordering;
use std::fmt;
use std::marker::PhantomData;

use openraft::AsyncRuntime;
use openraft::impls::{OneshotResponder, TokioRuntime, leader_id_adv};
use openraft::vote::RaftLeaderId;
use pando_protocol::ids::NodeName;
use pando_supervision::Outcome;
use serde::{Deserialize, Serialize};

use super::sealed::Sealed;

/// The type configuration on the runtime `R`.
pub struct Types<R>(PhantomData<fn() -> R>);

/// The type configuration of the node.
pub type NodeTypes = Types<TokioRuntime>;
/// A Raft id: random, made with the data folder, never used again once that folder is wiped.
pub type RaftId = u64;
/// Who led when.
pub type LeaderId = leader_id_adv::LeaderId<u64, RaftId>;
/// A committed leadership.
pub type CommittedLeaderId = <LeaderId as RaftLeaderId>::Committed;
/// A position in the log.
pub type LogId = openraft::LogId<CommittedLeaderId>;
/// A vote.
pub type Vote = openraft::impls::Vote<LeaderId>;
/// What a log entry carries.
pub type Payload = openraft::EntryPayload<Sealed, RaftId, Voter>;
/// A log entry.
pub type Entry = openraft::impls::Entry<CommittedLeaderId, Payload>;
/// Who votes.
pub type Membership = openraft::Membership<RaftId, Voter>;

/// What the membership says of a voter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Voter {
    /// Its name, as in its certificate. `None` only in openraft's own default value.
    pub name: Option<NodeName>,
    /// `host:port`, resolved at each dial.
    pub address: String,
}

/// The answers to the commands of a batch, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcomes(pub Vec<Outcome>);

impl<R: AsyncRuntime> openraft::RaftTypeConfig for Types<R> {
    type D = Sealed;
    type R = Outcomes;
    type NodeId = RaftId;
    type Node = Voter;
    type Term = u64;
    type LeaderId = LeaderId;
    type Vote = Vote;
    type Payload = Payload;
    type Entry = Entry;
    type AsyncRuntime = R;
    type Responder<T>
        = OneshotResponder<Self, T>
    where
        T: openraft::OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: openraft::OptionalSend + 'static;
    type ErrorSource = openraft::AnyError;
}

impl fmt::Display for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} outcomes", self.0.len())
    }
}

// By hand, because a derive would ask `R` for each of these.
impl<R> Clone for Types<R> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<R> Copy for Types<R> {}
impl<R> Default for Types<R> {
    fn default() -> Self {
        Self(PhantomData)
    }
}
impl<R> fmt::Debug for Types<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Types")
    }
}
impl<R> PartialEq for Types<R> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl<R> Eq for Types<R> {}
impl<R> PartialOrd for Types<R> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<R> Ord for Types<R> {
    fn cmp(&self, _: &Self) -> Ordering {
        Ordering::Equal
    }
}

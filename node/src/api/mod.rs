//! Answers clients, on whichever node they ask.
//!
//! ```text
//!   client ──► [serve] ── permissions ──┬─ write ──► the leader: here, or over there     ──► proposer
//!                                       ├─ read  ──► the leader's state after a proof, or ours, labelled
//!                                       ├─ events, logs: streams
//!                                       └─ kill, transfer, members
//!   one that is no voter, or has not applied its log yet, holds no state, or an old one: it passes the call on to a voter
//! ```
//!
//! Decides nothing about supervision; the rules do.

mod confirm;
mod forward;
mod members;
mod operate;
mod permissions;
mod read;
mod relay;
mod serve;
mod streams;
mod write;

use openraft::AsyncRuntime;
use openraft::impls::TokioRuntime;
use pando_protocol::ids::NodeName;

pub use self::permissions::may_open;
use crate::control::Control;
use crate::directory::Directory;
use crate::freshness::Freshness;
use crate::local::LocalChildren;
use crate::peer::OtherNodes;
use crate::transport::Peers;

/// The api of a node, which its streams reach.
pub type NodeApi = Api<TokioRuntime, Peers>;

/// What answering takes. What waits, tries again and forwards runs on any runtime, with any way to other nodes.
pub struct Api<R: AsyncRuntime, N> {
    /// This node.
    pub own: NodeName,
    /// The cluster's name.
    pub cluster: String,
    /// The replicated state; `None` on an agent.
    pub control: Option<Control<R>>,
    /// How fresh that is; `None` on an agent.
    pub freshness: Option<Freshness<R>>,
    /// The ways to other nodes.
    pub peers: N,
    /// The voters.
    pub directory: Directory,
    /// What runs here.
    pub children: LocalChildren,
}

impl<R: AsyncRuntime, N: OtherNodes> Api<R, N> {
    /// Whether this node answers from its own state: it is a voter, and has a membership applied. One that is no voter holds
    /// no state, or one that may be old for good. One that knows no members yet, because its folder is new or its log is not
    /// applied, has an empty state that says nothing of the cluster.
    fn holds_state(&self) -> bool {
        self.control.as_ref().is_some_and(|control| {
            control.votes() && control.published.borrow().membership.membership().voter_ids().next().is_some()
        })
    }

    /// Whether a node belongs to the cluster: a voter or learner, or one that has or had a session and was not removed. An agent
    /// knows the members only.
    pub fn knows(&self, node: &NodeName) -> bool {
        let has_session = |control: &Control<R>| control.published.borrow().cluster.nodes.contains_key(node);
        self.directory.knows(node) || self.control.as_ref().is_some_and(has_session)
    }
}

#[cfg(test)]
mod tests;

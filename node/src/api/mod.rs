//! Answers clients, on whichever node they ask.
//!
//! ```text
//!   client ──► [serve] ── permissions ──┬─ write ──► the leader: here, or over there     ──► proposer
//!                                       ├─ read  ──► the leader's state after a proof, or ours, labelled
//!                                       ├─ events, logs: streams
//!                                       └─ kill, transfer
//!   an agent, and a voter that is not a member yet, hold no state: they pass the call on to a voter
//! ```
//!
//! Decides nothing about supervision; the rules do.

mod confirm;
mod forward;
mod operate;
mod permissions;
mod read;
mod relay;
mod serve;
mod streams;
mod write;

use std::collections::BTreeMap;

use openraft::impls::TokioRuntime;
use pando_protocol::ids::NodeName;

pub use self::permissions::may_open;
use crate::control::Control;
use crate::freshness::Freshness;
use crate::local::LocalChildren;
use crate::transport::Peers;

/// What answering takes.
pub struct Api {
    /// This node.
    pub own: NodeName,
    /// The cluster's name.
    pub cluster: String,
    /// The replicated state; `None` on an agent.
    pub control: Option<Control<TokioRuntime>>,
    /// How fresh that is; `None` on an agent.
    pub freshness: Option<Freshness>,
    /// The ways to other nodes.
    pub peers: Peers,
    /// The configured voters.
    pub voters: BTreeMap<NodeName, String>,
    /// What runs here.
    pub children: LocalChildren,
}

impl Api {
    /// Whether this node has a state from which it may answer. A voter whose folder is new, or that has not applied its log
    /// yet, knows no members: its state is empty, and says nothing of the cluster.
    fn holds_state(&self) -> bool {
        self.control.as_ref().is_some_and(|control| {
            let published = control.published.borrow();
            published.membership.membership().voter_ids().next().is_some()
        })
    }

    /// Whether a node belongs to the cluster: a configured voter, or one with a session. An agent knows the voters only.
    pub fn knows(&self, node: &NodeName, voters: &BTreeMap<NodeName, String>) -> bool {
        let has_session = |control: &Control<TokioRuntime>| control.published.borrow().cluster.nodes.contains_key(node);
        voters.contains_key(node) || self.control.as_ref().is_some_and(has_session)
    }
}

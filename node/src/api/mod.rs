//! Answers clients, on whichever node they ask.
//!
//! ```text
//!   client ──► [serve] ── role ──┬─ write ──► the leader: here, or over there     ──► proposer
//!                                ├─ read  ──► the leader's state after a proof, or ours, labelled
//!                                ├─ events, logs: streams
//!                                └─ kill, transfer
//!   one that is no voter holds no state, or an old one: it passes the call on to a voter
//! ```
//!
//! Decides nothing about supervision; the rules do.

mod forward;
mod members;
mod operate;
mod read;
mod relay;
mod serve;
mod streams;
mod write;

use openraft::impls::TokioRuntime;
use pando_protocol::ids::NodeName;

use crate::control::Control;
use crate::directory::Directory;
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
    /// The ways to other nodes.
    pub peers: Peers,
    /// The voters.
    pub directory: Directory,
    /// What runs here.
    pub children: LocalChildren,
}

impl Api {
    /// Whether a node belongs to the cluster: a voter or learner, or one with a session. An agent knows the members only.
    pub fn knows(&self, node: &NodeName) -> bool {
        let has_session = |control: &Control<TokioRuntime>| control.published.borrow().cluster.nodes.contains_key(node);
        self.directory.knows(node) || self.control.as_ref().is_some_and(has_session)
    }

    /// Whether this node answers from its own state.
    fn votes(&self) -> bool {
        self.control.as_ref().is_some_and(Control::votes)
    }
}

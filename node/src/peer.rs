//! What nodes ask each other besides Raft: to do as leader, or to do something with what runs on them.

use std::io;
use std::time::Duration;

use pando_protocol::ids::{Incarnation, NodeName, Path};
use pando_protocol::message::{Answer, Call, Channel, LogLine};
use pando_protocol::spec::Signal;
use serde::{Deserialize, Serialize};

use crate::transport::{Lane, Peers};

/// One request between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerCall {
    /// Answer a client's call as the leader; [`PeerAnswer::NotLeader`] otherwise, never forwarded again.
    Lead(Call),
    /// Send a signal to what runs on you.
    Signal {
        /// The child.
        path: Path,
        /// The signal.
        signal: Signal,
    },
    /// Stream what a child wrote on you: [`PeerItem`]s.
    Logs {
        /// The child.
        path: Path,
        /// The last so many lines.
        tail: u32,
        /// Whether to go on with new ones.
        follow: bool,
    },
}

/// The answer to a [`PeerCall`] with one answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerAnswer {
    /// The leader's answer.
    Led(Answer),
    /// The node does not lead.
    NotLeader,
    /// The signal was sent.
    Signalled {
        /// The run.
        incarnation: Incarnation,
        /// Its main process.
        pid: u32,
    },
    /// It was not; why.
    NotSignalled(String),
    /// The node lost leadership, or gave up, on the way: the call may or may not have been acted on.
    Lost,
}

/// One item of a stream between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerItem {
    /// A line.
    Line(LogLine),
    /// The stream cannot go on; why.
    Failed(String),
}

/// The way to other nodes for a [`PeerCall`] with one answer: the network, or one that a test plays on virtual time.
pub trait OtherNodes: Clone + Send + Sync + 'static {
    /// Asks the node `name` at `address` (`host:port`).
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionRefused`] where nothing was sent. After any other error, [`io::ErrorKind::TimedOut`] after
    /// `limit` among them, the call may have been acted on.
    fn ask(
        &self,
        name: &NodeName,
        address: &str,
        call: &PeerCall,
        limit: Duration,
    ) -> impl Future<Output = io::Result<PeerAnswer>> + Send;
}

impl OtherNodes for Peers {
    async fn ask(&self, name: &NodeName, address: &str, call: &PeerCall, limit: Duration) -> io::Result<PeerAnswer> {
        self.call(Lane::Call, Channel::Peer, name, address, call, limit).await
    }
}

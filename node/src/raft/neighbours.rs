//! Questions between nodes that are for nobody's Raft id: who are you, and the word that a cluster exists.

use std::io;
use std::time::Duration;

use pando_protocol::ids::NodeName;
use pando_protocol::message::Channel;

use super::wire::{Answer, Envelope, Introduction, Request};
use crate::transport::peers::{Lane, Peers};

/// Time for one question.
const LIMIT: Duration = Duration::from_secs(1);

/// The way to other nodes for such questions: the network, or one that a test plays on virtual time.
pub trait Neighbours: Clone + Send + Sync + 'static {
    /// Asks the node `name` at `address` (`host:port`), within a second.
    ///
    /// # Errors
    /// What kept it from answering.
    fn question(
        &self,
        name: &NodeName,
        address: &str,
        request: Request,
    ) -> impl Future<Output = io::Result<Answer>> + Send;
}

impl Neighbours for Peers {
    async fn question(&self, name: &NodeName, address: &str, request: Request) -> io::Result<Answer> {
        let envelope = Envelope { to: None, request };
        let answer: Result<Answer, String> =
            self.call(Lane::Call, Channel::RaftCall, name, address, &envelope, LIMIT).await?;
        answer.map_err(io::Error::other)
    }
}

/// Asks a node who it is.
///
/// # Errors
/// What kept it from answering.
pub(super) async fn introduce(
    neighbours: &impl Neighbours,
    name: &NodeName,
    address: &str,
) -> io::Result<Introduction> {
    match neighbours.question(name, address, Request::WhoAreYou).await? {
        Answer::IAm(introduction) => Ok(introduction),
        other => Err(io::Error::new(io::ErrorKind::InvalidData, format!("an answer to another question: {other:?}"))),
    }
}

/// Asks a node who it is, for taking it in: one counts as empty whose log is only what an addition left that came to nothing.
///
/// # Errors
/// What kept it from answering.
pub(super) async fn meet(neighbours: &impl Neighbours, name: &NodeName, address: &str) -> io::Result<Introduction> {
    let mut met = introduce(neighbours, name, address).await?;
    if met.initialised {
        let asked = neighbours.question(name, address, Request::HaveYouTakenPart).await;
        // A program that does not know the question leaves it open, and its log counts.
        met.initialised = !matches!(asked, Ok(Answer::TakenPart(false)));
    }
    Ok(met)
}

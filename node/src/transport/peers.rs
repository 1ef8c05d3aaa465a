//! Connections to other nodes: one for each (lane, node), dialled once for everybody who waits for it.
//!
//! ```text
//!   absent ──asked──► dialling (a task of its own) ──► up ──closed──► absent
//!                          └──failed──► resting (50 to 200 ms) ──asked──► dialling
//! ```
//!
//! A caller that gives up does not cancel the dial: heartbeats give up after 50 ms, and a handshake that was begun anew each
//! time would never end.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pando_protocol::client::frames::{self, FrameReader, FrameWriter};
use pando_protocol::client::identity::Identity;
use pando_protocol::client::quic::{self, CloseCode, Tuning};
use pando_protocol::ids::NodeName;
use pando_protocol::message::Channel;
use quinn::{Connection, Endpoint};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{debug, warn};

use super::Credentials;

/// What a connection is for. Lanes do not share a connection, because one whose receiver is slow holds up all its streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Raft's appends, votes and snapshots.
    Raft,
    /// Raft's heartbeats, which must not wait behind a large append.
    Heartbeat,
    /// A runner's session.
    Session,
    /// Single requests between nodes.
    Call,
}

/// The connections of a node to its peers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Peers(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    endpoint: Endpoint,
    credentials: Credentials,
    tuning: Tuning,
    slots: Mutex<HashMap<(Lane, NodeName), Slot>>,
}

#[derive(Debug)]
struct Slot {
    address: String,
    /// Dials that failed since one worked.
    failures: u32,
    /// The reason of the last refusal that was logged: a peer that refuses is dialled again and again, and told of once.
    refused: Option<String>,
    state: State,
}

#[derive(Debug)]
enum State {
    Dialling(watch::Receiver<Option<Dialled>>),
    Up(Connection),
    Resting { until: Instant, why: String },
}

type Dialled = Result<Connection, String>;

/// What a caller has to do next.
enum Step {
    Take(Connection),
    Wait(watch::Receiver<Option<Dialled>>),
    Rest { until: Instant, why: String },
}

impl Peers {
    /// A pool that dials from `endpoint` with the times of `tuning`.
    pub fn new(endpoint: Endpoint, credentials: Credentials, tuning: &Tuning) -> Self {
        Self(Arc::new(Pool { endpoint, credentials, tuning: tuning.clone(), slots: Mutex::default() }))
    }

    /// Who dials.
    pub fn identity(&self) -> Identity {
        self.0.credentials.now()
    }

    /// The connection to the node `name`, which is dialled at `address` (`host:port`, resolved at each dial) if there is none.
    /// Its certificate is verified to be that node's.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] after `limit`; [`io::ErrorKind::ConnectionRefused`] where dialling failed, or failed just
    /// now and the pause after it outlasts `limit`.
    pub async fn connection(
        &self,
        lane: Lane,
        name: &NodeName,
        address: &str,
        limit: Duration,
    ) -> io::Result<Connection> {
        let end = Instant::now() + limit;
        loop {
            match self.step(lane, name, address) {
                Step::Take(connection) => return Ok(connection),
                Step::Rest { until, why } if until >= end => return Err(refused(name, address, &why)),
                Step::Rest { until, .. } => sleep_until(until).await,
                Step::Wait(mut dialled) => {
                    let done = timeout_at(end, dialled.wait_for(Option::is_some)).await;
                    let done = done.map_err(|_| late(name, address, limit))?;
                    // The sender goes without a word only when the runtime is going down.
                    let result = done.map(|done| done.clone()).unwrap_or_default();
                    let result = result.unwrap_or_else(|| Err("this node is stopping".to_owned()));
                    return result.map_err(|why| refused(name, address, &why));
                }
            }
        }
    }

    /// Opens a stream for `channel` to a node.
    ///
    /// # Errors
    /// As [`Self::connection`]; also [`io::ErrorKind::ConnectionReset`] where the connection is lost meanwhile.
    pub async fn open(
        &self,
        lane: Lane,
        channel: Channel,
        name: &NodeName,
        address: &str,
        limit: Duration,
    ) -> io::Result<(FrameWriter, FrameReader)> {
        let end = Instant::now() + limit;
        let connection = self.connection(lane, name, address, limit).await?;
        let opened = timeout_at(end, frames::open(&connection, channel)).await;
        Ok(opened.map_err(|_| late(name, address, limit))??)
    }

    /// One request and its one answer, on a stream of their own.
    ///
    /// # Errors
    /// As [`Self::open`]; also [`io::ErrorKind::InvalidData`] where the answer cannot be read. After
    /// [`io::ErrorKind::TimedOut`] and [`io::ErrorKind::ConnectionReset`] the request may have been acted on.
    pub async fn call<Q: Serialize, A: DeserializeOwned>(
        &self,
        lane: Lane,
        channel: Channel,
        name: &NodeName,
        address: &str,
        question: &Q,
        limit: Duration,
    ) -> io::Result<A> {
        let end = Instant::now() + limit;
        let (mut writer, mut reader) = self.open(lane, channel, name, address, limit).await?;
        let asked = timeout_at(end, async {
            writer.send(question).await?;
            writer.finish();
            reader.expect::<A>().await
        });
        Ok(asked.await.map_err(|_| late(name, address, limit))??)
    }

    /// Closes every connection; later requests dial anew.
    pub fn close(&self) {
        for (_, slot) in self.slots().drain() {
            if let State::Up(connection) = slot.state {
                quic::close(&connection, CloseCode::Stopping, "this node is stopping");
            }
        }
    }

    /// Takes a step under the lock, so that two callers never begin two dials.
    fn step(&self, lane: Lane, name: &NodeName, address: &str) -> Step {
        let mut slots = self.slots();
        let key = (lane, name.clone());
        let (mut failures, mut refused) = (0, None);
        if let Some(slot) = slots.get_mut(&key).filter(|slot| slot.address == address) {
            slot.rest_where_refused(name);
            (failures, refused) = (slot.failures, slot.refused.clone());
            match &slot.state {
                State::Up(connection) if connection.close_reason().is_none() => return Step::Take(connection.clone()),
                State::Dialling(dialled) => return Step::Wait(dialled.clone()),
                State::Resting { until, why } if Instant::now() < *until => {
                    return Step::Rest { until: *until, why: why.clone() };
                }
                State::Up(_) | State::Resting { .. } => {}
            }
        }
        let (sender, receiver) = watch::channel(None);
        let state = State::Dialling(receiver.clone());
        slots.insert(key, Slot { address: address.to_owned(), failures, refused, state });
        tokio::spawn(self.clone().dial(lane, name.clone(), address.to_owned(), sender));
        Step::Wait(receiver)
    }

    async fn dial(self, lane: Lane, name: NodeName, address: String, sender: watch::Sender<Option<Dialled>>) {
        let pool = &self.0;
        let (identity, mut endpoint) = (pool.credentials.now(), pool.endpoint.clone());
        quic::dial_as(&mut endpoint, &identity, &pool.tuning);
        let dialled = quic::dial(&endpoint, &address, &identity.server_name(&name), pool.tuning.dial).await;
        let dialled = dialled.map_err(|error| error.to_string());
        if let Some(slot) = self.slots().get_mut(&(lane, name.clone())).filter(|slot| slot.address == address) {
            slot.settle(&dialled);
        }
        if let Err(why) = &dialled {
            debug!(?lane, %name, address, why, "a peer was not reached");
        }
        sender.send_replace(Some(dialled));
    }

    // A panic while it is held leaves every slot as it was or as it should be.
    fn slots(&self) -> MutexGuard<'_, HashMap<(Lane, NodeName), Slot>> {
        self.0.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// A peer that closes what it accepted, because this node does not belong there or speaks another version, is not dialled
    /// again at once.
    fn rest_where_refused(&mut self, name: &NodeName) {
        let State::Up(connection) = &self.state else { return };
        let Some(lost) = connection.close_reason().filter(quic::is_refusal) else { return };
        let why = quic::describe(&lost);
        if self.refused.as_ref() != Some(&why) {
            warn!(%name, address = self.address, why, "a peer refuses this node");
            self.refused = Some(why.clone());
        }
        self.state = State::Resting { until: Instant::now() + LONGEST_REST, why };
    }

    fn settle(&mut self, dialled: &Dialled) {
        match dialled {
            Ok(connection) => {
                self.failures = 0;
                self.state = State::Up(connection.clone());
            }
            Err(why) => {
                let until = Instant::now() + rest(self.failures);
                self.failures = self.failures.saturating_add(1);
                self.state = State::Resting { until, why: why.clone() };
            }
        }
    }
}

/// The pause after a dial failed that followed `failures` others.
fn rest(failures: u32) -> Duration {
    SHORTEST_REST.saturating_mul(1 << failures.min(10)).min(LONGEST_REST)
}

fn refused(name: &NodeName, address: &str, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionRefused, format!("node {name} at {address}: {why}"))
}

fn late(name: &NodeName, address: &str, limit: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("node {name} at {address}: no answer within {limit:?}"))
}

/// So soon a peer that was just started is tried again.
const SHORTEST_REST: Duration = Duration::from_millis(50);
/// A peer that comes back is found within this and a round trip; a dead one costs at most five dials a second.
const LONGEST_REST: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::fixture::{Cluster, LIMIT};

    fn named(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    #[tokio::test]
    async fn a_question_is_answered_on_a_kept_connection() {
        let cluster = Cluster::new("grove");
        let (near, mut far) = (cluster.node("n1"), cluster.node("n2"));
        let answering = tokio::spawn(async move {
            while let Some(mut stream) = far.streams.recv().await {
                let question: u32 = stream.reader.expect().await.unwrap();
                stream.writer.send(&(question + 1)).await.unwrap();
                stream.writer.finish();
            }
        });
        for question in 0..3u32 {
            let answer: u32 =
                near.peers.call(Lane::Call, Channel::Peer, &named("n2"), &far.address, &question, LIMIT).await.unwrap();
            assert_eq!(answer, question + 1);
        }
        let kept = near.peers.connection(Lane::Call, &named("n2"), &far.address, LIMIT).await.unwrap();
        let again = near.peers.connection(Lane::Call, &named("n2"), &far.address, LIMIT).await.unwrap();
        assert_eq!(kept.stable_id(), again.stable_id());
        let other = near.peers.connection(Lane::Heartbeat, &named("n2"), &far.address, LIMIT).await.unwrap();
        assert_ne!(kept.stable_id(), other.stable_id());
        answering.abort();
    }

    #[tokio::test]
    async fn a_node_that_answers_for_another_is_refused() {
        let cluster = Cluster::new("grove");
        let (near, far) = (cluster.node("n1"), cluster.node("n2"));
        let error = near.peers.connection(Lane::Raft, &named("n3"), &far.address, LIMIT).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert!(error.to_string().contains("not valid"), "{error}");
    }

    #[tokio::test]
    async fn a_dial_goes_on_after_its_caller_gave_up() {
        let cluster = Cluster::new("grove");
        let (near, far) = (cluster.node("n1"), cluster.node("n2"));
        let hasty = near.peers.connection(Lane::Heartbeat, &named("n2"), &far.address, Duration::ZERO).await;
        assert_eq!(hasty.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(matches!(near.peers.step(Lane::Heartbeat, &named("n2"), &far.address), Step::Wait(_) | Step::Take(_)));
        near.peers.connection(Lane::Heartbeat, &named("n2"), &far.address, LIMIT).await.unwrap();
    }

    #[tokio::test]
    async fn a_node_that_was_restarted_is_dialled_anew() {
        let cluster = Cluster::new("grove");
        let (near, far) = (cluster.node("n1"), cluster.node("n2"));
        let first = near.peers.connection(Lane::Raft, &named("n2"), &far.address, LIMIT).await.unwrap();
        let address = far.address.clone();
        far.stop.cancel();
        far.serving.await.unwrap();
        tokio::time::timeout(LIMIT, first.closed()).await.unwrap();
        drop((far.peers, far.streams));
        free(&address).await;
        let _again = cluster.node_at("n2", &address);
        let second = near.peers.connection(Lane::Raft, &named("n2"), &address, LIMIT).await.unwrap();
        assert_ne!(first.stable_id(), second.stable_id());
    }

    #[tokio::test]
    async fn a_node_that_died_without_a_word_resets_its_connections_once_it_is_back() {
        let cluster = Arc::new(Cluster::new("grove"));
        let near = cluster.node("n1");
        let life = tokio::runtime::Runtime::new().unwrap();
        let far = life.spawn({
            let cluster = cluster.clone();
            async move { cluster.node("n2") }
        });
        let far = far.await.unwrap();
        let address = far.address.clone();
        let first = near.peers.connection(Lane::Heartbeat, &named("n2"), &address, LIMIT).await.unwrap();
        life.shutdown_background(); // Like kill -9: nobody closes anything.
        drop(far);
        free(&address).await;
        let _again = cluster.node_at("n2", &address);
        let _ = frames::open(&first, Channel::Peer).await;
        let end = tokio::time::timeout(LIMIT, first.closed()).await.unwrap();
        assert_eq!(end, quinn::ConnectionError::Reset);
        near.peers.connection(Lane::Heartbeat, &named("n2"), &address, LIMIT).await.unwrap();
    }

    /// The port is free as soon as the last handle of the old endpoint has gone, in a task of quinn's.
    async fn free(address: &str) {
        let until = Instant::now() + LIMIT;
        while std::net::UdpSocket::bind(address).is_err() {
            assert!(Instant::now() < until, "the port of {address} is still taken");
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn pauses_grow_to_their_bound() {
        let rests: Vec<u128> = [0, 1, 2, 3, u32::MAX].map(rest).iter().map(Duration::as_millis).collect();
        assert_eq!(rests, [50, 100, 200, 200, 200]);
    }
}

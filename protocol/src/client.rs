//! A client of a cluster over QUIC with mutual TLS, and the identities and frames that nodes use too.
//!
//! ```text
//!   Client ── dials the endpoints in turn, keeps the one that answers ──► node.<cluster>.pando
//!     call     one request, one answer
//!     change   the same write again and again, until one answer is certain: applied once
//!     stream   one request, many items
//! ```
//!
//! It does not look for the leader: any node passes a request on.

pub mod certs;
mod error;
pub mod frames;
pub mod identity;
mod items;
mod numbering;
mod producer;
pub mod quic;
pub mod tls;

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use quinn::{Connection, Endpoint};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

pub use self::error::ClientError;
use self::frames::{FrameError, FrameReader};
use self::identity::{Identity, any_node};
pub use self::items::Items;
use self::numbering::Numbering;
pub use self::producer::{Pending, Producer, Receipt};
use self::quic::{CloseCode, DialError, Tuning};
use crate::ids::ClientId;
use crate::message::{Answer, Call, Change, Channel, Reply, better};
use crate::rejection::Rejection;

/// A client of one cluster. Share it by reference or in an `Arc`; requests may overlap.
#[derive(Debug)]
pub struct Client {
    identity: Identity,
    endpoints: Vec<String>,
    dial_limit: Duration,
    socket: OnceLock<Endpoint>,
    kept: Mutex<Kept>,
    numbering: Numbering,
}

/// The connection in use, and where to look next.
#[derive(Debug, Default)]
struct Kept {
    first: usize,
    connection: Option<(usize, Connection)>,
}

/// How one attempt failed.
enum Failure {
    /// Nothing was sent.
    Unreachable(Vec<(String, String)>),
    /// It was sent, and the reply is lost; unless the node refused the connection, it may have been done.
    Lost { endpoint: String, why: String, may_be_done: bool },
    /// It was sent, and no reply came in time.
    Late { endpoint: String },
    /// The reply cannot be read.
    Protocol { endpoint: String, why: String },
}

impl Client {
    /// A client that will dial these `host:port` endpoints, each resolved anew at each dial. Nothing is sent yet.
    ///
    /// # Errors
    /// [`ClientError::Unusable`] where there is no endpoint, or one without a port.
    pub fn new(identity: Identity, endpoints: Vec<String>) -> Result<Self, ClientError> {
        if endpoints.is_empty() {
            let text =
                "no endpoint is given: name at least one host:port with --endpoint, PANDO_ENDPOINTS or a context file";
            return Err(ClientError::Unusable(text.to_owned()));
        }
        if let Some(bad) = endpoints.iter().find(|endpoint| !has_port(endpoint)) {
            return Err(ClientError::Unusable(format!("endpoint {bad:?} is not host:port, such as 127.0.0.1:7070")));
        }
        Ok(Self {
            identity,
            endpoints,
            dial_limit: Tuning::client().dial,
            socket: OnceLock::new(),
            kept: Mutex::default(),
            numbering: Numbering::new(ClientId(random()?)),
        })
    }

    /// Another time than 3 s for finding a node that answers, over all endpoints.
    pub fn with_dial_limit(mut self, limit: Duration) -> Self {
        self.dial_limit = limit;
        self
    }

    /// The endpoint in use; `None` before the first answer and after its connection was lost.
    pub fn endpoint(&self) -> Option<String> {
        let kept = lock(&self.kept);
        kept.connection.as_ref().map(|(index, _)| self.endpoints[*index].clone())
    }

    /// The endpoint that is asked now or will be asked next: the one in use, or where none is, the one with which dialling begins.
    pub fn next_endpoint(&self) -> &str {
        let kept = lock(&self.kept);
        &self.endpoints[kept.connection.as_ref().map_or(kept.first, |(index, _)| *index)]
    }

    /// Asks once. What was not sent, and what may be repeated (reads, writes), is tried at other endpoints until `limit`. Where
    /// a node finds no leader, the other endpoints are asked once each before its answer is taken, at most 5 s long.
    ///
    /// # Errors
    /// [`ClientError`]; [`Rejection::Unknown`] where the reply to a request that must not be repeated was lost.
    pub async fn call(&self, call: Call, limit: Duration) -> Result<Reply, ClientError> {
        let until = Instant::now() + limit;
        let may_repeat = matches!(call, Call::Read { .. } | Call::Write(_) | Call::Members(_));
        let begun = Instant::now();
        let mut tried = Vec::new();
        let (mut asked, mut best) = (BTreeSet::new(), None);
        while tried.len() <= self.endpoints.len() {
            let failure = match self.attempt(&call, until, &asked).await {
                Ok((index, answer)) if call.may_be_answered_better(&answer) => {
                    asked.insert(index);
                    best = Some(match best {
                        Some(before) => better(before, answer),
                        None => answer,
                    });
                    if asked.len() == self.endpoints.len() || begun.elapsed() >= SECOND_OPINIONS {
                        break;
                    }
                    self.look_elsewhere();
                    continue;
                }
                Ok((_, answer)) => return Ok(answer?),
                Err(failure) => failure,
            };
            match failure {
                // Nobody else answers better than who did.
                Failure::Unreachable(_) | Failure::Late { .. } if best.is_some() => break,
                Failure::Unreachable(now) => {
                    tried.extend(now);
                    break;
                }
                Failure::Protocol { endpoint, why } => return Err(ClientError::Protocol { endpoint, why }),
                Failure::Late { endpoint } => return Err(ClientError::TimedOut { endpoint, limit }),
                Failure::Lost { may_be_done, .. } if may_be_done && !may_repeat => {
                    return Err(Rejection::Unknown.into());
                }
                Failure::Lost { endpoint, why, .. } => tried.push((endpoint, why)),
            }
        }
        match best {
            Some(answer) => Ok(answer?),
            None => Err(ClientError::Unreachable { tried }),
        }
    }

    /// Changes something, once: the same write is sent again, to other endpoints too, whenever its reply is lost or no leader
    /// is found, until `limit`. Others that overlap the first one of a client wait until that is answered.
    ///
    /// # Errors
    /// [`ClientError`]; [`Rejection::Unknown`] where the time is over and it may have been applied.
    pub async fn change(&self, change: Change, limit: Duration) -> Result<Reply, ClientError> {
        let begun = Instant::now();
        let until = begun + limit;
        let Ok(mut numbered) = timeout_at(until, self.numbering.next(random)).await else {
            let why = "the first change of this client has had no answer yet".to_owned();
            return Err(Rejection::NoLeader { waited: begun.elapsed(), why }.into());
        };
        let call = Call::Write(numbered.write(change));
        let mut may_be_applied = false;
        loop {
            let asked = Instant::now();
            let each = until.min(asked + ATTEMPT);
            let failure = match self.attempt(&call, each, &BTreeSet::new()).await.map(|(_, answer)| answer) {
                Ok(Err(Rejection::Unknown)) => {
                    may_be_applied = true;
                    Rejection::Unknown.into()
                }
                Ok(Err(Rejection::NoLeader { waited: _, why })) => {
                    let no_leader = Rejection::NoLeader { waited: begun.elapsed(), why };
                    // The next node would not have time for its search, and its silence would say less.
                    if !may_be_applied && Instant::now() + asked.elapsed() * 2 > until {
                        return Err(no_leader.into());
                    }
                    no_leader.into()
                }
                Ok(answer) => {
                    let reply = answer?;
                    numbered.is_known();
                    return Ok(reply);
                }
                Err(Failure::Protocol { endpoint, why }) => return Err(ClientError::Protocol { endpoint, why }),
                Err(Failure::Unreachable(tried)) => ClientError::Unreachable { tried },
                Err(Failure::Lost { endpoint, why, may_be_done }) => {
                    may_be_applied |= may_be_done;
                    ClientError::Unreachable { tried: vec![(endpoint, why)] }
                }
                Err(Failure::Late { endpoint }) => {
                    may_be_applied = true;
                    ClientError::TimedOut { endpoint, limit }
                }
            };
            if Instant::now() + PAUSE >= until {
                return Err(if may_be_applied { Rejection::Unknown.into() } else { failure });
            }
            self.look_elsewhere();
            sleep(PAUSE).await;
        }
    }

    /// Asks for many items.
    ///
    /// # Errors
    /// [`ClientError`]; refusals come from [`Items::next`].
    pub async fn stream(&self, call: Call) -> Result<Items, ClientError> {
        let until = Instant::now() + self.dial_limit;
        let mut tried = Vec::new();
        for _ in 0..=self.endpoints.len() {
            let (index, connection) = match self.connection(until, &BTreeSet::new()).await {
                Ok(found) => found,
                Err(Failure::Unreachable(all)) => return Err(ClientError::Unreachable { tried: all }),
                Err(_) => break,
            };
            let endpoint = self.endpoints[index].clone();
            match timeout_at(until, send(&connection, &call)).await {
                Ok(Ok(reader)) => return Ok(Items { reader, endpoint, over: false, _connection: connection }),
                Ok(Err(FrameError::Codec(error))) => {
                    return Err(ClientError::Protocol { endpoint, why: error.to_string() });
                }
                Ok(Err(lost)) => tried.push((endpoint, lost.to_string())),
                Err(_) => tried.push((endpoint, DialError::Silent(self.dial_limit).to_string())),
            }
            self.look_elsewhere();
        }
        Err(ClientError::Unreachable { tried })
    }

    /// Says goodbye and waits, at most half a second, until that is sent. To be called before the process ends.
    pub async fn close(&self) {
        lock(&self.kept).connection = None;
        if let Some(endpoint) = self.socket.get() {
            endpoint.close((CloseCode::Done as u32).into(), b"done");
            // Nothing of worth is lost when it takes longer: every reply was read before.
            let _ = timeout(GOODBYE, endpoint.wait_idle()).await;
        }
    }

    /// Asks an endpoint that is not among those that were `asked`, and says which one.
    async fn attempt(&self, call: &Call, until: Instant, asked: &BTreeSet<usize>) -> Result<(usize, Answer), Failure> {
        let (index, connection) = self.connection(until, asked).await?;
        let endpoint = self.endpoints[index].clone();
        let answered = timeout_at(until, async {
            let mut reader = send(&connection, call).await?;
            reader.expect::<Answer>().await
        });
        let failure = match answered.await {
            Ok(Ok(answer)) => return Ok((index, answer)),
            Ok(Err(FrameError::Codec(error))) => Failure::Protocol { endpoint, why: error.to_string() },
            Ok(Err(lost)) => {
                let may_be_done = !connection.close_reason().is_some_and(|reason| quic::is_refusal(&reason));
                Failure::Lost { endpoint, why: lost.to_string(), may_be_done }
            }
            Err(_) => Failure::Late { endpoint },
        };
        self.look_elsewhere();
        Err(failure)
    }

    /// Lets the next attempt begin with the endpoint after the one in use.
    fn look_elsewhere(&self) {
        let mut kept = lock(&self.kept);
        if let Some((index, _)) = kept.connection.take() {
            kept.first = (index + 1) % self.endpoints.len();
        }
    }

    async fn connection(&self, until: Instant, asked: &BTreeSet<usize>) -> Result<(usize, Connection), Failure> {
        let first = {
            let kept = lock(&self.kept);
            if let Some((index, connection)) = &kept.connection
                && connection.close_reason().is_none()
                && !asked.contains(index)
            {
                return Ok((*index, connection.clone()));
            }
            kept.first
        };
        // Whoever has an answer already waits less for another.
        let limit = if asked.is_empty() { self.dial_limit } else { self.dial_limit.min(SECOND_DIAL) };
        let (index, connection) = self.race(first, until.min(Instant::now() + limit), asked).await?;
        lock(&self.kept).connection = Some((index, connection.clone()));
        Ok((index, connection))
    }

    /// Dials the endpoints in turn but for those that were `asked`, the next one without waiting for the end of a silent one, and
    /// takes the first that answers.
    async fn race(
        &self,
        first: usize,
        until: Instant,
        asked: &BTreeSet<usize>,
    ) -> Result<(usize, Connection), Failure> {
        let all = self.endpoints.len();
        let begun = Instant::now();
        let name = any_node(self.identity.cluster());
        let socket = self.socket().map_err(|why| Failure::Unreachable(vec![("this machine".to_owned(), why)]))?;
        let mut race = JoinSet::new();
        let order = (0..all).map(|turn| (first + turn) % all).filter(|index| !asked.contains(index));
        for (turn, index) in order.enumerate() {
            let (socket, endpoint, name) = (socket.clone(), self.endpoints[index].clone(), name.clone());
            let start = begun + STAGGER.saturating_mul(u32::try_from(turn).unwrap_or(u32::MAX));
            race.spawn(async move {
                sleep_until(start.min(until)).await;
                let limit = until.saturating_duration_since(Instant::now());
                (index, quic::dial(&socket, &endpoint, &name, limit).await)
            });
        }
        let mut tried = Vec::new();
        while let Some(dialled) = race.join_next().await {
            match dialled {
                Ok((index, Ok(connection))) => return Ok((index, connection)),
                Ok((index, Err(why))) => tried.push((self.endpoints[index].clone(), why.to_string())),
                // Dials are neither aborted before the race is over nor do they panic.
                Err(_) => {}
            }
        }
        Err(Failure::Unreachable(tried))
    }

    fn socket(&self) -> Result<Endpoint, String> {
        if let Some(endpoint) = self.socket.get() {
            return Ok(endpoint.clone());
        }
        let bound = quic::bind_dialler(&self.identity, &Tuning::client())
            .map_err(|error| format!("no UDP socket can be opened: {error}"))?;
        Ok(self.socket.get_or_init(|| bound.endpoint).clone())
    }
}

async fn send(connection: &Connection, call: &Call) -> Result<FrameReader, FrameError> {
    let (mut writer, reader) = frames::open(connection, Channel::Client).await?;
    writer.send(call).await?;
    writer.finish();
    Ok(reader)
}

fn has_port(endpoint: &str) -> bool {
    endpoint.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

fn random() -> Result<u128, ClientError> {
    let mut bytes = [0; 16];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut bytes)
        .map_err(|_| ClientError::Unusable("the system gives no random numbers".to_owned()))?;
    Ok(u128::from_le_bytes(bytes))
}

// A panic while one of these is held leaves nothing half done: each is a few assignments.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// After so long without an answer from one endpoint the next one is dialled beside it: far more than a round trip on a LAN.
const STAGGER: Duration = Duration::from_millis(150);
/// A node that found no leader has others asked after it for so long.
const SECOND_OPINIONS: Duration = Duration::from_secs(5);
/// An endpoint has this long to answer a dial where another one has given an answer, though a poor one.
const SECOND_DIAL: Duration = Duration::from_secs(1);
/// Most time for one attempt of a change: it may be repeated, so a node that hangs must not eat the whole limit.
const ATTEMPT: Duration = Duration::from_secs(5);
/// Between two attempts of a change: a leader is elected within some hundred milliseconds.
const PAUSE: Duration = Duration::from_millis(50);
/// Most time for a goodbye.
const GOODBYE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;

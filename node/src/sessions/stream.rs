//! One runner's stream: its words go to the proposer and the keeper, the leader's words come back.

use std::collections::VecDeque;

use openraft::AsyncRuntime;
use pando_protocol::ids::{NodeName, SessionId};
use pando_protocol::rejection::Rejection;
use pando_protocol::session::{LeaderWord, RunnerWord};
use pando_supervision::desired::desired;
use pando_supervision::{Command, Done, Outcome};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::keeper::{KeeperHandle, key};
use crate::control::{Control, NotProposed};
use crate::transport::IncomingStream;

/// Observations of one runner that may be on their way into the log.
const UNDER_WAY: usize = 1_024;
/// Answers that may wait for the stream.
const ANSWERS_WAITING: usize = 64;

type Reply = oneshot::Receiver<Result<Outcome, NotProposed>>;

/// Serves one runner until its stream ends or `stop`.
pub async fn serve<R: AsyncRuntime>(
    stream: IncomingStream,
    control: Control<R>,
    keeper: KeeperHandle<R>,
    stop: CancellationToken,
) {
    let Some(node) = stream.peer.node().cloned() else {
        tracing::warn!(peer = %stream.peer, "only nodes have sessions");
        return;
    };
    let (answers, answered) = mpsc::channel(ANSWERS_WAITING);
    let runner = Runner { node, control, keeper, answers, session: None, told: None, under_way: VecDeque::new() };
    runner.run(stream, answered, stop).await;
}

struct Runner<R: AsyncRuntime> {
    node: NodeName,
    control: Control<R>,
    keeper: KeeperHandle<R>,
    answers: mpsc::Sender<LeaderWord>,
    /// The session that this stream is for, once it is known.
    session: Option<SessionId>,
    /// The leadership and revision of what the runner was last told to run.
    told: Option<(u64, u64)>,
    /// Proposals in the order of their words, so that their outcomes are read in order.
    under_way: VecDeque<(Asked, Reply)>,
}

enum Asked {
    Session { nonce: u64 },
    Observation { session: SessionId },
}

impl<R: AsyncRuntime> Runner<R> {
    async fn run(mut self, stream: IncomingStream, mut answered: mpsc::Receiver<LeaderWord>, stop: CancellationToken) {
        let IncomingStream { mut reader, mut writer, .. } = stream;
        let mut published = self.control.published.clone();
        let mut leadership = self.control.leadership.clone();
        loop {
            let word = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(word) = answered.recv() => Some(word),
                outcome = next_outcome(&mut self.under_way) => self.outcome(outcome).await,
                changed = leadership.changed() => if changed.is_ok() { self.tell() } else { return },
                changed = published.changed() => if changed.is_ok() { self.tell() } else { return },
                word = reader.next::<RunnerWord>(), if self.under_way.len() < UNDER_WAY => match word {
                    Ok(Some(word)) => { self.word(word).await; self.tell() }
                    Ok(None) => return,
                    Err(error) => {
                        tracing::debug!(node = %self.node, %error, "a runner's stream ended");
                        return;
                    }
                },
            };
            if let Some(word) = word
                && let Err(error) = writer.send(&word).await
            {
                tracing::debug!(node = %self.node, %error, "a runner's stream cannot be written");
                return;
            }
        }
    }

    /// Takes a runner's word. While another node leads every word is dropped: the runner says it to all voters, and again.
    async fn word(&mut self, word: RunnerWord) {
        let leads = self.control.leads();
        match word {
            RunnerWord::Ask(request) if request.node != self.node => {
                let why = format!("the certificate is for {}, the request for {}", self.node, request.node);
                _ = self.answers.try_send(LeaderWord::Refused { nonce: request.nonce, why });
            }
            RunnerWord::Ask(request) if leads => {
                let nonce = request.nonce;
                let reply = self.control.submit(Command::GrantSession(request)).await;
                self.under_way.push_back((Asked::Session { nonce }, reply));
            }
            RunnerWord::Beat { session, number, answered: _, answered_age } => {
                // Known also where another node leads, so that the first state of a new leadership is told at once.
                self.session = Some(session);
                if leads {
                    self.keeper.beat(key(&self.node, session), number, answered_age, self.answers.clone());
                }
            }
            RunnerWord::Observe { session, number, observation } if leads => {
                self.session = Some(session);
                let node = self.node.clone();
                let reply = self.control.submit(Command::Observe { node, session, number, observation }).await;
                self.under_way.push_back((Asked::Observation { session }, reply));
            }
            RunnerWord::Ask(_) | RunnerWord::Observe { .. } => {}
        }
    }

    /// What the runner is told about the outcome of its word; nothing where that is not known.
    async fn outcome(&mut self, (asked, outcome): (Asked, Result<Outcome, NotProposed>)) -> Option<LeaderWord> {
        match (asked, outcome.ok()?) {
            (Asked::Session { nonce }, Ok(Done::Granted(session))) => {
                self.keeper.granted(key(&self.node, session)).await;
                self.session = Some(session);
                self.told = None;
                Some(LeaderWord::Granted { nonce, session })
            }
            (Asked::Session { nonce }, Err(why)) => Some(LeaderWord::Refused { nonce, why: why.to_string() }),
            (Asked::Observation { session }, Ok(Done::Observed(through))) => {
                Some(LeaderWord::Applied { session, through })
            }
            (Asked::Observation { session }, Err(Rejection::SessionOver(_))) => Some(LeaderWord::Over { session }),
            // An observation that our own rules choke on would block all that follow: the runner is told that it is done.
            (Asked::Observation { .. }, Err(Rejection::OutOfOrder { .. })) => None,
            (Asked::Observation { .. }, Err(why)) => {
                tracing::error!(node = %self.node, %why, "an observation was refused");
                None
            }
            (Asked::Session { .. } | Asked::Observation { .. }, Ok(_)) => None,
        }
    }

    /// What should run there, where that changed since it was last told under this leadership.
    fn tell(&mut self) -> Option<LeaderWord> {
        let session = self.session?;
        let leadership = self.control.leadership.borrow();
        if !leadership.leads {
            return None;
        }
        let published = self.control.published.borrow();
        let revision = published.cluster.session(&self.node, session)?.revision;
        if self.told == Some((leadership.round, revision)) {
            return None;
        }
        let index = published.applied.map_or(0, |applied| applied.index);
        let desired = desired(&published.cluster, &self.node, session, index)?;
        self.told = Some((leadership.round, revision));
        Some(LeaderWord::Desired(desired))
    }
}

/// The outcome of the oldest proposal; never, while there is none.
async fn next_outcome(under_way: &mut VecDeque<(Asked, Reply)>) -> (Asked, Result<Outcome, NotProposed>) {
    let Some((_, reply)) = under_way.front_mut() else { return std::future::pending().await };
    let outcome = reply.await.unwrap_or(Err(NotProposed::Unknown));
    match under_way.pop_front() {
        Some((asked, _)) => (asked, outcome),
        None => std::future::pending().await,
    }
}

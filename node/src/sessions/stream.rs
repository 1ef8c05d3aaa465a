//! One runner's streams: its words go to the proposer and the keeper, the leader's words come back.
//!
//! ```text
//!   stream ══ [read]  ── words ──► [attend] ──► proposer            or [beats::attend] ──► keeper
//!          ══ [write] ◄─ said ──────┘   ◄── what should run         or [hands::attend] ◄── messages, by the state
//! ```
//!
//! Each stream is served for itself, and reading, attending and writing do not wait for one another, but where a queue is full.
//! [`serve`] is all of it over a stream of the transport; a simulator connects [`attend`] to a runner by channels.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use openraft::AsyncRuntime;
use pando_protocol::client::frames::{FrameReader, FrameWriter};
use pando_protocol::ids::{Incarnation, NodeName, SessionId};
use pando_protocol::mail::Settlement;
use pando_protocol::message::Channel;
use pando_protocol::rejection::Rejection;
use pando_protocol::session::{LeaderWord, Observation, RunnerWord, SessionRequest};
use pando_supervision::desired::desired;
use pando_supervision::{Command, Done, Outcome};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::keeper::KeeperHandle;
use super::{beats, hands};
use crate::control::{Control, NotProposed, Urgency, members_of};
use crate::transport::IncomingStream;

/// Observations of one runner that may be on their way into the log.
const UNDER_WAY: usize = 1_024;
/// Words that may wait each way between the stream and who attends to it.
const WORDS_WAITING: usize = 64;
/// A runner that takes no word for so long is cut off: it connects again, and is told all that it needs.
const WRITE_LIMIT: Duration = Duration::from_secs(5);

type Reply = oneshot::Receiver<Result<Outcome, NotProposed>>;

/// Serves one stream of a runner until it ends or `stop`.
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
    let IncomingStream { reader, writer, channel, .. } = stream;
    writer.rank(channel);
    let (hear, words) = mpsc::channel(WORDS_WAITING);
    let (say, said) = mpsc::channel(if channel == Channel::Mail { 1 } else { WORDS_WAITING });
    let attending = async {
        let node = node.clone();
        match channel {
            Channel::Lease => beats::attend(node, words, say, control, keeper).await,
            Channel::Mail => hands::attend(node, words, say, control).await,
            _ => attend(node, words, say, control, keeper).await,
        }
    };
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = attending => {}
        error = read(reader, hear) => tracing::debug!(%node, error, "a runner's stream ended"),
        error = write::<R>(writer, said) => tracing::warn!(%node, error, "a runner cannot be told what it needs"),
    }
}

async fn read(mut reader: FrameReader, hear: mpsc::Sender<RunnerWord>) -> String {
    loop {
        match reader.next::<RunnerWord>().await {
            Ok(Some(word)) => _ = hear.send(word).await,
            Ok(None) => return "it was closed".into(),
            Err(error) => return error.to_string(),
        }
    }
}

async fn write<R: AsyncRuntime>(mut writer: FrameWriter, mut said: mpsc::Receiver<LeaderWord>) -> String {
    while let Some(word) = said.recv().await {
        match R::timeout(WRITE_LIMIT, writer.send(&word)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return io::Error::from(error).to_string(),
            Err(_) => return format!("it took nothing for {WRITE_LIMIT:?}"),
        }
    }
    "nobody speaks any more".into()
}

/// Attends to the runner of `node` until one of its channels or the control plane ends.
pub async fn attend<R: AsyncRuntime>(
    node: NodeName,
    words: mpsc::Receiver<RunnerWord>,
    say: mpsc::Sender<LeaderWord>,
    control: Control<R>,
    keeper: KeeperHandle<R>,
) {
    let attendant = Attendant {
        node,
        control,
        keeper,
        say,
        session: None,
        told: None,
        told_members: None,
        asking: None,
        under_way: VecDeque::new(),
        held: None,
        submitted: None,
        series: 0,
    };
    attendant.run(words).await;
}

struct Attendant<R: AsyncRuntime> {
    node: NodeName,
    control: Control<R>,
    keeper: KeeperHandle<R>,
    say: mpsc::Sender<LeaderWord>,
    /// The session that this stream is for, once it is known.
    session: Option<SessionId>,
    /// The session, leadership and revision of what the runner was last told to run.
    told: Option<(SessionId, u64, u64)>,
    /// The leadership in which the members were last told, and the log index of their entry.
    told_members: Option<(u64, u64)>,
    /// A request for a session that waits for the proof that this node leads.
    asking: Option<Asking>,
    /// Proposals in the order of their words, so that their outcomes are read in order.
    under_way: VecDeque<(Asked, Reply)>,
    /// What was said of messages and has no room yet: no word is taken before, since they go in order.
    held: Option<Held>,
    /// The observations that need not be proposed again, where none of them failed.
    submitted: Option<Submitted>,
    /// Counts the series of observations, so that a failure ends the one that it belongs to and no later one.
    series: u64,
}

/// Observations that were submitted one after the other. A runner says what is not confirmed again and again: each time would be
/// one more proposal for a leader that is slow already.
#[derive(Debug, Clone, Copy)]
struct Submitted {
    session: SessionId,
    /// The leadership in which they were.
    round: u64,
    first: u64,
    last: u64,
}

/// The newest request of the runner: those before it are given up.
struct Asking {
    request: SessionRequest,
    /// The leadership in which it came, and is granted.
    round: u64,
    proof: oneshot::Receiver<bool>,
}

struct Held {
    room: Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>,
    asked: Asked,
    command: Command,
}

enum Asked {
    Session {
        nonce: u64,
    },
    Observation {
        session: SessionId,
        number: u64,
        /// The series that it was submitted in.
        series: u64,
        /// What takes its place where the rules choke on it.
        instead: Option<Observation>,
    },
}

impl<R: AsyncRuntime> Attendant<R> {
    async fn run(mut self, mut words: mpsc::Receiver<RunnerWord>) {
        let mut published = self.control.published.clone();
        let mut leadership = self.control.leadership.clone();
        loop {
            let answers: [Option<LeaderWord>; 2] = tokio::select! {
                biased;
                outcome = next_outcome(&mut self.under_way) => self.outcome(outcome).await,
                room = next_room(&mut self.held) => {
                    self.submit_held(room).await;
                    [None, None]
                }
                is_proven = next_proof(&mut self.asking) => {
                    self.grant(is_proven).await;
                    [None, None]
                }
                changed = leadership.changed() => if changed.is_ok() { [self.tell(), None] } else { return },
                // Before the state, whose changes may never end; and what came of the word is told with it.
                word = words.recv(), if self.under_way.len() < UNDER_WAY && self.held.is_none() => match word {
                    Some(word) => [self.word(word).await, self.tell()],
                    None => return,
                },
                changed = published.changed() => if changed.is_ok() { [self.tell(), None] } else { return },
            };
            let members = self.tell_members();
            for answer in members.into_iter().chain(answers.into_iter().flatten()) {
                if self.say.send(answer).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Takes a runner's word. While another node leads every word is dropped: the runner says it to all voters, and again.
    async fn word(&mut self, word: RunnerWord) -> Option<LeaderWord> {
        let led = self.control.led_round();
        match word {
            RunnerWord::Ask(request) if request.node != self.node => {
                let why = format!("the certificate is for {}, the request for {}", self.node, request.node);
                return Some(LeaderWord::Refused { nonce: request.nonce, why });
            }
            RunnerWord::Ask(request) if led.is_some() => self.asked(request).await,
            // Known also where another node leads, so that the first state of a new leadership is told at once.
            RunnerWord::Holds { session, hand: _ } => self.session = Some(session),
            RunnerWord::Observe { session, number, observation } => {
                let round = led?;
                self.session = Some(session);
                if self.is_new(session, round, number) {
                    self.take(session, number, observation).await;
                }
            }
            // Beats go over a stream of their own.
            RunnerWord::Ask(_) | RunnerWord::Beat { .. } => {}
        }
        None
    }

    /// A leader that lost its majority does not know it, and what it proposes is committed when the majority is back: one
    /// session after the other that its runner gave up long ago, with children assigned to each. So a request waits for a
    /// proof, the newest takes the place of the one before, and one grant is under way at a time.
    async fn asked(&mut self, request: SessionRequest) {
        if self.under_way.iter().any(|(asked, _)| matches!(asked, Asked::Session { .. })) {
            return; // The runner asks again with each beat.
        }
        let round = self.control.leadership.borrow().round;
        match &mut self.asking {
            Some(asking) if asking.round == round => asking.request = request,
            _ => {
                let proof = self.control.ask_proof(Urgency::Regular).await;
                self.asking = Some(Asking { request, round, proof });
            }
        }
    }

    async fn grant(&mut self, is_proven: bool) {
        let Some(Asking { request, round, proof: _ }) = self.asking.take().filter(|_| is_proven) else { return };
        let nonce = request.nonce;
        let reply = self.control.submit_in(round, Command::GrantSession(request)).await;
        self.under_way.push_back((Asked::Session { nonce }, reply));
    }

    /// Whether an observation is to be submitted: not where it was, and nothing of its series failed since.
    fn is_new(&mut self, session: SessionId, round: u64, number: u64) -> bool {
        let known = self.submitted.as_mut().filter(|known| (known.session, known.round) == (session, round));
        match known {
            Some(known) if (known.first..=known.last).contains(&number) => return false,
            Some(known) if number == known.last + 1 => known.last = number,
            _ => {
                self.series += 1;
                self.submitted = Some(Submitted { session, round, first: number, last: number });
            }
        }
        true
    }

    /// A proposal of this series failed, and with it all that came after it: they are submitted when they are said again.
    fn failed(&mut self, series: u64) {
        if series == self.series {
            self.submitted = None;
        }
    }

    async fn take(&mut self, session: SessionId, number: u64, observation: Observation) {
        let instead = Some(in_place_of(&observation));
        let weight = |settlements: &Vec<Settlement>| settlements.iter().map(Settlement::weight).sum::<usize>();
        let bytes = if let Observation::Settled(settlements) = &observation { Some(weight(settlements)) } else { None };
        let asked = Asked::Observation { session, number, series: self.series, instead };
        let command = Command::Observe { node: self.node.clone(), session, number, observation };
        match bytes {
            Some(bytes) => {
                let room = Box::pin(self.control.mail.settled_room(bytes as u64));
                self.held = Some(Held { room, asked, command });
            }
            None => self.submit(asked, command, None).await,
        }
    }

    async fn submit_held(&mut self, room: Option<OwnedSemaphorePermit>) {
        if let Some(Held { room: _, asked, command }) = self.held.take() {
            self.submit(asked, command, room).await;
        }
    }

    async fn submit(&mut self, asked: Asked, command: Command, room: Option<OwnedSemaphorePermit>) {
        let reply = self.control.submit(command, room).await;
        self.under_way.push_back((asked, reply));
    }

    /// What the runner is told about the outcome of its word, in order; nothing where that is not known.
    async fn outcome(&mut self, (asked, outcome): (Asked, Result<Outcome, NotProposed>)) -> [Option<LeaderWord>; 2] {
        let outcome = match (&asked, outcome) {
            (_, Ok(outcome)) => outcome,
            (Asked::Observation { series, .. }, Err(_)) => {
                self.failed(*series);
                return [None, None];
            }
            (Asked::Session { .. }, Err(_)) => return [None, None],
        };
        match (asked, outcome) {
            (Asked::Session { nonce }, Ok(Done::Granted(session))) => {
                self.keeper.granted((self.node.clone(), session)).await;
                self.session = Some(session);
                self.told = None;
                [Some(LeaderWord::Granted { nonce, session }), self.tell()]
            }
            (Asked::Session { nonce }, Err(why)) => [Some(LeaderWord::Refused { nonce, why: why.to_string() }), None],
            // What follows from it is told before: a runner that knows it applied also knows what it led to.
            (Asked::Observation { session, .. }, Ok(Done::Observed(through))) => {
                [self.tell(), Some(LeaderWord::Applied { session, through })]
            }
            (Asked::Observation { session, .. }, Err(Rejection::SessionOver(_))) => {
                [Some(LeaderWord::Over { session }), None]
            }
            // It is said again, in order.
            (Asked::Observation { series, .. }, Err(Rejection::OutOfOrder { .. })) => {
                self.failed(series);
                [None, None]
            }
            // One that our own rules choke on would block all that follow: something harmless takes its number.
            (Asked::Observation { session, number, series: _, instead: Some(instead) }, Err(why)) => {
                tracing::error!(node = %self.node, %session, number, %why, ?instead, "an observation is left out");
                let command = Command::Observe { node: self.node.clone(), session, number, observation: instead };
                let asked = Asked::Observation { session, number, series: self.series, instead: None };
                self.submit(asked, command, None).await;
                [None, None]
            }
            (Asked::Observation { session, number, series, instead: None }, Err(why)) => {
                tracing::error!(node = %self.node, %session, number, %why, "an observation was refused");
                self.failed(series);
                [None, None]
            }
            (Asked::Session { .. } | Asked::Observation { .. }, Ok(_)) => [None, None],
        }
    }

    /// What should run there, where that changed since it was last told under this leadership.
    fn tell(&mut self) -> Option<LeaderWord> {
        let session = self.session?;
        // Never this and the state at once: whoever holds one and waits for the other may wait for ever behind a writer.
        let round = self.control.led_round()?;
        let (cluster, index) = {
            let published = self.control.published.borrow();
            let revision = published.cluster.session(&self.node, session)?.revision;
            let now = Some((session, round, revision));
            if std::mem::replace(&mut self.told, now) == now {
                return None;
            }
            (published.cluster.clone(), published.applied.map_or(0, |applied| applied.index))
        };
        desired(&cluster, &self.node, session, index).map(LeaderWord::Desired)
    }

    /// Who takes part in Raft, where that changed since it was last told under this leadership. Told before a session is
    /// granted too: a runner whose configuration is old has to find the voters.
    fn tell_members(&mut self) -> Option<LeaderWord> {
        let round = self.control.led_round()?;
        let stored = self.control.published.borrow().membership.clone();
        let now = Some((round, stored.log_id().as_ref()?.index));
        if std::mem::replace(&mut self.told_members, now) == now {
            return None;
        }
        members_of(&stored).map(LeaderWord::Members)
    }
}

/// What says the least with the same number. An exit becomes the word that the run is gone, which is heeded where it was asked
/// to end; anything else becomes a word about a run that never was.
fn in_place_of(observation: &Observation) -> Observation {
    match observation {
        Observation::Exited { path, incarnation, .. } | Observation::NeverStarted { path, incarnation } => {
            Observation::NeverStarted { path: path.clone(), incarnation: *incarnation }
        }
        Observation::Settled(_) => Observation::Settled(Vec::new()),
        Observation::Started { path, .. }
        | Observation::Ready { path, .. }
        | Observation::WorkerReady { path, .. }
        | Observation::Stopping { path, .. } => {
            Observation::NeverStarted { path: path.clone(), incarnation: Incarnation(0) }
        }
        Observation::Leaving => Observation::Leaving,
        Observation::Left => Observation::Left,
        Observation::Kept { .. } => Observation::Kept { sessions: Vec::new(), runs: Vec::new() },
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

/// Room for what waits for it; never, while nothing does.
async fn next_room(held: &mut Option<Held>) -> Option<OwnedSemaphorePermit> {
    match held {
        Some(held) => (&mut held.room).await,
        None => std::future::pending().await,
    }
}

/// Whether this node leads, for the request that waits for it; never, while none does.
async fn next_proof(asking: &mut Option<Asking>) -> bool {
    match asking {
        Some(asking) => (&mut asking.proof).await.unwrap_or(false),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;

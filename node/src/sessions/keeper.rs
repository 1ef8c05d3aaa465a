//! Keeps the leases of a leadership: answers beats once a proof covers them, and ends sessions that fall silent.

use std::sync::Arc;
use std::time::Duration;

use openraft::{AsyncRuntime, Instant};
use pando_protocol::ids::NodeName;
use pando_protocol::session::{LeaderWord, Obituary, ObituaryReply};
use pando_supervision::cluster::Node;
use pando_supervision::command::EndProof;
use pando_supervision::{Command, Done};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::leases::{Key, Leases};
use crate::control::{Control, Urgency};

/// Words that may wait for the keeper. A beat that finds no room is dropped: the next one comes soon.
const WORDS_WAITING: usize = 4_096;

/// A way to the keeper.
#[derive(Debug)]
pub struct KeeperHandle<R: AsyncRuntime>(mpsc::Sender<Word<R>>);

impl<R: AsyncRuntime> Clone for KeeperHandle<R> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

enum Word<R: AsyncRuntime> {
    Beat(Beat<R>),
    Granted(Key),
}

struct Beat<R: AsyncRuntime> {
    key: Key,
    number: u64,
    answered_age: Duration,
    arrived: R::Instant,
    answer: mpsc::Sender<LeaderWord>,
}

impl<R: AsyncRuntime> KeeperHandle<R> {
    /// A beat arrived; its answer, if there is one, goes to `answer`.
    pub fn beat(&self, key: Key, number: u64, answered_age: Duration, answer: mpsc::Sender<LeaderWord>) {
        let arrived = R::Instant::now();
        _ = self.0.try_send(Word::Beat(Beat { key, number, answered_age, arrived, answer }));
    }

    /// A session was granted.
    pub async fn granted(&self, key: Key) {
        _ = self.0.send(Word::Granted(key)).await;
    }
}

/// The keeper itself: one task on each voter.
pub struct Keeper<R: AsyncRuntime> {
    control: Control<R>,
    lease: Duration,
    words: mpsc::Receiver<Word<R>>,
    obituaries: mpsc::Receiver<(Obituary, oneshot::Sender<ObituaryReply>)>,
    stop: CancellationToken,
}

impl<R: AsyncRuntime> Keeper<R> {
    /// A keeper, and the way to it. `obituaries` are those whose certificate was checked.
    pub fn new(
        control: Control<R>,
        lease: Duration,
        obituaries: mpsc::Receiver<(Obituary, oneshot::Sender<ObituaryReply>)>,
        stop: CancellationToken,
    ) -> (Self, KeeperHandle<R>) {
        let (handle, words) = mpsc::channel(WORDS_WAITING);
        (Self { control, lease, words, obituaries, stop }, KeeperHandle(handle))
    }

    /// Runs until `stop`: drops what comes while another node leads, keeps the leases while this one does.
    pub async fn run(mut self) {
        let mut leadership = self.control.leadership.clone();
        loop {
            let led = leadership.borrow_and_update().clone();
            if led.leads {
                self.lead(led.round).await;
            }
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                changed = leadership.changed() => if changed.is_err() { return },
                word = self.words.recv() => if word.is_none() { return },
                obituary = self.obituaries.recv() => match obituary {
                    Some((_, reply)) => _ = reply.send(ObituaryReply::NotLeader),
                    None => return,
                },
            }
        }
    }

    async fn lead(&mut self, round: u64) {
        let mut leases = Leases::take_over(R::Instant::now(), self.lease, self.sessions());
        let mut agree_at = R::Instant::now() + leases.longest_gap();
        let mut leadership = self.control.leadership.clone();
        let (proofs, mut proven) = mpsc::channel::<(Vec<Beat<R>>, bool)>(1);
        let (ends, mut ended) = mpsc::channel::<(Key, bool)>(WORDS_WAITING);
        let mut waiting: Vec<Beat<R>> = Vec::new();
        let mut is_proving = false;
        loop {
            let now = R::Instant::now();
            leases.look(now);
            if agree_at <= now {
                agree_at = now + leases.longest_gap();
                leases.agree(now, self.sessions());
            }
            for key in leases.overdue(now) {
                self.end_session(round, key, ends.clone());
            }
            if !is_proving && !waiting.is_empty() {
                is_proving = true;
                self.prove(std::mem::take(&mut waiting), proofs.clone());
            }
            let wake = leases.next_end().map_or(agree_at, |end| end.min(agree_at));
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                changed = leadership.changed() => {
                    let led = leadership.borrow_and_update();
                    if changed.is_err() || !led.leads || led.round != round { return }
                }
                Some((beats, is_proven)) = proven.recv() => {
                    is_proving = false;
                    leases.look(R::Instant::now());
                    if is_proven { self.judge(&mut leases, beats); }
                }
                Some((key, is_over)) = ended.recv() => {
                    if is_over { leases.over(&key) } else { leases.not_ended(R::Instant::now(), &key) }
                }
                Some((obituary, reply)) = self.obituaries.recv() => self.record(obituary, reply, ends.clone()),
                word = self.words.recv() => match word {
                    Some(Word::Beat(beat)) => if waiting.len() < WORDS_WAITING { waiting.push(beat) },
                    Some(Word::Granted(key)) => leases.granted(R::Instant::now(), key),
                    None => return,
                },
                () = R::sleep_until(wake) => {}
            }
        }
    }

    /// The sessions that stand in the state and have a lease: those that are silent had one, and are never answered again.
    fn sessions(&self) -> Vec<Key> {
        let nodes = self.control.cluster().nodes;
        let of = |(name, node): (&NodeName, &Arc<Node>)| {
            let leased = node.sessions.iter().filter(|(_, session)| !session.silent);
            leased.map(|(id, _)| (name.clone(), *id)).collect::<Vec<Key>>()
        };
        nodes.iter().flat_map(of).collect()
    }

    fn prove(&self, beats: Vec<Beat<R>>, done: mpsc::Sender<(Vec<Beat<R>>, bool)>) {
        let (control, limit) = (self.control.clone(), self.lease);
        drop(R::spawn(async move {
            let is_proven = R::timeout(limit, control.prove(Urgency::Regular)).await.unwrap_or(false);
            _ = done.send((beats, is_proven)).await;
        }));
    }

    /// Answers beats that arrived before a proof of leadership began. Only now is it known that a session which the state does
    /// not name is over: one who leads no more knows nothing of what was granted since.
    fn judge(&self, leases: &mut Leases<R::Instant>, beats: Vec<Beat<R>>) {
        let cluster = self.control.cluster();
        for Beat { key, number, answered_age, arrived, answer } in beats {
            let (node, session) = &key;
            // Where no room is, the next beat is answered.
            if cluster.session(node, *session).is_none() {
                _ = answer.try_send(LeaderWord::Over { session: *session });
            } else if leases.may_answer(&key, answered_age) {
                leases.answered(&key, arrived);
                _ = answer.try_send(LeaderWord::Answer { session: *session, number });
            }
        }
    }

    /// Only in this leadership: what was found here says nothing after another one, which may have answered since.
    fn end_session(&self, round: u64, key: Key, done: mpsc::Sender<(Key, bool)>) {
        let control = self.control.clone();
        drop(R::spawn(async move {
            let (node, session) = key.clone();
            if control.cluster().session(&node, session).is_none_or(|session| session.silent) {
                _ = done.send((key, true)).await;
                return;
            }
            tracing::warn!(%node, %session, "silent beyond its lease: its session ends");
            let command = Command::EndSession { node, session, proof: EndProof::Lease };
            let outcome = control.propose_in(round, command).await;
            _ = done.send((key, matches!(outcome, Ok(Ok(Done::Ended))))).await;
        }));
    }

    fn record(&self, obituary: Obituary, reply: oneshot::Sender<ObituaryReply>, done: mpsc::Sender<(Key, bool)>) {
        let control = self.control.clone();
        drop(R::spawn(async move {
            let Obituary { node, session, how } = obituary;
            tracing::info!(%node, %session, how, "obituary");
            let (key, proof) = ((node.clone(), session), EndProof::Obituary(how));
            let outcome = control.propose(Command::EndSession { node, session, proof }).await;
            let is_over = matches!(outcome, Ok(Ok(Done::Ended)));
            _ = reply.send(if is_over { ObituaryReply::Recorded } else { ObituaryReply::NotLeader });
            if is_over {
                _ = done.send((key, true)).await;
            }
        }));
    }
}

#[cfg(test)]
mod tests;

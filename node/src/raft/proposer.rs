//! The one proposer: everything that waits becomes one log entry, stamped with cluster time.
//!
//! ```text
//!   commands ──► [all that wait] ──► stamp ──► one entry, for this leadership only ──► outcomes
//!                      ▲
//!        a tick, when something is due or nothing was said for 10 s
//! ```
//!
//! One entry is under way at a time: what comes meanwhile makes the next one, so that load makes entries larger, not more.
//! While another node leads, every command is answered *not leader* at once.

use std::time::Duration;

use openraft::impls::OneshotResponder;
use openraft::{AsyncRuntime, Instant};
use pando_protocol::codec::{self, FRAME_LIMIT};
use pando_protocol::message::Change;
use pando_supervision::{Batch, Command, Outcome, Stamp, next_deadline};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::Raft;
use super::types::{CommittedLeaderId, Outcomes, Types};
use crate::control::{Leadership, NotProposed, Proposal, Published};

/// Commands in one entry.
const MOST_COMMANDS: usize = 1_024;
/// Bytes in one entry, as estimated: well below what the log and a frame take.
const MOST_BYTES: usize = 3 << 20;
/// What a command is taken to weigh that carries no spec: an exit with its lines, and room around it.
const USUAL_BYTES: usize = 6 << 10;
/// Two ticks are at least this far apart.
const TICK_GAP: Duration = Duration::from_millis(10);
/// An idle leader ticks this often, so that cluster time is never far from the log.
const IDLE_TICK: Duration = Duration::from_secs(10);

/// Runs until `stop`.
pub struct Proposer<R: AsyncRuntime> {
    /// Where entries go.
    pub raft: Raft<R>,
    /// The state.
    pub published: watch::Receiver<Published<R>>,
    /// Who leads.
    pub leadership: watch::Receiver<Leadership<R>>,
    /// What waits.
    pub proposals: mpsc::Receiver<Proposal>,
    /// Milliseconds since the Unix epoch, for people.
    pub wall: fn() -> u64,
    /// When to end.
    pub stop: CancellationToken,
}

/// Cluster time on this node while it leads: from the last stamp on, plus what passed here since that was applied.
struct Clock<R: AsyncRuntime> {
    stamp: Duration,
    at: R::Instant,
}

impl<R: AsyncRuntime> Clock<R> {
    fn now(&self) -> Duration {
        self.stamp + self.at.elapsed()
    }

    fn instant(&self, stamp: Duration) -> R::Instant {
        self.at + stamp.saturating_sub(self.stamp)
    }
}

impl<R: AsyncRuntime> Proposer<R> {
    /// Answers *not leader* while another node leads, and proposes while this one does.
    pub async fn run(mut self) {
        loop {
            let led = self.leadership.borrow_and_update().clone();
            // Another term than the one that is known to be ready has an own first entry of its own: it is told soon.
            if led.leads
                && let Ok(leader) = self.raft.as_leader()
                && leader.to_committed_leader_id().term == led.term
            {
                let id = leader.to_committed_leader_id();
                drop(leader);
                self.lead(id, led.round).await;
                if self.leadership.borrow().round != led.round {
                    continue;
                }
            }
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                changed = self.leadership.changed() => if changed.is_err() { return },
                proposal = self.proposals.recv() => match proposal {
                    Some(proposal) => answer(proposal.reply, Err(NotProposed::NotLeader)),
                    None => return,
                },
            }
        }
    }

    /// Proposes until this leadership ends.
    async fn lead(&mut self, id: CommittedLeaderId, round: u64) {
        let clock = {
            let published = self.published.borrow();
            Clock::<R> { stamp: published.cluster.head.now, at: published.at }
        };
        let mut waiting: Vec<Proposal> = Vec::new();
        let mut last_tick = clock.now();
        loop {
            let is_over = {
                let led = self.leadership.borrow();
                !led.leads || led.round != round
            };
            if is_over || self.stop.is_cancelled() {
                waiting.into_iter().for_each(|proposal| answer(proposal.reply, Err(NotProposed::NotLeader)));
                return;
            }
            let mut is_tick = false;
            if waiting.is_empty() {
                let tick = clock.instant(self.tick_due(last_tick));
                tokio::select! {
                    biased;
                    () = self.stop.cancelled() => return,
                    changed = self.leadership.changed() => if changed.is_err() { return } else { continue },
                    count = self.proposals.recv_many(&mut waiting, MOST_COMMANDS) => if count == 0 { return },
                    () = R::sleep_until(tick) => (last_tick, is_tick) = (clock.now(), true),
                }
            } else {
                // What was left over from the last entry goes on at once, with what came meanwhile.
                while waiting.len() < MOST_COMMANDS
                    && let Ok(proposal) = self.proposals.try_recv()
                {
                    waiting.push(proposal);
                }
            }
            refuse_others(round, &mut waiting);
            // What was only for an earlier leadership is no reason for an entry.
            if waiting.is_empty() && !is_tick {
                continue;
            }
            self.write(&clock, &id, &mut waiting).await;
        }
    }

    /// When the next tick is due, in cluster time.
    fn tick_due(&self, last_tick: Duration) -> Duration {
        let published = self.published.borrow();
        let idle = published.cluster.head.now + IDLE_TICK;
        let due = next_deadline(&published.cluster).map_or(idle, |deadline| deadline.min(idle));
        due.max(last_tick + TICK_GAP)
    }

    /// Writes one entry of what waits, and answers everyone in it.
    async fn write(&self, clock: &Clock<R>, id: &CommittedLeaderId, waiting: &mut Vec<Proposal>) {
        let (commands, replies) = take(waiting);
        let stamp = Stamp { at: clock.now(), wall: (self.wall)() };
        let (responder, outcome) = OneshotResponder::<Types<R>, _>::new_pair();
        let write = self.raft.write(Batch { stamp, commands }).with_leader(*id).responder(responder).await;
        let outcomes = match write {
            Err(fatal) => {
                tracing::error!(%fatal, "the entry was not written");
                None
            }
            // Whatever went wrong after it was handed over, the entry may be in the log of others: unknown, not failed.
            Ok(()) => match outcome.await {
                Ok(Ok(response)) => Some(response.data),
                Ok(Err(error)) => {
                    tracing::info!(%error, "the entry may not have been committed");
                    None
                }
                Err(_) => None,
            },
        };
        answer_all(replies, outcomes);
    }
}

type Replies = Vec<oneshot::Sender<Result<Outcome, NotProposed>>>;

/// Answers those that belong to another leadership of this node.
fn refuse_others(round: u64, waiting: &mut Vec<Proposal>) {
    for proposal in waiting.extract_if(.., |proposal| proposal.round.is_some_and(|only| only != round)) {
        answer(proposal.reply, Err(NotProposed::NotLeader));
    }
}

/// As many of those that wait as one entry takes, in order; a tick where none does.
fn take(waiting: &mut Vec<Proposal>) -> (Vec<Command>, Replies) {
    let mut bytes = 0;
    let mut count = 0;
    for proposal in waiting.iter() {
        bytes += weight(&proposal.command);
        if count > 0 && bytes > MOST_BYTES {
            break;
        }
        count += 1;
    }
    let (mut commands, mut replies) = (Vec::with_capacity(count.max(1)), Vec::with_capacity(count));
    for Proposal { command, round: _, reply } in waiting.drain(..count) {
        commands.push(command);
        replies.push(reply);
    }
    if commands.is_empty() {
        commands.push(Command::Tick);
    }
    (commands, replies)
}

fn weight(command: &Command) -> usize {
    match command {
        Command::Write(write) => match &write.change {
            Change::Apply(spec) => codec::encode::<FRAME_LIMIT>(spec).map_or(FRAME_LIMIT, |bytes| bytes.len()),
            Change::Delete(_)
            | Change::Start(_)
            | Change::Stop(_)
            | Change::Restart(_)
            | Change::Drain(_)
            | Change::Undrain(_)
            | Change::RemoveNode(_)
            | Change::RemoveDeadNode(_)
            | Change::Quarantine(_) => USUAL_BYTES,
        },
        Command::Tick
        | Command::GrantSession(_)
        | Command::EndSession { .. }
        | Command::Observe { .. }
        | Command::RaiseRules(_) => USUAL_BYTES,
    }
}

fn answer_all(replies: Replies, outcomes: Option<Outcomes>) {
    let mut outcomes = outcomes.map(|outcomes| outcomes.0).unwrap_or_default().into_iter();
    for reply in replies {
        answer(reply, outcomes.next().ok_or(NotProposed::Unknown));
    }
}

fn answer(reply: oneshot::Sender<Result<Outcome, NotProposed>>, outcome: Result<Outcome, NotProposed>) {
    // Whoever asked may have given up; that is theirs to do.
    _ = reply.send(outcome);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposal(round: Option<u64>) -> (Proposal, oneshot::Receiver<Result<Outcome, NotProposed>>) {
        let (reply, outcome) = oneshot::channel();
        (Proposal { command: Command::Tick, round, reply }, outcome)
    }

    #[test]
    fn what_was_found_in_an_earlier_leadership_is_not_written_in_this_one() {
        let ((any, _any), (old, mut refused), (ours, _ours)) = (proposal(None), proposal(Some(1)), proposal(Some(2)));
        let mut waiting = vec![any, old, ours];
        refuse_others(2, &mut waiting);
        assert_eq!(waiting.iter().map(|proposal| proposal.round).collect::<Vec<_>>(), [None, Some(2)]);
        assert_eq!(refused.try_recv(), Ok(Err(NotProposed::NotLeader)));
    }

    #[test]
    fn an_entry_takes_what_fits_and_is_a_tick_where_nothing_waits() {
        let (commands, replies) = take(&mut Vec::new());
        assert_eq!((commands, replies.len()), (vec![Command::Tick], 0));
        let mut waiting: Vec<_> = (0..MOST_COMMANDS).map(|_| proposal(None).0).collect();
        let (commands, _) = take(&mut waiting);
        assert_eq!(commands.len(), MOST_BYTES / USUAL_BYTES);
        assert_eq!(commands.len() + waiting.len(), MOST_COMMANDS);
    }
}

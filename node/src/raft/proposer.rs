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
use pando_protocol::mail::{Letters, NewMessage, Settlement};
use pando_protocol::message::Change;
use pando_protocol::rejection::Rejection;
use pando_protocol::session::Observation;
use pando_supervision::{Batch, Command, Outcome, Stamp, next_deadline};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::Raft;
use super::sealed::Sealed;
use super::types::{CommittedLeaderId, Outcomes, Types};
use crate::control::{Leadership, NotProposed, Proposal, Published};
use crate::instruments::Durations;

/// Commands in one entry.
const MOST_COMMANDS: usize = 1_024;
/// Bytes in one entry, as estimated: well below what the log and a frame take.
const MOST_BYTES: usize = 3 << 20;
/// The most that one command may take, below what a frame does, with room for what stands around it.
const LARGEST_COMMAND: usize = FRAME_LIMIT - (64 << 10);
/// The most that a number, or the length before a text, takes.
const LENGTH: usize = 9;
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
    /// Messages that wait: they go into an entry after all that waits beside them.
    pub mail: mpsc::Receiver<Proposal>,
    /// Milliseconds since the Unix epoch, for people.
    pub wall: fn() -> u64,
    /// How long entries take.
    pub took: Durations,
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
                Some(proposal) = self.mail.recv() => answer(proposal.reply, Err(NotProposed::NotLeader)),
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
                    Some(proposal) = self.mail.recv() => waiting.push(proposal),
                    () = R::sleep_until(tick) => (last_tick, is_tick) = (clock.now(), true),
                }
            }
            // What was left over from the last entry goes on at once, with what came meanwhile.
            take_up(&mut self.proposals, &mut self.mail, &mut waiting);
            refuse_others(round, &mut waiting);
            refuse_too_large(&mut waiting);
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
        let handed_over = R::Instant::now();
        let (responder, outcome) = OneshotResponder::<Types<R>, _>::new_pair();
        let sealed = match Sealed::new(&Batch { stamp, commands }) {
            Ok(sealed) => sealed,
            Err(error) => {
                tracing::error!(%error, "a batch cannot be written");
                return answer_all(replies, None);
            }
        };
        let write = self.raft.write(sealed).with_leader(*id).responder(responder).await;
        let outcomes = match write {
            Err(fatal) => {
                tracing::error!(%fatal, "the entry was not written");
                None
            }
            // Whatever went wrong after it was handed over, the entry may be in the log of others: unknown, not failed.
            Ok(()) => match outcome.await {
                Ok(Ok(response)) => {
                    self.took.note(handed_over.elapsed());
                    Some(response.data)
                }
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

/// Adds what came meanwhile to what waits, messages last.
fn take_up(proposals: &mut mpsc::Receiver<Proposal>, mail: &mut mpsc::Receiver<Proposal>, waiting: &mut Vec<Proposal>) {
    let mut others = waiting.iter().filter(|proposal| !proposal.is_message()).count();
    while others < MOST_COMMANDS
        && let Ok(proposal) = proposals.try_recv()
    {
        waiting.push(proposal);
        others += 1;
    }
    while waiting.len() < MOST_COMMANDS
        && let Ok(proposal) = mail.try_recv()
    {
        waiting.push(proposal);
    }
    waiting.sort_by_key(Proposal::is_message);
}

type Replies = Vec<(oneshot::Sender<Result<Outcome, NotProposed>>, Option<OwnedSemaphorePermit>)>;

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
    for Proposal { command, round: _, reply, room } in waiting.drain(..count) {
        commands.push(command);
        replies.push((reply, room));
    }
    if commands.is_empty() {
        commands.push(Command::Tick);
    }
    (commands, replies)
}

/// At most so many bytes a command takes of an entry.
fn weight(command: &Command) -> usize {
    match command {
        Command::Write(write) => match &write.change {
            Change::Apply(spec) | Change::ApplyLeaving(spec, _) => {
                codec::encode::<FRAME_LIMIT>(spec).map_or(FRAME_LIMIT, |bytes| bytes.len())
            }
            Change::Delete(_)
            | Change::Start(_)
            | Change::Stop(_)
            | Change::Restart(_)
            | Change::Drain(_)
            | Change::Undrain(_)
            | Change::RemoveNode(_)
            | Change::RemoveDeadNode(_)
            | Change::Quarantine(_)
            | Change::DeleteLeaving(..)
            | Change::Scale { .. }
            | Change::Pause(_)
            | Change::Resume(_)
            | Change::PurgeWaiting(_) => USUAL_BYTES,
            Change::Redrive { letters, .. } | Change::PurgeDead { letters, .. } => {
                let Letters { ids, cause: _, worker: _, older_than: _, text } = letters;
                USUAL_BYTES
                    + ids.iter().map(|id| id.len() + LENGTH).sum::<usize>()
                    + text.as_ref().map_or(0, String::len)
            }
            Change::Send { messages, .. } => USUAL_BYTES + messages.iter().map(message_bytes).sum::<usize>(),
        },
        Command::Observe { observation, .. } => match observation {
            Observation::Settled(settlements) => {
                settlements.iter().map(Settlement::weight).sum::<usize>() + USUAL_BYTES
            }
            Observation::Exited { started, .. } => USUAL_BYTES + started.len() * LENGTH,
            Observation::Kept { sessions, runs } => {
                let runs: usize = runs.iter().map(|run| run.path.as_str().len() + 2 * LENGTH).sum();
                USUAL_BYTES + sessions.len() * LENGTH + runs
            }
            Observation::Started { .. }
            | Observation::Ready { .. }
            | Observation::NeverStarted { .. }
            | Observation::Stopping { .. }
            | Observation::Leaving
            | Observation::Left
            | Observation::WorkerReady { .. } => USUAL_BYTES,
        },
        Command::Tick | Command::GrantSession(_) | Command::EndSession { .. } | Command::RaiseRules(_) => USUAL_BYTES,
    }
}

fn message_bytes(message: &NewMessage) -> usize {
    let NewMessage { id, headers, payload } = message;
    let headers: usize = headers.iter().map(|(name, value)| name.len() + value.len() + 2 * LENGTH).sum();
    id.as_ref().map_or(0, |id| id.len()) + headers + payload.len() + 4 * LENGTH
}

/// Answers those that no entry can take: one that is larger than a frame could never be replicated, and nothing after it either.
fn refuse_too_large(waiting: &mut Vec<Proposal>) {
    for proposal in waiting.extract_if(.., |proposal| weight(&proposal.command) > LARGEST_COMMAND) {
        let what = format!("{} bytes in one request", weight(&proposal.command));
        answer(proposal.reply, Ok(Err(Rejection::TooMany { what, limit: LARGEST_COMMAND as u64 })));
    }
}

fn answer_all(replies: Replies, outcomes: Option<Outcomes>) {
    let mut outcomes = outcomes.map(|outcomes| outcomes.0).unwrap_or_default().into_iter();
    for (reply, _room) in replies {
        answer(reply, outcomes.next().ok_or(NotProposed::Unknown));
    }
}

fn answer(reply: oneshot::Sender<Result<Outcome, NotProposed>>, outcome: Result<Outcome, NotProposed>) {
    // Whoever asked may have given up; that is theirs to do.
    _ = reply.send(outcome);
}

#[cfg(test)]
mod tests {
    use pando_protocol::ids::ClientId;
    use pando_protocol::mail::Word;
    use pando_protocol::message::Write;

    use super::*;
    use crate::control::MailLane;

    fn proposal(round: Option<u64>) -> (Proposal, oneshot::Receiver<Result<Outcome, NotProposed>>) {
        let (reply, outcome) = oneshot::channel();
        (Proposal { command: Command::Tick, round, reply, room: None }, outcome)
    }

    fn said_of_messages(words: Vec<Word>) -> Command {
        let settlements = words.into_iter().map(|word| Settlement { hand: u64::MAX, word }).collect();
        let (node, session) = ("n1".parse().unwrap(), pando_protocol::ids::SessionId(u64::MAX));
        Command::Observe { node, session, number: u64::MAX, observation: Observation::Settled(settlements) }
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

    #[tokio::test]
    async fn messages_go_after_all_else_and_no_more_than_their_room_are_on_their_way() {
        let (lane, mut mail) = MailLane::new();
        let (others, mut proposals) = mpsc::channel(8);
        let send = |sequence| {
            let (to, payload) = ("/t/a".parse().unwrap(), vec![0; 1 << 20]);
            let change = Change::Send { to, messages: vec![NewMessage::of(payload)], asks: false };
            let write = Write { client: ClientId(1), sequence, lowest_unanswered: 1, change };
            let (reply, outcome) = oneshot::channel();
            (Proposal { command: Command::Write(write), round: None, reply, room: None }, outcome)
        };
        let mut outcomes = Vec::new();
        let mut on_their_way = 0;
        for sequence in 1.. {
            let (proposal, outcome) = send(sequence);
            outcomes.push(outcome);
            let sent = tokio::time::timeout(Duration::from_millis(50), lane.send(proposal, 1 << 20)).await;
            if sent.is_err() {
                break;
            }
            on_their_way += 1;
        }
        assert_eq!(on_their_way, 5, "5 MiB");
        // What is said of messages has room whatever is sent, and its place among all else.
        let (mut settled, _settled) = proposal(None);
        settled.command = said_of_messages(vec![Word::Returned]);
        settled.room = lane.settled_room(3 << 20).await;
        let said = settled.command.clone();
        let more = tokio::time::timeout(Duration::from_millis(50), lane.settled_room(1)).await;
        assert!(more.is_err(), "3 MiB");
        others.send(settled).await.unwrap();
        let (tick, _tick) = proposal(None);
        others.send(tick).await.unwrap();
        let mut waiting = Vec::new();
        take_up(&mut proposals, &mut mail, &mut waiting);
        assert_eq!(waiting.len(), 7);
        let (commands, replies) = take(&mut waiting);
        assert_eq!(commands[..2], [said, Command::Tick], "they came last");
        answer_all(replies, None);
        let (another, _another) = send(9);
        tokio::time::timeout(Duration::from_secs(5), lane.send(another, 1 << 20)).await.expect("room is free again");
        tokio::time::timeout(Duration::from_secs(5), lane.settled_room(3 << 20)).await.expect("here, too");
    }

    #[test]
    fn what_no_frame_can_take_is_refused_and_no_weight_is_below_the_bytes() {
        let header = |n: usize| (format!("{n:04}"), String::new());
        let message =
            |headers: usize| NewMessage { headers: (0..headers).map(header).collect(), ..NewMessage::of("x") };
        let send = |messages: Vec<NewMessage>| {
            let change = Change::Send { to: "/t/a".parse().unwrap(), messages, asks: false };
            Command::Write(Write { client: ClientId(u128::MAX), sequence: u64::MAX, lowest_unanswered: 1, change })
        };
        let purge = |ids: usize| {
            let letters = Letters { ids: vec!["x".repeat(100); ids], ..Letters::default() };
            let change = Change::PurgeDead { from: "/t/a".parse().unwrap(), letters };
            Command::Write(Write { client: ClientId(u128::MAX), sequence: u64::MAX, lowest_unanswered: 1, change })
        };
        let settled = |reply: usize| said_of_messages(vec![Word::Done { reply: Some(vec![0; reply].into()) }; 3]);
        for command in [send(vec![message(4_000)]), send(vec![message(0); 9_000]), purge(9_000), settled(1 << 20)] {
            let bytes = codec::encode::<{ 16 << 20 }>(&command).unwrap().len();
            assert!(weight(&command) >= bytes, "{} for {bytes}", weight(&command));
        }
        let (reply, mut refused) = oneshot::channel();
        let large = Proposal { command: purge(50_000), round: None, reply, room: None };
        let mut waiting = vec![proposal(None).0, large];
        refuse_too_large(&mut waiting);
        assert_eq!(waiting.len(), 1);
        let answered = refused.try_recv().unwrap();
        assert!(matches!(answered, Ok(Err(Rejection::TooMany { .. }))), "{answered:?}");
    }
}

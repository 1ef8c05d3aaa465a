//! The handle by which the other rooms reach the replicated state: propose, prove, watch.
//!
//! The raft room answers it; nobody else names openraft's Raft. A node that is an agent has none.

use std::sync::Arc;
use std::time::Duration;

use openraft::AsyncRuntime;
use pando_protocol::ids::NodeName;
use pando_protocol::mail::NewMessage;
use pando_protocol::message::{Change, MemberChange, Write};
use pando_protocol::session::{Member, Members};
use pando_protocol::view::{MemberRow, VoterRow};
use pando_supervision::{Cluster, Command, Outcome};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use crate::instruments::Instruments;
pub use crate::raft::state_machine::{EventFeed, Published};
use crate::storage::format::StoredMembership;
pub use crate::storage::retention::OnDisk;

/// Proposals that may wait for the proposer; more wait in their callers.
pub const PROPOSALS_WAITING: usize = 8_192;
/// Changes of members that may wait for the one before.
pub const CHANGES_WAITING: usize = 16;
/// Proofs that may wait to be taken up.
pub const PROOFS_WAITING: usize = 4_096;

/// Propose, prove, watch. Cheap to clone.
#[derive(Debug)]
pub struct Control<R: AsyncRuntime> {
    /// This node.
    pub own: NodeName,
    /// Where commands go.
    pub proposals: mpsc::Sender<Proposal>,
    /// Where messages for mailboxes go.
    pub mail: MailLane,
    /// Where proofs of leadership are asked for.
    pub proofs: mpsc::Sender<ProofRequest>,
    /// Where questions about Raft itself go.
    pub questions: mpsc::Sender<Question>,
    /// Where changes of who takes part in Raft go.
    pub changes: mpsc::Sender<ChangeRequest>,
    /// The state, published after each entry and before its proposer is answered.
    pub published: watch::Receiver<Published<R>>,
    /// Who leads, as this node knows it.
    pub leadership: watch::Receiver<Leadership<R>>,
    /// What happens.
    pub events: EventFeed,
    /// How long this voter's own work takes.
    pub instruments: Instruments,
    /// What this voter keeps on disk.
    pub kept: watch::Receiver<OnDisk>,
}

impl<R: AsyncRuntime> Clone for Control<R> {
    fn clone(&self) -> Self {
        let Self { own, proposals, mail, proofs, questions, changes, published, leadership, events, instruments, kept } =
            self;
        Self {
            own: own.clone(),
            proposals: proposals.clone(),
            mail: mail.clone(),
            proofs: proofs.clone(),
            questions: questions.clone(),
            changes: changes.clone(),
            published: published.clone(),
            leadership: leadership.clone(),
            events: events.clone(),
            instruments: instruments.clone(),
            kept: kept.clone(),
        }
    }
}

/// A command on its way into the log.
#[derive(Debug)]
pub struct Proposal {
    /// The command.
    pub command: Command,
    /// The only leadership of this node, by [`Leadership::round`], in which it may be written; `None`: in any.
    pub round: Option<u64>,
    /// Where its outcome goes, once it is applied here.
    pub reply: oneshot::Sender<Result<Outcome, NotProposed>>,
    /// What it takes of the room for messages, or for what is said of them, until it is answered.
    pub room: Option<OwnedSemaphorePermit>,
}

impl Proposal {
    /// Whether it puts messages into a mailbox: it goes behind all that does not.
    pub fn is_message(&self) -> bool {
        mail_bytes(&self.command).is_some()
    }
}

/// The lane of messages beside the one of all other commands, so that supervision never queues behind mail. Design section 7: at
/// most 8 MiB of it are in flight; more waits in those who send.
///
/// What runners say of messages keeps its place among all that they say, so it goes where that goes. Its room is one of its own:
/// no runner waits behind all who send, and all of them together keep little before an exit.
#[derive(Debug, Clone)]
pub struct MailLane {
    sender: mpsc::Sender<Proposal>,
    room: Arc<Semaphore>,
    settled_room: Arc<Semaphore>,
}

impl MailLane {
    /// A lane, and its other end.
    pub fn new() -> (Self, mpsc::Receiver<Proposal>) {
        let (sender, receiver) = mpsc::channel(PROPOSALS_WAITING);
        let (room, settled_room) = (Arc::new(Semaphore::new(MAIL_ROOM)), Arc::new(Semaphore::new(SETTLED_ROOM)));
        (Self { sender, room, settled_room }, receiver)
    }

    /// The bytes that are on their way, to a KiB.
    fn bytes(&self) -> u64 {
        let taken = (MAIL_ROOM + SETTLED_ROOM)
            .saturating_sub(self.room.available_permits() + self.settled_room.available_permits());
        taken as u64 * MAIL_PIECE
    }

    /// Sends messages on their way, once there is room for them.
    pub async fn send(&self, mut proposal: Proposal, bytes: u64) {
        proposal.room = room_in(&self.room, bytes, MAIL_ROOM).await;
        _ = self.sender.send(proposal).await;
    }

    /// Waits for room for what a runner says of messages.
    pub fn settled_room(&self, bytes: u64) -> impl Future<Output = Option<OwnedSemaphorePermit>> + Send + use<> {
        let room = self.settled_room.clone();
        async move { room_in(&room, bytes, SETTLED_ROOM).await }
    }
}

/// Room for so many bytes; all of it for what is larger.
async fn room_in(room: &Arc<Semaphore>, bytes: u64, most: usize) -> Option<OwnedSemaphorePermit> {
    let pieces = usize::try_from(bytes.div_ceil(MAIL_PIECE)).unwrap_or(most).clamp(1, most);
    // It is never closed.
    room.clone().acquire_many_owned(u32::try_from(pieces).unwrap_or(u32::MAX)).await.ok()
}

/// The room for messages is counted in pieces of so many bytes.
const MAIL_PIECE: u64 = 1 << 10;
/// Room for messages that are sent: 5 MiB, more than goes into one entry. Together with the other one: 8 MiB.
const MAIL_ROOM: usize = 5 << 10;
/// Room for what is said of messages: 3 MiB, three of a runner's largest words.
const SETTLED_ROOM: usize = 3 << 10;

/// A question whether this node leads now.
#[derive(Debug)]
pub struct ProofRequest {
    /// How soon the proof must be had.
    pub urgency: Urgency,
    /// Answered *true* once a round that began after the question proved that a majority follows, and everything committed
    /// before it is applied here; *false* where that cannot be had.
    pub reply: oneshot::Sender<bool>,
}

/// How soon a proof must be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// By the next regular heartbeat round, which serves all who wait: for beats.
    Regular,
    /// By a round of its own, now: for reads.
    Now,
    /// By what a majority answered of late, or else by a round of its own: for writes. They need no proof to be right, only one
    /// that tells a leader which has lost its majority to refuse, so that nobody has to wonder what became of them.
    OfLate,
}

/// A question about Raft itself.
#[derive(Debug)]
pub enum Question {
    /// The voters, and how far behind the leader each is.
    Voters(oneshot::Sender<Vec<VoterRow>>),
    /// The members, learners included.
    Members(oneshot::Sender<Vec<MemberRow>>),
    /// Moves leadership, from this node, to a voter or to the one whose log is furthest.
    Transfer {
        /// To whom.
        to: Option<NodeName>,
        /// The new leader, or why not and what to do.
        reply: oneshot::Sender<Result<NodeName, String>>,
    },
}

/// A change of who takes part in Raft, on its way to the leader's task for it.
#[derive(Debug)]
pub struct ChangeRequest {
    /// The change.
    pub change: MemberChange,
    /// Whether anything was changed.
    pub reply: oneshot::Sender<Result<bool, NotChanged>>,
}

/// Why the members are not as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotChanged {
    /// This node does not lead, or not any more: another one is to be asked.
    #[error("this node does not lead")]
    NotLeader,
    /// It may or may not have been changed, and may be asked again.
    #[error("the outcome of a change of members is not known: {0}")]
    Unknown(String),
    /// Nothing was changed; why, and what to do.
    #[error("{0}")]
    Refused(String),
}

/// The members of a stored membership, voters of both sides of a change under way; `None` before the first.
pub fn members_of(stored: &StoredMembership) -> Option<Members> {
    let index = stored.log_id().as_ref()?.index;
    let membership = stored.membership();
    let voters: Vec<_> = membership.voter_ids().collect();
    let member = |(id, node): (&u64, &crate::raft::types::Voter)| {
        let name = node.name.clone()?;
        Some(Member { name, raft_id: *id, address: node.address.clone(), votes: voters.contains(id) })
    };
    Some(Members { index, members: membership.nodes().filter_map(member).collect() })
}

/// What a command weighs that puts messages into a mailbox; `None` for any other.
fn mail_bytes(command: &Command) -> Option<u64> {
    match command {
        Command::Write(Write { change: Change::Send { messages, .. }, .. }) => {
            Some(messages.iter().map(NewMessage::weight).sum())
        }
        Command::Write(_)
        | Command::Tick
        | Command::GrantSession(_)
        | Command::EndSession { .. }
        | Command::Observe { .. }
        | Command::RaiseRules(_) => None,
    }
}

/// Why a command has no outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotProposed {
    /// This node does not lead: nothing was written.
    #[error("this node does not lead")]
    NotLeader,
    /// Leadership was lost on the way: it may or may not be applied.
    #[error("leadership was lost on the way")]
    Unknown,
}

/// Who leads, as this node knows it.
#[derive(Debug)]
pub struct Leadership<R: AsyncRuntime> {
    /// The leader. On a node that leads: `None` once no majority has answered it for twice the longest election
    /// time-out, in which the others elect another one where they can.
    pub leader: Option<Leader>,
    /// The term.
    pub term: u64,
    /// Whether this node leads *and* has applied the first entry of its own leadership. It may have lost its majority.
    pub leads: bool,
    /// Counts the leaderships of this node, so that two in a row are told apart.
    pub round: u64,
    /// Whether this node is a voter, or will be one once the cluster begins. One that is none (it waits to be added, it is a
    /// learner, it was taken out) answers nothing from its own state: that may be old for good.
    pub votes: bool,
    /// Since when no leader is known: on a node that leads, when a majority answered it last.
    pub without_since: Option<R::Instant>,
}

// By hand, because a derive would ask `R` for each of these.
impl<R: AsyncRuntime> Clone for Leadership<R> {
    fn clone(&self) -> Self {
        let Self { leader, term, leads, round, votes, without_since } = self;
        let leader = leader.clone();
        Self { leader, term: *term, leads: *leads, round: *round, votes: *votes, without_since: *without_since }
    }
}
impl<R: AsyncRuntime> PartialEq for Leadership<R> {
    fn eq(&self, other: &Self) -> bool {
        let Self { leader, term, leads, round, votes, without_since } = self;
        *leader == other.leader
            && *term == other.term
            && *leads == other.leads
            && *round == other.round
            && *votes == other.votes
            && *without_since == other.without_since
    }
}

/// The leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// Its name.
    pub name: NodeName,
    /// Where it answers.
    pub address: String,
}

impl<R: AsyncRuntime> Control<R> {
    /// The state as of now.
    pub fn cluster(&self) -> Cluster {
        self.published.borrow().cluster.clone()
    }

    /// How many commands wait for the proposer, messages aside; and how many bytes of messages are on their way into the log.
    pub fn waiting(&self) -> (u64, u64) {
        let proposals = PROPOSALS_WAITING.saturating_sub(self.proposals.capacity());
        (proposals as u64, self.mail.bytes())
    }

    /// Whether this node leads and has applied its own first entry.
    pub fn leads(&self) -> bool {
        self.leadership.borrow().leads
    }

    /// The leadership of this node, where it leads.
    pub fn led_round(&self) -> Option<u64> {
        let leadership = self.leadership.borrow();
        leadership.leads.then_some(leadership.round)
    }

    /// Whether this node is a voter: see [`Leadership::votes`].
    pub fn votes(&self) -> bool {
        self.leadership.borrow().votes
    }

    /// Sends a command to the proposer, in order, with the room that was had for it, and returns what will be its outcome.
    pub async fn submit(
        &self,
        command: Command,
        room: Option<OwnedSemaphorePermit>,
    ) -> oneshot::Receiver<Result<Outcome, NotProposed>> {
        let (reply, outcome) = oneshot::channel();
        _ = self.proposals.send(Proposal { command, round: None, reply, room }).await;
        outcome
    }

    /// The same for a command that follows from what was seen in one leadership of this node: see [`Self::propose_in`].
    pub async fn submit_in(&self, round: u64, command: Command) -> oneshot::Receiver<Result<Outcome, NotProposed>> {
        self.send(command, Some(round)).await
    }

    /// Puts a command into the log and waits until it is applied here.
    ///
    /// # Errors
    /// [`NotProposed`]; *unknown* also where the node is about to stop.
    pub async fn propose(&self, command: Command) -> Result<Outcome, NotProposed> {
        self.send(command, None).await.await.unwrap_or(Err(NotProposed::Unknown))
    }

    /// The same for a command that follows from what was seen in one leadership of this node, and is false in any other.
    ///
    /// # Errors
    /// [`NotProposed::NotLeader`] where that leadership is over; else as [`Self::propose`].
    pub async fn propose_in(&self, round: u64, command: Command) -> Result<Outcome, NotProposed> {
        self.send(command, Some(round)).await.await.unwrap_or(Err(NotProposed::Unknown))
    }

    async fn send(&self, command: Command, round: Option<u64>) -> oneshot::Receiver<Result<Outcome, NotProposed>> {
        let (reply, outcome) = oneshot::channel();
        let mail = mail_bytes(&command);
        let proposal = Proposal { command, round, reply, room: None };
        // A proposer that is gone drops the reply, and the receiver says so.
        match mail {
            Some(bytes) => self.mail.send(proposal, bytes).await,
            None => _ = self.proposals.send(proposal).await,
        }
        outcome
    }

    /// Whether this node leads now, by a round that begins after this call.
    pub async fn prove(&self, urgency: Urgency) -> bool {
        self.ask_proof(urgency).await.await.unwrap_or(false)
    }

    /// Asks for such a proof and returns what will be its answer; no answer is none.
    pub async fn ask_proof(&self, urgency: Urgency) -> oneshot::Receiver<bool> {
        let (reply, proven) = oneshot::channel();
        _ = self.proofs.send(ProofRequest { urgency, reply }).await;
        proven
    }

    /// The voters, as this node knows them.
    pub async fn voters(&self) -> Vec<VoterRow> {
        let (reply, voters) = oneshot::channel();
        _ = self.questions.send(Question::Voters(reply)).await;
        voters.await.unwrap_or_default()
    }

    /// Voters and learners, as this node knows them.
    pub async fn members(&self) -> Vec<MemberRow> {
        let (reply, members) = oneshot::channel();
        _ = self.questions.send(Question::Members(reply)).await;
        members.await.unwrap_or_default()
    }

    /// Changes who takes part in Raft, as the leader: one change after the other. Says whether anything was changed.
    ///
    /// # Errors
    /// [`NotChanged`].
    pub async fn change_members(&self, change: MemberChange) -> Result<bool, NotChanged> {
        let (reply, changed) = oneshot::channel();
        _ = self.changes.send(ChangeRequest { change, reply }).await;
        changed.await.unwrap_or_else(|_| Err(NotChanged::Unknown("the node is stopping".into())))
    }

    /// Moves leadership from this node to `to`, or to the voter whose log is furthest.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub async fn transfer(&self, to: Option<NodeName>) -> Result<NodeName, String> {
        let (reply, moved) = oneshot::channel();
        _ = self.questions.send(Question::Transfer { to, reply }).await;
        moved.await.unwrap_or_else(|_| Err("the node is stopping".into()))
    }

    /// Waits until a leader is known, at most `limit`.
    pub async fn leader_within(&self, limit: Duration) -> Option<Leader> {
        let mut leadership = self.leadership.clone();
        let known = async move {
            match leadership.wait_for(|leadership| leadership.leader.is_some()).await {
                Ok(leadership) => leadership.leader.clone(),
                Err(_) => None,
            }
        };
        R::timeout(limit, known).await.unwrap_or(None)
    }
}

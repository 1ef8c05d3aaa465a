//! The handle by which the other rooms reach the replicated state: propose, prove, watch.
//!
//! The raft room answers it; nobody else names openraft's Raft. A node that is an agent has none.

use std::time::Duration;

use openraft::AsyncRuntime;
use pando_protocol::ids::NodeName;
use pando_protocol::message::MemberChange;
use pando_protocol::session::{Member, Members};
use pando_protocol::view::{MemberRow, VoterRow};
use pando_supervision::{Cluster, Command, Outcome};
use tokio::sync::{mpsc, oneshot, watch};

pub use crate::raft::state_machine::{EventFeed, Published};
use crate::storage::format::StoredMembership;

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
}

impl<R: AsyncRuntime> Clone for Control<R> {
    fn clone(&self) -> Self {
        let Self { own, proposals, proofs, questions, changes, published, leadership, events } = self;
        Self {
            own: own.clone(),
            proposals: proposals.clone(),
            proofs: proofs.clone(),
            questions: questions.clone(),
            changes: changes.clone(),
            published: published.clone(),
            leadership: leadership.clone(),
            events: events.clone(),
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
}

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

    /// Whether this node leads and has applied its own first entry.
    pub fn leads(&self) -> bool {
        self.leadership.borrow().leads
    }

    /// Whether this node is a voter: see [`Leadership::votes`].
    pub fn votes(&self) -> bool {
        self.leadership.borrow().votes
    }

    /// Sends a command to the proposer, in order, and returns what will be its outcome.
    pub async fn submit(&self, command: Command) -> oneshot::Receiver<Result<Outcome, NotProposed>> {
        self.send(command, None).await
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
        // A proposer that is gone drops the reply, and the receiver says so.
        _ = self.proposals.send(Proposal { command, round, reply }).await;
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

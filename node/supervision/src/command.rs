//! What can be asked of the state, and what comes back.

use std::time::Duration;

use pando_protocol::ids::{NodeName, Path, SessionId};
use pando_protocol::message::{Changed, Write};
use pando_protocol::rejection::Rejection;
use pando_protocol::session::{Observation, SessionRequest};
use serde::{Deserialize, Serialize};

/// When a batch was proposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Cluster time: since the cluster began, by the leaders' monotonic clocks. Never runs backwards once applied.
    pub at: Duration,
    /// Milliseconds since the Unix epoch by the leader's wall clock. For people; decides nothing.
    pub wall: u64,
}

/// One log entry: all commands that waited when it was proposed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// When.
    pub stamp: Stamp,
    /// What, in order.
    pub commands: Vec<Command>,
}

/// What can be asked of the state. Variants are only ever appended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Nothing but the time: runs what is due.
    Tick,
    /// A client's change.
    Write(Write),
    /// A runner asks for a session.
    GrantSession(SessionRequest),
    /// A session is over.
    EndSession {
        /// Whose.
        node: NodeName,
        /// Which.
        session: SessionId,
        /// How that is known.
        proof: EndProof,
    },
    /// A runner tells what happened on its node.
    Observe {
        /// Whose.
        node: NodeName,
        /// The session.
        session: SessionId,
        /// From 1, by one, in each session.
        number: u64,
        /// What happened.
        observation: Observation,
    },
    /// Every voter knows the rules of this version: use them from here on.
    RaiseRules(u32),
}

/// How it is known that nothing of a session runs any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndProof {
    /// Its guard said so, after it had killed everything. The text says how the node process ended.
    Obituary(String),
    /// Its lease and the margin have passed, and the guard kills at the lease.
    Lease,
}

/// What applying one command did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The answer to whoever proposed it.
    pub outcome: Outcome,
    /// What happened, for logs, metrics and people. Nobody acts on it.
    pub events: Vec<Event>,
}

/// The answer to a command.
pub type Outcome = Result<Done, Rejection>;

/// What a command did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Done {
    /// Time was taken note of.
    Ticked,
    /// The change is made.
    Changed(Changed),
    /// The session is granted.
    Granted(SessionId),
    /// The session is over.
    Ended,
    /// Observations up to this number are applied.
    Observed(u64),
    /// The rules have this version.
    Rules(u32),
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// From 1, by one.
    pub number: u64,
    /// Cluster time.
    pub at: Duration,
    /// Wall-clock time in milliseconds since the Unix epoch.
    pub wall: u64,
    /// The member it is about.
    pub path: Option<Path>,
    /// The node it is about.
    pub node: Option<NodeName>,
    /// What kind.
    pub kind: EventKind,
    /// The story in a sentence.
    pub text: String,
}

/// Kinds of events. Variants are only ever appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EventKind {
    /// A spec was applied and changed something.
    TreeApplied,
    /// A tree and all its processes are gone.
    TreeDeleted,
    /// A tree's root spent its budget.
    TreeFailed,
    /// An operator cleared a failed tree.
    TreeCleared,
    /// A supervisor spent its budget.
    Escalated,
    /// A supervisor is up again.
    SupervisorStarted,
    /// A supervisor ended with its significant children.
    SupervisorEnded,
    /// A run was assigned to a node.
    ChildAssigned,
    /// A run was started.
    ChildStarted,
    /// A run is ready.
    ChildReady,
    /// A run ended.
    ChildExited,
    /// A child waits for room.
    ChildWaiting,
    /// An operator stopped a member.
    MemberStopped,
    /// An operator let a member start.
    MemberStarted,
    /// An operator restarted a member.
    MemberRestarted,
    /// A node got a session.
    NodeUp,
    /// A node said that it goes.
    NodeLeaving,
    /// A node said that nothing runs there any more.
    NodeLeft,
    /// A session ended without its node's word.
    NodeLost,
    /// The rules have a new version.
    RulesRaised,
    /// A member of a group ended, and others are taken down and started again with it.
    GroupRestarts,
    /// All members of a group have started, each after the one before was ready.
    GroupStarted,
    /// An operator drains a node.
    NodeDrained,
    /// A drained node takes work again.
    NodeUndrained,
    /// An operator removed a node that was gone.
    NodeRemoved,
    /// An operator stopped a member as dangerous to start.
    MemberQuarantined,
    /// A rule panicked on what was due: a bug. It was left out.
    RulePanicked,
    /// The node of a run that is kept fell silent: nobody knows if it runs, and nothing is started in its place.
    ChildUnreachable,
    /// The node of a run that was unreachable is back, and the run with it.
    ChildReachable,
    /// A message was set aside as a dead letter.
    MessageDead,
    /// A worker is taken for sick.
    WorkerSick,
    /// A worker that was taken for sick succeeded with something.
    WorkerWell,
    /// An operator paused a mailbox.
    MailboxPaused,
    /// An operator resumed a mailbox.
    MailboxResumed,
    /// A mailbox was taken out of its tree.
    MailboxClosed,
    /// An operator redrove dead letters.
    LettersRedriven,
    /// An operator purged messages.
    MailPurged,
}

impl EventKind {
    /// Every kind, in order.
    pub const ALL: [Self; 37] = [
        Self::TreeApplied,
        Self::TreeDeleted,
        Self::TreeFailed,
        Self::TreeCleared,
        Self::Escalated,
        Self::SupervisorStarted,
        Self::SupervisorEnded,
        Self::ChildAssigned,
        Self::ChildStarted,
        Self::ChildReady,
        Self::ChildExited,
        Self::ChildWaiting,
        Self::MemberStopped,
        Self::MemberStarted,
        Self::MemberRestarted,
        Self::NodeUp,
        Self::NodeLeaving,
        Self::NodeLeft,
        Self::NodeLost,
        Self::RulesRaised,
        Self::GroupRestarts,
        Self::GroupStarted,
        Self::NodeDrained,
        Self::NodeUndrained,
        Self::NodeRemoved,
        Self::MemberQuarantined,
        Self::RulePanicked,
        Self::ChildUnreachable,
        Self::ChildReachable,
        Self::MessageDead,
        Self::WorkerSick,
        Self::WorkerWell,
        Self::MailboxPaused,
        Self::MailboxResumed,
        Self::MailboxClosed,
        Self::LettersRedriven,
        Self::MailPurged,
    ];

    /// The stable word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TreeApplied => "tree_applied",
            Self::TreeDeleted => "tree_deleted",
            Self::TreeFailed => "tree_failed",
            Self::TreeCleared => "tree_cleared",
            Self::Escalated => "escalated",
            Self::SupervisorStarted => "supervisor_started",
            Self::SupervisorEnded => "supervisor_ended",
            Self::ChildAssigned => "child_assigned",
            Self::ChildStarted => "child_started",
            Self::ChildReady => "child_ready",
            Self::ChildExited => "child_exited",
            Self::ChildWaiting => "child_waiting",
            Self::MemberStopped => "member_stopped",
            Self::MemberStarted => "member_started",
            Self::MemberRestarted => "member_restarted",
            Self::NodeUp => "node_up",
            Self::NodeLeaving => "node_leaving",
            Self::NodeLeft => "node_left",
            Self::NodeLost => "node_lost",
            Self::RulesRaised => "rules_raised",
            Self::GroupRestarts => "group_restarts",
            Self::GroupStarted => "group_started",
            Self::NodeDrained => "node_drained",
            Self::NodeUndrained => "node_undrained",
            Self::NodeRemoved => "node_removed",
            Self::MemberQuarantined => "member_quarantined",
            Self::RulePanicked => "rule_panicked",
            Self::ChildUnreachable => "child_unreachable",
            Self::ChildReachable => "child_reachable",
            Self::MessageDead => "message_dead",
            Self::WorkerSick => "worker_sick",
            Self::WorkerWell => "worker_well",
            Self::MailboxPaused => "mailbox_paused",
            Self::MailboxResumed => "mailbox_resumed",
            Self::MailboxClosed => "mailbox_closed",
            Self::LettersRedriven => "letters_redriven",
            Self::MailPurged => "mail_purged",
        }
    }
}

impl std::fmt::Display for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} commands at {:?}", self.commands.len(), self.stamp.at)
    }
}

//! What reading the cluster shows: rows with stable names, for tables and for JSON alike.

use serde::{Deserialize, Serialize};

use crate::cause::{Cause, CauseChain, CauseClass};
use crate::ids::{Incarnation, NodeName, Path, SessionId};
use crate::session::NodeRole;

/// What a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// An inner node.
    Supervisor,
    /// A leaf.
    Process,
}

/// What a member does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Waits for a node with room.
    Waiting,
    /// Waits out the delay before a restart.
    BackingOff,
    /// Assigned to a node, not started yet.
    Starting,
    /// Started, not ready yet.
    Started,
    /// Ready; for a supervisor: up.
    Running,
    /// Being stopped.
    Stopping,
    /// Stopped by an operator, by a rule of `on_exit`, or because its supervisor is down.
    Stopped,
    /// Ended, and not to be restarted.
    Finished,
    /// A root whose budget is spent.
    Failed,
    /// It may run: its node is silent, and `on_disconnect = keep` has it replaced by nothing.
    Unreachable,
}

/// The verdict on a member. New ones are appended: which matters more is not told by their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The tree has failed and waits for an operator.
    Failed,
    /// Stopped on purpose, or finished.
    Stopped,
    /// Waits for room, and `waiting` says for what.
    Waiting,
    /// Three endings in a row with the delay at its cap: something it depends on is down.
    Looping,
    /// Restarted within the last 60 s.
    Churning,
    /// Fewer children ready than configured.
    Short,
    /// All is well.
    Healthy,
    /// Its node is silent and nothing is started in its place: waits for that node, or for an operator who knows it is gone.
    Unreachable,
}

/// One member in `pando tree`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeRow {
    /// Where it stands.
    pub path: Path,
    /// What it is.
    pub kind: Kind,
    /// What it does now.
    pub state: State,
    /// How that is judged.
    pub verdict: Verdict,
    /// Where its run is.
    pub node: Option<NodeName>,
    /// Its run.
    pub incarnation: Option<Incarnation>,
    /// The process on that node.
    pub pid: Option<u32>,
    /// Milliseconds of cluster time since the run was reported started.
    pub uptime_ms: Option<u64>,
    /// Charged restarts since it was added.
    pub restarts: u64,
    /// Charged restarts in the last 60 s; of a supervisor: of all below it.
    pub restart_rate: u32,
    /// Ready children at and below it.
    pub alive: u32,
    /// Children at and below it that should run.
    pub configured: u32,
    /// What it waits for, with the reason.
    pub waiting: Option<String>,
    /// What stands in its mailbox, where it has one; a pool has it, and not its workers.
    pub mailbox: Option<MailboxDepth>,
}

/// What stands in a mailbox, in `pando tree`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailboxDepth {
    /// Messages to be handed out, those in a delay or waiting for a verdict included.
    pub waiting: u64,
    /// Messages held by workers.
    pub in_flight: u64,
    /// Dead letters.
    pub dead: u64,
}

/// Equal endings of a member, folded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryRow {
    /// The last run that ended so.
    pub incarnation: Option<Incarnation>,
    /// Where it ran.
    pub node: Option<NodeName>,
    /// Why it ended.
    pub cause: CauseRow,
    /// Whether a restart budget paid.
    pub charged: bool,
    /// Who paid, or why nobody did.
    pub payer: String,
    /// What was decided.
    pub decision: String,
    /// How many in a row ended so.
    pub count: u64,
    /// The wall-clock time of the first, in milliseconds since the Unix epoch, by the leader of then.
    pub first: u64,
    /// The wall-clock time of the last.
    pub last: u64,
    /// For an escalation, all levels below it: the process that crashed last stands last.
    pub chain: Vec<CauseRow>,
    /// For an escalation, the newest of the earlier crashes that stood in the window, the oldest first.
    pub earlier: Vec<CauseRow>,
}

/// A cause, for people and JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CauseRow {
    /// What ended.
    pub path: Path,
    /// The class.
    pub class: CauseClass,
    /// The exit code.
    pub code: Option<u8>,
    /// The signal, by name.
    pub signal: Option<String>,
    /// One sentence.
    pub message: String,
    /// The last lines of standard error.
    pub stderr: String,
}

impl From<&Cause> for CauseRow {
    fn from(cause: &Cause) -> Self {
        let Cause { path, class, message, code, signal, incarnation: _, node: _, stderr } = cause;
        Self {
            path: path.clone(),
            class: *class,
            code: *code,
            signal: signal.map(|signal| signal.to_string()),
            message: message.clone(),
            stderr: stderr.clone(),
        }
    }
}

/// Why a member is as it is, and what happens next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The member as in `tree`.
    pub row: TreeRow,
    /// What it does, in a sentence.
    pub now: String,
    /// What happens next, in a sentence.
    pub next: String,
    /// When it gives up, in a sentence.
    pub gives_up: String,
    /// The newest ending at or below it, with all levels below that.
    pub last: Option<CauseChain>,
    /// The crashes that stand in the window of the budget that covers it: the oldest first.
    pub window: Vec<Cause>,
    /// Nodes that were lost while it ran there, with how often.
    pub node_losses: Vec<(NodeName, u64)>,
    /// Nodes on which its start failed, with why.
    pub start_failures: Vec<(NodeName, String)>,
}

/// One node in `pando node ls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRow {
    /// Its name.
    pub name: NodeName,
    /// What it is.
    pub role: NodeRole,
    /// Whether it has a session.
    pub state: NodeState,
    /// Its newest session.
    pub session: Option<SessionId>,
    /// The node process; `None` while it has no session.
    pub pid: Option<u32>,
    /// The children assigned to it.
    pub children: u32,
    /// Slots taken.
    pub used: u32,
    /// Slots in all.
    pub slots: u32,
    /// Its labels, `key=value`.
    pub labels: Vec<String>,
    /// How often it was lost.
    pub losses: u64,
    /// Where it answers.
    pub address: String,
}

/// Whether a node has a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// It has.
    Up,
    /// It was told to go and stops what it runs.
    Leaving,
    /// It has none.
    Down,
    /// An operator drains it, and children are still to leave it.
    Draining,
    /// It is drained: nothing runs there, and it gets no work.
    Drained,
    /// It is silent, and children of it that are kept may run on.
    Unreachable,
}

/// The voters and the leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRow {
    /// The name of the cluster, as in its certificates.
    pub cluster: String,
    /// The leader.
    pub leader: Option<NodeName>,
    /// The Raft term.
    pub term: u64,
    /// The last log index that the answering node applied.
    pub applied: u64,
    /// Cluster time in milliseconds.
    pub cluster_time_ms: u64,
    /// The voters.
    pub voters: Vec<VoterRow>,
}

/// One voter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoterRow {
    /// Its name.
    pub name: NodeName,
    /// Its Raft id: random, made with its data folder.
    pub raft_id: u64,
    /// Where it answers.
    pub address: String,
    /// Log entries that it is behind the leader; `None` where only the leader could tell.
    pub lag: Option<u64>,
}

/// One that takes part in Raft.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRow {
    /// Its name.
    pub name: NodeName,
    /// Its Raft id: random, made with its data folder.
    pub raft_id: u64,
    /// What it is.
    pub role: MemberRole,
    /// Where it answers.
    pub address: String,
    /// Log entries that it is behind the leader; `None` where only the leader could tell.
    pub lag: Option<u64>,
    /// Whether it answered the leader within the last second; `None` where only the leader could tell.
    pub answers: Option<bool>,
}

/// What a member is in Raft.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberRole {
    /// Holds the log and counts for majorities.
    Voter,
    /// Holds the log and counts for nothing.
    Learner,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRow {
    /// From 1, by one.
    pub number: u64,
    /// Cluster time in milliseconds.
    pub cluster_time_ms: u64,
    /// Wall-clock time in milliseconds since the Unix epoch, by the leader of then.
    pub at: u64,
    /// The kind, a stable word: `child_exited`.
    pub kind: String,
    /// The member it is about.
    pub path: Option<Path>,
    /// The node it is about.
    pub node: Option<NodeName>,
    /// The story in a sentence.
    pub text: String,
}

//! The replicated state: what there is. How it changes stands in the other files, by subject.
//!
//! Every map is persistent and its values are shared, so that a clone costs a few pointers: publishing and snapshotting do
//! not grow with the state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use imbl::{OrdMap, OrdSet};
use pando_protocol::ids::{ClientId, NodeName, Path, SessionId, TreeName};
use pando_protocol::session::NodeRole;
use pando_protocol::spec::{Label, TreeSpec};
use serde::{Deserialize, Serialize};

use crate::command::{Event, Outcome};
use crate::mail::{Held, Mailbox};

mod member;

pub use member::{
    Body, DownReason, Group, HistoryEntry, Member, Pending, Place, Process, ProcessPhase, Refusal, Run, Stage,
    StopReason, Supervisor, SupervisorPhase, Then,
};

/// The replicated state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// Counters and clocks.
    pub head: Head,
    /// The trees, as they were applied.
    pub trees: OrdMap<TreeName, Arc<TreeSpec>>,
    /// Every supervisor and child, those that are being removed included.
    pub members: OrdMap<Path, Arc<Member>>,
    /// Every node that ever had a session.
    pub nodes: OrdMap<NodeName, Arc<Node>>,
    /// Children and groups that wait for places, in the order in which they began to wait.
    pub pending: OrdSet<(u64, Path)>,
    /// When something happens by itself: a delay ends.
    pub timers: OrdSet<(Duration, Path)>,
    /// The mailboxes of workers and pools, and closed ones with dead letters.
    pub mail: OrdMap<Path, Arc<Mailbox>>,
    /// When something of a mailbox is due: each has at most one.
    pub mail_timers: OrdSet<(Duration, Path)>,
    /// The newest events, by number.
    pub events: OrdMap<u64, Arc<Event>>,
    /// What clients were answered, so that a retry is answered the same.
    pub clients: OrdMap<ClientId, Arc<ClientRecord>>,
    /// The clients by when they were last heard.
    pub client_ages: OrdSet<(Duration, ClientId)>,
}

/// Counters and clocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Cluster time of the newest stamp.
    pub now: Duration,
    /// The version of the rules that the log asked for.
    pub rules: u32,
    /// The next incarnation.
    pub next_incarnation: u64,
    /// The next session.
    pub next_session: u64,
    /// The next event.
    pub next_event: u64,
    /// The next place in the queue of children that wait.
    pub next_order: u64,
    /// Before this time no further start after a mass failover is let through.
    pub brake: Duration,
    /// What all mailboxes together count against the bound of bytes of the cluster.
    pub mail_bytes: u64,
}

impl Default for Head {
    fn default() -> Self {
        Self {
            now: Duration::ZERO,
            rules: 1,
            next_incarnation: 1,
            next_session: 1,
            next_event: 1,
            next_order: 1,
            brake: Duration::ZERO,
            mail_bytes: 0,
        }
    }
}

/// A node that had a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Where it answers.
    pub address: String,
    /// Voter or agent.
    pub role: NodeRole,
    /// Its labels.
    pub labels: BTreeSet<Label>,
    /// Its capacity.
    pub slots: u32,
    /// The node process of its newest session.
    pub pid: u32,
    /// The session under which it is given work; `None` while it is down.
    pub current: Option<SessionId>,
    /// Every session that is not known to be over: the current one, and older ones whose processes may still run.
    pub sessions: BTreeMap<SessionId, Session>,
    /// An operator drains it: it gets no work, and what runs there moves. Outlives its sessions.
    pub drained: bool,
    /// How often it was lost.
    pub losses: u64,
}

/// A node's standing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The nonce of the request that it answered.
    pub nonce: u64,
    /// When it was granted.
    pub since: Duration,
    /// The number of the last observation that was applied.
    pub observed: u64,
    /// The node said that it goes.
    pub leaving: bool,
    /// What is assigned under it.
    pub assigned: OrdSet<Path>,
    /// For whom room is kept under it.
    pub kept: OrdSet<Path>,
    /// The slots that both take.
    pub used: u32,
    /// The number of the last change to what should run here.
    pub revision: u64,
    /// Its lease ended without a word, and only runs that are kept are left of it: *unreachable*. No beat of it is answered any
    /// more; a later session of the same node process takes over what still runs.
    pub silent: bool,
    /// The messages that its workers hold, by the number of the hand.
    pub hands: OrdMap<u64, Held>,
    /// The newest hand.
    pub last_hand: u64,
}

/// What a client was answered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRecord {
    /// When it was last heard.
    pub heard: Duration,
    /// Every sequence below this one is forgotten.
    pub forgotten_below: u64,
    /// The replies, by sequence.
    pub replies: OrdMap<u64, Arc<Outcome>>,
    /// What they weigh, in bytes.
    pub bytes: u64,
}

impl Node {
    /// Whether it is silent, and what is kept there may run on.
    pub fn is_unreachable(&self) -> bool {
        self.current.is_none() && self.sessions.values().any(|session| session.silent)
    }

    /// How many of its sessions may hold a lease that runs: all but those of which only what is kept is left.
    pub fn leases(&self) -> usize {
        self.sessions.values().filter(|session| !session.silent).count()
    }
}

impl Cluster {
    /// The member at `path`.
    pub fn member(&self, path: &Path) -> Option<&Member> {
        self.members.get(path).map(Arc::as_ref)
    }

    /// The supervisor at `path`, where there is one.
    pub fn supervisor(&self, path: &Path) -> Option<&Supervisor> {
        match &self.member(path)?.body {
            Body::Supervisor(supervisor) => Some(supervisor),
            Body::Process(_) => None,
        }
    }

    /// The process at `path`, where there is one.
    pub fn process(&self, path: &Path) -> Option<&Process> {
        match &self.member(path)?.body {
            Body::Process(process) => Some(process),
            Body::Supervisor(_) => None,
        }
    }

    /// What waits for places at `path`: a process, or the next generation of a group.
    pub fn pending_at(&self, path: &Path) -> Option<&Pending> {
        match &self.member(path)?.body {
            Body::Process(Process { phase: ProcessPhase::Pending(pending), .. }) => Some(pending),
            Body::Supervisor(supervisor) => match supervisor.group() {
                Some(Group::Pending { pending, .. }) => Some(pending),
                Some(Group::Settled | Group::TakingDown { .. } | Group::Starting) | None => None,
            },
            Body::Process(_) => None,
        }
    }

    /// The run at `path`, where one counts as running.
    pub fn run(&self, path: &Path) -> Option<&Run> {
        match &self.process(path)?.phase {
            ProcessPhase::Assigned(run) => Some(run),
            ProcessPhase::Down(_) | ProcessPhase::Pending(_) => None,
        }
    }

    /// The session of `node`, where it is not known to be over.
    pub fn session(&self, node: &NodeName, session: SessionId) -> Option<&Session> {
        self.nodes.get(node)?.sessions.get(&session)
    }

    /// Whether nobody knows if a run still runs: its node is silent, and it is kept.
    pub fn is_unreachable(&self, run: &Run) -> bool {
        self.session(&run.node, run.session).is_some_and(|session| session.silent)
    }

    /// The number of the newest event.
    pub fn last_event(&self) -> u64 {
        self.head.next_event - 1
    }

    /// The paths at and below `path`, in tree order: each supervisor before its children, children in start order.
    pub fn walk(&self, path: &Path) -> Vec<Path> {
        let mut found = Vec::new();
        let mut waiting = vec![path.clone()];
        while let Some(path) = waiting.pop() {
            let Some(member) = self.member(&path) else { continue };
            if let Body::Supervisor(supervisor) = &member.body {
                waiting.extend(supervisor.children.iter().rev().map(|id| path.child(id)));
            }
            found.push(path);
        }
        found
    }
}

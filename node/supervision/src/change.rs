//! One application of a command: the state being changed, and what happened on the way.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pando_protocol::cause::{Cause, CauseChain, CauseClass};
use pando_protocol::ids::{NodeName, Path, SessionId};
use pando_protocol::spec::Intensity;

use crate::cluster::{Body, Cluster, HistoryEntry, Member, Node, Process, Session, Supervisor};
use crate::command::{Event, EventKind};

/// Events that the state keeps.
pub const EVENTS_KEPT: usize = 4_096;
/// Folded endings that are kept of each member.
pub const HISTORY_KEPT: usize = 100;

/// The state being changed, and what happened on the way.
pub(crate) struct Change<'a> {
    pub cluster: &'a mut Cluster,
    /// What happened.
    pub events: Vec<Event>,
    /// The wall clock of the stamp, for people.
    pub wall: u64,
    /// Children that began to wait, or whose delay ended, and are to be placed before this application ends.
    pub to_place: BTreeSet<(u64, Path)>,
    /// Whether a node came or room was freed, so that all who wait are to be tried again.
    pub room_changed: bool,
}

impl<'a> Change<'a> {
    pub fn new(cluster: &'a mut Cluster, wall: u64) -> Self {
        Self { cluster, events: Vec::new(), wall, to_place: BTreeSet::new(), room_changed: false }
    }

    pub fn now(&self) -> Duration {
        self.cluster.head.now
    }

    /// The member at `path`, to be changed. Only called with paths that are known to exist.
    pub fn member(&mut self, path: &Path) -> &mut Member {
        // A panic here is a bug of ours: `apply` is restored and answered *internal* by whoever calls it.
        let member = self.cluster.members.get_mut(path).unwrap_or_else(|| panic!("no member {path}"));
        Arc::make_mut(member)
    }

    pub fn process(&mut self, path: &Path) -> &mut Process {
        match &mut self.member(path).body {
            Body::Process(process) => process,
            Body::Supervisor(_) => panic!("{path} is a supervisor"),
        }
    }

    pub fn supervisor(&mut self, path: &Path) -> &mut Supervisor {
        match &mut self.member(path).body {
            Body::Supervisor(supervisor) => supervisor,
            Body::Process(_) => panic!("{path} is a process"),
        }
    }

    pub fn node(&mut self, name: &NodeName) -> &mut Node {
        let node = self.cluster.nodes.get_mut(name).unwrap_or_else(|| panic!("no node {name}"));
        Arc::make_mut(node)
    }

    pub fn session(&mut self, node: &NodeName, id: SessionId) -> Option<&mut Session> {
        let node = self.cluster.nodes.get_mut(node)?;
        Arc::make_mut(node).sessions.get_mut(&id)
    }

    /// Notes that what should run under a session changed.
    pub fn touch(&mut self, node: &NodeName, id: SessionId) {
        if let Some(session) = self.session(node, id) {
            session.revision += 1;
        }
    }

    pub fn event(&mut self, kind: EventKind, path: Option<&Path>, node: Option<&NodeName>, text: String) {
        let number = self.cluster.head.next_event;
        self.cluster.head.next_event += 1;
        let (at, wall) = (self.now(), self.wall);
        let event = Event { number, at, wall, path: path.cloned(), node: node.cloned(), kind, text };
        self.cluster.events.insert(number, Arc::new(event.clone()));
        if self.cluster.events.len() > EVENTS_KEPT
            && let Some(&(oldest, _)) = self.cluster.events.get_min()
        {
            self.cluster.events.remove(&oldest);
        }
        self.events.push(event);
    }

    /// Adds an ending to the history of a member, folded with the one before where they are equal.
    pub fn record(&mut self, path: &Path, entry: HistoryEntry) {
        let member = self.member(path);
        match member.history.last_mut() {
            Some(last) if is_same(last, &entry) => {
                let HistoryEntry { cause, charged, payer, decision, count, first: _, last: at, earlier } = entry;
                let first = last.first;
                let count = last.count + count;
                *last = Arc::new(HistoryEntry { cause, charged, payer, decision, count, first, last: at, earlier });
            }
            _ => {
                if member.history.len() == HISTORY_KEPT {
                    member.history.remove(0);
                }
                member.history.push(Arc::new(entry));
            }
        }
    }
}

/// Whether two endings are equal but for when and in which run they happened. Escalations are never folded: each has its own
/// evidence.
fn is_same(a: &HistoryEntry, b: &HistoryEntry) -> bool {
    let key = |entry: &HistoryEntry| {
        let cause = entry.cause.outermost()?;
        let Cause { path: _, class, message, code, signal, incarnation: _, node: _, stderr } = cause;
        let why = match class {
            // These tell which node was lost, on what proof, or by whose word: one must not hide another.
            CauseClass::NodeLost | CauseClass::Stopped => Some(message.clone()),
            // These tell how long a process ran, which differs each time.
            CauseClass::Normal
            | CauseClass::Crash
            | CauseClass::Unhealthy
            | CauseClass::StartFailed
            | CauseClass::ReaperLost
            | CauseClass::Escalated
            | CauseClass::AutoShutdown => None,
        };
        Some((*class, why, *code, *signal, stderr.clone(), entry.charged))
    };
    let single = |entry: &HistoryEntry| entry.cause.levels.len() == 1 && entry.earlier.is_empty();
    single(a) && single(b) && key(a).is_some() && key(a) == key(b)
}

/// The cause of a supervisor's failure.
pub(crate) fn escalated(path: &Path, message: String) -> Cause {
    Cause {
        path: path.clone(),
        class: CauseClass::Escalated,
        message,
        code: None,
        signal: None,
        incarnation: None,
        node: None,
        stderr: String::new(),
    }
}

/// A duration as people say it: `10 s`, `1.5 s`, `182 ms`, `2 m`.
pub(crate) fn human(duration: Duration) -> String {
    let ms = duration.as_millis();
    match ms {
        0..1_000 => format!("{ms} ms"),
        _ if ms.is_multiple_of(60_000) => format!("{} m", ms / 60_000),
        _ if ms.is_multiple_of(1_000) => format!("{} s", ms / 1_000),
        1_000..60_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        _ => format!("{} s", ms / 1_000),
    }
}

/// A budget as people say it: `5 in 10 s`.
pub(crate) fn budget(intensity: Intensity) -> String {
    match intensity {
        Intensity::Limited { max_restarts, within } => format!("{max_restarts} in {}", human(within)),
        Intensity::Unlimited => "unlimited".into(),
    }
}

/// A chain of one level.
pub(crate) fn chain(cause: Cause) -> Arc<CauseChain> {
    Arc::new(CauseChain::of(cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(class: CauseClass, message: &str) -> HistoryEntry {
        let path: Path = "/t/a".parse().unwrap();
        let cause = Cause { class, ..escalated(&path, message.into()) };
        let (payer, decision) = (String::new(), String::new());
        HistoryEntry {
            cause: chain(cause),
            charged: false,
            payer,
            decision,
            count: 1,
            first: 0,
            last: 0,
            earlier: vec![],
        }
    }

    #[test]
    fn losses_of_different_nodes_or_on_different_proof_stay_apart_in_the_history() {
        let lost = |message| entry(CauseClass::NodeLost, message);
        let by_lease = lost("node n1 lost: silent beyond its lease");
        assert!(is_same(&by_lease, &by_lease.clone()));
        assert!(!is_same(&by_lease, &lost("node n2 lost: silent beyond its lease")));
        assert!(!is_same(&by_lease, &lost("node n1 lost: its process died (obituary)")));
    }

    #[test]
    fn equal_crashes_are_one_line_however_long_each_of_them_ran() {
        let crash = |message| entry(CauseClass::Crash, message);
        assert!(is_same(&crash("exit code 1 after 12 ms"), &crash("exit code 1 after 15 ms")));
    }
}

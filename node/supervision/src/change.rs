//! One application of a command: the state being changed, and what happened on the way.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pando_protocol::cause::{Cause, CauseChain, CauseClass};
use pando_protocol::ids::{NodeName, Path, SessionId};
use pando_protocol::spec::Intensity;

use crate::cluster::{Body, Cluster, HistoryEntry, Member, Node, Process, Session, Supervisor};
use crate::command::{Event, EventKind};
use crate::mutation::{Mutation, broken};

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
    /// Members that changed: the groups they belong to are looked at before this application ends.
    pub unsettled: BTreeSet<Path>,
    /// Mailboxes that changed: they are handed out of before this application ends.
    pub mail_to_hand_out: BTreeSet<Path>,
}

impl<'a> Change<'a> {
    pub fn new(cluster: &'a mut Cluster, wall: u64) -> Self {
        let (to_place, unsettled, mail_to_hand_out) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let (events, room_changed) = (Vec::new(), false);
        Self { cluster, events, wall, to_place, room_changed, unsettled, mail_to_hand_out }
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
            && !broken(Mutation::EventsKeptForEver)
            && let Some(&(oldest, _)) = self.cluster.events.get_min()
        {
            self.cluster.events.remove(&oldest);
        }
        self.events.push(event);
    }

    /// Adds an ending to the history of a member, folded with the one before where they are equal.
    pub fn record(&mut self, path: &Path, mut entry: HistoryEntry) {
        if broken(Mutation::ChainBroken) {
            Arc::make_mut(&mut entry.cause).levels.truncate(1);
        }
        let member = self.member(path);
        match member.history.last_mut() {
            Some(last) if is_same(last, &entry) => {
                let HistoryEntry { cause, charged, payer, decision, count, first: _, last: at, earlier } = entry;
                let first = last.first;
                let count = last.count + count;
                *last = Arc::new(HistoryEntry { cause, charged, payer, decision, count, first, last: at, earlier });
            }
            _ => {
                if member.history.len() == HISTORY_KEPT && !broken(Mutation::HistoryKeptForEver) {
                    member.history.remove(0);
                }
                member.history.push(Arc::new(entry));
            }
        }
    }
}

impl Change<'_> {
    /// Records what was decided about an ending.
    pub fn note(&mut self, path: &Path, cause: &Arc<CauseChain>, charged: bool, payer: String, decision: String) {
        let wall = self.wall;
        let entry = HistoryEntry {
            cause: cause.clone(),
            charged,
            payer,
            decision,
            count: 1,
            first: wall,
            last: wall,
            earlier: Vec::new(),
        };
        self.record(path, entry);
    }

    /// Completes the record of an ending of a supervisor: an escalation stands there since it began.
    pub fn conclude(&mut self, path: &Path, cause: &Arc<CauseChain>, charged: bool, payer: String, decision: String) {
        let wall = self.wall;
        match self.member(path).history.last_mut() {
            // An escalation has at least two levels, and nothing else is recorded between its beginning and its end.
            Some(last) if cause.levels.len() > 1 && last.cause == *cause => {
                let last = Arc::make_mut(last);
                (last.charged, last.payer, last.decision, last.last) = (charged, payer, decision, wall);
            }
            _ => self.note(path, cause, charged, payer, decision),
        }
    }
}

/// Whether two endings are equal but for when and in which run they happened. Escalations are never folded: each has its own
/// evidence. The node counts, because a runner may say *the same standard error as the last time here*.
fn is_same(a: &HistoryEntry, b: &HistoryEntry) -> bool {
    let [a_cause] = a.cause.levels.as_slice() else { return false };
    let [b_cause] = b.cause.levels.as_slice() else { return false };
    let Cause { path: _, class, message, code, signal, incarnation: _, node, stderr } = a_cause;
    let same_cause = (class, code, signal, node, stderr)
        == (&b_cause.class, &b_cause.code, &b_cause.signal, &b_cause.node, &b_cause.stderr);
    // These messages hold the time that the run took; the others say what a class alone does not.
    let timed = matches!(class, CauseClass::Normal | CauseClass::Crash | CauseClass::ReaperLost);
    same_cause && a.charged == b.charged && (timed || *message == b_cause.message)
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

/// The end of a text, at most `limit` bytes: what the world says must not grow the state.
pub(crate) fn clipped(text: &str, limit: usize) -> &str {
    let from = (text.len().saturating_sub(limit)..=text.len()).find(|at| text.is_char_boundary(*at));
    &text[from.unwrap_or(text.len())..]
}

/// A chain of one level.
pub(crate) fn chain(cause: Cause) -> Arc<CauseChain> {
    Arc::new(CauseChain::of(cause))
}

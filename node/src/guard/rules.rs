//! What the guard decides, without a clock or a process: `step(now, event)` says what is to be done.
//!
//! A session may start runs while it is the newest and its kill time has not come; what is over stays over. A run is over
//! when its whole tree is. A run that is kept goes on when its session is over, and only ends by itself, by an order of its
//! own, or with the node: its probes may still start then.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::Duration;

use pando_protocol::ids::SessionId;
use pando_protocol::spec::Signal;

use super::clock::BootTime;
use super::words::{EndedHow, Ending, FromGuard, Order, RunId, StartOrder, ToGuard, Word};

/// How long a reaper may take to end its tree after SIGKILL was ordered. Then it is killed itself: its child dies with it,
/// and the rest falls to the guard. A stopped or starved reaper must not hold up a fence.
pub const REAPER_PATIENCE: Duration = Duration::from_millis(40);

/// Of the sessions that ended while something was kept, the newest so many are named in an obituary. The cluster is told with
/// each new session which run goes on under it, so that older ones matter only where none of those was ever heard; the next
/// node process proves them over.
const SESSIONS_NAMED: usize = 16;

/// What happens to the guard.
#[derive(Debug)]
pub enum Event {
    /// The node says something. A start's descriptors are kept by the caller.
    Node(ToGuard),
    /// The node process is gone.
    NodeGone,
    /// A reaper says something.
    Reaper(RunId, Word),
    /// A reaper is gone, and all its words were heard.
    ReaperGone(RunId),
    /// A reaper could not be made; why.
    NoReaper(RunId, String),
    /// Nothing is left that fell to the guard.
    OrphansGone,
    /// Time passed.
    Tick,
}

/// What the guard is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Fork a reaper for this order.
    Fork(StartOrder),
    /// Close what came with this start: it will not be.
    Refuse(RunId),
    /// Tell the node.
    Tell(FromGuard),
    /// Tell the reaper.
    Order(RunId, Order),
    /// SIGKILL to the reaper itself.
    KillReaper(RunId),
    /// Kill what has no reaper, and say when nothing of it is left.
    EndOrphans,
    /// Everything is gone: report the death of the node under these sessions, and end.
    End(Vec<SessionId>),
}

/// The state of the guard.
#[derive(Debug, Default)]
pub struct Rules {
    /// The newest session that was ever renewed, and whether it is to be named in an obituary.
    newest: Option<(SessionId, bool)>,
    /// Sessions with something left to do or to run.
    sessions: BTreeMap<SessionId, Session>,
    runs: BTreeMap<RunId, Run>,
    /// Sessions that ended while something was kept: an obituary names them too, since what was kept may count under any.
    kept: BTreeSet<SessionId>,
    end: Option<End>,
    actions: Vec<Action>,
}

#[derive(Debug)]
struct Session {
    kill_at: BootTime,
    over: bool,
}

#[derive(Debug)]
struct Run {
    session: SessionId,
    keep: bool,
    reaper: Reaper,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reaper {
    Works,
    /// Ordered to kill, and killed itself at this moment.
    Kills(BootTime),
    /// Killed by us.
    Killed,
    /// Gone without a last word; whether we killed it.
    Lost(bool),
}

/// Why the guard ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    NodeDied,
    NodeLeaves,
    Done,
}

impl Rules {
    /// Takes an event and says what is to be done, in this order.
    pub fn step(&mut self, now: BootTime, event: Event) -> Vec<Action> {
        // Before the event: a renewal that comes after the kill time must not undo it.
        self.fence(now);
        match event {
            Event::Node(word) => self.hear_node(now, word),
            Event::NodeGone => self.end_all(now, End::NodeDied),
            Event::Reaper(run, Word::Started { pid }) => self.started(run, pid),
            Event::Reaper(run, Word::Ended(ending)) => self.ended(run, ending),
            Event::NoReaper(run, why) => {
                let how = EndedHow::StartFailed(why);
                self.ended(run, Ending { how, ran: Duration::ZERO, killed: false });
            }
            Event::ReaperGone(run) => self.reaper_gone(run),
            Event::OrphansGone => self.bury_lost(),
            Event::Tick => {}
        }
        self.fence(now);
        self.lose_patience(now);
        self.forget_empty_sessions();
        self.end_if_done();
        mem::take(&mut self.actions)
    }

    /// When time alone is a reason for the next step.
    pub fn next_deadline(&self) -> Option<BootTime> {
        let fences = self.sessions.values().filter(|session| !session.over).map(|session| session.kill_at);
        let patience = self.runs.values().filter_map(|run| match run.reaper {
            Reaper::Kills(until) => Some(until),
            Reaper::Works | Reaper::Killed | Reaper::Lost(_) => None,
        });
        fences.chain(patience).min()
    }

    fn hear_node(&mut self, now: BootTime, word: ToGuard) {
        match word {
            ToGuard::Configure(_) => self.tell(FromGuard::Configured),
            ToGuard::Renew { session, kill_at } => self.renew(session, kill_at),
            ToGuard::Start(order) => self.start(now, order),
            ToGuard::Stop { run, signal, grace } => self.order(run, Order::Stop { signal, grace }),
            ToGuard::Signal { run, signal } => self.order(run, Order::Signal(signal)),
            ToGuard::Kill { run } => self.kill(now, run),
            ToGuard::EndSession { session } => self.end_session(now, session),
            ToGuard::Leave => self.end_all(now, End::NodeLeaves),
            ToGuard::Call { number } => self.tell(FromGuard::Here { number }),
        }
    }

    fn renew(&mut self, session: SessionId, kill_at: BootTime) {
        let known = self.newest.map_or(SessionId(0), |(newest, _)| newest);
        match self.sessions.get_mut(&session) {
            Some(current) if current.over => return,
            // A renewal that was overtaken takes nothing back.
            Some(current) => current.kill_at = current.kill_at.max(kill_at),
            None if self.newest.is_some() && session <= known => return,
            None => {
                self.newest = Some((session, true));
                self.sessions.insert(session, Session { kill_at, over: false });
            }
        }
        if let Some(current) = self.sessions.get(&session) {
            let kill_at = current.kill_at;
            self.tell(FromGuard::Renewed { session, kill_at });
        }
    }

    fn start(&mut self, now: BootTime, order: StartOrder) {
        let is_newest = self.newest.is_some_and(|(newest, _)| newest == order.session);
        let lives = self.sessions.get(&order.session).is_some_and(|session| !session.over && now < session.kill_at);
        let may_start = is_newest && lives || self.is_probe_of_kept(order.run);
        if !may_start || self.end.is_some() || self.runs.contains_key(&order.run) {
            self.actions.push(Action::Refuse(order.run));
            self.tell(FromGuard::NotStarted { run: order.run });
            return;
        }
        self.runs.insert(order.run, Run { session: order.session, keep: order.keep, reaper: Reaper::Works });
        self.actions.push(Action::Fork(order));
    }

    fn is_probe_of_kept(&self, run: RunId) -> bool {
        let child = self.runs.get(&RunId { probe: 0, ..run });
        run.probe > 0 && child.is_some_and(|child| child.keep && child.reaper == Reaper::Works)
    }

    fn started(&mut self, run: RunId, pid: u32) {
        // The caller knows the reaper's number and puts it in.
        self.tell(FromGuard::Started { run, pid, reaper: 0 });
    }

    fn order(&mut self, run: RunId, order: Order) {
        if self.runs.get(&run).is_some_and(|known| known.reaper == Reaper::Works) {
            self.actions.push(Action::Order(run, order));
        }
    }

    fn kill(&mut self, now: BootTime, run: RunId) {
        let Some(known) = self.runs.get_mut(&run) else { return };
        if known.reaper == Reaper::Works {
            known.reaper = Reaper::Kills(now.plus(REAPER_PATIENCE));
            self.actions.push(Action::Order(run, Order::Kill));
        }
    }

    fn kill_where(&mut self, now: BootTime, doomed: impl Fn(&Run) -> bool) {
        let runs: Vec<RunId> = self.runs.iter().filter(|(_, run)| doomed(run)).map(|(id, _)| *id).collect();
        for run in runs {
            self.kill(now, run);
        }
    }

    /// Kills what runs under a session that is over, but for what is kept.
    fn kill_unkept(&mut self, now: BootTime, session: SessionId) {
        // Whatever session it began under: the cluster counts it under the newest that took it over.
        if self.runs.values().any(|run| run.keep) {
            self.kept.insert(session);
            if self.kept.len() > SESSIONS_NAMED {
                self.kept.pop_first();
            }
        }
        self.kill_where(now, |run| run.session == session && !run.keep);
    }

    fn end_session(&mut self, now: BootTime, session: SessionId) {
        if let Some((newest, named)) = &mut self.newest
            && *newest == session
        {
            *named = false;
        }
        if let Some(current) = self.sessions.get_mut(&session) {
            current.over = true;
            self.kill_unkept(now, session);
        }
    }

    fn end_all(&mut self, now: BootTime, end: End) {
        // A node that left is not dead, also when its socket closes afterwards.
        self.end.get_or_insert(end);
        for session in self.sessions.values_mut() {
            session.over = true;
        }
        self.kill_where(now, |_| true);
    }

    fn fence(&mut self, now: BootTime) {
        let due = self.sessions.iter_mut().filter(|(_, session)| !session.over && session.kill_at <= now);
        let due: Vec<SessionId> = due
            .map(|(id, session)| {
                session.over = true;
                *id
            })
            .collect();
        for session in due {
            self.tell(FromGuard::Fenced { session });
            self.kill_unkept(now, session);
        }
    }

    fn lose_patience(&mut self, now: BootTime) {
        for (id, run) in &mut self.runs {
            if matches!(run.reaper, Reaper::Kills(until) if until <= now) {
                run.reaper = Reaper::Killed;
                self.actions.push(Action::KillReaper(*id));
            }
        }
    }

    fn ended(&mut self, run: RunId, mut ending: Ending) {
        if let Some(known) = self.runs.remove(&run) {
            // The guard's own SIGKILL may come before the order to the reaper.
            ending.killed |= known.reaper != Reaper::Works && ending.how == EndedHow::Signal(Signal::KILL);
            self.tell(FromGuard::Ended { run, ending });
        }
    }

    fn reaper_gone(&mut self, run: RunId) {
        let Some(known) = self.runs.get_mut(&run) else { return };
        known.reaper = Reaper::Lost(known.reaper != Reaper::Works);
        self.actions.push(Action::EndOrphans);
    }

    /// Nothing is left of any lost run. Where we had ordered its end, it ended by our SIGKILL.
    fn bury_lost(&mut self) {
        let lost: Vec<(RunId, bool)> = self
            .runs
            .iter()
            .filter_map(|(id, run)| match run.reaper {
                Reaper::Lost(killed) => Some((*id, killed)),
                Reaper::Works | Reaper::Kills(_) | Reaper::Killed => None,
            })
            .collect();
        for (run, killed) in lost {
            let how = if killed { EndedHow::Signal(Signal::KILL) } else { EndedHow::ReaperLost };
            self.ended(run, Ending { how, ran: Duration::ZERO, killed });
        }
    }

    fn forget_empty_sessions(&mut self) {
        let runs = &self.runs;
        let gone: Vec<SessionId> = self
            .sessions
            .iter()
            .filter(|(id, session)| session.over && !runs.values().any(|run| run.session == **id && !run.keep))
            .map(|(id, _)| *id)
            .collect();
        for session in gone {
            self.sessions.remove(&session);
            self.tell(FromGuard::Gone { session });
        }
    }

    fn end_if_done(&mut self) {
        let Some(end) = self.end else { return };
        if end == End::Done || !self.runs.is_empty() {
            return;
        }
        let newest = self.newest.filter(|(_, named)| *named).map(|(session, _)| session);
        let named = self.kept.iter().copied().chain(newest).filter(|_| end == End::NodeDied);
        let named: BTreeSet<SessionId> = named.collect();
        self.end = Some(End::Done);
        // The newest first: what runs counts there, more often than not.
        self.actions.push(Action::End(named.into_iter().rev().collect()));
    }

    fn tell(&mut self, word: FromGuard) {
        self.actions.push(Action::Tell(word));
    }
}

#[cfg(test)]
mod tests;

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
mod tests {
    use pando_protocol::ids::Incarnation;

    use super::*;

    const SESSION: SessionId = SessionId(3);

    fn at(milliseconds: u64) -> BootTime {
        BootTime::after_boot(Duration::from_millis(milliseconds))
    }

    fn run(number: u64) -> RunId {
        RunId { incarnation: Incarnation(number), probe: 0 }
    }

    fn order(number: u64, session: SessionId) -> StartOrder {
        StartOrder {
            run: run(number),
            session,
            command: vec!["true".into()],
            environment: Vec::new(),
            folder: b"/".to_vec(),
            make_folder: false,
            keep: false,
        }
    }

    fn start(number: u64, session: SessionId) -> Event {
        Event::Node(ToGuard::Start(order(number, session)))
    }

    fn renew(session: SessionId, kill_at: u64) -> Event {
        Event::Node(ToGuard::Renew { session, kill_at: at(kill_at) })
    }

    fn ended(number: u64, how: EndedHow, killed: bool) -> FromGuard {
        FromGuard::Ended { run: run(number), ending: Ending { how, ran: Duration::ZERO, killed } }
    }

    fn last_word(number: u64) -> Event {
        let ending = Ending { how: EndedHow::Code(0), ran: Duration::ZERO, killed: false };
        Event::Reaper(run(number), Word::Ended(ending))
    }

    /// Run 1 works under [`SESSION`], whose kill time is 1000.
    fn guarded() -> Rules {
        let mut rules = Rules::default();
        rules.step(at(0), renew(SESSION, 1000));
        assert_eq!(rules.step(at(0), start(1, SESSION)), [Action::Fork(order(1, SESSION))]);
        rules
    }

    fn refused(number: u64) -> [Action; 2] {
        [Action::Refuse(run(number)), Action::Tell(FromGuard::NotStarted { run: run(number) })]
    }

    #[test]
    fn nothing_starts_without_a_session_or_for_one_that_is_not_the_newest() {
        let mut rules = Rules::default();
        assert_eq!(rules.step(at(0), start(1, SESSION)), refused(1));
        rules.step(at(0), renew(SESSION, 1000));
        rules.step(at(0), renew(SessionId(4), 1000));
        assert_eq!(rules.step(at(0), start(2, SESSION)), refused(2));
        assert_eq!(rules.step(at(0), start(3, SessionId(4))), [Action::Fork(order(3, SessionId(4)))]);
        assert_eq!(rules.step(at(0), start(3, SessionId(4))), refused(3), "a run starts once");
    }

    #[test]
    fn a_renewal_that_comes_at_the_kill_time_is_too_late() {
        let mut rules = guarded();
        let actions = rules.step(at(1000), renew(SESSION, 9000));
        assert_eq!(actions, [Action::Tell(FromGuard::Fenced { session: SESSION }), Action::Order(run(1), Order::Kill)]);
        assert_eq!(rules.step(at(1000), start(2, SESSION)), refused(2));
        let told = rules.step(at(1001), last_word(1));
        assert_eq!(
            told,
            [Action::Tell(ended(1, EndedHow::Code(0), false)), Action::Tell(FromGuard::Gone { session: SESSION })]
        );
        assert_eq!(rules.step(at(1002), renew(SESSION, 9000)), [], "what is over stays over");
        assert_eq!(rules.step(at(1002), start(2, SESSION)), refused(2));
    }

    #[test]
    fn a_renewal_that_was_overtaken_takes_nothing_back() {
        let mut rules = guarded();
        let kept = FromGuard::Renewed { session: SESSION, kill_at: at(1000) };
        assert_eq!(rules.step(at(1), renew(SESSION, 500)), [Action::Tell(kept)]);
        assert_eq!(rules.next_deadline(), Some(at(1000)));
        assert_eq!(rules.step(at(999), Event::Tick), []);
    }

    #[test]
    fn a_reaper_that_does_not_obey_is_killed_and_its_run_counts_as_killed() {
        let mut rules = guarded();
        let kill = Event::Node(ToGuard::Kill { run: run(1) });
        assert_eq!(rules.step(at(10), kill), [Action::Order(run(1), Order::Kill)]);
        let patience = at(10).plus(REAPER_PATIENCE);
        assert_eq!(rules.next_deadline(), Some(patience));
        assert_eq!(rules.step(patience, Event::Tick), [Action::KillReaper(run(1))]);
        assert_eq!(rules.step(patience, Event::ReaperGone(run(1))), [Action::EndOrphans]);
        let told = rules.step(patience, Event::OrphansGone);
        assert_eq!(told, [Action::Tell(ended(1, EndedHow::Signal(Signal::KILL), true))]);
    }

    #[test]
    fn a_reaper_that_is_gone_without_a_last_word_is_lost_once_its_orphans_are_gone() {
        let mut rules = guarded();
        assert_eq!(rules.step(at(10), Event::ReaperGone(run(1))), [Action::EndOrphans]);
        let told = rules.step(at(11), Event::OrphansGone);
        assert_eq!(told, [Action::Tell(ended(1, EndedHow::ReaperLost, false))]);
        let mut rules = guarded();
        rules.step(at(10), last_word(1));
        assert_eq!(rules.step(at(10), Event::ReaperGone(run(1))), [], "after its last word it may go");
    }

    #[test]
    fn the_death_of_the_node_is_reported_when_the_last_run_is_gone() {
        let mut rules = guarded();
        assert_eq!(rules.step(at(10), Event::NodeGone), [Action::Order(run(1), Order::Kill)]);
        let actions = rules.step(at(11), last_word(1));
        assert_eq!(actions.last(), Some(&Action::End(vec![SESSION])));
        assert_eq!(rules.step(at(12), Event::Tick), [], "once");
    }

    #[test]
    fn a_node_that_left_or_ended_its_session_gets_no_obituary() {
        let mut rules = guarded();
        rules.step(at(10), Event::Node(ToGuard::Leave));
        assert_eq!(rules.step(at(10), start(2, SESSION)), refused(2));
        rules.step(at(11), Event::NodeGone);
        assert_eq!(rules.step(at(12), last_word(1)).last(), Some(&Action::End(vec![])));

        let mut rules = guarded();
        let over = Event::Node(ToGuard::EndSession { session: SESSION });
        assert_eq!(rules.step(at(10), over), [Action::Order(run(1), Order::Kill)]);
        rules.step(at(11), last_word(1));
        assert_eq!(rules.step(at(12), Event::NodeGone), [Action::End(vec![])]);
    }

    #[test]
    fn a_fenced_session_is_still_named_since_the_cluster_may_wait_for_its_lease() {
        let mut rules = guarded();
        rules.step(at(1000), Event::Tick);
        rules.step(at(1001), last_word(1));
        assert_eq!(rules.step(at(1002), Event::NodeGone), [Action::End(vec![SESSION])]);
    }

    /// Run 1 works under [`SESSION`], whose kill time is 1000, and run 2 is kept there.
    fn keeping() -> Rules {
        let mut rules = guarded();
        let order = kept(2);
        assert_eq!(rules.step(at(0), Event::Node(ToGuard::Start(order.clone()))), [Action::Fork(order)]);
        rules
    }

    fn kept(number: u64) -> StartOrder {
        StartOrder { keep: true, ..order(number, SESSION) }
    }

    #[test]
    fn what_is_kept_outlives_its_session_and_ends_by_an_order_of_its_own() {
        for by_word in [false, true] {
            let mut rules = keeping();
            let (now, event) =
                if by_word { (10, Event::Node(ToGuard::EndSession { session: SESSION })) } else { (1000, Event::Tick) };
            let actions = rules.step(at(now), event);
            assert_eq!(actions.last(), Some(&Action::Order(run(1), Order::Kill)));
            assert!(!actions.contains(&Action::Order(run(2), Order::Kill)), "{actions:?}");
            let gone = Action::Tell(FromGuard::Gone { session: SESSION });
            assert_eq!(rules.step(at(now), last_word(1)).last(), Some(&gone), "nothing else is left");
            assert_eq!(rules.step(at(now), start(3, SESSION)), refused(3), "what is over stays over");
            let stop = ToGuard::Stop { run: run(2), signal: Signal::TERM, grace: None };
            let ordered = Action::Order(run(2), Order::Stop { signal: Signal::TERM, grace: None });
            assert_eq!(rules.step(at(60_000), Event::Node(stop)), [ordered]);
            let ended = Action::Tell(ended(2, EndedHow::Code(0), false));
            assert_eq!(rules.step(at(60_001), last_word(2)), [ended]);
        }
    }

    #[test]
    fn a_probe_of_what_is_kept_starts_after_its_session_while_the_child_runs() {
        let mut rules = keeping();
        rules.step(at(1000), Event::Tick);
        let probe = |number, probe| StartOrder { run: RunId { probe, ..run(number) }, ..kept(number) };
        let starts = |rules: &mut Rules, order: StartOrder| {
            rules.step(at(1010), Event::Node(ToGuard::Start(order.clone()))).contains(&Action::Fork(order))
        };
        assert!(starts(&mut rules, probe(2, 1)));
        assert!(!starts(&mut rules, probe(1, 1)), "run 1 is not kept");
        rules.step(at(1010), last_word(2));
        assert!(!starts(&mut rules, probe(2, 2)), "nothing is there to be probed");
    }

    #[test]
    fn the_death_of_the_node_kills_what_is_kept_and_names_every_session_it_may_count_under() {
        let mut rules = keeping();
        rules.step(at(1000), Event::Tick);
        rules.step(at(1001), last_word(1));
        rules.step(at(1002), renew(SessionId(5), 3000));
        rules.step(at(1003), Event::Node(ToGuard::EndSession { session: SessionId(5) }));
        assert_eq!(rules.step(at(2000), Event::NodeGone), [Action::Order(run(2), Order::Kill)]);
        let end = Action::End(vec![SessionId(5), SESSION]);
        assert_eq!(rules.step(at(2001), last_word(2)).last(), Some(&end), "the newest first");
    }
}

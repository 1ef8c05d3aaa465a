//! The runner's loop on virtual time, between a leader and processes that the test plays.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use openraft_rt_sim::{SimInstant, SimJoinHandle, SimRuntime};
use pando_protocol::cause::{Exit, ExitHow, OutOfMemory};
use pando_protocol::session::{Ending, Wanted};
use pando_protocol::spec::Command;
use tempfile::TempDir;

use super::*;

const LEASE: Duration = Duration::from_secs(2);
const BEAT: Duration = Duration::from_millis(200);
const FIRST: SessionId = SessionId(1);
const SECOND: SessionId = SessionId(2);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Order {
    Start(Incarnation),
    Stop(Incarnation),
    Kill(Incarnation),
    EndSession(SessionId),
    KillGuard,
}

/// The processes of a node, and their guard.
struct Played {
    orders: Arc<Mutex<Vec<Order>>>,
    events: mpsc::Sender<ChildEvent>,
    guard: Arc<Mutex<Guard>>,
    kill_at: Arc<Mutex<Option<(SessionId, BootTime)>>>,
    began: SimInstant,
}

/// What the guard does. Nothing is ever gone but by the word of the test.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Guard {
    /// Confirms, answers and fences.
    Works,
    /// Confirms and answers, and forgets to kill.
    Forgets,
    /// Answers calls, and confirms no kill time.
    Ignores,
    /// Does nothing any more.
    Hangs,
}

impl Played {
    fn note(&self, order: Order) {
        self.orders.lock().unwrap().push(order);
    }
}

impl Processes for Played {
    fn now(&self) -> BootTime {
        BootTime::after_boot(self.began.elapsed())
    }
    fn start(&mut self, _: Path, incarnation: Incarnation, _: SessionId, _: Arc<ProcessSpec>) {
        self.note(Order::Start(incarnation));
    }
    fn stop(&mut self, incarnation: Incarnation) {
        self.note(Order::Stop(incarnation));
    }
    fn kill(&mut self, incarnation: Incarnation) {
        self.note(Order::Kill(incarnation));
    }
    fn signal(&mut self, incarnation: Incarnation, _: Signal, reply: SignalReply) {
        _ = reply.send(Ok(Signalled { incarnation, pid: 7 }));
    }
    fn renew(&mut self, session: SessionId, kill_at: BootTime) {
        if matches!(*self.guard.lock().unwrap(), Guard::Ignores | Guard::Hangs) {
            return;
        }
        self.events.try_send(ChildEvent::Renewed { session, kill_at }).unwrap();
        *self.kill_at.lock().unwrap() = Some((session, kill_at));
        let (guard, current, events) = (self.guard.clone(), self.kill_at.clone(), self.events.clone());
        let wait = kill_at.since(self.now());
        drop(SimRuntime::spawn(async move {
            SimRuntime::sleep(wait).await;
            let is_due = *current.lock().unwrap() == Some((session, kill_at));
            if is_due && *guard.lock().unwrap() == Guard::Works {
                _ = events.try_send(ChildEvent::Fenced { session });
            }
        }));
    }
    fn end_session(&mut self, session: SessionId) {
        *self.kill_at.lock().unwrap() = None;
        self.note(Order::EndSession(session));
    }
    fn call_guard(&mut self, number: u64) {
        if *self.guard.lock().unwrap() != Guard::Hangs {
            self.events.try_send(ChildEvent::GuardAnswered { number }).unwrap();
        }
    }
    fn kill_guard(&mut self) {
        self.note(Order::KillGuard);
    }
}

struct World {
    words: mpsc::Receiver<RunnerWord>,
    heard: mpsc::Sender<Heard>,
    events: mpsc::Sender<ChildEvent>,
    orders: Arc<Mutex<Vec<Order>>>,
    guard: Arc<Mutex<Guard>>,
    stop: CancellationToken,
    running: Option<SimJoinHandle<Result<(), RunnerError>>>,
    /// Whether beats are answered.
    answers: bool,
    _folder: TempDir,
}

fn play(guard: Guard, test: impl AsyncFnOnce(&mut World)) {
    SimRuntime::with_seed(0).block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let (say, words) = mpsc::channel(1_000);
        let (heard, hearing) = mpsc::channel(1_000);
        let (events, children) = mpsc::channel(1_000);
        let orders = Arc::new(Mutex::new(Vec::new()));
        let guard = Arc::new(Mutex::new(guard));
        let played = Played {
            orders: orders.clone(),
            events: events.clone(),
            guard: guard.clone(),
            kill_at: Arc::default(),
            began: SimInstant::now(),
        };
        let facts = Facts {
            node: "n1".parse().unwrap(),
            address: "n1:1".into(),
            role: NodeRole::Agent,
            labels: vec![],
            slots: 8,
            pid: 1,
        };
        let voters = Voters::new(BTreeMap::from([(leader(), say)]));
        let record = SessionRecord::open(folder.path(), super::super::place::tests::place()).unwrap();
        let pace = Pace { beat: BEAT, lease: LEASE };
        let (runner, _handle) = Runner::<SimRuntime, _>::new(facts, pace, voters, played, record, another);
        let stop = CancellationToken::new();
        let feeds = Feeds { heard: hearing, children, stop: stop.clone() };
        let running = Some(SimRuntime::spawn(runner.run(feeds)));
        test(&mut World { words, heard, events, orders, guard, stop, running, answers: true, _folder: folder }).await;
    });
}

/// Numbers that differ, as dice are taken to.
fn another() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn leader() -> NodeName {
    "n9".parse().unwrap()
}

fn path() -> Path {
    "/t/a".parse().unwrap()
}

fn wanted(number: u64) -> Wanted {
    let spec = Arc::new(ProcessSpec::new(Command { program: "true".into(), args: vec![] }));
    Wanted { path: path(), incarnation: Incarnation(number), after: None, delay: Duration::ZERO, spec }
}

fn kept(number: u64) -> Wanted {
    let mut spec = ProcessSpec::new(Command { program: "true".into(), args: vec![] });
    spec.on_disconnect = OnDisconnect::Keep;
    Wanted { spec: Arc::new(spec), ..wanted(number) }
}

fn ending(number: u64) -> Ending {
    Ending { path: path(), incarnation: Incarnation(number) }
}

fn exited(number: u64) -> ChildEvent {
    let how = ExitHow::Code(1);
    let exit = Exit { how, ran: BEAT, healthy: None, out_of_memory: OutOfMemory::No, stderr: None };
    ChildEvent::Exited { path: path(), incarnation: Incarnation(number), exit, at: std::time::Instant::now() }
}

impl World {
    async fn tell(&self, word: LeaderWord) {
        self.heard.send(Heard::Word(leader(), word)).await.unwrap();
    }

    async fn desire(&self, session: SessionId, index: u64, run: Vec<Wanted>, end: Vec<u64>) {
        let end = end.into_iter().map(|number| Ending { path: path(), incarnation: Incarnation(number) }).collect();
        self.tell(LeaderWord::Desired(Desired { session, index, run, end })).await;
    }

    /// The next word that is no beat; beats are answered on the way.
    async fn word(&mut self) -> RunnerWord {
        loop {
            match self.words.recv().await.expect("the runner has ended") {
                RunnerWord::Beat { session, number, .. } if self.answers => {
                    self.tell(LeaderWord::Answer { session, number }).await;
                }
                RunnerWord::Beat { .. } => {}
                word => return word,
            }
        }
    }

    fn guard_does(&self, guard: Guard) {
        *self.guard.lock().unwrap() = guard;
    }

    async fn grant(&mut self, session: SessionId) -> SessionRequest {
        let RunnerWord::Ask(request) = self.word().await else { panic!("it does not ask") };
        self.tell(LeaderWord::Granted { nonce: request.nonce, session }).await;
        request
    }

    async fn observed(&mut self) -> (SessionId, u64, Observation) {
        match self.word().await {
            RunnerWord::Observe { session, number, observation } => (session, number, observation),
            other => panic!("{other:?} instead of an observation"),
        }
    }

    /// Plays for this long; what is said but beats comes back.
    async fn pass(&mut self, time: Duration) -> Vec<RunnerWord> {
        let until = SimInstant::now() + time;
        let mut words = Vec::new();
        while let Ok(word) = SimRuntime::timeout_at(until, self.word()).await {
            words.push(word);
        }
        words
    }

    fn orders(&self) -> Vec<Order> {
        std::mem::take(&mut self.orders.lock().unwrap())
    }

    async fn ended(&mut self) -> Result<(), RunnerError> {
        let running = self.running.take().unwrap();
        SimRuntime::timeout(Duration::from_secs(60), running).await.expect("it does not end").unwrap()
    }
}

#[test]
fn a_fenced_session_is_over_at_once_and_the_next_request_proves_it() {
    play(Guard::Works, async |world| {
        world.grant(FIRST).await;
        world.pass(BEAT * 3).await;
        world.events.send(ChildEvent::Fenced { session: FIRST }).await.unwrap();
        world.events.send(ChildEvent::SessionGone { session: FIRST }).await.unwrap();
        let request = world.grant(SECOND).await;
        assert_eq!(request.proven_over, [FIRST]);
        assert_eq!(world.orders(), [Order::EndSession(FIRST)]);
        // The answers to the second session's beats are confirmed by the guard: it goes on.
        world.pass(LEASE * 3).await;
        world.desire(SECOND, 9, vec![wanted(5)], vec![]).await;
        world.pass(BEAT).await;
        assert_eq!(world.orders(), [Order::Start(Incarnation(5))]);
    });
}

#[test]
fn nothing_is_done_or_said_under_a_session_after_its_lease() {
    play(Guard::Works, async |world| {
        world.grant(FIRST).await;
        world.desire(FIRST, 5, vec![wanted(1)], vec![]).await;
        world.answers = false;
        let words = world.pass(LEASE + BEAT).await;
        assert!(words.iter().all(|word| matches!(word, RunnerWord::Ask(_))), "{words:?}");
        assert_eq!(world.orders(), [Order::Start(Incarnation(1)), Order::EndSession(FIRST)]);
        world.desire(FIRST, 6, vec![wanted(2)], vec![]).await;
        world.events.send(exited(1)).await.unwrap();
        let words = world.pass(LEASE * 2).await;
        assert!(words.iter().all(|word| matches!(word, RunnerWord::Ask(_))), "{words:?}");
        assert_eq!(world.orders(), []);
    });
}

#[test]
fn a_new_session_is_asked_for_without_proof_where_the_old_ones_processes_do_not_go() {
    play(Guard::Works, async |world| {
        world.grant(FIRST).await;
        world.tell(LeaderWord::Over { session: FIRST }).await;
        assert_eq!(world.pass(LINGER_LIMIT - BEAT).await, []);
        assert_eq!(world.grant(SECOND).await.proven_over, []);
    });
}

#[test]
fn a_session_that_is_granted_too_late_is_left_at_once_and_one_that_was_begun_never_is() {
    play(Guard::Works, async |world| {
        let RunnerWord::Ask(first) = world.word().await else { panic!("it does not ask") };
        let asked = world.pass(LEASE * 3).await;
        let is_newer = |word: &RunnerWord| matches!(word, RunnerWord::Ask(later) if later.nonce != first.nonce);
        assert!(asked.iter().any(is_newer), "{asked:?}");
        world.tell(LeaderWord::Granted { nonce: first.nonce, session: FIRST }).await;
        let words = world.pass(BEAT).await;
        let left = RunnerWord::Observe { session: FIRST, number: 1, observation: Observation::Left };
        assert_eq!(words.iter().filter(|word| **word == left).count(), 1, "{words:?}");
        // Not begun, whatever it is told to run.
        world.desire(FIRST, 5, vec![wanted(1)], vec![]).await;
        let request = world.grant(SECOND).await;
        assert_eq!(request.proven_over, []);
        world.tell(LeaderWord::Granted { nonce: request.nonce, session: SECOND }).await;
        assert_eq!(world.pass(BEAT).await, []);
        world.tell(LeaderWord::Over { session: SECOND }).await;
        world.tell(LeaderWord::Granted { nonce: request.nonce, session: SECOND }).await;
        let words = world.pass(LINGER_LIMIT + BEAT * 2).await;
        assert!(words.iter().all(|word| matches!(word, RunnerWord::Ask(_))), "its processes may be there: {words:?}");
        assert_eq!(world.orders(), [Order::EndSession(SECOND)]);
    });
}

#[test]
fn an_observation_is_said_again_until_it_is_applied() {
    play(Guard::Works, async |world| {
        world.grant(FIRST).await;
        world.desire(FIRST, 5, vec![wanted(1)], vec![]).await;
        world.pass(BEAT).await;
        world.events.send(exited(1)).await.unwrap();
        for _ in 0..3 {
            let (session, number, observation) = world.observed().await;
            assert!(session == FIRST && number == 1 && matches!(observation, Observation::Exited { .. }));
        }
        world.tell(LeaderWord::Applied { session: FIRST, through: 1 }).await;
        assert_eq!(world.pass(LEASE).await, []);
    });
}

#[test]
fn a_node_that_goes_promises_what_was_assigned_meanwhile_and_then_says_that_it_left() {
    play(Guard::Works, async |world| {
        world.grant(FIRST).await;
        world.desire(FIRST, 5, vec![wanted(1)], vec![]).await;
        world.pass(BEAT).await;
        world.stop.cancel();
        assert_eq!(world.observed().await.2, Observation::Leaving);
        // Assigned before the cluster knew, and to be ended since it knows.
        world.desire(FIRST, 6, vec![wanted(1), wanted(2)], vec![]).await;
        world.pass(BEAT / 2).await;
        assert_eq!(
            world.orders(),
            [Order::Start(Incarnation(1))],
            "nothing more is started, and nothing stopped unasked"
        );
        world.desire(FIRST, 7, vec![], vec![1, 2]).await;
        let promise = Observation::NeverStarted { path: path(), incarnation: Incarnation(2) };
        assert_eq!(world.observed().await, (FIRST, 2, promise));
        assert_eq!(world.orders(), [Order::Stop(Incarnation(1))]);
        world.events.send(exited(1)).await.unwrap();
        assert_eq!(world.observed().await.1, 3);
        world.tell(LeaderWord::Applied { session: FIRST, through: 3 }).await;
        assert_eq!(world.observed().await, (FIRST, 4, Observation::Left));
        world.tell(LeaderWord::Applied { session: FIRST, through: 4 }).await;
        world.ended().await.unwrap();
        assert_eq!(world.orders(), []);
    });
}

#[test]
fn a_node_that_goes_stops_one_child_after_the_other_where_the_cluster_says_so() {
    play(Guard::Works, async |world| {
        world.grant(FIRST).await;
        world.desire(FIRST, 5, vec![wanted(1), wanted(2), wanted(3)], vec![]).await;
        world.pass(BEAT).await;
        assert_eq!(world.orders(), [1, 2, 3].map(|number| Order::Start(Incarnation(number))));
        world.stop.cancel();
        assert_eq!(world.observed().await.2, Observation::Leaving);
        world.tell(LeaderWord::Applied { session: FIRST, through: 1 }).await;
        for (count, last) in [3, 2, 1].into_iter().enumerate() {
            let run = (1..last).map(wanted).collect();
            world.desire(FIRST, 6 + count as u64, run, vec![last]).await;
            // Longer than a lease: who is heard need not hurry.
            assert_eq!(world.pass(LEASE * 2).await, []);
            assert_eq!(world.orders(), [Order::Stop(Incarnation(last))]);
            world.events.send(exited(last)).await.unwrap();
            let (_, through, _) = world.observed().await;
            world.tell(LeaderWord::Applied { session: FIRST, through }).await;
        }
        assert_eq!(world.observed().await.2, Observation::Left);
    });
}

#[test]
fn a_node_that_goes_and_is_not_heard_stops_all_itself_while_its_lease_lasts() {
    for is_answered in [true, false] {
        play(Guard::Works, async |world| {
            world.grant(FIRST).await;
            world.desire(FIRST, 5, vec![wanted(1), wanted(2)], vec![]).await;
            world.pass(BEAT).await;
            world.orders();
            world.stop.cancel();
            assert_eq!(world.observed().await.2, Observation::Leaving);
            if !is_answered {
                // It was heard, and then the majority went.
                world.tell(LeaderWord::Applied { session: FIRST, through: 1 }).await;
                world.answers = false;
            }
            world.pass(LEASE / 2 - BEAT * 2).await;
            assert_eq!(world.orders(), []);
            world.pass(BEAT * 4).await;
            assert_eq!(world.orders(), [Order::Stop(Incarnation(2)), Order::Stop(Incarnation(1))], "{is_answered}");
        });
    }
}

#[test]
fn a_node_whose_time_to_go_is_nearly_up_stops_the_rest_at_once() {
    play(Guard::Works, async |world| {
        world.grant(FIRST).await;
        world.desire(FIRST, 5, vec![wanted(1), wanted(2), wanted(3)], vec![]).await;
        world.pass(BEAT).await;
        world.orders();
        world.stop.cancel();
        world.tell(LeaderWord::Applied { session: FIRST, through: 1 }).await;
        world.desire(FIRST, 6, vec![wanted(1), wanted(2)], vec![3]).await;
        world.pass(LEAVE_LIMIT - STOP_TOGETHER - BEAT * 2).await;
        assert_eq!(world.orders(), [Order::Stop(Incarnation(3))]);
        world.pass(BEAT * 4).await;
        assert_eq!(world.orders(), [Order::Stop(Incarnation(2)), Order::Stop(Incarnation(1))]);
    });
}

#[test]
fn a_node_that_goes_does_not_ask_for_another_session_when_its_own_ends_meanwhile() {
    for over in [true, false] {
        play(Guard::Works, async |world| {
            world.grant(FIRST).await;
            world.desire(FIRST, 5, vec![wanted(1)], vec![]).await;
            world.pass(BEAT).await;
            world.stop.cancel();
            world.answers = false;
            if over {
                world.tell(LeaderWord::Over { session: FIRST }).await;
            }
            world.ended().await.unwrap();
            assert_eq!(world.orders().last(), Some(&Order::EndSession(FIRST)));
        });
    }
}

#[test]
fn a_node_that_goes_kills_what_does_not_stop_in_time() {
    play(Guard::Works, async |world| {
        world.grant(FIRST).await;
        world.desire(FIRST, 5, vec![wanted(1)], vec![]).await;
        world.pass(BEAT).await;
        world.stop.cancel();
        world.tell(LeaderWord::Applied { session: FIRST, through: 1 }).await;
        world.desire(FIRST, 6, vec![], vec![1]).await;
        world.pass(LEAVE_LIMIT - BEAT * 2).await;
        assert_eq!(world.orders(), [Order::Start(Incarnation(1)), Order::Stop(Incarnation(1))]);
        world.pass(BEAT * 4).await;
        assert_eq!(world.orders(), [Order::Kill(Incarnation(1))]);
        world.events.send(exited(1)).await.unwrap();
        assert!(matches!(world.observed().await.2, Observation::Exited { .. }));
        world.tell(LeaderWord::Applied { session: FIRST, through: 2 }).await;
        assert_eq!(world.observed().await.2, Observation::Left);
        world.tell(LeaderWord::Applied { session: FIRST, through: 3 }).await;
        world.ended().await.unwrap();
    });
}

#[test]
fn a_guard_that_confirms_no_kill_time_is_killed_and_the_node_ends_once_all_is_gone() {
    play(Guard::Ignores, async |world| {
        world.grant(FIRST).await;
        assert_eq!(world.pass(LEASE / 2 + BEAT).await, []);
        assert_eq!(world.orders(), [Order::KillGuard]);
        let beats = SimRuntime::timeout(LEASE, world.words.recv()).await;
        assert!(beats.is_err(), "nothing is said any more: {beats:?}");
        world.events.send(exited(1)).await.unwrap();
        world.events.send(ChildEvent::GuardLost { nothing_left: true }).await.unwrap();
        assert!(matches!(world.ended().await, Err(RunnerError::GuardSilent { silence: Silence::Unanswered(_), .. })));
    });
}

#[test]
fn a_node_that_is_cut_off_finds_its_hung_guard_and_kills_everything_before_its_lease_ends() {
    play(Guard::Works, async |world| {
        world.grant(FIRST).await;
        world.desire(FIRST, 5, vec![wanted(1)], vec![]).await;
        world.pass(BEAT).await;
        world.answers = false;
        world.guard_does(Guard::Hangs);
        world.pass(LEASE - BEAT * 2).await;
        assert_eq!(world.orders(), [Order::Start(Incarnation(1)), Order::KillGuard]);
        world.events.send(ChildEvent::GuardLost { nothing_left: true }).await.unwrap();
        assert!(matches!(world.ended().await, Err(RunnerError::GuardSilent { silence: Silence::Unanswered(_), .. })));
    });
}

#[test]
fn a_lease_that_ends_without_the_guards_word_that_it_killed_ends_the_node() {
    play(Guard::Forgets, async |world| {
        world.grant(FIRST).await;
        world.answers = false;
        assert_eq!(world.pass(LEASE + BEAT).await, [], "no session is asked for");
        assert_eq!(world.orders(), [Order::KillGuard]);
        world.events.send(ChildEvent::GuardLost { nothing_left: true }).await.unwrap();
        assert!(matches!(world.ended().await, Err(RunnerError::GuardSilent { silence: Silence::Unfenced, .. })));
    });
}

#[test]
fn a_node_whose_guard_is_lost_names_the_sessions_that_are_over_and_none_where_that_is_not_known() {
    for nothing_left in [true, false] {
        play(Guard::Works, async |world| {
            world.grant(FIRST).await;
            world.tell(LeaderWord::Over { session: FIRST }).await;
            world.pass(LINGER_LIMIT - BEAT).await;
            world.grant(SECOND).await;
            world.pass(BEAT).await;
            world.events.send(ChildEvent::GuardLost { nothing_left }).await.unwrap();
            let error = world.ended().await.unwrap_err();
            let expected: &[SessionId] = if nothing_left { &[FIRST, SECOND] } else { &[] };
            assert_eq!(error.known_over(), expected, "{error}");
        });
    }
}

#[test]
fn no_session_is_asked_for_while_the_guard_may_not_have_ended_the_last_one() {
    play(Guard::Works, async |world| {
        world.grant(FIRST).await;
        world.pass(BEAT).await;
        world.guard_does(Guard::Hangs);
        world.tell(LeaderWord::Over { session: FIRST }).await;
        assert_eq!(world.pass(LINGER_LIMIT * 2).await, []);
        assert_eq!(world.orders(), [Order::EndSession(FIRST), Order::KillGuard]);
        world.events.send(ChildEvent::GuardLost { nothing_left: false }).await.unwrap();
        assert!(matches!(world.ended().await, Err(RunnerError::NotCleanedUp(_))));
    });
}

#[test]
fn a_node_whose_silent_guard_cannot_be_cleaned_up_says_so() {
    play(Guard::Hangs, async |world| {
        world.grant(FIRST).await;
        assert!(matches!(world.ended().await, Err(RunnerError::NotCleanedUp(_))));
    });
}

impl World {
    /// A kept run and another one are started under [`FIRST`], whose lease then ends.
    async fn keep_one(&mut self) {
        self.grant(FIRST).await;
        self.desire(FIRST, 5, vec![kept(1), wanted(2)], vec![]).await;
        let begun = Observation::Kept { sessions: vec![], runs: vec![] };
        assert_eq!(self.observed().await, (FIRST, 1, begun));
        self.pass(BEAT / 2).await;
        assert_eq!(self.orders(), [Order::Start(Incarnation(2))], "nothing that is kept starts before that is applied");
        self.tell(LeaderWord::Applied { session: FIRST, through: 1 }).await;
        self.pass(BEAT / 2).await;
        assert_eq!(self.orders(), [Order::Start(Incarnation(1))]);
        self.answers = false;
        self.pass(LEASE).await;
        assert_eq!(self.orders(), [Order::EndSession(FIRST)]);
    }

    async fn happens(&self, event: ChildEvent) {
        self.events.send(event).await.unwrap();
    }
}

#[test]
fn what_is_kept_goes_on_under_the_next_session_once_nothing_else_of_the_old_one_is_left() {
    play(Guard::Works, async |world| {
        world.keep_one().await;
        let started =
            ChildEvent::Started { path: path(), incarnation: Incarnation(1), pid: 9, at: std::time::Instant::now() };
        world.happens(started).await;
        world.answers = true;
        world.pass(LINGER_LIMIT).await;
        let request = world.grant(SECOND).await;
        assert_eq!(request.proven_over, [], "what is kept is not over");
        assert_eq!(world.pass(BEAT * 2).await, [], "run 2 may be there still");
        world.happens(exited(2)).await;
        world.happens(ChildEvent::SessionGone { session: FIRST }).await;
        let told = Observation::Kept { sessions: vec![FIRST], runs: vec![ending(1)] };
        assert_eq!(world.observed().await, (SECOND, 1, told));
        let told = Observation::Started { path: path(), incarnation: Incarnation(1), pid: 9 };
        assert_eq!(world.observed().await, (SECOND, 2, told), "what happened meanwhile is told after it");
        // It is named nowhere until the cluster has applied that, and is neither stopped nor started for it.
        world.desire(SECOND, 8, vec![], vec![]).await;
        world.pass(BEAT / 2).await;
        world.desire(SECOND, 9, vec![kept(1)], vec![]).await;
        world.tell(LeaderWord::Applied { session: SECOND, through: 2 }).await;
        assert_eq!(world.pass(LEASE).await, []);
        assert_eq!(world.orders(), []);
        world.desire(SECOND, 10, vec![], vec![1]).await;
        world.pass(BEAT).await;
        assert_eq!(world.orders(), [Order::Stop(Incarnation(1))]);
    });
}

#[test]
fn what_is_kept_and_not_wanted_any_more_is_stopped_once_the_cluster_knows_of_it() {
    play(Guard::Works, async |world| {
        world.keep_one().await;
        world.happens(ChildEvent::SessionGone { session: FIRST }).await;
        world.answers = true;
        world.grant(SECOND).await;
        assert_eq!(world.observed().await.1, 1);
        world.desire(SECOND, 9, vec![], vec![]).await;
        world.pass(BEAT / 2).await;
        assert_eq!(world.orders(), []);
        world.tell(LeaderWord::Applied { session: SECOND, through: 1 }).await;
        world.pass(BEAT / 2).await;
        assert_eq!(world.orders(), [Order::Stop(Incarnation(1))]);
    });
}

#[test]
fn what_is_kept_and_ends_while_no_session_is_held_is_reported_under_the_next() {
    play(Guard::Works, async |world| {
        world.keep_one().await;
        world.happens(ChildEvent::SessionGone { session: FIRST }).await;
        world.happens(exited(1)).await;
        world.answers = true;
        world.pass(BEAT).await;
        world.grant(SECOND).await;
        let told = Observation::Kept { sessions: vec![FIRST], runs: vec![ending(1)] };
        assert_eq!(world.observed().await, (SECOND, 1, told));
        let (session, number, observation) = world.observed().await;
        assert!(matches!(observation, Observation::Exited { .. }), "{observation:?}");
        assert_eq!((session, number), (SECOND, 2));
        // Between the two, the cluster counts it as running: it must not be taken for one that never started.
        world.desire(SECOND, 9, vec![kept(1)], vec![]).await;
        world.tell(LeaderWord::Applied { session: SECOND, through: 1 }).await;
        world.pass(BEAT).await;
        assert_eq!(world.orders(), []);
    });
}

#[test]
fn what_is_kept_is_named_with_every_session_it_may_count_under() {
    play(Guard::Works, async |world| {
        world.keep_one().await;
        world.happens(ChildEvent::SessionGone { session: FIRST }).await;
        world.answers = true;
        world.grant(SECOND).await;
        assert_eq!(world.observed().await.1, 1);
        // Nobody knows whether that was applied.
        world.answers = false;
        world.pass(LEASE + BEAT).await;
        world.happens(ChildEvent::SessionGone { session: SECOND }).await;
        world.answers = true;
        let third = SessionId(3);
        assert_eq!(world.grant(third).await.proven_over, []);
        let both = Observation::Kept { sessions: vec![FIRST, SECOND], runs: vec![ending(1)] };
        let words = world.pass(BEAT / 2).await;
        assert!(words.contains(&RunnerWord::Observe { session: third, number: 1, observation: both }), "{words:?}");
    });
}

#[test]
fn a_node_that_is_told_to_go_while_it_holds_no_session_stops_what_is_kept_with_its_grace() {
    play(Guard::Works, async |world| {
        world.keep_one().await;
        world.happens(ChildEvent::SessionGone { session: FIRST }).await;
        world.pass(BEAT).await;
        world.stop.cancel();
        world.pass(BEAT * 2).await;
        assert_eq!(world.orders(), [Order::Stop(Incarnation(1))]);
        world.happens(exited(1)).await;
        world.ended().await.unwrap();
    });
}

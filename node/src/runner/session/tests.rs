//! The runner's loop on virtual time, between a leader and processes that the test plays.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use openraft_rt_sim::{SimInstant, SimJoinHandle, SimRuntime};
use pando_protocol::cause::{Exit, ExitHow, OutOfMemory};
use pando_protocol::ids::{Incarnation, Path};
use pando_protocol::mail::{Hand, Readiness, Settlement, Word};
use pando_protocol::session::{Ending, LeaderWord, Observation, RunnerWord, SessionRequest, Wanted};
use pando_protocol::spec::{Command, OnDisconnect, ProcessSpec, Signal};
use tempfile::TempDir;

use super::leaving::STOP_TOGETHER;
use super::over::LINGER_LIMIT;
use super::*;
use crate::runner::place;
use crate::runner::processes::{SignalReply, Signalled};

mod guard;
mod kept;
mod leaving;
mod mail;
mod sessions;

const LEASE: Duration = Duration::from_secs(2);
const BEAT: Duration = Duration::from_millis(200);
const FIRST: SessionId = SessionId(1);
const SECOND: SessionId = SessionId(2);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Order {
    Start(u64),
    Stop(u64),
    Kill(u64),
    Hand(Vec<u64>),
    HoldWorkers(bool),
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
        self.note(Order::Start(incarnation.0));
    }
    fn stop(&mut self, incarnation: Incarnation) {
        self.note(Order::Stop(incarnation.0));
    }
    fn hand(&mut self, hands: Vec<Hand>) {
        self.note(Order::Hand(hands.into_iter().map(|hand| hand.number).collect()));
    }
    fn hold_workers(&mut self, holds: bool) {
        self.note(Order::HoldWorkers(holds));
    }
    fn kill(&mut self, incarnation: Incarnation) {
        self.note(Order::Kill(incarnation.0));
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
    /// What another voter is told, which does not lead.
    beside: mpsc::Receiver<RunnerWord>,
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
        let (say_beside, beside) = mpsc::channel(1_000);
        let voters = Voters::new(BTreeMap::from([(leader(), say), ("n8".parse().unwrap(), say_beside)]));
        let record = SessionRecord::open(folder.path(), place::tests::place()).unwrap();
        let pace = Pace { beat: BEAT, lease: LEASE };
        let (runner, _handle) = Runner::<SimRuntime, _>::new(facts, pace, voters, played, record, another);
        let stop = CancellationToken::new();
        let feeds = Feeds { heard: hearing, children, stop: stop.clone() };
        let running = Some(SimRuntime::spawn(runner.run(feeds)));
        let answers = true;
        test(&mut World { words, beside, heard, events, orders, guard, stop, running, answers, _folder: folder }).await;
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

fn started(number: u64) -> ChildEvent {
    ChildEvent::Started { path: path(), incarnation: Incarnation(number), pid: 9, at: std::time::Instant::now() }
}

fn exited(number: u64) -> ChildEvent {
    let how = ExitHow::Code(1);
    let exit = Exit { how, ran: BEAT, healthy: None, out_of_memory: OutOfMemory::No, stderr: None };
    let (started, at) = (Vec::new(), std::time::Instant::now());
    ChildEvent::Exited { path: path(), incarnation: Incarnation(number), exit, started, at }
}

fn gone(session: SessionId) -> ChildEvent {
    ChildEvent::SessionGone { session }
}

impl World {
    async fn tell(&self, word: LeaderWord) {
        self.heard.send(Heard::Word(leader(), word)).await.unwrap();
    }

    async fn applied(&self, session: SessionId, through: u64) {
        self.tell(LeaderWord::Applied { session, through }).await;
    }

    async fn over(&self, session: SessionId) {
        self.tell(LeaderWord::Over { session }).await;
    }

    async fn desire(&self, session: SessionId, index: u64, run: Vec<Wanted>, end: Vec<u64>) {
        let end = end.into_iter().map(ending).collect();
        self.tell(LeaderWord::Desired(Desired { session, index, run, end })).await;
    }

    /// The next word that is no beat and no word of what is held; beats are answered on the way.
    async fn word(&mut self) -> RunnerWord {
        loop {
            match self.words.recv().await.expect("the runner has ended") {
                RunnerWord::Beat { session, number, .. } if self.answers => {
                    self.tell(LeaderWord::Answer { session, number }).await;
                }
                RunnerWord::Beat { .. } | RunnerWord::Holds { .. } => {}
                word => return word,
            }
        }
    }

    async fn happens(&self, event: ChildEvent) {
        self.events.send(event).await.unwrap();
    }

    fn guard_does(&self, guard: Guard) {
        *self.guard.lock().unwrap() = guard;
    }

    async fn grant(&mut self, session: SessionId) -> SessionRequest {
        let request = self.asked().await;
        self.granted(&request, session).await;
        request
    }

    async fn asked(&mut self) -> SessionRequest {
        let RunnerWord::Ask(request) = self.word().await else { panic!("it does not ask") };
        request
    }

    async fn granted(&self, request: &SessionRequest, session: SessionId) {
        self.tell(LeaderWord::Granted { nonce: request.nonce, session }).await;
    }

    /// [`FIRST`] is granted, and these run under it.
    async fn runs(&mut self, numbers: &[u64]) {
        self.grant(FIRST).await;
        self.desire(FIRST, 5, numbers.iter().copied().map(wanted).collect(), vec![]).await;
        self.pass(BEAT).await;
        assert_eq!(self.orders(), numbers.iter().copied().map(Order::Start).collect::<Vec<_>>());
    }

    /// It is told to go, and says so.
    async fn tell_to_go(&mut self) {
        self.stop.cancel();
        assert_eq!(self.observed().await.2, Observation::Leaving);
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

    /// Nothing is left of what its guard ran: what it says of the guard.
    async fn ends_without_guard(&mut self) -> Silence {
        self.happens(ChildEvent::GuardLost { nothing_left: true }).await;
        match self.ended().await {
            Err(RunnerError::GuardSilent { silence, .. }) => silence,
            other => panic!("{other:?} instead of an end for its guard's silence"),
        }
    }
}

fn only_asks(words: &[RunnerWord]) -> bool {
    words.iter().all(|word| matches!(word, RunnerWord::Ask(_)))
}

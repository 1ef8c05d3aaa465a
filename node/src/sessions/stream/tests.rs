use std::sync::atomic::Ordering;

use openraft_rt_sim::SimRuntime;
use pando_protocol::cause::{Exit, ExitHow, OutOfMemory};
use pando_protocol::ids::ClientId;
use pando_protocol::message::{Change, Write};
use pando_protocol::session::Desired;
use pando_protocol::spec::{
    AutoShutdown, Backoff, ChildSpec, Intensity, ProcessSpec, Restart, Strategy, SupervisorSpec, TreeSpec, Work,
};

use super::super::fixture::{Plane, node, request, simulated};
use super::*;

struct Runner {
    say: mpsc::Sender<RunnerWord>,
    hear: mpsc::Receiver<LeaderWord>,
    session: SessionId,
}

impl Runner {
    /// A runner with a session, on whose node one child was placed.
    async fn start(plane: &Plane) -> (Self, Desired) {
        let (say, words) = mpsc::channel(64);
        let (answer, hear) = mpsc::channel(64);
        drop(SimRuntime::spawn(attend(node(), words, answer, plane.control.clone(), plane.keeper.clone())));
        let mut runner = Self { say, hear, session: SessionId(0) };
        runner.say.send(RunnerWord::Ask(request(1))).await.unwrap();
        let LeaderWord::Granted { nonce: 1, session } = runner.heard().await else { panic!("not granted") };
        runner.session = session;
        assert!(matches!(runner.heard().await, LeaderWord::Desired(desired) if desired.run.is_empty()));
        let change = Change::Apply(one_child());
        let write = Write { client: ClientId(1), sequence: 1, lowest_unanswered: 1, change };
        plane.control.propose(Command::Write(write)).await.unwrap().unwrap();
        let LeaderWord::Desired(desired) = runner.heard().await else { panic!("not told") };
        assert_eq!(desired.run.len(), 1);
        (runner, desired)
    }

    async fn heard(&mut self) -> LeaderWord {
        SimRuntime::timeout(Duration::from_secs(60), self.hear.recv()).await.expect("silent").expect("ended")
    }

    async fn observe(&self, number: u64, observation: Observation) {
        self.say.send(RunnerWord::Observe { session: self.session, number, observation }).await.unwrap();
    }
}

fn one_child() -> TreeSpec {
    let command = pando_protocol::spec::Command { program: "true".into(), args: vec![] };
    let work = Work::Process(ProcessSpec::new(command).into());
    let (id, restart, backoff) = ("a".parse().unwrap(), Restart::Permanent, Backoff::default());
    let (strategy, intensity) = (Strategy::OneForOne, Intensity::default());
    let children = vec![ChildSpec { id, restart, backoff, significant: false, work }];
    let root = SupervisorSpec { strategy, intensity, auto_shutdown: AutoShutdown::Never, colocate: false, children };
    TreeSpec { name: "t".parse().unwrap(), root }
}

fn exited(desired: &Desired) -> Observation {
    let (path, incarnation) = (desired.run[0].path.clone(), desired.run[0].incarnation);
    let (ran, how) = (Duration::from_millis(5), ExitHow::Code(1));
    let exit = Exit { how, ran, healthy: None, out_of_memory: OutOfMemory::No, stderr: None };
    Observation::Exited { path, incarnation, exit }
}

#[test]
fn what_an_observation_led_to_is_told_before_that_it_is_applied() {
    simulated(async {
        let plane = Plane::start();
        let (mut runner, first) = Runner::start(&plane).await;
        runner.observe(1, exited(&first)).await;
        let LeaderWord::Desired(next) = runner.heard().await else { panic!("not told what to run next") };
        assert!(next.run[0].incarnation > first.run[0].incarnation);
        assert_eq!(runner.heard().await, LeaderWord::Applied { session: runner.session, through: 1 });
    });
}

#[test]
fn an_observation_that_the_rules_choke_on_does_not_block_those_that_follow() {
    simulated(async {
        let plane = Plane::start();
        let (mut runner, first) = Runner::start(&plane).await;
        plane.chokes.store(true, Ordering::Relaxed);
        runner.observe(1, exited(&first)).await;
        assert_eq!(runner.heard().await, LeaderWord::Applied { session: runner.session, through: 1 });
        let (path, incarnation) = (first.run[0].path.clone(), first.run[0].incarnation);
        runner.observe(2, Observation::Started { path, incarnation, pid: 5 }).await;
        assert_eq!(runner.heard().await, LeaderWord::Applied { session: runner.session, through: 2 });
    });
}

#[test]
fn a_leader_without_a_majority_hoards_no_grants_and_grants_the_newest_request_when_it_has_one_again() {
    simulated(async {
        let plane = Plane::start();
        plane.proves.store(false, Ordering::Relaxed);
        let (say, words) = mpsc::channel(64);
        let (answer, mut hear) = mpsc::channel(64);
        drop(SimRuntime::spawn(attend(node(), words, answer, plane.control.clone(), plane.keeper.clone())));
        for nonce in 1..=20 {
            say.send(RunnerWord::Ask(request(nonce))).await.unwrap();
            SimRuntime::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(plane.grants_proposed(), []);
        plane.proves.store(true, Ordering::Relaxed);
        // Two before the proof: the first one is given up.
        say.send(RunnerWord::Ask(request(21))).await.unwrap();
        say.send(RunnerWord::Ask(request(22))).await.unwrap();
        let heard = SimRuntime::timeout(Duration::from_secs(60), hear.recv()).await.expect("silent");
        assert!(matches!(heard, Some(LeaderWord::Granted { nonce: 22, .. })), "{heard:?}");
        assert_eq!(plane.grants_proposed(), [22]);
    });
}

#[test]
fn a_request_that_is_asked_in_one_leadership_is_not_granted_in_another() {
    simulated(async {
        let plane = Plane::start();
        let (say, words) = mpsc::channel(64);
        let (answer, _hear) = mpsc::channel(64);
        drop(SimRuntime::spawn(attend(node(), words, answer, plane.control.clone(), plane.keeper.clone())));
        say.send(RunnerWord::Ask(request(1))).await.unwrap();
        SimRuntime::sleep(Duration::from_millis(10)).await;
        plane.lead_again();
        SimRuntime::sleep(Duration::from_secs(1)).await;
        assert_eq!(plane.rounds_of_grants(), [Some(1)], "which the proposer of the second leadership refuses");
    });
}

#[test]
fn a_word_about_another_session_has_the_state_told_for_that_one() {
    simulated(async {
        let plane = Plane::start();
        let (mut runner, first) = Runner::start(&plane).await;
        let second = plane.grant(2).await;
        let beat = |session| RunnerWord::Beat { session, number: 1, answered: 0, answered_age: Duration::ZERO };
        runner.say.send(beat(second)).await.unwrap();
        assert!(matches!(runner.heard().await, LeaderWord::Desired(desired) if desired.session == second));
        runner.say.send(beat(first.session)).await.unwrap();
        let is_told = |word: &LeaderWord| matches!(word, LeaderWord::Desired(desired) if *desired == first);
        let (one, two) = (runner.heard().await, runner.heard().await);
        assert!(is_told(&one) || is_told(&two), "{one:?}, {two:?}");
    });
}

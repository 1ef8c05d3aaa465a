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
    Observation::Exited { path, incarnation, exit, started: Vec::new() }
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
        assert_eq!(plane.grants_proposed(), [0; 0]);
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
        let holds = |session| RunnerWord::Holds { session, hand: 0 };
        runner.say.send(holds(second)).await.unwrap();
        assert!(matches!(runner.heard().await, LeaderWord::Desired(desired) if desired.session == second));
        runner.say.send(holds(first.session)).await.unwrap();
        assert_eq!(runner.heard().await, LeaderWord::Desired(first));
    });
}

#[test]
fn what_is_said_again_while_it_is_under_way_is_proposed_once_and_again_after_it_failed() {
    simulated(async {
        let plane = Plane::start();
        let (mut runner, first) = Runner::start(&plane).await;
        let (path, incarnation) = (first.run[0].path.clone(), first.run[0].incarnation);
        let started = Observation::Started { path, incarnation, pid: 5 };
        let applied = |through| LeaderWord::Applied { session: first.session, through };
        plane.stalls.send_replace(true);
        for _ in 0..5 {
            for number in 1..=3 {
                runner.observe(number, started.clone()).await;
            }
            SimRuntime::sleep(Duration::from_millis(100)).await;
        }
        plane.stalls.send_replace(false);
        runner.observe(4, started.clone()).await;
        for through in 1..=4 {
            assert_eq!(runner.heard().await, applied(through));
        }
        assert_eq!(plane.observations_proposed(), [1, 2, 3, 4]);

        plane.commits.store(false, Ordering::Relaxed);
        runner.observe(5, started.clone()).await;
        runner.observe(6, started.clone()).await;
        SimRuntime::sleep(Duration::from_millis(100)).await;
        plane.commits.store(true, Ordering::Relaxed);
        runner.observe(7, started.clone()).await; // Out of order.
        SimRuntime::sleep(Duration::from_millis(100)).await;
        for number in 5..=7 {
            runner.observe(number, started.clone()).await;
        }
        for through in 5..=7 {
            assert_eq!(runner.heard().await, applied(through));
        }
        assert_eq!(plane.observations_proposed(), [1, 2, 3, 4, 5, 6, 7, 5, 6, 7]);
    });
}

#[test]
fn what_is_said_of_messages_waits_for_room_and_the_runner_is_told_what_to_run_meanwhile() {
    simulated(async {
        let plane = Plane::start();
        let (mut runner, _) = Runner::start(&plane).await;
        let room = plane.control.mail.settled_room(u64::MAX).await;
        runner.observe(1, Observation::Settled(Vec::new())).await;
        let change = Change::Delete("t".parse().unwrap());
        let write = Write { client: ClientId(1), sequence: 2, lowest_unanswered: 2, change };
        plane.control.propose(Command::Write(write)).await.unwrap().unwrap();
        assert!(matches!(runner.heard().await, LeaderWord::Desired(_)));
        assert_eq!(plane.observations_proposed(), [0; 0]);
        drop(room);
        assert_eq!(runner.heard().await, LeaderWord::Applied { session: runner.session, through: 1 });
    });
}

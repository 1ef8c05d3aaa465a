use openraft::AsyncRuntime;
use openraft_rt_sim::SimRuntime;
use pando_protocol::ids::ClientId;
use pando_protocol::mail::{NewMessage, Readiness};
use pando_protocol::message::{Change, Write};
use pando_protocol::session::Observation;
use pando_protocol::spec::{
    AutoShutdown, Backoff, ChildSpec, Intensity, MailboxSpec, ProcessSpec, Restart, Strategy, SupervisorSpec, TreeSpec,
    Work,
};
use pando_supervision::{Command, RULES};

use super::super::fixture::{Plane, node, simulated};
use super::*;

async fn write(plane: &Plane, sequence: u64, change: Change) {
    let write = Write { client: ClientId(1), sequence, lowest_unanswered: sequence, change };
    plane.control.propose(Command::Write(write)).await.unwrap().unwrap();
}

async fn send(plane: &Plane, sequence: u64) {
    let messages = vec![NewMessage::of("x")];
    write(plane, sequence, Change::Send { to: "/t/a".parse().unwrap(), messages, asks: false }).await;
}

/// A session under which a worker takes messages.
async fn with_worker(plane: &Plane) -> SessionId {
    plane.control.propose(Command::RaiseRules(RULES)).await.unwrap().unwrap();
    let session = plane.grant(1).await;
    let mut spec = ProcessSpec::new(pando_protocol::spec::Command { program: "true".into(), args: vec![] });
    spec.mailbox = Some(MailboxSpec::default());
    let (id, restart, backoff) = ("a".parse().unwrap(), Restart::Permanent, Backoff::default());
    let children = vec![ChildSpec { id, restart, backoff, significant: false, work: Work::Process(spec.into()) }];
    let (strategy, intensity) = (Strategy::OneForOne, Intensity::default());
    let root = SupervisorSpec { strategy, intensity, auto_shutdown: AutoShutdown::Never, colocate: false, children };
    write(plane, 1, Change::Apply(TreeSpec { name: "t".parse().unwrap(), root })).await;
    let path: pando_protocol::ids::Path = "/t/a".parse().unwrap();
    let incarnation = plane.control.cluster().run(&path).unwrap().incarnation;
    let readiness = Readiness { starts: true, prefetch: 16 };
    let words = [
        Observation::Started { path: path.clone(), incarnation, pid: 1 },
        Observation::WorkerReady { path, incarnation, readiness },
    ];
    for (number, observation) in (1..).zip(words) {
        let observed = Command::Observe { node: node(), session, number, observation };
        plane.control.propose(observed).await.unwrap().unwrap();
    }
    session
}

#[test]
fn a_runner_is_told_of_what_it_has_not_in_words_of_all_that_came_meanwhile_and_of_nothing_twice() {
    simulated(async {
        let plane = Plane::start();
        let session = with_worker(&plane).await;
        for sequence in 2..=4 {
            send(&plane, sequence).await;
        }
        let (say, words) = mpsc::channel(8);
        let (answer, mut hear) = mpsc::channel(1);
        drop(SimRuntime::spawn(attend(node(), words, answer, plane.control.clone())));
        let mut next = async || {
            let word = SimRuntime::timeout(std::time::Duration::from_secs(60), hear.recv()).await.expect("silent");
            match word {
                Some(LeaderWord::Hands { session: of, hands }) if of == session => {
                    hands.into_iter().map(|hand| hand.number).collect::<Vec<_>>()
                }
                other => panic!("{other:?} instead of messages"),
            }
        };
        say.send(RunnerWord::Holds { session, hand: 1 }).await.unwrap();
        SimRuntime::sleep(std::time::Duration::from_secs(1)).await;
        send(&plane, 5).await;
        send(&plane, 6).await;
        assert_eq!(next().await, [2, 3], "the first it has");
        assert_eq!(next().await, [4, 5], "what came while that was not taken goes together");
        plane.lead_again();
        say.send(RunnerWord::Holds { session, hand: 1 }).await.unwrap();
        SimRuntime::sleep(std::time::Duration::from_secs(1)).await;
        send(&plane, 7).await;
        assert_eq!(next().await, [6], "whoever leads, what was told is told");
    });
}

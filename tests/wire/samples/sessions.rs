//! What runners and leaders say to each other.

use std::sync::Arc;
use std::time::Duration;

use pando_protocol::cause::{Exit, ExitHow, OutOfMemory};
use pando_protocol::ids::{Incarnation, SessionId};
use pando_protocol::mail::Readiness;
use pando_protocol::session::{
    Desired, Ending, LeaderWord, Member, Members, NodeRole, Obituary, Observation, RunnerWord, SessionRequest, Wanted,
};
use pando_protocol::spec::Signal;

use super::mail::{hand, settlements};
use super::specs::processes;
use super::{node, path};

pub fn runner_words() -> Vec<RunnerWord> {
    let mut words = vec![
        RunnerWord::Ask(session_request()),
        RunnerWord::Beat {
            session: SessionId(3),
            number: 400,
            answered: 399,
            answered_age: Duration::from_millis(200),
        },
    ];
    words.extend(observations().into_iter().map(|observation| RunnerWord::Observe {
        session: SessionId(3),
        number: 1,
        observation,
    }));
    words.push(RunnerWord::Holds { session: SessionId(3), hand: 300 });
    words
}

pub fn leader_words() -> Vec<LeaderWord> {
    let wanted = |spec| Wanted {
        path: path(),
        incarnation: Incarnation(5),
        after: Some(Incarnation(4)),
        delay: Duration::from_millis(50),
        spec: Arc::new(spec),
    };
    let run = processes().into_iter().map(wanted).collect();
    let end = vec![Ending { path: path(), incarnation: Incarnation(2) }];
    vec![
        LeaderWord::Granted { nonce: u64::MAX, session: SessionId(3) },
        LeaderWord::Refused { nonce: 1, why: "another cluster".into() },
        LeaderWord::Answer { session: SessionId(3), number: 400 },
        LeaderWord::Over { session: SessionId(3) },
        LeaderWord::Applied { session: SessionId(3), through: 8 },
        LeaderWord::Members(Members {
            index: 300,
            members: vec![Member { name: node(), raft_id: u64::MAX, address: "n1:7400".into(), votes: true }],
        }),
        LeaderWord::Desired(Desired { session: SessionId(3), index: 10, run, end }),
        LeaderWord::Hands { session: SessionId(3), hands: vec![hand()] },
    ]
}

pub fn obituaries() -> Vec<Obituary> {
    vec![Obituary { node: node(), session: SessionId(3), how: "signal 9".into() }]
}

pub fn observations() -> Vec<Observation> {
    let how = [
        ExitHow::Code(1),
        ExitHow::Signal(Signal(11)),
        ExitHow::StartFailed("no such program".into()),
        ExitHow::Unready(Duration::from_secs(10)),
        ExitHow::ReaperLost,
        ExitHow::Hung(Duration::from_secs(30)),
        ExitHow::Idle(Duration::from_secs(30)),
        ExitHow::Misbehaved("it settles what it does not hold".into()),
    ];
    let exited = |how| Observation::Exited {
        path: path(),
        incarnation: Incarnation(5),
        exit: Exit {
            how,
            ran: Duration::from_millis(12),
            healthy: Some(Duration::ZERO),
            out_of_memory: OutOfMemory::Likely,
            stderr: Some("boom\n".into()),
        },
        started: vec![299, 300],
    };
    let mut observations: Vec<Observation> = how.into_iter().map(exited).collect();
    let memory = [OutOfMemory::No, OutOfMemory::Yes].into_iter().zip(observations.clone());
    let memory = memory.map(|(out_of_memory, observation)| match observation {
        Observation::Exited { path, incarnation, exit, started } => {
            let exit = Exit { out_of_memory, healthy: None, stderr: None, ..exit };
            Observation::Exited { path, incarnation, exit, started }
        }
        other => other,
    });
    let memory: Vec<Observation> = memory.collect();
    observations.extend(memory);
    observations.extend([
        Observation::Started { path: path(), incarnation: Incarnation(5), pid: 4_242 },
        Observation::Ready { path: path(), incarnation: Incarnation(5) },
        Observation::NeverStarted { path: path(), incarnation: Incarnation(6) },
        Observation::Leaving,
        Observation::Left,
        Observation::Kept {
            sessions: vec![SessionId(3), SessionId(4)],
            runs: vec![Ending { path: path(), incarnation: Incarnation(5) }],
        },
        Observation::WorkerReady {
            path: path(),
            incarnation: Incarnation(5),
            readiness: Readiness { starts: true, prefetch: 16 },
        },
        Observation::Settled(settlements()),
        Observation::Stopping { path: path(), incarnation: Incarnation(5) },
    ]);
    observations
}

pub fn session_request() -> SessionRequest {
    SessionRequest {
        node: node(),
        nonce: 0x1234_5678_9abc_def0,
        address: "n1:7000".into(),
        role: NodeRole::Agent,
        labels: vec!["zone=a".parse().unwrap()],
        slots: 16,
        pid: 4_242,
        proven_over: vec![SessionId(1), SessionId(2)],
    }
}

//! Forwarding on virtual time: real rules and real apis, between a log and a network that the test plays.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use openraft::{AsyncRuntime, Instant};
use openraft_rt_sim::{SimInstant, SimRuntime};
use pando_protocol::client::quic::Tuning;
use pando_protocol::ids::ClientId;
use pando_protocol::message::{Answer, Call, Change, MemberChange, Reply, Write};
use pando_protocol::rejection::Rejection;
use pando_protocol::spec::{
    AutoShutdown, Backoff, ChildSpec, Command as Program, Intensity, ProcessSpec, Restart, Strategy, SupervisorSpec,
    TreeSpec, Work,
};
use pando_supervision::{Cluster, Command, Done, Outcome, Stamp, apply};
use tokio::sync::{mpsc, oneshot, watch};

use super::forward::{OPERATION_LIMIT, OPERATION_SEARCH};
use super::write::{SEARCH_LIMIT, WRITE_LIMIT};
use super::*;
use crate::control::{EventFeed, Leader, Leadership, MailLane, NotProposed, OnDisk, ProofRequest, Proposal, Published};
use crate::instruments::Instruments;
use crate::peer::{PeerAnswer, PeerCall};
use crate::runner::RunnerHandle;

/// One way through the played network.
const HOP: Duration = Duration::from_millis(1);
/// A limit is noticed within two pauses between tries.
const SLACK: Duration = Duration::from_millis(20);
const STAMP: Stamp = Stamp { at: Duration::ZERO, wall: 0 };

/// The network: each node answers in a task of its own, which goes on when whoever asked has given up.
#[derive(Clone, Default)]
struct Played(Arc<Mutex<BTreeMap<NodeName, Line>>>);

#[derive(Clone)]
struct Line {
    calls: mpsc::Sender<(Call, oneshot::Sender<PeerAnswer>)>,
    /// Whether what comes back is lost.
    loses_answers: bool,
}

impl OtherNodes for Played {
    async fn ask(&self, name: &NodeName, _: &str, call: &PeerCall, limit: Duration) -> io::Result<PeerAnswer> {
        let PeerCall::Lead(call) = call.clone() else { panic!("{call:?} is not played") };
        let Line { calls, loses_answers } = self.0.lock().unwrap()[name].clone();
        let answered = async {
            SimRuntime::sleep(HOP).await;
            let (reply, answer) = oneshot::channel();
            calls.send((call, reply)).await.unwrap();
            let answer = answer.await.unwrap();
            SimRuntime::sleep(HOP).await;
            if loses_answers {
                std::future::pending::<()>().await;
            }
            answer
        };
        SimRuntime::timeout(limit, answered).await.map_err(|_| io::ErrorKind::TimedOut.into())
    }
}

/// Three nodes of which the test says who leads. What is committed anywhere is applied everywhere at once.
struct Grove {
    network: Played,
    apis: BTreeMap<NodeName, Arc<Api<SimRuntime, Played>>>,
    led: BTreeMap<NodeName, watch::Sender<Leadership<SimRuntime>>>,
    publish: watch::Sender<Published<SimRuntime>>,
    /// Who proposed, in order.
    proposed: Arc<Mutex<Vec<NodeName>>>,
}

impl Grove {
    /// Nobody leads at first.
    fn start() -> Self {
        let cluster = Cluster::default();
        let membership = Arc::default();
        let first = Published { cluster, applied: None, membership, at: SimInstant::now(), panics: 0 };
        let mut grove = Self {
            network: Played::default(),
            apis: BTreeMap::new(),
            led: BTreeMap::new(),
            publish: watch::channel(first).0,
            proposed: Arc::default(),
        };
        for own in ["n1", "n2", "n3"] {
            grove.add(own.parse().unwrap());
        }
        grove
    }

    fn add(&mut self, own: NodeName) {
        let (proposals, waiting) = mpsc::channel(64);
        let (proofs, mut asked) = mpsc::channel::<ProofRequest>(64);
        let (questions, _) = mpsc::channel(1);
        let (changes, _) = mpsc::channel(1);
        let without_since = Some(SimInstant::now());
        let nobody = Leadership { leader: None, term: 1, leads: false, round: 0, votes: true, without_since };
        let (led, leadership) = watch::channel(nobody);
        let (published, events) = (self.publish.subscribe(), EventFeed::default());
        drop(SimRuntime::spawn(propose(
            own.clone(),
            waiting,
            leadership.clone(),
            self.publish.clone(),
            self.proposed.clone(),
        )));
        drop(SimRuntime::spawn(async move {
            while let Some(question) = asked.recv().await {
                _ = question.reply.send(true);
            }
        }));
        let name = own.clone();
        let (mail, _) = MailLane::new();
        let (instruments, (_, kept)) = (Instruments::default(), watch::channel(OnDisk::default()));
        let control = Control {
            own: name,
            proposals,
            mail,
            proofs,
            questions,
            changes,
            published,
            leadership,
            events,
            instruments,
            kept,
        };
        let api = Arc::new(Api {
            own: own.clone(),
            cluster: "grove".into(),
            control: Some(control),
            freshness: None,
            peers: self.network.clone(),
            directory: Directory::new(BTreeMap::new()),
            children: LocalChildren::new(own.clone(), PathBuf::new(), RunnerHandle::to_nobody()),
        });
        let (calls, mut called) = mpsc::channel::<(Call, oneshot::Sender<PeerAnswer>)>(64);
        let answering = api.clone();
        drop(SimRuntime::spawn(async move {
            while let Some((call, reply)) = called.recv().await {
                _ = reply.send(answering.lead_for_another(call).await);
            }
        }));
        self.network.0.lock().unwrap().insert(own.clone(), Line { calls, loses_answers: false });
        self.apis.insert(own.clone(), api);
        self.led.insert(own, led);
    }

    /// From now on every node takes `leader` for the one that leads, itself included.
    fn led_by(&self, leader: Option<&str>) {
        let name: Option<NodeName> = leader.map(|name| name.parse().unwrap());
        for (own, led) in &self.led {
            led.send_modify(|led| {
                led.term += 1;
                led.leads = name.as_ref() == Some(own);
                led.leader = name.clone().map(|name| Leader { address: format!("{name}:1"), name });
            });
        }
    }

    fn loses_answers_of(&self, name: &str) {
        self.network.0.lock().unwrap().get_mut(&name.parse::<NodeName>().unwrap()).unwrap().loses_answers = true;
    }

    /// Asks `n1` for a write, as its client does. The answer, and how long it took.
    async fn write(&self) -> (Answer, Duration) {
        self.ask(Call::Write(write())).await
    }

    async fn ask(&self, call: Call) -> (Answer, Duration) {
        let asked = SimInstant::now();
        let answer = self.apis[&"n1".parse::<NodeName>().unwrap()].answer(call).await;
        (answer, asked.elapsed())
    }

    fn proposed(&self) -> Vec<String> {
        self.proposed.lock().unwrap().iter().map(ToString::to_string).collect()
    }
}

/// The proposer of a node, and the log that all share.
async fn propose(
    own: NodeName,
    mut waiting: mpsc::Receiver<Proposal>,
    leadership: watch::Receiver<Leadership<SimRuntime>>,
    publish: watch::Sender<Published<SimRuntime>>,
    proposed: Arc<Mutex<Vec<NodeName>>>,
) {
    while let Some(Proposal { command, round: _, reply, room: _ }) = waiting.recv().await {
        if !leadership.borrow().leads {
            _ = reply.send(Err(NotProposed::NotLeader));
            continue;
        }
        proposed.lock().unwrap().push(own.clone());
        let mut cluster = publish.borrow().cluster.clone();
        let outcome = apply(&mut cluster, STAMP, command).outcome;
        publish.send_modify(|published| published.cluster = cluster);
        _ = reply.send(Ok(outcome));
    }
}

fn write() -> Write {
    let program = Program { program: "true".into(), args: vec![] };
    let work = Work::Process(ProcessSpec::new(program).into());
    let (id, restart, backoff) = ("web".parse().unwrap(), Restart::Permanent, Backoff::default());
    let children = vec![ChildSpec { id, restart, backoff, significant: false, work }];
    let (strategy, intensity) = (Strategy::OneForOne, Intensity::default());
    let root = SupervisorSpec { strategy, intensity, auto_shutdown: AutoShutdown::Never, colocate: false, children };
    let change = Change::Apply(TreeSpec { name: "shop".parse().unwrap(), root });
    Write { client: ClientId(7), sequence: 1, lowest_unanswered: 1, change }
}

/// What one application of the write leaves, and answers.
fn once() -> (Cluster, Outcome) {
    let mut cluster = Cluster::default();
    let outcome = apply(&mut cluster, STAMP, Command::Write(write())).outcome;
    (cluster, outcome)
}

fn simulated(test: impl AsyncFnOnce(Grove)) {
    SimRuntime::with_seed(0).block_on(async { test(Grove::start()).await });
}

#[test]
fn a_write_whose_reply_is_lost_with_its_leader_is_answered_by_the_next_one_and_applied_once() {
    simulated(async |grove: Grove| {
        grove.led_by(Some("n2"));
        grove.loses_answers_of("n2");
        let moves = async {
            SimRuntime::sleep(Duration::from_secs(1)).await;
            grove.led_by(None);
            SimRuntime::sleep(Duration::from_millis(300)).await;
            grove.led_by(Some("n3"));
        };
        let ((answer, took), ()) = futures_util::future::join(grove.write(), moves).await;
        let (state, outcome) = once();
        let Ok(Done::Changed(changed)) = outcome else { panic!("{outcome:?}") };
        assert!(!changed.differences.is_empty(), "a second application would differ in nothing");
        assert_eq!(answer, Ok(Reply::Changed(changed)));
        assert_eq!(grove.proposed(), ["n2", "n3"]);
        assert_eq!(grove.publish.borrow().cluster, state);
        assert_eq!(took, Duration::from_millis(1_300) + HOP * 2);
    });
}

#[test]
fn a_client_hears_whether_its_write_may_have_been_applied_and_waits_only_where_it_may() {
    simulated(async |grove: Grove| {
        let (answer, took) = grove.write().await;
        assert!(matches!(answer, Err(Rejection::NoLeader { waited, .. }) if waited == took), "{answer:?}");
        assert!((SEARCH_LIMIT..SEARCH_LIMIT + SLACK).contains(&took), "{took:?}");
        grove.led_by(Some("n2"));
        grove.loses_answers_of("n2");
        let (answer, took) = grove.write().await;
        assert_eq!(answer, Err(Rejection::Unknown));
        assert!((WRITE_LIMIT..WRITE_LIMIT + SLACK).contains(&took), "{took:?}");
        assert_eq!(grove.proposed(), ["n2"]);
    });
}

#[test]
fn who_asks_for_a_change_of_members_or_leader_hears_what_became_of_it_before_giving_up() {
    // Of `pando`, and of its client for the way to a node.
    let (patience, dial) = (Duration::from_secs(10), Tuning::client().dial);
    let change = || Call::Members(MemberChange::Remove("n3".parse().unwrap()));
    simulated(async |grove: Grove| {
        for call in [change(), Call::Transfer { to: None }] {
            let (answer, took) = grove.ask(call).await;
            assert!(matches!(answer, Err(Rejection::NoLeader { waited, .. }) if waited == took), "{answer:?}");
            assert!((OPERATION_SEARCH..OPERATION_SEARCH + SLACK).contains(&took), "{took:?}");
        }
        grove.led_by(Some("n2"));
        grove.loses_answers_of("n2");
        let (answer, took) = grove.ask(change()).await;
        assert_eq!(answer, Err(Rejection::Unknown), "it may be changed");
        assert!((OPERATION_LIMIT..OPERATION_LIMIT + SLACK).contains(&took), "{took:?}");
        assert!(dial + took < patience, "{took:?}");
    });
}

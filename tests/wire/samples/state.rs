//! The replicated state in parts: each variant of all that a snapshot holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pando_protocol::cause::{CauseChain, CauseClass};
use pando_protocol::ids::{ChildId, ClientId, Incarnation, NodeName, Path, SessionId};
use pando_protocol::session::NodeRole;
use pando_protocol::spec::{AutoShutdown, Backoff, Intensity, Restart, Strategy};
use pando_supervision::cluster::{
    Body, ClientRecord, DownReason, Group, Head, HistoryEntry, Member, Node, Pending, Place, Process, ProcessPhase,
    Refusal, Run, Session, Stage, StopReason, Supervisor, SupervisorPhase, Then,
};
use pando_supervision::parts::{Part, from_parts};
use pando_supervision::restarts::{Crash, Rate, Window};
use pando_supervision::{Event, EventKind};

#[path = "state/mail.rs"]
mod mail;

use mail::held;
pub use mail::whole as whole_mailbox;

/// In the order in which a state comes apart, with a path, number or name of its own for each.
pub fn parts() -> Vec<Part> {
    let mut parts = vec![Part::Head(head())];
    let mut trees = super::trees();
    trees.truncate(1);
    parts.extend(trees.into_iter().map(|tree| Part::Tree(tree.name.clone(), Arc::new(tree))));
    let mut members: Vec<Member> =
        process_phases().into_iter().map(|phase| member(Body::Process(process(phase)))).collect();
    members.extend(supervisor_phases().into_iter().map(|phase| member(Body::Supervisor(supervisor(phase)))));
    vary(&mut members);
    for (number, member) in (10..).zip(members) {
        parts.push(Part::Member(path(number), Arc::new(member)));
        parts.push(Part::Ended(path(number), Arc::new(history())));
        parts.push(Part::Crash(path(number), crash()));
    }
    for (name, node) in nodes() {
        let session = SessionId(3);
        parts.push(Part::Node(name.clone(), Arc::new(node)));
        parts.push(Part::Assigned(name.clone(), session, path(10)));
        parts.push(Part::RoomKept(name.clone(), session, path(11)));
        parts.push(Part::Hand(name, session, 300, held()));
    }
    parts.push(Part::Pending(8, path(10)));
    parts.push(Part::Timer(Duration::from_millis(1_234), path(11)));
    parts.extend(events().into_iter().map(|event| Part::Event(Arc::new(event))));
    parts.push(Part::Client(ClientId(u128::MAX / 3), Arc::new(client())));
    parts.extend(mail::parts());
    parts
}

/// A supervisor, a process and a node with all that stands in them, as no part of a snapshot has it: what is in their fields
/// keeps its form all the same.
pub fn whole_members() -> Vec<Member> {
    let state = from_parts(parts()).unwrap();
    [10, 25].map(|number| state.member(&path(number)).unwrap().clone()).to_vec()
}

/// See [`whole_members`].
pub fn whole_node() -> Node {
    let state = from_parts(parts()).unwrap();
    state.nodes[&super::node()].as_ref().clone()
}

fn head() -> Head {
    Head {
        now: Duration::from_millis(1_234),
        rules: 1,
        next_incarnation: 300,
        next_session: 4,
        next_event: 70_000,
        next_order: 9,
        brake: Duration::from_secs(1),
        mail_bytes: 70_000,
    }
}

/// Every value of what all members have, over as many members as there are.
fn vary(members: &mut [Member]) {
    let restarts = [Restart::Permanent, Restart::Transient, Restart::Temporary];
    for (member, restart) in members.iter_mut().zip(restarts.into_iter().cycle()) {
        member.restart = restart;
    }
    let groups = [Strategy::OneForOne, Strategy::OneForAll, Strategy::RestForOne];
    let shutdowns = [AutoShutdown::Never, AutoShutdown::AnySignificant, AutoShutdown::AllSignificant];
    let supervisors = members.iter_mut().filter_map(|member| match &mut member.body {
        Body::Supervisor(supervisor) => Some(supervisor),
        Body::Process(_) => None,
    });
    for (number, supervisor) in supervisors.enumerate() {
        supervisor.strategy = groups[number % 3];
        supervisor.auto_shutdown = shutdowns[number % 3];
        supervisor.intensity = if number % 2 == 0 { Intensity::Unlimited } else { Intensity::default() };
    }
}

fn member(body: Body) -> Member {
    let mut rate = Rate::default();
    rate.count(Duration::from_secs(61));
    Member {
        restart: Restart::Permanent,
        backoff: Backoff::default(),
        significant: true,
        held: false,
        quarantined: true,
        removed: false,
        delays: 2,
        at_cap: 1,
        unpaid: 3,
        restarts: classes().into_iter().zip(1..).collect(),
        rate,
        history: Vec::new(),
        node_losses: BTreeMap::from([(super::node(), 2)]),
        endings: BTreeMap::from([(CauseClass::Normal, 7)]),
        body,
    }
}

fn classes() -> [CauseClass; 9] {
    [
        CauseClass::Normal,
        CauseClass::Crash,
        CauseClass::Unhealthy,
        CauseClass::StartFailed,
        CauseClass::Stopped,
        CauseClass::ReaperLost,
        CauseClass::NodeLost,
        CauseClass::Escalated,
        CauseClass::AutoShutdown,
    ]
}

fn history() -> HistoryEntry {
    HistoryEntry {
        cause: chain(),
        charged: true,
        payer: "budget of /shop: 1 of 3 in 30 s spent".into(),
        decision: "restarts after 29 ms".into(),
        count: 2,
        first: 1_700_000_000_000,
        last: 1_700_000_000_100,
        earlier: vec![chain()],
    }
}

fn chain() -> Arc<CauseChain> {
    Arc::new(CauseChain::of(super::rows::cause()).below(super::rows::cause()))
}

fn process(phase: ProcessPhase) -> Process {
    let refusal = Refusal { count: 2, at: Duration::from_secs(3), why: "no such program".into() };
    Process {
        spec: Arc::new(super::specs::processes().remove(1)),
        window: Window::default(),
        refusals: BTreeMap::from([(super::node(), refusal)]),
        refused_by: BTreeSet::from([super::node()]),
        place: Some(Place { node: super::node(), session: SessionId(3), slots: 2 }),
        phase,
    }
}

fn crash() -> Crash {
    Crash { at: Duration::from_secs(9), child: path(10), cause: chain() }
}

fn downs() -> [DownReason; 4] {
    [DownReason::Supervisor, DownReason::Held, DownReason::Finished, DownReason::Rule]
}

fn process_phases() -> Vec<ProcessPhase> {
    let run = |stage, stopping| Run {
        incarnation: Incarnation(5),
        node: super::node(),
        session: SessionId(3),
        after: Some(Incarnation(4)),
        delay: Duration::from_millis(50),
        slots: 1,
        since: Duration::from_secs(8),
        stage,
        stopping,
        keep: stopping.is_some(),
    };
    let at = Duration::from_millis(8_004);
    let stages = [Stage::Assigned, Stage::Started { pid: 4_242, at }, Stage::Ready { pid: 4_242, at }];
    let stops = [
        StopReason::Operator,
        StopReason::Restart,
        StopReason::Update,
        StopReason::Removed,
        StopReason::Supervisor,
        StopReason::Shutdown,
        StopReason::Group,
        StopReason::Drain,
    ];
    let mut phases: Vec<ProcessPhase> = downs().into_iter().map(ProcessPhase::Down).collect();
    phases.push(ProcessPhase::Pending(pending()));
    phases.extend(stages.into_iter().map(|stage| ProcessPhase::Assigned(run(stage, None))));
    phases.extend(stops.into_iter().map(|stop| ProcessPhase::Assigned(run(Stage::Assigned, Some(stop)))));
    phases
}

fn pending() -> Pending {
    Pending { order: 8, not_before: Duration::from_secs(2), waits_for: Some("a node with disk=ssd".into()) }
}

fn supervisor(phase: SupervisorPhase) -> Supervisor {
    Supervisor {
        strategy: Strategy::OneForAll,
        intensity: Intensity::default(),
        auto_shutdown: AutoShutdown::Never,
        colocate: true,
        is_pool: true,
        children: vec![child(), "load".parse().unwrap()],
        window: Window::default(),
        phase,
    }
}

fn supervisor_phases() -> Vec<SupervisorPhase> {
    let since = Duration::from_secs(4);
    let groups = [
        Group::Settled,
        Group::TakingDown { from: child(), not_before: since, charged: true },
        Group::Pending { pending: pending(), charged: true },
        Group::Starting,
    ];
    let thens = [Then::Fail(chain()), Then::End(chain()), Then::Restart, Then::Down(DownReason::Held)];
    let mut phases: Vec<SupervisorPhase> = downs().into_iter().map(SupervisorPhase::Down).collect();
    phases.push(SupervisorPhase::Delayed { until: since });
    phases.extend(groups.into_iter().map(|group| SupervisorPhase::Up { since, group }));
    phases.extend(thens.into_iter().map(|then| SupervisorPhase::Stopping { was_up: since, then }));
    phases.push(SupervisorPhase::Failed(chain()));
    phases
}

fn nodes() -> Vec<(NodeName, Node)> {
    let session = Session {
        nonce: u64::MAX,
        since: Duration::from_secs(1),
        observed: 300,
        leaving: true,
        assigned: Default::default(),
        kept: Default::default(),
        used: 3,
        revision: 12,
        silent: true,
        hands: Default::default(),
        last_hand: 300,
    };
    let node = |role| Node {
        address: "n1:7400".into(),
        role,
        labels: BTreeSet::from(["zone=a".parse().unwrap()]),
        slots: 64,
        pid: 4_242,
        current: Some(SessionId(3)),
        sessions: BTreeMap::from([(SessionId(3), session.clone())]),
        drained: true,
        losses: 2,
    };
    vec![("n1".parse().unwrap(), node(NodeRole::Voter)), ("n2".parse().unwrap(), node(NodeRole::Agent))]
}

fn events() -> Vec<Event> {
    let event = |(kind, number)| Event {
        number,
        at: Duration::from_millis(1_234),
        wall: 1_700_000_000_000,
        path: Some(path(10)),
        node: Some(super::node()),
        kind,
        text: "it ended".into(),
    };
    EventKind::ALL.into_iter().zip(1..).map(event).collect()
}

fn client() -> ClientRecord {
    ClientRecord {
        heard: Duration::from_secs(7),
        forgotten_below: 299,
        replies: (300_u64..).zip(super::outcomes().into_iter().map(Arc::new)).collect(),
        bytes: 1_234,
    }
}

fn child() -> ChildId {
    "web".parse().unwrap()
}

/// In the order of their numbers, as long as all have two digits.
fn path(number: usize) -> Path {
    format!("/shop/p{number}").parse().unwrap()
}

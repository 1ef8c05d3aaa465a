//! A state at its bounds, in parts.

use std::collections::{BTreeMap, BTreeSet};

use imbl::OrdSet;
use pando_protocol::cause::{Cause, CauseChain, CauseClass, MAX_STDERR};
use pando_protocol::codec::{SECTION_LIMIT, decode, encode};
use pando_protocol::ids::{ChildId, Incarnation, MAX_DEPTH, MAX_NAME};
use pando_protocol::mail::{AttemptEnd, MAX_FAILURE, MAX_HEADERS, MAX_MESSAGE_ID, MAX_PAYLOAD, Readiness};
use pando_protocol::session::NodeRole;
use pando_protocol::spec::{
    AutoShutdown, Backoff, Intensity, MAX_ATTEMPTS, MAX_MAX_RESTARTS, MAX_MEMBERS, MAX_PREFETCH, Restart, Strategy,
};

use super::{name as name_of, *};
use crate::causes::MAX_WHY;
use crate::change::HISTORY_KEPT;
use crate::cluster::{Group, Supervisor, SupervisorPhase};
use crate::mail::{ATTEMPT_STDERR, ATTEMPTS_KEPT, Attempt, Content, Pace, Payer, State, Strike, Trouble, WorkerRun};
use crate::restarts::Rate;
use crate::supervisors::EARLIER_KEPT;

/// One of the longest paths that there are.
fn path(number: u32) -> Path {
    let above = format!("/{}", "a".repeat(MAX_NAME)).repeat(MAX_DEPTH - 1);
    format!("{above}/{number:0MAX_NAME$}").parse().unwrap()
}

fn name() -> NodeName {
    "n".repeat(MAX_NAME).parse().unwrap()
}

fn number(count: impl TryInto<u32>) -> u32 {
    count.try_into().ok().unwrap()
}

/// An escalation from the lowest level to the highest.
fn chain() -> Arc<CauseChain> {
    let cause = |stderr: usize| Cause {
        path: path(0),
        class: CauseClass::Escalated,
        message: "m".repeat(MAX_WHY + 100),
        code: Some(u8::MAX),
        signal: None,
        incarnation: Some(Incarnation(u64::MAX)),
        node: Some(name()),
        stderr: "e".repeat(stderr),
    };
    let mut levels = vec![cause(0); MAX_DEPTH - 1];
    levels.push(cause(MAX_STDERR));
    Arc::new(CauseChain { levels })
}

/// A pool with as many workers as a tree has members, whose budget and history are full.
fn pool() -> Member {
    let entry = HistoryEntry {
        cause: chain(),
        charged: true,
        payer: "p".repeat(2_000),
        decision: "d".repeat(2_000),
        count: u64::MAX,
        first: u64::MAX,
        last: u64::MAX,
        earlier: vec![chain(); EARLIER_KEPT],
    };
    let crash = Crash { at: Duration::MAX, child: path(0), cause: chain() };
    let children = (0..number(MAX_MEMBERS)).map(|child| format!("{child:0MAX_NAME$}").parse::<ChildId>().unwrap());
    let supervisor = Supervisor {
        strategy: Strategy::OneForOne,
        intensity: Intensity::Limited { max_restarts: MAX_MAX_RESTARTS, within: Duration::MAX },
        auto_shutdown: AutoShutdown::Never,
        colocate: false,
        is_pool: true,
        children: children.collect(),
        window: Window { crashes: std::iter::repeat_n(crash, MAX_MAX_RESTARTS as usize + 1).collect() },
        phase: SupervisorPhase::Up { since: Duration::ZERO, group: Group::Settled },
    };
    Member {
        restart: Restart::Permanent,
        backoff: Backoff::default(),
        significant: false,
        held: false,
        quarantined: false,
        removed: false,
        delays: 0,
        at_cap: 0,
        unpaid: 0,
        restarts: BTreeMap::new(),
        rate: Rate::default(),
        history: std::iter::repeat_n(Arc::new(entry), HISTORY_KEPT).collect(),
        node_losses: BTreeMap::new(),
        endings: BTreeMap::new(),
        body: Body::Supervisor(supervisor),
    }
}

/// A node with all workers of the pool, which hold as much as one worker can, each.
fn node(hands: u32) -> Node {
    let all: OrdSet<Path> = (0..number(MAX_MEMBERS)).map(path).collect();
    let at = |hand: u64| Held {
        mailbox: path(0),
        message: hand,
        worker: path(number(hand % MAX_MEMBERS as u64)),
        incarnation: Incarnation(u64::MAX),
        began: u64::MAX,
        at: Duration::MAX,
    };
    let session = Session {
        nonce: u64::MAX,
        since: Duration::MAX,
        observed: u64::MAX,
        leaving: false,
        assigned: all.clone(),
        kept: all,
        used: u32::MAX,
        revision: u64::MAX,
        silent: false,
        hands: (0..u64::from(hands)).map(|hand| (hand, at(hand))).collect(),
        last_hand: hands.into(),
    };
    Node {
        address: "n:1".into(),
        role: NodeRole::Agent,
        labels: BTreeSet::new(),
        slots: u32::MAX,
        pid: u32::MAX,
        current: Some(SessionId(1)),
        sessions: BTreeMap::from([(SessionId(1), session)]),
        drained: false,
        losses: 0,
    }
}

fn trouble() -> Trouble {
    let attempt = Attempt {
        life: u32::MAX,
        worker: path(0),
        node: name(),
        incarnation: Incarnation(u64::MAX),
        began: u64::MAX,
        ended: u64::MAX,
        how: AttemptEnd::Crashed,
        class: Some(CauseClass::Crash),
        why: "w".repeat(MAX_FAILURE),
        stderr: "e".repeat(ATTEMPT_STDERR),
        payer: Payer::Message,
    };
    Trouble { attempts: std::iter::repeat_n(Arc::new(attempt), ATTEMPTS_KEPT).collect(), ..Trouble::default() }
}

fn full_mailbox(hands: u32) -> Mailbox {
    let all = || (0..number(MAX_MEMBERS)).map(path);
    let mut held: BTreeMap<Path, imbl::OrdMap<u64, u64>> = BTreeMap::new();
    for hand in 0..u64::from(hands) {
        held.entry(path(number(hand % MAX_MEMBERS as u64))).or_default().insert(hand, hand);
    }
    let strike = Strike { message: u64::MAX, life: u32::MAX, incarnation: Incarnation(u64::MAX) };
    let mut worker = |at: &Path| Worker {
        run: Some(WorkerRun {
            incarnation: Incarnation(u64::MAX),
            node: name(),
            session: SessionId(1),
            readiness: Readiness { starts: true, prefetch: MAX_PREFETCH },
            stopping: false,
            alone: false,
            succeeded: false,
            pace: Pace { since: Duration::MAX, settled: u32::MAX, ahead: u32::MAX },
            held: held.remove(at).unwrap_or_default(),
        }),
        done: u64::MAX,
        streak: vec![strike; if *at == path(0) { MAX_ATTEMPTS as usize } else { 1 }],
        sick: true,
    };
    let accusation = Accusation {
        worker: path(0),
        cause: chain(),
        open: (0..u64::from(MAX_PREFETCH)).map(|message| u64::MAX - message).collect(),
        explained: false,
    };
    let content = Content {
        id: Some("i".repeat(MAX_MESSAGE_ID).into()),
        headers: BTreeMap::from([("h".into(), "h".repeat(MAX_HEADERS))]),
        payload: vec![0; MAX_PAYLOAD].into(),
        at: Duration::MAX,
        wall: u64::MAX,
        asks: true,
    };
    let message = Message { content: Arc::new(content), trouble: Some(Arc::new(trouble())), state: State::Held(0) };
    let reply = KeptReply { reply: Ok(Some(vec![0; MAX_PAYLOAD].into())) };
    let mut mailbox = Mailbox {
        workers: all().map(|at| (at.clone(), Arc::new(worker(&at)))).collect(),
        streaks: all().collect(),
        accusations: (0..100_u64).map(|number| (number, Arc::new(accusation.clone()))).collect(),
        risky: (0..u64::from(hands)).map(|message| (message, name())).collect(),
        replies: [((Duration::MAX, 1), Arc::new(reply))].into_iter().collect(),
        replied: [(1_u64, Duration::MAX)].into_iter().collect(),
        ..Mailbox::default()
    };
    mailbox.take_back(0, message);
    mailbox.recount_free();
    mailbox
}

/// Everything that a member, node or mailbox can have many of, far more of it than one part could take.
fn full() -> Cluster {
    let hands = 3 * MAX_PREFETCH;
    let mut cluster = Cluster::default();
    cluster.members.insert(path(0).parent().unwrap(), Arc::new(pool()));
    cluster.nodes.insert(name(), Arc::new(node(hands)));
    cluster.mail.insert(path(0), Arc::new(full_mailbox(hands)));
    cluster
}

#[test]
fn no_part_of_a_state_at_its_bounds_outgrows_a_section() {
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for part in parts(&full()) {
        let bytes = encode::<SECTION_LIMIT>(&part).unwrap_or_else(|error| panic!("{}: {error}", name_of(&part)));
        let largest = kinds.entry(name_of(&part)).or_default();
        *largest = bytes.len().max(*largest);
    }
    // With room to spare: half of what a section takes.
    let large: Vec<_> = kinds.iter().filter(|(_, bytes)| **bytes > SECTION_LIMIT / 2).collect();
    assert!(large.is_empty() && kinds.len() == 14, "{kinds:?}");
}

#[test]
fn a_state_at_its_bounds_comes_back_from_its_parts() {
    let full = full();
    let back = from_parts(
        parts(&full).map(|part| decode::<Part, SECTION_LIMIT>(&encode::<SECTION_LIMIT>(&part).unwrap()).unwrap()),
    );
    assert!(back.unwrap() == full, "it differs");
}

#[test]
fn what_is_held_by_a_worker_that_no_mailbox_knows_is_refused() {
    let mut cluster = full();
    cluster.mail.insert(path(0), Arc::default());
    let refused = from_parts(parts(&cluster)).unwrap_err();
    assert!(refused.contains("hand 0 is for run") && refused.contains("does not know"), "{refused}");
}

//! What people are shown.

use pando_protocol::cause::{Cause, CauseChain, CauseClass};
use pando_protocol::ids::{Incarnation, SessionId};
use pando_protocol::session::NodeRole;
use pando_protocol::spec::Signal;
use pando_protocol::view::{
    CauseRow, ClusterRow, Explanation, HistoryRow, Kind, MailboxDepth, MemberRole, MemberRow, NodeRow, NodeState,
    State, TreeRow, Verdict, VoterRow,
};

use super::{node, path};

pub fn tree_row() -> TreeRow {
    TreeRow {
        path: path(),
        kind: Kind::Process,
        state: State::Running,
        verdict: Verdict::Healthy,
        node: Some(node()),
        incarnation: Some(Incarnation(5)),
        pid: Some(4_242),
        uptime_ms: Some(60_000),
        restarts: 3,
        restart_rate: 1,
        alive: 1,
        configured: 1,
        waiting: Some("a node with disk=ssd".into()),
        mailbox: Some(MailboxDepth { waiting: 12, in_flight: 4, dead: 3 }),
    }
}

pub fn tree_rows() -> Vec<TreeRow> {
    let states = [
        State::Waiting,
        State::BackingOff,
        State::Starting,
        State::Started,
        State::Running,
        State::Stopping,
        State::Stopped,
        State::Finished,
        State::Failed,
        State::Unreachable,
    ];
    let verdicts = [
        Verdict::Failed,
        Verdict::Stopped,
        Verdict::Waiting,
        Verdict::Looping,
        Verdict::Churning,
        Verdict::Short,
        Verdict::Healthy,
        Verdict::Unreachable,
    ];
    let rows = states.into_iter().zip(verdicts.into_iter().cycle());
    let kinds = [Kind::Supervisor, Kind::Process].into_iter().cycle();
    rows.zip(kinds).map(|((state, verdict), kind)| TreeRow { kind, state, verdict, ..tree_row() }).collect()
}

fn cause_row() -> CauseRow {
    CauseRow {
        path: path(),
        class: CauseClass::Crash,
        code: Some(1),
        signal: Some("SIGSEGV".into()),
        message: "exit code 1 after 12 ms".into(),
        stderr: "boom\n".into(),
    }
}

pub fn cause() -> Cause {
    Cause {
        path: path(),
        class: CauseClass::Escalated,
        message: "6 crashes in 10 s".into(),
        code: Some(1),
        signal: Some(Signal(11)),
        incarnation: Some(Incarnation(5)),
        node: Some(node()),
        stderr: "boom\n".into(),
    }
}

pub fn history_row() -> HistoryRow {
    HistoryRow {
        incarnation: Some(Incarnation(5)),
        node: Some(node()),
        cause: cause_row(),
        charged: true,
        payer: "the budget of /shop".into(),
        decision: "restart in 50 ms".into(),
        count: 2,
        first: 1_700_000_000_000,
        last: 1_700_000_000_100,
        chain: vec![cause_row()],
        earlier: vec![cause_row()],
    }
}

pub fn explanation() -> Explanation {
    Explanation {
        row: tree_row(),
        now: "it runs".into(),
        next: "nothing".into(),
        gives_up: "at the sixth crash".into(),
        last: Some(CauseChain::of(cause()).below(cause())),
        window: vec![cause()],
        node_losses: vec![(node(), 1)],
        start_failures: vec![(node(), "no such program".into())],
    }
}

fn node_row() -> NodeRow {
    NodeRow {
        name: node(),
        role: NodeRole::Voter,
        state: NodeState::Leaving,
        session: Some(SessionId(3)),
        pid: Some(1),
        children: 7,
        used: 7,
        slots: 16,
        labels: vec!["zone=a".into()],
        losses: 1,
        address: "n1:7000".into(),
    }
}

pub fn node_rows() -> Vec<NodeRow> {
    let states = [
        NodeState::Up,
        NodeState::Leaving,
        NodeState::Down,
        NodeState::Draining,
        NodeState::Drained,
        NodeState::Unreachable,
    ];
    states.into_iter().map(|state| NodeRow { state, ..node_row() }).collect()
}

pub fn cluster_row() -> ClusterRow {
    let voter = VoterRow { name: node(), raft_id: u64::MAX, address: "n1:7000".into(), lag: Some(3) };
    ClusterRow {
        cluster: "dev".into(),
        leader: Some(node()),
        term: 4,
        applied: 300,
        cluster_time_ms: 1_000_000,
        voters: vec![voter],
    }
}

pub fn member_row() -> MemberRow {
    MemberRow {
        name: node(),
        raft_id: u64::MAX,
        role: MemberRole::Learner,
        address: "n1:7000".into(),
        lag: Some(3),
        answers: Some(true),
    }
}

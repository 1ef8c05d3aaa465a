//! Honest values of every type that is sent or kept: each variant at least once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pando_protocol::cause::{Cause, CauseClass, Exit, ExitHow, OutOfMemory};
use pando_protocol::ids::{ClientId, Incarnation, NodeName, Path, SessionId};
use pando_protocol::message::{
    Answer, Call, Change, Changed, Difference, DifferenceKind, Found, Freshness, Item, LogLine, MemberChange,
    MembersChanged, Query, Reply, Settled, ViewAge, Write,
};
use pando_protocol::rejection::Rejection;
use pando_protocol::session::{
    Desired, Ending, LeaderWord, Member, Members, NodeRole, Obituary, Observation, RunnerWord, SessionRequest, Wanted,
};
use pando_protocol::spec::{
    AutoShutdown, Backoff, ChildSpec, Command as Program, ExitAction, ExitMatch, ExitRule, Intensity, OnDisconnect,
    Place, ProcessSpec, Ready, Restart, Shutdown, Signal, SpecMistake, Strategy, SupervisorSpec, TreeSpec, Work,
};
use pando_protocol::view::{
    CauseRow, ClusterRow, EventRow, Explanation, HistoryRow, Kind, MemberRole, MemberRow, NodeRow, NodeState, State,
    TreeRow, Verdict, VoterRow,
};
use pando_supervision::command::EndProof;
use pando_supervision::{Batch, Command, Done, Outcome, Stamp};

#[path = "samples/state.rs"]
pub mod state;

pub fn calls() -> Vec<Call> {
    let write = |change| Call::Write(write(change));
    let read = |query| Call::Read { query, freshness: Freshness::Linearizable };
    let mut calls: Vec<Call> = changes().into_iter().map(write).collect();
    calls.extend(queries().into_iter().map(read));
    calls.extend([
        Call::Read { query: Query::Nodes, freshness: Freshness::Stale },
        Call::Kill { path: path(), signal: Signal::KILL },
        Call::Events { after: 7, follow: true },
        Call::Logs { path: path(), tail: 100, follow: false },
        Call::Transfer { to: None },
        Call::Transfer { to: Some(node()) },
        Call::Members(MemberChange::Add { name: node(), address: "n4:7400".into() }),
        Call::Members(MemberChange::Promote(node())),
        Call::Members(MemberChange::Remove(node())),
    ]);
    calls
}

fn write(change: Change) -> Write {
    Write { client: ClientId(u128::MAX / 3), sequence: 300, lowest_unanswered: 299, change }
}

fn changes() -> Vec<Change> {
    let mut changes: Vec<Change> = trees().into_iter().map(Change::Apply).collect();
    changes.extend([
        Change::Delete("shop".parse().unwrap()),
        Change::Start(path()),
        Change::Stop(path()),
        Change::Restart(path()),
        Change::Drain(node()),
        Change::Undrain(node()),
        Change::RemoveNode(node()),
        Change::Quarantine(path()),
        Change::RemoveDeadNode(node()),
    ]);
    changes
}

fn queries() -> Vec<Query> {
    vec![
        Query::Tree(None),
        Query::Tree(Some(path())),
        Query::Explain(path()),
        Query::History(path()),
        Query::Nodes,
        Query::Cluster,
        Query::Diff(trees().remove(0)),
        Query::Settled(path()),
        Query::Members,
    ]
}

pub fn answers() -> Vec<Answer> {
    let found = |found| Ok(Reply::Found { found, view: view_age() });
    let mut answers: Vec<Answer> = rejections().into_iter().map(Err).collect();
    answers.extend([
        Ok(Reply::Changed(changed())),
        Ok(Reply::Killed { incarnation: Incarnation(9), node: node(), pid: 77 }),
        Ok(Reply::Transferred { leader: node() }),
        Ok(Reply::MembersChanged(MembersChanged { changed: true, members: vec![member_row()] })),
        found(Found::Tree(tree_rows())),
        found(Found::Explanation(Box::new(explanation()))),
        found(Found::History(vec![history_row()])),
        found(Found::Nodes(node_rows())),
        found(Found::Cluster(cluster_row())),
        found(Found::Differences(differences())),
        found(Found::Settled(settled())),
        found(Found::Members(vec![member_row(), MemberRow { role: MemberRole::Voter, ..member_row() }])),
    ]);
    answers
}

pub fn items() -> Vec<Item> {
    let event = EventRow {
        number: 12,
        cluster_time_ms: 1_000,
        at: 1_700_000_000_000,
        kind: "child_exited".into(),
        path: Some(path()),
        node: Some(node()),
        text: "it ended".into(),
    };
    let line = LogLine {
        node: node(),
        incarnation: Incarnation(4),
        at: Duration::new(1_700_000_000, 5),
        is_stderr: true,
        line: "words".into(),
    };
    let mut items = vec![Item::Event(event), Item::Log(line), Item::Note("n3 does not answer".into())];
    items.extend(rejections().into_iter().map(Item::Failed));
    items
}

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
    ]
}

pub fn obituaries() -> Vec<Obituary> {
    vec![Obituary { node: node(), session: SessionId(3), how: "signal 9".into() }]
}

pub fn trees() -> Vec<TreeSpec> {
    let mut children: Vec<ChildSpec> =
        processes().into_iter().map(|spec| child(Work::Process(Arc::new(spec)))).collect();
    let inner = SupervisorSpec {
        strategy: Strategy::RestForOne,
        intensity: Intensity::Unlimited,
        auto_shutdown: AutoShutdown::AllSignificant,
        colocate: true,
        children: children.clone(),
    };
    children.push(child(Work::Supervisor(inner)));
    vec![tree(children), tree(vec![])]
}

pub fn batches() -> Vec<Batch> {
    let mut commands: Vec<Command> = changes().into_iter().map(|change| Command::Write(write(change))).collect();
    commands.extend(observations().into_iter().map(|observation| Command::Observe {
        node: node(),
        session: SessionId(3),
        number: 2,
        observation,
    }));
    commands.extend([
        Command::Tick,
        Command::GrantSession(session_request()),
        Command::EndSession { node: node(), session: SessionId(3), proof: EndProof::Lease },
        Command::EndSession { node: node(), session: SessionId(3), proof: EndProof::Obituary("killed".into()) },
        Command::RaiseRules(2),
    ]);
    let alone = commands.iter().map(|command| batch(vec![command.clone()])).collect::<Vec<_>>();
    [alone, vec![batch(commands)]].concat()
}

pub fn outcomes() -> Vec<Outcome> {
    let mut outcomes: Vec<Outcome> = rejections().into_iter().map(Err).collect();
    outcomes.extend([
        Ok(Done::Ticked),
        Ok(Done::Changed(changed())),
        Ok(Done::Granted(SessionId(3))),
        Ok(Done::Ended),
        Ok(Done::Observed(7)),
        Ok(Done::Rules(1)),
    ]);
    outcomes
}

fn batch(commands: Vec<Command>) -> Batch {
    Batch { stamp: Stamp { at: Duration::from_millis(1_234), wall: 1_700_000_000_000 }, commands }
}

fn rejections() -> Vec<Rejection> {
    vec![
        Rejection::NoSuchPath { path: path(), nearest: Some(path()) },
        Rejection::NoSuchTree("shop".parse().unwrap()),
        Rejection::NoSuchNode(node()),
        Rejection::BadSpec { tree: "shop".parse().unwrap(), mistakes: vec![spec_mistake()] },
        Rejection::KindChanged { path: path(), from: "process".into(), to: "supervisor".into() },
        Rejection::BeingDeleted("shop".parse().unwrap()),
        Rejection::TooMany { what: "paths".into(), limit: 100_000 },
        Rejection::WrongState { path: path(), why: "is stopped".into() },
        Rejection::Forbidden { needed: "admin".into(), yours: "viewer".into() },
        Rejection::TooLateToTell,
        Rejection::NoLeader { waited: Duration::from_secs(2), why: "an election".into() },
        Rejection::Unknown,
        Rejection::Internal("rule".into()),
        Rejection::SessionOver(SessionId(3)),
        Rejection::OutOfOrder { got: 3, expected: 2 },
        Rejection::BadRequest("empty".into()),
        Rejection::NotTransferred { to: node(), why: "it lags".into() },
        Rejection::WrongNodeState { node: node(), why: "it is up".into() },
        Rejection::MembersNotChanged { name: node(), what: "promoted".into(), why: "it lags".into() },
    ]
}

fn observations() -> Vec<Observation> {
    let how = [
        ExitHow::Code(1),
        ExitHow::Signal(Signal(11)),
        ExitHow::StartFailed("no such program".into()),
        ExitHow::Unready(Duration::from_secs(10)),
        ExitHow::ReaperLost,
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
    };
    let mut observations: Vec<Observation> = how.into_iter().map(exited).collect();
    let memory = [OutOfMemory::No, OutOfMemory::Yes].into_iter().zip(observations.clone());
    let memory = memory.map(|(out_of_memory, observation)| match observation {
        Observation::Exited { path, incarnation, exit } => {
            Observation::Exited { path, incarnation, exit: Exit { out_of_memory, healthy: None, stderr: None, ..exit } }
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
    ]);
    observations
}

fn processes() -> Vec<ProcessSpec> {
    let plain = ProcessSpec::new(program(&["shop-web", "--port", "8080"]));
    let rule = |when, action| ExitRule { when, action };
    let rich = ProcessSpec {
        env: BTreeMap::from([("GREETING".into(), "hello".into())]),
        cwd: Some("work".into()),
        shutdown: Shutdown::BrutalKill,
        normal_exit: BTreeSet::from([0, 3]),
        intensity: Some(Intensity::default()),
        ready: Ready::Exec {
            command: program(&["shop-web", "--check"]),
            within: Duration::from_secs(10),
            interval: Duration::from_millis(200),
        },
        place: Place {
            require: BTreeSet::from(["disk=ssd".parse().unwrap()]),
            prefer: BTreeSet::from(["zone=a".parse().unwrap()]),
            spread: Some("zone".into()),
        },
        on_exit: vec![
            rule(ExitMatch::Code(78), ExitAction::Stop),
            rule(ExitMatch::Signal(Signal(3)), ExitAction::Escalate),
            rule(ExitMatch::Code(1), ExitAction::Ignore),
            rule(ExitMatch::Code(2), ExitAction::Restart),
        ],
        ..plain.clone()
    };
    let notifying = ProcessSpec {
        on_disconnect: OnDisconnect::Keep,
        shutdown: Shutdown::Infinity,
        ready: Ready::Notify { within: Duration::from_secs(10) },
        ..plain.clone()
    };
    vec![plain, rich, notifying]
}

fn program(words: &[&str]) -> Program {
    Program { program: words[0].into(), args: words[1..].iter().map(|word| (*word).into()).collect() }
}

fn child(work: Work) -> ChildSpec {
    ChildSpec {
        id: "web".parse().unwrap(),
        restart: Restart::Transient,
        backoff: Backoff::default(),
        significant: true,
        work,
    }
}

fn tree(children: Vec<ChildSpec>) -> TreeSpec {
    let root = SupervisorSpec {
        strategy: Strategy::OneForOne,
        intensity: Intensity::default(),
        auto_shutdown: AutoShutdown::Never,
        colocate: false,
        children,
    };
    TreeSpec { name: "t".parse().unwrap(), root }
}

fn session_request() -> SessionRequest {
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

fn changed() -> Changed {
    Changed { differences: vec![difference()], event: 12 }
}

fn difference() -> Difference {
    Difference { path: path(), what: DifferenceKind::Restarted, keys: vec!["command".into()] }
}

fn differences() -> Vec<Difference> {
    let kinds = [
        DifferenceKind::Added,
        DifferenceKind::Removed,
        DifferenceKind::Restarted,
        DifferenceKind::Changed,
        DifferenceKind::Started,
        DifferenceKind::Stopped,
        DifferenceKind::Moved,
    ];
    kinds.into_iter().map(|what| Difference { what, ..difference() }).collect()
}

fn spec_mistake() -> SpecMistake {
    SpecMistake { at: path(), key: "backoff.cap".into(), what: "below base".into() }
}

fn view_age() -> ViewAge {
    ViewAge { answered_by: node(), leader: Some(node()), confirmed: true, age_ms: 0 }
}

fn tree_row() -> TreeRow {
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
    }
}

fn tree_rows() -> Vec<TreeRow> {
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

fn cause() -> Cause {
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

fn history_row() -> HistoryRow {
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

fn explanation() -> Explanation {
    Explanation {
        row: tree_row(),
        now: "it runs".into(),
        next: "nothing".into(),
        gives_up: "at the sixth crash".into(),
        last: Some(pando_protocol::cause::CauseChain::of(cause()).below(cause())),
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

fn node_rows() -> Vec<NodeRow> {
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

fn cluster_row() -> ClusterRow {
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

fn member_row() -> MemberRow {
    MemberRow {
        name: node(),
        raft_id: u64::MAX,
        role: MemberRole::Learner,
        address: "n1:7000".into(),
        lag: Some(3),
        answers: Some(true),
    }
}

fn settled() -> Settled {
    Settled {
        whole: false,
        failed: Some("/shop: 6 crashes in 10 s".into()),
        verdict: Verdict::Short,
        ready: 1,
        configured: 2,
        missing: vec!["/shop/web waits for room".into()],
    }
}

fn path() -> Path {
    "/shop/web".parse().unwrap()
}

fn node() -> NodeName {
    "n1".parse().unwrap()
}

// Values with so many of an element that is as small as can be.

/// Makes values with this many elements.
#[derive(Clone, Copy)]
pub struct Elements(pub usize);

impl Elements {
    pub fn arguments(self) -> TreeSpec {
        let program = Program { program: "x".into(), args: vec![String::new(); self.0] };
        tree(vec![child(Work::Process(Arc::new(ProcessSpec::new(program))))])
    }

    pub fn members(self) -> TreeSpec {
        tree(vec![child(Work::Process(Arc::new(bare()))); self.0])
    }

    pub fn rules(self) -> TreeSpec {
        let on_exit = vec![ExitRule { when: ExitMatch::Code(1), action: ExitAction::Stop }; self.0];
        tree(vec![child(Work::Process(Arc::new(ProcessSpec { on_exit, ..bare() })))])
    }

    pub fn call(self) -> Call {
        Call::Write(write(Change::Apply(self.members())))
    }

    pub fn bare_runs(self) -> LeaderWord {
        self.runs(bare())
    }

    /// Each with one of everything that takes a leaf of a tree on the heap.
    pub fn rich_runs(self) -> LeaderWord {
        self.runs(ProcessSpec {
            env: BTreeMap::from([(String::new(), String::new())]),
            normal_exit: BTreeSet::from([1]),
            place: Place {
                require: BTreeSet::from(["a=".parse().unwrap()]),
                prefer: BTreeSet::from(["a=".parse().unwrap()]),
                spread: None,
            },
            ..bare()
        })
    }

    fn runs(self, spec: ProcessSpec) -> LeaderWord {
        let wanted = Wanted {
            path: shortest_path(),
            incarnation: Incarnation(0),
            after: None,
            delay: Duration::ZERO,
            spec: Arc::new(spec),
        };
        LeaderWord::Desired(Desired { session: SessionId(0), index: 0, run: vec![wanted; self.0], end: vec![] })
    }

    pub fn endings(self) -> LeaderWord {
        let end = vec![Ending { path: shortest_path(), incarnation: Incarnation(0) }; self.0];
        LeaderWord::Desired(Desired { session: SessionId(0), index: 0, run: vec![], end })
    }

    pub fn labels(self) -> RunnerWord {
        RunnerWord::Ask(SessionRequest { labels: vec!["a=".parse().unwrap(); self.0], ..session_request() })
    }

    pub fn sessions(self) -> RunnerWord {
        RunnerWord::Ask(SessionRequest { proven_over: vec![SessionId(0); self.0], ..session_request() })
    }

    pub fn tree_rows(self) -> Answer {
        let row = TreeRow {
            path: shortest_path(),
            node: None,
            incarnation: None,
            pid: None,
            uptime_ms: None,
            waiting: None,
            ..tree_row()
        };
        self.found(Found::Tree(vec![row; self.0]))
    }

    pub fn history_rows(self) -> Answer {
        let cause = CauseRow {
            path: shortest_path(),
            class: CauseClass::Normal,
            code: None,
            signal: None,
            message: String::new(),
            stderr: String::new(),
        };
        let row = HistoryRow {
            incarnation: None,
            node: None,
            cause,
            charged: false,
            payer: String::new(),
            decision: String::new(),
            count: 0,
            first: 0,
            last: 0,
            chain: vec![],
            earlier: vec![],
        };
        self.found(Found::History(vec![row; self.0]))
    }

    pub fn differences(self) -> Answer {
        let difference = Difference { path: shortest_path(), what: DifferenceKind::Added, keys: vec![] };
        self.found(Found::Differences(vec![difference; self.0]))
    }

    pub fn causes(self) -> Answer {
        let cause = Cause {
            path: shortest_path(),
            class: CauseClass::Normal,
            message: String::new(),
            code: None,
            signal: None,
            incarnation: None,
            node: None,
            stderr: String::new(),
        };
        self.found(Found::Explanation(Box::new(Explanation { window: vec![cause; self.0], ..explanation() })))
    }

    fn found(self, found: Found) -> Answer {
        Ok(Reply::Found { found, view: view_age() })
    }

    pub fn mistakes(self) -> Item {
        let mistake = SpecMistake { at: shortest_path(), key: String::new(), what: String::new() };
        Item::Failed(Rejection::BadSpec { tree: "t".parse().unwrap(), mistakes: vec![mistake; self.0] })
    }

    pub fn ticks(self) -> Batch {
        batch(vec![Command::Tick; self.0])
    }

    pub fn observations(self) -> Batch {
        let command = Command::Observe {
            node: "a".parse().unwrap(),
            session: SessionId(0),
            number: 0,
            observation: Observation::Leaving,
        };
        batch(vec![command; self.0])
    }
}

/// A tree whose only process has so many variables in its environment, each with a name of its own.
pub fn variables(count: usize) -> TreeSpec {
    let env = (0..count).map(|n| (format!("{n:x}"), String::new())).collect();
    tree(vec![child(Work::Process(Arc::new(ProcessSpec { env, ..bare() })))])
}

fn bare() -> ProcessSpec {
    ProcessSpec {
        normal_exit: BTreeSet::new(),
        shutdown: Shutdown::BrutalKill,
        ..ProcessSpec::new(Program { program: String::new(), args: vec![] })
    }
}

fn shortest_path() -> Path {
    "/a".parse().unwrap()
}

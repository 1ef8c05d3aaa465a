//! Values with so many of an element that is as small as can be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pando_protocol::cause::{Cause, CauseClass};
use pando_protocol::ids::{Incarnation, Path, SessionId};
use pando_protocol::mail::{DeadLetterRow, DeathKind, Hand, Headers, NewMessage, Payload, Settlement, Word};
use pando_protocol::message::{Answer, Call, Change, Difference, DifferenceKind, Found, Item, Reply};
use pando_protocol::rejection::Rejection;
use pando_protocol::session::{Desired, Ending, LeaderWord, Observation, RunnerWord, SessionRequest, Wanted};
use pando_protocol::spec::{
    Command as Program, ExitAction, ExitMatch, ExitRule, Place, ProcessSpec, Shutdown, SpecMistake, TreeSpec, Work,
};
use pando_protocol::view::{CauseRow, Explanation, HistoryRow, TreeRow};
use pando_supervision::{Batch, Command};

use super::entries::batch;
use super::messages::{view_age, write};
use super::rows::{explanation, tree_row};
use super::sessions::session_request;
use super::specs::{child, tree};

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
            mailbox: None,
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

    pub fn messages(self) -> Call {
        let messages = vec![NewMessage::of(""); self.0];
        Call::Write(write(Change::Send { to: shortest_path(), messages, asks: false }))
    }

    pub fn dead_letters(self) -> Answer {
        let letter = DeadLetterRow {
            id: String::new(),
            number: 0,
            mailbox: shortest_path(),
            life: 1,
            cause: DeathKind::Attempts,
            why: String::new(),
            died: 0,
            enqueued: 0,
            headers: Headers::new(),
            payload: String::new(),
            payload_base64: None,
            bytes: 0,
            attempts: vec![],
            attempts_left_out: 0,
        };
        self.found(Found::DeadLetters { letters: vec![letter; self.0], total: 0 })
    }

    pub fn hands(self) -> LeaderWord {
        let hand = Hand {
            number: 1,
            worker: shortest_path(),
            incarnation: Incarnation(0),
            id: String::new(),
            attempt: 1,
            life: 1,
            asks: false,
            headers: Headers::new(),
            payload: Payload::default(),
        };
        LeaderWord::Hands { session: SessionId(0), hands: vec![hand; self.0] }
    }

    pub fn settlements(self) -> RunnerWord {
        let settled = Observation::Settled(vec![Settlement { hand: 1, word: Word::Returned }; self.0]);
        RunnerWord::Observe { session: SessionId(0), number: 0, observation: settled }
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

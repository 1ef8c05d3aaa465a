//! What clients ask and are answered.

use std::time::Duration;

use pando_protocol::ids::{ClientId, Incarnation, SessionId};
use pando_protocol::message::{
    Answer, Call, Change, Changed, Difference, DifferenceKind, Found, Freshness, Item, LogLine, MemberChange,
    MembersChanged, Query, Reply, Settled, ViewAge, Write,
};
use pando_protocol::rejection::Rejection;
use pando_protocol::spec::{Signal, SpecMistake};
use pando_protocol::view::{EventRow, MemberRole, MemberRow, Verdict};

use super::rows::{cluster_row, explanation, history_row, member_row, node_rows, tree_rows};
use super::specs::trees;
use super::{mail, node, path};

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

pub fn write(change: Change) -> Write {
    Write { client: ClientId(u128::MAX / 3), sequence: 300, lowest_unanswered: 299, change }
}

pub fn changes() -> Vec<Change> {
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
    changes.extend(mail::changes());
    changes
}

fn queries() -> Vec<Query> {
    let mut queries = vec![
        Query::Tree(None),
        Query::Tree(Some(path())),
        Query::Explain(path()),
        Query::History(path()),
        Query::Nodes,
        Query::Cluster,
        Query::Diff(trees().remove(0)),
        Query::Settled(path()),
        Query::Members,
    ];
    queries.extend(mail::queries());
    queries
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
    answers.extend(mail::found().into_iter().map(found));
    answers.extend(
        mail::mail_changed().into_iter().map(|mail| Ok(Reply::Changed(Changed { mail: Some(mail), ..changed() }))),
    );
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

pub fn rejections() -> Vec<Rejection> {
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
        Rejection::NoMailbox { path: path(), nearest: Some(path()) },
        Rejection::MailboxFull { path: path(), why: "it holds 100000 messages".into() },
        Rejection::BadMessage { index: 300, why: "its id is empty".into() },
        Rejection::RulesTooOld { what: "tree shop".into(), needed: 2, current: 1 },
    ]
}

pub fn changed() -> Changed {
    Changed { differences: vec![difference()], event: 12, mail: None }
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

pub fn view_age() -> ViewAge {
    ViewAge { answered_by: node(), leader: Some(node()), confirmed: true, age_ms: 0 }
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

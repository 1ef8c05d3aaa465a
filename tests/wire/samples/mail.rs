//! Messages for workers, and what people are shown of them.

use std::time::Duration;

use pando_protocol::cause::CauseClass;
use pando_protocol::ids::Incarnation;
use pando_protocol::mail::{
    AttemptEnd, AttemptRow, DeadLetterRow, DeathKind, Hand, Headers, Known, Leftover, Letters, MailboxRow, NewMessage,
    Sent, Settlement, Word, WorkerRow,
};
use pando_protocol::message::{Asked, Change, Found, MailChanged, Query};

use super::specs::trees;
use super::{node, path};

pub fn changes() -> Vec<Change> {
    let tree = || trees().remove(0);
    let from = path();
    vec![
        Change::ApplyLeaving(tree(), Leftover::Refuse),
        Change::ApplyLeaving(tree(), Leftover::DeadLetter),
        Change::DeleteLeaving("shop".parse().unwrap(), Leftover::Purge),
        Change::Scale { pool: path(), count: 300 },
        Change::Send { to: path(), messages: vec![NewMessage::of("hello"), new_message()], asks: false },
        Change::Send { to: path(), messages: vec![new_message()], asks: true },
        Change::Pause(path()),
        Change::Resume(path()),
        Change::Redrive { from: from.clone(), letters: letters(), rate: Some(10) },
        Change::Redrive { from: from.clone(), letters: Letters::default(), rate: None },
        Change::PurgeDead { from, letters: letters() },
        Change::PurgeWaiting(path()),
    ]
}

pub fn queries() -> Vec<Query> {
    let cause = |cause| Letters { cause: Some(cause), ..letters() };
    let list = |letters| Query::DeadLetters { of: path(), letters, after: 300, limit: 1_000, whole: true };
    let mut queries: Vec<Query> = DeathKind::ALL.into_iter().map(cause).map(list).collect();
    queries.extend([
        Query::Mailboxes(None),
        Query::Mailboxes(Some(path())),
        Query::DeadLetters { of: path(), letters: Letters::default(), after: 0, limit: 1, whole: false },
        Query::DeadLetter { of: path(), id: "order-7".into() },
        Query::Asked { of: path(), number: 300 },
    ]);
    queries
}

pub fn found() -> Vec<Found> {
    let asked = [
        Asked::Open { attempts: 2, last: Some("/shop/web/0: exit code 1".into()) },
        Asked::Done { reply: Some("done".into()) },
        Asked::Done { reply: None },
        Asked::Dead { why: "it was purged".into() },
        Asked::Unknown,
    ];
    let mut found: Vec<Found> = asked.into_iter().map(Found::Asked).collect();
    let letters = DeathKind::ALL.map(|cause| DeadLetterRow { cause, ..dead_letter_row() }).to_vec();
    found.extend([Found::Mailboxes(vec![mailbox_row()]), Found::DeadLetters { letters, total: 300 }]);
    found
}

pub fn mail_changed() -> Vec<MailChanged> {
    let known = vec![Known { index: 1, number: 299 }];
    vec![MailChanged::Sent(Sent { first: 300, accepted: 2, known }), MailChanged::Moved(300)]
}

pub fn hand() -> Hand {
    Hand {
        number: 300,
        worker: path(),
        incarnation: Incarnation(5),
        id: "order-7".into(),
        attempt: 2,
        life: 1,
        asks: true,
        headers: headers(),
        payload: vec![0, 0xff].into(),
    }
}

pub fn settlements() -> Vec<Settlement> {
    let words = [
        Word::Done { reply: None },
        Word::Done { reply: Some("done".into()) },
        Word::Failed { error: "KeyError".into() },
        Word::Rejected { error: "no such item".into() },
        Word::Returned,
    ];
    (300..).zip(words).map(|(hand, word)| Settlement { hand, word }).collect()
}

pub fn headers() -> Headers {
    Headers::from([("source".into(), "till-3".into())])
}

fn new_message() -> NewMessage {
    NewMessage { id: Some("order-7".into()), headers: headers(), payload: vec![0, 0xff].into() }
}

fn letters() -> Letters {
    Letters {
        ids: vec!["order-7".into()],
        cause: Some(DeathKind::Attempts),
        worker: Some(path()),
        older_than: Some(Duration::from_secs(3_600)),
        text: Some("KeyError".into()),
    }
}

fn mailbox_row() -> MailboxRow {
    MailboxRow {
        path: path(),
        enqueued: 1_000,
        done: 980,
        dead: 3,
        waiting: 12,
        in_flight: 4,
        purged: 1,
        delayed: 2,
        undecided: 1,
        suspects: 5,
        charged: 9,
        redelivered: 11,
        bytes: 70_000,
        max_messages: 100_000,
        max_bytes: 64 << 20,
        oldest_ms: Some(3_400),
        enqueued_per_minute: 120,
        done_per_minute: 118,
        paused: true,
        closed: false,
        blocked: Some("an operator paused it".into()),
        workers: vec![worker_row()],
    }
}

fn worker_row() -> WorkerRow {
    WorkerRow {
        path: path(),
        node: Some(node()),
        incarnation: Some(Incarnation(5)),
        in_flight: 4,
        prefetch: 16,
        done: 980,
        streak: 2,
        sick: true,
    }
}

fn dead_letter_row() -> DeadLetterRow {
    DeadLetterRow {
        id: "order-7".into(),
        number: 300,
        mailbox: path(),
        life: 2,
        cause: DeathKind::Attempts,
        why: "3 of 3 attempts charged".into(),
        died: 1_700_000_000_100,
        enqueued: 1_700_000_000_000,
        headers: headers(),
        payload: "hello".into(),
        payload_base64: Some("AP8=".into()),
        bytes: 2,
        attempts: attempt_rows(),
        attempts_left_out: 7,
    }
}

fn attempt_rows() -> Vec<AttemptRow> {
    let ends =
        [AttemptEnd::Crashed, AttemptEnd::Failed, AttemptEnd::Rejected, AttemptEnd::NodeLost, AttemptEnd::Returned];
    let row = |how| AttemptRow {
        life: 2,
        worker: path(),
        node: node(),
        incarnation: Incarnation(5),
        began: 1_700_000_000_000,
        ended: 1_700_000_000_012,
        how,
        class: Some(CauseClass::Crash),
        why: "exit code 1 after 12 ms".into(),
        stderr: "boom\n".into(),
        charged: how == AttemptEnd::Crashed,
        payer: "the message".into(),
    };
    ends.map(row).to_vec()
}

//! Mailboxes in parts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pando_protocol::cause::CauseClass;
use pando_protocol::ids::{Incarnation, SessionId};
use pando_protocol::mail::{AttemptEnd, DeathKind, Leftover, Readiness};
use pando_supervision::mail::{
    Accusation, Attempt, Chore, Content, DeadLetter, Held, KeptReply, Ledger, Mailbox, Message, Pace, Payer, State,
    Strike, Sweep, Trouble, Worker, WorkerRun,
};
use pando_supervision::parts::{Part, from_parts};
use pando_supervision::restarts::Rate;

use super::super::{mail, node, specs};
use super::{chain, path};

/// One that is open, with each of its parts, and one that is closed.
pub fn parts() -> Vec<Part> {
    let open = path(20);
    let mut parts = vec![Part::Mailbox(open.clone(), Box::new(mailbox()))];
    parts.push(Part::Worker(open.clone(), open.clone(), Arc::new(worker())));
    let accusation = Accusation { worker: path(20), cause: chain(), open: BTreeSet::from([4, 5]), explained: true };
    parts.push(Part::Accusation(open.clone(), 2, Arc::new(accusation)));
    parts.push(Part::Risky(open.clone(), 3, node()));
    let messages = (1..).zip(states()).map(|(number, state)| Part::Message(open.clone(), number, message(state)));
    parts.extend(messages);
    let letters = (20..).zip(DeathKind::ALL);
    parts.extend(letters.map(|(number, kind)| Part::DeadLetter(open.clone(), number, Arc::new(letter(kind)))));
    parts.push(Part::EndedId(open.clone(), (Duration::from_secs(2), 30), "order-30".into()));
    let replies = [Ok(Some("done".into())), Ok(None), Err("it was purged by an operator".to_owned())];
    let replies = (31..).zip(replies).map(|(number, reply)| {
        Part::Reply(open.clone(), (Duration::from_secs(3), number), Arc::new(KeptReply { reply }))
    });
    parts.extend(replies);
    let leftovers = [Leftover::Refuse, Leftover::DeadLetter, Leftover::Purge];
    let closed = (21..).zip(leftovers).map(|(number, leftover)| {
        Part::Mailbox(path(number), Box::new(Mailbox { closed: Some(leftover), ..Mailbox::default() }))
    });
    parts.extend(closed);
    parts
}

/// The open one with all that stands in it, as no part of a snapshot has it: what is in its fields keeps its form all the same.
pub fn whole() -> Mailbox {
    let state = from_parts(super::parts()).unwrap();
    let mailbox = state.mailbox(&path(20)).unwrap().clone();
    Mailbox { free: [(1_u64, path(20))].into_iter().collect(), ..mailbox }
}

pub fn held() -> Held {
    let (incarnation, began, at) = (Incarnation(5), 1_700_000_000_000, Duration::from_millis(61_500));
    Held { mailbox: path(20), message: 8, worker: path(20), incarnation, began, at }
}

/// Without what has parts of its own, and without what follows from them.
fn mailbox() -> Mailbox {
    let mut rate = Rate::default();
    rate.count(Duration::from_secs(61));
    Mailbox {
        spec: specs::mailbox(),
        paused: true,
        sweeps: [Chore::PurgeWaiting, Chore::Review, Chore::SetAside, Chore::PurgeDead]
            .map(|chore| (chore, Sweep { after: 4, upto: 300, count: 2 }))
            .into(),
        named: 300,
        accused: 2,
        ledger: ledger(),
        bytes: 70_000,
        summed: 70_000,
        wake: Some(Duration::from_secs(70)),
        enqueue_rate: rate.clone(),
        done_rate: rate,
        ..Mailbox::default()
    }
}

fn ledger() -> Ledger {
    Ledger {
        enqueued: 300,
        done: 280,
        purged: 1,
        charged: 9,
        handed: 310,
        redelivered: 7,
        died: [(DeathKind::Attempts, 3), (DeathKind::Rejected, 1)].into(),
        worker_paid: 2,
        node_losses: 4,
        unpaid: 5,
        waited: Duration::from_millis(9_100),
        worked: Duration::from_millis(8_200),
    }
}

fn worker() -> Worker {
    let run = WorkerRun {
        incarnation: Incarnation(5),
        node: node(),
        session: SessionId(3),
        readiness: Readiness { starts: true, prefetch: 16 },
        stopping: true,
        alone: true,
        succeeded: true,
        pace: Pace { since: Duration::from_secs(69), settled: 310, ahead: 25 },
        held: Default::default(),
    };
    Worker {
        run: Some(run),
        done: 280,
        streak: vec![Strike { message: 4, incarnation: Incarnation(5), life: 2 }],
        sick: true,
    }
}

fn states() -> [State; 9] {
    [
        State::Fresh,
        State::Again,
        State::Risky,
        State::Suspect,
        State::RiskySuspect,
        State::Delayed(Duration::from_secs(69)),
        State::Undecided,
        State::Held(300),
        State::Held(301),
    ]
}

fn message(state: State) -> Message {
    let trouble = (state != State::Fresh).then(|| Arc::new(trouble()));
    Message { content: Arc::new(content(None)), trouble, state }
}

fn content(id: Option<Arc<str>>) -> Content {
    Content {
        id,
        headers: mail::headers(),
        payload: vec![0, 0xff].into(),
        at: Duration::from_secs(1),
        wall: 1_700_000_000_000,
        asks: true,
    }
}

fn letter(kind: DeathKind) -> DeadLetter {
    DeadLetter {
        content: Arc::new(content(Some(kind.as_str().into()))),
        trouble: Arc::new(trouble()),
        kind,
        why: "3 of 3 attempts charged".into(),
        at: Duration::from_secs(9),
        wall: 1_700_000_000_100,
    }
}

fn trouble() -> Trouble {
    Trouble {
        life: 2,
        charged: 3,
        undecided: 1,
        node_losses: 1,
        accused: true,
        handed: true,
        accusation: Some(2),
        last_worker: Some(path(20)),
        attempts: payers().map(|payer| Arc::new(attempt(payer))).to_vec(),
        left_out: 7,
    }
}

fn payers() -> [Payer; 7] {
    [
        Payer::Message,
        Payer::Undecided,
        Payer::OneOfSeveral,
        Payer::Worker,
        Payer::Replaced,
        Payer::NodeLoss,
        Payer::Nobody,
    ]
}

fn attempt(payer: Payer) -> Attempt {
    Attempt {
        life: 2,
        worker: path(20),
        node: node(),
        incarnation: Incarnation(5),
        began: 1_700_000_000_000,
        ended: 1_700_000_000_012,
        how: if payer == Payer::Nobody { AttemptEnd::Returned } else { AttemptEnd::Crashed },
        class: Some(CauseClass::Crash),
        why: "exit code 1 after 12 ms".into(),
        stderr: "boom\n".into(),
        payer,
    }
}

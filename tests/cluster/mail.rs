//! Mailboxes with real workers: what is sent ends as done or as a dead letter, and the counts are exact.

use std::process::Stdio;

use pando_protocol::ids::Path;
use pando_protocol::mail::{DeathKind, Letters, MailboxRow, NewMessage};
use pando_protocol::message::{Change, Found, Query};
use pando_tests::cluster::{Cluster, SOON, path, repository, said, send as send_signal};
use pando_tests::wait::wait_until;
use rustix::process::Signal;

/// What a mailbox comes to.
#[derive(Debug, PartialEq, Eq)]
struct Ledger {
    enqueued: u64,
    done: u64,
    dead: u64,
    charged: u64,
}

#[tokio::test(flavor = "multi_thread")]
async fn every_message_is_done_or_dead_and_charged_exactly_whoever_kills_its_worker() {
    let cluster = Cluster::start().await;
    let python = repository().join("examples/workers/worker.py");
    cluster
        .apply_once_rules_are_raised(&format!(
            r#"
name = "t"
[[children]]
id = "rust"
command = ["mail-worker"]
count = 3
mailbox = {{ max_attempts = 3 }}
[[children]]
id = "python"
command = ["python3", {python:?}]
count = 2
mailbox = {{ max_attempts = 3 }}
"#
        ))
        .await;
    cluster.whole("/t").await;
    for (mailbox, poison) in [("/t/rust", "abort"), ("/t/python", "kill")] {
        let payload = |number: u32| match number {
            20 | 90 | 91 | 170 => format!("{poison} {number}"),
            50 | 51 | 120 => format!("fail {number}"),
            100 => format!("reject {number}"),
            _ => format!("order {number}"),
        };
        send(&cluster, mailbox, (0..200).map(payload)).await;
    }
    for mailbox in ["/t/rust", "/t/python"] {
        let settled = settled(&cluster, mailbox).await;
        // Four that kill and three that fail, three times each; what is rejected is not charged.
        assert_eq!(settled, Ledger { enqueued: 200, done: 192, dead: 8, charged: 21 }, "{mailbox}");
        let (of, letters) = (path(mailbox), Letters::default());
        let of = Query::DeadLetters { of, letters, after: 0, limit: 100, whole: true };
        let Found::DeadLetters { letters, .. } = cluster.ask(of).await else { panic!("no dead letters") };
        let rejected: Vec<_> = letters.iter().filter(|letter| letter.cause == DeathKind::Rejected).collect();
        assert_eq!(rejected.len(), 1, "{rejected:#?}");
        let charged = |letter: &&pando_protocol::mail::DeadLetterRow| {
            letter.attempts.iter().filter(|attempt| attempt.charged).count()
        };
        assert!(
            letters.iter().filter(|letter| letter.cause == DeathKind::Attempts).all(|letter| charged(&letter) == 3)
        );
        for worker in row(&cluster, mailbox).await.workers {
            assert!(!worker.sick && worker.in_flight == 0, "{worker:#?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_for_each_message_is_a_worker_too() {
    let cluster = Cluster::start().await;
    let script = repository().join("examples/workers/handle.sh");
    cluster
        .apply_once_rules_are_raised(&format!(
            r#"
name = "t"
[[children]]
id = "shell"
command = ["pando", "work", "--concurrency", "2", "--", {script:?}]
mailbox = {{ max_attempts = 2 }}
"#
        ))
        .await;
    cluster.whole("/t").await;
    let payload = |number: u32| match number {
        3 => "reject\n".to_owned(),
        7 => "fail\n".to_owned(),
        _ => format!("order {number}\n"),
    };
    send(&cluster, "/t/shell", (0..20).map(payload)).await;
    assert_eq!(settled(&cluster, "/t/shell").await, Ledger { enqueued: 20, done: 18, dead: 2, charged: 2 });
}

/// Holds each message for ever at its first attempt, and answers the next one.
const ANSWERS_THE_SECOND: &str = r#"
import json, os, socket
words = socket.socket(socket.AF_UNIX)
words.connect(os.environ["PANDO_SOCKET"])
words = words.makefile("rw")
def say(**word):
    words.write(json.dumps(word) + "\n")
    words.flush()
say(type="ready")
for line in words:
    message = json.loads(line)
    if message["type"] == "stop":
        break
    if message["attempt"] > 1:
        say(type="done", id=message["id"], reply="attempt %d of %s" % (message["attempt"], message["payload"]))
"#;

#[tokio::test(flavor = "multi_thread")]
async fn an_ask_whose_worker_dies_is_answered_by_the_next_attempt_or_ends_at_once_where_that_is_wanted() {
    let cluster = Cluster::start().await;
    let script = cluster.folder().join("worker.py");
    std::fs::write(&script, ANSWERS_THE_SECOND).expect("a script");
    let spec = format!("name = 't'\n[[children]]\nid = 'a'\ncommand = ['python3', {script:?}]\nmailbox = {{}}\n");
    cluster.apply_once_rules_are_raised(&spec).await;
    for (done, more, code) in [(1, [].as_slice(), 0), (2, ["--fail-fast"].as_slice(), 7)] {
        cluster.whole("/t").await;
        let words = [["ask", "/t/a", "who?", "--timeout", "60s"].as_slice(), more].concat();
        let asking =
            cluster.cli_command(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("pando runs");
        let asking = tokio::task::spawn_blocking(|| asking.wait_with_output().expect("its output"));
        let look = async || row(&cluster, "/t/a").await;
        wait_until("the message with its worker", SOON, look, |row| row.in_flight == 1).await;
        send_signal(cluster.row("/t/a").await.pid.expect("it runs"), Signal::KILL);
        let output = asking.await.expect("it ends");
        let (ended, said) = said(&output);
        assert_eq!(ended, Some(code), "{said}");
        let expected = if code == 0 { "attempt 2 of who?" } else { "1 attempt ended" };
        assert!(said.contains(expected), "{said}");
        // Who did not wait for it gets nothing less: it is tried again all the same.
        assert_eq!(settled(&cluster, "/t/a").await, Ledger { enqueued: done, done, dead: 0, charged: done });
    }
}

async fn send(cluster: &Cluster, to: &str, payloads: impl Iterator<Item = String>) {
    let messages = payloads.map(|payload| NewMessage::of(payload.as_str())).collect();
    let change = Change::Send { to: path(to), messages, asks: false };
    let reply = cluster.client().change(change, SOON).await;
    assert!(reply.is_ok(), "{reply:?}");
}

async fn row(cluster: &Cluster, mailbox: &str) -> MailboxRow {
    let at: Path = path(mailbox);
    match cluster.ask(Query::Mailboxes(Some(at.clone()))).await {
        Found::Mailboxes(rows) => rows.into_iter().find(|row| row.path == at).expect("the mailbox"),
        other => panic!("{other:?}"),
    }
}

/// What a mailbox has come to once nothing waits or is in flight.
async fn settled(cluster: &Cluster, mailbox: &str) -> Ledger {
    let look = async || row(cluster, mailbox).await;
    let is_settled = |row: &MailboxRow| row.waiting == 0 && row.in_flight == 0;
    let row = wait_until(&format!("{mailbox} to be settled"), SOON, look, is_settled).await;
    Ledger { enqueued: row.enqueued, done: row.done, dead: row.dead, charged: row.charged }
}

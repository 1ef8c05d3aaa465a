//! T12 on real processes: ten messages of ten thousand kill whoever works on them, while an agent, a voter and the leader die in turn.

use pando_protocol::mail::{DeadLetterRow, DeathKind, Letters, MailboxRow, NewMessage};
use pando_protocol::message::{Change, Found, Query};
use pando_tests::cluster::{Cluster, Options, SOON, path};
use pando_tests::wait::wait_until;

const MESSAGES: u32 = 10_000;
/// One of a thousand.
const POISON: u32 = 1_000;
/// Messages that are sent before each death, and after the last.
const AT_ONCE: u32 = 2_500;
/// So many of them are done when somebody dies: the rest is on its way.
const DONE_BEFORE: u64 = 300;

#[tokio::test(flavor = "multi_thread")]
async fn t12_ten_of_ten_thousand_are_set_aside_and_charged_three_times_each_whoever_dies_meanwhile() {
    let mut cluster = Cluster::with(Options { agents: 1, ..Options::default() }).await;
    let tree = r#"
name = "t"
[[children]]
id = "pool"
count = 3
command = ["mail-worker"]
backoff = { base = "10ms", cap = "100ms" }
mailbox = { max_attempts = 3 }
"#;
    cluster.apply_once_rules_are_raised(tree).await;
    cluster.whole("/t").await;
    for (turn, victim) in ["agent", "voter", "leader", "nobody"].into_iter().enumerate() {
        let first = AT_ONCE * u32::try_from(turn).expect("four");
        send(&cluster, first..first + AT_ONCE).await;
        let some = |row: &MailboxRow| row.done >= u64::from(first) + DONE_BEFORE;
        let before = wait_until("some of them to be done", SOON, async || row(&cluster).await, some).await;
        let leader = cluster.leader().await;
        let name = match victim {
            "agent" => "n4".to_owned(),
            "voter" => ["n1", "n2", "n3"].into_iter().find(|name| *name != leader).expect("three").to_owned(),
            "leader" => leader,
            _ => break,
        };
        println!("{victim} {name} dies with {} waiting and {} in flight", before.waiting, before.in_flight);
        assert!(before.waiting > 0, "it dies for nothing: {before:#?}");
        cluster.node(&name).kill();
        cluster.node(&name).wait_for_guard();
        cluster.node(&name).start();
        cluster.all_up().await;
        cluster.whole("/t").await;
    }
    let is_settled = |row: &MailboxRow| row.waiting == 0 && row.in_flight == 0;
    let row = wait_until("all to be settled", SOON, async || row(&cluster).await, is_settled).await;
    let poison = u64::from(MESSAGES / POISON);
    println!("{} hand-outs again, {} charged", row.redelivered, row.charged);
    assert_eq!((row.enqueued, row.purged), (u64::from(MESSAGES), 0));
    assert_eq!((row.done, row.dead), (u64::from(MESSAGES) - poison, poison), "{row:#?}");
    assert_eq!(row.charged, 3 * poison, "{row:#?}");
    let of = Query::DeadLetters { of: path("/t/pool"), letters: Letters::default(), after: 0, limit: 100, whole: true };
    let Found::DeadLetters { letters, total } = cluster.ask(of).await else { panic!("no dead letters") };
    assert_eq!(total, poison);
    for letter in letters {
        assert!(is_poison(letter.id.parse().expect("a number")), "an innocent one is set aside: {letter:#?}");
        assert_eq!((letter.cause, letter.life, charged(&letter)), (DeathKind::Attempts, 1, 3), "{letter:#?}");
        assert_eq!(letter.payload, format!("abort {}", letter.id));
    }
    for index in 0..3 {
        let worker = cluster.row(&format!("/t/pool/{index}")).await;
        assert_eq!(worker.restarts, 0, "the messages pay, and no budget: {worker:#?}");
    }
}

fn is_poison(number: u32) -> bool {
    number % POISON == POISON / 2
}

fn charged(letter: &DeadLetterRow) -> usize {
    letter.attempts.iter().filter(|attempt| attempt.charged).count()
}

async fn send(cluster: &Cluster, numbers: std::ops::Range<u32>) {
    let message = |number: u32| {
        let verb = if is_poison(number) { "abort" } else { "order" };
        NewMessage { id: Some(number.to_string().into()), ..NewMessage::of(format!("{verb} {number}").as_str()) }
    };
    let messages = numbers.map(message).collect();
    let change = Change::Send { to: path("/t/pool"), messages, asks: false };
    cluster.change(change).await.unwrap_or_else(|error| panic!("send: {error}"));
}

async fn row(cluster: &Cluster) -> MailboxRow {
    match cluster.ask(Query::Mailboxes(Some(path("/t/pool")))).await {
        Found::Mailboxes(rows) => rows.into_iter().next().expect("the mailbox"),
        other => panic!("{other:?}"),
    }
}

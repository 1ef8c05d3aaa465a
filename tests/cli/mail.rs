//! Mailboxes from the command line, as far as no worker is needed: taken in, refused, looked at, set aside, given a new life.

use std::fs;

use pando_tests::cluster::Cluster;
use serde_json::{Value, json};

use super::{Ran, apply_with_mailboxes, one_node, pando, spec_file};

/// A pool and a worker with mailboxes, whose processes ask for no message.
const SHOP: &str = r#"
name = "t"

[[children]]
id = "orders"
count = 2
command = ["sleep", "infinity"]
ready = { exec = ["true"] }
mailbox = {}

[[children]]
id = "small"
command = ["sleep", "infinity"]
ready = { exec = ["true"] }
mailbox = { max_messages = 1000 }
"#;
/// What is left of [`SHOP`] without its pool.
const WITHOUT_ORDERS: &str = r#"
name = "t"

[[children]]
id = "small"
command = ["sleep", "infinity"]
ready = { exec = ["true"] }
mailbox = { max_messages = 1000 }
"#;

async fn shop() -> Cluster {
    let cluster = one_node().await;
    spec_file(&cluster, "t.toml", SHOP);
    apply_with_mailboxes(&cluster, "t.toml").await.with_code(0);
    cluster
}

/// `pando` with these words, of which one may be empty or hold blanks.
#[track_caller]
fn words(cluster: &Cluster, words: &[&str]) -> Ran {
    Ran::of(&cluster.cli(words))
}

/// A mailbox, as programs see it.
#[track_caller]
fn mailbox(cluster: &Cluster, path: &str) -> Value {
    pando(cluster, &format!("mailbox {path} --output json")).with_code(0).json()
}

/// `enqueued done dead waiting in_flight purged`.
fn ledger(mailbox: &Value) -> [u64; 6] {
    let fields = ["enqueued", "done", "dead", "waiting", "in_flight", "purged"];
    fields.map(|field| mailbox[field].as_u64().unwrap_or_else(|| panic!("no {field} in {mailbox:#}")))
}

#[tokio::test]
async fn what_is_sent_waits_for_a_worker_and_looking_leaves_it_as_it_is() {
    let cluster = shop().await;
    let sent = words(&cluster, &["send", "t/orders", "two words"]).with_code(0);
    assert_eq!(sent.stdout, "message #1 is in the mailbox of /t/orders\n");
    fs::write(cluster.folder().join("letter"), [0, 0xff]).expect("a file");
    let named = "send t/orders --file letter --id order-7 --header source=till-3 --output json";
    let first = pando(&cluster, named).with_code(0).json();
    assert_eq!(first, json!({ "path": "/t/orders", "id": "order-7", "accepted": 1, "known": 0 }));
    let again = pando(&cluster, named).with_code(0).json();
    assert_eq!(again, json!({ "path": "/t/orders", "id": "order-7", "accepted": 0, "known": 1 }));
    let known = pando(&cluster, "send t/orders other --id order-7").with_code(0);
    assert_eq!(known.stdout, "message order-7 of /t/orders is known already: nothing was sent\n");

    let orders = mailbox(&cluster, "t/orders");
    assert_eq!(ledger(&orders), [2, 0, 0, 2, 0, 0]);
    assert_eq!((&orders["workers"][1]["path"], &orders["paused"]), (&json!("/t/orders/1"), &json!(false)));
    for line in ["mailbox", "mailbox t/orders", "tree", "explain t/orders", "dead-letters ls t/orders"] {
        pando(&cluster, line).with_code(0);
    }
    assert_eq!(ledger(&mailbox(&cluster, "t/orders")), [2, 0, 0, 2, 0, 0], "looking changed something");

    let all = pando(&cluster, "mailbox --output json").with_code(0).json();
    let paths: Vec<_> = all.as_array().expect("an array").iter().map(|row| &row["path"]).collect();
    assert_eq!(paths, ["/t/orders", "/t/small"]);
    assert_eq!(pando(&cluster, "mailbox t --output json").with_code(0).json().as_array().map(Vec::len), Some(2));
    let tree = pando(&cluster, "tree").with_code(0).stdout;
    assert!(tree.contains("2 waiting") && tree.contains("MAILBOX"), "{tree}");
    let why = pando(&cluster, "explain t/orders").with_code(0).stdout;
    assert!(why.contains("mailbox   2 waiting; `pando mailbox /t/orders` tells more"), "{why}");
}

#[tokio::test]
async fn many_lines_are_sent_together_and_a_full_mailbox_takes_what_fits_and_says_how_to_go_on() {
    let cluster = shop().await;
    let lines: String = (1..=2_500).map(|number| format!("order {number}\n")).collect();
    fs::write(cluster.folder().join("lines"), &lines).expect("a file");
    let sent = pando(&cluster, "send t/orders --lines lines --skip 500").with_code(0);
    assert!(sent.stdout.starts_with("2000 messages sent to /t/orders in "), "{sent:#?}");
    assert_eq!(ledger(&mailbox(&cluster, "t/orders"))[0], 2_000);

    // The same command again and again sends each line once: what was purged is known for a while.
    let named = ["send", "t/small", "--lines", "lines", "--id", "line-{}"];
    let full = words(&cluster, &named).with_code(4);
    assert!(full.stdout.is_empty() && full.stderr.contains("the mailbox of /t/small has lines 1"), "{full:#?}");
    assert!(full.stderr.contains("/t/small is full: it holds 1000 messages"), "{full:#?}");
    assert_eq!(ledger(&mailbox(&cluster, "t/small")), [1_000, 0, 0, 1_000, 0, 0], "full to the brim");
    let refused = pando(&cluster, "send t/small more").with_code(4);
    assert!(refused.stderr.contains("nothing was taken in"), "{refused:#?}");
    let unsure = pando(&cluster, "mailbox purge t/small").with_code(2);
    assert!(unsure.stderr.contains("forgets 1000 waiting messages of /t/small for good: say --yes"), "{unsure:#?}");
    for enqueued in [2_000, 2_500] {
        let purged = pando(&cluster, "mailbox purge t/small --yes").with_code(0);
        assert_eq!(purged.stdout, "1000 waiting messages of /t/small purged\n");
        words(&cluster, &named).with_code(if enqueued == 2_500 { 0 } else { 4 });
        assert_eq!(ledger(&mailbox(&cluster, "t/small"))[0], enqueued);
    }
    assert_eq!(ledger(&mailbox(&cluster, "t/small")), [2_500, 0, 0, 500, 0, 2_000]);
}

#[tokio::test]
async fn a_mailbox_is_paused_and_resumed_and_a_pool_scaled() {
    let cluster = shop().await;
    for (line, said) in [
        ("mailbox pause t/orders", "/t/orders is paused\n"),
        ("mailbox pause t/orders", "/t/orders is paused already\n"),
        ("scale t/orders 3", "+ /t/orders/2  added\n"),
        ("scale t/orders 3", "/t/orders is of that size already: nothing was changed\n"),
    ] {
        assert_eq!(pando(&cluster, line).with_code(0).stdout, said, "{line}");
    }
    let paused = pando(&cluster, "mailbox t/orders").with_code(0).stdout;
    assert!(paused.contains("an operator paused it: `pando mailbox resume /t/orders` lets it flow"), "{paused}");
    let resumed = pando(&cluster, "mailbox resume t/orders").with_code(0).stdout;
    assert_eq!(resumed, "/t/orders is resumed\n");
    assert_eq!(pando(&cluster, "mailbox resume t/orders").with_code(0).stdout, "/t/orders is not paused\n");
    assert_eq!(mailbox(&cluster, "t/orders")["workers"].as_array().map(Vec::len), Some(3));
}

#[tokio::test]
async fn what_no_mailbox_takes_is_refused_with_what_may_be_meant() {
    let cluster = shop().await;
    for (code, line, message) in [
        (4, "send t/ordres hello", "did you mean /t/orders?"),
        (4, "send t/orders/0 hello", "/t/orders/0 has no mailbox (did you mean /t/orders?)"),
        (4, "send t hello", "/t has no mailbox"),
        (4, "ask t hello", "/t has no mailbox"),
        (4, "send t/orders hello --id #1", "begins with #"),
        (2, "send t/orders --lines t.toml --id same", "would give every line the same id"),
        (2, "send t/orders --file nowhere", "nowhere cannot be read"),
        (2, "send t/orders", "required"),
        (5, "ask t/orders hello --timeout 0s", "no reply to message #1 of /t/orders: none within 0 ms"),
        (4, "mailbox nope", "there is no /nope"),
        (4, "mailbox show t", "/t has no mailbox of its own: `pando mailbox ls /t`"),
        (4, "mailbox pause t/orders/0", "did you mean /t/orders?"),
        (4, "dead-letters ls t", "/t has no mailbox"),
        (4, "dead-letters show t/orders order-9", "knows no message \"order-9\""),
        (4, "dead-letters show t/orders #1", "has message \"#1\" waiting for a worker: it is no dead letter"),
        (4, "scale t 3", "/t is no pool"),
    ] {
        let ran = pando(&cluster, line).with_code(code);
        assert!(ran.stderr.contains(message), "{line}: {ran:#?}");
    }
    let none = pando(&cluster, "dead-letters redrive t/orders").with_code(0).stdout;
    assert_eq!(none, "no dead letter of /t/orders is meant: nothing was changed\n");
}

#[tokio::test]
async fn what_a_spec_leaves_over_is_refused_or_kept_as_dead_letters_with_a_life_to_come() {
    let cluster = shop().await;
    words(&cluster, &["send", "t/orders", "first words", "--id", "a", "--header", "source=till-3"]).with_code(0);
    fs::write(cluster.folder().join("letter"), [0, 0xff]).expect("a file");
    pando(&cluster, "send t/orders --file letter").with_code(0);
    spec_file(&cluster, "less.toml", WITHOUT_ORDERS);
    let refused = pando(&cluster, "apply less.toml").with_code(4);
    assert!(refused.stderr.contains("/t/orders would lose its mailbox, which holds 2 messages"), "{refused:#?}");
    let refused = pando(&cluster, "delete t").with_code(4);
    assert!(refused.stderr.contains("Say --dead-letter to keep them"), "{refused:#?}");
    pando(&cluster, "apply less.toml --dead-letter").with_code(0);

    let letters = pando(&cluster, "dead-letters ls t/orders --output json").with_code(0).json();
    assert_eq!(letters.as_array().map(Vec::len), Some(2));
    assert_eq!((&letters[0]["id"], &letters[0]["payload"]), (&json!("a"), &json!("first words")));
    assert_eq!((&letters[1]["id"], &letters[1]["payload_base64"]), (&json!("#2"), &json!("AP8=")));
    for letter in letters.as_array().into_iter().flatten() {
        assert_eq!((&letter["life"], &letter["cause"], &letter["attempts"]), (&json!(1), &json!("closed"), &json!([])));
    }
    assert_eq!(ledger(&mailbox(&cluster, "t/orders")), [2, 0, 2, 0, 0, 0]);
    let show = pando(&cluster, "dead-letters show t/orders a").with_code(0).stdout;
    assert!(show.contains("header source: till-3") && show.contains("│ first words"), "{show}");
    let closed = pando(&cluster, "dead-letters redrive t/orders").with_code(4);
    assert!(closed.stderr.contains("apply a spec that has it, then redrive"), "{closed:#?}");

    pando(&cluster, "apply t.toml").with_code(0);
    let dry = pando(&cluster, "dead-letters redrive t/orders --id a --dry-run").with_code(0).stdout;
    assert!(dry.ends_with("1 dead letter would be redriven: nothing was changed\n") && dry.contains("closed"), "{dry}");
    assert_eq!(ledger(&mailbox(&cluster, "t/orders")), [2, 0, 2, 0, 0, 0]);
    let redriven = pando(&cluster, "dead-letters redrive t/orders --id a --rate 1").with_code(0).stdout;
    assert_eq!(redriven, "1 dead letter of /t/orders waits for a worker again\n");
    assert_eq!(ledger(&mailbox(&cluster, "t/orders")), [2, 0, 1, 1, 0, 0]);
    let again = pando(&cluster, "dead-letters redrive t/orders --id a --rate 1").with_code(0).stdout;
    assert_eq!(again, "no dead letter of /t/orders is meant: nothing was changed\n");

    let unsure = pando(&cluster, "dead-letters purge t/orders --cause closed").with_code(2);
    assert!(unsure.stderr.contains("forgets 1 dead letter of /t/orders for good"), "{unsure:#?}");
    let other = pando(&cluster, "dead-letters purge t/orders --cause rejected --yes").with_code(0).stdout;
    assert_eq!(other, "no dead letter of /t/orders is meant: nothing was changed\n");
    let purged = pando(&cluster, "dead-letters purge t/orders --cause closed --yes").with_code(0).stdout;
    assert_eq!(purged, "1 dead letter of /t/orders purged\n");
    assert_eq!(ledger(&mailbox(&cluster, "t/orders")), [2, 0, 0, 1, 0, 1]);
    pando(&cluster, "delete t --purge --wait").with_code(0);
    assert_eq!(pando(&cluster, "mailbox --output json").with_code(0).json(), json!([]));
}

#[tokio::test]
async fn more_dead_letters_than_one_answer_holds_are_listed_and_redriven_whole() {
    let cluster = shop().await;
    let lines: String = (1..=2_300).map(|number| format!("order {number}\n")).collect();
    fs::write(cluster.folder().join("lines"), &lines).expect("a file");
    pando(&cluster, "send t/orders --lines lines --in-order").with_code(0);
    spec_file(&cluster, "less.toml", WITHOUT_ORDERS);
    pando(&cluster, "apply less.toml --dead-letter").with_code(0);
    pando(&cluster, "apply t.toml").with_code(0);
    let letters = pando(&cluster, "dead-letters ls t/orders --output json").with_code(0).json();
    let payloads: Vec<_> = letters.as_array().expect("an array").iter().map(|letter| &letter["payload"]).collect();
    assert_eq!((payloads.len(), payloads[0], payloads[2_299]), (2_300, &json!("order 1"), &json!("order 2300")));
    let redriven = pando(&cluster, "dead-letters redrive t/orders").with_code(0).stdout;
    assert_eq!(redriven, "2300 dead letters of /t/orders wait for workers again\n");
    assert_eq!(ledger(&mailbox(&cluster, "t/orders")), [2_300, 0, 0, 2_300, 0, 0]);
}

#[tokio::test]
async fn attempts_without_end_are_warned_of_when_they_are_applied() {
    let cluster = one_node().await;
    let endless = "name = \"t\"\n[[children]]\nid = \"a\"\ncommand = [\"sleep\", \"infinity\"]\n\
                   mailbox = { max_attempts = \"unlimited\", retry_delay = \"1s\" }\n";
    spec_file(&cluster, "endless.toml", endless);
    let applied = apply_with_mailboxes(&cluster, "endless.toml").await.with_code(0);
    assert!(applied.stderr.starts_with("pando: warning: /t/a: mailbox.max_attempts \"unlimited\":"), "{applied:#?}");
    assert_eq!(applied.stdout, "+ /t    added\n+ /t/a  added\n");
}

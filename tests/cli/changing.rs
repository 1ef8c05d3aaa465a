//! Verbs that change something, and what they say of it.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc;

use pando_tests::cluster::SOON;
use pando_tests::wait::wait_until;
use serde_json::{Value, json};

use super::{TREE, one_node, pando, spec_file};

/// A tree with one child that stays.
const CALM: &str = "name = \"t\"\n[[children]]\nid = \"stay\"\ncommand = [\"sleep\", \"infinity\"]\n";

#[tokio::test]
async fn a_member_is_stopped_started_restarted_and_killed_and_each_verb_says_what_it_did() {
    let cluster = one_node().await;
    spec_file(&cluster, "t.toml", CALM);
    let applied = pando(&cluster, "apply t.toml --wait").with_code(0);
    assert_eq!(applied.stdout, "+ /t       added\n+ /t/stay  added\n/t is whole: 1 of 1 ready\n");
    let again = pando(&cluster, "apply t.toml").with_code(0);
    assert_eq!(again.stdout, "/t is so already: nothing was changed\n");

    assert_eq!(pando(&cluster, "stop t/stay").with_code(0).stdout, "x /t/stay  stopped\n");
    assert!(pando(&cluster, "stop t/stay").with_code(0).stdout.contains("stopped already"));
    wait_until("the stop", SOON, async || cluster.row("/t/stay").await, |row| row.pid.is_none()).await;
    let refused = pando(&cluster, "kill t/stay").with_code(4);
    assert!(refused.stderr.contains("has no process that runs now"), "{refused:#?}");
    // What an operator stopped is not missed.
    let stopped = pando(&cluster, "wait t").with_code(0).stdout;
    assert!(stopped.starts_with("/t is stopped: nothing of it is to run"), "{stopped}");

    assert_eq!(pando(&cluster, "start t/stay").with_code(0).stdout, "> /t/stay  started\n");
    cluster.whole("/t").await;
    let first = cluster.row("/t/stay").await.incarnation;
    assert_eq!(pando(&cluster, "restart t/stay").with_code(0).stdout, "~ /t/stay  restarted\n");
    wait_until("the restart", SOON, async || cluster.row("/t/stay").await, |row| row.incarnation > first).await;
    cluster.whole("/t").await;

    let row = cluster.row("/t/stay").await;
    let (incarnation, pid) = (row.incarnation.expect("a run"), row.pid.expect("a process"));
    let killed = pando(&cluster, "kill t/stay TERM").with_code(0);
    assert_eq!(killed.stdout, format!("sent SIGTERM to /t/stay: incarnation {incarnation} on n1, pid {pid}\n"));
    let signal = |rows: &Vec<pando_protocol::view::HistoryRow>| {
        rows.iter().any(|row| row.cause.signal.as_deref() == Some("SIGTERM") && row.charged)
    };
    wait_until("the crash", SOON, async || cluster.history("/t/stay").await, signal).await;

    assert_eq!(pando(&cluster, "delete t --wait").with_code(0).stdout, "/t is gone\n");
    assert_eq!(pando(&cluster, "tree").with_code(0).stdout, "no trees yet: `pando apply FILE` starts one\n");
    assert_eq!(pando(&cluster, "tree --output json").with_code(0).json(), json!([]));
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let cluster = one_node().await;
    spec_file(&cluster, "t.toml", TREE);
    let dry = pando(&cluster, "apply t.toml --dry-run").with_code(0);
    assert_eq!(dry.stdout, "+ /t       added\n+ /t/stay  added\n+ /t/once  added\n");
    assert_eq!(pando(&cluster, "tree --output json").with_code(0).json(), json!([]));
}

#[tokio::test]
async fn events_are_followed_as_they_happen() {
    let cluster = one_node().await;
    spec_file(&cluster, "t.toml", CALM);
    let mut command = cluster.cli_command(&["events", "--follow", "--output", "json"]);
    let mut follower = command.stdout(Stdio::piped()).spawn().expect("pando runs");
    let lines = BufReader::new(follower.stdout.take().expect("a pipe")).lines();
    let (heard, hears) = mpsc::channel();
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| heard.send(line)));
    let next = |what: &str| loop {
        let line = hears.recv_timeout(SOON).unwrap_or_else(|_| panic!("no {what} came"));
        let event: Value = serde_json::from_str(&line).expect("an event");
        if event["kind"] == json!(what) {
            break event;
        }
    };
    next("node_up");
    pando(&cluster, "apply t.toml").with_code(0);
    assert_eq!(next("child_ready")["path"], json!("/t/stay"));
    follower.kill().expect("a process to kill");
    follower.wait().expect("its end");
}

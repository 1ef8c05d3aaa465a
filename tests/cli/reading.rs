//! Reading verbs: every field that programs are promised, with its value.

use pando_tests::cluster::{Cluster, SOON};
use pando_tests::wait::wait_until;
use serde_json::{Value, json};

use super::{TREE, one_node, pando, spec_file};

/// [`TREE`], after the crash of `once`, whole again.
async fn with_tree() -> Cluster {
    let cluster = one_node().await;
    spec_file(&cluster, "t.toml", TREE);
    pando(&cluster, "apply t.toml").with_code(0);
    wait_until("the crash", SOON, async || cluster.history("/t/once").await, |rows| !rows.is_empty()).await;
    cluster.whole("/t").await;
    cluster
}

#[track_caller]
fn has_fields(value: &Value, fields: &str) {
    for field in fields.split(' ') {
        assert!(value.get(field).is_some(), "no {field} in {value:#}");
    }
}

#[tokio::test]
async fn programs_find_the_promised_fields_in_every_reading_verb() {
    let cluster = with_tree().await;

    let tree = pando(&cluster, "tree --output json").with_code(0).json();
    let rows = tree.as_array().expect("an array");
    let paths: Vec<&Value> = rows.iter().map(|row| &row["path"]).collect();
    assert_eq!(paths, [&json!("/t"), &json!("/t/stay"), &json!("/t/once")]);
    for row in rows {
        has_fields(row, "path kind state verdict node incarnation pid restarts restart_rate");
    }
    assert_eq!(
        (&rows[0]["kind"], &rows[0]["node"], &rows[0]["pid"]),
        (&json!("supervisor"), &json!(null), &json!(null))
    );
    assert_eq!(
        (&rows[1]["kind"], &rows[1]["state"], &rows[1]["node"]),
        (&json!("process"), &json!("running"), &json!("n1"))
    );
    assert_eq!((&rows[2]["restarts"], &rows[2]["verdict"]), (&json!(1), &json!("churning")));
    let part = pando(&cluster, "tree t/once --output json").with_code(0).json();
    assert_eq!(part.as_array().map(Vec::len), Some(1));

    let history = pando(&cluster, "history /t/once --output json").with_code(0).json();
    let crash = &history[0];
    has_fields(crash, "incarnation node cause charged decision count first last");
    assert_eq!((&crash["charged"], &crash["count"], &crash["node"]), (&json!(true), &json!(1), &json!("n1")));
    let cause = &crash["cause"];
    has_fields(cause, "class code signal message stderr");
    assert_eq!((&cause["class"], &cause["code"], &cause["signal"]), (&json!("crash"), &json!(3), &json!(null)));
    assert_eq!(cause["stderr"].as_str().map(str::trim), Some("last words"));

    let nodes = pando(&cluster, "node ls --output json").with_code(0).json();
    has_fields(&nodes[0], "name role state pid children");
    assert_eq!(
        (&nodes[0]["name"], &nodes[0]["role"], &nodes[0]["state"]),
        (&json!("n1"), &json!("voter"), &json!("up"))
    );
    assert_eq!(nodes[0]["children"], json!(2));

    let status = pando(&cluster, "cluster status --output json").with_code(0).json();
    assert_eq!((&status["leader"], &status["voters"][0]["name"]), (&json!("n1"), &json!("n1")));
    assert_eq!((&status["voters"][0]["lag"], &status["view"]["confirmed"]), (&json!(0), &json!(true)));
    has_fields(&status["view"], "answered_by leader confirmed age_ms");
    assert!(status["voters"][0]["raft_id"].as_str().is_some_and(|id| id.parse::<u64>().is_ok()), "{status}");

    let glance = pando(&cluster, "status --output json").with_code(0).json();
    assert_eq!((&glance["leader"], &glance["trees"][0]["path"]), (&json!("n1"), &json!("/t")));
    assert_eq!((&glance["nodes"][0]["name"], glance["trees"].as_array().map(Vec::len)), (&json!("n1"), Some(1)));

    let waited = pando(&cluster, "wait /t --output json").with_code(0).json();
    assert_eq!((&waited["whole"], &waited["ready"], &waited["configured"]), (&json!(true), &json!(2), &json!(2)));

    let why = pando(&cluster, "explain /t/once --output json").with_code(0).json();
    has_fields(&why, "row now next gives_up last window node_losses start_failures");
    assert_eq!(why["row"]["path"], json!("/t/once"));
}

#[tokio::test]
async fn streams_are_one_object_a_line_and_a_difference_names_its_keys() {
    let cluster = with_tree().await;

    let events = pando(&cluster, "events --output json").with_code(0).json_lines();
    let numbers: Vec<u64> = events.iter().filter_map(|event| event["number"].as_u64()).collect();
    assert_eq!(numbers, (1..=events.len() as u64).collect::<Vec<_>>(), "numbered without a gap");
    for event in &events {
        has_fields(event, "number cluster_time_ms at kind path node text");
    }
    let last = numbers.last().copied().unwrap_or_default();
    assert_eq!(pando(&cluster, &format!("events --after {last}")).with_code(0).stdout, "");

    let words = |ran: &super::Ran| ran.json_lines().iter().any(|line| line["line"] == json!("last words"));
    let written = async || pando(&cluster, "logs /t/once --output json").with_code(0);
    let logs = wait_until("the last words in the log", SOON, written, words).await.json_lines();
    let line = logs.iter().find(|line| line["line"] == json!("last words")).expect("waited for");
    has_fields(line, "node incarnation at stream line");
    assert_eq!((&line["node"], &line["stream"]), (&json!("n1"), &json!("stderr")));

    spec_file(&cluster, "t.toml", &TREE.replace("hello", "good day"));
    let difference = pando(&cluster, "diff t.toml --output json").with_code(0).json();
    assert_eq!(difference, json!([{ "path": "/t/stay", "what": "restarted", "keys": ["env"] }]));
}

#[tokio::test]
async fn people_read_tables_and_sentences_on_standard_output() {
    let cluster = with_tree().await;
    for (line, expected) in [
        ("tree", "├─ stay  running  n1"),
        ("tree", "└─ once  running  n1"),
        ("status", "leader n1, 1 of 1 node up, 1 tree"),
        ("history /t/once", "exit code 3 after"),
        ("history /t/once", "│ last words"),
        ("history /t/stay", "nothing of /t/stay has ended yet"),
        ("explain /t/once", "the budget of /t has 1 of 5 in 10 s spent; 5 crashes more, and /t escalates"),
        ("node ls", "n1    voter  up     2"),
        ("cluster status", "n1     leader"),
        ("events", "node_up"),
        ("diff t.toml", "/t is so already"),
        ("wait /t", "/t is whole: 2 of 2 ready"),
    ] {
        let ran = pando(&cluster, line).with_code(0);
        assert!(ran.stdout.contains(expected), "{line}: {ran:#?}");
        assert_eq!(ran.stderr, "", "{line}");
    }
    // A view that nobody confirmed says how old it is, and leaves standard output to the data.
    for line in ["tree --stale", "node ls --stale", "tree --stale --output json"] {
        let stale = pando(&cluster, line).with_code(0);
        assert!(stale.stderr.starts_with("view of n1, ") && stale.stderr.ends_with(" old\n"), "{stale:#?}");
    }
    assert!(pando(&cluster, "explain /t").with_code(0).stdout.contains("/t/once: exit code 3"), "what ended below it");
    let far = pando(&cluster, "explain /t/nope").with_code(4);
    assert!(!far.stderr.contains("did you mean"), "{far:#?}");
    let near = pando(&cluster, "explain /t/onec").with_code(4);
    assert!(near.stderr.contains("did you mean /t/once?"), "{near:#?}");
}

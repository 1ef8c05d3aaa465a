//! The cases T1, T2, T5, T7 and T11 on real processes. The same rules are told without processes in `supervision`; here the
//! children themselves are the witnesses: each writes down when it started.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pando_protocol::cause::CauseClass;
use pando_protocol::view::{State, Verdict};
use pando_tests::cluster::{Cluster, Options, SOON};
use pando_tests::wait::wait_until;

/// A child that writes a line with the time for each start, in milliseconds, then does `then`.
fn stamping(starts: &Path, then: &str) -> String {
    format!(r#"["sh", "-c", "date +%s%3N >> {}; {then}"]"#, starts.display())
}

fn starts(file: &Path) -> Vec<u64> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

fn file(cluster: &Cluster) -> PathBuf {
    cluster.folder().join("starts")
}

/// CPU time of a process so far.
fn cpu(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<u64> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|f| f.parse().ok())
        .collect();
    // In hundredths of a second, which is the unit of /proc on Linux.
    Duration::from_millis(fields.iter().sum::<u64>() * 10)
}

#[tokio::test(flavor = "multi_thread")]
async fn t1_restarts_are_paced_and_equal_endings_fold() {
    let mut cluster = Cluster::start().await;
    let starts_file = file(&cluster);
    let command = stamping(&starts_file, "echo boom >&2; exit 1");
    let nodes: Vec<u32> = cluster.nodes().map(|node| node.pid()).collect();
    let before: Duration = nodes.iter().map(|pid| cpu(*pid)).sum();
    cluster
        .apply(&format!(
            r#"
name = "t"
[[children]]
id = "always"
command = {command}
backoff = {{ base = "50ms", cap = "1s" }}
intensity = "unlimited"
"#
        ))
        .await;
    let looping = |rows: &Vec<pando_protocol::view::TreeRow>| {
        rows.iter().any(|row| row.path.as_str() == "/t/always" && row.verdict == Verdict::Looping)
    };
    wait_until("the verdict looping", SOON, async || cluster.tree().await, looping).await;
    let many = wait_until("ten starts", SOON, async || starts(&starts_file), |starts| starts.len() >= 10).await;
    let spent: Duration = nodes.iter().map(|pid| cpu(*pid)).sum::<Duration>() - before;
    let first = many[0];
    let in_three_seconds = many.iter().filter(|at| **at - first < 3_000).count();
    println!("starts in the first 3 s: {in_three_seconds}; CPU of three nodes meanwhile: {spent:?}");
    // At full jitter the delays halve: at most 12 starts fit. At the least there are the delays and what a start takes, which
    // a loaded machine stretches, so that only the upper bound is a promise.
    assert!((2..=12).contains(&in_three_seconds), "{in_three_seconds} starts in 3 s: {many:?}");
    let late: Vec<u64> = many.windows(2).skip(6).map(|pair| pair[1] - pair[0]).collect();
    assert!(late.iter().all(|gap| *gap >= 500), "gaps at the cap: {late:?}");
    let history = cluster.history("/t/always").await;
    assert_eq!(history.len(), 1, "equal endings fold: {history:#?}");
    assert!(history[0].count >= 9 && history[0].charged, "{history:#?}");
    assert_eq!((history[0].cause.code, history[0].cause.stderr.trim()), (Some(1), "boom"));
}

#[tokio::test(flavor = "multi_thread")]
async fn t2_five_restarts_are_made_and_the_sixth_crash_escalates_with_its_evidence() {
    let cluster = Cluster::start().await;
    let starts_file = file(&cluster);
    let command = stamping(&starts_file, "echo last words >&2; exit 3");
    // The window is wide, so that a slow machine does not let crashes be forgotten.
    cluster
        .apply(&format!(
            r#"
name = "t"
intensity = {{ max_restarts = 5, within = "60s" }}
[[children]]
id = "always"
command = {command}
"#
        ))
        .await;
    let failed = |rows: &Vec<pando_protocol::view::TreeRow>| rows.iter().any(|row| row.state == State::Failed);
    wait_until("the tree to fail", SOON, async || cluster.tree().await, failed).await;
    assert_eq!(starts(&starts_file).len(), 6, "five restarts are six starts");
    let record = cluster.history("/t").await;
    let [escalation] = &record[..] else { panic!("{record:#?}") };
    assert_eq!(escalation.cause.class, CauseClass::Escalated);
    assert!(escalation.cause.message.contains("6 crashes in"), "{escalation:#?}");
    let last = escalation.chain.last().expect("the crash below");
    assert_eq!((last.code, last.stderr.trim()), (Some(3), "last words"));
    assert_eq!(escalation.earlier.len(), 5, "the earlier five one step away");
    let waited = cluster.cli(&["wait", "/t", "--timeout", "5s"]);
    assert_eq!(waited.status.code(), Some(1), "{}", String::from_utf8_lossy(&waited.stderr));
    assert!(!cluster.settled("/t").await.whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn t5_five_node_losses_are_free() {
    let mut cluster = Cluster::start().await;
    cluster
        .apply(
            r#"
name = "t"
intensity = { max_restarts = 2, within = "300s" }
[[children]]
id = "sleeper"
command = ["sleep", "1000"]
"#,
        )
        .await;
    cluster.whole("/t").await;
    for loss in 1..=5u64 {
        let before = cluster.row("/t/sleeper").await;
        let home = before.node.clone().expect("it runs").to_string();
        cluster.node(&home).kill();
        let moved =
            |row: &pando_protocol::view::TreeRow| row.state == State::Running && row.incarnation > before.incarnation;
        wait_until("the move", SOON, async || cluster.row("/t/sleeper").await, moved).await;
        let losses: u64 = cluster.explain("/t/sleeper").await.node_losses.iter().map(|(_, count)| count).sum();
        assert_eq!(losses, loss);
        cluster.node(&home).start();
        cluster.all_up().await;
    }
    let row = cluster.row("/t/sleeper").await;
    assert_eq!(row.restarts, 0, "nobody was charged");
    let history = cluster.history("/t/sleeper").await;
    let moves: u64 = history.iter().map(|entry| entry.count).sum();
    assert_eq!(moves, 5, "{history:#?}");
    assert!(history.iter().all(|entry| entry.cause.class == CauseClass::NodeLost && !entry.charged), "{history:#?}");
    let events = cluster.events().await;
    assert!(!events.iter().any(|event| event.kind == "escalated"), "{events:#?}");
    let delayed = |text: &str| text.contains("starts after");
    assert!(
        !events.iter().any(|event| event.kind == "child_assigned" && delayed(&event.text)),
        "no backoff: {events:#?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn t7_a_healthy_run_returns_the_backoff_to_its_base_and_a_shorter_one_does_not() {
    let cluster = Cluster::start().await;
    cluster
        .apply(
            r#"
name = "t"
[[children]]
id = "child"
command = ["sleep", "1000"]
backoff = { base = "50ms", cap = "10s", factor = 3, jitter = 0, reset_after = "2s" }
intensity = "unlimited"
"#,
        )
        .await;
    cluster.whole("/t").await;
    let delay_of_next = async || {
        let before = cluster.row("/t/child").await;
        let killed = cluster.cli(&["kill", "/t/child"]);
        assert!(killed.status.success(), "{}", String::from_utf8_lossy(&killed.stderr));
        let restarted =
            |row: &pando_protocol::view::TreeRow| row.state == State::Running && row.incarnation > before.incarnation;
        wait_until("the restart", SOON, async || cluster.row("/t/child").await, restarted).await;
        let history = cluster.history("/t/child").await;
        history.last().expect("an ending").decision.clone()
    };
    // Up the ladder: the delay is in the decision, to the millisecond, since nothing is drawn.
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(delay_of_next().await);
    }
    // A run of less than two seconds, as the runner measures it, does not reset: each was killed as soon as it ran. A machine
    // so slow that a run lasted longer says so in the history, and proves nothing.
    println!("decisions on the way up: {seen:?}");
    let grown = seen.iter().filter(|decision| decision.ends_with(" 50 ms")).count();
    let healthy = |row: &pando_protocol::view::TreeRow| row.uptime_ms.is_some_and(|up| up >= 2_500);
    wait_until("a healthy run", SOON, async || cluster.row("/t/child").await, healthy).await;
    let after = delay_of_next().await;
    assert!(after.ends_with(" 50 ms"), "the base again: {after}");
    // The first one is at the base, and no later one unless its run was slow enough to be healthy.
    assert!(grown < seen.len(), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn t11_the_ladder_makes_nine_starts_and_the_root_shows_the_workers_own_cause() {
    let cluster = Cluster::with(Options { http: true, ..Options::default() }).await;
    let starts_file = file(&cluster);
    let command = stamping(&starts_file, "echo out of ladders >&2; exit 7");
    cluster
        .apply(&format!(
            r#"
name = "ladder"
intensity = {{ max_restarts = 2, within = "60s" }}
[[children]]
id = "pool"
intensity = {{ max_restarts = 2, within = "60s" }}
[[children.children]]
id = "worker"
command = {command}
"#
        ))
        .await;
    let failed = |rows: &Vec<pando_protocol::view::TreeRow>| rows.iter().any(|row| row.state == State::Failed);
    wait_until("the tree to fail", SOON, async || cluster.tree().await, failed).await;
    assert_eq!(starts(&starts_file).len(), 9, "three under each of three pools");
    let record = cluster.history("/ladder").await;
    let chain: Vec<&str> = record.iter().flat_map(|entry| &entry.chain).map(|cause| cause.path.as_str()).collect();
    assert_eq!(chain, ["/ladder/pool", "/ladder/pool/worker"], "{record:#?}");
    let worker = record[0].chain.last().expect("the worker");
    assert_eq!((worker.code, worker.stderr.trim()), (Some(7), "out of ladders"));
    assert_eq!(cluster.cli(&["wait", "/ladder", "--timeout", "5s"]).status.code(), Some(1));
    for node in ["n1", "n2", "n3"] {
        let ready = cluster.get(node, "/readyz").await.expect("an answer");
        assert_eq!(ready.status, 503, "the readiness of the cluster fails: {ready:?}");
        let why = "tree ladder has failed: /ladder: 3 crashes in 1 m, because /ladder/pool: 3 crashes in 1 m, because \
                   /ladder/pool/worker: exit code 7";
        assert!(ready.body.starts_with(why), "{ready:?}");
    }
    // Cleared by an operator, it begins again with all its budgets.
    assert!(cluster.cli(&["restart", "/ladder"]).status.success());
    wait_until("nine more starts", SOON, async || starts(&starts_file).len(), |count| *count == 18).await;
}

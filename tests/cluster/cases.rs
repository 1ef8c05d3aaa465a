//! The cases T1, T2, T5, T7 and T11 on real processes. The same rules are told without processes in `supervision`; here the
//! children themselves are the witnesses: each writes down when it started.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pando_protocol::cause::CauseClass;
use pando_protocol::view::{State, TreeRow, Verdict};
use pando_tests::cluster::{Cluster, Options, SOON, said, send, sleeper, sleepers};
use pando_tests::wait::{pass, wait_until};
use rustix::process::Signal;

/// A child that writes a line with the time for each start, in milliseconds, then does `then`.
fn stamping(starts: &Path, then: &str) -> String {
    format!(r#"["sh", "-c", "date +%s%3N >> {}; {then}"]"#, starts.display())
}

/// The most milliseconds from the end of a delay to the first line of the child, on a loaded machine.
const SLOW_START: u64 = 5_000;

fn starts(file: &Path) -> Vec<u64> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

fn file(cluster: &Cluster) -> PathBuf {
    cluster.folder().join("starts")
}

/// Waits until a tree has failed.
async fn fails(cluster: &Cluster) {
    let failed = |rows: &Vec<TreeRow>| rows.iter().any(|row| row.state == State::Failed);
    wait_until("the tree to fail", SOON, async || cluster.tree().await, failed).await;
}

/// So long three nodes are looked at before they have anything to do.
const IDLE: Duration = Duration::from_secs(2);

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
    let processor = || nodes.iter().map(|pid| cpu(*pid)).sum::<Duration>();
    let (begun, before) = (Instant::now(), processor());
    pass(IDLE).await;
    let idle = (processor() - before).div_duration_f64(begun.elapsed());
    let before = processor();
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
    let looping = |rows: &Vec<TreeRow>| {
        rows.iter().any(|row| row.path.as_str() == "/t/always" && row.verdict == Verdict::Looping)
    };
    wait_until("the verdict looping", SOON, async || cluster.tree().await, looping).await;
    let many = wait_until("ten starts", SOON, async || starts(&starts_file), |starts| starts.len() >= 10).await;
    let spent = processor() - before;
    let first = many[0];
    let in_three_seconds = many.iter().filter(|at| **at - first < 3_000).count();
    println!("starts in the first 3 s: {in_three_seconds}; CPU of three nodes meanwhile: {spent:?}");
    // At full jitter the delays halve: at most 12 starts fit. At the least there are the delays and what a start takes, which
    // a loaded machine stretches, so that only the upper bound is a promise.
    assert!((2..=12).contains(&in_three_seconds), "{in_three_seconds} starts in 3 s: {many:?}");
    let late: Vec<u64> = many.windows(2).skip(6).map(|pair| pair[1] - pair[0]).collect();
    assert!(late.iter().all(|gap| *gap >= 500), "gaps at the cap: {late:?}");
    // At most the cap, and what a start takes; half of them without a hitch of the machine.
    assert!(late.iter().all(|gap| *gap <= 1_000 + SLOW_START), "gaps at the cap: {late:?}");
    assert!(late.iter().filter(|gap| **gap <= 1_500).count() * 2 >= late.len(), "gaps at the cap: {late:?}");
    // Whatever they were built for and whatever the machine is: what they do beyond being idle, our questions included, is little.
    let busy = spent.div_duration_f64(Duration::from_millis(many[many.len() - 1] - first));
    println!("processors of three nodes: idle {idle:.2}, with a child that always fails {busy:.2}");
    assert!(busy <= idle * 2.0 + 0.25, "idle {idle:.2}, with a child that always fails {busy:.2}");
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
    fails(&cluster).await;
    assert_eq!(starts(&starts_file).len(), 6, "five restarts are six starts");
    let record = cluster.history("/t").await;
    let [escalation] = &record[..] else { panic!("{record:#?}") };
    assert_eq!(escalation.cause.class, CauseClass::Escalated);
    assert!(escalation.cause.message.contains("6 crashes in"), "{escalation:#?}");
    let last = escalation.chain.last().expect("the crash below");
    assert_eq!((last.code, last.stderr.trim()), (Some(3), "last words"));
    assert_eq!(escalation.earlier.len(), 5, "the earlier five one step away");
    let (code, words) = said(&cluster.cli(&["wait", "/t", "--timeout", "5s"]));
    assert_eq!(code, Some(1), "{words}");
    assert!(!cluster.settled("/t").await.whole);
}

/// The loss of the five at which node and guard die together.
const POWER_OFF: u64 = 3;

#[tokio::test(flavor = "multi_thread")]
async fn t5_five_node_losses_are_free() {
    let head = "name = 't'\nintensity = { max_restarts = 2, within = '300s' }";
    let mut cluster = Cluster::running(&sleepers(head, &["sleeper"])).await;
    for loss in 1..=5u64 {
        let (before, home) = (cluster.row("/t/sleeper").await, cluster.home("/t/sleeper").await);
        if loss == POWER_OFF {
            // Nobody is left to report it, as when the power goes: only the lease tells.
            let guard = cluster.node(&home).guard();
            cluster.node(&home).signal(Signal::STOP);
            send(guard, Signal::KILL);
        }
        cluster.node(&home).kill();
        cluster.runs_anew("/t/sleeper", &before).await;
        let losses: u64 = cluster.explain("/t/sleeper").await.node_losses.iter().map(|(_, count)| count).sum();
        assert_eq!(losses, loss);
        cluster.node(&home).start();
        cluster.all_up().await;
    }
    let silent = cluster.history("/t/sleeper").await;
    let silent = silent.iter().filter(|entry| entry.cause.message.contains("silent beyond its lease"));
    assert_eq!(silent.map(|entry| entry.count).sum::<u64>(), 1, "one was proven by the lease");
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
    let backoff = "backoff = { base = '50ms', cap = '10s', factor = 15, jitter = 0, reset_after = '5s' }";
    let child = format!("{}{backoff}\nintensity = 'unlimited'\n", sleeper("child"));
    let cluster = Cluster::running(&format!("name = 't'\n{child}")).await;
    // Nothing is drawn, so that the decision holds the delay to the millisecond.
    assert_eq!(delay_after(&cluster, 0).await, "50 ms");
    assert_eq!(delay_after(&cluster, 0).await, "750 ms");
    assert_eq!(delay_after(&cluster, 0).await, "10 s", "at the cap");
    assert_eq!(delay_after(&cluster, 0).await, "10 s", "and no further");
    assert_eq!(delay_after(&cluster, 6_000).await, "50 ms", "the base again");
    assert_eq!(delay_after(&cluster, 4_000).await, "750 ms", "up, not back");
}

/// Kills the child when it has run for so many milliseconds, and waits for it to run again; the delay that was decided. A run that
/// lasted five seconds because the machine was slow would prove something else.
async fn delay_after(cluster: &Cluster, millis: u64) -> String {
    let ran = |row: &TreeRow| row.state == State::Running && row.uptime_ms.is_some_and(|up| up >= millis);
    let before = wait_until("the run", SOON, async || cluster.row("/t/child").await, ran).await;
    let kill = async || cluster.cli(&["kill", "/t/child"]);
    wait_until("the kill", SOON, kill, |killed| killed.status.success()).await;
    cluster.runs_anew("/t/child", &before).await;
    let history = cluster.history("/t/child").await;
    let last = history.last().expect("an ending");
    println!("{}: {}", last.cause.message, last.decision);
    let seconds = last.cause.message.strip_suffix(" s").and_then(|text| text.rsplit(' ').next()?.parse::<f64>().ok());
    assert!(millis >= 5_000 || seconds.is_none_or(|ran| ran < 5.0), "the machine is too slow: {}", last.cause.message);
    last.decision.strip_prefix("restarts after ").unwrap_or(&last.decision).to_owned()
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
    fails(&cluster).await;
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
    cluster.done(&["restart", "/ladder"]);
    wait_until("nine more starts", SOON, async || starts(&starts_file).len(), |count| *count == 18).await;
}

//! Cases T6 and T27: what is asked for is no crash, and `pando node drain` tells the truth.

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use pando_protocol::view::{NodeState, State, TreeRow};
use pando_tests::beats::{lives, overlap, told};
use pando_tests::cluster::{Cluster, Options, SOON};
use pando_tests::wait::wait_until;

fn beats(cluster: &Cluster, child: &str) -> PathBuf {
    cluster.folder().join(format!("beats-{child}"))
}

/// A child that takes so many milliseconds to stop, and ends with 143 then.
fn child(cluster: &Cluster, id: &str, stop_takes: u64, place: &str) -> String {
    let (witness, beats) = (env!("CARGO_BIN_EXE_witness"), beats(cluster, id));
    format!(
        "[[children]]\nid = \"{id}\"\nplace = {{ {place} }}\nshutdown = \"20s\"\n\
         command = [\"{witness}\", \"{}\", \"--stop-takes\", \"{stop_takes}\"]\n",
        beats.display()
    )
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn labelled(name: &str) -> Vec<String> {
    vec!["--label".into(), format!("host={name}")]
}

async fn runs_again(cluster: &Cluster, path: &str, before: &TreeRow) -> TreeRow {
    let again = |row: &TreeRow| row.state == State::Running && row.incarnation > before.incarnation;
    wait_until(&format!("{path} again"), SOON, async || cluster.row(path).await, again).await
}

#[tokio::test(flavor = "multi_thread")]
async fn t6_stop_drain_update_and_shutdown_of_a_node_are_no_crashes() {
    let mut cluster = Cluster::with(Options { http: true, ..Options::default() }).await;
    let spec = format!("name = \"t\"\n{}", child(&cluster, "a", 100, ""));
    cluster.apply(&spec).await;
    cluster.whole("/t").await;

    assert!(cluster.cli(&["stop", "/t/a"]).status.success());
    let stopped = |row: &TreeRow| row.state == State::Stopped;
    let before = wait_until("the stop", SOON, async || cluster.row("/t/a").await, stopped).await;
    assert!(cluster.cli(&["start", "/t/a"]).status.success());
    let before = runs_again(&cluster, "/t/a", &before).await;

    let drained = before.node.clone().expect("it runs").to_string();
    let drain = cluster.cli(&["node", "drain", &drained]);
    assert!(drain.status.success(), "{}", said(&drain));
    assert!(cluster.children(&drained).is_empty(), "nothing runs there once the command has returned");
    let before = runs_again(&cluster, "/t/a", &before).await;
    assert!(cluster.cli(&["node", "undrain", &drained]).status.success());

    let version_2 = cluster.folder().join("version-2.toml");
    std::fs::write(&version_2, format!("{spec}env = {{ VERSION = \"2\" }}\n")).expect("a file");
    let apply = cluster.cli(&["apply", &version_2.display().to_string(), "--wait"]);
    assert!(apply.status.success(), "{}", said(&apply));
    let before = runs_again(&cluster, "/t/a", &before).await;

    let home = before.node.clone().expect("it runs").to_string();
    cluster.node(&home).terminate();
    assert!(cluster.node(&home).ended(SOON).success());
    runs_again(&cluster, "/t/a", &before).await;

    let history = cluster.history("/t/a").await;
    let causes: Vec<&str> = history.iter().map(|entry| entry.cause.message.as_str()).collect();
    let expected = [
        "stopped by operator (exit code 143)",
        "stopped for the drain of its node (exit code 143)",
        "stopped for an update (exit code 143)",
        "stopped by the shutdown of its node (exit code 143)",
    ];
    assert_eq!(causes, expected);
    assert!(history.iter().all(|entry| !entry.charged), "{history:#?}");
    assert_eq!(cluster.row("/t/a").await.restarts, 0);
    assert!(cluster.explain("/t/a").await.window.is_empty(), "no crash stands in the window");
    let alive = ["n1", "n2", "n3"].into_iter().find(|name| *name != home).expect("another node");
    let metrics = cluster.get(alive, "/metrics").await.expect("metrics").body;
    let value =
        |start: &str| metrics.lines().find(|line| line.starts_with(start)).and_then(|line| line.split(' ').nth(1));
    assert_eq!(value("pando_restarts_total{path=\"/t/a\",cause=\"crash\"}"), Some("0"), "{metrics}");
    assert_eq!(value("pando_tree_failed{tree=\"t\"}"), Some("0"), "no alert: {metrics}");
    let (lives, told) = (lives(&beats(&cluster, "a")), told(&beats(&cluster, "a")));
    assert_eq!((overlap(&lives), lives.len(), told.len()), (None, 5, 4), "{lives:#?}");
}

/// The case has 20 s. What counts is that the command waits for the slowest one, however long that is, so that less does.
const SLOW_STOP: Duration = Duration::from_secs(3);

/// Three children on n1, of which `slow` takes [`SLOW_STOP`] to stop; they may go elsewhere where there is room.
async fn three_on_n1(own_flags: fn(&str) -> Vec<String>) -> Cluster {
    let cluster = Cluster::with(Options { own_flags, ..Options::default() }).await;
    let mut spec = "name = \"t\"\n".to_owned();
    for (id, stop_takes) in [("one", 50), ("two", 50), ("slow", SLOW_STOP.as_millis() as u64)] {
        spec.push_str(&child(&cluster, id, stop_takes, "prefer = [\"host=n1\"]"));
    }
    cluster.apply(&spec).await;
    cluster.whole("/t").await;
    assert_eq!(cluster.children("n1").len(), 3);
    cluster
}

const THREE: [&str; 3] = ["one", "two", "slow"];

#[tokio::test(flavor = "multi_thread")]
async fn t27_a_drain_returns_when_all_have_stopped_and_their_replacements_are_ready() {
    let cluster = three_on_n1(labelled).await;
    let asked = Instant::now();
    let drain = cluster.cli(&["node", "drain", "n1"]);
    let took = asked.elapsed();
    // At once, before anything can change.
    let left = cluster.children("n1");
    assert!(drain.status.success(), "{}", said(&drain));
    assert_eq!(left, Vec::<u32>::new(), "all have stopped");
    assert!(cluster.settled("/t").await.whole, "their replacements are ready");
    assert!(took >= SLOW_STOP, "it returned after {took:?}");
    assert!(
        said(&drain).contains("n1 is drained: nothing runs there, and 3 moved children are ready"),
        "{}",
        said(&drain)
    );
    for id in THREE {
        let file = beats(&cluster, id);
        let seen = wait_until("a beat elsewhere", SOON, async || lives(&file), |lives| lives.len() == 2).await;
        assert_eq!(overlap(&seen), None, "{id}: {seen:#?}");
        assert_eq!(told(&file).len(), 1, "{id} was asked to stop");
        assert_eq!(cluster.row(&format!("/t/{id}")).await.restarts, 0);
    }
    let row = cluster.node_rows().await.into_iter().find(|row| row.name.as_str() == "n1").expect("n1");
    assert_eq!((row.state, row.children), (NodeState::Drained, 0));
}

/// Room for what prefers n1, and one slot elsewhere, which is taken.
fn full(name: &str) -> Vec<String> {
    let slots = if name == "n1" { "3" } else { "1" };
    let mut flags = labelled(name);
    flags.extend(["--slots".into(), slots.into()]);
    flags
}

#[tokio::test(flavor = "multi_thread")]
async fn t27_a_drain_without_spare_capacity_says_what_it_waits_for_and_fails_at_its_deadline() {
    let cluster = three_on_n1(full).await;
    let fill = |id: &str, node: &str| child(&cluster, id, 50, &format!("require = [\"host={node}\"]"));
    cluster.apply(&format!("name = \"full\"\n{}{}", fill("x", "n2"), fill("y", "n3"))).await;
    cluster.whole("/full").await;
    let before = cluster.all_children();
    let drain = cluster.cli(&["node", "drain", "n1", "--deadline", "2s"]);
    assert_eq!(drain.status.code(), Some(1), "{}", said(&drain));
    let words = said(&drain);
    assert!(words.contains("3 children still run there") && words.contains("room to leave n1"), "{words}");
    assert_eq!(cluster.all_children(), before, "all go on where they are");
    let waiting = cluster.row("/t/one").await.waiting.expect("it says what it waits for");
    assert!(waiting.contains("room to leave n1, which is drained"), "{waiting}");
    // Room appears: the drain, which goes on, is done.
    assert!(cluster.cli(&["stop", "/full/x"]).status.success());
    let two_left = |pids: &Vec<u32>| pids.len() == 2;
    wait_until("one to move into the free slot", SOON, async || cluster.children("n1"), two_left).await;
    assert!(cluster.cli(&["node", "undrain", "n1"]).status.success());
    cluster.whole("/t").await;
    for id in THREE {
        let lives = lives(&beats(&cluster, id));
        assert_eq!(overlap(&lives), None, "{id}: {lives:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn t27_a_drain_that_is_cancelled_leaves_exactly_three_copies() {
    let cluster = three_on_n1(labelled).await;
    let mut drain = cluster.cli_command(&["node", "drain", "n1"]);
    let mut drain = drain.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("pando runs");
    let slow = beats(&cluster, "slow");
    wait_until("the slow one to be told", SOON, async || told(&slow), |told| !told.is_empty()).await;
    drain.kill().expect("it still waits for the slow one");
    drain.wait().expect("its end");
    let undrain = cluster.cli(&["node", "undrain", "n1"]);
    assert!(undrain.status.success(), "{}", said(&undrain));
    let stopped = |lives: &std::collections::BTreeMap<u64, pando_tests::beats::Life>| lives.len() == 2;
    wait_until("the slow one elsewhere", SOON, async || lives(&slow), stopped).await;
    cluster.whole("/t").await;
    assert_eq!(cluster.all_children().len(), 3);
    for id in THREE {
        let lives = lives(&beats(&cluster, id));
        assert_eq!(overlap(&lives), None, "{id}: {lives:#?}");
        assert!(lives.len() <= 2, "{id} moved once at most: {lives:#?}");
        assert_eq!(cluster.row(&format!("/t/{id}")).await.restarts, 0);
    }
    let row = cluster.node_rows().await.into_iter().find(|row| row.name.as_str() == "n1").expect("n1");
    assert_eq!(row.state, NodeState::Up);
}

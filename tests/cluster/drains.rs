//! Cases T6 and T27: what is asked for is no crash, and `pando node drain` tells the truth.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use pando_protocol::view::{NodeState, State, TreeRow};
use pando_tests::beats::{lives, overlap, told};
use pando_tests::cluster::{Cluster, Options, SOON, said, send};
use pando_tests::wait::{pass, wait_until};
use rustix::process::Signal;

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

fn labelled(name: &str) -> Vec<String> {
    vec!["--label".into(), format!("host={name}")]
}

#[tokio::test(flavor = "multi_thread")]
async fn t6_stop_drain_update_and_shutdown_of_a_node_are_no_crashes() {
    let mut cluster = Cluster::with(Options { http: true, ..Options::default() }).await;
    let spec = format!("name = \"t\"\n{}", child(&cluster, "a", 100, ""));
    cluster.bring_up(&spec).await;

    cluster.done(&["stop", "/t/a"]);
    let stopped = |row: &TreeRow| row.state == State::Stopped;
    let before = wait_until("the stop", SOON, async || cluster.row("/t/a").await, stopped).await;
    cluster.done(&["start", "/t/a"]);
    let before = cluster.runs_anew("/t/a", &before).await;

    let drained = cluster.home("/t/a").await;
    cluster.done(&["node", "drain", &drained]);
    assert!(cluster.children(&drained).is_empty(), "nothing runs there once the command has returned");
    let before = cluster.runs_anew("/t/a", &before).await;
    cluster.done(&["node", "undrain", &drained]);

    let version_2 = cluster.folder().join("version-2.toml");
    std::fs::write(&version_2, format!("{spec}env = {{ VERSION = \"2\" }}\n")).expect("a file");
    cluster.done(&["apply", &version_2.display().to_string(), "--wait"]);
    let before = cluster.runs_anew("/t/a", &before).await;

    let home = cluster.home("/t/a").await;
    cluster.node(&home).terminate();
    assert!(cluster.node(&home).ended(SOON).success());
    cluster.runs_anew("/t/a", &before).await;

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
    cluster.bring_up(&spec).await;
    assert_eq!(cluster.children("n1").len(), 3);
    cluster
}

const THREE: [&str; 3] = ["one", "two", "slow"];

#[tokio::test(flavor = "multi_thread")]
async fn t27_a_drain_returns_when_all_have_stopped_and_their_replacements_are_ready() {
    let cluster = three_on_n1(labelled).await;
    let asked = Instant::now();
    let words = cluster.done(&["node", "drain", "n1"]);
    let took = asked.elapsed();
    // At once, before anything can change.
    let left = cluster.children("n1");
    assert_eq!(left, Vec::<u32>::new(), "all have stopped");
    assert!(cluster.settled("/t").await.whole, "their replacements are ready");
    assert!(took >= SLOW_STOP, "it returned after {took:?}");
    assert!(words.contains("n1 is drained: nothing runs there, and 3 moved children are ready"), "{words}");
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
    cluster.bring_up(&format!("name = \"full\"\n{}{}", fill("x", "n2"), fill("y", "n3"))).await;
    let before = cluster.all_children();
    let (code, words) = said(&cluster.cli(&["node", "drain", "n1", "--deadline", "2s"]));
    assert_eq!(code, Some(1), "{words}");
    assert!(words.contains("3 children still run there") && words.contains("room to leave n1"), "{words}");
    assert_eq!(cluster.all_children(), before, "all go on where they are");
    let waiting = cluster.row("/t/one").await.waiting.expect("it says what it waits for");
    assert!(waiting.contains("room to leave n1, which is drained"), "{waiting}");
    // Room appears: the drain, which goes on, is done.
    cluster.done(&["stop", "/full/x"]);
    let two_left = |pids: &Vec<u32>| pids.len() == 2;
    wait_until("one to move into the free slot", SOON, async || cluster.children("n1"), two_left).await;
    cluster.done(&["node", "undrain", "n1"]);
    cluster.whole("/t").await;
    for id in THREE {
        let lives = lives(&beats(&cluster, id));
        assert_eq!(overlap(&lives), None, "{id}: {lives:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn t27_a_group_stays_whole_on_a_drained_node_until_there_is_room_for_all_of_it() {
    let cluster = Cluster::with(Options { own_flags: full, ..Options::default() }).await;
    let members = ["a", "b"].map(|id| child(&cluster, id, 50, "prefer = [\"host=n1\"]"));
    cluster
        .bring_up(&format!("name = \"t\"\nstrategy = \"one_for_all\"\ncolocate = false\n{}", members.concat()))
        .await;
    let fill = |id: &str, node: &str| child(&cluster, id, 50, &format!("require = [\"host={node}\"]"));
    cluster.bring_up(&format!("name = \"full\"\n{}{}", fill("x", "n2"), fill("y", "n3"))).await;
    let first = cluster.row("/t/a").await;
    let (code, words) = said(&cluster.cli(&["node", "drain", "n1", "--deadline", "1s"]));
    assert_eq!(code, Some(1), "{words}");
    assert!(words.contains("2 children still run there") && words.contains("room to leave n1"), "{words}");

    // One crashes: the group restarts where it was, since there is no other place.
    send(first.pid.expect("it runs"), Signal::KILL);
    let second = cluster.runs_anew("/t/a", &first).await;
    cluster.whole("/t").await;
    assert_eq!((cluster.home("/t/a").await, cluster.home("/t/b").await), ("n1".into(), "n1".into()));
    assert_eq!((second.restarts, cluster.row("/t/b").await.restarts), (1, 0));

    // Room for one is not enough: nobody is stopped for it.
    let before = cluster.children("n1");
    cluster.done(&["stop", "/full/x"]);
    let (code, words) = said(&cluster.cli(&["node", "drain", "n1", "--deadline", "1s"]));
    assert_eq!((code, cluster.children("n1")), (Some(1), before), "{words}");

    cluster.done(&["stop", "/full/y"]);
    let words = cluster.done(&["node", "drain", "n1"]);
    assert!(words.contains("n1 is drained: nothing runs there"), "{words}");
    cluster.whole("/t").await;
    let homes: BTreeSet<String> = [cluster.home("/t/a").await, cluster.home("/t/b").await].into();
    assert_eq!(homes, ["n2".to_owned(), "n3".to_owned()].into());
    let rows = [cluster.row("/t/a").await.restarts, cluster.row("/t/b").await.restarts];
    assert_eq!(rows, [1, 0], "moving is no crash");
    for id in ["a", "b"] {
        assert_eq!(overlap(&lives(&beats(&cluster, id))), None, "{id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn t27_a_drain_waits_for_a_group_that_is_down_until_its_delay_is_over() {
    let cluster = Cluster::with(Options { own_flags: full, ..Options::default() }).await;
    let delay = "backoff = { base = \"4s\", cap = \"4s\", jitter = 0 }\n";
    let members = ["a", "b"].map(|id| child(&cluster, id, 50, "prefer = [\"host=n1\"]") + delay);
    let group = "strategy = \"one_for_all\"\ncolocate = false\nintensity = \"unlimited\"";
    cluster.bring_up(&format!("name = \"t\"\n{group}\n{}", members.concat())).await;
    let fill = |id: &str, node: &str| child(&cluster, id, 50, &format!("require = [\"host={node}\"]"));
    cluster.bring_up(&format!("name = \"full\"\n{}{}", fill("x", "n2"), fill("y", "n3"))).await;
    let first = cluster.row("/t/a").await;
    send(first.pid.expect("it runs"), Signal::KILL);
    wait_until("all of it to be down", SOON, async || cluster.children("n1"), Vec::is_empty).await;
    let (code, words) = said(&cluster.cli(&["node", "drain", "n1", "--deadline", "1s"]));
    assert_eq!(code, Some(1), "nothing runs there, and it has no other place: {words}");
    assert!(words.contains("0 children still run there; /t/a: its delay ends in"), "{words}");
    cluster.runs_anew("/t/a", &first).await;
    cluster.whole("/t").await;
    assert_eq!((cluster.home("/t/a").await, cluster.home("/t/b").await), ("n1".into(), "n1".into()));
    cluster.done(&["stop", "/full/x"]);
    cluster.done(&["stop", "/full/y"]);
    let words = cluster.done(&["node", "drain", "n1"]);
    assert!(words.contains("n1 is drained: nothing runs there, and 2 moved children are ready"), "{words}");
    for id in ["a", "b"] {
        assert_eq!(overlap(&lives(&beats(&cluster, id))), None, "{id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn t27_a_drain_that_is_asked_again_waits_for_what_still_starts_elsewhere() {
    let cluster = Cluster::with(Options { own_flags: labelled, ..Options::default() }).await;
    let goes = cluster.folder().join("goes");
    std::fs::write(&goes, "").expect("a file");
    let probe = format!("ready = {{ exec = [\"test\", \"-e\", \"{}\"], within = \"2m\" }}\n", goes.display());
    let spec = format!("name = \"t\"\n{}{probe}", child(&cluster, "a", 50, "prefer = [\"host=n1\"]"));
    cluster.bring_up(&spec).await;
    std::fs::remove_file(&goes).expect("it is there");
    cluster.done(&["node", "drain", "n1", "--no-wait"]);
    let has_left = |row: &TreeRow| row.node.as_ref().is_some_and(|node| node.as_str() != "n1");
    wait_until("it to have left", SOON, async || cluster.row("/t/a").await, has_left).await;
    let mut again = cluster.cli_command(&["node", "drain", "n1"]);
    let mut again = again.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("pando runs");
    pass(Duration::from_secs(1)).await;
    assert_eq!(again.try_wait().expect("it is a child"), None, "it waits, since the probe fails elsewhere");
    std::fs::write(&goes, "").expect("a file");
    let (code, words) = said(&again.wait_with_output().expect("its end"));
    assert_eq!(code, Some(0), "{words}");
    assert!(cluster.settled("/t").await.whole, "it is ready elsewhere: {words}");
    assert!(words.contains("n1 is drained: nothing runs there, and 1 moved children are ready"), "{words}");
    let words = cluster.done(&["node", "drain", "n1"]);
    assert!(words.contains("0 moved children are ready"), "nothing more is to do: {words}");
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
    cluster.done(&["node", "undrain", "n1"]);
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

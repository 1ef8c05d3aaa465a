//! What an operator says of a node that is gone, and of a child that takes nodes with it.

use std::collections::BTreeMap;

use pando_protocol::view::{NodeRow, NodeState, State, TreeRow};
use pando_tests::cluster::{Cluster, Options, SOON, said, send, sleeper, sleepers};
use pando_tests::wait::wait_until;
use rustix::process::Signal;

/// Three voters and the agent n4, on which `child` wants to run.
async fn with_agent(child: &str) -> Cluster {
    let own_flags = |name: &str| vec!["--label".into(), format!("host={name}")];
    let cluster = Cluster::with(Options { own_flags, agents: 1, ..Options::default() }).await;
    cluster.bring_up(&format!("name = 't'\n{child}place = {{ prefer = ['host=n4'] }}\n")).await;
    assert_eq!(cluster.home("/t/a").await, "n4");
    cluster
}

async fn n4(cluster: &Cluster) -> Option<NodeRow> {
    cluster.node_rows().await.into_iter().find(|row| row.name.as_str() == "n4")
}

/// Waits until n4 is in this state.
async fn is(cluster: &Cluster, state: NodeState) {
    let is_so = |row: &Option<NodeRow>| row.as_ref().is_some_and(|row| row.state == state);
    wait_until(&format!("n4 to be {state:?}"), SOON, async || n4(cluster).await, is_so).await;
}

/// Runs `pando` with these words, which are refused, and says with which ones.
fn refused(cluster: &Cluster, words: &[&str]) -> String {
    let (code, said) = said(&cluster.cli(words));
    assert_eq!(code, Some(4), "{said}");
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_removed_once_it_is_gone_and_is_listed_again_when_it_comes_back() {
    let mut cluster = with_agent(&sleeper("a")).await;
    let before = cluster.row("/t/a").await;
    let words = refused(&cluster, &["node", "remove", "n4"]);
    assert!(words.contains("1 children count as running there") && words.contains("`pando node drain n4`"), "{words}");
    assert_eq!(cluster.row("/t/a").await.incarnation, before.incarnation, "a refusal changes nothing");
    let words = refused(&cluster, &["node", "remove", "n5"]);
    assert!(words.contains("n5"), "{words}");

    cluster.node("n4").kill();
    cluster.runs_anew("/t/a", &before).await;
    is(&cluster, NodeState::Down).await;
    cluster.done(&["node", "remove", "n4"]);
    assert_eq!(n4(&cluster).await, None);
    let words = refused(&cluster, &["node", "remove", "n4"]);
    assert!(words.contains("n4"), "it is known no more: {words}");

    cluster.node("n4").start();
    is(&cluster, NodeState::Up).await;
    assert_eq!(cluster.all_children().len(), 1, "what moved stays where it is");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_silent_node_keeps_starts_elsewhere_by_the_oath_of_an_operator_and_not_before() {
    let mut cluster = with_agent(&format!("{}on_disconnect = 'keep'\n", sleeper("a"))).await;
    let before = cluster.row("/t/a").await;
    cluster.node("n4").signal(Signal::STOP);
    is(&cluster, NodeState::Unreachable).await;
    let words = refused(&cluster, &["node", "remove", "n4"]);
    assert!(words.contains("`pando node remove n4 --dead`"), "{words}");
    assert_eq!(cluster.all_children().len(), 1, "its one copy goes on");

    // The machine is gone: nothing of it runs any more. That nobody can see but the operator.
    send(before.pid.expect("it runs"), Signal::KILL);
    cluster.done(&["node", "remove", "n4", "--dead"]);
    let after = cluster.runs_anew("/t/a", &before).await;
    assert_ne!(after.node.as_ref().map(pando_protocol::ids::NodeName::as_str), Some("n4"));
    assert_eq!(after.restarts, 0, "nobody pays for the loss of a node");
    assert_eq!(n4(&cluster).await, None);

    cluster.node("n4").signal(Signal::CONT);
    is(&cluster, NodeState::Up).await;
    assert_eq!(cluster.row("/t/a").await.incarnation, after.incarnation, "it comes back with nothing to say");
    let copies = async || cluster.all_children();
    wait_until("one copy", SOON, copies, |copies: &BTreeMap<u32, u64>| copies.keys().copied().eq(after.pid)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_quarantined_stays_down_whatever_restarts_around_it_until_somebody_starts_it() {
    let spec = sleepers("name = 't'\nstrategy = 'one_for_all'", &["a", "b"]);
    let mut cluster = Cluster::running(&spec).await;
    let (first, other) = (cluster.row("/t/a").await, cluster.row("/t/b").await);
    cluster.done(&["quarantine", "/t/a"]);
    let is_down = |row: &TreeRow| row.state == State::Stopped && row.pid.is_none();
    wait_until("the stop", SOON, async || cluster.row("/t/a").await, is_down).await;
    let words = cluster.done(&["explain", "/t/a"]);
    assert!(words.contains("quarantined by an operator, as dangerous to start"), "{words}");

    // Its group restarts, its spec is applied again, its node goes, and all nodes restart.
    send(other.pid.expect("it runs"), Signal::KILL);
    let other = cluster.runs_anew("/t/b", &other).await;
    cluster.apply(&spec).await;
    let home = cluster.home("/t/b").await;
    cluster.node(&home).kill();
    cluster.runs_anew("/t/b", &other).await;
    cluster.node(&home).start();
    cluster.all_up().await;
    cluster.stop();
    cluster.nodes().for_each(pando_tests::cluster::NodeProcess::start);
    cluster.all_up().await;
    cluster.whole("/t").await;
    let row = cluster.row("/t/a").await;
    assert_eq!((row.state, row.pid, row.restarts), (State::Stopped, None, 0), "{row:?}");
    assert!(cluster.done(&["explain", "/t/a"]).contains("quarantined by an operator"));

    cluster.done(&["start", "/t/a"]);
    cluster.runs_anew("/t/a", &first).await;
    assert!(!cluster.done(&["explain", "/t/a"]).contains("quarantined by"), "it is over");
}

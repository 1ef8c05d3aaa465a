//! Whichever node a client asks first: one that knows nothing, or knows no leader, does not have the last word.

use std::fs;
use std::time::{Duration, Instant};

use pando_protocol::message::{Call, Freshness, Query, Reply};
use pando_tests::cluster::{Cluster, Options, SOON, said, sleepers};
use pando_tests::wait::wait_until;

fn tree() -> String {
    sleepers("name = 't'", &["a", "quiet"])
}

/// Kills a node, and starts it again with nothing on its disk.
fn wipe(cluster: &mut Cluster, node: &str) {
    cluster.node(node).kill();
    cluster.node(node).wait_for_guard();
    fs::remove_dir_all(cluster.node(node).data()).expect("the data of the node");
    cluster.node(node).start();
}

/// What `pando` says with this line when it asks one node only.
fn said_by(cluster: &Cluster, node: &str, line: &str) -> (Option<i32>, String) {
    let words: Vec<&str> = line.split(' ').chain(["--endpoints", cluster.address(node)]).collect();
    said(&cluster.cli(&words))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_voter_whose_data_is_gone_passes_on_what_it_is_asked() {
    let mut cluster = Cluster::running(&tree()).await;
    wipe(&mut cluster, "n1");
    let asked = async || said_by(&cluster, "n1", "tree");
    let seen = wait_until("n1 to answer", SOON, asked, |(code, _)| *code == Some(0)).await;
    assert!(seen.1.contains("quiet"), "{seen:?}");
    for line in ["tree --stale", "restart /t/a", "events", "status"] {
        let (code, text) = said_by(&cluster, "n1", line);
        assert!(code == Some(0) && !text.contains("no trees yet"), "{line}: {code:?} {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_node_finds_a_leader_what_is_known_is_shown_soon() {
    let mut cluster = Cluster::running(&tree()).await;
    cluster.node("n2").kill();
    cluster.node("n3").kill();
    let begun = Instant::now();
    let (code, text) = said(&cluster.cli(&["tree"]));
    assert!(code == Some(3) && text.contains("/t") && text.contains("no leader; view of n1"), "{code:?} {text}");
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_stream_through_an_agent_is_an_answer() {
    let cluster = Cluster::with(Options { voters: 1, agents: 1, ..Options::default() }).await;
    cluster.bring_up(&tree()).await;
    for line in ["events --after 99999", "logs /t/quiet --tail 0"] {
        assert_eq!(said_by(&cluster, "n2", line), (Some(0), String::new()), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_asks_the_next_voter_where_the_first_finds_no_leader() {
    let mut cluster = Cluster::running(&tree()).await;
    wipe(&mut cluster, "n1");
    let voters = cluster.named(&["n1", "n2", "n3"]);
    cluster.add_agent("n4", &voters, &[]);
    cluster.all_up().await;
    let agent = cluster.client_of("n4");
    let call = Call::Read { query: Query::Nodes, freshness: Freshness::Linearizable };
    let answer = agent.call(call, SOON).await;
    assert!(matches!(&answer, Ok(Reply::Found { view, .. }) if view.confirmed), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_leader_a_change_ends_within_its_timeout_and_a_signal_is_no_refusal() {
    let mut cluster = Cluster::running(&tree()).await;
    let home = cluster.home("/t/a").await;
    for other in cluster.others(&home) {
        cluster.node(&other).kill();
    }
    // At the end of its lease; the state that is left still says that they run there.
    wait_until("the children to stop", SOON, async || cluster.children(&home), Vec::is_empty).await;
    fs::write(cluster.folder().join("t.toml"), tree()).expect("a spec file");
    let no_leader = async || said(&cluster.cli(&["cluster", "status", "--stale"]));
    wait_until("no leader", SOON, no_leader, |(_, text)| text.contains("leader none")).await;
    let begun = Instant::now();
    let (code, text) = said(&cluster.cli(&["apply", "t.toml", "--wait", "--timeout", "2s"]));
    assert!(code == Some(3) && text.contains("no leader was reached within"), "{code:?} {text}");
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}: {text}", begun.elapsed());
    let (code, text) = said(&cluster.cli(&["kill", "/t/a"]));
    assert!(code == Some(3) && text.contains("nobody can say where /t/a runs now"), "{code:?} {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_never_had_a_session_says_whom_to_ask_instead() {
    let mut cluster = Cluster::start().await;
    cluster.node("n2").kill();
    cluster.node("n3").kill();
    let voters = cluster.named(&["n1", "n2", "n3"]);
    // Without a majority nobody grants it one.
    cluster.add_agent("n4", &voters, &[]);
    for line in ["tree --stale", "events", "restart /t/a"] {
        let (code, text) = said_by(&cluster, "n4", line);
        let says = text.contains("n4 has had no session yet") && text.contains("ask one of them (n1, n2, n3)");
        assert!(code == Some(3) && says, "{line}: {code:?} {text}");
    }
}

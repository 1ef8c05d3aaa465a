//! A log that outgrows its size: snapshots are taken, the log is cut, and who was away too long catches up by a snapshot.

use std::fs;
use std::path::Path as FilePath;

use pando_protocol::client::Client;
use pando_protocol::message::{Call, Found, Freshness, Query, Reply};
use pando_tests::cluster::{Cluster, NodeProcess, Options, SOON};
use pando_tests::wait::wait_until;

/// Applied specs, each of them some 600 KB in the log.
const ROUNDS: usize = 20;
/// Below what the rounds weigh, above what a node with a log size of 1 MiB keeps: 4 MiB for followers, and files not yet full.
const KEPT: u64 = 8 << 20;

/// A tree that runs nothing, since no node has that label.
fn spec(round: usize) -> String {
    let filler = "x".repeat(60_000);
    let child = |id: String| {
        format!(
            "[[children]]\nid = \"{id}\"\ncommand = [\"true\"]\nplace = {{ require = [\"no=where\"] }}\n\
             env = {{ ROUND = \"{round}\", FILLER = \"{filler}\" }}\n"
        )
    };
    let others: String = (0..9).map(|n| child(format!("c{n}"))).collect();
    format!("name = \"t\"\n{others}{}", child(format!("round-{round}")))
}

fn bytes_below(folder: &FilePath) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).filter(fs::Metadata::is_file).map(|file| file.len()).sum()
}

/// The paths that a node knows by itself.
async fn paths_known_to(client: &Client) -> Vec<String> {
    let call = Call::Read { query: Query::Tree(None), freshness: Freshness::Stale };
    match client.call(call, SOON).await {
        Ok(Reply::Found { found: Found::Tree(rows), .. }) => rows.iter().map(|row| row.path.to_string()).collect(),
        _ => Vec::new(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_voter_that_was_away_while_the_log_was_cut_catches_up_by_a_snapshot_and_a_restart_of_all_keeps_the_state() {
    let flags = ["--log-size", "1"].map(String::from).to_vec();
    let mut cluster = Cluster::with(Options { flags, ..Options::default() }).await;
    let leader = cluster.leader().await;
    let away = ["n1", "n2", "n3"].into_iter().find(|name| *name != leader).expect("three voters");
    cluster.node(away).kill();
    cluster.node(away).wait_for_guard();
    for round in 1..=ROUNDS {
        cluster.apply(&spec(round)).await;
    }
    let log = cluster.node(&leader).data().join("log");
    let written = ROUNDS as u64 * 600_000;
    assert!(written > KEPT);
    wait_until("the leader's log to be cut", SOON, async || bytes_below(&log), |bytes| *bytes < KEPT).await;

    cluster.node(away).start();
    let newest = format!("/t/round-{ROUNDS}");
    let (client, newest) = (cluster.client_of(away), &newest);
    let look = async || paths_known_to(&client).await;
    wait_until("the voter that was away to know the newest tree", SOON, look, |paths| paths.contains(newest)).await;
    let told = fs::read_to_string(cluster.node(away).log()).expect("its log");
    assert!(told.contains("a snapshot of the leader took the place of the state"), "it caught up by the log alone");
    cluster.all_up().await;

    let before = cluster.tree().await;
    cluster.nodes().for_each(NodeProcess::kill);
    cluster.nodes().for_each(|node| node.wait_for_guard());
    cluster.nodes().for_each(NodeProcess::start);
    cluster.all_up().await;
    let paths = |rows: &[pando_protocol::view::TreeRow]| rows.iter().map(|row| row.path.clone()).collect::<Vec<_>>();
    assert_eq!(paths(&cluster.tree().await), paths(&before));
    let changed = cluster.apply(&spec(ROUNDS)).await;
    assert_eq!(changed.differences, [], "the spec is kept to the letter");
}

//! A node or the leader dies: what ran there runs elsewhere, and nothing is forgotten.

use pando_protocol::view::{State, TreeRow};
use pando_tests::cluster::{Cluster, SOON};
use pando_tests::wait::wait_until;

const SLEEPER: &str = r#"
name = "t"
[[children]]
id = "sleeper"
command = ["sleep", "1000"]
"#;

fn runs_elsewhere(rows: &[TreeRow], than: &str) -> bool {
    rows.iter().any(|row| {
        row.path.as_str() == "/t/sleeper"
            && row.state == State::Running
            && row.node.as_ref().is_some_and(|node| node.as_str() != than)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ran_on_a_killed_node_runs_elsewhere_and_nobody_pays() {
    let mut cluster = Cluster::start().await;
    cluster.apply(SLEEPER).await;
    cluster.whole("/t").await;
    let before = cluster.row("/t/sleeper").await;
    let home = before.node.clone().unwrap().to_string();
    cluster.node(&home).kill();
    wait_until("the sleeper elsewhere", SOON, async || cluster.tree().await, |rows| runs_elsewhere(rows, &home)).await;
    let after = cluster.row("/t/sleeper").await;
    assert!(after.incarnation > before.incarnation, "{after:?}");
    assert_eq!(after.restarts, 0, "a node loss is free");
    let history = cluster.history("/t/sleeper").await;
    assert_eq!(history.len(), 1, "{history:#?}");
    assert!(!history[0].charged && history[0].cause.message.contains("obituary"), "{history:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_may_be_killed_again_and_again_and_the_tree_lives_on() {
    let mut cluster = Cluster::start().await;
    cluster.apply(SLEEPER).await;
    cluster.whole("/t").await;
    for _ in 0..3 {
        let leader = cluster.leader().await;
        cluster.node(&leader).kill();
        let other = wait_until("another leader", SOON, async || cluster.leader().await, |now| *now != leader).await;
        assert_ne!(other, leader);
        cluster.whole("/t").await;
        cluster.node(&leader).start();
        cluster.all_up().await;
    }
    assert_eq!(cluster.row("/t/sleeper").await.restarts, 0);
}

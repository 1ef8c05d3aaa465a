//! A node or the leader dies: what ran there runs elsewhere, and nothing is forgotten.

use pando_tests::cluster::{Cluster, SOON, sleepers};
use pando_tests::wait::wait_until;

#[tokio::test(flavor = "multi_thread")]
async fn what_ran_on_a_killed_node_runs_elsewhere_and_nobody_pays() {
    let mut cluster = Cluster::running(&sleepers("name = 't'", &["sleeper"])).await;
    let (before, home) = (cluster.row("/t/sleeper").await, cluster.home("/t/sleeper").await);
    cluster.node(&home).kill();
    let after = cluster.runs_anew("/t/sleeper", &before).await;
    assert_ne!(after.node, before.node);
    assert_eq!(after.restarts, 0, "a node loss is free");
    let history = cluster.history("/t/sleeper").await;
    assert_eq!(history.len(), 1, "{history:#?}");
    assert!(!history[0].charged && history[0].cause.message.contains("obituary"), "{history:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_may_be_killed_again_and_again_and_the_tree_lives_on() {
    let mut cluster = Cluster::running(&sleepers("name = 't'", &["sleeper"])).await;
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

//! Cluster time goes on while leadership moves, so that windows of budgets are what they say.

use std::time::{Duration, Instant};

use pando_protocol::view::{State, TreeRow};
use pando_tests::cluster::{Cluster, SOON, sleepers};
use pando_tests::wait::wait_until;

/// The window of the budget, and how often leadership moves in it.
const WINDOW: Duration = Duration::from_secs(5);
const TRANSFERS: u32 = 3;

#[tokio::test(flavor = "multi_thread")]
async fn crashes_further_apart_than_the_window_do_not_escalate_whoever_led_between_them() {
    let head = format!("name = 't'\nintensity = {{ max_restarts = 1, within = '{}s' }}", WINDOW.as_secs());
    let cluster = Cluster::running(&sleepers(&head, &["a"])).await;
    let crash = async || {
        let before = cluster.row("/t/a").await;
        cluster.done(&["kill", "/t/a"]);
        let over = |row: &TreeRow| {
            row.state == State::Failed || (row.state == State::Running && row.incarnation > before.incarnation)
        };
        wait_until("the child again", SOON, async || cluster.row("/t/a").await, over).await;
    };
    crash().await;
    let crashed = Instant::now();
    let begun = cluster.status().await.cluster_time_ms;
    let asked = Instant::now();
    for transfer in 1..=TRANSFERS {
        // Long stretches without an entry between two leaders: what passed in them counts.
        let due = crashed + (WINDOW + Duration::from_secs(1)) * transfer / TRANSFERS;
        wait_until("the next transfer", SOON, async || Instant::now(), |now| *now >= due).await;
        cluster.done(&["cluster", "transfer"]);
    }
    let passed = asked.elapsed();
    let counted = Duration::from_millis(cluster.status().await.cluster_time_ms - begun);
    // What a commit takes may be lost each time.
    assert!(counted + Duration::from_millis(500) >= passed, "{passed:?} passed, the cluster counted {counted:?}");
    crash().await;
    let rows = cluster.tree().await;
    assert!(rows.iter().all(|row| row.state == State::Running), "{rows:#?}");
    assert_eq!(cluster.row("/t/a").await.restarts, 2);
}

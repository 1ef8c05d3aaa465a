//! What a node says that has lost its majority: never more than it can know.

use std::time::Duration;

use pando_protocol::message::{Call, Found, Freshness, Query, Reply, ViewAge};
use pando_protocol::view::ClusterRow;
use pando_tests::cluster::{Cluster, SOON};
use pando_tests::wait::wait_until;

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_lost_its_majority_names_no_leader_and_counts_the_age_of_its_view_from_then() {
    let mut cluster = Cluster::start().await;
    let leader = cluster.leader().await;
    let one = cluster.client_of(&leader);
    let status = async |freshness| -> Result<(ClusterRow, ViewAge), String> {
        match one.call(Call::Read { query: Query::Cluster, freshness }, SOON).await {
            Ok(Reply::Found { found: Found::Cluster(row), view }) => Ok((row, view)),
            other => Err(format!("{other:?}")),
        }
    };
    let is_fresh = |seen: &Result<(ClusterRow, ViewAge), String>| {
        let fresh = |(row, view): &(ClusterRow, ViewAge)| {
            row.leader.as_ref().is_some_and(|name| name.as_str() == leader) && view.age_ms < 1_000
        };
        seen.as_ref().is_ok_and(fresh)
    };
    _ = wait_until("a fresh view of its leader", SOON, async || status(Freshness::Stale).await, is_fresh).await;
    for other in cluster.others(&leader) {
        cluster.node(&other).kill();
    }
    for freshness in [Freshness::Stale, Freshness::Linearizable] {
        let is_honest = |seen: &Result<(ClusterRow, ViewAge), String>| {
            seen.as_ref().is_ok_and(|(row, view)| {
                let age = Duration::from_millis(view.age_ms);
                !view.confirmed && row.leader.is_none() && view.leader.is_none() && age >= Duration::from_secs(4)
            })
        };
        let what = format!("a view without a leader whose age grows, {freshness:?}");
        _ = wait_until(&what, SOON, async || status(freshness).await, is_honest).await;
    }
    let glance = cluster.cli(&["status", "--stale", "--endpoints", cluster.address(&leader)]);
    let glance = String::from_utf8_lossy(&glance.stdout).into_owned();
    let head = glance.lines().next().unwrap_or_default();
    assert!(head.contains("no leader") && head.contains(&format!("; view of {leader}, ")), "{glance}");
}

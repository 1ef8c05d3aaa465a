//! Case T24: the control plane blinks, and no child on a living node is restarted.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pando_tests::cluster::{Cluster, LEASE, sleeper};
use pando_tests::wait::pass;
use rustix::process::Signal;

use crate::relay::behind_relays;

const CHILDREN: usize = 30;

/// What runs: each process by its number and when it began, which name it for good.
async fn thirty_healthy_children(cluster: &Cluster) -> BTreeMap<u32, u64> {
    let child = |number| sleeper(&format!("c{number}"));
    cluster.bring_up(&format!("name = 't'\n{}", (0..CHILDREN).map(child).collect::<String>())).await;
    let running = cluster.all_children();
    assert_eq!(running.len(), CHILDREN);
    for row in cluster.node_rows().await {
        assert_eq!(row.children as usize, CHILDREN / 3, "spread over all nodes: {row:?}");
    }
    running
}

async fn assert_untouched(cluster: &Cluster, before: &BTreeMap<u32, u64>) {
    assert_eq!(cluster.all_children(), *before, "the same processes, and no other");
    let rows = cluster.tree().await;
    let children = rows.iter().filter(|row| row.incarnation.is_some()).collect::<Vec<_>>();
    assert_eq!(children.len(), CHILDREN);
    let highest = children.iter().filter_map(|row| row.incarnation.map(|incarnation| incarnation.0)).max();
    assert_eq!(highest, Some(CHILDREN as u64), "no further incarnation was ever assigned");
}

#[tokio::test(flavor = "multi_thread")]
async fn t24_a_transfer_of_leadership_and_a_short_pause_of_the_leader_restart_no_child() {
    /// Less than half a lease of 2 s, and longer than the longest election timeout: another node leads meanwhile.
    const PAUSE: Duration = Duration::from_millis(900);
    let mut cluster = Cluster::start().await;
    let before = thirty_healthy_children(&cluster).await;
    let leader = cluster.leader().await;
    let other = &cluster.others(&leader)[0];
    cluster.done(&["cluster", "transfer", other]);
    assert_eq!(cluster.leader().await, *other);
    assert_untouched(&cluster, &before).await;

    let paused = cluster.leader().await;
    cluster.node(&paused).signal(Signal::STOP);
    pass(PAUSE).await;
    cluster.node(&paused).signal(Signal::CONT);
    cluster.all_up().await;
    // Whatever ends by the pause has ended when two leases are over.
    pass(LEASE * 2).await;
    assert_untouched(&cluster, &before).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t24_under_wan_a_delay_of_200_ms_between_peers_restarts_no_child() {
    /// The case has a minute. A session whose renewal does not come through is over after a lease of 20 s, so a lease and a
    /// quarter shows what a minute shows.
    const LONG: Duration = Duration::from_secs(25);
    let (cluster, relays) = behind_relays(vec!["--network".into(), "wan".into()]).await;
    let before = thirty_healthy_children(&cluster).await;
    relays.iter().for_each(|relay| relay.trouble(0, Duration::from_millis(200)));
    pass(LONG).await;
    // The cluster works meanwhile: a change goes through, by the delayed network too.
    let asked = Instant::now();
    cluster.done(&["stop", "/t/c0"]);
    assert!(asked.elapsed() >= Duration::from_millis(400), "the delay is real: {:?}", asked.elapsed());
    cluster.done(&["start", "/t/c0"]);
    relays.iter().for_each(|relay| relay.trouble(0, Duration::ZERO));
    cluster.whole("/t").await;
    let after = cluster.all_children();
    let same = before.iter().filter(|(pid, began)| after.get(pid) == Some(began)).count();
    assert_eq!((same, after.len()), (CHILDREN - 1, CHILDREN), "only what was stopped by hand has begun anew");
    for row in cluster.node_rows().await {
        assert_eq!(row.losses, 0, "{row:?}");
    }
}

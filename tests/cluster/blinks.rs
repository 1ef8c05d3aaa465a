//! Case T24: the control plane blinks, and no child on a living node is restarted.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pando_tests::cluster::{Cluster, Options, SOON, free_address};
use pando_tests::wait::wait_until;
use rustix::process::Signal;

use crate::relay::Relay;

const CHILDREN: usize = 30;

/// What runs: each process by its number and when it began, which name it for good.
async fn thirty_healthy_children(cluster: &Cluster) -> BTreeMap<u32, u64> {
    let child = |number| format!("[[children]]\nid = \"c{number}\"\ncommand = [\"sleep\", \"1000\"]\n");
    let spec = format!("name = \"t\"\n{}", (0..CHILDREN).map(child).collect::<String>());
    cluster.apply(&spec).await;
    cluster.whole("/t").await;
    let running = cluster.all_children();
    assert_eq!(running.len(), CHILDREN);
    for row in cluster.node_rows().await {
        assert_eq!(row.children as usize, CHILDREN / 3, "spread over all nodes: {row:?}");
    }
    running
}

/// For so long, whatever else is true.
async fn pass(time: Duration) {
    let end = Instant::now() + time;
    wait_until("time to pass", time + SOON, async || Instant::now(), |now| *now >= end).await;
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
    let other = ["n1", "n2", "n3"].into_iter().find(|name| *name != leader).expect("another node");
    let moved = cluster.cli(&["cluster", "transfer", other]);
    assert!(moved.status.success(), "{}", String::from_utf8_lossy(&moved.stderr));
    assert_eq!(cluster.leader().await, other);
    assert_untouched(&cluster, &before).await;

    let paused = cluster.leader().await;
    cluster.node(&paused).signal(Signal::STOP);
    pass(PAUSE).await;
    cluster.node(&paused).signal(Signal::CONT);
    cluster.all_up().await;
    // Whatever ends by the pause has ended when two leases are over.
    pass(Duration::from_secs(4)).await;
    assert_untouched(&cluster, &before).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t24_under_wan_a_delay_of_200_ms_between_peers_restarts_no_child() {
    /// The case has a minute. A session whose renewal does not come through is over after a lease of 20 s, so a lease and a
    /// quarter shows what a minute shows.
    const LONG: Duration = Duration::from_secs(25);
    let (mut listens, mut addresses, mut relays) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..3 {
        let node = free_address("127.0.0.1");
        let relay = Relay::to(&node).await;
        addresses.push(relay.address());
        listens.push(node);
        relays.push(relay);
    }
    let flags = vec!["--network".into(), "wan".into()];
    let cluster = Cluster::with(Options { addresses, listens, flags, ..Options::default() }).await;
    let before = thirty_healthy_children(&cluster).await;
    relays.iter().for_each(|relay| relay.trouble(0, Duration::from_millis(200)));
    pass(LONG).await;
    // The cluster works meanwhile: a change goes through, by the delayed network too.
    let asked = Instant::now();
    let changed = cluster.cli(&["stop", "/t/c0"]);
    assert!(changed.status.success(), "{}", String::from_utf8_lossy(&changed.stderr));
    assert!(asked.elapsed() >= Duration::from_millis(400), "the delay is real: {:?}", asked.elapsed());
    assert!(cluster.cli(&["start", "/t/c0"]).status.success());
    relays.iter().for_each(|relay| relay.trouble(0, Duration::ZERO));
    cluster.whole("/t").await;
    let after = cluster.all_children();
    let same = before.iter().filter(|(pid, began)| after.get(pid) == Some(began)).count();
    assert_eq!((same, after.len()), (CHILDREN - 1, CHILDREN), "only what was stopped by hand has begun anew");
    for row in cluster.node_rows().await {
        assert_eq!(row.losses, 0, "{row:?}");
    }
}

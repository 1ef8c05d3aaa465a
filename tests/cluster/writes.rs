//! A write on any node reaches the leader, and applies once: also when its reply is lost and the leader killed.

use std::collections::BTreeMap;

use pando_protocol::ids::ClientId;
use pando_protocol::message::{Call, Change, Reply, Write};
use pando_tests::cluster::{Cluster, SOON, path, sleepers};
use pando_tests::wait::wait_until;

use crate::relay::Relay;

fn tree() -> String {
    sleepers("name = 't'", &["a"])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_to_any_node_reaches_the_leader() {
    let cluster = Cluster::running(&tree()).await;
    for node in ["n1", "n2", "n3"] {
        let client = cluster.client_of(node);
        for change in [Change::Stop(path("/t/a")), Change::Start(path("/t/a"))] {
            let reply = client.change(change, SOON).await;
            assert!(
                matches!(reply, Ok(Reply::Changed(ref changed)) if changed.differences.len() == 1),
                "{node}: {reply:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_applies_once_when_the_reply_is_lost_and_the_leader_killed_before_it() {
    let mut cluster = Cluster::running(&tree()).await;
    let leader = cluster.leader().await;
    // The client speaks to the leader through a relay that lets the request through and swallows every reply.
    let relay = Relay::to(cluster.address(&leader)).await;
    let through_relay = cluster.client_at(&relay.address());
    let nodes = Call::Read {
        query: pando_protocol::message::Query::Nodes,
        freshness: pando_protocol::message::Freshness::Linearizable,
    };
    through_relay.call(nodes, SOON).await.expect("the relay lets all through at first");
    relay.swallow_replies(true);
    let write =
        Write { client: ClientId(0x5eed), sequence: 1, lowest_unanswered: 1, change: Change::Restart(path("/t/a")) };
    let restarts_asked = async |cluster: &Cluster| {
        let events = cluster.events().await;
        events.iter().filter(|event| event.kind == "member_restarted").count()
    };
    let lost = through_relay.call(Call::Write(write.clone()), std::time::Duration::from_secs(1)).await;
    assert!(lost.is_err(), "{lost:?}");
    wait_until("the write to be applied", SOON, async || restarts_asked(&cluster).await, |count| *count == 1).await;
    cluster.node(&leader).kill();
    let other = wait_until("another leader", SOON, async || cluster.leader().await, |now| *now != leader).await;
    let again = cluster.client_of(&other).call(Call::Write(write), SOON).await;
    assert!(matches!(again, Ok(Reply::Changed(_))), "{again:?}");
    assert_eq!(restarts_asked(&cluster).await, 1, "applied once");
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_go_on_while_leaders_are_killed_and_each_applies_once() {
    let mut cluster = Cluster::running(&tree()).await;
    let mut asked = 0;
    for _ in 0..3 {
        let leader = cluster.leader().await;
        let client = cluster.client_of(&cluster.others(&leader)[0]);
        let writes = tokio::spawn(async move {
            let mut done = 0;
            for _ in 0..10 {
                let reply = client.change(Change::Restart(path("/t/a")), SOON).await;
                assert!(reply.is_ok(), "{reply:?}");
                done += 1;
            }
            done
        });
        cluster.node(&leader).kill();
        asked += writes.await.expect("the writer");
        cluster.node(&leader).start();
        cluster.all_up().await;
    }
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for event in cluster.events().await {
        *kinds.entry(event.kind).or_default() += 1;
    }
    assert_eq!(kinds.get("member_restarted"), Some(&asked), "{kinds:?}");
}

//! The majority goes away for longer than leases last, and comes back.

use std::time::Instant;

use pando_protocol::view::EventRow;
use pando_tests::cluster::{Cluster, LEASE, SOON, marked_processes, sleeper, sleepers};
use pando_tests::wait::{pass, wait_until};

const TREE: &str = "name = 't'";

fn count(events: &[EventRow], kind: &str, node: &str) -> usize {
    let is_meant = |event: &&EventRow| event.kind == kind && event.text.starts_with(&format!("{node} "));
    events.iter().filter(is_meant).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_without_a_majority_for_several_leases_loses_its_session_once_and_has_its_children_back_soon()
{
    let mut cluster = Cluster::running(&sleepers(TREE, &["a", "b"])).await;
    let leader = cluster.leader().await;
    let others = cluster.others(&leader);
    let before = cluster.events().await;
    for other in &others {
        cluster.node(other).kill();
    }
    let mark = cluster.node(&leader).mark().expect("it was started");
    wait_until("its children to be fenced", SOON, async || marked_processes(&mark), Vec::is_empty).await;
    // Several requests for a session, each with a nonce of its own, are asked meanwhile: that is what is waited out here.
    pass(LEASE * 3).await;

    let back = Instant::now();
    cluster.node(&others[0]).start();
    cluster.all_up().await;
    cluster.whole("/t").await;
    let whole = back.elapsed();
    println!("whole {whole:?} after the majority came back");
    // Whoever would hold a session that nobody began is found out after a lease and a margin.
    pass(LEASE * 2).await;
    let events = cluster.events().await;
    let new = &events[before.len()..];
    assert!(count(new, "node_lost", &leader) <= 1, "{new:#?}");
    assert!(count(new, "node_up", &leader) <= 2, "{new:#?}");
    let rows = cluster.node_rows().await;
    let row = rows.iter().find(|row| row.name.as_str() == leader).expect("it is known");
    assert!(row.losses <= 1, "{row:?}");
    assert!(cluster.settled("/t").await.whole);
}

/// T25: what is kept goes on where the survivor runs it; all else stops with the lease.
#[tokio::test(flavor = "multi_thread")]
async fn t25_without_a_majority_only_what_is_kept_runs_on_and_it_is_the_same_incarnation_when_the_majority_is_back() {
    let kept = format!("{}on_disconnect = 'keep'\n", sleeper("kept"));
    let mut cluster = Cluster::running(&(sleepers(TREE, &["a", "b"]) + &kept)).await;
    let (first, home) = (cluster.row("/t/kept").await, cluster.home("/t/kept").await);
    let others = cluster.others(&home);
    for other in &others {
        cluster.node(other).kill();
    }
    let mark = cluster.node(&home).mark().expect("it was started");
    pass(LEASE * 3).await;
    let left = marked_processes(&mark);
    assert_eq!(left, Vec::from_iter(first.pid), "it alone is left");

    for other in &others {
        cluster.node(other).start();
    }
    cluster.all_up().await;
    cluster.whole("/t").await;
    let after = cluster.row("/t/kept").await;
    assert_eq!((after.incarnation, after.pid, after.restarts), (first.incarnation, first.pid, 0));

    // And where its node process dies, its guard kills it like the rest.
    cluster.node(&home).kill();
    cluster.runs_anew("/t/kept", &first).await;
}

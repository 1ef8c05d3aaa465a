//! The kill loop: nodes, guards, reapers and the leader die in turn, and no child ever runs twice at once.

use std::path::PathBuf;
use std::time::Duration;

use pando_tests::beats::{lives, overlap};
use pando_tests::cluster::{Cluster, SOON, marked_processes, send};
use pando_tests::wait::wait_until;
use rustix::process::Signal;

/// How often something is killed; each kind comes in turn.
const KILLS: usize = 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Node,
    Guard,
    NodeAndGuard,
    GuardAndReapers,
    Leader,
}

const VICTIMS: [Victim; 5] =
    [Victim::Node, Victim::Guard, Victim::NodeAndGuard, Victim::GuardAndReapers, Victim::Leader];

fn spec(cluster: &Cluster) -> String {
    let witness = env!("CARGO_BIN_EXE_witness");
    let child = |name: &str| {
        let beats = beats(cluster, name).display().to_string();
        format!("[[children]]\nid = \"{name}\"\ncommand = [\"{witness}\", \"{beats}\", \"--helper\"]\n")
    };
    format!("name = \"t\"\n{}{}{}", child("a"), child("b"), child("c"))
}

fn beats(cluster: &Cluster, child: &str) -> PathBuf {
    cluster.folder().join(format!("beats-{child}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_kills_leave_no_overlap_no_orphan_and_exact_counts() {
    let mut cluster = Cluster::start().await;
    cluster.apply(&spec(&cluster)).await;
    cluster.whole("/t").await;
    let mut leaders = 0;
    for round in 0..KILLS {
        let victim = VICTIMS[round % VICTIMS.len()];
        let leader = cluster.leader().await;
        let busiest = cluster.node_rows().await.into_iter().max_by_key(|row| row.children).expect("a node");
        let name = if victim == Victim::Leader { leader.clone() } else { busiest.name.to_string() };
        leaders += usize::from(name == leader);
        kill(&mut cluster, victim, &name);
        cluster.node(&name).start();
        cluster.all_up().await;
        cluster.whole("/t").await;
        println!("kill {}: {victim:?} on {name}: whole again", round + 1);
    }
    println!("{KILLS} kills, {leaders} of them of the leader");
    for child in ["a", "b", "c"] {
        let lives = lives(&beats(&cluster, child));
        assert_eq!(overlap(&lives), None, "/t/{child}: {lives:#?}");
        let row = cluster.row(&format!("/t/{child}")).await;
        assert_eq!(row.restarts, 0, "nobody pays for any of these kills: {row:?}");
        let history = cluster.history(&format!("/t/{child}")).await;
        assert!(history.iter().all(|entry| !entry.charged), "{history:#?}");
        // Every life but the last one has its ending in the books; a run that never came to its first beat may too.
        let endings: u64 = history.iter().map(|entry| entry.count).sum();
        assert!(endings + 1 >= lives.len() as u64, "{endings} endings, {} lives", lives.len());
    }
    let marks: Vec<String> = cluster.nodes().filter_map(|node| node.mark()).collect();
    let alive = marks.iter().map(|mark| marked_processes(mark).len()).sum::<usize>();
    assert_eq!(alive, 6, "three children with one helper each, and no orphan");
}

/// Kills, and waits until the node process is gone too.
fn kill(cluster: &mut Cluster, victim: Victim, name: &str) {
    let node = cluster.node(name);
    match victim {
        Victim::Node | Victim::Leader => node.kill(),
        Victim::Guard => {
            send(node.guard(), Signal::KILL);
            let status = node.ended(SOON);
            assert_eq!(status.code(), Some(70), "a node without a guard ends, and says so: {status}");
        }
        Victim::NodeAndGuard => {
            let guard = node.guard();
            node.signal(Signal::STOP); // So that it does nothing between the two.
            send(guard, Signal::KILL);
            node.kill();
        }
        Victim::GuardAndReapers => {
            let (guard, reapers) = (node.guard(), node.reapers());
            send(guard, Signal::KILL);
            reapers.into_iter().for_each(|reaper| send(reaper, Signal::KILL));
            node.ended(SOON);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_guard_died_tells_the_cluster_that_nothing_is_left_before_it_ends() {
    let mut cluster = Cluster::start().await;
    cluster.apply(&spec(&cluster)).await;
    cluster.whole("/t").await;
    let before = cluster.row("/t/a").await;
    let home = before.node.clone().expect("it runs").to_string();
    kill(&mut cluster, Victim::Guard, &home);
    let moved = |row: &pando_protocol::view::TreeRow| row.pid.is_some() && row.incarnation > before.incarnation;
    wait_until("the child elsewhere", SOON, async || cluster.row("/t/a").await, moved).await;
    let history = cluster.history("/t/a").await;
    let last = history.last().expect("an ending");
    assert!(last.cause.message.contains("its guard was lost (obituary)"), "{last:?}");
    assert_eq!(overlap(&lives(&beats(&cluster, "a"))), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_stopped_for_longer_than_its_lease_finds_its_children_fenced_and_replaced() {
    let mut cluster = Cluster::start().await;
    cluster.apply(&spec(&cluster)).await;
    cluster.whole("/t").await;
    let before = cluster.row("/t/a").await;
    let home = before.node.clone().expect("it runs").to_string();
    cluster.node(&home).signal(Signal::STOP);
    let moved = |row: &pando_protocol::view::TreeRow| {
        row.pid.is_some() && row.node.as_ref().is_some_and(|node| node.as_str() != home)
    };
    wait_until("the child elsewhere", SOON, async || cluster.row("/t/a").await, moved).await;
    cluster.node(&home).signal(Signal::CONT);
    cluster.all_up().await;
    cluster.whole("/t").await;
    // Let every copy that there might be say so.
    let last = async || lives(&beats(&cluster, "a")).into_values().map(|life| life.last).max().unwrap_or(0);
    let now = last().await;
    wait_until("a second of beats", SOON, last, |seen| *seen > now + Duration::from_secs(1).as_millis() as u64).await;
    for child in ["a", "b", "c"] {
        let lives = lives(&beats(&cluster, child));
        assert_eq!(overlap(&lives), None, "/t/{child}: {lives:#?}");
    }
}

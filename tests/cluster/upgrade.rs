//! The page "Upgrading Pando" of the README, step by step: the nodes of a cluster are replaced one by one by another build.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pando_protocol::cause::CauseClass;
use pando_protocol::message::Change;
use pando_protocol::view::{NodeState, TreeRow};
use pando_tests::cluster::{Cluster, SOON, path};
use pando_tests::programs;
use pando_tests::wait::wait_until;

/// One group that stays together, and one that spans nodes.
const TREES: [&str; 2] = [
    r#"
name = "together"
strategy = "one_for_all"
[[children]]
id = "a"
command = ["sleep", "1000"]
[[children]]
id = "b"
command = ["sleep", "1000"]
[[children]]
id = "c"
command = ["sleep", "1000"]
"#,
    r#"
name = "across"
strategy = "one_for_all"
colocate = false
[[children]]
id = "a"
command = ["sleep", "1000"]
[[children]]
id = "b"
command = ["sleep", "1000"]
[[children]]
id = "c"
command = ["sleep", "1000"]
"#,
];
const CHILDREN: [&str; 6] = ["/together/a", "/together/b", "/together/c", "/across/a", "/across/b", "/across/c"];
/// Longest time in which no write may come through. Measured: 0.3 s on a loaded machine, since leadership is handed over.
const WRITABLE: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_replaced_one_by_one_by_another_build_as_the_readme_says() {
    let mut cluster = Cluster::start().await;
    // The one that spans nodes first, while all of them are empty.
    for tree in TREES.into_iter().rev() {
        cluster.apply(tree).await;
    }
    for tree in ["/together", "/across"] {
        cluster.whole(tree).await;
    }
    let mut across = Vec::new();
    for child in &CHILDREN[3..] {
        across.push(home(&cluster, child).await);
    }
    across.sort();
    assert_eq!(across, ["n1", "n2", "n3"], "the group spans all nodes");
    let program = another_build(&cluster);
    let done = Arc::new(AtomicBool::new(false));
    let writing = write_all_the_time(&cluster, done.clone());

    let last = home(&cluster, "/together/a").await;
    let mut order: Vec<String> =
        ["n1", "n2", "n3"].into_iter().map(str::to_owned).filter(|name| *name != last).collect();
    order.push(last);
    let begun = endings(&cluster).await;
    for node in &order {
        let before = endings(&cluster).await;
        replace(&mut cluster, node, program.clone()).await;
        let after = endings(&cluster).await;
        for child in CHILDREN {
            assert!(after[child] - before[child] <= 1, "{child} ended more than once while {node} was replaced");
        }
    }
    let ended = endings(&cluster).await;
    for child in CHILDREN {
        let times = ended[child] - begun[child];
        println!("{child}: restarted {times} times");
        assert!(times <= if child.starts_with("/together") { 1 } else { 3 }, "{child} was restarted {times} times");
    }
    nobody_paid(&cluster).await;
    done.store(true, Ordering::Relaxed);
    let (writes, gap) = writing.await.unwrap();
    println!("{writes} writes, at most {gap:?} from one to the next");
    assert!(writes > 10 && gap < WRITABLE, "{writes} writes, {gap:?} from one to the next");
    for node in order {
        let pid = cluster.node(&node).pid();
        assert_eq!(fs::read_link(format!("/proc/{pid}/exe")).unwrap(), program, "{node} runs the other build");
    }
}

/// As the page says it: transfer, SIGTERM, new program, start, wait until it is up and caught up and the trees are whole.
async fn replace(cluster: &mut Cluster, node: &str, program: PathBuf) {
    if cluster.leader().await == node {
        let moved = cluster.cli(&["cluster", "transfer"]);
        assert!(moved.status.success(), "{}", String::from_utf8_lossy(&moved.stderr));
    }
    cluster.node(node).terminate();
    let status = cluster.node(node).ended(SOON * 2);
    assert!(status.success(), "{node}: {status}");
    cluster.node(node).set_program(program);
    cluster.node(node).start();
    let is_up = |rows: &Vec<pando_protocol::view::NodeRow>| {
        rows.iter().any(|row| row.name.as_str() == node && row.state == NodeState::Up)
    };
    wait_until("the new build to be up", SOON, async || cluster.node_rows().await, is_up).await;
    let caught_up = |voters: &Vec<pando_protocol::view::VoterRow>| {
        voters.iter().any(|voter| voter.name.as_str() == node && voter.lag == Some(0))
    };
    wait_until("the new build to have caught up", SOON, async || cluster.status().await.voters, caught_up).await;
    for tree in ["/together", "/across"] {
        let whole = cluster.cli(&["wait", tree]);
        assert!(whole.status.success(), "{}", String::from_utf8_lossy(&whole.stderr));
    }
}

/// The same program at another path: what is tried is that one process takes over from another, not what they do differently.
fn another_build(cluster: &Cluster) -> PathBuf {
    let folder = cluster.folder().canonicalize().unwrap().join("newer");
    fs::create_dir(&folder).unwrap();
    let program = folder.join("pando-node");
    fs::copy(programs::folder().join("pando-node"), &program).unwrap();
    program
}

async fn home(cluster: &Cluster, child: &str) -> String {
    cluster.row(child).await.node.map(|node| node.to_string()).unwrap_or_default()
}

/// How many runs of each child have ended.
async fn endings(cluster: &Cluster) -> BTreeMap<&'static str, u64> {
    let mut endings = BTreeMap::new();
    for child in CHILDREN {
        endings.insert(child, cluster.history(child).await.iter().map(|entry| entry.count).sum());
    }
    endings
}

async fn nobody_paid(cluster: &Cluster) {
    for child in CHILDREN {
        for entry in cluster.history(child).await {
            assert!(!entry.charged && entry.cause.class == CauseClass::Stopped, "{child}: {entry:#?}");
        }
    }
    let rows: Vec<TreeRow> = cluster.tree().await;
    assert!(rows.iter().all(|row| row.restarts == 0), "{rows:#?}");
    let lost: u64 = cluster.node_rows().await.iter().map(|row| row.losses).sum();
    assert_eq!(lost, 0, "every node left by its own word");
}

/// Writes again and again; gives how often that worked, and the longest time from one success to the next.
fn write_all_the_time(cluster: &Cluster, done: Arc<AtomicBool>) -> tokio::task::JoinHandle<(u32, Duration)> {
    let client = cluster.client_of_all();
    tokio::spawn(async move {
        let (mut writes, mut gap, mut last) = (0, Duration::ZERO, Instant::now());
        while !done.load(Ordering::Relaxed) {
            if client.change(Change::Start(path("/together")), SOON).await.is_ok() {
                writes += 1;
                gap = gap.max(last.elapsed());
                last = Instant::now();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        (writes, gap.max(last.elapsed()))
    })
}

//! The page "Upgrading Pando" of the README, step by step: the nodes of a cluster are replaced one by one by another build.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pando_protocol::cause::CauseClass;
use pando_protocol::client::ClientError;
use pando_protocol::message::Change;
use pando_protocol::rejection::Rejection;
use pando_protocol::spec_file::{self, Format};
use pando_protocol::view::{NodeRow, NodeState, TreeRow, VoterRow};
use pando_tests::cluster::{Cluster, Options, SOON, path, sleepers};
use pando_tests::programs;
use pando_tests::wait::wait_until;

/// One group that stays together, and one that spans nodes.
const TOGETHER: &str = "name = 'together'\nstrategy = 'one_for_all'";
const ACROSS: &str = "name = 'across'\nstrategy = 'one_for_all'\ncolocate = false";
const CHILDREN: [&str; 6] = ["/together/a", "/together/b", "/together/c", "/across/a", "/across/b", "/across/c"];
/// Longest time in which no write may come through. Measured: 0.3 s on a loaded machine, since leadership is handed over.
const WRITABLE: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_replaced_one_by_one_by_another_build_as_the_readme_says() {
    let older = PathBuf::from(env!("CARGO_BIN_EXE_older-node"));
    let mut cluster = Cluster::with(Options { program: Some(older), ..Options::default() }).await;
    // The one that spans nodes first, while all of them are empty.
    for tree in [ACROSS, TOGETHER] {
        cluster.bring_up(&sleepers(tree, &["a", "b", "c"])).await;
    }
    let mut across = Vec::new();
    for child in &CHILDREN[3..] {
        across.push(cluster.home(child).await);
    }
    across.sort();
    assert_eq!(across, ["n1", "n2", "n3"], "the group spans all nodes");
    let program = programs::folder().join("pando-node").canonicalize().unwrap();
    assert_eq!(newer_rules_hold(&cluster).await, Err(1), "the older build knows no mailboxes");
    let done = Arc::new(AtomicBool::new(false));
    let writing = write_all_the_time(&cluster, done.clone());

    let last = cluster.home("/together/a").await;
    let mut order = cluster.others(&last);
    order.push(last);
    let begun = endings(&cluster).await;
    for node in &order {
        assert_eq!(newer_rules_hold(&cluster).await, Err(1), "before {node}: one voter of the older build is enough");
        let before = endings(&cluster).await;
        replace(&mut cluster, node, program.clone()).await;
        let after = endings(&cluster).await;
        for child in CHILDREN {
            assert!(after[child] - before[child] <= 1, "{child} ended more than once while {node} was replaced");
        }
    }
    let raised = async || newer_rules_hold(&cluster).await;
    _ = wait_until("the rules to be raised", SOON, raised, |rules| *rules == Ok(())).await;
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
        cluster.done(&["cluster", "transfer"]);
    }
    cluster.node(node).terminate();
    let status = cluster.node(node).ended(SOON * 2);
    assert!(status.success(), "{node}: {status}");
    cluster.node(node).set_program(program);
    cluster.node(node).start();
    let is_up = |rows: &Vec<NodeRow>| rows.iter().any(|row| row.name.as_str() == node && row.state == NodeState::Up);
    wait_until("the new build to be up", SOON, async || cluster.node_rows().await, is_up).await;
    let caught_up =
        |voters: &Vec<VoterRow>| voters.iter().any(|voter| voter.name.as_str() == node && voter.lag == Some(0));
    wait_until("the new build to have caught up", SOON, async || cluster.status().await.voters, caught_up).await;
    for tree in ["/together", "/across"] {
        cluster.done(&["wait", tree]);
    }
}

/// Whether the cluster takes what only the newer rules have; if not, the version that it says holds.
async fn newer_rules_hold(cluster: &Cluster) -> Result<(), u32> {
    const NEWER: &str = r#"
name = "newer"
[[children]]
id = "pool"
count = 2
command = ["sleep", "1000"]
"#;
    let spec = spec_file::parse("newer.toml", Format::Toml, NEWER).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    match cluster.change(Change::Apply(spec)).await {
        Ok(_) => Ok(()),
        Err(ClientError::Refused(Rejection::RulesTooOld { needed: 2, current, .. })) => Err(current),
        Err(other) => panic!("refused for another reason: {other}"),
    }
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

//! The kill loop: nodes, guards, reapers, the leader and children die in turn, while nodes are drained and groups restart; no child
//! ever runs twice at once, no group has two generations at once, and only what crashed is paid for.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use pando_protocol::cause::CauseClass;
use pando_protocol::view::{NodeRow, TreeRow};
use pando_tests::beats::{lives, out_of_turn, outlived_a_generation, overlap};
use pando_tests::cluster::{Cluster, Options, SOON, marked_processes, send};
use pando_tests::wait::wait_until;
use rustix::process::Signal;

/// How often something is killed; each kind comes in turn.
const KILLS: usize = 50;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Node,
    Guard,
    NodeAndGuard,
    GuardAndReapers,
    Leader,
    Child,
}

const VICTIMS: [Victim; 6] =
    [Victim::Node, Victim::Guard, Victim::NodeAndGuard, Victim::GuardAndReapers, Victim::Leader, Victim::Child];

/// A group whose members prefer three nodes, and one that stays together.
const GROUPS: [(&str, &str); 2] = [("all", "one_for_all"), ("rest", "rest_for_one")];
const MEMBERS: [&str; 3] = ["a", "b", "c"];
/// The children that are killed by themselves, in turn.
const CRASHING: [&str; 3] = ["/t/a", "/all/b", "/rest/b"];

fn child(cluster: &Cluster, path: &str, more: &str) -> String {
    let (witness, beats) = (env!("CARGO_BIN_EXE_witness"), beats(cluster, path).display().to_string());
    let id = path.rsplit('/').next().unwrap_or_default();
    format!("[[children]]\nid = \"{id}\"\ncommand = [\"{witness}\", \"{beats}\"{more}\n")
}

fn spec(cluster: &Cluster) -> String {
    let children = MEMBERS.map(|id| child(cluster, &format!("/t/{id}"), ", \"--helper\"]"));
    format!("name = \"t\"\n{}", children.concat())
}

fn group(cluster: &Cluster, tree: &str, strategy: &str) -> String {
    let member = |(id, node)| {
        let place = format!("]\nplace = {{ prefer = [\"host={node}\"] }}");
        child(cluster, &format!("/{tree}/{id}"), if strategy == "one_for_all" { &place } else { "]" })
    };
    let members = [("a", "n1"), ("b", "n2"), ("c", "n3")].map(member);
    let colocate = strategy != "one_for_all";
    format!("name = \"{tree}\"\nstrategy = \"{strategy}\"\ncolocate = {colocate}\n{}", members.concat())
}

fn beats(cluster: &Cluster, path: &str) -> PathBuf {
    cluster.folder().join(format!("beats{}", path.replace('/', "-")))
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_kills_leave_no_overlap_no_orphan_and_exact_counts() {
    let own_flags = |name: &str| vec!["--label".into(), format!("host={name}")];
    let mut cluster = Cluster::with(Options { own_flags, ..Options::default() }).await;
    cluster.apply(&spec(&cluster)).await;
    for (tree, strategy) in GROUPS {
        cluster.apply(&group(&cluster, tree, strategy)).await;
    }
    whole(&cluster).await;
    let (mut leaders, mut drains, mut crashes, mut killed) = (0, 0, BTreeMap::new(), BTreeMap::new());
    for round in 0..KILLS {
        let victim = VICTIMS[round % VICTIMS.len()];
        let leader = cluster.leader().await;
        let busiest = cluster.node_rows().await.into_iter().max_by_key(|row| row.children).expect("a node");
        let name = if victim == Victim::Leader { leader.clone() } else { busiest.name.to_string() };
        if victim == Victim::Child {
            let path = CRASHING[round / VICTIMS.len() % CRASHING.len()];
            crash(&cluster, path).await;
            *crashes.entry(path).or_insert(0) += 1;
            whole(&cluster).await;
            println!("kill {}: {path}: whole again", round + 1);
            continue;
        }
        // About half of the kills hit a cluster in which a node, the victim or another one, is just being emptied.
        let drained = (round % 4 < 2).then(|| ["n1", "n2", "n3"][round % 3]);
        if let Some(drained) = drained {
            node_verb(&cluster, &["drain", drained, "--no-wait"]);
            drains += 1;
        }
        leaders += usize::from(name == leader);
        // A node that only lost its guard sweeps and may still end its session by its word: then it is not lost.
        let is_loss = !matches!(victim, Victim::Guard | Victim::GuardAndReapers);
        let (all, losses) = killed.entry(name.clone()).or_insert((0u64, 0u64));
        (*all, *losses) = (*all + 1, *losses + u64::from(is_loss));
        let before = row_of(&cluster, &name).await.and_then(|row| row.session);
        kill(&mut cluster, victim, &name);
        cluster.node(&name).start();
        // Until the cluster knows of the death, the former session looks like one of the node that was just started.
        let row = async || row_of(&cluster, &name).await;
        let again = |row: &Option<NodeRow>| row.as_ref().is_some_and(|row| row.session > before);
        wait_until("a session of its own", SOON, row, again).await;
        cluster.all_up().await;
        if let Some(drained) = drained {
            node_verb(&cluster, &["undrain", drained]);
        }
        whole(&cluster).await;
        println!("kill {}: {victim:?} on {name}, drained {drained:?}: whole again", round + 1);
    }
    println!("{KILLS} kills, {leaders} of them of the leader, {drains} drains");
    let (mut highest, mut all_endings) = (0, 0);
    for tree in ["t", "all", "rest"] {
        for id in MEMBERS {
            let path = format!("/{tree}/{id}");
            let lives = lives(&beats(&cluster, &path));
            assert_eq!(overlap(&lives), None, "{path}: {lives:#?}");
            let expected = crashes.get(path.as_str()).copied().unwrap_or(0);
            let row = cluster.row(&path).await;
            assert_eq!(row.restarts, expected, "it pays for its own crashes and for nothing else: {row:?}");
            let history = cluster.history(&path).await;
            let charged: u64 = history.iter().filter(|entry| entry.charged).map(|entry| entry.count).sum();
            assert_eq!(charged, expected, "{history:#?}");
            let of_class =
                |class| history.iter().filter(|row| row.cause.class == class).map(|row| row.count).sum::<u64>();
            let losses: u64 = cluster.explain(&path).await.node_losses.iter().map(|(_, count)| count).sum();
            assert_eq!(losses, of_class(CauseClass::NodeLost), "{path}: {history:#?}");
            highest = highest.max(row.incarnation.expect("it runs").0);
            all_endings += history.iter().map(|entry| entry.count).sum::<u64>();
        }
    }
    // Each incarnation was assigned once and ended once, but for the nine that run.
    assert_eq!(all_endings + 9, highest, "endings and runs are all the incarnations that were given");
    for (tree, strategy) in GROUPS {
        let lives = MEMBERS.map(|id| lives(&beats(&cluster, &format!("/{tree}/{id}"))));
        for (earlier, later) in [(0, 1), (0, 2), (1, 2)] {
            assert_eq!(out_of_turn(&lives[earlier], &lives[later]), None, "/{tree}: {earlier} and {later}");
            if strategy == "one_for_all" {
                assert_eq!(outlived_a_generation(&lives[earlier], &lives[later]), None, "/{tree}");
                assert_eq!(outlived_a_generation(&lives[later], &lives[earlier]), None, "/{tree}");
            }
        }
    }
    // Each loss is told once; each kill of a node process was one, and beyond those only silence was.
    let events = cluster.events().await;
    for row in cluster.node_rows().await {
        let told = events.iter().filter(|event| event.kind == "node_lost" && event.node.as_ref() == Some(&row.name));
        let told: Vec<&str> = told.map(|event| event.text.as_str()).collect();
        let silent = told.iter().filter(|text| text.contains("silent beyond its lease")).count() as u64;
        let (all, losses) = killed.get(row.name.as_str()).copied().unwrap_or_default();
        assert_eq!(told.len() as u64, row.losses, "{}: {told:#?}", row.name);
        let expected = losses..=all + silent;
        assert!(expected.contains(&row.losses), "{}: expected {expected:?} losses: {told:#?}", row.name);
    }
    let marks: Vec<String> = cluster.nodes().filter_map(|node| node.mark()).collect();
    let alive = marks.iter().map(|mark| marked_processes(mark).len()).sum::<usize>();
    assert_eq!(alive, 12, "nine children, three of them with a helper, and no orphan");
}

/// Waits until all is ready, and known as it is: what a killed node ran counts as running until its loss is in the log.
async fn whole(cluster: &Cluster) {
    let without_process = async || {
        for tree in ["/t", "/all", "/rest"] {
            cluster.whole(tree).await;
        }
        let (rows, running) = (cluster.tree().await, cluster.all_children());
        let children = rows.into_iter().filter(|row| row.incarnation.is_some());
        let pids = children.map(|row| row.pid).collect::<Vec<_>>();
        let known = pids.iter().filter(|pid| pid.is_some_and(|pid| running.contains_key(&pid))).count();
        pids.len().max(9) - known
    };
    wait_until("a process of each child", SOON, without_process, |count| *count == 0).await;
}

fn node_verb(cluster: &Cluster, words: &[&str]) {
    let done = cluster.cli(&[&["node"], words].concat());
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Kills the process of a child, and waits until that is known.
async fn crash(cluster: &Cluster, path: &str) {
    let before = cluster.row(path).await;
    send(before.pid.expect("it runs"), Signal::KILL);
    let again = |row: &TreeRow| row.pid.is_some() && row.incarnation > before.incarnation;
    let after = wait_until(&format!("{path} again"), SOON, async || cluster.row(path).await, again).await;
    let history = cluster.history(path).await;
    let last = &history[history.len().saturating_sub(3)..];
    assert_eq!(after.restarts, before.restarts + 1, "a crash is paid for: {before:#?}, {after:#?}, {last:#?}");
}

async fn row_of(cluster: &Cluster, name: &str) -> Option<NodeRow> {
    cluster.node_rows().await.into_iter().find(|row| row.name.as_str() == name)
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
        Victim::Child => unreachable!("a child is no node"),
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
    let moved = |row: &TreeRow| row.pid.is_some() && row.incarnation > before.incarnation;
    wait_until("the child elsewhere", SOON, async || cluster.row("/t/a").await, moved).await;
    let history = cluster.history("/t/a").await;
    let last = history.last().expect("an ending");
    assert!(last.cause.message.contains("its guard was lost (obituary)"), "{last:?}");
    assert_eq!(overlap(&lives(&beats(&cluster, "/t/a"))), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_stopped_for_longer_than_its_lease_finds_its_children_fenced_and_replaced() {
    let mut cluster = Cluster::start().await;
    cluster.apply(&spec(&cluster)).await;
    cluster.whole("/t").await;
    let before = cluster.row("/t/a").await;
    let home = before.node.clone().expect("it runs").to_string();
    cluster.node(&home).signal(Signal::STOP);
    let moved = |row: &TreeRow| row.pid.is_some() && row.node.as_ref().is_some_and(|node| node.as_str() != home);
    wait_until("the child elsewhere", SOON, async || cluster.row("/t/a").await, moved).await;
    cluster.node(&home).signal(Signal::CONT);
    cluster.all_up().await;
    cluster.whole("/t").await;
    // Let every copy that there might be say so.
    let last = async || lives(&beats(&cluster, "/t/a")).into_values().map(|life| life.last).max().unwrap_or(0);
    let now = last().await;
    wait_until("a second of beats", SOON, last, |seen| *seen > now + Duration::from_secs(1).as_millis() as u64).await;
    for child in MEMBERS {
        let lives = lives(&beats(&cluster, &format!("/t/{child}")));
        assert_eq!(overlap(&lives), None, "/t/{child}: {lives:#?}");
    }
}

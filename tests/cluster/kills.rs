//! The kill loop: nodes, guards, reapers, the leader and children die in turn, while nodes are drained, voters come and go, and
//! groups restart; no child ever runs twice at once, no group has two generations at once, and only what crashed is paid for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use pando_protocol::cause::CauseClass;
use pando_protocol::ids::SessionId;
use pando_protocol::view::{NodeRow, TreeRow};
use pando_tests::beats::{lives, out_of_turn, outlived_a_generation, overlap};
use pando_tests::cluster::{Cluster, Options, SOON, marked_processes, send};
use pando_tests::wait::wait_until;
use rustix::process::Signal;

use crate::members::done;
use crate::rotation::Rotation;

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

/// None to six of these pass between asking for a change of members and a kill; a change takes some 30 ms.
const STAGE: Duration = Duration::from_millis(10);

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

/// A group whose members prefer three nodes, and one that stays together.
const GROUPS: [(&str, &str); 2] = [("all", "one_for_all"), ("rest", "rest_for_one")];
const MEMBERS: [&str; 3] = ["a", "b", "c"];
/// The children that are killed by themselves, in turn.
const CRASHING: [&str; 3] = ["/t/a", "/all/b", "/rest/b"];

fn child(cluster: &Cluster, path: &str, more: &str) -> String {
    let (witness, beats) = (env!("CARGO_BIN_EXE_witness"), beats(cluster, path).display().to_string());
    let id = path.rsplit('/').next().unwrap_or_default();
    let ready = "ready = { notify = true, within = \"1m\" }";
    format!("[[children]]\nid = \"{id}\"\n{ready}\ncommand = [\"{witness}\", \"{beats}\"{more}\n")
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
    let mut rotation = Rotation::begin(&mut cluster, &["--label", "host=n4"]).await;
    let (mut leaders, mut drains, mut crashes_beside) = (0, 0, 0);
    let (mut crashes, mut killed) = (BTreeMap::new(), BTreeMap::new());
    for round in 0..KILLS {
        let victim = VICTIMS[round % VICTIMS.len()];
        let leader = cluster.leader().await;
        let emptied = rotation.to_empty();
        let rows = cluster.node_rows().await;
        let others = rows.iter().filter(|row| emptied != Some(row.name.as_str()));
        let busiest = others.max_by_key(|row| row.children).expect("a node").name.to_string();
        let name = match victim {
            Victim::Child => None,
            Victim::Leader => Some(leader.clone()),
            _ => Some(busiest),
        };
        // About half of the kills hit a cluster in which a node, the victim or another one, is just being emptied.
        let is_drained = name.is_some() && round % 4 < 2;
        let drained = is_drained.then(|| NODES[(round / 4 + round) % NODES.len()].to_owned());
        if let Some(drained) = &drained {
            done(&cluster, &format!("node drain {drained} --no-wait"));
            drains += 1;
        }
        // Until the cluster knows of a death, the former session looks like one of the node that was just started.
        let dying: Vec<&str> = emptied.into_iter().chain(name.as_deref()).collect();
        let before = rows.iter().filter(|row| dying.contains(&row.name.as_str()));
        let before: Vec<_> = before.map(|row| (row.name.to_string(), row.session)).collect();
        if let Some(emptied) = emptied {
            note_kill(&mut killed, emptied, true);
            cluster.node(emptied).kill();
            rotation.start_empty(&mut cluster);
        }
        let path = CRASHING[round / VICTIMS.len() % CRASHING.len()];
        let mut drained = drained;
        if victim == Victim::Child {
            // Nothing else may end it: a node is emptied meanwhile that has nothing to do with it.
            again(&cluster, &before).await;
            whole(&cluster).await;
            drained = beside(&cluster, path).await;
            if let Some(drained) = &drained {
                done(&cluster, &format!("node drain {drained} --no-wait"));
                drains += 1;
                crashes_beside += 1;
            }
        }
        let mut asked = rotation.ask(&cluster);
        // So that changes are cut off at all of their stages.
        tokio::time::sleep(STAGE * (round * 5 % 7) as u32).await;
        rotation.note_death(&mut asked);
        if let Some(name) = &name {
            leaders += usize::from(*name == leader);
            // A node that only lost its guard sweeps and may still end its session by its word: then it is not lost.
            note_kill(&mut killed, name, !matches!(victim, Victim::Guard | Victim::GuardAndReapers));
            kill(&mut cluster, victim, name);
            cluster.node(name).start();
            again(&cluster, &before).await;
            cluster.all_up().await;
        } else {
            crash(&cluster, path).await;
            *crashes.entry(path).or_insert(0) += 1;
        }
        rotation.settle(asked, &cluster).await;
        if let Some(drained) = &drained {
            done(&cluster, &format!("node undrain {drained}"));
        }
        whole(&cluster).await;
        let name = name.as_deref().unwrap_or(path);
        println!("kill {}: {victim:?} on {name}, drained {drained:?}, emptied {emptied:?}: whole again", round + 1);
    }
    println!(
        "{KILLS} kills, {leaders} of them of the leader, {drains} drains, {crashes_beside} of them beside a crash"
    );
    assert!(crashes_beside > 0, "some child crashed while a node was emptied");
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
    // Each loss is told once; each kill of a node process was one, and beyond those only the end of a lease was: the leader tells it
    // as silence, or the node itself, which comes back and asks for another session, as processes that are proven gone.
    let events = cluster.events().await;
    for row in cluster.node_rows().await {
        let told = events.iter().filter(|event| event.kind == "node_lost" && event.node.as_ref() == Some(&row.name));
        let told: Vec<&str> = told.map(|event| event.text.as_str()).collect();
        let of_leases = ["silent beyond its lease", "its processes are proven gone"];
        let silent = told.iter().filter(|text| of_leases.iter().any(|words| text.contains(words))).count() as u64;
        let (all, losses) = killed.get(row.name.as_str()).copied().unwrap_or_default();
        assert_eq!(told.len() as u64, row.losses, "{}: {told:#?}", row.name);
        let expected = losses..=all + silent;
        assert!(expected.contains(&row.losses), "{}: expected {expected:?} losses: {told:#?}", row.name);
    }
    let marks: Vec<String> = cluster.nodes().filter_map(|node| node.mark()).collect();
    let alive = marks.iter().map(|mark| marked_processes(mark).len()).sum::<usize>();
    assert_eq!(alive, 12, "nine children, three of them with a helper, and no orphan");
    rotation.end();
}

/// How often a node was killed, and how often it must be lost by that.
type Killed = BTreeMap<String, (u64, u64)>;

fn note_kill(killed: &mut Killed, name: &str, is_loss: bool) {
    let (all, losses) = killed.entry(name.to_owned()).or_insert((0, 0));
    (*all, *losses) = (*all + 1, *losses + u64::from(is_loss));
}

/// The node with the most children among those on which nothing runs that belongs to this child or its group.
async fn beside(cluster: &Cluster, path: &str) -> Option<String> {
    let tree = &path[..path.rfind('/').expect("a child has a tree")];
    let is_group = GROUPS.iter().any(|(group, _)| tree[1..] == **group);
    let rows = cluster.tree().await.into_iter();
    let own = rows.filter(|row| row.path.as_str() == path || is_group && row.path.as_str().starts_with(tree));
    let homes: BTreeSet<_> = own.filter_map(|row| row.node).collect();
    let nodes = cluster.node_rows().await.into_iter().filter(|row| row.children > 0 && !homes.contains(&row.name));
    nodes.max_by_key(|row| row.children).map(|row| row.name.to_string())
}

/// Waits until each of these nodes has a session after the one it had.
async fn again(cluster: &Cluster, before: &[(String, Option<SessionId>)]) {
    for (name, before) in before {
        let row = async || row_of(cluster, name).await;
        let is_new = |row: &Option<NodeRow>| row.as_ref().is_some_and(|row| row.session > *before);
        wait_until(&format!("a session of {name}'s own"), SOON, row, is_new).await;
    }
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

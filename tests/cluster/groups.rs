//! Case T9 and a `one_for_all` group over three nodes: A on n1, B on n2, C on n3, each its own witness. An agent n4, where there is
//! one, may take the place of n3.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pando_protocol::cause::CauseClass;
use pando_protocol::view::TreeRow;
use pando_tests::beats::{Life, lives, out_of_turn, outlived_a_generation, overlap, told};
use pando_tests::cluster::{Cluster, Options, SOON, send, started_at};
use pando_tests::wait::wait_until;
use rustix::process::Signal;

const MEMBERS: [(&str, &str); 3] = [("a", "n1"), ("b", "n2"), ("c", "n3")];

/// How long a member takes to stop: so long that an order of stops can be told from beats.
const STOP_TAKES: u64 = 200;

async fn group(strategy: &str, agents: usize) -> Cluster {
    let own_flags = |name: &str| vec!["--label".into(), format!("host={}", name.replace("n4", "n3"))];
    let cluster = Cluster::with(Options { own_flags, agents, ..Options::default() }).await;
    let mut spec = format!("name = \"t\"\nstrategy = \"{strategy}\"\ncolocate = false\n");
    for (member, node) in MEMBERS {
        let (witness, beats) = (env!("CARGO_BIN_EXE_witness"), beats(&cluster, member));
        spec.push_str(&format!(
            "[[children]]\nid = \"{member}\"\nplace = {{ require = [\"host={node}\"] }}\n\
             ready = {{ notify = true, within = \"1m\" }}\n\
             command = [\"{witness}\", \"{}\", \"--stop-takes\", \"{STOP_TAKES}\"]\n",
            beats.display()
        ));
    }
    cluster.bring_up(&spec).await;
    cluster
}

fn beats(cluster: &Cluster, member: &str) -> PathBuf {
    cluster.folder().join(format!("beats-{member}"))
}

async fn row(cluster: &Cluster, member: &str) -> TreeRow {
    cluster.row(&format!("/t/{member}")).await
}

/// The lives of a member, and when it was told to stop in each.
type Story = (BTreeMap<u64, Life>, BTreeMap<u64, u64>);

/// What a member's processes wrote down.
fn story(cluster: &Cluster, member: &str) -> Story {
    let file = beats(cluster, member);
    (lives(&file), told(&file))
}

/// The last life that had begun before this time, and the one after it.
fn around(lives: &BTreeMap<u64, Life>, time: u64) -> (u64, Life, Life) {
    let (incarnation, before) = lives.iter().rfind(|(_, life)| life.first < time).expect("a life before");
    let after =
        lives.values().find(|life| life.first >= time).unwrap_or_else(|| panic!("one after {time}: {lives:#?}"));
    (*incarnation, *before, *after)
}

/// Kills the process of a member, waits until the tree is whole again, and says when it was killed.
async fn kill(cluster: &Cluster, member: &str) -> u64 {
    let before = row(cluster, member).await;
    let at = pando_tests::beats::now();
    send(before.pid.expect("it runs"), Signal::KILL);
    is_whole_again(cluster, &before, at).await;
    at
}

/// Waits until another run of a member than `before` runs, and the whole group with it, all of it begun after `at`.
async fn is_whole_again(cluster: &Cluster, before: &TreeRow, at: u64) {
    cluster.runs_anew(before.path.as_str(), before).await;
    cluster.whole("/t").await;
    let file = beats(cluster, "c"); // The last one to start; its first beat may still come.
    wait_until("its first beat", SOON, async || lives(&file), |lives| lives.values().any(|life| life.first > at)).await;
}

/// The stories of all members, and the lives [`around`] this time; none of the later ones began before all of the former had
/// ended.
fn generation_after(cluster: &Cluster, time: u64) -> ([Story; 3], Vec<(u64, Life, Life)>) {
    let stories = MEMBERS.map(|(member, _)| story(cluster, member));
    let lived = stories.iter().map(|(lives, _)| around(lives, time)).collect::<Vec<_>>();
    let last = lived.iter().map(|(_, before, _)| before.last).max().expect("three members");
    let is_later = lived.iter().all(|(_, _, after)| after.first > last);
    assert!(is_later, "no generation before the former has ended: {lived:#?}");
    (stories, lived)
}

fn assert_in_order(cluster: &Cluster) {
    for (at, (later, _)) in MEMBERS.iter().enumerate() {
        let lives_of = |member| lives(&beats(cluster, member));
        assert_eq!(overlap(&lives_of(later)), None, "{later}");
        for (earlier, _) in &MEMBERS[..at] {
            assert_eq!(out_of_turn(&lives_of(earlier), &lives_of(later)), None, "{earlier}, {later}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn t9_rest_for_one_over_three_nodes_stops_in_reverse_and_starts_in_order_and_leaves_what_stands_before() {
    let cluster = group("rest_for_one", 0).await;
    let first = row(&cluster, "a").await;
    let began = started_at(first.pid.expect("it runs"));

    let killed = kill(&cluster, "b").await;
    let ((b, _), (c, c_told)) = (story(&cluster, "b"), story(&cluster, "c"));
    let (_, b_before, b_after) = around(&b, killed);
    let (c_incarnation, c_before, c_after) = around(&c, killed);
    assert!(b_before.last <= c_told[&c_incarnation], "C is told to stop when B has ended: {b:?} {c:?}");
    assert!(c_before.last < b_after.first, "C has stopped before B restarts: {b:?} {c:?}");
    assert!(b_after.first < c_after.first, "B starts before C: {b:?} {c:?}");
    let same = row(&cluster, "a").await;
    assert_eq!((same.pid, same.incarnation, same.restarts), (first.pid, first.incarnation, 0), "A is untouched");
    assert_eq!(started_at(first.pid.expect("it runs")), began, "and so is its process");
    assert_eq!(lives(&beats(&cluster, "a")).len(), 1);
    assert!(cluster.history("/t/a").await.is_empty());
    assert_eq!((row(&cluster, "b").await.restarts, row(&cluster, "c").await.restarts), (1, 0), "one pays");

    let killed = kill(&cluster, "a").await;
    let (a, _) = story(&cluster, "a");
    let ((b, b_told), (c, c_told)) = (story(&cluster, "b"), story(&cluster, "c"));
    let (_, a_before, a_after) = around(&a, killed);
    let (b_incarnation, b_before, b_after) = around(&b, killed);
    let (c_incarnation, c_before, c_after) = around(&c, killed);
    assert!(a_before.last <= c_told[&c_incarnation], "C is told first, when A has ended: {a:?} {c:?}");
    assert!(c_before.last <= b_told[&b_incarnation], "B is told when C has ended: {b:?} {c:?}");
    assert!(b_before.last < a_after.first, "A starts when both have ended: {a:?} {b:?}");
    assert!(a_after.first < b_after.first && b_after.first < c_after.first, "A, B, C: {a:?} {b:?} {c:?}");
    let restarts =
        (row(&cluster, "a").await.restarts, row(&cluster, "b").await.restarts, row(&cluster, "c").await.restarts);
    assert_eq!(restarts, (1, 1, 0), "one more pays, and only the one that was killed");
    assert_in_order(&cluster);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_for_all_over_three_nodes_outlives_a_member_and_the_node_of_a_member() {
    let mut cluster = group("one_for_all", 1).await;
    let killed = kill(&cluster, "b").await;
    let (stories, lived) = generation_after(&cluster, killed);
    assert!(lived.windows(2).all(|pair| pair[0].2.first < pair[1].2.first), "in start order: {lived:#?}");
    assert!(lived[2].1.last <= stories[0].1[&lived[0].0], "the last started one stops first: {lived:#?}");
    let restarts = async |cluster: &Cluster| {
        let rows = [row(cluster, "a").await, row(cluster, "b").await, row(cluster, "c").await];
        rows.map(|row| row.restarts)
    };
    assert_eq!(restarts(&cluster).await, [0, 1, 0], "one pays for a restart of the group");

    // The node of C dies with all that runs there.
    let (before, killed) = (row(&cluster, "c").await, pando_tests::beats::now());
    let home = cluster.home("/t/c").await;
    cluster.node(&home).kill();
    is_whole_again(&cluster, &before, killed).await;
    let (stories, _) = generation_after(&cluster, killed);
    assert_eq!(restarts(&cluster).await, [0, 1, 0], "a lost node is charged to nobody");
    let history = cluster.history("/t/c").await;
    let lost = history.last().expect("an ending");
    assert!(lost.cause.class == CauseClass::NodeLost && !lost.charged, "{history:#?}");
    assert_in_order(&cluster);
    for ((one, _), (another, _)) in [(0, 1), (0, 2), (1, 2)].map(|(one, another)| (&stories[one], &stories[another])) {
        assert_eq!(outlived_a_generation(one, another), None);
        assert_eq!(outlived_a_generation(another, one), None);
    }
}

//! Disks that are full, on real processes: what a node says, what the others do, and that nothing acknowledged is lost.
//!
//! ```text
//!   test ── namespace of mounts ─┬─ n1 … its data folder: a disk of some MiB, filled and freed by the test
//!                                └─ …
//! ```
//!
//! Each test runs itself again in a namespace of mounts that it makes (and of users where it is not root), so that nothing of the
//! machine is touched and everything is gone when it ends. They need `unshare` and `mount`.

use std::fs;
use std::path::Path as FilePath;
use std::time::Duration;

use pando_protocol::client::{Client, ClientError};
use pando_protocol::message::{Call, Change, Found, Freshness, Query, Reply};
use pando_protocol::spec_file::{self, Format};
use pando_tests::cluster::{Cluster, Options, SOON};
use pando_tests::disk::PAGE;
use pando_tests::namespace;
use pando_tests::wait::{wait_until, wait_until_blocking};

/// Far more than a test writes.
const DISK: u64 = 32 << 20;
/// More writes than fill what is left of the last page of a full disk.
const ENOUGH: usize = 200;
/// What a write weighs that no such rest takes.
const HEAVY: usize = 60_000;

/// How long it is tried to have a write acknowledged that must not be.
const PATIENCE: Duration = Duration::from_secs(10);
const SLOW: [&str; 2] = ["--network", "wan"];

const TREE: &str = r#"
name = "t"
[[children]]
id = "a"
command = ["sleep", "1000"]
[[children]]
id = "b"
command = ["sleep", "1000"]
[[children]]
id = "c"
command = ["sleep", "1000"]
"#;

#[test]
fn a_follower_whose_disk_is_full_says_so_and_catches_up_once_there_is_space() {
    in_namespace("a_follower_whose_disk_is_full_says_so_and_catches_up_once_there_is_space", full_disk(false));
}

#[test]
fn a_leader_whose_disk_is_full_says_so_and_another_one_leads() {
    in_namespace("a_leader_whose_disk_is_full_says_so_and_another_one_leads", full_disk(true));
}

#[test]
fn what_only_one_of_three_disks_has_is_not_acknowledged() {
    in_namespace("what_only_one_of_three_disks_has_is_not_acknowledged", one_disk_of_three());
}

#[test]
fn a_snapshot_that_finds_no_room_stops_its_node_and_leaves_nothing_behind() {
    in_namespace("a_snapshot_that_finds_no_room_stops_its_node_and_leaves_nothing_behind", no_room_for_its_snapshot());
}

#[test]
fn a_voter_that_has_no_room_for_the_snapshot_of_the_leader_says_so_and_takes_it_once_it_has() {
    let own = "a_voter_that_has_no_room_for_the_snapshot_of_the_leader_says_so_and_takes_it_once_it_has";
    in_namespace(own, no_room_for_the_leaders_snapshot());
}

#[test]
fn a_node_that_begins_on_a_full_disk_says_so_whatever_file_it_is() {
    in_namespace("a_node_that_begins_on_a_full_disk_says_so_whatever_file_it_is", full_from_the_beginning());
}

#[test]
fn a_child_whose_lines_find_no_room_goes_on_and_the_loss_is_told() {
    in_namespace("a_child_whose_lines_find_no_room_goes_on_and_the_loss_is_told", no_room_for_lines());
}

/// Runs the test of this name again in a namespace of mounts, and there what it does.
fn in_namespace(own: &str, test: impl Future<Output = ()>) {
    if !namespace::is_inside() {
        return namespace::run_again(own, &["--mount"]);
    }
    tokio::runtime::Runtime::new().expect("a runtime").block_on(test);
}

/// Three voters, each with a disk of its own, and these flags. In the profile for slow networks: what is tested is disks, and a
/// machine that is busy with other things elects slowly.
async fn three_disks(flags: &[&str]) -> Cluster {
    let flags = SLOW.iter().chain(flags).map(ToString::to_string).collect();
    Cluster::with(Options { disk: |_| Some(DISK), flags, ..Options::default() }).await
}

async fn full_disk(of_the_leader: bool) {
    let mut cluster = three_disks(&[]).await;
    cluster.apply(TREE).await;
    cluster.whole("/t").await;
    let leader = cluster.leader().await;
    let full = if of_the_leader { leader } else { others(&leader)[0].clone() };
    let runs_there = async |cluster: &Cluster| {
        let rows = cluster.tree().await;
        rows.iter().filter(|row| row.node.as_ref().is_some_and(|node| node.as_str() == full)).count()
    };
    assert!(runs_there(&cluster).await > 0, "nothing ran on {full}");
    let mut written = Written::default();
    written.take(&cluster, 10).await;

    cluster.disk(&full).fill();
    for _ in 0..ENOUGH {
        if !cluster.node(&full).is_running() {
            break;
        }
        written.take(&cluster, 1).await;
    }
    assert_full(&mut cluster, &full);
    written.take(&cluster, 10).await;
    assert_ne!(cluster.leader().await, full);
    cluster.whole("/t").await;
    assert_eq!(runs_there(&cluster).await, 0, "what ran on {full} runs elsewhere");
    assert!(cluster.tree().await.iter().all(|row| row.restarts == 0), "nobody pays for a disk");

    // Nobody freed anything: it says the same, and changes nothing for the others.
    cluster.disk(&full).fill();
    cluster.node(&full).start();
    assert_full(&mut cluster, &full);
    written.take(&cluster, 1).await;

    cluster.disk(&full).free();
    cluster.node(&full).start();
    cluster.all_up().await;
    written.are_known_to(&cluster, &full).await;
    // It counts: without another one the next write needs its disk, and what it has is all there is of a majority.
    let gone = others(&full)[0].clone();
    cluster.node(&gone).kill();
    written.take(&cluster, 1).await;
    cluster.whole("/t").await;
    written.are_confirmed(&cluster).await;
}

async fn one_disk_of_three() {
    let mut cluster = three_disks(&[]).await;
    let mut written = Written::default();
    written.take(&cluster, 10).await;
    let leader = cluster.leader().await;
    let [full, away] = others(&leader);
    cluster.node(&away).kill();
    written.take(&cluster, 1).await;
    cluster.disk(&full).fill();
    let only_there = apply(cluster.client(), &spec("only-there", 1, HEAVY, ""), PATIENCE).await;
    assert!(only_there.is_err(), "{leader} alone has it, and it was acknowledged: {only_there:?}");
    assert_full(&mut cluster, &full);

    cluster.disk(&full).free();
    cluster.node(&full).start();
    written.take(&cluster, 1).await;
    written.are_confirmed(&cluster).await;
    written.are_known_to(&cluster, &full).await;
}

/// The log holds each spec, and the snapshot the newest of each tree: when it becomes due there is room for the log alone.
async fn no_room_for_its_snapshot() {
    let mut cluster = three_disks(&["--log-size", "2"]).await;
    let full = others(&cluster.leader().await)[0].clone();
    let mut written = Written::default();
    for tree in ["x1", "x2", "x3"] {
        written.apply(&cluster, tree, 10, HEAVY, "").await;
    }
    written.are_known_to(&cluster, &full).await;
    let data = cluster.node(&full).data();
    assert!(!data.join("snapshot").exists(), "too early: it has a snapshot");
    cluster.disk(&full).fill_but(1 << 20);
    written.apply(&cluster, "x1", 10, HEAVY, "new").await;
    let said = assert_full(&mut cluster, &full);
    assert!(said.contains(&format!("cannot write {}", data.join("snapshot-0.tmp").display())), "{said}");
    let left: Vec<_> = names(&data).into_iter().filter(|name| name.contains("snapshot")).collect();
    assert!(left.is_empty(), "{left:?}");

    cluster.disk(&full).free();
    cluster.node(&full).start();
    cluster.all_up().await;
    wait_until("a snapshot", SOON, async || data.join("snapshot").exists(), |exists| *exists).await;
    written.are_known_to(&cluster, &full).await;
}

async fn no_room_for_the_leaders_snapshot() {
    let mut cluster = three_disks(&["--log-size", "1"]).await;
    let leader = cluster.leader().await;
    let away = others(&leader)[0].clone();
    cluster.node(&away).kill();
    cluster.node(&away).wait_for_guard();
    let log = cluster.node(&leader).data().join("log");
    let first = names(&log).into_iter().find(|name| name.ends_with(".wal")).expect("a file of the log");
    let mut written = Written::default();
    for round in 0..20 {
        written.apply(&cluster, "x", 10, HEAVY, &round.to_string()).await;
    }
    wait_until("the leader's log to be cut", SOON, async || log.join(&first).exists(), |exists| !exists).await;
    // Enough for votes and sessions, too little for the state.
    cluster.disk(&away).fill_but(64 * PAGE);
    cluster.node(&away).start();
    let file = cluster.node(&away).log();
    let look = async || fs::read_to_string(&file).unwrap_or_default();
    let is_told = |log: &String| {
        log.lines()
            .any(|line| line.contains("snapshot of the leader cannot be taken") && line.contains("the disk is full"))
    };
    wait_until("it to say that it has no room", SOON, look, is_told).await;
    cluster.disk(&away).free();
    written.are_known_to(&cluster, &away).await;
    assert!(cluster.node(&away).is_running(), "it takes the snapshot without being started again");
}

async fn full_from_the_beginning() {
    let mut cluster = three_disks(&[]).await;
    let mut written = Written::default();
    written.take(&cluster, 5).await;
    let fresh = others(&cluster.leader().await)[0].clone();
    cluster.node(&fresh).kill();
    cluster.node(&fresh).wait_for_guard();
    // With each page it comes one file further.
    let mut refused = Vec::new();
    for pages in 0..4 {
        cluster.disk(&fresh).wipe();
        cluster.disk(&fresh).fill_but(pages * PAGE);
        cluster.node(&fresh).start();
        let said = assert_full(&mut cluster, &fresh);
        refused.push(said.split(": ").nth(1).unwrap_or_default().to_owned());
    }
    println!("{refused:#?}");
    refused.dedup();
    assert!(refused.len() > 2, "each time the same file: {refused:#?}");
    cluster.disk(&fresh).free();
    cluster.node(&fresh).start();
    cluster.all_up().await;
    written.are_known_to(&cluster, &fresh).await;
}

async fn no_room_for_lines() {
    let flags = |name: &str| if name == "n4" { vec!["--label".into(), "small=disk".into()] } else { Vec::new() };
    let disk = |name: &str| (name == "n4").then_some(1 << 20);
    let slow = SLOW.map(String::from).to_vec();
    let mut cluster =
        Cluster::with(Options { agents: 1, flags: slow, own_flags: flags, disk, ..Options::default() }).await;
    let progress = cluster.folder().join("progress");
    let words = format!("while :; do i=$((i+1)); echo line $i; echo $i > {}; sleep 0.005; done", progress.display());
    let talker = format!("[[children]]\nid = \"talker\"\ncommand = [\"sh\", \"-c\", \"{words}\"]\n");
    cluster.apply(&format!("name = \"t\"\n{talker}place = {{ require = [\"small=disk\"] }}\n")).await;
    cluster.whole("/t").await;
    let before = cluster.row("/t/talker").await;
    let said = || fs::read_to_string(&progress).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0u64);
    wait_until("it to talk", SOON, async || said(), |line| *line > 20).await;

    cluster.disk("n4").fill();
    let log = cluster.node("n4").log();
    let folder = cluster.node("n4").data().join("logs").display().to_string();
    let is_told = |log: &String| {
        log.lines().any(|line| {
            line.contains("lines of a child cannot be written and are lost; the child goes on")
                && line.contains(&folder)
                && line.contains("the disk is full: free space there")
        })
    };
    wait_until("the loss to be told", SOON, async || fs::read_to_string(&log).unwrap_or_default(), is_told).await;
    let now = said();
    wait_until("it to talk on", SOON, async || said(), |line| *line > now + 300).await;
    // What starts there finds no folder to work in, and starts elsewhere.
    cluster.apply("name = \"u\"\n[[children]]\nid = \"late\"\ncommand = [\"sleep\", \"1000\"]\n").await;
    cluster.whole("/u").await;

    cluster.disk("n4").free();
    let lines = || String::from_utf8_lossy(&cluster.cli(&["logs", "/t/talker"]).stdout).into_owned();
    let noted = |text: &String| text.contains("lines are missing here: the disk was full or too slow");
    let text = wait_until_blocking("the loss to be noted among the lines", SOON, lines, noted);
    let after = text.rsplit("lines are missing here").next().unwrap_or_default();
    assert!(after.contains("line "), "and it goes on after it: {text}");
    let row = cluster.row("/t/talker").await;
    assert_eq!((row.incarnation, row.pid, row.restarts), (before.incarnation, before.pid, 0), "the child was not hurt");
}

/// The node has ended because its disk is full, and says so: which file, why, and what to do. Returns its last word.
#[track_caller]
fn assert_full(cluster: &mut Cluster, node: &str) -> String {
    let status = cluster.node(node).ended(SOON);
    let said = cluster.node(node).log_tail(50);
    assert_eq!(status.code(), Some(70), "{status}: {said}");
    let word = said.lines().rfind(|line| line.starts_with("pando-node: ")).unwrap_or_default().to_owned();
    println!("{word}");
    let data = cluster.node(node).data();
    for needed in [&data.display().to_string(), "the disk is full: free space there, then start the node again"] {
        assert!(word.contains(needed), "no {needed:?} in its last word: {word}");
    }
    cluster.node(node).wait_for_guard();
    word
}

/// The other two of three nodes.
fn others(than: &str) -> [String; 2] {
    let others: Vec<_> = ["n1", "n2", "n3"].into_iter().filter(|name| *name != than).map(str::to_owned).collect();
    others.try_into().expect("one of three nodes")
}

/// What was acknowledged: trees that run nothing, each with the paths of its children.
#[derive(Debug, Default)]
struct Written {
    trees: usize,
    paths: Vec<String>,
}

impl Written {
    /// So many writes of a page each, one after the other.
    async fn take(&mut self, cluster: &Cluster, writes: usize) {
        for _ in 0..writes {
            self.trees += 1;
            let tree = format!("w{}", self.trees);
            self.apply(cluster, &tree, 1, PAGE as usize, "").await;
        }
    }

    /// One write of so many children and bytes each.
    async fn apply(&mut self, cluster: &Cluster, tree: &str, children: usize, bytes: usize, suffix: &str) {
        let applied = apply(cluster.client(), &spec(tree, children, bytes, suffix), SOON).await;
        applied.unwrap_or_else(|error| panic!("{tree}: {error}"));
        self.paths.retain(|path| !path.starts_with(&format!("/{tree}/")));
        self.paths.extend((0..children).map(|child| format!("/{tree}/c{child}{suffix}")));
    }

    async fn are_known_to(&self, cluster: &Cluster, node: &str) {
        let client = cluster.client_of(node);
        let has_all = |paths: &Vec<String>| self.paths.iter().all(|path| paths.contains(path));
        let look = async || paths(&client, Freshness::Stale).await;
        wait_until(&format!("{node} to know all that was acknowledged"), SOON, look, has_all).await;
    }

    async fn are_confirmed(&self, cluster: &Cluster) {
        let confirmed = paths(cluster.client(), Freshness::Linearizable).await;
        let lost: Vec<_> = self.paths.iter().filter(|path| !confirmed.contains(path)).collect();
        assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    }
}

/// A tree that runs nothing, since no node has that label.
fn spec(tree: &str, children: usize, bytes: usize, suffix: &str) -> String {
    let filler = "x".repeat(bytes);
    let child = |n: usize| {
        format!(
            "[[children]]\nid = \"c{n}{suffix}\"\ncommand = [\"true\"]\nplace = {{ require = [\"no=where\"] }}\n\
             env = {{ FILLER = \"{filler}\" }}\n"
        )
    };
    format!("name = \"{tree}\"\n{}", (0..children).map(child).collect::<String>())
}

async fn apply(client: &Client, toml: &str, limit: Duration) -> Result<Reply, ClientError> {
    let spec = spec_file::parse("test.toml", Format::Toml, toml).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    client.change(Change::Apply(spec), limit).await
}

async fn paths(client: &Client, freshness: Freshness) -> Vec<String> {
    match client.call(Call::Read { query: Query::Tree(None), freshness }, SOON).await {
        Ok(Reply::Found { found: Found::Tree(rows), .. }) => rows.iter().map(|row| row.path.to_string()).collect(),
        _ => Vec::new(),
    }
}

fn names(folder: &FilePath) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

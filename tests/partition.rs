//! Case T22 with a real partition: three nodes in network namespaces of their own, cut off by nft. And the same while the guard
//! of the node that is cut off hangs.
//!
//! ```text
//!   this test, store ── br0 10.77.0.254 ─┬─ n1 10.77.0.1
//!                                        ├─ n2 10.77.0.2       each in a namespace, its own filter
//!                                        └─ n3 10.77.0.3
//! ```
//!
//! The test runs itself again in namespaces that it makes (network, mounts, and users where it is not root), so that nothing
//! of the machine is touched and everything is gone when it ends. It needs `unshare`, `nsenter`, `ip` and `nft`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pando_protocol::view::{NodeState, State, TreeRow, Verdict};
use pando_tests::beats::{lives, overlap};
use pando_tests::cluster::{Cluster, Options, SOON, send};
use pando_tests::namespace;
use pando_tests::wait::{wait_until, wait_until_blocking};
use rustix::process::Signal;

/// Three times that of the profile lan, so that a partition can be healed late in a lease and what follows still has its time on a
/// loaded machine: connections are made again, and a beat is answered.
const LEASE: Duration = Duration::from_secs(6);
/// How long the short partition lasts, in milliseconds: three quarters of the lease. The last beat that was renewed was sent up to
/// one beat (200 ms) before the cut; the guard acts 150 ms before the end.
const LATE: u64 = 4_500;

#[test]
fn t22_a_partition_moves_an_exclusive_child_once_and_a_short_one_moves_nothing() {
    in_namespaces("t22_a_partition_moves_an_exclusive_child_once_and_a_short_one_moves_nothing", partition_and_heal());
}

#[test]
fn a_guard_that_hangs_while_its_node_is_cut_off_is_killed_with_all_it_runs_before_the_lease_ends() {
    let own = "a_guard_that_hangs_while_its_node_is_cut_off_is_killed_with_all_it_runs_before_the_lease_ends";
    in_namespaces(own, guard_hangs_in_partition());
}

#[test]
fn what_is_kept_runs_on_through_a_partition_and_is_the_same_incarnation_after_it() {
    in_namespaces("what_is_kept_runs_on_through_a_partition_and_is_the_same_incarnation_after_it", keep_in_partition());
}

/// Runs the test of this name again in namespaces of its own, and there what it does.
fn in_namespaces(own: &str, test: impl Future<Output = ()>) {
    if !namespace::is_inside() {
        return namespace::run_again(own, &["--net", "--mount"]);
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(test);
}

/// Three nodes, each in a namespace.
async fn separate_nodes() -> Cluster {
    lay_network();
    let options = Options {
        addresses: (1..=3).map(|n| format!("10.77.0.{n}:7400")).collect(),
        prefix: |name| vec!["nsenter".into(), format!("--net=/run/netns/{name}"), "--".into()],
        flags: vec!["--lease".into(), LEASE.as_millis().to_string()],
        ..Options::default()
    };
    Cluster::with(options).await
}

async fn partition_and_heal() {
    let cluster = separate_nodes().await;
    let store = Store::start(cluster.folder());
    let beats = cluster.folder().join("beats");
    let (witness, file, at) = (env!("CARGO_BIN_EXE_witness"), beats.display(), &store.address);
    let spec = format!(
        "name = \"t\"\n[[children]]\nid = \"only\"\ncommand = [\"{witness}\", \"{file}\", \"--helper\", \"--store\", \"{at}\"]\n"
    );
    cluster.apply(&spec).await;
    cluster.whole("/t").await;
    let first = cluster.row("/t/only").await;
    let last_beat = async || lives(&beats).into_values().map(|life| life.last).max().unwrap_or(0);

    // Healed before the lease ends: the original goes on, and nothing starts.
    let home = first.node.clone().expect("it runs").to_string();
    cut_off(&home);
    let began = now();
    wait_until("most of a lease of partition", SOON, async || now() - began, |passed| *passed >= LATE).await;
    heal(&home);
    println!("healed {} ms after the cut", now() - began);
    let seen = last_beat().await;
    let long_after = seen + 2 * u64::try_from(LEASE.as_millis()).expect("a small number");
    wait_until("two leases of beats", SOON, last_beat, |last| *last > long_after).await;
    let still = cluster.row("/t/only").await;
    assert_eq!((still.incarnation, still.restarts), (first.incarnation, 0), "a short partition ends nothing");
    assert_eq!(lives(&beats).len(), 1, "and starts nothing");

    // Cut off for good: the isolated node stops it within the lease, and only then does another start it.
    let home = still.node.clone().expect("it runs").to_string();
    let old = still.incarnation.expect("it runs");
    cut_off(&home);
    let cut = now();
    let moved = |row: &TreeRow| row.state == State::Running && row.incarnation > still.incarnation;
    let new = wait_until("the child elsewhere", SOON, async || cluster.row("/t/only").await, moved).await;
    assert_ne!(new.node.as_ref().map(ToString::to_string), Some(home.clone()));
    let begins = |last: &u64| *last > cut + 2 * u64::try_from(LEASE.as_millis()).expect("a small number");
    wait_until("beats of the new incarnation", SOON, last_beat, begins).await;
    let seen = lives(&beats);
    let (ended, began) = (seen[&old.0].last, seen[&new.incarnation.expect("it runs").0].first);
    println!(
        "cut at 0, the last beat of the old one at {} ms, the first of the new one at {} ms",
        ended - cut,
        began - cut
    );
    assert!(
        ended <= cut + u64::try_from(LEASE.as_millis()).expect("a small number"),
        "it stopped by the end of its lease"
    );
    assert_eq!(overlap(&seen), None, "{seen:#?}");

    // Healed: one copy, and a late write of the old one is refused by whoever checks the token. Both were known to the store by
    // what they wrote themselves.
    let new_token = new.incarnation.expect("it runs").0;
    let took = |token: u64| format!("{token} ok");
    let log = async || store.log();
    let both = |lines: &Vec<String>| [took(old.0), took(new_token)].iter().all(|line| lines.contains(line));
    let lines = wait_until("the store to have taken writes of both", SOON, log, both).await;
    let last_of_old = lines.iter().rposition(|line| *line == took(old.0));
    let first_of_new = lines.iter().position(|line| *line == took(new_token));
    assert!(last_of_old < first_of_new, "nothing of the old one was taken once the new one was known: {lines:?}");
    heal(&home);
    cluster.all_up().await;
    assert!(store.write(old.0).starts_with("refused"), "the old incarnation's late write");
    assert!(store.log().iter().any(|line| line.starts_with(&format!("{} refused", old.0))));
    let settled = last_beat().await + 1_000;
    wait_until("a second of beats", SOON, last_beat, |last| *last > settled).await;
    let seen = lives(&beats);
    assert_eq!((seen.len(), overlap(&seen)), (2, None), "one copy after healing: {seen:#?}");
    let row = cluster.row("/t/only").await;
    assert_eq!((row.incarnation, row.restarts), (new.incarnation, 0));
    assert!(
        cluster.history("/t/only").await.iter().all(|entry| entry.cause.message.contains("silent beyond its lease"))
    );
}

async fn guard_hangs_in_partition() {
    let mut cluster = separate_nodes().await;
    let beats = cluster.folder().join("beats");
    let (witness, file) = (env!("CARGO_BIN_EXE_witness"), beats.display());
    let child = format!("[[children]]\nid = \"only\"\ncommand = [\"{witness}\", \"{file}\", \"--helper\"]\n");
    cluster.apply(&format!("name = \"t\"\n{child}")).await;
    cluster.whole("/t").await;
    let first = cluster.row("/t/only").await;
    let home = first.node.clone().expect("it runs").to_string();
    let guard = cluster.node(&home).guard();
    let last_beat = async || lives(&beats).into_values().map(|life| life.last).max().unwrap_or(0);

    cut_off(&home);
    let cut = now();
    wait_until("the partition to be on", SOON, async || now() - cut, |passed| *passed >= 100).await;
    send(guard, Signal::STOP);
    let status = cluster.node(&home).ended(SOON);
    assert_eq!(status.code(), Some(70), "a node whose guard hangs ends, and says so: {status}");
    let moved = |row: &TreeRow| row.state == State::Running && row.incarnation > first.incarnation;
    let new = wait_until("the child elsewhere", SOON, async || cluster.row("/t/only").await, moved).await;
    let long_after = cut + 3 * u64::try_from(LEASE.as_millis()).expect("a small number");
    wait_until("beats of the new incarnation", SOON, last_beat, |last| *last > long_after).await;
    let seen = lives(&beats);
    let (old, new) = (first.incarnation.expect("it ran"), new.incarnation.expect("it runs"));
    let (ended, began) = (seen[&old.0].last, seen[&new.0].first);
    println!(
        "cut at 0, the last beat of the old one at {} ms, the first of the new one at {} ms",
        ended - cut,
        began - cut
    );
    assert!(ended <= cut + u64::try_from(LEASE.as_millis()).expect("a small number"), "it stopped within its lease");
    assert_eq!(overlap(&seen), None, "{seen:#?}");

    heal(&home);
    cluster.node(&home).start();
    cluster.all_up().await;
    let row = cluster.row("/t/only").await;
    assert_eq!((row.incarnation, row.restarts), (Some(new), 0), "nobody pays, and nothing moves back");
}

async fn keep_in_partition() {
    let cluster = separate_nodes().await;
    let beats = cluster.folder().join("beats");
    let (witness, file) = (env!("CARGO_BIN_EXE_witness"), beats.display());
    // The fourth stands where the first does: all have room, and the names decide.
    let others =
        ["a", "b", "c"].map(|id| format!("[[children]]\nid = \"{id}\"\ncommand = [\"sleep\", \"1000\"]\n")).concat();
    let kept = format!("[[children]]\nid = \"kept\"\ncommand = [\"{witness}\", \"{file}\", \"--helper\"]\n");
    cluster.apply(&format!("name = \"t\"\n{kept}on_disconnect = \"keep\"\n{others}")).await;
    cluster.whole("/t").await;
    let first = cluster.row("/t/kept").await;
    let home = first.node.clone().expect("it runs");
    let beside = cluster.row("/t/c").await;
    assert_eq!(beside.node.as_ref(), Some(&home), "one that is not kept runs beside it");
    let last_beat = async || lives(&beats).into_values().map(|life| life.last).max().unwrap_or(0);

    cut_off(home.as_str());
    let cut = now();
    let moved = |row: &TreeRow| row.state == State::Running && row.incarnation > beside.incarnation;
    wait_until("the child beside it elsewhere", SOON, async || cluster.row("/t/c").await, moved).await;
    let row = cluster.row("/t/kept").await;
    assert_eq!(
        (row.state, row.verdict, row.incarnation),
        (State::Unreachable, Verdict::Unreachable, first.incarnation)
    );
    let states = cluster.node_rows().await.into_iter().find(|row| row.name == home).expect("it is known");
    assert_eq!(states.state, NodeState::Unreachable);
    let long_after = cut + 3 * u64::try_from(LEASE.as_millis()).expect("a small number");
    wait_until("beats through three leases", SOON, last_beat, |last| *last > long_after).await;

    heal(home.as_str());
    let back = |row: &TreeRow| row.state == State::Running;
    let row = wait_until("it is back", SOON, async || cluster.row("/t/kept").await, back).await;
    assert_eq!((row.incarnation, row.pid, row.restarts), (first.incarnation, first.pid, 0), "the same goes on");
    cluster.whole("/t").await;
    let settled = last_beat().await + 1_000;
    wait_until("a second of beats", SOON, last_beat, |last| *last > settled).await;
    assert_eq!(lives(&beats).len(), 1, "nothing was started in its place");
    assert!(cluster.history("/t/kept").await.is_empty(), "and nothing ended");
    assert!(cluster.cli(&["stop", "/t/kept"]).status.success());
    let stopped = |row: &TreeRow| row.state == State::Stopped;
    wait_until("it is a child like any other", SOON, async || cluster.row("/t/kept").await, stopped).await;
}

fn lay_network() {
    run("mount", "--make-rprivate /");
    run("mount", "-t tmpfs tmpfs /run");
    namespace::raise_loopback();
    run("ip", "link add br0 type bridge");
    run("ip", "addr add 10.77.0.254/24 dev br0");
    run("ip", "link set br0 up");
    for n in 1..=3 {
        run("ip", &format!("netns add n{n}"));
        run("ip", &format!("link add v{n} type veth peer name eth0 netns n{n}"));
        run("ip", &format!("link set v{n} master br0 up"));
        run("ip", &format!("-n n{n} addr add 10.77.0.{n}/24 dev eth0"));
        run("ip", &format!("-n n{n} link set lo up"));
        run("ip", &format!("-n n{n} link set eth0 up"));
    }
}

/// From now on nothing reaches the node from outside itself, and nothing of it gets out.
fn cut_off(node: &str) {
    let rules = "table inet cut {
        chain in { type filter hook input priority 0; policy drop; iifname lo accept; }
        chain out { type filter hook output priority 0; policy drop; oifname lo accept; }
    }";
    let mut nft = Command::new("nsenter");
    nft.args([&format!("--net=/run/netns/{node}"), "--", "nft", rules]);
    assert!(nft.status().expect("nsenter and nft").success(), "nft could not cut off {node}");
}

fn heal(node: &str) {
    run("nsenter", &format!("--net=/run/netns/{node} -- nft delete table inet cut"));
}

fn run(program: &str, words: &str) {
    let status = Command::new(program).args(words.split(' ')).status();
    let status = status.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(status.success(), "{program} {words}: {status}");
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    u64::try_from(since.as_millis()).expect("a time that fits")
}

/// The store outside the cluster, a process of its own.
struct Store {
    process: Child,
    address: String,
    file: PathBuf,
}

impl Store {
    fn start(folder: &Path) -> Self {
        let file = folder.join("store");
        let process =
            Command::new(env!("CARGO_BIN_EXE_store")).arg("10.77.0.254:0").arg(&file).spawn().expect("the store");
        let look = || fs::read_to_string(&file).unwrap_or_default();
        let address = wait_until_blocking("the store's address", SOON, look, |text| text.contains(':'));
        Self { process, address, file: folder.join("store.log") }
    }

    /// What it answered so far: the token of each write, and the answer.
    fn log(&self) -> Vec<String> {
        fs::read_to_string(&self.file).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// What it answers to a write with this token.
    fn write(&self, token: u64) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("the store");
        stream.write_all(format!("{token}\n").as_bytes()).expect("a write");
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).expect("an answer");
        answer
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

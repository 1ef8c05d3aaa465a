//! Measures what the README states: `cargo run --release -p pando-tests --bin measure`.
//!
//! Real nodes on loopback, five runs each, minimum / median / maximum. Gaps are read off what the children and clients
//! themselves saw, never off what the cluster says of itself.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pando_protocol::message::{Change, Reply};
use pando_protocol::view::{State, TreeRow};
use pando_tests::beats::lives;
use pando_tests::cluster::{Cluster, SOON, path};
use pando_tests::wait::wait_until;

const RUNS: usize = 5;
const CLIENTS: usize = 8;

#[tokio::main]
async fn main() {
    println!("{:<62} {:>7} {:>7} {:>7}", format!("{RUNS} runs"), "min", "median", "max");
    row("node kill -9: last beat of the old run to first of the new, ms", node_failover().await);
    row("leader kill -9: longest gap between writes of 8 clients, ms", leader_gap().await);
    let (starts, cpu) = always_failing().await;
    row("a child that always fails: starts in its first 3 s", starts);
    row("  CPU of three nodes and their guards meanwhile, ms", cpu);
}

fn row(what: &str, mut values: Vec<u64>) {
    values.sort_unstable();
    println!("{what:<62} {:>7} {:>7} {:>7}", values[0], values[values.len() / 2], values[values.len() - 1]);
}

/// A witness beats every 20 ms; its node process is killed, and its guard reports the death.
async fn node_failover() -> Vec<u64> {
    let mut cluster = Cluster::start().await;
    let beats = cluster.folder().join("beats");
    let witness = std::env::current_exe().expect("this program's path").with_file_name("witness");
    let spec = format!(
        "name = \"t\"\n[[children]]\nid = \"a\"\ncommand = [\"{}\", \"{}\"]\n",
        witness.display(),
        beats.display()
    );
    cluster.apply(&spec).await;
    cluster.whole("/t").await;
    let mut gaps = Vec::new();
    for _ in 0..RUNS {
        let before = cluster.row("/t/a").await;
        let home = before.node.clone().expect("it runs").to_string();
        cluster.node(&home).kill();
        let moved = |row: &TreeRow| row.state == State::Running && row.incarnation > before.incarnation;
        let after = wait_until("the move", SOON, async || cluster.row("/t/a").await, moved).await;
        let new = after.incarnation.expect("it runs").0;
        let lives = wait_until("its first beat", SOON, async || lives(&beats), |lives| lives.contains_key(&new)).await;
        let old = before.incarnation.expect("it ran").0;
        gaps.push(lives[&new].first - lives[&old].last);
        cluster.node(&home).start();
        cluster.all_up().await;
    }
    gaps
}

/// Clients write through the two followers, which drop what they wait for as soon as another leads.
async fn leader_gap() -> Vec<u64> {
    let mut gaps = Vec::new();
    for _ in 0..RUNS {
        let mut cluster = Cluster::start().await;
        cluster.apply("name = \"t\"\n[[children]]\nid = \"a\"\ncommand = [\"sleep\", \"1000\"]\n").await;
        cluster.whole("/t").await;
        let leader = cluster.leader().await;
        let done: Arc<Mutex<Vec<Instant>>> = Arc::default();
        let followers: Vec<_> = ["n1", "n2", "n3"].into_iter().filter(|name| *name != leader).collect();
        let writers: Vec<_> = (0..CLIENTS)
            .map(|nth| {
                let (client, done) = (cluster.client_of(followers[nth % followers.len()]), done.clone());
                tokio::spawn(async move {
                    loop {
                        // A write that changes nothing goes through the log like any other.
                        let reply = client.change(Change::Start(path("/t/a")), SOON).await;
                        if matches!(reply, Ok(Reply::Changed(_))) {
                            done.lock().expect("no panic under the lock").push(Instant::now());
                        }
                    }
                })
            })
            .collect();
        let count = async || done.lock().expect("no panic under the lock").len();
        wait_until("writes", SOON, count, |count| *count > 500).await;
        let killed = Instant::now();
        cluster.node(&leader).kill();
        let before = count().await;
        wait_until("writes again", SOON, count, |now| *now > before + 500).await;
        writers.iter().for_each(tokio::task::JoinHandle::abort);
        let mut times = done.lock().expect("no panic under the lock").clone();
        times.sort_unstable();
        let after = times.windows(2).filter(|pair| pair[1] > killed).map(|pair| pair[1] - pair[0]);
        gaps.push(millis(after.max().unwrap_or_default()));
    }
    gaps
}

async fn always_failing() -> (Vec<u64>, Vec<u64>) {
    let (mut starts, mut cpus) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let mut cluster = Cluster::start().await;
        let file = cluster.folder().join("starts");
        let pids: Vec<u32> = cluster.nodes().flat_map(|node| [node.pid(), node.guard()]).collect();
        let before: u64 = pids.iter().map(|pid| cpu(*pid)).sum();
        let spec = format!(
            "name = \"t\"\n[[children]]\nid = \"always\"\ncommand = [\"sh\", \"-c\", \"date +%s%3N >> {}; exit 1\"]\n\
             backoff = {{ base = \"50ms\", cap = \"1s\" }}\nintensity = \"unlimited\"\n",
            file.display()
        );
        cluster.apply(&spec).await;
        let began = Instant::now();
        wait_until("three seconds", SOON, async || began.elapsed(), |passed| *passed >= Duration::from_secs(3)).await;
        cpus.push(pids.iter().map(|pid| cpu(*pid)).sum::<u64>() - before);
        starts.push(within_three_seconds(&file));
    }
    (starts, cpus)
}

fn within_three_seconds(file: &Path) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let times: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    times.iter().filter(|at| **at - times[0] < 3_000).count() as u64
}

/// CPU time of a process so far, in milliseconds: /proc counts in hundredths of a second.
fn cpu(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.filter_map(|field| field.parse::<u64>().ok()).sum::<u64>() * 10
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

//! A log that outgrows its size: snapshots are taken, the log is cut, and who was away too long catches up by a snapshot.

use std::fs;
use std::path::Path as FilePath;

use pando_protocol::client::Client;
use pando_protocol::message::{Call, Found, Freshness, Query, Reply};
use pando_protocol::view::{MemberRole, MemberRow};
use pando_tests::cluster::{Cluster, NodeProcess, Options, SOON};
use pando_tests::wait::wait_until;

/// Applied specs, each of them some 600 KB in the log.
const ROUNDS: usize = 20;
/// Enough of them for a snapshot and a log that is cut, where nobody is away.
const FEW: usize = 8;
/// Below what the rounds weigh, above what a node with a log size of 1 MiB keeps: 4 MiB for followers, and files not yet full.
const KEPT: u64 = 8 << 20;

/// A tree that runs nothing, since no node has that label.
fn spec(round: usize) -> String {
    let filler = "x".repeat(60_000);
    let child = |id: String| {
        format!(
            "[[children]]\nid = \"{id}\"\ncommand = [\"true\"]\nplace = {{ require = [\"no=where\"] }}\n\
             env = {{ ROUND = \"{round}\", FILLER = \"{filler}\" }}\n"
        )
    };
    let others: String = (0..9).map(|n| child(format!("c{n}"))).collect();
    format!("name = \"t\"\n{others}{}", child(format!("round-{round}")))
}

fn bytes_below(folder: &FilePath) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).filter(fs::Metadata::is_file).map(|file| file.len()).sum()
}

/// The paths that a node knows by itself.
async fn paths_known_to(client: &Client) -> Vec<String> {
    let call = Call::Read { query: Query::Tree(None), freshness: Freshness::Stale };
    match client.call(call, SOON).await {
        Ok(Reply::Found { found: Found::Tree(rows), .. }) => rows.iter().map(|row| row.path.to_string()).collect(),
        _ => Vec::new(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_voter_that_was_away_while_the_log_was_cut_catches_up_by_a_snapshot_and_a_restart_of_all_keeps_the_state() {
    let flags = ["--log-size", "1"].map(String::from).to_vec();
    let mut cluster = Cluster::with(Options { flags, ..Options::default() }).await;
    let leader = cluster.leader().await;
    let away = ["n1", "n2", "n3"].into_iter().find(|name| *name != leader).expect("three voters");
    cluster.node(away).kill();
    cluster.node(away).wait_for_guard();
    for round in 1..=ROUNDS {
        cluster.apply(&spec(round)).await;
    }
    let log = cluster.node(&leader).data().join("log");
    let written = ROUNDS as u64 * 600_000;
    assert!(written > KEPT);
    wait_until("the leader's log to be cut", SOON, async || bytes_below(&log), |bytes| *bytes < KEPT).await;

    cluster.node(away).start();
    let newest = format!("/t/round-{ROUNDS}");
    let (client, newest) = (cluster.client_of(away), &newest);
    let look = async || paths_known_to(&client).await;
    wait_until("the voter that was away to know the newest tree", SOON, look, |paths| paths.contains(newest)).await;
    let told = fs::read_to_string(cluster.node(away).log()).expect("its log");
    assert!(told.contains("a snapshot of the leader took the place of the state"), "it caught up by the log alone");
    cluster.all_up().await;

    let before = cluster.tree().await;
    cluster.nodes().for_each(NodeProcess::kill);
    cluster.nodes().for_each(|node| node.wait_for_guard());
    cluster.nodes().for_each(NodeProcess::start);
    cluster.all_up().await;
    let paths = |rows: &[pando_protocol::view::TreeRow]| rows.iter().map(|row| row.path.clone()).collect::<Vec<_>>();
    assert_eq!(paths(&cluster.tree().await), paths(&before));
    let changed = cluster.apply(&spec(ROUNDS)).await;
    assert_eq!(changed.differences, [], "the spec is kept to the letter");
}

/// What it says before it ends without having begun.
#[track_caller]
fn refusal(node: &mut NodeProcess) -> String {
    node.start();
    let status = node.ended(SOON);
    let said = node.log_tail(20);
    assert_eq!(status.code(), Some(70), "{status}: {said}");
    said.lines().rfind(|line| line.starts_with("pando-node: ")).unwrap_or_default().to_owned()
}

async fn voters(cluster: &Cluster) -> Vec<MemberRow> {
    let call = Call::Read { query: Query::Members, freshness: Freshness::Linearizable };
    match cluster.client().call(call, SOON).await {
        Ok(Reply::Found { found: Found::Members(rows), .. }) => {
            rows.into_iter().filter(|row| row.role == MemberRole::Voter && row.answers == Some(true)).collect()
        }
        _ => Vec::new(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_snapshot_stops_its_node_names_the_place_and_the_repair_that_it_describes_works() {
    // Slow to elect, so that a busy machine does not: what is tested is one node's snapshot.
    let flags = ["--log-size", "1", "--network", "wan"].map(String::from).to_vec();
    let mut cluster = Cluster::with(Options { flags, ..Options::default() }).await;
    let leader = cluster.leader().await;
    let hurt = ["n1", "n2", "n3"].into_iter().find(|name| *name != leader).expect("three voters");
    let data = cluster.node(hurt).data();
    let (log, snapshot) = (data.join("log"), data.join("snapshot"));
    let oldest = || {
        let files = fs::read_dir(&log).expect("its log").flatten().map(|entry| entry.path());
        files.filter(|path| path.extension().is_some_and(|kind| kind == "wal")).min()
    };
    let first = oldest();
    for round in 1..=FEW {
        cluster.apply(&spec(round)).await;
    }
    wait_until("its log to be cut", SOON, async || (snapshot.exists(), oldest()), |now| now.0 && now.1 != first).await;
    cluster.node(hurt).kill();
    cluster.node(hurt).wait_for_guard();
    let good = fs::read(&snapshot).expect("its snapshot");

    type Harm = fn(&mut Vec<u8>);
    let harms: [(&str, Harm); 7] = [
        ("a byte of its header", |bytes| bytes[20] ^= 1),
        ("a byte in its middle", |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x40;
        }),
        ("its last byte", |bytes| *bytes.last_mut().expect("bytes") ^= 0x80),
        ("cut in half", |bytes| bytes.truncate(bytes.len() / 2)),
        ("three bytes short", |bytes| bytes.truncate(bytes.len() - 3)),
        ("empty", Vec::clear),
        ("another file", |bytes| *bytes = b"not a snapshot, but long enough to be one".to_vec()),
    ];
    for (harm, inflict) in harms {
        let mut bad = good.clone();
        inflict(&mut bad);
        fs::write(&snapshot, &bad).expect("damage");
        let said = refusal(cluster.node(hurt));
        println!("{harm}: {said}");
        assert!(said.contains(&format!("{} is damaged at byte ", snapshot.display())), "{harm}: {said}");
        assert!(said.contains("nothing was changed; move the data folder away"), "{harm}: {said}");
        assert!(fs::read(&snapshot).expect("it is there") == bad, "{harm}: it was changed");
    }
    fs::write(&snapshot, &good).expect("as it was");
    let aside = data.join("snapshot.bak");
    fs::rename(&snapshot, &aside).expect("another name");
    let said = refusal(cluster.node(hurt));
    assert!(said.contains("there is no snapshot: the newer snapshot is missing; nothing was changed; move"), "{said}");
    fs::rename(&aside, &snapshot).expect("its name");
    // With the log the votes are gone: as the same voter it must not come back.
    let log_aside = data.join("log.bak");
    fs::rename(&log, &log_aside).expect("another name");
    let said = refusal(cluster.node(hurt));
    assert!(said.contains(&format!("{} cannot be used: it is empty", log.display())), "{said}");
    assert!(said.contains("move the data folder away"), "{said}");
    fs::remove_dir_all(&log).expect("the empty log");
    fs::rename(&log_aside, &log).expect("its name");

    // What is no snapshot by its name hurts nobody.
    for name in ["snapshot-7.tmp", "snapshot.old", "snapshot-"] {
        fs::write(data.join(name), "half of something").expect("a stray file");
    }
    cluster.node(hurt).start();
    cluster.all_up().await;
    assert!(!data.join("snapshot-7.tmp").exists(), "what was left unfinished is removed");
    cluster.node(hurt).kill();
    cluster.node(hurt).wait_for_guard();

    // To the letter: move the data folder away, start the node again under the same name and address.
    let mut bad = good.clone();
    bad.truncate(good.len() / 2);
    fs::write(&snapshot, &bad).expect("damage");
    refusal(cluster.node(hurt));
    let before: Vec<_> = voters(&cluster).await.into_iter().map(|row| row.raft_id).collect();
    fs::rename(&data, data.with_file_name("data.away")).expect("moved away");
    cluster.node(hurt).start();
    let whole = |rows: &Vec<MemberRow>| {
        rows.len() == 3 && rows.iter().any(|row| row.name.as_str() == hurt && !before.contains(&row.raft_id))
    };
    wait_until("it to vote under a new id", SOON, async || voters(&cluster).await, whole).await;
    let (client, newest) = (cluster.client_of(hurt), format!("/t/round-{FEW}"));
    let look = async || paths_known_to(&client).await;
    wait_until("it to know the newest tree", SOON, look, |paths| paths.contains(&newest)).await;
    // It counts: with one of the others gone, it is half of the majority that confirms.
    let gone = ["n1", "n2", "n3"].into_iter().find(|name| *name != hurt && *name != leader).expect("another");
    cluster.node(gone).kill();
    assert_eq!(cluster.apply(&spec(FEW)).await.differences, [], "the spec is kept to the letter");
}

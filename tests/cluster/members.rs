//! Voters come, go, and lose their data, while the cluster runs.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pando_protocol::message::{Call, Change, Found, Freshness, Query, Reply};
use pando_protocol::session::NodeRole;
use pando_protocol::view::{MemberRole, MemberRow, State};
use pando_tests::cluster::{Cluster, Options, SOON, path, send, sleeper};
use pando_tests::wait::{wait_until, wait_until_blocking};
use rustix::process::Signal;

const TREE: &str = r#"
name = "t"
intensity = "unlimited"
[[children]]
id = "a"
command = ["sleep", "1000"]
[[children]]
id = "b"
command = ["sleep", "1000"]
"#;

/// `pando` with these words: its exit code, and what it said on both streams. Where it reaches no leader it is asked again: a
/// busy machine elects slowly, and what is asked for may be asked again.
pub(crate) fn pando(cluster: &Cluster, words: &str) -> (i32, String) {
    let ask = || {
        let output = cluster.cli(&words.split(' ').collect::<Vec<_>>());
        let said = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&said).into_owned())
    };
    wait_until_blocking("an answer of a leader", SOON, ask, |(code, said)| !matches!(code, 3) && !said.contains("lost"))
}

#[track_caller]
pub(crate) fn done(cluster: &Cluster, words: &str) -> String {
    let (code, said) = pando(cluster, words);
    assert_eq!(code, 0, "pando {words}: {said}");
    said
}

#[track_caller]
fn refused(cluster: &Cluster, words: &str, because: &str) {
    let (code, said) = pando(cluster, words);
    assert_eq!(code, 4, "pando {words}: {said}");
    assert!(said.contains(because), "pando {words}: {said}");
}

pub(crate) async fn members(cluster: &Cluster) -> Vec<MemberRow> {
    match cluster.ask(Query::Members).await {
        Found::Members(rows) => rows,
        other => panic!("{other:?}"),
    }
}

async fn voters(cluster: &Cluster) -> Vec<String> {
    let voters = members(cluster).await.into_iter().filter(|member| member.role == MemberRole::Voter);
    voters.map(|member| member.name.to_string()).collect()
}

/// Starts a node that waits to be added and knows `seed`.
fn join(cluster: &mut Cluster, node: &str, seed: &str) {
    let seed = format!("{seed}={}", cluster.address(seed));
    cluster.add_agent(node, &seed, &[&["--join"], &PATIENT[..]].concat());
}

/// A lease in which a machine that is busy with ten nodes elects a leader several times: what is tested is who votes.
pub(crate) const PATIENT: [&str; 2] = ["--lease", "10000"];

/// One voter with such a lease, and agents.
pub(crate) async fn one_voter(agents: usize) -> Cluster {
    let flags = PATIENT.map(str::to_owned).to_vec();
    Cluster::with(Options { voters: 1, agents, flags, ..Options::default() }).await
}

fn add(cluster: &Cluster, node: &str) -> String {
    done(cluster, &format!("cluster members add {node} {}", cluster.address(node)))
}

/// Restarts `/t/b` again and again through one node until told to stop, and counts how often that was confirmed.
fn write_on(cluster: &Cluster, node: &str, stop: &Arc<AtomicBool>) -> tokio::task::JoinHandle<usize> {
    let (client, stop) = (cluster.client_of(node), stop.clone());
    tokio::spawn(async move {
        let mut confirmed = 0;
        while !stop.load(Ordering::Relaxed) {
            let reply = client.change(Change::Restart(path("/t/b")), SOON).await;
            assert!(matches!(reply, Ok(Reply::Changed(_))), "{reply:?}");
            confirmed += 1;
        }
        confirmed
    })
}

async fn restarts_asked(cluster: &Cluster) -> usize {
    cluster.events().await.iter().filter(|event| event.kind == "member_restarted").count()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_voter_becomes_three_and_five_and_one_again_while_writes_go_on() {
    let mut cluster = one_voter(0).await;
    cluster.apply(TREE).await;
    cluster.whole("/t").await;
    let incarnation = cluster.row("/t/a").await.incarnation;
    let stop = Arc::new(AtomicBool::new(false));
    // Through n1 all the time: after its removal it passes them on.
    let writing = write_on(&cluster, "n1", &stop);
    for node in ["n2", "n3", "n4", "n5"] {
        join(&mut cluster, node, "n1");
        cluster.all_up().await;
        assert!(add(&cluster, node).contains("is a learner; once it has caught up"));
        assert!(add(&cluster, node).contains("is a learner already"), "asked for again");
        done(&cluster, &format!("cluster members promote {node}"));
    }
    assert_eq!(voters(&cluster).await, ["n1", "n2", "n3", "n4", "n5"]);
    let roles: Vec<_> = cluster.node_rows().await.iter().map(|row| row.role).collect();
    assert_eq!(roles, [NodeRole::Voter; 5]);
    for node in ["n1", "n2", "n3", "n4"] {
        done(&cluster, &format!("cluster members remove {node}"));
        assert!(done(&cluster, &format!("cluster members remove {node}")).contains("nothing to do"), "asked for again");
    }
    stop.store(true, Ordering::Relaxed);
    let confirmed = writing.await.expect("the writer");
    assert!(confirmed > 10, "only {confirmed} writes");
    assert_eq!(restarts_asked(&cluster).await, confirmed, "each write applied once");
    assert_eq!(voters(&cluster).await, ["n5"]);
    refused(&cluster, "cluster members remove n5", "the only voter");
    // Nobody but n5 is needed, and what ran goes on.
    let survivor = cluster.client_of("n5");
    let read = || Call::Read { query: Query::Members, freshness: Freshness::Linearizable };
    assert!(matches!(survivor.call(read(), SOON).await, Ok(Reply::Found { view, .. }) if view.confirmed));
    cluster.whole("/t").await;
    assert_eq!(cluster.row("/t/a").await.incarnation, incarnation, "no change of voters restarts a child");
    let rows: BTreeMap<_, _> = cluster.node_rows().await.into_iter().map(|row| (row.name.to_string(), row)).collect();
    assert_eq!((rows["n1"].role, rows["n5"].role), (NodeRole::Agent, NodeRole::Voter));
    assert!(rows.values().all(|row| row.losses == 0 && row.session.is_some()), "{rows:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_waits_to_be_added_runs_children_and_answers_nothing_of_its_own() {
    let mut cluster = one_voter(0).await;
    join(&mut cluster, "n2", "n1");
    cluster.all_up().await;
    cluster.apply(TREE).await;
    cluster.whole("/t").await;
    let homes: Vec<_> = cluster.tree().await.into_iter().filter_map(|row| row.node).collect();
    assert!(homes.iter().any(|home| home.as_str() == "n2"), "it runs children: {homes:?}");
    let waits = format!("waits to be added to the voters: `pando cluster members add n2 {}`", cluster.address("n2"));
    assert!(cluster.node("n2").log_tail(1_000).contains(&waits), "{}", cluster.node("n2").log_tail(1_000));
    let waiting = cluster.client_of("n2");
    // Even what may be old comes from a voter: its own state is empty.
    let read = || Call::Read { query: Query::Tree(None), freshness: Freshness::Stale };
    let answered_by = |reply| match reply {
        Ok(Reply::Found { found: Found::Tree(rows), view }) => (rows.len(), view.answered_by.to_string()),
        other => panic!("{other:?}"),
    };
    assert_eq!(answered_by(waiting.call(read(), SOON).await), (3, "n1".to_owned()));
    add(&cluster, "n2");
    done(&cluster, "cluster members promote n2");
    let own = async || answered_by(waiting.call(read(), SOON).await);
    wait_until("an answer of its own", SOON, own, |now| *now == (3, "n2".to_owned())).await;
    done(&cluster, "cluster members remove n2");
    wait_until("a voter's answer again", SOON, own, |now| *now == (3, "n1".to_owned())).await;
    // It remembers that it is no voter.
    cluster.node("n2").kill();
    cluster.node("n2").start();
    cluster.all_up().await;
    wait_until("a voter's answer after a restart", SOON, own, |now| *now == (3, "n1".to_owned())).await;
    refused(&cluster, &format!("cluster members add n2 {}", cluster.address("n2")), "holds a log already");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_would_lose_the_majority_is_refused_with_what_to_do() {
    let mut cluster = Cluster::start().await;
    join(&mut cluster, "n4", "n1");
    cluster.all_up().await;
    refused(
        &cluster,
        "cluster members promote n4",
        "`pando cluster members add n4 HOST:PORT` makes it a learner first",
    );
    let taken = cluster.address("n3").to_owned();
    refused(&cluster, &format!("cluster members add n4 {taken}"), "is where n3 answers");
    let free = pando_tests::cluster::free_address("127.0.0.1");
    refused(&cluster, &format!("cluster members add n4 {free}"), "start n4 with --join");
    add(&cluster, "n4");
    cluster.node("n4").kill();
    refused(&cluster, "cluster members promote n4", "it does not answer");
    cluster.node("n3").kill();
    refused(&cluster, "cluster members remove n2", "are needed: start n3, or remove n3 first");
    done(&cluster, "cluster members remove n3");
    done(&cluster, "cluster members remove n4");
    assert_eq!(voters(&cluster).await, ["n1", "n2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_voter_that_lost_its_data_folder_is_replaced_without_a_person() {
    let mut cluster = Cluster::start().await;
    cluster.apply(TREE).await;
    cluster.whole("/t").await;
    let before = members(&cluster).await;
    // The leader once, so that its successor does the work.
    for lost in ["n2".to_owned(), cluster.leader().await] {
        let id = |rows: &[MemberRow]| rows.iter().find(|row| row.name.as_str() == lost).map(|row| row.raft_id);
        let old = id(&members(&cluster).await);
        cluster.node(&lost).kill();
        cluster.node(&lost).wait_for_guard();
        fs::remove_dir_all(cluster.node(&lost).data()).expect("its data");
        cluster.node(&lost).start();
        let whole = |rows: &Vec<MemberRow>| {
            let are_voters = rows.iter().all(|row| row.role == MemberRole::Voter && row.answers == Some(true));
            rows.len() == 3 && are_voters && id(rows) != old
        };
        let look = async || match cluster.client().call(members_call(), SOON).await {
            Ok(Reply::Found { found: Found::Members(rows), view }) if view.confirmed => rows,
            _ => Vec::new(),
        };
        wait_until("three voters, one of them new", SOON, look, whole).await;
        cluster.all_up().await;
    }
    assert_ne!(members(&cluster).await, before);
    // They count: with one of the others gone, the two are a majority.
    let kept = ["n1", "n3"].into_iter().find(|name| *name != "n2").expect("one");
    cluster.node(kept).kill();
    cluster.whole("/t").await;
    assert_eq!(
        cluster.change(Change::Restart(path("/t/b"))).await.map(|changed| changed.differences.len()).ok(),
        Some(1)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_voter_that_lost_its_data_is_replaced_also_where_it_kept_a_child_and_that_waits_for_an_operator() {
    let mut cluster = Cluster::running(&format!("name = 't'\n{}on_disconnect = 'keep'\n", sleeper("a"))).await;
    let before = cluster.row("/t/a").await;
    let lost = cluster.home("/t/a").await;
    let id = |rows: &[MemberRow]| rows.iter().find(|row| row.name.as_str() == lost).map(|row| row.raft_id);
    let old = id(&members(&cluster).await);
    // Its machine dies with its disk: nobody reports that nothing runs there any more, and nothing is left that proves it.
    let guard = cluster.node(&lost).guard();
    cluster.node(&lost).signal(Signal::STOP);
    send(guard, Signal::KILL);
    cluster.node(&lost).kill();
    cluster.node(&lost).wait_for_guard();
    fs::remove_dir_all(cluster.node(&lost).data()).expect("its data");
    cluster.node(&lost).start();
    let is_replaced = |rows: &Vec<MemberRow>| {
        let are_voters = rows.iter().all(|row| row.role == MemberRole::Voter && row.answers == Some(true));
        rows.len() == 3 && are_voters && id(rows) != old
    };
    wait_until("three voters, one of them new", SOON, async || members(&cluster).await, is_replaced).await;
    cluster.all_up().await;

    let row = cluster.row("/t/a").await;
    assert_eq!((row.state, row.incarnation), (State::Unreachable, before.incarnation), "nobody knows that it is gone");
    let words = done(&cluster, "explain /t/a");
    let expected = format!("{lost} is back and knows nothing of it, and nothing is started in its place");
    assert!(words.contains(&expected), "{words}");
    let oath = format!("stops {lost}, says `pando node remove {lost} --dead`, and starts {lost} again");
    assert!(words.contains(&oath), "{words}");
    refused(&cluster, &format!("node remove {lost} --dead"), "stop its process first");

    cluster.node(&lost).terminate();
    cluster.node(&lost).wait_for_end();
    done(&cluster, &format!("node remove {lost} --dead"));
    let after = cluster.runs_anew("/t/a", &before).await;
    assert_eq!(after.restarts, 0, "nobody pays for it");
    cluster.node(&lost).start();
    cluster.all_up().await;
    assert_eq!(cluster.row("/t/a").await.incarnation, after.incarnation);
}

fn members_call() -> Call {
    Call::Read { query: Query::Members, freshness: Freshness::Linearizable }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_founder_that_lost_its_data_joins_its_cluster_and_begins_no_other() {
    let mut cluster = one_voter(0).await;
    for node in ["n2", "n3"] {
        join(&mut cluster, node, "n1");
        cluster.all_up().await;
        add(&cluster, node);
        done(&cluster, &format!("cluster members promote {node}"));
    }
    cluster.apply(TREE).await;
    cluster.node("n1").kill();
    cluster.node("n1").wait_for_guard();
    fs::remove_dir_all(cluster.node("n1").data()).expect("its data");
    // By its own configuration it is the only voter.
    cluster.node("n1").start();
    let look = async || match cluster.client_of("n2").call(members_call(), SOON).await {
        Ok(Reply::Found { found: Found::Members(rows), .. }) => rows,
        _ => Vec::new(),
    };
    let whole = |rows: &Vec<MemberRow>| rows.len() == 3 && rows.iter().all(|row| row.answers == Some(true));
    wait_until("n1 to be a member again", SOON, look, whole).await;
    let (founder, query) = (cluster.client_of("n1"), Query::Tree(None));
    let status = founder.call(Call::Read { query, freshness: Freshness::Linearizable }, SOON);
    assert!(
        matches!(status.await, Ok(Reply::Found { found: Found::Tree(rows), view }) if rows.len() == 3 && view.confirmed)
    );
    assert!(
        !cluster
            .node("n1")
            .log_tail(10_000)
            .split("the node starts")
            .last()
            .unwrap_or_default()
            .contains("initialising")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_finds_its_cluster_again_when_all_the_voters_it_was_configured_with_are_gone() {
    let mut cluster = one_voter(1).await;
    join(&mut cluster, "n3", "n1");
    cluster.all_up().await;
    add(&cluster, "n3");
    done(&cluster, "cluster members promote n3");
    done(&cluster, "cluster members remove n1");
    let told = |log: &String| log.contains("the voters are known") && log.contains(r#"voters=["n3"]"#);
    let log = cluster.node("n2").log();
    let read = async || fs::read_to_string(&log).unwrap_or_default();
    wait_until("the agent to know its new voter", SOON, read, told).await;
    cluster.node("n1").kill();
    cluster.node("n2").kill();
    cluster.node("n2").start();
    let seen = cluster.client_of("n3");
    let nodes =
        async || match seen.call(Call::Read { query: Query::Nodes, freshness: Freshness::Linearizable }, SOON).await {
            Ok(Reply::Found { found: Found::Nodes(rows), .. }) => rows,
            _ => Vec::new(),
        };
    let pid = cluster.node("n2").pid();
    wait_until("a session of the new process", SOON, nodes, |rows| rows.iter().any(|row| row.pid == Some(pid))).await;
    // And passes on what it is asked.
    let through = cluster.client_of("n2");
    assert!(matches!(through.call(members_call(), SOON).await, Ok(Reply::Found { view, .. }) if view.confirmed));
}

use pando_supervision::{Batch, Stamp};

use super::super::group::{Group, LIMIT, Timing};
use super::super::memory::MemorySnapshot;
use super::super::sealed::Sealed;
use super::super::types::LeaderId;
use super::*;
use crate::transport::fixture::{Cluster, Node};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_voters_elect_replicate_and_survive_the_stop_of_their_leader() {
    let mut group = Group::start(3, Timing::lan()).await;
    let first = group.leader().await;
    for _ in 0..20 {
        group.write(first).await;
    }
    group.kill(first).await;
    let second = group.leader().await;
    group.write(second).await;
    group.begin(first).await;
    group.leader().await;
    let others = group.others(first);
    let all = group.walls(others[0]);
    assert_eq!(all.len(), 21);
    group.eventually("the restarted voter to catch up", LIMIT, || (group.walls(first) == all).then_some(())).await;
    group.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_voter_that_missed_a_purged_log_gets_a_snapshot_in_chunks() {
    let mut group = Group::start(3, Timing::lan()).await;
    let leader = group.leader().await;
    let behind = group.others(leader)[0];
    group.write(leader).await;
    group.kill(behind).await;
    for _ in 0..10 {
        group.write(leader).await;
    }
    let raft = group.raft(leader);
    raft.trigger().snapshot().await.unwrap();
    let made = raft.wait(Some(LIMIT)).metrics(|metrics| metrics.snapshot.is_some(), "a snapshot").await.unwrap();
    raft.trigger().purge_log(made.snapshot.unwrap().index).await.unwrap();
    raft.wait(Some(LIMIT)).metrics(|metrics| metrics.purged.is_some(), "a purge").await.unwrap();
    group.begin(behind).await;
    let all = group.walls(leader);
    group.eventually("the snapshot", LIMIT * 2, || (group.walls(behind) == all).then_some(())).await;
    assert_eq!(group.installed(behind), 1);
    group.write(leader).await;
    group.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_voter_makes_no_majority_in_place_of_its_former_self() {
    let mut group = Group::start(3, Timing::lan()).await;
    let leader = group.leader().await;
    let [wiped, other] = group.others(leader)[..] else { panic!("not three voters") };
    group.write(leader).await;
    group.kill(wiped).await;
    group.kill(other).await;
    group.wipe(wiped);
    group.begin(wiped).await;
    let batch = Batch { stamp: Stamp { at: Duration::ZERO, wall: 0 }, commands: Vec::new() };
    let lonely = timeout(Duration::from_secs(2), group.raft(leader).client_write(Sealed::new(&batch).unwrap())).await;
    assert!(!matches!(lonely, Ok(Ok(_))), "one of three voters committed");
    assert!(group.walls(wiped).is_empty());
    group.kill(wiped).await;
    group.begin(other).await;
    let leader = group.leader().await;
    group.write(leader).await;
    group.stop().await;
}

/// A link from n1 to a node n2 that leaves its streams to the test.
fn link_to_silence(cluster: &Cluster) -> (Node, Node, Link<MemorySnapshot>) {
    let (near, far) = (cluster.node("n1"), cluster.node("n2"));
    let deadlines = Deadlines { append: Duration::from_millis(300), snapshot: Duration::from_millis(300) };
    let voter = Voter { name: "n2".parse().ok(), address: far.address.clone() };
    let link = Network::new(near.peers.clone(), deadlines).link(Lane::Raft, 2, &voter);
    (near, far, link)
}

fn heartbeat() -> AppendEntriesRequest<NodeTypes> {
    let leader_id = LeaderId { term: 1, node_id: 1 };
    let vote = Vote { leader_id, committed: true };
    AppendEntriesRequest { vote, prev_log_id: None, entries: Vec::new(), leader_commit: None }
}

#[tokio::test]
async fn an_append_stream_may_idle_but_not_owe_an_answer() {
    let cluster = Cluster::new("grove");
    let (_near, mut far, mut link) = link_to_silence(&cluster);
    let (requests, queue) = tokio::sync::mpsc::channel(4);
    let input = stream::unfold(queue, |mut queue| async move { Some((queue.recv().await?, queue)) }).boxed();
    let mut answers = link.stream_append(input, RPCOption::new(LIMIT)).await.unwrap();
    let mut follower = timeout(LIMIT, far.streams.recv()).await.unwrap().unwrap();
    assert!(timeout(Duration::from_millis(800), answers.next()).await.is_err(), "an idle stream was given up");

    requests.send(heartbeat()).await.unwrap();
    assert_eq!(follower.reader.expect::<wire::AppendHeader>().await.unwrap().to, 2);
    follower.writer.send(&AppendAnswer::Matches(None)).await.unwrap();
    assert!(matches!(timeout(LIMIT, answers.next()).await.unwrap(), Some(Ok(Ok(None)))));

    requests.send(heartbeat()).await.unwrap();
    let stalled = timeout(Duration::from_secs(2), answers.next()).await.expect("a stalled stream was not given up");
    assert!(matches!(stalled, Some(Err(RPCError::Unreachable(_)))));
    assert!(answers.next().await.is_none());
}

#[tokio::test]
async fn a_snapshot_ends_without_progress_and_when_it_is_cancelled() {
    let cluster = Cluster::new("grove");
    let (_near, mut far, mut link) = link_to_silence(&cluster);
    let vote = heartbeat().vote;
    let snapshot = || Snapshot { meta: wire::SnapshotMeta::default(), snapshot: MemorySnapshot::new(3 << 20) };
    let never = std::future::pending();
    let sent = link.full_snapshot(vote, snapshot(), never, RPCOption::new(LIMIT));
    let stalled = timeout(Duration::from_secs(2), sent).await.expect("a stalled snapshot was not given up");
    assert!(matches!(stalled, Err(StreamingError::Unreachable(_))));

    let cancelled = std::future::ready(ReplicationClosed::new("told to"));
    let sent = link.full_snapshot(vote, snapshot(), cancelled, RPCOption::new(LIMIT)).await;
    assert!(matches!(sent, Err(StreamingError::Closed(_))));
    let mut first = timeout(LIMIT, far.streams.recv()).await.unwrap().unwrap();
    assert!(matches!(first.reader.expect::<Envelope>().await.unwrap().request, Request::Snapshot(_)));
    let cut = async { while first.reader.expect::<Chunk>().await.is_ok_and(|chunk| !chunk.last) {} };
    timeout(LIMIT, cut).await.expect("a cut snapshot goes on");
}

#[test]
fn deadlines_follow_the_heartbeat() {
    let lan = Deadlines::for_heartbeat(Duration::from_millis(50));
    assert_eq!((lan.append, lan.snapshot), (Duration::from_millis(400), Duration::from_secs(5)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_for_another_id_or_from_another_leader_is_refused_with_the_reason() {
    let group = Group::start(3, Timing::lan()).await;
    let leader = group.leader().await;
    let [claimant, follower] = group.others(leader)[..] else { panic!("not three voters") };
    let (own, address, wrong) = (group.raft_id(follower), group.voter(follower), group.raft_id(follower) + 1);
    for (to, node, because) in [(wrong, group.raft_id(claimant), "is for"), (own, group.raft_id(leader), "belongs to")]
    {
        let peers = group.peers(claimant);
        let deadlines = Deadlines::for_heartbeat(Duration::from_millis(100));
        let mut link = Network::<MemorySnapshot>::new(peers, deadlines).link(Lane::Raft, to, &address);
        let vote = Vote { leader_id: LeaderId { term: 99, node_id: node }, committed: true };
        let request = AppendEntriesRequest { vote, ..heartbeat() };
        let input = stream::iter([request]);
        let mut answers = link.stream_append(input, RPCOption::new(LIMIT)).await.unwrap();
        let refused = timeout(LIMIT, answers.next()).await.unwrap();
        let Some(Err(RPCError::Unreachable(why))) = refused else { panic!("{refused:?}") };
        assert!(why.to_string().contains(because), "{why}");
    }
    group.stop().await;
}

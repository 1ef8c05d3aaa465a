use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::super::group::{Group, LIMIT, SESSION_IS_OVER, Timing};
use super::*;

/// Voters by name, as the last committed membership of `index` has them.
fn voters(group: &Group, index: usize) -> Vec<(NodeName, RaftId)> {
    let metrics = group.raft(index).server_metrics();
    let metrics = metrics.borrow_watched();
    let membership = metrics.committed_membership_config.membership();
    let named = |id| Some((membership.get_node(&id)?.name.clone()?, id));
    let mut voters: Vec<_> = membership.voter_ids().filter_map(named).collect();
    voters.sort();
    voters
}

fn names(group: &Group, index: usize) -> Vec<String> {
    voters(group, index).into_iter().map(|(name, _)| name.to_string()).collect()
}

async fn add_voter(group: &mut Group) -> usize {
    let index = group.join().await;
    assert_eq!(group.change(group.addition(index)).await, Ok(true));
    assert_eq!(group.change(MemberChange::Promote(group.name(index))).await, Ok(true));
    index
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_voter_becomes_three_and_five_and_one_again_and_keeps_every_write() {
    let mut group = Group::start(1, Timing::lan()).await;
    let mut written = vec![group.write(group.leader().await).await];
    for index in 1..5 {
        assert_eq!(add_voter(&mut group).await, index);
        written.push(group.write(group.leader().await).await);
    }
    let leader = group.leader().await;
    assert_eq!(names(&group, leader), ["n0", "n1", "n2", "n3", "n4"]);
    // Asked for again: it is done.
    assert_eq!(group.change(group.addition(4)).await, Ok(false));
    assert_eq!(group.change(MemberChange::Promote(group.name(4))).await, Ok(false));
    for index in 0..4 {
        assert_eq!(group.change(MemberChange::Remove(group.name(index))).await, Ok(true), "n{index}");
        written.push(group.write(group.leader().await).await);
        assert_eq!(group.change(MemberChange::Remove(group.name(index))).await, Ok(false), "n{index}");
    }
    assert_eq!(group.leader().await, 4, "every one that led before it was removed");
    assert_eq!(names(&group, 4), ["n4"]);
    let kept = group.walls(4);
    assert!(written.iter().all(|wall| kept.contains(wall)), "{written:?} in {kept:?}");
    let last = group.change(MemberChange::Remove(group.name(4))).await;
    assert!(matches!(&last, Err(NotChanged::Refused(why)) if why.contains("the only voter")), "{last:?}");
    group.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_not_there_or_holds_other_data_is_not_added() {
    let mut group = Group::start(1, Timing::lan()).await;
    group.leader().await;
    let gone = group.join().await;
    group.kill(gone).await;
    let unreached = group.change(group.addition(gone)).await;
    assert!(matches!(&unreached, Err(NotChanged::Refused(why)) if why.contains("with --join")), "{unreached:?}");
    group.begin(gone).await;
    assert_eq!(group.change(group.addition(gone)).await, Ok(true));
    group.write(group.leader().await).await;
    assert_eq!(group.change(MemberChange::Remove(group.name(gone))).await, Ok(true));
    let former = group.change(group.addition(gone)).await;
    assert!(matches!(&former, Err(NotChanged::Refused(why)) if why.contains("holds a log already")), "{former:?}");
    group.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_addition_that_was_lost_with_its_leader_is_asked_for_again() {
    let mut group = Group::start(3, Timing::lan()).await;
    let leader = group.leader().await;
    let followers = group.others(leader);
    group.write(leader).await;
    let new = group.join().await;
    for follower in &followers {
        group.kill(*follower).await;
    }
    // Nobody but the new one gets the entry.
    let lost = group.change_at(leader, group.addition(new)).await;
    assert!(matches!(lost, Err(NotChanged::Unknown(_))), "{lost:?}");
    let has_entries = || {
        let metrics = group.raft(new).server_metrics();
        let has_entries = metrics.borrow_watched().membership_config.log_id().is_some();
        has_entries.then_some(())
    };
    group.eventually("the new one to have entries", LIMIT, has_entries).await;
    group.kill(leader).await;
    for follower in followers {
        group.begin(follower).await;
    }
    let successor = group.leader().await;
    assert!(!names(&group, successor).contains(&group.name(new).to_string()));
    assert_eq!(group.change(group.addition(new)).await, Ok(true));
    group.write(group.leader().await).await;
    assert_eq!(group.change(MemberChange::Promote(group.name(new))).await, Ok(true));
    assert_eq!(names(&group, group.leader().await).len(), 4);
    group.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_voter_is_replaced_under_its_name_and_never_counts_under_its_old_id() {
    let mut group = Group::start(3, Timing::lan()).await;
    let leader = group.leader().await;
    let lost = group.others(leader)[0];
    let old = group.raft_id(lost);
    group.write(leader).await;
    group.kill(lost).await;
    group.wipe(lost);
    group.begin(lost).await;
    let begun = Instant::now();
    let (name, new) = (group.name(lost), group.raft_id(lost));
    let look = || {
        let now = voters(&group, leader);
        let ids: Vec<_> = now.iter().filter(|(other, _)| *other == name).map(|(_, id)| *id).collect();
        if ids.contains(&new) {
            assert!(begun.elapsed() >= SESSION_IS_OVER, "something could still run under its session");
        }
        (ids == [new]).then_some(())
    };
    group.eventually("the new id to be a voter", LIMIT, look).await;
    group.write(leader).await;
    let stored = group.raft(leader).server_metrics().borrow_watched().membership_config.membership().clone();
    assert!(stored.get_node(&old).is_none(), "{stored:?}");
    group.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_was_left_half_done_is_finished() {
    let group = Group::start(3, Timing::lan()).await;
    let leader = group.leader().await;
    group.write(leader).await;
    let now = group.raft(leader).server_metrics().borrow_watched().membership_config.membership().clone();
    let all: BTreeSet<RaftId> = now.voter_ids().collect();
    let gone = group.raft_id(group.others(leader)[0]);
    let rest: BTreeSet<RaftId> = all.iter().copied().filter(|id| *id != gone).collect();
    let nodes: BTreeMap<_, _> = now.nodes().map(|(id, node)| (*id, node.clone())).collect();
    let joint = super::super::types::Membership::new(vec![all, rest.clone()], nodes).unwrap();
    group.raft(leader).append_membership(joint, openraft::EntryPayload::Blank, []).await.unwrap();
    let look = || {
        let metrics = group.raft(leader).server_metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.committed_membership_config.membership();
        (membership.get_joint_config() == &vec![rest.clone()]).then_some(())
    };
    group.eventually("one set of voters", LIMIT, look).await;
    group.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_founder_that_comes_back_empty_begins_no_second_cluster() {
    let mut group = Group::start(1, Timing::lan()).await;
    group.leader().await;
    add_voter(&mut group).await;
    add_voter(&mut group).await;
    // By its configuration it is the only voter still.
    group.kill(0).await;
    group.wipe(0);
    let leader = group.leader().await;
    group.begin(0).await;
    let (name, new) = (group.name(0), group.raft_id(0));
    let replaced = || voters(&group, leader).contains(&(name.clone(), new)).then_some(());
    group.eventually("it to be replaced", LIMIT, replaced).await;
    group.write(group.leader().await).await;

    // Once removed nobody looks for it any more: a leader's word keeps it from beginning.
    assert_eq!(group.change(MemberChange::Remove(group.name(0))).await, Ok(true));
    group.kill(0).await;
    group.wipe(0);
    group.begin(0).await;
    let begins = async {
        while !group.raft(0).is_initialized().await.unwrap() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let begun = timeout(Duration::from_secs(3), begins).await;
    assert!(begun.is_err(), "it has begun a second cluster");
    group.stop().await;
}

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::super::group::{Group, LIMIT, SESSION_IS_OVER, Timing};
use super::*;

fn named(name: &str) -> NodeName {
    name.parse().unwrap()
}

/// A member at `NAME:1` that answers; the role by its first letter.
fn member(name: &str, raft_id: RaftId, role: MemberRole) -> MemberRow {
    let address = format!("{name}:1");
    MemberRow { name: named(name), raft_id, role, address, lag: Some(0), answers: Some(true) }
}

fn silent(name: &str, raft_id: RaftId, role: MemberRole) -> MemberRow {
    MemberRow { answers: Some(false), lag: Some(900_000), ..member(name, raft_id, role) }
}

/// Led by the first.
fn assembly(members: Vec<MemberRow>) -> Assembly {
    Assembly { leader: members[0].raft_id, members, entry: None }
}

fn three() -> Vec<MemberRow> {
    vec![member("n1", 1, MemberRole::Voter), member("n2", 2, MemberRole::Voter), member("n3", 3, MemberRole::Voter)]
}

fn add(name: &str, address: &str) -> MemberChange {
    MemberChange::Add { name: named(name), address: address.into() }
}

fn promote(name: &str) -> MemberChange {
    MemberChange::Promote(named(name))
}

fn remove(name: &str) -> MemberChange {
    MemberChange::Remove(named(name))
}

fn refused(change: &MemberChange, members: Vec<MemberRow>, because: &str) {
    match judge(change, &assembly(members)) {
        Step::Refuse(why) => assert!(why.contains(because), "{why}"),
        other => panic!("{other:?} instead of: {because}"),
    }
}

#[test]
fn what_is_so_already_is_done() {
    let now = assembly(three());
    assert_eq!(judge(&add("n3", "n3:1"), &now), Step::Done);
    assert_eq!(judge(&promote("n3"), &now), Step::Done);
    assert_eq!(judge(&remove("n9"), &now), Step::Done);
}

#[test]
fn a_new_member_is_reached_first_and_two_never_share_a_name_or_an_address() {
    assert_eq!(judge(&add("n4", "n4:1"), &assembly(three())), Step::Reach);
    refused(&add("n4", "n3:1"), three(), "is where n3 answers");
    refused(&add("n3", "n4:1"), three(), "is a member already, at n3:1");
}

#[test]
fn a_learner_votes_only_when_it_is_there_has_caught_up_and_a_majority_would_be() {
    let with = |learner: MemberRow| [three(), vec![learner]].concat();
    let learner = || member("n4", 4, MemberRole::Learner);
    assert_eq!(judge(&promote("n4"), &assembly(with(learner()))), Step::Vote { new: 4, instead_of: None });
    refused(&promote("n4"), three(), "`pando cluster members add n4 HOST:PORT`");
    refused(&promote("n4"), with(silent("n4", 4, MemberRole::Learner)), "does not answer at n4:1");
    refused(&promote("n4"), with(MemberRow { lag: Some(CAUGHT_UP + 1), ..learner() }), "1001 entries behind");
    refused(&promote("n4"), with(MemberRow { lag: None, ..learner() }), "an unknown number of entries");
    let mut seven: Vec<_> = (1..=7).map(|id| member(&format!("n{id}"), id, MemberRole::Voter)).collect();
    seven.push(member("n8", 8, MemberRole::Learner));
    refused(&promote("n8"), seven, "7 voters already");
    // Two of four would be there: the new one could not even commit that it votes.
    let mut cut = with(learner());
    (cut[1], cut[2]) = (silent("n2", 2, MemberRole::Voter), silent("n3", 3, MemberRole::Voter));
    refused(&promote("n4"), cut, "of the 4 voters that there would be, 2 answer, and 3 are needed: start n2, n3");
}

#[test]
fn a_voter_goes_only_where_those_that_stay_and_answer_are_a_majority() {
    assert_eq!(judge(&remove("n3"), &assembly(three())), Step::Demote(3));
    assert_eq!(judge(&remove("n1"), &assembly(three())), Step::HandOver, "the leader");
    let mut with_dead = three();
    with_dead[1] = silent("n2", 2, MemberRole::Voter);
    refused(
        &remove("n3"),
        with_dead.clone(),
        "of the 2 voters that there would be, 1 answer, and 2 are needed: start n2",
    );
    assert_eq!(judge(&remove("n2"), &assembly(with_dead)), Step::Demote(2), "the dead one itself may go");
    refused(&remove("n1"), vec![member("n1", 1, MemberRole::Voter)], "the only voter");
    let learners = |learner| assembly([three(), vec![learner]].concat());
    let fresh = member("n4", 4, MemberRole::Learner);
    assert_eq!(judge(&remove("n4"), &learners(fresh.clone())), Step::Drop { id: 4, hears: false });
    let behind = MemberRow { lag: Some(2), ..fresh };
    assert_eq!(judge(&remove("n4"), &learners(behind)), Step::Drop { id: 4, hears: true });
}

#[test]
fn a_voter_that_lost_its_data_is_replaced_learner_first_once_its_session_is_over() {
    let actual = |raft_id, initialised| Introduction { name: named("n3"), raft_id, initialised, rules: 1 };
    let n3 = named("n3");
    let mut now = assembly(three());
    assert_eq!(replacement(&n3, &actual(3, true), true, &now), [], "it is who it was");
    now.members[2] = silent("n3", 3, MemberRole::Voter);
    let empty = actual(30, false);
    assert_eq!(replacement(&n3, &empty, false, &now), [], "something may still run under its session");
    assert_eq!(replacement(&n3, &actual(30, true), true, &now), [], "foreign data");
    let learn = Replacement::Learn { id: 30, address: "n3:1".into() };
    assert_eq!(replacement(&n3, &empty, true, &now), [learn]);
    // Its first entries make it initialised; it is known by its id then.
    now.members.push(MemberRow { lag: Some(CAUGHT_UP + 1), ..member("n3", 30, MemberRole::Learner) });
    assert_eq!(replacement(&n3, &actual(30, true), true, &now), [], "it has not caught up");
    now.members[3].lag = Some(3);
    let vote = Replacement::Vote { new: 30, instead_of: 3 };
    assert_eq!(replacement(&n3, &actual(30, true), true, &now), [vote]);
    // Lost again on the way.
    assert_eq!(
        replacement(&n3, &actual(31, false), true, &now),
        [Replacement::Drop(30), Replacement::Learn { id: 31, address: "n3:1".into() }]
    );
    // What is left over afterwards goes.
    now.members[2].role = MemberRole::Learner;
    now.members[3].role = MemberRole::Voter;
    assert_eq!(replacement(&n3, &actual(30, true), true, &now), [Replacement::Drop(3)]);
}

#[test]
fn a_lost_voter_is_not_replaced_where_the_new_ones_would_be_no_majority() {
    let mut now = assembly(three());
    now.members[1] = silent("n2", 2, MemberRole::Voter);
    now.members[2] = silent("n3", 3, MemberRole::Voter);
    now.members.push(silent("n3", 30, MemberRole::Learner));
    let actual = Introduction { name: named("n3"), raft_id: 30, initialised: true, rules: 1 };
    assert_eq!(replacement(&named("n3"), &actual, true, &now), []);
}

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

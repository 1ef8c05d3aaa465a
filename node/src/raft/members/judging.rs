//! What is to be done about the members of Raft: the next step toward what a person asked for, and the replacement of a member
//! that lost its data. Pure: who asks and writes is [`super::Keeper`].

use std::collections::{BTreeMap, BTreeSet};

use pando_protocol::ids::NodeName;
use pando_protocol::message::MemberChange;
use pando_protocol::view::{MemberRole, MemberRow};

use crate::raft::types::{LogId, RaftId};
use crate::raft::wire::Introduction;

/// The members, as the leader sees them, and the log entry that made them so.
#[derive(Debug, Clone)]
pub struct Assembly {
    /// Everybody.
    pub members: Vec<MemberRow>,
    /// The leader.
    pub leader: RaftId,
    /// The entry; `None` before the first.
    pub entry: Option<LogId>,
    /// The version of the rules that the state is under.
    pub rules: u32,
    /// The newest version that each one knows who was asked.
    pub known: BTreeMap<RaftId, u32>,
}

/// The next step toward what was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// It is so.
    Done,
    /// A new member is to be reached, and made a learner.
    Reach,
    /// A learner becomes a voter; the voter of the same name, which lost its data, goes in the same change.
    Vote {
        /// The learner.
        new: RaftId,
        /// What it was before.
        instead_of: Option<RaftId>,
    },
    /// Leadership moves away from the one that is to go.
    HandOver,
    /// A voter becomes a learner.
    Demote(RaftId),
    /// A learner goes; `hears` says that it is there and has not heard yet that it is no voter any more.
    Drop {
        /// The learner.
        id: RaftId,
        /// Whether it is worth waiting for.
        hears: bool,
    },
    /// Not now: why, and what to do.
    Refuse(String),
}

/// What to do next about a change that was asked for.
pub fn judge(change: &MemberChange, now: &Assembly) -> Step {
    let of_name = |role: MemberRole| now.members.iter().find(|m| m.name == *change.name() && m.role == role);
    let (voter, learner) = (of_name(MemberRole::Voter), of_name(MemberRole::Learner));
    match change {
        MemberChange::Add { name, address } => {
            if let Some(other) = now.members.iter().find(|m| m.address == *address && m.name != *name) {
                return Step::Refuse(format!(
                    "{address} is where {} answers: give {name} an address of its own",
                    other.name
                ));
            }
            match voter.or(learner) {
                Some(member) if member.address == *address => Step::Done,
                Some(member) => Step::Refuse(format!(
                    "it is a member already, at {}: `pando cluster members remove {name}` first, then add it at {address}",
                    member.address
                )),
                None => Step::Reach,
            }
        }
        MemberChange::Promote(name) => match (voter, learner) {
            (None, None) => Step::Refuse(format!(
                "it is no member: `pando cluster members add {name} HOST:PORT` makes it a learner first"
            )),
            (Some(_), None) => Step::Done,
            (old, Some(new)) => match may_vote(now, new, old.map(|old| old.raft_id)) {
                Ok(()) => Step::Vote { new: new.raft_id, instead_of: old.map(|old| old.raft_id) },
                Err(why) => Step::Refuse(why),
            },
        },
        MemberChange::Remove(_) => match (voter, learner) {
            (None, None) => Step::Done,
            (Some(voter), _) => match may_go(now, voter) {
                Ok(()) if voter.raft_id == now.leader => Step::HandOver,
                Ok(()) => Step::Demote(voter.raft_id),
                Err(why) => Step::Refuse(why),
            },
            (None, Some(learner)) => {
                Step::Drop { id: learner.raft_id, hears: learner.answers == Some(true) && learner.lag != Some(0) }
            }
        },
    }
}

/// What is to be done about the member `name` on its own account, which says now that it is `actual`: it is replaced where it
/// lost its data. `is_over`: nothing runs any more under a session from before.
pub fn replacement(name: &NodeName, actual: &Introduction, is_over: bool, now: &Assembly) -> Vec<Replacement> {
    let of_name = || now.members.iter().filter(|member| member.name == *name);
    let voter = of_name().find(|member| member.role == MemberRole::Voter);
    let learners = of_name().filter(|member| member.role == MemberRole::Learner);
    if voter.is_some_and(|voter| voter.raft_id == actual.raft_id) {
        return learners.map(|learner| Replacement::Drop(learner.raft_id)).collect();
    }
    let mut todo: Vec<_> =
        learners.filter(|l| l.raft_id != actual.raft_id).map(|l| Replacement::Drop(l.raft_id)).collect();
    let known = of_name().find(|member| member.raft_id == actual.raft_id);
    let address = of_name().next().map(|member| member.address.clone()).unwrap_or_default();
    match (known, voter) {
        // It holds the data of who knows whom.
        (None, _) if actual.initialised => return Vec::new(),
        (None, Some(_)) if !is_over => return Vec::new(),
        (None, _) if now.ensure_known(actual.rules).is_err() => {}
        (None, _) => todo.push(Replacement::Learn { id: actual.raft_id, address }),
        (Some(new), Some(old)) if is_over && may_vote(now, new, Some(old.raft_id)).is_ok() => {
            todo.push(Replacement::Vote { new: new.raft_id, instead_of: old.raft_id });
        }
        (Some(_), _) => {}
    }
    todo
}

/// A step of the leader's own replacement of a member that lost its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replacement {
    /// A learner's id that is lost goes.
    Drop(RaftId),
    /// The new id becomes a learner.
    Learn {
        /// It.
        id: RaftId,
        /// Where it answers.
        address: String,
    },
    /// The new id votes, in the one change in which the lost one goes.
    Vote {
        /// The new id.
        new: RaftId,
        /// The lost one.
        instead_of: RaftId,
    },
}

/// Whether a learner may vote from now on.
fn may_vote(now: &Assembly, new: &MemberRow, instead_of: Option<RaftId>) -> Result<(), String> {
    let mut after: BTreeSet<RaftId> = now.voters().map(|voter| voter.raft_id).collect();
    if let Some(old) = instead_of {
        after.remove(&old);
    }
    after.insert(new.raft_id);
    if after.len() > MOST_VOTERS {
        return Err(format!("there are {MOST_VOTERS} voters already, which are the most: remove one first"));
    }
    if new.answers != Some(true) {
        return Err(format!("it does not answer at {}: start it, or remove it", new.address));
    }
    if let Some(known) = now.known.get(&new.raft_id) {
        now.ensure_known(*known)?;
    }
    match new.lag {
        Some(lag) if lag <= CAUGHT_UP => {}
        lag => {
            let lag = lag.map_or("an unknown number of".to_owned(), |lag| lag.to_string());
            return Err(format!(
                "it is {lag} entries behind, and at most {CAUGHT_UP} are allowed: wait until `pando cluster members` shows less"
            ));
        }
    }
    ensure_majority(now, &after)
}

/// Whether a voter may go.
fn may_go(now: &Assembly, voter: &MemberRow) -> Result<(), String> {
    let after: BTreeSet<RaftId> =
        now.voters().map(|other| other.raft_id).filter(|other| *other != voter.raft_id).collect();
    if after.is_empty() {
        return Err("it is the only voter, and a cluster has at least one: promote another one first".into());
    }
    ensure_majority(now, &after)
}

/// Whether those of these voters that answer now are a majority of them.
fn ensure_majority(now: &Assembly, voters: &BTreeSet<RaftId>) -> Result<(), String> {
    let member = |id: &RaftId| now.members.iter().find(|member| member.raft_id == *id);
    let silent: Vec<_> = voters.iter().filter_map(member).filter(|member| member.answers != Some(true)).collect();
    let (there, needed) = (voters.len() - silent.len(), voters.len() / 2 + 1);
    if there >= needed {
        return Ok(());
    }
    let silent: Vec<_> = silent.iter().map(|member| member.name.to_string()).collect();
    let silent = silent.join(", ");
    Err(format!(
        "of the {} voters that there would be, {there} answer, and {needed} are needed: start {silent}, or remove {silent} first",
        voters.len()
    ))
}

impl Assembly {
    fn voters(&self) -> impl Iterator<Item = &MemberRow> {
        self.members.iter().filter(|member| member.role == MemberRole::Voter)
    }

    /// Whether a program that knows the rules up to `known` can apply what is in the log: it stops where it cannot.
    pub fn ensure_known(&self, known: u32) -> Result<(), String> {
        if known >= self.rules {
            return Ok(());
        }
        Err(format!(
            "its program knows the rules up to version {known}, and the cluster goes by version {}: start it with the program \
             that the voters run",
            self.rules
        ))
    }
}

/// A learner that is so few entries behind has caught up: what a busy leader writes in some 100 ms.
const CAUGHT_UP: u64 = 1_000;
/// More voters make each write slower, and save nobody.
const MOST_VOTERS: usize = 7;

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: u32 = 2;

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
        let known = members.iter().map(|member| (member.raft_id, RULES)).collect();
        Assembly { leader: members[0].raft_id, members, entry: None, rules: RULES, known }
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
        let actual = |raft_id, initialised| Introduction { name: named("n3"), raft_id, initialised, rules: RULES };
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
    fn one_whose_program_is_too_old_for_the_rules_of_the_cluster_neither_votes_nor_learns() {
        let mut now = assembly([three(), vec![member("n4", 4, MemberRole::Learner)]].concat());
        for (known, may) in [(RULES - 1, false), (RULES, true), (RULES + 1, true)] {
            now.known.insert(4, known);
            match judge(&promote("n4"), &now) {
                Step::Vote { .. } => assert!(may, "{known}"),
                Step::Refuse(why) => {
                    let expected = "knows the rules up to version 1, and the cluster goes by version 2: start it with";
                    assert!(!may && why.contains(expected), "{why}");
                }
                other => panic!("{other:?}"),
            }
        }
        // The same for one that lost its data and comes back with such a program.
        let n3 = named("n3");
        let actual = |rules| Introduction { name: n3.clone(), raft_id: 30, initialised: false, rules };
        now.members[2] = silent("n3", 3, MemberRole::Voter);
        assert_eq!(replacement(&n3, &actual(RULES - 1), true, &now), []);
        let learn = Replacement::Learn { id: 30, address: "n3:1".into() };
        assert_eq!(replacement(&n3, &actual(RULES), true, &now), [learn]);
        now.members.push(member("n3", 30, MemberRole::Learner));
        let vote = Replacement::Vote { new: 30, instead_of: 3 };
        for (known, expected) in [(RULES - 1, vec![]), (RULES, vec![vote])] {
            now.known.insert(30, known);
            assert_eq!(replacement(&n3, &actual(known), true, &now), expected);
        }
    }

    #[test]
    fn a_lost_voter_is_not_replaced_where_the_new_ones_would_be_no_majority() {
        let mut now = assembly(three());
        now.members[1] = silent("n2", 2, MemberRole::Voter);
        now.members[2] = silent("n3", 3, MemberRole::Voter);
        now.members.push(silent("n3", 30, MemberRole::Learner));
        let actual = Introduction { name: named("n3"), raft_id: 30, initialised: true, rules: RULES };
        assert_eq!(replacement(&named("n3"), &actual, true, &now), []);
    }
}

//! Answers questions about Raft itself: its voters, and where leadership should be.

use std::collections::BTreeSet;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::storage::RaftStateMachine;
use openraft::{AsyncRuntime, Instant, Raft};
use pando_protocol::ids::NodeName;
use pando_protocol::view::{MemberRole, MemberRow, VoterRow};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::types::{RaftId, Types};
use crate::control::Question;

/// Answers until `stop`. Each transfer runs in a task of its own and has `limit` to come true.
pub async fn answer<R: AsyncRuntime, SM: RaftStateMachine<Types<R>>>(
    raft: Raft<Types<R>, SM>,
    own: RaftId,
    mut questions: mpsc::Receiver<Question>,
    limit: Duration,
    stop: CancellationToken,
) {
    loop {
        let question = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            question = questions.recv() => question,
        };
        match question {
            None => return,
            Some(Question::Voters(reply)) => _ = reply.send(voters(&raft)),
            Some(Question::Members(reply)) => _ = reply.send(members(&raft)),
            Some(Question::Transfer { to, reply }) => {
                let raft = raft.clone();
                drop(R::spawn(async move {
                    _ = reply.send(transfer(&raft, own, to, limit).await);
                }));
            }
        }
    }
}

fn voters<R: AsyncRuntime, SM: RaftStateMachine<Types<R>>>(raft: &Raft<Types<R>, SM>) -> Vec<VoterRow> {
    let voters = members(raft).into_iter().filter(|member| member.role == MemberRole::Voter);
    voters.map(|MemberRow { name, raft_id, address, lag, .. }| VoterRow { name, raft_id, address, lag }).collect()
}

/// Everybody in the membership that holds here, in order of name.
pub(super) fn members<R: AsyncRuntime, SM: RaftStateMachine<Types<R>>>(raft: &Raft<Types<R>, SM>) -> Vec<MemberRow> {
    let answering = answering(raft);
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    let last = metrics.last_log_index.unwrap_or(0);
    let membership = metrics.membership_config.membership();
    let voters: BTreeSet<RaftId> = membership.voter_ids().collect();
    let leads = metrics.replication.is_some();
    let lag = |id: &RaftId| {
        let replication = metrics.replication.as_ref()?;
        let matched = replication.get(id)?.as_ref().map_or(0, |matched| matched.index);
        Some(last.saturating_sub(matched))
    };
    let row = |(id, node): (&RaftId, &super::types::Voter)| {
        let is_leader = *id == metrics.id && leads;
        Some(MemberRow {
            name: node.name.clone()?,
            raft_id: *id,
            role: if voters.contains(id) { MemberRole::Voter } else { MemberRole::Learner },
            address: node.address.clone(),
            lag: if is_leader { Some(0) } else { lag(id) },
            answers: leads.then(|| is_leader || answering.contains(id)),
        })
    };
    let mut rows: Vec<_> = membership.nodes().filter_map(row).collect();
    rows.sort_by(|a, b| (&a.name, a.role, a.raft_id).cmp(&(&b.name, b.role, b.raft_id)));
    rows
}

/// Moves leadership from this node, and returns the new leader.
///
/// # Errors
/// Why not, and what to do.
pub(super) async fn transfer<R: AsyncRuntime, SM: RaftStateMachine<Types<R>>>(
    raft: &Raft<Types<R>, SM>,
    own: RaftId,
    to: Option<NodeName>,
    limit: Duration,
) -> Result<NodeName, String> {
    let target = choose(&voters(raft), own, to.as_ref(), &answering(raft))?;
    if target.raft_id == own {
        return Ok(target.name);
    }
    raft.trigger().transfer_leader(target.raft_id).await.map_err(|fatal| fatal.to_string())?;
    let metrics = raft.wait(Some(limit));
    let leads = metrics.metrics(|metrics| metrics.current_leader == Some(target.raft_id), "the new leader leads").await;
    match leads {
        Ok(_) => Ok(target.name),
        Err(_) => Err(format!(
            "it does not lead after {limit:?}: is it up, and how far behind? `pando cluster status` shows both"
        )),
    }
}

/// The voters that answered this leader a moment ago.
fn answering<R: AsyncRuntime, SM: RaftStateMachine<Types<R>>>(raft: &Raft<Types<R>, SM>) -> BTreeSet<RaftId> {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    let heartbeats = metrics.heartbeat.iter().flatten();
    let fresh = heartbeats
        .filter(|(_, heard)| heard.as_ref().is_some_and(|heard| heard.into_inner().elapsed() < ANSWERED_WITHIN));
    fresh.map(|(id, _)| *id).collect()
}

/// Who is to lead: never one that does not answer, since the leader stops beating before it knows whether the other leads.
fn choose(
    voters: &[VoterRow],
    own: RaftId,
    to: Option<&NodeName>,
    answering: &BTreeSet<RaftId>,
) -> Result<VoterRow, String> {
    let others: Vec<_> = voters.iter().filter(|voter| voter.raft_id != own).collect();
    if others.is_empty() {
        return Err("there is no other voter: one alone always leads".into());
    }
    let is_there = |voter: &VoterRow| voter.raft_id == own || answering.contains(&voter.raft_id);
    match to {
        None => {
            let there = others.into_iter().filter(|voter| is_there(voter) && voter.lag.is_some());
            let nearest = there.min_by_key(|voter| voter.lag).cloned();
            nearest.ok_or_else(|| "no other voter answers: `pando cluster status` shows them".into())
        }
        Some(name) => match voters.iter().find(|voter| voter.name == *name) {
            Some(voter) if is_there(voter) => Ok(voter.clone()),
            Some(_) => Err("it does not answer: start it, or let another voter lead".into()),
            None => {
                let names: Vec<_> = others.iter().map(|voter| voter.name.to_string()).collect();
                Err(format!("only another voter can lead; the others are: {}", names.join(", ")))
            }
        },
    }
}

/// A voter that has answered within this long is there. Many heartbeats of a LAN, and two of a wide area network.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn voter(name: &str, raft_id: RaftId, lag: u64) -> VoterRow {
        VoterRow { name: name.parse().unwrap(), raft_id, address: String::new(), lag: Some(lag) }
    }

    #[test]
    fn leadership_is_moved_only_to_a_voter_that_answers() {
        let voters = [voter("n1", 1, 0), voter("n2", 2, 0), voter("n3", 3, 7)];
        let choose = |to: Option<&str>, answering: &[RaftId]| {
            let to = to.map(|name| name.parse().unwrap());
            let chosen = choose(&voters, 1, to.as_ref(), &answering.iter().copied().collect());
            chosen.map(|voter| voter.raft_id)
        };
        assert_eq!(choose(None, &[2, 3]), Ok(2));
        assert_eq!(choose(None, &[3]), Ok(3), "the other one's log is as near, but it is gone");
        assert!(choose(None, &[]).unwrap_err().contains("no other voter answers"));
        assert_eq!(choose(Some("n3"), &[3]), Ok(3));
        assert_eq!(choose(Some("n1"), &[]), Ok(1));
        assert!(choose(Some("n2"), &[3]).unwrap_err().contains("does not answer"));
        assert!(choose(Some("n9"), &[2, 3]).unwrap_err().contains("the others are: n2, n3"));
    }

    #[test]
    fn one_voter_alone_has_nobody_to_lead_in_its_place() {
        let alone = [voter("n1", 1, 0)];
        assert_eq!(
            choose(&alone, 1, None, &BTreeSet::new()),
            Err("there is no other voter: one alone always leads".into())
        );
    }
}

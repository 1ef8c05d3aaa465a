//! Raises the version of the rules once every voter knows it, so that all of them apply one set of rules while a cluster is
//! upgraded node by node.
//!
//! ```text
//!   leader: state is below what this build knows ──► ask every member who it is
//!       all voters answered, and the least of all who did knows more than the state ──► propose that version
//! ```
//!
//! A learner counts where it answers, since it may be about to vote: who knows less than the state is not promoted any more.
//! A voter that is silent, or is not the member that it should be, holds it back: nobody knows what it knows. One that comes
//! back later with an older program is stopped by its own check of the state, and says so.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::storage::RaftStateMachine;
use openraft::{AsyncRuntime, Raft};
use tokio_util::sync::CancellationToken;

use super::bootstrap::Said;
use super::neighbours::{Neighbours, introduce};
use super::types::{RaftId, Types, Voter};
use super::wire::Introduction;

/// Between two looks. An upgrade takes minutes, but a cluster that just began refuses what newer rules brought until the first
/// look of its leader; one at which nothing is to be raised costs nothing.
pub const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Looks every `pause` until `stop`. `state` is the version of the rules of the state while this node leads; `propose` puts a
/// higher one into the log.
pub async fn raise<R: AsyncRuntime, SM: RaftStateMachine<Types<R>>>(
    raft: Raft<Types<R>, SM>,
    neighbours: impl Neighbours,
    known: u32,
    pause: Duration,
    state: impl Fn() -> Option<u32>,
    propose: impl AsyncFn(u32),
    stop: CancellationToken,
) {
    let mut told = String::new();
    loop {
        if let Some(version) = state().filter(|version| *version < known) {
            match known_to_all(&raft, &neighbours, known).await {
                Ok(all) if all > version => propose(all).await,
                Ok(_) => {}
                Err(why) if why != told => {
                    tracing::info!(
                        version,
                        known,
                        why,
                        "the rules stay as they are until every voter knows newer ones"
                    );
                    told = why;
                }
                Err(_) => {}
            }
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = R::sleep(pause) => {}
        }
    }
}

/// The newest version that every voter of the present membership knows, and every learner that answers; `own` is what this
/// one knows.
///
/// # Errors
/// Which voter did not say, and why, for people.
pub async fn known_to_all<R: AsyncRuntime, SM: RaftStateMachine<Types<R>>>(
    raft: &Raft<Types<R>, SM>,
    neighbours: &impl Neighbours,
    own: u32,
) -> Result<u32, String> {
    let membership = raft.server_metrics().borrow_watched().membership_config.membership().clone();
    // Of both configurations while one changes into the other.
    let voters: BTreeSet<RaftId> = membership.voter_ids().collect();
    let others: BTreeMap<RaftId, Voter> =
        membership.nodes().filter(|(id, _)| *id != raft.node_id()).map(|(id, voter)| (*id, voter.clone())).collect();
    let mut asked = Vec::new();
    for (id, Voter { name, address }) in others.clone() {
        let Some(name) = name else { return Err(format!("the member with the Raft id {id} has no name")) };
        let neighbours = neighbours.clone();
        asked.push(async move {
            let said = introduce(&neighbours, &name, &address).await.map_err(|error| error.to_string());
            (id, said)
        });
    }
    let said = join_all(asked).await.into_iter().collect();
    let (voters, learners) = others.into_iter().partition(|(id, _)| voters.contains(id));
    least(own, &voters, &learners, &said)
}

/// The least that anybody knows. `said` holds one entry for each of `voters` and `learners`, which are all but this one.
fn least(
    own: u32,
    voters: &BTreeMap<RaftId, Voter>,
    learners: &BTreeMap<RaftId, Voter>,
    said: &BTreeMap<RaftId, Said>,
) -> Result<u32, String> {
    let mut least = own;
    for (id, voter) in voters {
        let known_as = voter.name.as_ref().map_or("without a name", |name| name.as_str());
        match said.get(id) {
            Some(Ok(Introduction { raft_id, rules, .. })) if raft_id == id => least = least.min(*rules),
            Some(Ok(Introduction { raft_id, .. })) => {
                return Err(format!("voter {known_as} has the Raft id {raft_id}, the membership says {id}"));
            }
            Some(Err(why)) => return Err(format!("voter {known_as} does not answer: {why}")),
            None => return Err(format!("voter {known_as} was not asked")),
        }
    }
    for id in learners.keys() {
        // One that is silent, or lost its data, cannot be promoted as it is.
        if let Some(Ok(Introduction { raft_id, rules, .. })) = said.get(id)
            && raft_id == id
        {
            least = least.min(*rules);
        }
    }
    Ok(least)
}

#[cfg(test)]
mod tests {
    use super::super::group::{Group, LIMIT, Timing};
    use super::*;

    #[test]
    fn the_least_of_what_every_voter_knows_counts_and_one_that_is_not_itself_holds_it_back() {
        let voter = |name: &str| Voter { name: name.parse().ok(), address: String::new() };
        let voters = BTreeMap::from([(2, voter("n2")), (3, voter("n3"))]);
        let says =
            |id, rules| (id, Ok(Introduction { name: "n".parse().unwrap(), raft_id: id, initialised: true, rules }));
        let learners = BTreeMap::from([(8, voter("n4"))]);
        let least = |said: Vec<(RaftId, Said)>| least(4, &voters, &learners, &said.into_iter().collect());
        assert_eq!(least(vec![says(2, 5), says(3, 9)]), Ok(4));
        assert_eq!(least(vec![says(2, 5), says(3, 2)]), Ok(2));
        // A learner counts where it is there, and is itself.
        assert_eq!(least(vec![says(2, 5), says(3, 9), says(8, 3)]), Ok(3));
        assert_eq!(least(vec![says(2, 5), says(3, 9), (8, says(7, 1).1)]), Ok(4));
        assert_eq!(least(vec![says(2, 5), says(3, 9), (8, Err("gone".into()))]), Ok(4));
        assert!(least(vec![says(2, 5)]).unwrap_err().contains("n3 was not asked"));
        assert!(least(vec![says(2, 5), (3, Err("gone".into()))]).unwrap_err().contains("n3 does not answer: gone"));
        assert!(least(vec![says(2, 5), (3, says(7, 5).1)]).unwrap_err().contains("has the Raft id 7"));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_rules_are_raised_once_the_last_voter_knows_newer_ones_and_not_before() {
        let mut group = Group::prepare(3, Timing::lan()).await;
        for (voter, known) in [(0, 3), (1, 2), (2, 1)] {
            group.set_known(voter, known);
            group.begin(voter).await;
        }
        let leader = group.leader().await;
        let known = known_to_all(group.raft(leader), &group.peers(leader), 3).await;
        assert_eq!(known, Ok(1), "one of them knows no more than the state has");
        group.kill(2).await;
        let leader = group.leader().await;
        let known = known_to_all(group.raft(leader), &group.peers(leader), 3).await;
        assert!(known.as_ref().is_err_and(|why| why.contains("does not answer")), "{known:?}");
        group.write(leader).await;
        assert_eq!(group.rules(leader), 1, "nobody knows what the third one knows");
        group.set_known(2, 3);
        group.begin(2).await;
        let raised = || (0..3).all(|voter| group.rules(voter) == 2).then_some(());
        group.eventually("the rules that all know", LIMIT, raised).await;
        group.stop().await;
    }
}

//! How long a voter that was told to go stays after its own children have stopped: others may need its vote.
//!
//! Where several nodes are told at once, as by Ctrl-C of `pando dev`, those without children would be gone in a moment, and
//! the majority with them; what the others run would then be killed at the end of its lease, in the midst of its grace.

use std::time::Duration;

use openraft::{AsyncRuntime, Instant};
use pando_protocol::ids::NodeName;
use pando_supervision::Cluster;

use crate::control::Control;
use crate::runner::{LAST_WORD_LIMIT, LEAVE_LIMIT};

/// Others that were told in the same moment have this long to say so.
const SAY_SO_LIMIT: Duration = Duration::from_secs(1);
/// After this no other node still stops anything with our help.
const STAY_LIMIT: Duration = LEAVE_LIMIT.saturating_add(LAST_WORD_LIMIT).saturating_add(SAY_SO_LIMIT);
/// What is waited for is looked at this often, besides whenever the state changes.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Returns when no other node needs this voter any more, which was told to go at `told`.
pub async fn until_not_needed<R: AsyncRuntime>(control: &Control<R>, told: R::Instant, lease: Duration) {
    let mut published = control.published.clone();
    loop {
        let without_since = control.leadership.borrow().without_since;
        let cluster = published.borrow_and_update().cluster.clone();
        let need = Need {
            since_told: told.elapsed(),
            without_leader: without_since.map_or(Duration::ZERO, |since| since.elapsed()),
            lease,
        };
        if !need.of_others(&cluster, &control.own) {
            return;
        }
        tokio::select! {
            biased;
            changed = published.changed() => if changed.is_err() { return },
            () = R::sleep(LOOK_EVERY) => {}
        }
    }
}

/// What decides besides the state.
#[derive(Debug, Clone, Copy)]
struct Need {
    since_told: Duration,
    without_leader: Duration,
    lease: Duration,
}

impl Need {
    /// Whether another node may still need the vote of `own`.
    fn of_others(self, cluster: &Cluster, own: &NodeName) -> bool {
        // Without a leader for a lease nothing runs anywhere that could still be stopped with grace.
        if self.since_told >= STAY_LIMIT || self.without_leader >= self.lease {
            return false;
        }
        let mut sessions = cluster
            .nodes
            .iter()
            .filter(|(name, _)| *name != own)
            .flat_map(|(_, node)| node.sessions.values())
            .peekable();
        if self.since_told < SAY_SO_LIMIT {
            return sessions.peek().is_some();
        }
        sessions.any(|session| session.leaving)
    }
}

#[cfg(test)]
mod tests {
    use pando_protocol::ids::SessionId;
    use pando_protocol::session::{NodeRole, Observation, SessionRequest};
    use pando_supervision::{Command, Stamp, apply};

    use super::*;

    fn name(text: &str) -> NodeName {
        text.parse().unwrap()
    }

    fn cluster(nodes: &[&str]) -> Cluster {
        let mut cluster = Cluster::default();
        for (nonce, node) in nodes.iter().enumerate() {
            let request = SessionRequest {
                node: name(node),
                nonce: nonce as u64,
                address: String::new(),
                role: NodeRole::Voter,
                labels: vec![],
                slots: 1,
                pid: 1,
                proven_over: vec![],
            };
            apply(&mut cluster, Stamp { at: Duration::ZERO, wall: 0 }, Command::GrantSession(request));
        }
        cluster
    }

    fn says(cluster: &mut Cluster, node: &str, session: u64, number: u64, observation: Observation) {
        let command = Command::Observe { node: name(node), session: SessionId(session), number, observation };
        assert!(apply(cluster, Stamp { at: Duration::ZERO, wall: 0 }, command).outcome.is_ok());
    }

    fn needed(cluster: &Cluster, since_told: u64, without_leader: u64) -> bool {
        let [since_told, without_leader] = [since_told, without_leader].map(Duration::from_millis);
        Need { since_told, without_leader, lease: Duration::from_secs(2) }.of_others(cluster, &name("n1"))
    }

    #[test]
    fn a_voter_stays_while_another_node_that_was_told_to_go_has_not_left() {
        let mut cluster = cluster(&["n1", "n2", "n3"]);
        assert!(needed(&cluster, 500, 0), "n2 may be about to say that it goes");
        assert!(!needed(&cluster, 1_000, 0), "nobody else goes");
        says(&mut cluster, "n2", 2, 1, Observation::Leaving);
        assert!(needed(&cluster, 29_000, 0));
        assert!(!needed(&cluster, 33_000, 0), "its children had their time");
        assert!(needed(&cluster, 5_000, 1_999) && !needed(&cluster, 5_000, 2_000), "nothing runs without a leader");
        says(&mut cluster, "n2", 2, 2, Observation::Left);
        assert!(!needed(&cluster, 5_000, 0));
    }

    #[test]
    fn a_node_alone_or_with_others_that_are_down_goes_at_once() {
        assert!(!needed(&cluster(&["n1"]), 0, 0));
        let mut cluster = cluster(&["n1", "n2"]);
        says(&mut cluster, "n2", 2, 1, Observation::Left);
        assert!(!needed(&cluster, 0, 0));
    }
}

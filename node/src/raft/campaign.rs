//! The closed-leader signal: a leader whose process died is replaced in milliseconds, whatever the election time-outs are.
//!
//! ```text
//!   another voter leads ──► hold a liveness connection to it ──closed for good──► wait by rank ──► still the same leader?
//!                                                                                  ──► take over: void its lease, campaign
//! ```
//!
//! A take-over deposes a healthy leader too, so it follows only a close that could not be undone; a leader that is merely
//! silent is left to the time-outs. That the process is gone says nothing about its children.

use std::time::Duration;

use openraft::Raft;
use openraft::alias::WatchReceiverOf;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::metrics::RaftServerMetrics;
use openraft::raft::TransferLeaderRequest;
use openraft::storage::RaftStateMachine;
use pando_protocol::ids::NodeName;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::types::{NodeTypes, RaftId, Vote};
use crate::transport::Credentials;
use crate::transport::liveness::Held;

/// Watches whoever leads, until `stop` or the end of Raft. `heartbeat` is Raft's interval: it spaces candidates further apart
/// where the network is slower. `held` shows the leader to which a connection is held now, for whoever reports on this node.
pub async fn watch_leader<SM: RaftStateMachine<NodeTypes>>(
    raft: Raft<NodeTypes, SM>,
    credentials: Credentials,
    heartbeat: Duration,
    held: watch::Sender<Option<NodeName>>,
    stop: CancellationToken,
) {
    let own = *raft.node_id();
    let mut metrics = raft.server_metrics();
    loop {
        let followed = Followed::from_metrics(&metrics.borrow_watched(), own);
        held.send_replace(None);
        let closed = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            is_running = changed(&mut metrics, own, followed.as_ref()) => if is_running { continue } else { return },
            closed = closed(&credentials, followed.as_ref(), &held) => closed,
        };
        held.send_replace(None);
        info!(leader = %closed.name, "the leader's process is gone");
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(turn(closed.rank, heartbeat)) => {}
        }
        let still = Followed::from_metrics(&metrics.borrow_watched(), own);
        if still.is_some_and(|still| still.vote == closed.vote) {
            take_over(&raft, closed, own).await;
        }
    }
}

/// The leader that this voter follows.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Followed {
    vote: Vote,
    name: NodeName,
    address: String,
    /// This voter's place among those that remain without the leader, by name.
    rank: u32,
}

impl Followed {
    /// `None` where nobody leads, this voter does, or this one has no vote.
    fn from_metrics(metrics: &RaftServerMetrics<NodeTypes>, own: RaftId) -> Option<Self> {
        let leader = metrics.current_leader.filter(|leader| *leader != own)?;
        let membership = metrics.membership_config.membership();
        let mut remaining: Vec<_> = membership
            .voter_ids()
            .filter(|id| *id != leader)
            .map(|id| (membership.get_node(&id).and_then(|voter| voter.name.clone()), id))
            .collect();
        remaining.sort_unstable();
        let rank = remaining.iter().position(|(_, id)| *id == own)?;
        let voter = membership.get_node(&leader)?;
        Some(Self {
            vote: metrics.vote,
            name: voter.name.clone()?,
            address: voter.address.clone(),
            rank: u32::try_from(rank).unwrap_or(u32::MAX),
        })
    }
}

/// Returns when somebody else is followed: `true`; or when Raft has ended: `false`.
async fn changed(
    metrics: &mut WatchReceiverOf<NodeTypes, RaftServerMetrics<NodeTypes>>,
    own: RaftId,
    followed: Option<&Followed>,
) -> bool {
    loop {
        if metrics.changed().await.is_err() {
            return false;
        }
        if Followed::from_metrics(&metrics.borrow_watched(), own).as_ref() != followed {
            return true;
        }
    }
}

async fn closed<'f>(
    credentials: &Credentials,
    followed: Option<&'f Followed>,
    held: &watch::Sender<Option<NodeName>>,
) -> &'f Followed {
    let Some(followed) = followed else { return std::future::pending().await };
    let connection = Held::make(credentials, &followed.name, &followed.address).await;
    held.send_replace(Some(followed.name.clone()));
    connection.gone().await;
    followed
}

async fn take_over<SM: RaftStateMachine<NodeTypes>>(raft: &Raft<NodeTypes, SM>, closed: &Followed, own: RaftId) {
    info!(leader = %closed.name, "taking over");
    match raft.handle_transfer_leader(TransferLeaderRequest::new(closed.vote, own, None)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => info!(%error, "somebody else took over"),
        Err(error) => warn!(%error, "Raft has stopped"),
    }
}

/// How long a voter waits before it campaigns: the first hardly, each further one long enough for the one before to win.
fn turn(rank: u32, heartbeat: Duration) -> Duration {
    FIRST + SPACING.max(heartbeat / 2).saturating_mul(rank)
}

/// Lets the kernel finish the dead process: its sockets close one after the other.
const FIRST: Duration = Duration::from_millis(1);
/// An election on a LAN, with its fsyncs.
const SPACING: Duration = Duration::from_millis(30);

#[cfg(test)]
mod tests {
    use super::super::group::{Group, LIMIT, Timing};
    use super::*;

    #[test]
    fn candidates_are_spaced_by_rank() {
        let lan = [0, 1, 2].map(|rank| turn(rank, Duration::from_millis(50)).as_millis());
        assert_eq!(lan, [1, 31, 61]);
        assert_eq!(turn(1, Duration::from_millis(500)).as_millis(), 251);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_leader_whose_process_died_is_replaced_long_before_the_time_outs() {
        // Time-outs so long that no election can come of them within the test's limit.
        let mut group = Group::start(3, Timing { heartbeat: 2_000, election: (30_000, 31_000) }).await;
        let first = group.leader().await;
        let others = group.others(first);
        group.wait_until_held(first).await;
        group.kill(first).await;
        let begun = tokio::time::Instant::now();
        let second = tokio::time::timeout(LIMIT, group.leader()).await.expect("nobody took over");
        assert!(others.contains(&second));
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        group.write(second).await;
        group.stop().await;
    }
}

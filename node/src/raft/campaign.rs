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

use openraft::alias::WatchReceiverOf;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::metrics::RaftServerMetrics;
use openraft::raft::TransferLeaderRequest;
use openraft::storage::RaftStateMachine;
use openraft::{AsyncRuntime, Raft};
use pando_protocol::ids::NodeName;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::types::{RaftId, Types, Vote};
use crate::transport::Credentials;
use crate::transport::liveness::Held;

/// What tells that the process of another node is gone: connections that are held, or a test that plays them.
pub trait Liveness: Send + Sync + 'static {
    /// A connection that is held. Drop it to let go.
    type Held: Send;
    /// Connects to the node `name` at `address` (`host:port`), and tries until that works.
    fn hold(&self, name: &NodeName, address: &str) -> impl Future<Output = Self::Held> + Send;
    /// Returns when that node's process is gone for good; never for one that is merely silent.
    fn gone(held: Self::Held) -> impl Future<Output = ()> + Send;
}

impl Liveness for Credentials {
    type Held = Held;
    async fn hold(&self, name: &NodeName, address: &str) -> Held {
        Held::make(self, name, address).await
    }
    async fn gone(held: Held) {
        held.gone().await;
    }
}

/// Watches whoever leads, until `stop` or the end of Raft. `heartbeat` is Raft's interval: it spaces candidates further apart
/// where the network is slower. `held` shows the leader to which a connection is held now, for whoever reports on this node.
pub async fn watch_leader<R: AsyncRuntime, L: Liveness, SM: RaftStateMachine<Types<R>>>(
    raft: Raft<Types<R>, SM>,
    liveness: L,
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
            is_running = changed::<R>(&mut metrics, own, followed.as_ref()) => if is_running { continue } else { return },
            closed = closed(&liveness, followed.as_ref(), &held) => closed,
        };
        held.send_replace(None);
        info!(leader = %closed.name, "the leader's process is gone");
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = R::sleep(turn(closed.rank, heartbeat)) => {}
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
    fn from_metrics<R: AsyncRuntime>(metrics: &RaftServerMetrics<Types<R>>, own: RaftId) -> Option<Self> {
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
async fn changed<R: AsyncRuntime>(
    metrics: &mut WatchReceiverOf<Types<R>, RaftServerMetrics<Types<R>>>,
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

async fn closed<'f, L: Liveness>(
    liveness: &L,
    followed: Option<&'f Followed>,
    held: &watch::Sender<Option<NodeName>>,
) -> &'f Followed {
    let Some(followed) = followed else { return std::future::pending().await };
    let connection = liveness.hold(&followed.name, &followed.address).await;
    held.send_replace(Some(followed.name.clone()));
    L::gone(connection).await;
    followed
}

async fn take_over<R: AsyncRuntime, SM: RaftStateMachine<Types<R>>>(
    raft: &Raft<Types<R>, SM>,
    closed: &Followed,
    own: RaftId,
) {
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
    use std::collections::{BTreeMap, BTreeSet};

    use openraft::raft::AppendEntriesRequest;
    use openraft_rt_sim::SimRuntime;

    use super::super::group::{Group, LIMIT, Timing};
    use super::super::memory;
    use super::super::types::{Entry, LeaderId, LogId, Membership, Payload, Voter};
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

    /// A leader whose process is gone once the test says so.
    struct Played(CancellationToken);

    impl Liveness for Played {
        type Held = CancellationToken;
        async fn hold(&self, name: &NodeName, _: &str) -> CancellationToken {
            assert_eq!(name.as_str(), "n2");
            self.0.clone()
        }
        async fn gone(held: CancellationToken) {
            held.cancelled().await;
        }
    }

    /// The first word of the leader `n2`, with the membership.
    fn first_word() -> AppendEntriesRequest<Types<SimRuntime>> {
        let leader_id = LeaderId { term: 1, node_id: 2 };
        let voter = |name: &str| Voter { name: name.parse().ok(), address: format!("{name}:1") };
        let nodes = BTreeMap::from([(1, voter("n1")), (2, voter("n2"))]);
        let membership = Membership::new(vec![BTreeSet::from([1, 2])], nodes).unwrap();
        let log_id = LogId { leader_id, index: 0 };
        let entries = vec![Entry { log_id, payload: Payload::Membership(membership) }];
        let vote = Vote { leader_id, committed: true };
        AppendEntriesRequest { vote, prev_log_id: None, entries, leader_commit: None }
    }

    #[test]
    fn a_voter_campaigns_when_the_leader_is_gone_and_never_while_it_is_only_silent() {
        SimRuntime::with_seed(0).block_on(async {
            let raft = memory::alone::<SimRuntime>(1).await;
            raft.append_entries(first_word()).await.unwrap();
            let (dies, stop, (held, _)) = (CancellationToken::new(), CancellationToken::new(), watch::channel(None));
            let heartbeat = Duration::from_secs(1);
            let watching =
                SimRuntime::spawn(watch_leader(raft.clone(), Played(dies.clone()), heartbeat, held, stop.clone()));
            let term = || raft.server_metrics().borrow_watched().vote.leader_id.term;
            SimRuntime::sleep(Duration::from_secs(600)).await;
            assert_eq!(term(), 1);
            dies.cancel();
            SimRuntime::sleep(turn(0, heartbeat) * 2).await;
            assert_eq!(term(), 2);
            stop.cancel();
            watching.await.unwrap();
            raft.shutdown().await.unwrap();
        });
    }
}

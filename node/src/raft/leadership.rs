//! Who leads, from Raft's metrics; and the answers to questions for proof.

use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::{AsyncRuntime, Instant, LinearizerOption};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::Raft;
use super::fatal::reason;
use super::types::{CommittedLeaderId, RaftId};
use crate::control::{Leader, Leadership, ProofRequest, Published, Urgency};
use crate::directory::Known;

/// Questions that one round answers.
const QUESTIONS: usize = 4_096;

/// Follows Raft's metrics and the applied state, and publishes who leads. A leader to which no majority answered for `silence`
/// is not named: another one may lead. Ends with the reason when Raft's core is dead: the process must end then, and whoever
/// supervises it starts it again.
///
/// `known` is what the cluster last said of its members. A voter that was taken out while it was away finds it there, not in
/// its log, and campaigns no more. `founds`: whether it is a voter while there is no membership.
#[allow(clippy::too_many_arguments)] // One call; a struct would only name them again.
pub async fn follow<R: AsyncRuntime>(
    raft: Raft<R>,
    own: RaftId,
    founds: bool,
    mut known: watch::Receiver<Known>,
    mut published: watch::Receiver<Published<R>>,
    leadership: watch::Sender<Leadership<R>>,
    silence: Duration,
    stop: CancellationToken,
) -> Result<(), String> {
    let mut metrics = raft.metrics();
    let mut reign = Reign::default();
    loop {
        if let Err(fatal) = &metrics.borrow_watched().running_state {
            return Err(reason(fatal));
        }
        let before = leadership.borrow().clone();
        let votes = votes(&raft, own, founds, &known.borrow_and_update());
        let now = read(&raft, own, &published.borrow_and_update(), &before, &mut reign, silence);
        let named_until = reign.followed.filter(|_| now.leader.is_some()).map(|followed| followed + silence);
        let now = Leadership { votes, ..now };
        if now != before {
            report(&before, &now);
            raft.runtime_config().elect(now.votes);
            leadership.send_replace(now);
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            changed = metrics.changed() => if changed.is_err() { return Err("raft's core has ended".into()) },
            changed = published.changed() => if changed.is_err() { return Err("the state machine has ended".into()) },
            changed = known.changed() => if changed.is_err() { return Err("the directory has ended".into()) },
            () = until::<R>(named_until) => {}
        }
    }
}

async fn until<R: AsyncRuntime>(moment: Option<R::Instant>) {
    match moment {
        Some(moment) => R::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// What is kept of a leadership of this node's own.
struct Reign<R: AsyncRuntime> {
    /// Which one; `None` where another node leads, or nobody.
    id: Option<CommittedLeaderId>,
    /// The leadership whose own first entry is applied.
    ready: Option<CommittedLeaderId>,
    /// When a majority followed last, where that can end: not of one voter alone.
    followed: Option<R::Instant>,
}

impl<R: AsyncRuntime> Default for Reign<R> {
    fn default() -> Self {
        Self { id: None, ready: None, followed: None }
    }
}

/// The state of leadership before anything is known.
pub fn unknown<R: AsyncRuntime>() -> Leadership<R> {
    let without_since = Some(R::Instant::now());
    Leadership { leader: None, term: 0, leads: false, round: 0, votes: true, without_since }
}

fn votes<R: AsyncRuntime>(raft: &Raft<R>, own: RaftId, founds: bool, known: &Known) -> bool {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    let index = metrics.membership_config.log_id().as_ref().map(|id| id.index);
    if known.denies(own, index) {
        return false;
    }
    // An entry of a membership that is not known here yet came with the word that this id votes.
    let is_told = known.members.members.iter().any(|member| member.raft_id == own && member.votes);
    match index {
        None => founds,
        Some(_) => is_told || metrics.membership_config.membership().voter_ids().any(|id| id == own),
    }
}

fn read<R: AsyncRuntime>(
    raft: &Raft<R>,
    own: RaftId,
    published: &Published<R>,
    before: &Leadership<R>,
    reign: &mut Reign<R>,
    silence: Duration,
) -> Leadership<R> {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    let membership = metrics.membership_config.membership();
    let mut leader = metrics.current_leader.and_then(|id| {
        let voter = membership.get_node(&id)?;
        Some(Leader { name: voter.name.clone()?, address: voter.address.clone() })
    });
    let mut round = before.round;
    let leading =
        (metrics.current_leader == Some(own)).then(|| metrics.vote.leader_id).filter(|_| metrics.state.is_leader());
    let leads = match leading {
        None => {
            *reign = Reign::default();
            false
        }
        // Everything before its own first entry is applied exactly when an entry of its own leadership is.
        Some(id) => {
            if reign.id != Some(id) {
                *reign = Reign { id: Some(id), ready: None, followed: None };
            }
            let applied_own = published.applied.is_some_and(|applied| applied.leader_id == id);
            if applied_own && reign.ready != Some(id) {
                reign.ready = Some(id);
                round += 1;
            }
            // Before the first answer it is the election that a majority took part in.
            let followed = metrics.last_quorum_acked.map(openraft::metrics::SerdeInstant::into_inner);
            let followed = followed.or(reign.followed).unwrap_or_else(R::Instant::now);
            let is_alone = membership.voter_ids().all(|voter| voter == own);
            reign.followed = Some(followed).filter(|_| !is_alone);
            reign.ready == Some(id)
        }
    };
    let lost_since = reign.followed.filter(|followed| followed.elapsed() >= silence);
    leader = leader.filter(|_| lost_since.is_none());
    let without_since = match (&leader, lost_since.or(before.without_since)) {
        (Some(_), _) => None,
        (None, Some(since)) => Some(since),
        (None, None) => Some(R::Instant::now()),
    };
    Leadership { leader, term: metrics.current_term, leads, round, votes: before.votes, without_since }
}

fn report<R: AsyncRuntime>(before: &Leadership<R>, now: &Leadership<R>) {
    let name = |leadership: &Leadership<R>| leadership.leader.as_ref().map(|leader| leader.name.to_string());
    if name(before) != name(now) {
        match name(now) {
            Some(leader) => tracing::info!(leader, term = now.term, "leader"),
            None => tracing::info!(term = now.term, "no leader is known"),
        }
    }
    match (before.votes, now.votes) {
        (true, false) => tracing::info!("this node is no voter: it runs children, and passes on what it is asked"),
        (false, true) => tracing::info!("this node is a voter"),
        (true, true) | (false, false) => {}
    }
    if now.leads && !before.leads {
        tracing::info!(term = now.term, "this node leads and has applied its own first entry");
    }
}

/// Answers questions for proof until `stop`. One round answers all that wait when it begins; it runs in a task of its own, since it
/// may wait. `of_late`: for how long the answer of a majority counts for a write.
pub async fn prove<R: AsyncRuntime>(
    raft: Raft<R>,
    mut questions: mpsc::Receiver<ProofRequest>,
    limit: Duration,
    of_late: Duration,
    stop: CancellationToken,
) {
    let mut waiting = Vec::new();
    loop {
        let came = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            came = questions.recv_many(&mut waiting, QUESTIONS) => came,
        };
        if came == 0 {
            return;
        }
        if is_followed(&raft, of_late) {
            for question in waiting.extract_if(.., |question| question.urgency == Urgency::OfLate) {
                _ = question.reply.send(true);
            }
        }
        let (regular, now): (Vec<_>, Vec<_>) =
            waiting.drain(..).partition(|question| question.urgency == Urgency::Regular);
        for (urgency, questions) in [(Urgency::Regular, regular), (Urgency::Now, now)] {
            if questions.is_empty() {
                continue;
            }
            let raft = raft.clone();
            drop(R::spawn(async move {
                // Waiting until all is applied has no limit of its own.
                let proven = R::timeout(limit * 2, is_proven(&raft, urgency, limit)).await.unwrap_or(false);
                for question in questions {
                    _ = question.reply.send(proven);
                }
            }));
        }
    }
}

/// Whether this node leads, and a majority has followed it within `of_late`.
fn is_followed<R: AsyncRuntime>(raft: &Raft<R>, of_late: Duration) -> bool {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    let followed = metrics.last_quorum_acked.map(openraft::metrics::SerdeInstant::into_inner);
    metrics.state.is_leader() && followed.is_some_and(|followed| followed.elapsed() < of_late)
}

/// No read here may rely on a leader lease: the closed-leader signal deposes a leader inside it.
async fn is_proven<R: AsyncRuntime>(raft: &Raft<R>, urgency: Urgency, limit: Duration) -> bool {
    let now = urgency == Urgency::Now;
    let option = LinearizerOption::new(Some(Duration::ZERO), now).with_wait_timeout(limit);
    match raft.get_read_linearizer(option).await {
        Ok(linearizer) => linearizer.await_ready(raft).await.is_ok(),
        Err(error) => {
            tracing::debug!(%error, "leadership is not proven");
            false
        }
    }
}

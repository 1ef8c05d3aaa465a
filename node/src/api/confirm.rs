//! Keeps [`Freshness`](crate::freshness::Freshness): has the leader prove itself, and remembers that for a moment.

use std::sync::Arc;
use std::time::Duration;

use openraft::{AsyncRuntime, Instant};
use pando_protocol::ids::NodeName;
use pando_protocol::message::{Call, Found, Freshness, Query, Reply};
use tokio_util::sync::CancellationToken;

use super::Api;
use super::forward::Forwarded;
use crate::control::Control;
use crate::freshness::Upkeep;
use crate::peer::OtherNodes;

/// What was found serves everyone who asks within this time, so that probes cost nothing however many they are.
const REUSE: Duration = Duration::from_millis(300);
/// A leader that does not prove itself in this time is none: probes usually wait for a second.
const LIMIT: Duration = Duration::from_millis(900);
/// Asked so often when nobody else asks, so that the age of a view is true also where nobody looked when it began.
const UNASKED: Duration = Duration::from_secs(1);

impl<R: AsyncRuntime, N: OtherNodes> Api<R, N> {
    /// Runs until `stop`.
    pub async fn keep_fresh(self: Arc<Self>, control: Control<R>, upkeep: Upkeep<R>, stop: CancellationToken) {
        let Upkeep { mut questions, seen } = upkeep;
        let mut tried: Option<R::Instant> = None;
        loop {
            let unasked = tried.map_or_else(R::Instant::now, |tried| tried + UNASKED);
            let question = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                question = questions.recv() => match question {
                    Some(question) => Some(question),
                    None => return,
                },
                () = R::sleep_until(unasked) => None,
            };
            if tried.is_none_or(|tried| tried.elapsed() >= REUSE) {
                let began = R::Instant::now();
                let leader = self.confirm(&control, began + LIMIT).await;
                tried = Some(R::Instant::now());
                seen.send_modify(|view| {
                    if leader.is_some() {
                        view.confirmed_at = began;
                    }
                    view.leader = leader;
                });
            }
            let view = seen.borrow().clone();
            // Those that came meanwhile, too. Whoever gave up is no concern.
            let mut next = question;
            while let Some(question) = next {
                _ = question.send(view.clone());
                next = questions.try_recv().ok();
            }
        }
    }

    /// The leader, once it proved that it leads and this node has applied all that was committed before.
    async fn confirm(&self, control: &Control<R>, end: R::Instant) -> Option<NodeName> {
        let call = Call::Read { query: Query::Cluster, freshness: Freshness::Linearizable };
        let limit = end.saturating_duration_since(R::Instant::now());
        let answered = R::timeout_at(end, self.to_leader(control, &call, limit, limit)).await;
        let Ok(Forwarded::Answered(Ok(Reply::Found { found: Found::Cluster(row), view: _ }))) = answered else {
            return None;
        };
        let mut published = control.published.clone();
        let is_there = |applied: u64| applied >= row.applied;
        let caught_up = async move {
            published.wait_for(|now| is_there(now.applied.map_or(0, |applied| applied.index))).await.is_ok()
        };
        match R::timeout_at(end, caught_up).await {
            Ok(true) => row.leader,
            Ok(false) | Err(_) => None,
        }
    }
}

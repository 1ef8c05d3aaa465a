//! How fresh the state of this voter is: whether a leader with a majority confirms it.
//!
//! ```text
//!   health, metrics ── view() ──►  [api: keeps it]  ── a read that needs a proof ──► the leader, here or over there
//!          stale reads ── seen() ──►  what was seen last
//! ```
//!
//! Who leads, as Raft tells it, is no such word: a leader that lost its majority goes on taking itself for the leader, and its
//! state stands still. Only the types and channels stand here; an agent has none, since it holds no state.

use std::time::Duration;

use pando_protocol::ids::NodeName;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// Questions that may wait; more wait in their askers. One answer serves all that wait.
const QUESTIONS_WAITING: usize = 64;

/// What is known of how fresh the state is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// The leader, where one proved that a majority follows it when this was last tried, and all that was committed before is
    /// applied here; `None` where nobody did.
    pub leader: Option<NodeName>,
    /// When the last try that had a proof began; before the first, when this node started.
    pub confirmed_at: Instant,
}

impl View {
    /// For how long nobody has confirmed the state. Zero while somebody does.
    pub fn age(&self) -> Duration {
        if self.leader.is_some() { Duration::ZERO } else { self.confirmed_at.elapsed() }
    }
}

/// A way to ask. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Freshness {
    questions: mpsc::Sender<oneshot::Sender<View>>,
    seen: watch::Receiver<View>,
}

/// The other end, for whoever keeps it.
#[derive(Debug)]
pub struct Upkeep {
    /// Askers, each of whom is sent a view.
    pub questions: mpsc::Receiver<oneshot::Sender<View>>,
    /// What was found last.
    pub seen: watch::Sender<View>,
}

impl Freshness {
    /// Both ends. Nothing is confirmed yet.
    pub fn new() -> (Self, Upkeep) {
        let (ask, questions) = mpsc::channel(QUESTIONS_WAITING);
        let (found, seen) = watch::channel(View { leader: None, confirmed_at: Instant::now() });
        (Self { questions: ask, seen }, Upkeep { questions, seen: found })
    }

    /// The view now: by a proof, or one of the last few hundred milliseconds. Answers within a second.
    pub async fn view(&self) -> View {
        let (reply, answer) = oneshot::channel();
        _ = self.questions.send(reply).await;
        // Whoever keeps it is gone only when the node stops.
        answer.await.unwrap_or_else(|_| View { leader: None, ..self.seen() })
    }

    /// What was found last, at most some two seconds ago.
    pub fn seen(&self) -> View {
        self.seen.borrow().clone()
    }
}

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

use openraft::{AsyncRuntime, Instant};
use pando_protocol::ids::NodeName;
use tokio::sync::{mpsc, oneshot, watch};

/// Questions that may wait; more wait in their askers. One answer serves all that wait.
const QUESTIONS_WAITING: usize = 64;

/// What is known of how fresh the state is.
#[derive(Debug)]
pub struct View<R: AsyncRuntime> {
    /// The leader, where one proved that a majority follows it when this was last tried, and all that was committed before is
    /// applied here; `None` where nobody did.
    pub leader: Option<NodeName>,
    /// When the last try that had a proof began; before the first, when this node started.
    pub confirmed_at: R::Instant,
}

// By hand, because a derive would ask `R` for it.
impl<R: AsyncRuntime> Clone for View<R> {
    fn clone(&self) -> Self {
        let Self { leader, confirmed_at } = self;
        Self { leader: leader.clone(), confirmed_at: *confirmed_at }
    }
}

impl<R: AsyncRuntime> View<R> {
    /// For how long nobody has confirmed the state. Zero while somebody does.
    pub fn age(&self) -> Duration {
        if self.leader.is_some() { Duration::ZERO } else { self.confirmed_at.elapsed() }
    }
}

/// A way to ask. Cheap to clone.
#[derive(Debug)]
pub struct Freshness<R: AsyncRuntime> {
    questions: mpsc::Sender<oneshot::Sender<View<R>>>,
    seen: watch::Receiver<View<R>>,
}

impl<R: AsyncRuntime> Clone for Freshness<R> {
    fn clone(&self) -> Self {
        let Self { questions, seen } = self;
        Self { questions: questions.clone(), seen: seen.clone() }
    }
}

/// The other end, for whoever keeps it.
#[derive(Debug)]
pub struct Upkeep<R: AsyncRuntime> {
    /// Askers, each of whom is sent a view.
    pub questions: mpsc::Receiver<oneshot::Sender<View<R>>>,
    /// What was found last.
    pub seen: watch::Sender<View<R>>,
}

impl<R: AsyncRuntime> Freshness<R> {
    /// Both ends. Nothing is confirmed yet.
    pub fn new() -> (Self, Upkeep<R>) {
        let (ask, questions) = mpsc::channel(QUESTIONS_WAITING);
        let (found, seen) = watch::channel(View { leader: None, confirmed_at: R::Instant::now() });
        (Self { questions: ask, seen }, Upkeep { questions, seen: found })
    }

    /// The view now: by a proof, or one of the last few hundred milliseconds. Answers within a second.
    pub async fn view(&self) -> View<R> {
        let (reply, answer) = oneshot::channel();
        _ = self.questions.send(reply).await;
        // Whoever keeps it is gone only when the node stops.
        answer.await.unwrap_or_else(|_| View { leader: None, ..self.seen() })
    }

    /// What was found last, at most some two seconds ago.
    pub fn seen(&self) -> View<R> {
        self.seen.borrow().clone()
    }
}

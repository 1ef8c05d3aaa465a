//! The runner: one loop that takes what comes in, and what it knows of its session. What it does is beside it, by subject:
//!
//! ```text
//!   Asking ── asking: asks, begins what is granted in time ──► Held ── acting: makes run what should ──► processes
//!     ▲                                                        │  └─── leaving: told to go
//!     └── over: the lease, the guard or the leader ends it ◄───┘
//!
//!   words: beats, observations, and what voters say    guard: its word, and its silence    handle: for the rest of the node
//!   mail: messages to workers, and what they say of them
//! ```

mod acting;
mod asking;
mod guard;
mod handle;
mod leaving;
mod mail;
mod outbox;
mod over;
mod words;

use std::collections::BTreeSet;
use std::time::Duration;

use openraft::{AsyncRuntime, Instant};
use pando_protocol::ids::{NodeName, SessionId};
use pando_protocol::session::{Desired, NodeRole};
use pando_protocol::spec::Label;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use self::asking::Asking;
use self::handle::Request;
pub use self::handle::{Presence, RunnerHandle};
use self::leaving::Leaving;
pub use self::leaving::{LAST_WORD_LIMIT, LEAVE_LIMIT};
use self::mail::Mail;
use self::outbox::Outbox;
use super::children::ChildEvent;
use super::error::{RunnerError, Silence};
use super::guard_watch::GuardWatch;
use super::kept::{Adoption, Kept};
use super::lease::Lease;
use super::local::Runs;
use super::processes::Processes;
use super::record::SessionRecord;
use super::voters::{Heard, Voters};
use crate::guard::BootTime;

/// What a node tells of itself when it asks for a session.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Its name.
    pub node: NodeName,
    /// Where it answers.
    pub address: String,
    /// Voter or agent.
    pub role: NodeRole,
    /// Its labels.
    pub labels: Vec<Label>,
    /// Its capacity.
    pub slots: u32,
    /// The node process.
    pub pid: u32,
}

/// The times of a runner.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Between two beats.
    pub beat: Duration,
    /// The length of a lease.
    pub lease: Duration,
}

/// The runner. `R` gives time for delays and dice for nonces; leases count on the boot clock.
pub struct Runner<R: AsyncRuntime, P: Processes> {
    facts: Facts,
    pace: Pace,
    voters: Voters,
    processes: P,
    record: SessionRecord,
    standing: Standing<R>,
    /// Sessions that are over, whose processes are not known to be gone, but for those that are kept.
    lingering: BTreeSet<SessionId>,
    /// What is kept while no session is held.
    kept: Kept<R>,
    guard: GuardWatch,
    requests: mpsc::Receiver<Request>,
    presence: watch::Sender<Presence>,
    dice: fn() -> u64,
    /// Since when it is told to go: no new session is asked for.
    leaves_since: Option<BootTime>,
    /// Why no session was granted, as it was told last.
    refusal: Option<String>,
    /// The newest session that was ever begun. Numbers grow, so that any later one was not.
    newest_begun: Option<SessionId>,
}

enum Standing<R: AsyncRuntime> {
    /// A session is asked for.
    Asking(Asking),
    /// A session is held.
    Held(Box<Session<R>>),
}

struct Session<R: AsyncRuntime> {
    id: SessionId,
    lease: Lease,
    runs: Runs<R>,
    outbox: Outbox,
    /// Messages for workers here, and what these say of them.
    mail: Mail,
    /// What it took over from older sessions, until the cluster is known to have applied that.
    adoption: Option<Adoption>,
    /// What should run, as it was told last.
    newest: Option<Desired>,
    /// Whether the cluster knows that this session was begun. Before it does, nothing that is kept starts: it would count as
    /// lost when the lease ends.
    is_known: bool,
    leader: Option<NodeName>,
    leaving: Option<Leaving>,
}

impl<R: AsyncRuntime> Session<R> {
    fn begun(id: SessionId, lease: Lease, runs: Runs<R>, adoption: Option<Adoption>) -> Self {
        let (outbox, mail, newest, is_known) = (Outbox::default(), Mail::default(), None, false);
        Self { id, lease, runs, outbox, mail, adoption, newest, is_known, leader: None, leaving: None }
    }
}

/// Why the loop goes on.
enum Input {
    ToldToGo,
    Child(Option<ChildEvent>),
    Heard(Heard),
    Request(Request),
    Time,
}

/// What runs goes through here: what the loop needs from outside.
pub struct Feeds {
    /// Words from the voters.
    pub heard: mpsc::Receiver<Heard>,
    /// What processes do.
    pub children: mpsc::Receiver<ChildEvent>,
    /// When to go.
    pub stop: CancellationToken,
}

impl<R: AsyncRuntime, P: Processes> Runner<R, P> {
    /// A runner, and the way to it. `dice` gives numbers that differ between requests.
    pub fn new(
        facts: Facts,
        pace: Pace,
        voters: Voters,
        processes: P,
        record: SessionRecord,
        dice: fn() -> u64,
    ) -> (Self, RunnerHandle) {
        let (handle, requests, presence) = RunnerHandle::new();
        let now = processes.now();
        let standing = Standing::Asking(Asking::at_once(dice(), now));
        let (guard, lingering) = (GuardWatch::new(pace.lease, now), BTreeSet::new());
        let newest_begun = record.sessions().into_iter().max();
        let runner = Self {
            facts,
            pace,
            voters,
            processes,
            record,
            standing,
            lingering,
            kept: Kept::default(),
            guard,
            requests,
            presence,
            dice,
            leaves_since: None,
            refusal: None,
            newest_begun,
        };
        (runner, handle)
    }

    /// Runs until `stop` and everything has stopped, or until the guard is lost.
    ///
    /// # Errors
    /// [`RunnerError`]: the node must end, since its children may not be fenced.
    pub async fn run(mut self, mut feeds: Feeds) -> Result<(), RunnerError> {
        let mut beat_at = R::Instant::now();
        loop {
            if self.has_left() {
                return Ok(());
            }
            let wake = self.wake(beat_at);
            let input = tokio::select! {
                biased;
                () = feeds.stop.cancelled(), if self.leaves_since.is_none() => Input::ToldToGo,
                event = feeds.children.recv() => Input::Child(event),
                Some(heard) = feeds.heard.recv() => Input::Heard(heard),
                Some(request) = self.requests.recv() => Input::Request(request),
                () = R::sleep_until(wake) => Input::Time,
            };
            // What the guard says counts before its silence is judged.
            if let Input::Child(Some(event)) = &input {
                self.hear_guard(event);
            }
            // Before anything is done: a process that was stopped for a while goes on here, under a session that may be over.
            if let Some(silence) = self.silence() {
                return Err(self.without_guard(silence, &mut feeds.children).await);
            }
            self.end_lease();
            match input {
                Input::ToldToGo => self.leave(),
                Input::Child(Some(event)) => self.child(event)?,
                Input::Child(None) => return Err(RunnerError::NotCleanedUp(Silence::Dead)),
                Input::Heard(heard) => self.hear(heard)?,
                Input::Request(request) => self.request(request),
                Input::Time => {}
            }
            self.start_due();
            self.stop_alone();
            if R::Instant::now() >= beat_at {
                beat_at = R::Instant::now() + self.pace.beat;
                self.beat();
                self.tell_presence();
            }
            if self.presence.borrow().session != self.session() {
                self.tell_presence();
            }
        }
    }

    /// When there is something to do though nothing is heard.
    fn wake(&self, beat_at: R::Instant) -> R::Instant {
        let Standing::Held(session) = &self.standing else { return beat_at };
        let now = self.processes.now();
        let look = R::Instant::now() + session.lease.next_look(now).since(now);
        // What has not started is not started any more by one that goes.
        let starts = session.runs.next_start(session.is_known).filter(|_| session.leaving.is_none());
        starts.into_iter().fold(beat_at.min(look), R::Instant::min)
    }

    fn holds(&self, id: SessionId) -> bool {
        matches!(&self.standing, Standing::Held(session) if session.id == id)
    }

    /// The runs of the session that is held, or those that are kept while none is.
    fn runs(&mut self) -> &mut Runs<R> {
        match &mut self.standing {
            Standing::Held(session) => &mut session.runs,
            Standing::Asking(_) => &mut self.kept.runs,
        }
    }
}

#[cfg(test)]
mod tests;

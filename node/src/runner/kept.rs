//! Runs that outlive the session they were started under: `on_disconnect = keep`.
//!
//! ```text
//!   Held(s1) ── s1 is over ──► Kept ── s2 is granted ──► Held(s2) with an Adoption ── Kept{s1} is applied ──► Held(s2)
//! ```
//!
//! The cluster is told once under the new session, before anything else about these runs. Until it has applied that, what
//! should run does not name them, and they are neither stopped for it nor started again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::AsyncRuntime;
use pando_protocol::cause::{Exit, ExitHow, OutOfMemory};
use pando_protocol::ids::{Incarnation, Path, SessionId};
use pando_protocol::session::{Desired, Ending, Observation};
use pando_supervision::desired::{Action, Local, plan};

use super::local::Runs;

/// What is kept while no session is held.
#[derive(Debug)]
pub struct Kept<R: AsyncRuntime> {
    /// The runs, and those that have ended of which the cluster may not know it.
    pub runs: Runs<R>,
    /// What happened to them that the cluster may not know, in order.
    untold: Vec<Observation>,
    /// The sessions that are over under which the cluster may count them.
    sessions: BTreeSet<SessionId>,
}

impl<R: AsyncRuntime> Default for Kept<R> {
    fn default() -> Self {
        Self { runs: Runs::default(), untold: Vec::new(), sessions: BTreeSet::new() }
    }
}

impl<R: AsyncRuntime> Kept<R> {
    /// What is left of a session that is over. `unconfirmed` is what the cluster may not know of it.
    pub fn of(
        session: SessionId,
        mut runs: Runs<R>,
        adoption: Option<Adoption>,
        unconfirmed: impl Iterator<Item = Observation>,
    ) -> Self {
        let (former, waiting) = adoption.map(|adoption| (adoption.sessions, adoption.untold)).unwrap_or_default();
        let about = |observation: &Observation| run_of(observation).map(|(_, incarnation)| incarnation);
        let mut untold: Vec<Observation> = unconfirmed.chain(waiting).collect();
        let told_of: BTreeSet<Incarnation> = untold.iter().filter_map(about).collect();
        runs.retain_kept(&told_of);
        if runs.is_empty() {
            return Self::default();
        }
        untold.retain(|observation| about(observation).is_some_and(|incarnation| runs.holds(incarnation)));
        let sessions = former.into_iter().chain([session]).collect();
        Self { runs, untold, sessions }
    }

    /// The sessions that are over under which the cluster may count something that is kept here.
    pub fn sessions(&self) -> &BTreeSet<SessionId> {
        &self.sessions
    }

    /// Something happened to a run that is kept: it is told under the next session.
    pub fn note(&mut self, observation: Observation) {
        self.untold.push(observation);
    }

    /// A new session takes all of it over; the cluster is to be told.
    pub fn hand_over(self) -> (Runs<R>, Option<Adoption>) {
        if self.sessions.is_empty() {
            return (self.runs, None);
        }
        let runs = self.runs.listed();
        (self.runs, Some(Adoption { sessions: self.sessions, runs, untold: self.untold, said: None }))
    }
}

/// What a session took over from older ones, until the cluster is known to have applied that.
#[derive(Debug)]
pub struct Adoption {
    sessions: BTreeSet<SessionId>,
    runs: BTreeMap<Incarnation, Path>,
    /// What happened to these runs before the cluster was told of them.
    untold: Vec<Observation>,
    /// The number of the observation that tells it.
    said: Option<u64>,
}

impl Adoption {
    /// The older sessions.
    pub fn sessions(&self) -> &BTreeSet<SessionId> {
        &self.sessions
    }

    /// Whether an observation is about a run that the cluster was not told of yet: then it waits here.
    pub fn holds_back(&mut self, observation: &Observation) -> bool {
        let is_ours = run_of(observation).is_some_and(|(_, incarnation)| self.runs.contains_key(&incarnation));
        let waits = is_ours && self.said.is_none();
        if waits {
            self.untold.push(observation.clone());
        }
        waits
    }

    /// What is to be said now, in this order; nothing where it was said, or where something else of the older sessions is not
    /// known to be gone. [`Self::said`] follows.
    pub fn take_words(&mut self, lingering: &BTreeSet<SessionId>) -> Vec<Observation> {
        if self.said.is_some() || !self.sessions.is_disjoint(lingering) {
            return Vec::new();
        }
        let ending =
            |(incarnation, path): (&Incarnation, &Path)| Ending { path: path.clone(), incarnation: *incarnation };
        let (sessions, runs) = (self.sessions.iter().copied().collect(), self.runs.iter().map(ending).collect());
        let mut words = vec![Observation::Kept { sessions, runs }];
        words.append(&mut self.untold);
        words
    }

    /// The first of them has this number.
    pub fn said(&mut self, number: u64) {
        self.said = Some(number);
    }

    /// Whether the cluster is known to have applied it.
    pub fn is_applied(&self, through: u64) -> bool {
        self.said.is_some_and(|said| said <= through)
    }
}

/// What a runner does, as [`plan`] says; but what the cluster may not know of yet is not stopped for being named nowhere.
pub fn plan_with<R: AsyncRuntime>(desired: &Desired, runs: &Runs<R>, adoption: Option<&Adoption>) -> Vec<Action> {
    let mut actions = plan(desired, &runs.standing());
    if let Some(adoption) = adoption {
        let asked_for: BTreeSet<Incarnation> = desired.end.iter().map(|asked| asked.incarnation).collect();
        actions.retain(|action| match action {
            Action::Stop(Ending { incarnation, .. }) => {
                asked_for.contains(incarnation) || !adoption.runs.contains_key(incarnation)
            }
            Action::Start(_) | Action::Promise(_) => true,
        });
    }
    actions
}

fn run_of(observation: &Observation) -> Option<(&Path, Incarnation)> {
    match observation {
        Observation::Started { path, incarnation, .. }
        | Observation::Ready { path, incarnation }
        | Observation::Exited { path, incarnation, .. }
        | Observation::NeverStarted { path, incarnation }
        | Observation::Stopping { path, incarnation }
        | Observation::WorkerReady { path, incarnation, .. } => Some((path, *incarnation)),
        Observation::Leaving | Observation::Left | Observation::Kept { .. } | Observation::Settled(_) => None,
    }
}

/// What the end of a run that the guard did not start is told as: as promised where it was asked to end, else a failed start.
pub fn never_started(path: Path, incarnation: Incarnation, stood: Option<Local>) -> Observation {
    if stood == Some(Local::Stopping) {
        return Observation::NeverStarted { path, incarnation };
    }
    let how = ExitHow::StartFailed("the guard of the node did not accept it".into());
    let exit = Exit { how, ran: Duration::ZERO, healthy: None, out_of_memory: OutOfMemory::No, stderr: None };
    Observation::Exited { path, incarnation, exit, started: Vec::new() }
}

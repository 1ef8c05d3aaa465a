//! The runner's loop: asks for a session, beats, compares, acts, and reports.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use openraft::{AsyncRuntime, Instant};
use pando_protocol::cause::{Exit, ExitHow, OutOfMemory};
use pando_protocol::ids::{Incarnation, NodeName, Path, SessionId};
use pando_protocol::session::{Desired, LeaderWord, NodeRole, Observation, RunnerWord, SessionRequest};
use pando_protocol::spec::{Label, ProcessSpec, Signal};
use pando_supervision::desired::{Action, Local, plan};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::children::{ChildEvent, Children, Start};
use super::lease::Lease;
use super::local::{Outbox, Runs};
use super::record::SessionRecord;
use super::voters::{Heard, Voters};
use crate::guard::{BootTime, FENCE_MARGIN};

/// Children of a node that was told to go have at most this long to stop.
const LEAVE_LIMIT: Duration = Duration::from_secs(30);
/// Once everything has stopped, the cluster has this long to confirm it.
const LAST_WORD_LIMIT: Duration = Duration::from_secs(2);
/// After a session is over, its processes have this long to be gone before a new one is asked for without that proof.
const LINGER_LIMIT: Duration = Duration::from_secs(2);
/// A guard that does not do its duty is killed, and what it ran has this long to be gone before the node ends.
const CLEAN_UP_LIMIT: Duration = Duration::from_secs(10);

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

/// What starts and stops processes: [`super::children::Children`], or what a simulator puts in its place.
pub trait Processes: Send + 'static {
    /// The clock by which [`Self::renew`] kills, and leases count.
    fn now(&self) -> BootTime;
    /// Starts a run.
    fn start(&mut self, path: Path, incarnation: Incarnation, session: SessionId, spec: Arc<ProcessSpec>);
    /// Asks a run to end, by its spec's signal and grace.
    fn stop(&mut self, incarnation: Incarnation);
    /// Kills a run, without grace.
    fn kill(&mut self, incarnation: Incarnation);
    /// Sends a signal to a run's main process, and says so.
    fn signal(&mut self, incarnation: Incarnation, signal: Signal, reply: SignalReply);
    /// Everything under the session is killed at `kill_at`, unless it is renewed before.
    fn renew(&mut self, session: SessionId, kill_at: BootTime);
    /// Kills everything under the session now.
    fn end_session(&mut self, session: SessionId);
    /// Kills whoever should kill at `kill_at` and does not answer: [`ChildEvent::GuardLost`] follows when nothing is left.
    fn kill_guard(&mut self);
}

impl Processes for Children {
    fn now(&self) -> BootTime {
        BootTime::now()
    }
    fn start(&mut self, path: Path, incarnation: Incarnation, session: SessionId, spec: Arc<ProcessSpec>) {
        Self::start(self, Start { path, incarnation, session, spec });
    }
    fn stop(&mut self, incarnation: Incarnation) {
        Self::stop(self, incarnation);
    }
    fn kill(&mut self, incarnation: Incarnation) {
        Self::kill(self, incarnation);
    }
    fn signal(&mut self, incarnation: Incarnation, signal: Signal, reply: SignalReply) {
        let children = self.clone();
        tokio::spawn(async move {
            let sent = children.signal(incarnation, signal).await;
            _ = reply.send(sent.map(|pid| Signalled { incarnation, pid }).map_err(io::Error::other));
        });
    }
    fn renew(&mut self, session: SessionId, kill_at: BootTime) {
        Self::renew(self, session, kill_at);
    }
    fn end_session(&mut self, session: SessionId) {
        Self::end_session(self, session);
    }
    fn kill_guard(&mut self) {
        Self::kill_guard(self);
    }
}

/// Where the word about a signal goes.
pub type SignalReply = oneshot::Sender<io::Result<Signalled>>;

/// Why the runner ended without being told to.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// The guard died.
    #[error("the guard has died: nobody could fence what runs here")]
    GuardLost,
    /// The guard did not answer. It was killed, and nothing that it ran is left.
    #[error("the guard had not confirmed a lease for {0:?}, so that nobody fenced what ran here: all of it was killed")]
    GuardSilent(Duration),
    /// The guard did not answer, and what it ran could not be killed in time.
    #[error(
        "the guard had not confirmed a lease for {0:?}, and what it ran may still run: look for processes with \
         PANDO_SESSION in their environment, and kill them before you start this node again"
    )]
    NotCleanedUp(Duration),
    /// The session could not be written down before anything starts under it.
    #[error(
        "the session could not be written to {path}: free some space or repair the disk, then start the node again"
    )]
    Record {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A signal sent to a child, by an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signalled {
    /// The run.
    pub incarnation: Incarnation,
    /// Its main process.
    pub pid: u32,
}

/// A way to the runner.
#[derive(Debug, Clone)]
pub struct RunnerHandle(mpsc::Sender<Request>);

#[derive(Debug)]
struct Request {
    path: Path,
    signal: Signal,
    reply: SignalReply,
}

impl RunnerHandle {
    /// Sends a signal to what runs here at `path`.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] where nothing runs here at that path; what the kernel says otherwise.
    pub async fn signal(&self, path: Path, signal: Signal) -> io::Result<Signalled> {
        let (reply, answer) = oneshot::channel();
        _ = self.0.send(Request { path, signal, reply }).await;
        answer.await.unwrap_or_else(|_| Err(io::Error::other("the node is stopping")))
    }
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
    /// Sessions that are over, whose processes are not known to be gone.
    lingering: BTreeSet<SessionId>,
    requests: mpsc::Receiver<Request>,
    dice: fn() -> u64,
    /// Told to go: no new session is asked for.
    is_leaving: bool,
    /// Why no session was granted, as it was told last.
    refusal: Option<String>,
}

enum Standing<R: AsyncRuntime> {
    /// A session is asked for.
    Asking(Asking),
    /// A session is held.
    Held(Box<Session<R>>),
}

struct Asking {
    nonce: u64,
    /// When this nonce was first sent: a lease counts from there.
    first: Option<BootTime>,
    /// Not before this, unless nothing lingers.
    not_before: BootTime,
}

struct Session<R: AsyncRuntime> {
    id: SessionId,
    lease: Lease,
    runs: Runs<R>,
    outbox: Outbox,
    leader: Option<NodeName>,
    leaving: Option<Leaving>,
}

struct Leaving {
    since: BootTime,
    /// Since when everything has stopped here.
    at_rest: Option<BootTime>,
    said_left: bool,
    /// What did not stop in time was killed.
    lost_patience: bool,
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
        let (handle, requests) = mpsc::channel(64);
        let asking = Asking { nonce: dice(), first: None, not_before: processes.now() };
        let (standing, lingering) = (Standing::Asking(asking), BTreeSet::new());
        let runner = Self {
            facts,
            pace,
            voters,
            processes,
            record,
            standing,
            lingering,
            requests,
            dice,
            is_leaving: false,
            refusal: None,
        };
        (runner, RunnerHandle(handle))
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
            let wake = match &self.standing {
                Standing::Held(session) => session.runs.next_start().map_or(beat_at, |start| start.min(beat_at)),
                Standing::Asking(_) => beat_at,
            };
            let input = tokio::select! {
                biased;
                () = feeds.stop.cancelled(), if !self.is_leaving => Input::ToldToGo,
                event = feeds.children.recv() => Input::Child(event),
                Some(heard) = feeds.heard.recv() => Input::Heard(heard),
                Some(request) = self.requests.recv() => Input::Request(request),
                () = R::sleep_until(wake) => Input::Time,
            };
            // Before anything is done: a process that was stopped for a while goes on here, under a session that may be over.
            if self.guard_is_silent() {
                return Err(self.without_guard(&mut feeds.children).await);
            }
            self.end_lease();
            match input {
                Input::ToldToGo => self.leave(),
                Input::Child(Some(event)) => self.child(event)?,
                Input::Child(None) => return Err(RunnerError::GuardLost),
                Input::Heard(heard) => self.hear(heard)?,
                Input::Request(request) => self.request(request),
                Input::Time => {}
            }
            self.start_due();
            if R::Instant::now() >= beat_at {
                beat_at = R::Instant::now() + self.pace.beat;
                self.beat();
            }
        }
    }

    fn guard_is_silent(&mut self) -> bool {
        let now = self.processes.now();
        match &mut self.standing {
            Standing::Held(session) => session.lease.guard_is_silent(now),
            Standing::Asking(_) => false,
        }
    }

    /// Nobody may be there to fence what runs here: no more is beaten, and it is killed by way of its guard.
    async fn without_guard(&mut self, children: &mut mpsc::Receiver<ChildEvent>) -> RunnerError {
        let silent = self.pace.lease / 2;
        tracing::error!("the guard does not confirm leases: it is killed with everything that runs here");
        self.processes.kill_guard();
        let gone = R::timeout(CLEAN_UP_LIMIT, async {
            while children.recv().await.is_some_and(|event| event != ChildEvent::GuardLost) {}
        });
        match gone.await {
            Ok(()) => RunnerError::GuardSilent(silent),
            Err(_) => RunnerError::NotCleanedUp(silent),
        }
    }

    /// Ends a session whose lease has ended.
    fn end_lease(&mut self) {
        let Standing::Held(session) = &self.standing else { return };
        if session.lease.is_over(self.processes.now()) {
            tracing::warn!(session = %session.id, "the lease has ended: everything that ran under this session was killed");
            self.session_over();
        }
    }

    /// Asks, or beats and says again what is not confirmed.
    fn beat(&mut self) {
        let now = self.processes.now();
        match &mut self.standing {
            Standing::Asking(asking) => {
                if self.lingering.is_empty() || now >= asking.not_before {
                    self.ask(now);
                }
            }
            Standing::Held(session) => {
                let beat = session.lease.beat(now);
                let word = RunnerWord::Beat {
                    session: session.id,
                    number: beat.number,
                    answered: beat.answered,
                    answered_age: beat.answered_age,
                };
                self.voters.say(&word);
                for (number, observation) in session.outbox.overdue(now, self.pace.beat) {
                    self.voters.say(&RunnerWord::Observe { session: session.id, number, observation });
                }
            }
        }
    }

    fn ask(&mut self, now: BootTime) {
        let Standing::Asking(asking) = &mut self.standing else { return };
        // A nonce that waited for half a lease would be granted a session that is nearly over.
        if asking.first.is_some_and(|first| now.since(first) > self.pace.lease / 2) {
            (asking.nonce, asking.first) = ((self.dice)(), None);
        }
        asking.first.get_or_insert(now);
        let proven_over = if self.lingering.is_empty() { self.record.sessions() } else { Vec::new() };
        let Facts { node, address, role, labels, slots, pid } = self.facts.clone();
        let request = SessionRequest { node, nonce: asking.nonce, address, role, labels, slots, pid, proven_over };
        self.voters.say(&RunnerWord::Ask(request));
    }

    fn hear(&mut self, heard: Heard) -> Result<(), RunnerError> {
        match heard {
            Heard::Connected(voter) => {
                match &mut self.standing {
                    Standing::Asking(_) => self.beat(),
                    Standing::Held(session) => session.say_again(&self.voters, &voter),
                }
                Ok(())
            }
            Heard::Word(voter, word) => self.word(voter, word),
        }
    }

    fn word(&mut self, voter: NodeName, word: LeaderWord) -> Result<(), RunnerError> {
        if let LeaderWord::Granted { nonce, session } = word {
            return self.granted(nonce, session);
        }
        if let LeaderWord::Members(members) = word {
            self.voters.learn(members);
            return Ok(());
        }
        if let LeaderWord::Refused { nonce: _, why } = word {
            // It is asked again with each beat, and refused again.
            if self.refusal.as_ref() != Some(&why) {
                tracing::error!(why, "no session is granted");
                self.refusal = Some(why);
            }
            return Ok(());
        }
        let Standing::Held(session) = &mut self.standing else { return Ok(()) };
        if session.leader.as_ref() != Some(&voter) {
            // Another one leads: what was on its way to the last one may be lost.
            session.leader = Some(voter.clone());
            session.say_again(&self.voters, &voter);
        }
        match word {
            LeaderWord::Answer { session: id, number } if id == session.id => {
                if let Some(end) = session.lease.answered(number) {
                    session.lease.told_guard(self.processes.now());
                    self.processes.renew(id, end.minus(FENCE_MARGIN));
                }
            }
            LeaderWord::Applied { session: id, through } if id == session.id => session.outbox.applied(through),
            LeaderWord::Over { session: id } if id == session.id => {
                tracing::warn!(session = %id, "the cluster says that this session is over");
                self.session_over();
            }
            LeaderWord::Desired(desired) if desired.session == session.id => self.act(&desired),
            LeaderWord::Answer { .. }
            | LeaderWord::Applied { .. }
            | LeaderWord::Over { .. }
            | LeaderWord::Desired(_) => {}
            LeaderWord::Granted { .. } | LeaderWord::Refused { .. } | LeaderWord::Members(_) => {}
        }
        Ok(())
    }

    fn granted(&mut self, nonce: u64, id: SessionId) -> Result<(), RunnerError> {
        let Standing::Asking(asking) = &self.standing else { return Ok(()) };
        let Some(asked) = asking.first.filter(|_| asking.nonce == nonce) else { return Ok(()) };
        let mut lease = Lease::granted(self.pace.lease, asked);
        if lease.is_over(self.processes.now()) {
            return Ok(());
        }
        // Before anything starts under it: the next node process proves it over by this file.
        self.record
            .begin(id, self.lingering.is_empty())
            .map_err(|source| RunnerError::Record { path: self.record.path(), source })?;
        lease.told_guard(self.processes.now());
        self.processes.renew(id, lease.end().minus(FENCE_MARGIN));
        tracing::info!(session = %id, "a session is granted");
        self.refusal = None;
        let (runs, outbox) = (Runs::default(), Outbox::default());
        self.standing = Standing::Held(Box::new(Session { id, lease, runs, outbox, leader: None, leaving: None }));
        self.beat();
        Ok(())
    }

    /// The session is over for good: nothing is done or said under it any more.
    fn session_over(&mut self) {
        let now = self.processes.now();
        let asking = Asking { nonce: (self.dice)(), first: None, not_before: now.plus(LINGER_LIMIT) };
        if let Standing::Held(session) = std::mem::replace(&mut self.standing, Standing::Asking(asking)) {
            self.processes.end_session(session.id);
            self.lingering.insert(session.id);
        }
    }

    /// Makes what runs what should run.
    fn act(&mut self, desired: &Desired) {
        let Standing::Held(session) = &mut self.standing else { return };
        if !session.runs.admit(desired) {
            return;
        }
        let now = self.processes.now();
        for action in plan(desired, &session.runs.standing()) {
            match action {
                // What was assigned before the cluster knew that this node goes is to end as soon as it knows.
                Action::Start(_) if session.leaving.is_some() => {}
                Action::Start(wanted) => session.runs.take_up(wanted, R::Instant::now()),
                Action::Stop(ending) => {
                    session.runs.stopping(ending.incarnation);
                    self.processes.stop(ending.incarnation);
                }
                Action::Promise(ending) => {
                    session.runs.promise(&ending.path, ending.incarnation);
                    let (path, incarnation) = (ending.path, ending.incarnation);
                    session.observe(&self.voters, now, Observation::NeverStarted { path, incarnation });
                }
            }
        }
        session.runs.forget(desired);
    }

    fn start_due(&mut self) {
        let Standing::Held(session) = &mut self.standing else { return };
        for wanted in session.runs.take_due(R::Instant::now()) {
            self.processes.start(wanted.path, wanted.incarnation, session.id, wanted.spec);
        }
    }

    fn child(&mut self, event: ChildEvent) -> Result<(), RunnerError> {
        match event {
            ChildEvent::GuardLost => return Err(RunnerError::GuardLost),
            ChildEvent::Renewed { session, .. } => {
                if let Standing::Held(held) = &mut self.standing
                    && held.id == session
                {
                    held.lease.guard_confirmed();
                }
            }
            ChildEvent::Fenced { session } => {
                if self.holds(session) {
                    tracing::warn!(%session, "no beat was answered in time: the guard has killed what ran under this session");
                    self.session_over();
                }
            }
            ChildEvent::Started { path, incarnation, pid, .. } => {
                self.observe_alive(incarnation, Observation::Started { path, incarnation, pid });
            }
            ChildEvent::Ready { path, incarnation, .. } => {
                self.observe_alive(incarnation, Observation::Ready { path, incarnation });
            }
            ChildEvent::SessionGone { session } => {
                if self.holds(session) {
                    self.session_over();
                }
                self.lingering.remove(&session);
            }
            ChildEvent::NeverStarted { path, incarnation } => self.never_started(path, incarnation),
            ChildEvent::Exited { path, incarnation, mut exit, .. } => {
                let now = self.processes.now();
                let Standing::Held(session) = &mut self.standing else { return Ok(()) };
                if session.runs.exited(&path, incarnation, R::Instant::now(), Some(&mut exit)) {
                    session.observe(&self.voters, now, Observation::Exited { path, incarnation, exit });
                }
            }
        }
        Ok(())
    }

    fn holds(&self, id: SessionId) -> bool {
        matches!(&self.standing, Standing::Held(session) if session.id == id)
    }

    /// The guard did not start a run: as promised where it was asked to end, else a failed start.
    fn never_started(&mut self, path: Path, incarnation: Incarnation) {
        let now = self.processes.now();
        let Standing::Held(session) = &mut self.standing else { return };
        let was_stopping =
            session.runs.standing().get(&incarnation).is_some_and(|(_, state)| *state == Local::Stopping);
        if !session.runs.exited(&path, incarnation, R::Instant::now(), None) {
            return;
        }
        let observation = if was_stopping {
            Observation::NeverStarted { path, incarnation }
        } else {
            let how = ExitHow::StartFailed("the guard of the node did not accept it".into());
            let exit = Exit { how, ran: Duration::ZERO, healthy: None, out_of_memory: OutOfMemory::No, stderr: None };
            Observation::Exited { path, incarnation, exit }
        };
        session.observe(&self.voters, now, observation);
    }

    fn observe_alive(&mut self, incarnation: Incarnation, observation: Observation) {
        let now = self.processes.now();
        let Standing::Held(session) = &mut self.standing else { return };
        if session.runs.is_alive(incarnation) {
            session.observe(&self.voters, now, observation);
        }
    }

    fn request(&mut self, request: Request) {
        let Request { path, signal, reply } = request;
        let running = match &self.standing {
            Standing::Held(session) => session.runs.running(&path),
            Standing::Asking(_) => None,
        };
        match running {
            Some(incarnation) => self.processes.signal(incarnation, signal, reply),
            None => {
                _ = reply.send(Err(io::Error::new(io::ErrorKind::NotFound, format!("nothing runs here at {path}"))));
            }
        }
    }

    /// Begins to go: says so, then stops everything itself, so that it also works when no leader answers.
    fn leave(&mut self) {
        self.is_leaving = true;
        let now = self.processes.now();
        let Standing::Held(session) = &mut self.standing else { return };
        session.leaving = Some(Leaving { since: now, at_rest: None, said_left: false, lost_patience: false });
        session.observe(&self.voters, now, Observation::Leaving);
        for (path, incarnation, state) in session.runs.alive() {
            match state {
                Local::Running => {
                    session.runs.stopping(incarnation);
                    self.processes.stop(incarnation);
                }
                Local::Waiting => {
                    session.runs.promise(&path, incarnation);
                    session.observe(&self.voters, now, Observation::NeverStarted { path, incarnation });
                }
                Local::Stopping | Local::Over => {}
            }
        }
    }

    /// Whether a node that was told to go is done: everything has stopped and the cluster knows, or it took too long, or no
    /// session is held any more and nothing is there to tell.
    fn has_left(&mut self) -> bool {
        let now = self.processes.now();
        let Standing::Held(session) = &mut self.standing else { return self.is_leaving };
        let Some(leaving) = &mut session.leaving else { return false };
        let alive = session.runs.alive();
        if !alive.is_empty() {
            let took = now.since(leaving.since);
            if took >= LEAVE_LIMIT && !leaving.lost_patience {
                leaving.lost_patience = true;
                alive.iter().for_each(|(_, incarnation, _)| self.processes.kill(*incarnation));
            }
            return took >= LEAVE_LIMIT + LAST_WORD_LIMIT;
        }
        let at_rest = *leaving.at_rest.get_or_insert(now);
        if now.since(at_rest) >= LAST_WORD_LIMIT {
            return true;
        }
        // Not before all else is confirmed: the cluster may have assigned something before it knew that this node goes.
        if !session.outbox.is_empty() {
            return false;
        }
        if leaving.said_left {
            return true;
        }
        leaving.said_left = true;
        session.observe(&self.voters, now, Observation::Left);
        false
    }
}

impl<R: AsyncRuntime> Session<R> {
    fn observe(&mut self, voters: &Voters, now: BootTime, observation: Observation) {
        let (number, observation) = self.outbox.push(observation, now);
        voters.say(&RunnerWord::Observe { session: self.id, number, observation });
    }

    /// Says everything that is not confirmed to one voter, which may not have heard it.
    fn say_again(&self, voters: &Voters, to: &NodeName) {
        for (number, observation) in self.outbox.unconfirmed() {
            voters.say_to(to, &RunnerWord::Observe { session: self.id, number, observation: observation.clone() });
        }
    }
}

#[cfg(test)]
mod tests;

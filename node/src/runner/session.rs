//! The runner's loop: asks for a session, beats, compares, acts, and reports.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use openraft::{AsyncRuntime, Instant};
use pando_protocol::ids::{Incarnation, NodeName, Path, SessionId};
use pando_protocol::session::{Desired, LeaderWord, NodeRole, Observation, RunnerWord, SessionRequest};
use pando_protocol::spec::{Label, OnDisconnect, ProcessSpec, Signal};
use pando_supervision::desired::{Action, Local};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::children::{ChildEvent, Children, Start};
use super::guard_watch::GuardWatch;
use super::kept::{Adoption, Kept, never_started, plan_with};
use super::lease::Lease;
use super::local::{Outbox, Runs};
use super::record::SessionRecord;
use super::voters::{Heard, Voters};
use crate::guard::{BootTime, FENCE_MARGIN};

/// Children of a node that was told to go have at most this long to stop.
pub const LEAVE_LIMIT: Duration = Duration::from_secs(30);
/// So long before that what still runs is stopped at once, whatever is to be stopped before it: the usual grace of a child.
const STOP_TOGETHER: Duration = Duration::from_secs(5);
/// Once everything has stopped, the cluster has this long to confirm it.
pub const LAST_WORD_LIMIT: Duration = Duration::from_secs(2);
/// After a session is over, its processes have this long to be gone before a new one is asked for without that proof: only the
/// kernel can hold them up then, since the guard has answered.
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
    /// Everything under the session that is not kept is killed at `kill_at`, unless it is renewed before.
    fn renew(&mut self, session: SessionId, kill_at: BootTime);
    /// Kills everything under the session that is not kept, now.
    fn end_session(&mut self, session: SessionId);
    /// Asks whoever kills at `kill_at` whether it is there: [`ChildEvent::GuardAnswered`] follows.
    fn call_guard(&mut self, number: u64);
    /// Kills whoever should kill at `kill_at` and does not answer: [`ChildEvent::GuardLost`] follows.
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
    fn call_guard(&mut self, number: u64) {
        Self::call_guard(self, number);
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
    /// The guard died, and nothing that it ran is left.
    #[error("the guard has died: nobody could fence what ran here, and all of it was killed")]
    GuardLost {
        /// The sessions that are known to be over by that.
        over: Vec<SessionId>,
    },
    /// The guard did not do its duty. It was killed, and nothing that it ran is left.
    #[error("{silence}, so that nobody fenced what ran here: all of it was killed")]
    GuardSilent {
        /// What was wrong with it.
        silence: Silence,
        /// The sessions that are known to be over by that.
        over: Vec<SessionId>,
    },
    /// What the guard ran could not be killed in time.
    #[error(
        "{0}, and what it ran may still run: look for processes with PANDO_SESSION in their environment, and kill them \
         before you start this node again"
    )]
    NotCleanedUp(Silence),
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

impl RunnerError {
    /// The sessions of which nothing is left, and of which the cluster may not know it.
    pub fn known_over(&self) -> &[SessionId] {
        match self {
            Self::GuardLost { over } | Self::GuardSilent { over, .. } => over,
            Self::NotCleanedUp(_) | Self::Record { .. } => &[],
        }
    }
}

/// What is wrong with the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Silence {
    /// It is dead.
    #[error("the guard has died")]
    Dead,
    /// It owed a word for so long.
    #[error("the guard has not answered for {0:?}")]
    Unanswered(Duration),
    /// The lease is over, and it did not say that it killed.
    #[error("the guard did not say that it killed what ran under a lease that has ended")]
    Unfenced,
}

/// A signal sent to a child, by an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signalled {
    /// The run.
    pub incarnation: Incarnation,
    /// Its main process.
    pub pid: u32,
}

/// A node's standing with the cluster, as its runner knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Presence {
    /// The session that it holds; `None`: nothing may run here.
    pub session: Option<SessionId>,
    /// How many children have a process here, as of the last beat.
    pub children: usize,
}

/// A way to the runner.
#[derive(Debug, Clone)]
pub struct RunnerHandle {
    requests: mpsc::Sender<Request>,
    presence: watch::Receiver<Presence>,
}

#[derive(Debug)]
struct Request {
    path: Path,
    signal: Signal,
    reply: SignalReply,
}

impl RunnerHandle {
    /// Whether a session is held, and how much runs here.
    pub fn presence(&self) -> Presence {
        self.presence.borrow().clone()
    }

    /// Sends a signal to what runs here at `path`.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] where nothing runs here at that path; what the kernel says otherwise.
    pub async fn signal(&self, path: Path, signal: Signal) -> io::Result<Signalled> {
        let (reply, answer) = oneshot::channel();
        _ = self.requests.send(Request { path, signal, reply }).await;
        answer.await.unwrap_or_else(|_| Err(io::Error::other("the node is stopping")))
    }

    /// One to a runner that is gone, for tests of what asks it nothing.
    #[cfg(test)]
    pub(crate) fn to_nobody() -> Self {
        let (requests, presence) = (mpsc::channel(1).0, watch::channel(Presence::default()).1);
        Self { requests, presence }
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

struct Asking {
    nonce: u64,
    /// When this nonce was first sent: a lease counts from there.
    first: Option<BootTime>,
    /// While something lingers, not before this.
    not_before: BootTime,
    /// While something lingers, not before the guard has answered a call after this one, and so has killed it.
    after_call: u64,
}

struct Session<R: AsyncRuntime> {
    id: SessionId,
    lease: Lease,
    runs: Runs<R>,
    outbox: Outbox,
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

struct Leaving {
    since: BootTime,
    /// The number of the observation that says so.
    said: u64,
    /// Nobody leads the stopping, or it took too long: all that ran was told to stop.
    stops_alone: bool,
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
        let (present, presence) = watch::channel(Presence::default());
        let now = processes.now();
        let asking = Asking { nonce: dice(), first: None, not_before: now, after_call: 0 };
        let guard = GuardWatch::new(pace.lease, now);
        let (standing, lingering) = (Standing::Asking(asking), BTreeSet::new());
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
            presence: present,
            dice,
            leaves_since: None,
            refusal: None,
            newest_begun,
        };
        (runner, RunnerHandle { requests: handle, presence })
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

    fn session(&self) -> Option<SessionId> {
        match &self.standing {
            Standing::Held(session) => Some(session.id),
            Standing::Asking(_) => None,
        }
    }

    fn tell_presence(&self) {
        let children = match &self.standing {
            Standing::Held(session) => session.runs.count(),
            Standing::Asking(_) => self.kept.runs.count(),
        };
        self.presence.send_replace(Presence { session: self.session(), children });
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

    /// What is wrong with the guard, if anything.
    fn silence(&mut self) -> Option<Silence> {
        let now = self.processes.now();
        if self.guard.is_silent(now) {
            return Some(Silence::Unanswered(self.guard.patience()));
        }
        let Standing::Held(session) = &mut self.standing else { return None };
        session.lease.fence_is_missing(now).then_some(Silence::Unfenced)
    }

    /// Nobody may be there to fence what runs here: no more is beaten, and it is killed by way of its guard.
    async fn without_guard(&mut self, silence: Silence, children: &mut mpsc::Receiver<ChildEvent>) -> RunnerError {
        tracing::error!(%silence, "the guard is killed with everything that runs here");
        self.processes.kill_guard();
        let lost = R::timeout(CLEAN_UP_LIMIT, async {
            loop {
                match children.recv().await {
                    Some(ChildEvent::GuardLost { nothing_left }) => return nothing_left,
                    Some(_) => {}
                    None => return false,
                }
            }
        });
        if !lost.await.unwrap_or(false) {
            return RunnerError::NotCleanedUp(silence);
        }
        RunnerError::GuardSilent { silence, over: self.own_sessions() }
    }

    /// The sessions under which anything may count that this process started and that may still have run just now.
    fn own_sessions(&self) -> Vec<SessionId> {
        let mut sessions = self.left();
        if let Standing::Held(session) = &self.standing {
            sessions.insert(session.id);
            sessions.extend(session.adoption.iter().flat_map(Adoption::sessions));
        }
        sessions.into_iter().collect()
    }

    /// The sessions that are over and under which something may count that is not known to be gone.
    fn left(&self) -> BTreeSet<SessionId> {
        self.lingering.union(self.kept.sessions()).copied().collect()
    }

    /// Ends a session whose lease has ended.
    fn end_lease(&mut self) {
        let Standing::Held(session) = &self.standing else { return };
        if session.lease.is_over(self.processes.now()) {
            tracing::warn!(session = %session.id, "the lease has ended: what runs under this session is being killed");
            self.session_over();
        }
    }

    /// Asks, or beats and says again what is not confirmed.
    fn beat(&mut self) {
        let now = self.processes.now();
        // Whether or not the network lets anything renew a kill time.
        let call = self.guard.call(now);
        self.processes.call_guard(call);
        match &mut self.standing {
            Standing::Asking(asking) => {
                let is_killed = now >= asking.not_before && self.guard.has_answered_after(asking.after_call);
                if self.leaves_since.is_none() && (self.lingering.is_empty() || is_killed) {
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
        let left = self.left();
        let Standing::Asking(asking) = &mut self.standing else { return };
        // A nonce that waited for half a lease would be granted a session that is nearly over: a lease counts from when its
        // nonce was first sent, since the leader may count it from there too.
        if asking.first.is_some_and(|first| now.since(first) > self.pace.lease / 2) {
            (asking.nonce, asking.first) = ((self.dice)(), None);
        }
        asking.first.get_or_insert(now);
        let proven_over = self.record.sessions().into_iter().filter(|session| !left.contains(session)).collect();
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
                    self.guard.told_kill_time(self.processes.now());
                    self.processes.renew(id, end.minus(FENCE_MARGIN));
                }
            }
            LeaderWord::Applied { session: id, through } if id == session.id => {
                session.outbox.applied(through);
                session.is_known |= through > 0;
                if session.adoption.take_if(|adoption| adoption.is_applied(through)).is_some() {
                    self.act_again();
                }
            }
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
        let now = self.processes.now();
        let asked = match &self.standing {
            Standing::Asking(asking) => asking.first.filter(|_| asking.nonce == nonce),
            Standing::Held(_) => None,
        };
        let lease = asked.map(|asked| Lease::granted(self.pace.lease, asked)).filter(|lease| !lease.is_over(now));
        let Some(lease) = lease else {
            self.decline(nonce, id);
            return Ok(());
        };
        // Before anything starts under it: the next node process proves it over by this file.
        self.record
            .begin(id, &self.left())
            .map_err(|source| RunnerError::Record { path: self.record.path(), source })?;
        self.newest_begun = Some(id);
        self.guard.told_kill_time(self.processes.now());
        self.processes.renew(id, lease.kill_at());
        tracing::info!(session = %id, "a session is granted");
        self.refusal = None;
        let (runs, adoption) = std::mem::take(&mut self.kept).hand_over();
        let (outbox, newest, is_known) = (Outbox::default(), None, false);
        let (leader, leaving) = (None, None);
        let session = Session { id, lease, runs, outbox, adoption, newest, is_known, leader, leaving };
        self.standing = Standing::Held(Box::new(session));
        self.say_kept();
        self.beat();
        Ok(())
    }

    /// Says of a session that was granted too late that nothing runs under it, and nothing ever will: what was assigned to it
    /// would stand still for a lease, and count as lost. Said once; where that is not heard, the lease ends it.
    fn decline(&mut self, nonce: u64, id: SessionId) {
        if self.newest_begun >= Some(id) {
            return; // Told again of a session that was begun.
        }
        if let Standing::Asking(asking) = &mut self.standing
            && asking.nonce == nonce
        {
            // Never begun, also when it is granted once more.
            (asking.nonce, asking.first) = ((self.dice)(), None);
        }
        tracing::info!(session = %id, "a session was granted too late, and is not begun");
        self.voters.say(&RunnerWord::Observe { session: id, number: 1, observation: Observation::Left });
    }

    /// The session is over for good: nothing is done or said under it any more.
    fn session_over(&mut self) {
        let now = self.processes.now();
        let (not_before, after_call) = (now.plus(LINGER_LIMIT), self.guard.called());
        let asking = Asking { nonce: (self.dice)(), first: None, not_before, after_call };
        // What is over needs no kill time; that it ends is heard in the answer to a call.
        self.guard.settled_kill_time();
        if let Standing::Held(session) = std::mem::replace(&mut self.standing, Standing::Asking(asking)) {
            self.processes.end_session(session.id);
            self.lingering.insert(session.id);
            let Session { id, runs, outbox, adoption, .. } = *session;
            let unconfirmed: Vec<Observation> = outbox.unconfirmed().map(|(_, said)| said.clone()).collect();
            self.kept = Kept::of(id, runs, adoption, unconfirmed.into_iter());
        }
    }

    /// Says which runs of older sessions go on under this one, once nothing else of those is left.
    fn say_kept(&mut self) {
        let now = self.processes.now();
        let Standing::Held(session) = &mut self.standing else { return };
        let Some(adoption) = &mut session.adoption else { return };
        for (at, observation) in adoption.take_words(&self.lingering).into_iter().enumerate() {
            let (number, observation) = session.outbox.push(observation, now);
            if at == 0 {
                adoption.said(number);
            }
            self.voters.say(&RunnerWord::Observe { session: session.id, number, observation });
        }
    }

    /// Acts on what was told last, now that the cluster knows of all that runs here.
    fn act_again(&mut self) {
        let Standing::Held(session) = &mut self.standing else { return };
        if let Some(newest) = session.newest.take() {
            self.act(&newest);
        }
    }

    /// Makes what runs what should run.
    fn act(&mut self, desired: &Desired) {
        let Standing::Held(session) = &mut self.standing else { return };
        if !session.runs.admit(desired) {
            return;
        }
        let now = self.processes.now();
        session.newest = Some(desired.clone());
        for action in plan_with(desired, &session.runs, session.adoption.as_ref()) {
            match action {
                Action::Start(wanted) => {
                    // A first word, for the sake of the one that it waits for.
                    if wanted.spec.on_disconnect == OnDisconnect::Keep && !session.outbox.has_spoken() {
                        let begun = Observation::Kept { sessions: Vec::new(), runs: Vec::new() };
                        session.observe(&self.voters, now, begun);
                    }
                    session.runs.take_up(wanted, R::Instant::now());
                }
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
        // One that ended and is not known to the cluster yet would be taken for one that never started.
        if session.adoption.is_none() {
            session.runs.forget(desired);
        }
    }

    fn start_due(&mut self) {
        let Standing::Held(session) = &mut self.standing else { return };
        // What was assigned before the cluster knew that this node goes waits until it is told to end.
        if session.leaving.is_some() {
            return;
        }
        for wanted in session.runs.take_due(R::Instant::now(), session.is_known) {
            self.processes.start(wanted.path, wanted.incarnation, session.id, wanted.spec);
        }
    }

    /// What the guard says of itself and of whole sessions.
    fn hear_guard(&mut self, event: &ChildEvent) {
        match event {
            ChildEvent::GuardAnswered { number } => self.guard.answered(*number),
            ChildEvent::Renewed { session, .. } if self.holds(*session) => self.guard.settled_kill_time(),
            ChildEvent::Fenced { session } if self.holds(*session) => {
                tracing::warn!(%session, "no beat was answered in time: the guard has killed what ran under this session");
                self.session_over();
            }
            ChildEvent::SessionGone { session } => {
                if self.holds(*session) {
                    self.session_over();
                }
                self.lingering.remove(session);
                self.say_kept();
                tracing::info!(%session, "nothing that ran under this session is left");
            }
            _ => {}
        }
    }

    fn child(&mut self, event: ChildEvent) -> Result<(), RunnerError> {
        match event {
            ChildEvent::GuardLost { nothing_left: true } => {
                return Err(RunnerError::GuardLost { over: self.own_sessions() });
            }
            ChildEvent::GuardLost { nothing_left: false } => return Err(RunnerError::NotCleanedUp(Silence::Dead)),
            // Heard already.
            ChildEvent::GuardAnswered { .. }
            | ChildEvent::Renewed { .. }
            | ChildEvent::Fenced { .. }
            | ChildEvent::SessionGone { .. } => {}
            ChildEvent::Started { path, incarnation, pid, .. } => {
                self.observe_alive(incarnation, Observation::Started { path, incarnation, pid });
            }
            ChildEvent::Ready { path, incarnation, .. } => {
                self.observe_alive(incarnation, Observation::Ready { path, incarnation });
            }
            ChildEvent::NeverStarted { path, incarnation } => self.never_started(path, incarnation),
            ChildEvent::Exited { path, incarnation, mut exit, .. } => {
                if self.runs().exited(&path, incarnation, R::Instant::now(), Some(&mut exit)) {
                    self.observe(Observation::Exited { path, incarnation, exit });
                }
            }
        }
        Ok(())
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

    /// Tells the cluster, at once or under the next session.
    fn observe(&mut self, observation: Observation) {
        let now = self.processes.now();
        match &mut self.standing {
            Standing::Held(session) => _ = session.observe(&self.voters, now, observation),
            Standing::Asking(_) => self.kept.note(observation),
        }
    }

    fn never_started(&mut self, path: Path, incarnation: Incarnation) {
        let stood = self.runs().stands(incarnation);
        if self.runs().exited(&path, incarnation, R::Instant::now(), None) {
            self.observe(never_started(path, incarnation, stood));
        }
    }

    fn observe_alive(&mut self, incarnation: Incarnation, observation: Observation) {
        if self.runs().is_alive(incarnation) {
            self.observe(observation);
        }
    }

    fn request(&mut self, request: Request) {
        let Request { path, signal, reply } = request;
        match self.runs().running(&path) {
            Some(incarnation) => self.processes.signal(incarnation, signal, reply),
            None => {
                _ = reply.send(Err(io::Error::new(io::ErrorKind::NotFound, format!("nothing runs here at {path}"))));
            }
        }
    }

    /// Begins to go: says so, and starts nothing more. What runs is stopped as the cluster says, in its order.
    fn leave(&mut self) {
        let now = self.processes.now();
        self.leaves_since = Some(now);
        let Standing::Held(session) = &mut self.standing else { return };
        let said = session.observe(&self.voters, now, Observation::Leaving);
        session.leaving = Some(Leaving {
            since: now,
            said,
            stops_alone: false,
            at_rest: None,
            said_left: false,
            lost_patience: false,
        });
    }

    /// A node that was told to go, and that no leader hears, stops all itself while its lease lasts, the newest first; so does
    /// one whose time is nearly up. Each child has its grace, or what the limit leaves of it.
    fn stop_alone(&mut self) {
        let now = self.processes.now();
        let Standing::Held(session) = &mut self.standing else { return };
        let Some(leaving) = &mut session.leaving else { return };
        let took = now.since(leaving.since);
        let patience = self.pace.lease / 2;
        let is_unheard = took >= patience && session.outbox.holds(leaving.said);
        // The newest answered beat was sent a lease before the end of the lease.
        let is_unanswered = now.plus(self.pace.lease).since(session.lease.end()) >= patience;
        if leaving.stops_alone || !(is_unheard || is_unanswered || took + STOP_TOGETHER >= LEAVE_LIMIT) {
            return;
        }
        leaving.stops_alone = true;
        tracing::warn!(
            is_unheard,
            is_unanswered,
            "what runs here is stopped all at once: nobody leads that, or it took too long"
        );
        for (_, incarnation, state) in session.runs.alive() {
            if state == Local::Running {
                session.runs.stopping(incarnation);
                self.processes.stop(incarnation);
            }
        }
    }

    /// Whether a node that was told to go is done: everything has stopped and the cluster knows, or it took too long, or no
    /// session is held any more and nothing is there to tell.
    fn has_left(&mut self) -> bool {
        let now = self.processes.now();
        let Standing::Held(session) = &mut self.standing else { return self.has_left_unheard(now) };
        let Some(leaving) = &mut session.leaving else { return false };
        let mut alive = session.runs.alive();
        // Where nobody leads the stopping nobody says of these that they shall never start.
        if leaving.stops_alone {
            alive.retain(|(_, _, state)| *state != Local::Waiting);
        }
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
        if !session.outbox.is_empty() || session.adoption.is_some() || !session.runs.alive().is_empty() {
            return false;
        }
        if leaving.said_left {
            return true;
        }
        leaving.said_left = true;
        session.observe(&self.voters, now, Observation::Left);
        false
    }

    /// Whether a node that was told to go and holds no session is done: what is kept has stopped, each with its grace. The next
    /// process of this node proves to the cluster that it is gone.
    fn has_left_unheard(&mut self, now: BootTime) -> bool {
        let Some(since) = self.leaves_since else { return false };
        let alive = self.kept.runs.alive();
        for (_, incarnation, state) in &alive {
            if *state == Local::Running {
                self.kept.runs.stopping(*incarnation);
                self.processes.stop(*incarnation);
            }
        }
        alive.is_empty() || now.since(since) >= LEAVE_LIMIT
    }
}

impl<R: AsyncRuntime> Session<R> {
    /// Says it to all voters, and gives its number. What is about a run that the cluster is not told of yet waits, and gives 0.
    fn observe(&mut self, voters: &Voters, now: BootTime, observation: Observation) -> u64 {
        if self.adoption.as_mut().is_some_and(|adoption| adoption.holds_back(&observation)) {
            return 0;
        }
        let (number, observation) = self.outbox.push(observation, now);
        voters.say(&RunnerWord::Observe { session: self.id, number, observation });
        number
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

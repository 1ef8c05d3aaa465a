//! A runner that is not there: it carries out plans, keeps its own view of what runs, and numbers its words.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use pando_protocol::cause::{Exit, ExitHow, OutOfMemory};
use pando_protocol::ids::{Incarnation, NodeName, Path, SessionId};
use pando_protocol::session::{Desired, Ending, NodeRole, Observation, SessionRequest};
use pando_protocol::spec::{Label, OnDisconnect};
use pando_supervision::desired::{Action, Local, plan};

use super::copies::Copies;

/// One node's runner, or the machine of it that stays when it has no session.
#[derive(Debug, Clone)]
pub struct Runner {
    /// The node.
    pub name: NodeName,
    /// Its labels.
    pub labels: Vec<Label>,
    /// Its capacity.
    pub slots: u32,
    /// The session it acts under.
    pub session: Option<SessionId>,
    /// The nonce of its newest request.
    pub nonce: u64,
    /// Whether it told that it goes.
    pub leaving: bool,
    /// Its runs under the session.
    pub runs: BTreeMap<Incarnation, LocalRun>,
    /// Words not yet told, with their numbers.
    pub outbox: VecDeque<(u64, Observation)>,
    /// Words told before, of every session: what a bad network may tell again.
    pub told: Vec<(SessionId, u64, Observation)>,
    /// Sessions that are over under which the cluster may count runs that are kept here.
    pub former: BTreeSet<SessionId>,
    /// Sessions of which nothing is left here: the next request proves it, as a node does by what it wrote down.
    pub over: BTreeSet<SessionId>,
    /// Runs of those, until the cluster is told that they go on under the new session.
    taken_over: BTreeSet<Incarnation>,
    /// Whether a word of this session was told.
    is_known: bool,
    next_number: u64,
    exits: BTreeMap<Incarnation, Duration>,
}

/// A run as its runner sees it.
#[derive(Debug, Clone)]
pub struct LocalRun {
    /// The child.
    pub path: Path,
    /// How it stands.
    pub state: Local,
    /// When it may start.
    pub due: Duration,
    /// When it started.
    pub started: Duration,
    /// When it was ready.
    pub ready: Option<Duration>,
    /// Whether it outlives its lease.
    pub keep: bool,
}

impl Runner {
    /// A node that has no session yet.
    pub fn new(name: &str, slots: u32, labels: &[&str]) -> Self {
        Self {
            name: name.parse().expect("a name"),
            labels: labels.iter().map(|label| label.parse().expect("a label")).collect(),
            slots,
            session: None,
            nonce: 0,
            leaving: false,
            runs: BTreeMap::new(),
            outbox: VecDeque::new(),
            told: Vec::new(),
            former: BTreeSet::new(),
            over: BTreeSet::new(),
            taken_over: BTreeSet::new(),
            is_known: false,
            next_number: 1,
            exits: BTreeMap::new(),
        }
    }

    /// What it brings when it asks for a session.
    pub fn request(&self, proven_over: Vec<SessionId>) -> SessionRequest {
        SessionRequest {
            node: self.name.clone(),
            nonce: self.nonce,
            address: format!("{}:7700", self.name),
            role: NodeRole::Agent,
            labels: self.labels.clone(),
            slots: self.slots,
            pid: 1,
            proven_over,
        }
    }

    /// Begins a session: nothing of an older one is here any more, but for what is kept.
    pub fn begin(&mut self, session: SessionId) {
        self.session = Some(session);
        (self.leaving, self.is_known, self.next_number) = (false, false, 1);
        let untold: Vec<Observation> = self.outbox.drain(..).map(|(_, word)| word).collect();
        if self.former.is_empty() {
            self.runs.clear();
            self.exits.clear();
            return;
        }
        let run = |(incarnation, run): (&Incarnation, &LocalRun)| Ending {
            path: run.path.clone(),
            incarnation: *incarnation,
        };
        let (sessions, runs) = (self.former.iter().copied().collect(), self.runs.iter().map(run).collect());
        self.taken_over = self.runs.keys().copied().collect();
        self.say(Observation::Kept { sessions, runs });
        untold.into_iter().for_each(|word| self.say(word));
    }

    /// The lease ends here: what is kept goes on, and what happens to it is told later. All else dies.
    pub fn fall_silent(&mut self, copies: &mut Copies) {
        let Some(session) = self.session.take() else { return };
        let about = |word: &Observation| match word {
            Observation::Started { incarnation, .. }
            | Observation::Ready { incarnation, .. }
            | Observation::Exited { incarnation, .. }
            | Observation::NeverStarted { incarnation, .. }
            | Observation::Stopping { incarnation, .. }
            | Observation::WorkerReady { incarnation, .. } => Some(*incarnation),
            Observation::Leaving | Observation::Left | Observation::Kept { .. } | Observation::Settled(_) => None,
        };
        let untold: BTreeSet<Incarnation> = self.outbox.iter().filter_map(|(_, word)| about(word)).collect();
        self.runs.retain(|incarnation, run| {
            let has_started = matches!(run.state, Local::Running | Local::Stopping);
            let is_kept = run.keep && (has_started || run.state == Local::Over && untold.contains(incarnation));
            if !is_kept {
                copies.end(&run.path, *incarnation);
            }
            is_kept
        });
        let runs = &self.runs;
        self.outbox.retain(|(_, word)| about(word).is_some_and(|incarnation| runs.contains_key(&incarnation)));
        match self.runs.is_empty() {
            true => {
                self.over.append(&mut self.former);
                self.over.insert(session);
            }
            false => _ = self.former.insert(session),
        }
    }

    /// The oldest word was told.
    pub fn was_told(&mut self, word: &Observation) {
        self.is_known = true;
        if matches!(word, Observation::Kept { sessions, .. } if !sessions.is_empty()) {
            self.former.clear();
            self.taken_over.clear();
        }
    }

    /// The node process is another one, and knows nothing of what the old one runs.
    pub fn forget(&mut self) {
        self.runs.clear();
        self.outbox.clear();
        self.former.clear();
        self.over.clear();
        self.taken_over.clear();
        self.session = None;
    }

    /// Everything here dies, as the guard or the machine's end sees to; the session is not acted under again.
    pub fn die(&mut self, copies: &mut Copies) {
        for (incarnation, run) in &self.runs {
            copies.end(&run.path, *incarnation);
        }
        self.runs.clear();
        self.outbox.clear();
        self.over.append(&mut self.former);
        self.over.extend(self.session.take());
        self.taken_over.clear();
    }

    /// Carries out what a desired state asks for. What takes time (starting, stopping) is only begun.
    ///
    /// # Errors
    /// The plan asks for more when it is made again.
    pub fn act(&mut self, desired: &Desired, now: Duration) -> Result<(), String> {
        for action in self.plan(desired) {
            match action {
                Action::Start(wanted) => {
                    let keep = wanted.spec.on_disconnect == OnDisconnect::Keep;
                    if keep && self.next_number == 1 {
                        self.say(Observation::Kept { sessions: Vec::new(), runs: Vec::new() });
                    }
                    let from = wanted.after.and_then(|before| self.exits.get(&before)).copied().unwrap_or(now);
                    let due = from.saturating_add(wanted.delay);
                    let run =
                        LocalRun { path: wanted.path, state: Local::Waiting, due, started: now, ready: None, keep };
                    self.runs.insert(wanted.incarnation, run);
                }
                Action::Stop(ending) => self.set(ending.incarnation, &ending.path, Local::Stopping),
                Action::Promise(ending) => {
                    self.set(ending.incarnation, &ending.path, Local::Over);
                    let (path, incarnation) = (ending.path, ending.incarnation);
                    self.say(Observation::NeverStarted { path, incarnation });
                }
            }
        }
        match self.plan(desired).first() {
            None => Ok(()),
            Some(action) => Err(format!("a plan carried out leaves nothing to do: {action:?}")),
        }
    }

    /// The plan, but for what the cluster was not told of yet.
    fn plan(&self, desired: &Desired) -> Vec<Action> {
        let mut actions = plan(desired, &self.view());
        let is_asked_for = |ending: &Ending| desired.end.contains(ending);
        actions.retain(|action| match action {
            Action::Stop(ending) => is_asked_for(ending) || !self.taken_over.contains(&ending.incarnation),
            Action::Start(_) | Action::Promise(_) => true,
        });
        actions
    }

    fn view(&self) -> BTreeMap<Incarnation, (Path, Local)> {
        self.runs.iter().map(|(incarnation, run)| (*incarnation, (run.path.clone(), run.state))).collect()
    }

    fn set(&mut self, incarnation: Incarnation, path: &Path, state: Local) {
        let fresh = || LocalRun {
            path: path.clone(),
            state,
            due: Duration::ZERO,
            started: Duration::ZERO,
            ready: None,
            keep: false,
        };
        self.runs.entry(incarnation).or_insert_with(fresh).state = state;
    }

    /// A node that goes stops all that runs by itself.
    pub fn stop_alone(&mut self) {
        for incarnation in self.in_state(Local::Running) {
            let Some(run) = self.runs.get_mut(&incarnation) else { continue };
            run.state = Local::Stopping;
            let path = run.path.clone();
            self.say(Observation::Stopping { path, incarnation });
        }
    }

    /// The runs in a state.
    pub fn in_state(&self, state: Local) -> Vec<Incarnation> {
        self.runs.iter().filter(|(_, run)| run.state == state).map(|(incarnation, _)| *incarnation).collect()
    }

    /// Starts a run whose delay is over.
    ///
    /// # Errors
    /// As [`Copies::start`].
    pub fn start(&mut self, incarnation: Incarnation, now: Duration, copies: &mut Copies) -> Result<(), String> {
        let Some(run) = self.runs.get_mut(&incarnation) else { return Ok(()) };
        if run.keep && !self.is_known {
            return Ok(()); // Not before the cluster knows of the session.
        }
        copies.start(&run.path, &self.name, incarnation)?;
        (run.state, run.started) = (Local::Running, now);
        let (path, pid) = (run.path.clone(), 1_000 + u32::try_from(incarnation.0).unwrap_or(0));
        self.say(Observation::Started { path, incarnation, pid });
        Ok(())
    }

    /// A run says that it is ready.
    pub fn ready(&mut self, incarnation: Incarnation, now: Duration) {
        let Some(run) = self.runs.get_mut(&incarnation) else { return };
        run.ready = Some(now);
        let path = run.path.clone();
        self.say(Observation::Ready { path, incarnation });
    }

    /// A run ends.
    pub fn exit(
        &mut self,
        incarnation: Incarnation,
        how: ExitHow,
        stderr: Option<&str>,
        now: Duration,
        copies: &mut Copies,
    ) {
        let Some(run) = self.runs.get_mut(&incarnation) else { return };
        let has_started = matches!(run.state, Local::Running | Local::Stopping);
        let out_of_memory = match how {
            ExitHow::Signal(signal) if signal.0 == 9 && incarnation.0.is_multiple_of(2) => OutOfMemory::Yes,
            ExitHow::Signal(signal) if signal.0 == 9 => OutOfMemory::Likely,
            _ => OutOfMemory::No,
        };
        let exit = Exit {
            how,
            ran: if has_started { now.saturating_sub(run.started) } else { Duration::ZERO },
            healthy: run.ready.map(|ready| now.saturating_sub(ready)),
            out_of_memory,
            stderr: stderr.map(str::to_owned),
        };
        run.state = Local::Over;
        let path = run.path.clone();
        copies.end(&path, incarnation);
        self.exits.insert(incarnation, now);
        self.say(Observation::Exited { path, incarnation, exit, started: Vec::new() });
    }

    /// Says in its newest word, that of an ending, which hands the worker had started.
    pub fn accuse(&mut self, hands: Vec<u64>) {
        if let Some((_, Observation::Exited { started, .. })) = self.outbox.back_mut() {
            *started = hands;
        }
    }

    /// Puts a word into the outbox.
    pub fn say(&mut self, observation: Observation) {
        self.outbox.push_back((self.next_number, observation));
        self.next_number += 1;
    }

    /// When the next run that waits here may start.
    pub fn next_due(&self) -> Option<Duration> {
        self.runs.values().filter(|run| run.state == Local::Waiting).map(|run| run.due).min()
    }
}

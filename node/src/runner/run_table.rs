//! What is known of each run between its start and the end of its tree.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pando_protocol::cause::{Exit, ExitHow, OutOfMemory};
use pando_protocol::ids::{Incarnation, Path, SessionId};
use pando_protocol::mail::Hand;
use pando_protocol::spec::{Command, ProcessSpec, Ready, Shutdown, Signal};
use tokio::sync::{mpsc, oneshot, watch};

use super::capture::{Pipes, capture};
use super::children::{ChildEvent, ChildrenError, Options, SignalError, Start};
use super::environment::{BaseEnvironment, RunIdentity, Sockets};
use super::log_writer::LogWriter;
use super::memory::OutOfMemoryKills;
use super::outbox::Outbox;
use super::ready::NotifySocket;
use super::run::{Probe, Process, Run};
use super::runs::Report;
use super::start::Beginning;
use super::worker::desk::Terms;
use super::worker::socket::SocketFolder;
use super::worker::{DeskHandle, DeskWord};
use crate::guard::words::{EndedHow, Ending, FromGuard, RunId, ToGuard};

/// The runs of this node.
pub struct RunTable {
    base: BaseEnvironment,
    work: PathBuf,
    sockets: SocketFolder,
    logs: LogWriter,
    report: mpsc::UnboundedSender<Report>,
    /// Whether workers are held up.
    holds_workers: watch::Sender<bool>,
    runs: BTreeMap<Incarnation, Run>,
    memory_of_paths: BTreeMap<Path, PathMemory>,
    /// Sessions of which the guard has nothing left.
    gone: BTreeSet<SessionId>,
    stopping: bool,
    /// The kernel's kills for memory.
    pub out_of_memory: OutOfMemoryKills,
    /// What the session has not taken yet.
    pub events: VecDeque<ChildEvent>,
}

/// What a path needs to remember of runs that are gone.
#[derive(Default)]
struct PathMemory {
    newest: Incarnation,
}

impl RunTable {
    /// An empty table.
    ///
    /// # Errors
    /// Where the thread that writes logs cannot be started, or the folder of sockets not be made.
    pub fn new(options: &Options, report: mpsc::UnboundedSender<Report>) -> Result<Self, ChildrenError> {
        let cannot = |what| move |source| ChildrenError::Io { what, source };
        let sockets = SocketFolder::open(&options.data, &options.mark);
        Ok(Self {
            base: BaseEnvironment::of_node(&options.node, &options.mark, options.program.parent()),
            work: options.data.join("work"),
            sockets: sockets.map_err(cannot("make the folder of the sockets of workers"))?,
            logs: LogWriter::start(options.data.clone(), options.log_file_bytes)
                .map_err(cannot("start the thread that writes logs"))?,
            report,
            holds_workers: watch::Sender::new(false),
            runs: BTreeMap::new(),
            memory_of_paths: BTreeMap::new(),
            gone: BTreeSet::new(),
            stopping: false,
            out_of_memory: OutOfMemoryKills::watch(Instant::now()),
            events: VecDeque::new(),
        })
    }

    /// Whether nothing runs.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The reapers of all runs.
    pub fn reapers(&self) -> Vec<u32> {
        self.runs.values().filter_map(|run| run.process.map(|process| process.reaper)).collect()
    }

    /// Forgets all runs: their trees are gone with the guard.
    pub fn abandon(&mut self) {
        self.runs.clear();
        self.events.clear();
    }

    /// Orders a start.
    pub fn start(&mut self, start: Start, outbox: &mut Outbox) {
        let Start { path, incarnation, session, spec } = start;
        let memory = self.memory_of_paths.entry(path.clone()).or_default();
        if self.runs.contains_key(&incarnation) {
            return;
        }
        if self.stopping || incarnation <= memory.newest {
            self.events.push_back(ChildEvent::NeverStarted { path, incarnation });
            return;
        }
        memory.newest = incarnation;
        if let Err(why) = self.try_start(&path, incarnation, session, &spec, outbox) {
            self.refuse_start(path, incarnation, why);
        }
    }

    fn try_start(
        &mut self,
        path: &Path,
        incarnation: Incarnation,
        session: SessionId,
        spec: &Arc<ProcessSpec>,
        outbox: &mut Outbox,
    ) -> Result<(), String> {
        let notify = match spec.ready {
            Ready::Notify { .. } => {
                Some(NotifySocket::make().map_err(|error| format!("cannot make its notify socket: {error}"))?)
            }
            Ready::Started | Ready::Exec { .. } => None,
        };
        let (pipes, ends) = Pipes::make().map_err(|error| format!("cannot make pipes for its output: {error}"))?;
        let mail = spec.mailbox.as_ref().map(|mailbox| self.sockets.listen().map(|socket| (mailbox, socket)));
        let mail = mail.transpose().map_err(|error| format!("cannot make the socket for its messages: {error}"))?;
        let sockets = Sockets {
            notify: notify.as_ref().map(NotifySocket::name),
            worker: mail.as_ref().map(|(_, socket)| socket.path()),
        };
        let run = RunIdentity { path, incarnation, session };
        let beginning = Beginning::of(&self.base, &self.work, run, spec, sockets);
        outbox
            .push(&ToGuard::Start(beginning.order(0, &spec.command)), ends)
            .map_err(|error| format!("its command and environment cannot be handed over: {error}"))?;
        let output = self.capture(pipes, path, incarnation);
        let desk = mail.map(|(mailbox, socket)| {
            let (handling_timeout, prefetch) = (mailbox.handling_timeout, mailbox.prefetch);
            let terms = Terms { handling_timeout, prefetch, makes_ready: spec.ready == Ready::Started };
            DeskHandle::open(socket, terms, incarnation, self.report.clone(), self.holds_workers.subscribe())
        });
        let run = Run::new(path.clone(), Arc::clone(spec), beginning, notify, desk, output);
        self.runs.insert(incarnation, run);
        Ok(())
    }

    fn capture(&self, pipes: Pipes, path: &Path, incarnation: Incarnation) -> oneshot::Sender<()> {
        let (output, ended) = oneshot::channel();
        let (path, logs, report) = (path.clone(), self.logs.clone(), self.report.clone());
        tokio::spawn(async move {
            let stderr = capture(pipes, path, incarnation, ended, logs).await;
            // Nobody hears it where the node leaves.
            let _ = report.send(Report::Drained(incarnation, stderr));
        });
        output
    }

    fn refuse_start(&mut self, path: Path, incarnation: Incarnation, why: String) {
        let exit = Exit {
            how: ExitHow::StartFailed(why),
            ran: Duration::ZERO,
            healthy: None,
            out_of_memory: OutOfMemory::No,
            stderr: Some(String::new()),
        };
        let (started, at) = (Vec::new(), Instant::now());
        self.events.push_back(ChildEvent::Exited { path, incarnation, exit, started, at });
    }

    /// Gives messages to the workers that they are for.
    pub fn hand(&mut self, hands: Vec<Hand>) {
        let mut of_each: BTreeMap<Incarnation, Vec<Hand>> = BTreeMap::new();
        for hand in hands {
            of_each.entry(hand.incarnation).or_default().push(hand);
        }
        for (incarnation, hands) in of_each {
            if let Some(desk) = self.runs.get(&incarnation).and_then(|run| run.desk.as_ref()) {
                desk.hand(hands);
            }
        }
    }

    /// Holds up all workers, or lets them go on.
    pub fn hold_workers(&mut self, holds: bool) {
        self.holds_workers.send_replace(holds);
    }

    /// Orders a stop, with at most this grace. A worker is told before its signal comes.
    pub fn stop(&mut self, incarnation: Incarnation, most: Option<Duration>, outbox: &mut Outbox) {
        let Some(run) = self.runs.get_mut(&incarnation) else { return };
        // From now on it may end as it likes: nobody waits for it to be ready.
        run.readiness = None;
        run.stopping = true;
        match &run.desk {
            Some(desk) if run.end.is_none() && run.spec.shutdown != Shutdown::BrutalKill => desk.stop(most),
            _ => self.send_stop(incarnation, most, outbox),
        }
    }

    fn send_stop(&mut self, incarnation: Incarnation, most: Option<Duration>, outbox: &mut Outbox) {
        let Some(run) = self.runs.get(&incarnation) else { return };
        let grace = match run.spec.shutdown {
            Shutdown::BrutalKill => return self.kill(incarnation, outbox),
            Shutdown::Grace(grace) => Some(most.map_or(grace, |most| grace.min(most))),
            Shutdown::Infinity => most,
        };
        let (run, signal) = (RunId { incarnation, probe: 0 }, run.spec.stop_signal);
        if outbox.withdraw(run) {
            return self.not_started(incarnation);
        }
        outbox.say(&ToGuard::Stop { run, signal, grace });
    }

    /// Orders a stop of everything, and lets nothing start any more.
    pub fn stop_all(&mut self, most: Duration, outbox: &mut Outbox) {
        self.stopping = true;
        for incarnation in self.runs.keys().copied().collect::<Vec<_>>() {
            self.stop(incarnation, Some(most), outbox);
        }
    }

    /// Orders SIGKILL.
    pub fn kill(&mut self, incarnation: Incarnation, outbox: &mut Outbox) {
        if self.runs.contains_key(&incarnation) {
            self.kill_run(RunId { incarnation, probe: 0 }, outbox);
        }
    }

    fn kill_run(&mut self, run: RunId, outbox: &mut Outbox) {
        if !outbox.withdraw(run) {
            return outbox.say(&ToGuard::Kill { run });
        }
        match run.probe {
            0 => self.not_started(run.incarnation),
            _ => self.probe_ended(run, false),
        }
    }

    /// Orders a signal to the main process.
    ///
    /// # Errors
    /// Where there is none.
    pub fn signal(
        &mut self,
        incarnation: Incarnation,
        signal: Signal,
        outbox: &mut Outbox,
    ) -> Result<u32, SignalError> {
        let run = self.runs.get(&incarnation).filter(|run| run.end.is_none());
        let process = run.and_then(|run| run.process).ok_or(SignalError::NotRunning(incarnation))?;
        outbox.say(&ToGuard::Signal { run: RunId { incarnation, probe: 0 }, signal });
        Ok(process.pid)
    }

    /// Takes a word of the guard.
    pub fn hear(&mut self, word: FromGuard, outbox: &mut Outbox) {
        self.sort(word, outbox);
        self.publish_gone_sessions();
    }

    fn sort(&mut self, word: FromGuard, outbox: &mut Outbox) {
        if let FromGuard::Started { run, .. } | FromGuard::NotStarted { run } | FromGuard::Ended { run, .. } = word {
            outbox.start_answered(run);
        }
        match word {
            FromGuard::Configured => {}
            FromGuard::Renewed { session, kill_at } => {
                self.events.push_back(ChildEvent::Renewed { session, kill_at });
            }
            FromGuard::Here { number } => self.events.push_back(ChildEvent::GuardAnswered { number }),
            FromGuard::Fenced { session } => self.events.push_back(ChildEvent::Fenced { session }),
            FromGuard::Gone { session } => {
                self.gone.insert(session);
            }
            FromGuard::Started { run, pid, reaper } if run.probe == 0 => self.started(run.incarnation, pid, reaper),
            FromGuard::Started { .. } => {}
            FromGuard::NotStarted { run } if run.probe == 0 => self.not_started(run.incarnation),
            FromGuard::NotStarted { run } => self.probe_ended(run, false),
            FromGuard::Ended { run, ending } if run.probe == 0 => self.ended(run.incarnation, ending, outbox),
            FromGuard::Ended { run, ending } => self.probe_ended(run, ending.how == EndedHow::Code(0)),
        }
    }

    fn started(&mut self, incarnation: Incarnation, pid: u32, reaper: u32) {
        let Some(run) = self.runs.get_mut(&incarnation) else { return };
        let at = Instant::now();
        run.process = Some(Process { pid, reaper, started: at });
        self.events.push_back(ChildEvent::Started { path: run.path.clone(), incarnation, pid, at });
        if run.stopping {
            return;
        }
        match (&run.desk, &run.spec.ready) {
            // Its worker says it.
            (Some(desk), Ready::Started) => desk.begun(),
            (None, Ready::Started) => {
                run.ready_at = Some(at);
                self.events.push_back(ChildEvent::Ready { path: run.path.clone(), incarnation, at });
            }
            (_, Ready::Exec { .. } | Ready::Notify { .. }) => {
                run.readiness = run.watch_readiness(incarnation, self.report.clone());
            }
        }
        self.tell_worker_ready(incarnation);
    }

    /// Tells that a worker is ready, once it is told that its process has started: a quick one says so before.
    fn tell_worker_ready(&mut self, incarnation: Incarnation) {
        let Some(run) = self.runs.get_mut(&incarnation) else { return };
        if run.process.is_none() || run.end.is_some() || run.stopping {
            return;
        }
        let Some(readiness) = run.worker_ready.take() else { return };
        let (path, makes_ready) = (run.path.clone(), run.spec.ready == Ready::Started);
        if makes_ready {
            self.ready(incarnation);
        }
        self.events.push_back(ChildEvent::WorkerReady { path, incarnation, readiness });
    }

    fn desk_says(&mut self, incarnation: Incarnation, word: DeskWord, outbox: &mut Outbox) {
        let Some(run) = self.runs.get_mut(&incarnation) else { return };
        match word {
            DeskWord::Ready(readiness) => {
                run.worker_ready = Some(readiness);
                self.tell_worker_ready(incarnation);
            }
            DeskWord::Settled(settlements) => self.events.push_back(ChildEvent::Settled { incarnation, settlements }),
            DeskWord::Verdict(verdict) => {
                if run.end.is_none() && !run.stopping {
                    tracing::warn!(path = %run.path, %incarnation, ?verdict, "a worker is killed");
                    run.verdict = Some(verdict);
                    self.kill(incarnation, outbox);
                }
            }
            DeskWord::StopSaid(most) => self.send_stop(incarnation, most, outbox),
            DeskWord::Closed(remains) => {
                run.remains = Some(remains);
                self.finish(incarnation);
                self.publish_gone_sessions();
            }
        }
    }

    fn not_started(&mut self, incarnation: Incarnation) {
        if let Some(run) = self.runs.remove(&incarnation) {
            self.events.push_back(ChildEvent::NeverStarted { path: run.path, incarnation });
        }
    }

    fn ended(&mut self, incarnation: Incarnation, ending: Ending, outbox: &mut Outbox) {
        let Some(run) = self.runs.get_mut(&incarnation) else { return };
        run.readiness = None;
        run.output = None;
        run.end = Some((ending, Instant::now()));
        if let Some(desk) = &run.desk {
            desk.ended();
        }
        if let Some(probe) = run.probe.as_ref().map(|probe| probe.number) {
            self.kill_run(RunId { incarnation, probe }, outbox);
        }
        self.finish(incarnation);
    }

    fn probe_ended(&mut self, run: RunId, succeeded: bool) {
        let Some(owner) = self.runs.get_mut(&run.incarnation) else { return };
        if let Some(probe) = owner.probe.take_if(|probe| probe.number == run.probe) {
            // Its task may have given up.
            let _ = probe.reply.send(succeeded);
        }
        self.finish(run.incarnation);
    }

    /// Not before the last exit under it, which waits for the output.
    fn publish_gone_sessions(&mut self) {
        let runs = &self.runs;
        let counts = |run: &Run, session| run.beginning.session() == session && !run.beginning.is_kept();
        let over = |session: &SessionId| !runs.values().any(|run| counts(run, *session));
        for session in self.gone.extract_if(.., over) {
            self.events.push_back(ChildEvent::SessionGone { session });
        }
    }

    /// Takes what the tasks of a run say.
    pub fn take_report(&mut self, report: Report, outbox: &mut Outbox) {
        match report {
            Report::Ready(incarnation) => self.ready(incarnation),
            Report::Unready(incarnation, within) => {
                let Some(run) = self.runs.get_mut(&incarnation).filter(|run| run.end.is_none() && !run.stopping) else {
                    return;
                };
                run.unready = Some(within);
                self.kill(incarnation, outbox);
            }
            Report::Probe { incarnation, command, reply } => self.probe(incarnation, &command, reply, outbox),
            Report::KillProbe(incarnation) => {
                if let Some(probe) = self.runs.get(&incarnation).and_then(|run| run.probe.as_ref()) {
                    self.kill_run(RunId { incarnation, probe: probe.number }, outbox);
                }
            }
            Report::Desk(incarnation, word) => self.desk_says(incarnation, word, outbox),
            Report::Drained(incarnation, stderr) => {
                if let Some(run) = self.runs.get_mut(&incarnation) {
                    run.stderr = Some(stderr);
                }
                self.finish(incarnation);
                self.publish_gone_sessions();
            }
        }
    }

    fn ready(&mut self, incarnation: Incarnation) {
        let Some(run) = self.runs.get_mut(&incarnation).filter(|run| run.end.is_none() && !run.stopping) else {
            return;
        };
        let at = Instant::now();
        run.ready_at = Some(at);
        self.events.push_back(ChildEvent::Ready { path: run.path.clone(), incarnation, at });
    }

    fn probe(
        &mut self,
        incarnation: Incarnation,
        command: &Command,
        reply: oneshot::Sender<bool>,
        outbox: &mut Outbox,
    ) {
        let Some(run) = self.runs.get_mut(&incarnation).filter(|run| run.end.is_none() && !run.stopping) else {
            return;
        };
        run.probes += 1;
        let order = run.beginning.order(run.probes, command);
        match outbox.push(&ToGuard::Start(order), Vec::new()) {
            Ok(()) => run.probe = Some(Probe { number: run.probes, reply }),
            Err(error) => tracing::warn!(path = %run.path, error, "a probe cannot be handed over"),
        }
    }

    /// Publishes an ending once tree, probe, output and messages are done with.
    fn finish(&mut self, incarnation: Incarnation) {
        let Some(run) = self.runs.get(&incarnation) else { return };
        if run.end.is_none() || run.stderr.is_none() || run.remains.is_none() || run.probe.is_some() {
            return;
        }
        let Some(run) = self.runs.remove(&incarnation) else { return };
        let (Some((ending, at)), Some(stderr)) = (run.end.clone(), run.stderr.clone()) else { return };
        let started = run.accused(&ending);
        let exit = Exit {
            ran: run.ran(&ending, at),
            healthy: run.healthy(&ending, at),
            out_of_memory: self.judge_memory(&run, &ending, at),
            stderr: Some(stderr),
            how: run.how(ending),
        };
        self.events.push_back(ChildEvent::Exited { path: run.path, incarnation, exit, started, at });
    }

    fn judge_memory(&mut self, run: &Run, ending: &Ending, at: Instant) -> OutOfMemory {
        let suspicious = ending.how == EndedHow::Signal(Signal::KILL) && !ending.killed;
        let since = run.process.map_or(at, |process| process.started);
        if suspicious && self.out_of_memory.rose_since(since, at) { OutOfMemory::Likely } else { OutOfMemory::No }
    }
}

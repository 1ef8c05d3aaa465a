//! One run, and how it is found to be ready.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pando_protocol::cause::ExitHow;
use pando_protocol::ids::{Incarnation, Path};
use pando_protocol::mail::Readiness as WorkerReadiness;
use pando_protocol::spec::{Command, ProcessSpec, Ready};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::ready::{NotifySocket, Prober, probe_until_ready};
use super::runs::Report;
use super::start::Beginning;
use super::worker::DeskHandle;
use super::worker::desk::{Remains, Verdict};
use crate::guard::words::{EndedHow, Ending};

/// A run, from the order to start it to the end of its tree, its probe and its output.
pub struct Run {
    /// The child.
    pub path: Path,
    /// How it is run.
    pub spec: Arc<ProcessSpec>,
    /// What it and its probes begin with.
    pub beginning: Beginning,
    /// Its notify socket, until somebody listens there.
    pub notify: Option<NotifySocket>,
    /// `None` until it has started.
    pub process: Option<Process>,
    /// When it was ready.
    pub ready_at: Option<Instant>,
    /// Killed because it was not ready in this time.
    pub unready: Option<Duration>,
    /// Waits for it to be ready.
    pub readiness: Option<Readiness>,
    /// How many probes were started.
    pub probes: u32,
    /// The one that runs.
    pub probe: Option<Probe>,
    /// It was told to stop: nobody waits for it to be ready.
    pub stopping: bool,
    /// Where its messages go, where it has a mailbox.
    pub desk: Option<DeskHandle>,
    /// What its worker said that it is ready for, until that is told.
    pub worker_ready: Option<WorkerReadiness>,
    /// What its desk had it killed for.
    pub verdict: Option<Verdict>,
    /// What its worker left, once all that it said is told.
    pub remains: Option<Remains>,
    /// Dropped to say that the tree is gone.
    pub output: Option<oneshot::Sender<()>>,
    /// Its last lines of standard error, once its output is read.
    pub stderr: Option<String>,
    /// How it ended, and when that was heard.
    pub end: Option<(Ending, Instant)>,
}

/// Its main process.
#[derive(Clone, Copy)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// The reaper above it.
    pub reaper: u32,
    /// When its start was heard.
    pub started: Instant,
}

/// The probe that runs now.
pub struct Probe {
    /// Its number among the probes of the run.
    pub number: u32,
    /// Told whether it exited with 0.
    pub reply: oneshot::Sender<bool>,
}

/// A task that ends with the run.
pub struct Readiness(JoinHandle<()>);

impl Drop for Readiness {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Run {
    /// A run that was ordered.
    pub fn new(
        path: Path,
        spec: Arc<ProcessSpec>,
        beginning: Beginning,
        notify: Option<NotifySocket>,
        desk: Option<DeskHandle>,
        output: oneshot::Sender<()>,
    ) -> Self {
        Self {
            path,
            spec,
            beginning,
            notify,
            process: None,
            ready_at: None,
            unready: None,
            readiness: None,
            probes: 0,
            probe: None,
            stopping: false,
            remains: desk.is_none().then(Remains::default),
            desk,
            worker_ready: None,
            verdict: None,
            output: Some(output),
            stderr: None,
            end: None,
        }
    }

    /// Starts to wait for it to be ready, where its spec says how that is known.
    pub fn watch_readiness(
        &mut self,
        incarnation: Incarnation,
        report: mpsc::UnboundedSender<Report>,
    ) -> Option<Readiness> {
        let Process { pid, reaper, .. } = self.process?;
        let task = match (&self.spec.ready, self.notify.take()) {
            (Ready::Exec { command, within, interval }, _) => {
                let (command, within, interval) = (command.clone(), *within, *interval);
                tokio::spawn(async move {
                    let prober = Probes { incarnation, report: report.clone() };
                    let ready = timeout(within, probe_until_ready(&prober, &command, interval)).await;
                    report_readiness(&report, incarnation, within, ready.is_ok());
                })
            }
            (Ready::Notify { within }, Some(socket)) => {
                let within = *within;
                tokio::spawn(async move {
                    let ready = timeout(within, socket.wait_until_ready(pid, reaper)).await;
                    report_readiness(&report, incarnation, within, ready.is_ok());
                })
            }
            (Ready::Notify { .. } | Ready::Started, _) => return None,
        };
        Some(Readiness(task))
    }

    /// How long its main process ran.
    pub fn ran(&self, ending: &Ending, at: Instant) -> Duration {
        match (&ending.how, ending.ran, self.process) {
            // The guard does not know it of a lost reaper.
            (EndedHow::ReaperLost | EndedHow::Signal(_), Duration::ZERO, Some(process)) => {
                at.saturating_duration_since(process.started)
            }
            (_, ran, _) => ran,
        }
    }

    /// How long it was ready.
    pub fn healthy(&self, ending: &Ending, at: Instant) -> Option<Duration> {
        let ready_at = self.ready_at?;
        Some(at.saturating_duration_since(ready_at).min(self.ran(ending, at)))
    }

    /// Whether its ending is the execution of its desk's verdict, and not one that came before.
    fn is_executed(&self, ending: &Ending) -> bool {
        self.verdict.is_some() && ending.killed && !matches!(ending.how, EndedHow::StartFailed(_))
    }

    /// The hands that are accused of its ending.
    pub fn accused(&self, ending: &Ending) -> Vec<u64> {
        let Some(Remains { started, blamed }) = self.remains.clone() else { return Vec::new() };
        if self.is_executed(ending) { blamed } else { started }
    }

    /// How it ended, for the cluster.
    pub fn how(&self, ending: Ending) -> ExitHow {
        if let Some(verdict) = self.verdict.as_ref().filter(|_| self.is_executed(&ending)) {
            return match verdict {
                Verdict::Unready(within) => ExitHow::Unready(*within),
                Verdict::Hung { limit, .. } => ExitHow::Hung(*limit),
                Verdict::Idle(limit) => ExitHow::Idle(*limit),
                Verdict::Nonsense(last) => {
                    ExitHow::Misbehaved(format!("too many lines that cannot be taken; the last: {last}"))
                }
                Verdict::Closed => ExitHow::Misbehaved("closed its socket".into()),
            };
        }
        match (ending.how, self.unready) {
            (EndedHow::StartFailed(why), _) => ExitHow::StartFailed(why),
            (_, Some(within)) => ExitHow::Unready(within),
            (EndedHow::Code(code), None) => ExitHow::Code(code),
            (EndedHow::Signal(signal), None) => ExitHow::Signal(signal),
            (EndedHow::ReaperLost, None) => ExitHow::ReaperLost,
        }
    }
}

fn report_readiness(
    report: &mpsc::UnboundedSender<Report>,
    incarnation: Incarnation,
    within: Duration,
    is_ready: bool,
) {
    let word = if is_ready { Report::Ready(incarnation) } else { Report::Unready(incarnation, within) };
    // Nobody hears it where the node leaves.
    let _ = report.send(word);
}

struct Probes {
    incarnation: Incarnation,
    report: mpsc::UnboundedSender<Report>,
}

impl Prober for Probes {
    fn start(&self, command: &Command) -> oneshot::Receiver<bool> {
        let (reply, answer) = oneshot::channel();
        // Refused where the node leaves; the answer says so by being dropped.
        let _ = self.report.send(Report::Probe { incarnation: self.incarnation, command: command.clone(), reply });
        answer
    }

    fn kill(&self) {
        let _ = self.report.send(Report::KillProbe(self.incarnation));
    }
}

//! The children of this node: starts, stops and watches them through the guard.
//!
//! ```text
//!   session ── start, stop, renew ──► Children ══ runs (one task) ══ guard ── reapers
//!   session ◄─ Started, Ready, Exited ───────────────┘   └── one task a run: its output, its readiness, its messages
//! ```
//!
//! Decides nothing: what should run, when and where is the session's to know. An order is queued and returns at once; what
//! came of it is an event.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pando_protocol::cause::Exit;
use pando_protocol::ids::{Incarnation, NodeName, Path, SessionId};
use pando_protocol::mail::{Hand, Readiness, Settlement};
use pando_protocol::spec::{ProcessSpec, Signal};
use tokio::sync::{mpsc, oneshot};

use super::runs;
use crate::guard::words::VoterAddress;
use crate::guard::{BootTime, GuardLock, OBITUARY_LIMIT};

/// Events that wait for the session. Beyond it they wait inside, a few for each run.
const WAITING_EVENTS: usize = 256;

/// Beyond the grace of its runs, a guard that is told to go has this long: for trees that die slowly, and for their output.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(2);

/// What [`Children::launch`] needs.
#[derive(Debug)]
pub struct Options {
    /// The node.
    pub node: NodeName,
    /// Its data folder. Children work in `work/` below it and their output lies in `logs/`.
    pub data: PathBuf,
    /// The mark of the data folder, see [`crate::guard::mark`].
    pub mark: String,
    /// The held lock of the data folder. It is kept until [`Children::shutdown`] returns, else until the process ends.
    pub lock: GuardLock,
    /// The program that is the guard when called with the one argument `guard`: this very program, by default.
    pub program: PathBuf,
    /// The folder with the node's certificate and key, for the obituary.
    pub identity: PathBuf,
    /// The voters that the guard tells of this node's death.
    pub voters: Vec<VoterAddress>,
    /// For how long it tries. Default [`OBITUARY_LIMIT`].
    pub obituary_limit: Duration,
    /// The size at which a file of a child's log is rotated. Default [`super::logs::LOG_FILE_BYTES`].
    pub log_file_bytes: u64,
}

impl Options {
    /// Options with the defaults, for a node without voters to tell.
    ///
    /// # Errors
    /// Where this program's own path is unknown.
    pub fn new(node: NodeName, data: PathBuf, mark: String, lock: GuardLock) -> io::Result<Self> {
        Ok(Self {
            identity: data.clone(),
            node,
            data,
            mark,
            lock,
            program: std::env::current_exe()?,
            voters: Vec::new(),
            obituary_limit: OBITUARY_LIMIT,
            log_file_bytes: super::logs::LOG_FILE_BYTES,
        })
    }
}

/// A run to start.
#[derive(Debug, Clone)]
pub struct Start {
    /// The child.
    pub path: Path,
    /// The run. Started at most once, and only if its number is above all that ran at this path before.
    pub incarnation: Incarnation,
    /// The session it belongs to; it must have been renewed before.
    pub session: SessionId,
    /// How to run it.
    pub spec: Arc<ProcessSpec>,
}

/// What happened to a run or to a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChildEvent {
    /// The program runs.
    Started {
        /// The child.
        path: Path,
        /// The run.
        incarnation: Incarnation,
        /// Its main process.
        pid: u32,
        /// When this was heard.
        at: Instant,
    },
    /// It is ready, by its spec's measure.
    Ready {
        /// The child.
        path: Path,
        /// The run.
        incarnation: Incarnation,
        /// When this was heard.
        at: Instant,
    },
    /// Its worker is ready for messages. After `Started`.
    WorkerReady {
        /// The child.
        path: Path,
        /// The run.
        incarnation: Incarnation,
        /// What for.
        readiness: Readiness,
    },
    /// Its worker settled messages. Before `Exited`.
    Settled {
        /// The run.
        incarnation: Incarnation,
        /// In the order in which it said it.
        settlements: Vec<Settlement>,
    },
    /// Its whole process tree is gone, probes included, its output is read, and all is told that its worker said.
    Exited {
        /// The child.
        path: Path,
        /// The run.
        incarnation: Incarnation,
        /// How it ended.
        exit: Exit,
        /// The hands that are accused of it.
        started: Vec<u64>,
        /// When the end of the tree was heard; backoff counts from here.
        at: Instant,
    },
    /// It was not started and never will be: its session is over, unknown or not the newest, or this node is stopping, or it
    /// was stopped first, or its number is not above those before it at this path.
    NeverStarted {
        /// The child.
        path: Path,
        /// The run.
        incarnation: Incarnation,
    },
    /// The guard counts on this kill time.
    Renewed {
        /// The session.
        session: SessionId,
        /// The kill time.
        kill_at: BootTime,
    },
    /// The kill time came: everything under the session that is not kept was sent SIGKILL, and nothing starts under it any
    /// more. Each run still gets its `Exited`.
    Fenced {
        /// The session.
        session: SessionId,
    },
    /// The session is over, fenced or ended, and nothing of it is left but what is kept.
    SessionGone {
        /// The session.
        session: SessionId,
    },
    /// The guard answered a call, and has done what it was told before that.
    GuardAnswered {
        /// The number of the call.
        number: u64,
    },
    /// The guard died. The last event: the node must exit.
    GuardLost {
        /// Its reapers have ended their trees, what was left was swept, and the lock is held again: nothing that ran here is
        /// left. *False* where that is not known.
        nothing_left: bool,
    },
}

/// Why the children could not be taken care of.
#[derive(Debug, thiserror::Error)]
pub enum ChildrenError {
    /// The guard could not be started.
    #[error("cannot start the guard {} guard", program.display())]
    Guard {
        /// The program.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The guard did not answer.
    #[error("the guard ended or did not answer within {0:?} of its start: look for its message on standard error")]
    Silent(Duration),
    /// The runtime or machine refused something.
    #[error("cannot {what}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// Why no signal was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignalError {
    /// The run is not here, or not started, or over.
    #[error("run {0} has no process here: it has not started yet, or it has ended")]
    NotRunning(Incarnation),
    /// The guard is gone, and with it all children.
    #[error("the guard of this node is gone, and with it all its children: the node is about to exit")]
    GuardLost,
}

/// The handle. Its orders are few for each run, and renewals replace each other, so the queue behind it needs no bound.
///
/// Dropping the last one, or the receiver of events, without [`Children::shutdown`] is like the death of the node: the guard kills everything and sends
/// an obituary.
#[derive(Debug, Clone)]
pub struct Children {
    orders: mpsc::UnboundedSender<runs::Order>,
}

impl Children {
    /// Starts the guard, and the task that talks to it. This process becomes a subreaper, so that nothing escapes when the
    /// guard dies.
    ///
    /// # Errors
    /// See [`ChildrenError`].
    pub async fn launch(options: Options) -> Result<(Self, mpsc::Receiver<ChildEvent>), ChildrenError> {
        let (orders, received_orders) = mpsc::unbounded_channel();
        let (events, received_events) = mpsc::channel(WAITING_EVENTS);
        let runs = runs::Runs::launch(options, received_orders, events).await?;
        tokio::spawn(runs.run());
        Ok((Self { orders }, received_events))
    }

    /// Starts a run. Becomes [`ChildEvent::Started`], [`ChildEvent::Exited`] with a failed start, or
    /// [`ChildEvent::NeverStarted`].
    pub fn start(&self, start: Start) {
        self.order(runs::Order::Start(start));
    }

    /// Stops a run as its spec says: its signal, its grace, then SIGKILL. Unknown and ended runs are left alone.
    pub fn stop(&self, incarnation: Incarnation) {
        self.order(runs::Order::Stop(incarnation));
    }

    /// Gives messages to the workers that they are for, each run's in order of number. Those for runs that are not here are
    /// dropped.
    pub fn hand(&self, hands: Vec<Hand>) {
        self.order(runs::Order::Hand(hands));
    }

    /// Holds up all workers, or lets them go on: what they say is not read meanwhile, and no time counts against them. Those that
    /// stop or have ended are heard all the same.
    pub fn hold_workers(&self, holds: bool) {
        self.order(runs::Order::HoldWorkers(holds));
    }

    /// SIGKILL to the whole tree of a run.
    pub fn kill(&self, incarnation: Incarnation) {
        self.order(runs::Order::Kill(incarnation));
    }

    /// Sends a signal to the main process of a run, and returns its process id once the signal is on its way.
    ///
    /// # Errors
    /// See [`SignalError`].
    pub async fn signal(&self, incarnation: Incarnation, signal: Signal) -> Result<u32, SignalError> {
        let (reply, answer) = oneshot::channel();
        self.order(runs::Order::Signal { incarnation, signal, reply });
        answer.await.unwrap_or(Err(SignalError::GuardLost))
    }

    /// Lets the session run until `kill_at`: the end of its lease less [`crate::guard::FENCE_MARGIN`]. Acknowledged by
    /// [`ChildEvent::Renewed`], which may skip renewals that a later one replaced. A session that is over stays over, and
    /// only one newer than all before begins.
    pub fn renew(&self, session: SessionId, kill_at: BootTime) {
        self.order(runs::Order::Renew { session, kill_at });
    }

    /// Ends a session by word: everything under it that is not kept is killed, and no obituary will name it unless something is
    /// kept. [`ChildEvent::SessionGone`] says when nothing else is left.
    pub fn end_session(&self, session: SessionId) {
        self.order(runs::Order::EndSession(session));
    }

    /// The voters to tell of this node's death from now on.
    pub fn set_voters(&self, voters: Vec<VoterAddress>) {
        self.order(runs::Order::SetVoters(voters));
    }

    /// Asks whether the guard is there: [`ChildEvent::GuardAnswered`] follows, for this call or a later one.
    pub fn call_guard(&self, number: u64) {
        self.order(runs::Order::CallGuard(number));
    }

    /// Kills the guard, which does not do its duty: [`ChildEvent::GuardLost`] follows when everything is gone.
    pub fn kill_guard(&self) {
        self.order(runs::Order::KillGuard);
    }

    /// Stops everything, each run with at most this grace, then lets the guard go without an obituary. Returns when all is
    /// gone, the guard included. A guard that takes much longer than the grace hangs, and is killed with all that it runs.
    pub async fn shutdown(&self, grace: Duration) {
        let (reply, mut done) = oneshot::channel();
        self.order(runs::Order::Shutdown { grace, reply });
        // Dropped where the guard was lost: then all is gone too.
        if tokio::time::timeout(grace + SHUTDOWN_PATIENCE, &mut done).await.is_err() {
            tracing::error!("the guard does not end: it is killed with everything that runs here");
            self.kill_guard();
            let _ = done.await;
        }
    }

    /// After the guard is lost nobody hears this, and nothing is left to order.
    fn order(&self, order: runs::Order) {
        let _ = self.orders.send(order);
    }
}

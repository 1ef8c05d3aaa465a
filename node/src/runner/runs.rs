//! The task behind [`Children`](super::children::Children): turns orders into words for the guard, and its words into
//! events.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use pando_protocol::ids::{Incarnation, SessionId};
use pando_protocol::mail::Hand;
use pando_protocol::spec::{Command, Signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::children::{ChildEvent, ChildrenError, Options, SignalError, Start};
use super::link::{Buffer, Link};
use super::loss;
use super::outbox::Outbox;
use super::run_table::RunTable;
use super::worker::DeskWord;
use crate::guard::socket::{self, Parcel};
use crate::guard::words::{Configuration, FromGuard, ToGuard, VoterAddress};
use crate::guard::{BootTime, GuardLock};

/// How long a guard may take to come up.
const GUARD_START_LIMIT: Duration = Duration::from_secs(10);

/// What the handle asks for.
#[derive(Debug)]
pub enum Order {
    /// See [`super::children::Children::start`].
    Start(Start),
    /// See [`super::children::Children::stop`].
    Stop(Incarnation),
    /// See [`super::children::Children::hand`].
    Hand(Vec<Hand>),
    /// See [`super::children::Children::hold_workers`].
    HoldWorkers(bool),
    /// See [`super::children::Children::kill`].
    Kill(Incarnation),
    /// See [`super::children::Children::signal`].
    Signal {
        /// The run.
        incarnation: Incarnation,
        /// The signal.
        signal: Signal,
        /// Gets the process.
        reply: oneshot::Sender<Result<u32, SignalError>>,
    },
    /// See [`super::children::Children::renew`].
    Renew {
        /// The session.
        session: SessionId,
        /// The kill time.
        kill_at: BootTime,
    },
    /// See [`super::children::Children::end_session`].
    EndSession(SessionId),
    /// See [`super::children::Children::set_voters`].
    SetVoters(Vec<VoterAddress>),
    /// See [`super::children::Children::call_guard`].
    CallGuard(u64),
    /// See [`super::children::Children::kill_guard`].
    KillGuard,
    /// See [`super::children::Children::shutdown`].
    Shutdown {
        /// The most that any run gets.
        grace: Duration,
        /// Told when all is gone.
        reply: oneshot::Sender<()>,
    },
}

/// What the tasks of a run say.
#[derive(Debug)]
pub enum Report {
    /// The run is ready.
    Ready(Incarnation),
    /// It was not ready in this time.
    Unready(Incarnation, Duration),
    /// A probe is to be started.
    Probe {
        /// The run.
        incarnation: Incarnation,
        /// What to run.
        command: Command,
        /// Told whether it exited with 0.
        reply: oneshot::Sender<bool>,
    },
    /// The probe of the run is to be killed.
    KillProbe(Incarnation),
    /// Its output is read to the end; the last lines of standard error.
    Drained(Incarnation, String),
    /// What its desk says.
    Desk(Incarnation, DeskWord),
}

enum Input {
    Guard(io::Result<Option<FromGuard>>),
    Order(Option<Order>),
    Report(Report),
    Sent(io::Result<()>),
    Published,
    NobodyListens,
}

enum Ending {
    Goes,
    GuardGone,
    NodeGone,
}

/// The task.
pub struct Runs {
    link: Link,
    guard: tokio::process::Child,
    lock: Option<GuardLock>,
    orders: mpsc::UnboundedReceiver<Order>,
    events: mpsc::Sender<ChildEvent>,
    reports: mpsc::UnboundedReceiver<Report>,
    table: RunTable,
    outbox: Outbox,
    configuration: Configuration,
    data: PathBuf,
    mark: String,
    leaving: Vec<oneshot::Sender<()>>,
    left: bool,
    killed_guard: bool,
}

impl Runs {
    /// Starts the guard and waits until it is up.
    ///
    /// # Errors
    /// See [`ChildrenError`].
    pub async fn launch(
        options: Options,
        orders: mpsc::UnboundedReceiver<Order>,
        events: mpsc::Sender<ChildEvent>,
    ) -> Result<Self, ChildrenError> {
        let cannot = |what| move |source| ChildrenError::Io { what, source };
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(|error| cannot("become a subreaper")(error.into()))?;
        let (ours, theirs) = socket::pair().map_err(cannot("make a socket for the guard"))?;
        let guard = spawn_guard(&options, theirs)?;
        raise_open_files();
        let (report, reports) = mpsc::unbounded_channel();
        let configuration = configuration(&options);
        let lock = options.lock.share().map_err(cannot("share the lock with the guard"))?;
        let mut runs = Self {
            link: Link::new(ours).map_err(cannot("watch the socket of the guard"))?,
            guard,
            orders,
            events,
            reports,
            table: RunTable::new(&options, report)?,
            lock: Some(options.lock),
            outbox: Outbox::default(),
            configuration,
            data: options.data,
            mark: options.mark,
            leaving: Vec::new(),
            left: false,
            killed_guard: false,
        };
        runs.introduce(lock).await?;
        Ok(runs)
    }

    async fn introduce(&mut self, lock: OwnedFd) -> Result<(), ChildrenError> {
        let word = ToGuard::Configure(self.configuration.clone());
        let parcel = Parcel::with(&word, vec![lock])
            .map_err(|error| ChildrenError::Io { what: "write to the guard", source: io::Error::other(error) })?;
        let mut buffer = Buffer::default();
        let answer = timeout(GUARD_START_LIMIT, async {
            self.link.send(Some(&parcel)).await?;
            self.link.receive(&mut buffer).await
        });
        match answer.await {
            Ok(Ok(Some(FromGuard::Configured))) => Ok(()),
            _ => Err(ChildrenError::Silent(GUARD_START_LIMIT)),
        }
    }

    /// Works until the node leaves or the guard is lost.
    pub async fn run(mut self) {
        match self.work().await {
            Ending::Goes => {
                let _ = self.guard.wait().await;
                drop(self.lock.take());
                for done in self.leaving.drain(..) {
                    let _ = done.send(());
                }
            }
            Ending::GuardGone => self.lose_guard().await,
            // The socket closes, and the guard does its duty.
            Ending::NodeGone => {}
        }
    }

    async fn work(&mut self) -> Ending {
        let mut buffer = Buffer::default();
        loop {
            let front = self.outbox.front();
            let waiting = !self.table.events.is_empty();
            let input = tokio::select! {
                biased;
                word = self.link.receive(&mut buffer) => Input::Guard(word),
                sent = self.link.send(front) => Input::Sent(sent),
                // Before orders: what the guard says must not wait for hundreds of starts to be prepared.
                permit = self.events.reserve(), if waiting => match (permit, self.table.events.pop_front()) {
                    (Ok(permit), Some(event)) => {
                        permit.send(event);
                        Input::Published
                    }
                    _ => Input::NobodyListens,
                },
                order = self.orders.recv() => Input::Order(order),
                Some(report) = self.reports.recv() => Input::Report(report),
            };
            if let Some(ending) = self.take(input) {
                return ending;
            }
        }
    }

    fn take(&mut self, input: Input) -> Option<Ending> {
        match input {
            Input::Guard(Ok(Some(word))) => self.table.hear(word, &mut self.outbox),
            Input::Guard(Ok(None) | Err(_)) => {
                return Some(if self.left && !self.killed_guard { Ending::Goes } else { Ending::GuardGone });
            }
            Input::Sent(Ok(())) => self.outbox.sent(),
            // Its end is noticed where it is read.
            Input::Sent(Err(_)) => self.outbox.clear(),
            Input::Order(Some(order)) => self.obey(order),
            // The runner has ended, and what still runs gets its grace.
            Input::NobodyListens if !self.leaving.is_empty() => self.table.events.clear(),
            Input::Order(None) | Input::NobodyListens => return Some(Ending::NodeGone),
            Input::Report(report) => self.table.take_report(report, &mut self.outbox),
            Input::Published => {}
        }
        if !self.leaving.is_empty() && !self.left && self.table.is_empty() {
            self.left = true;
            self.outbox.say(&ToGuard::Leave);
        }
        None
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Start(start) => self.table.start(start, &mut self.outbox),
            Order::Stop(incarnation) => self.table.stop(incarnation, None, &mut self.outbox),
            Order::Hand(hands) => self.table.hand(hands),
            Order::HoldWorkers(holds) => self.table.hold_workers(holds),
            Order::Kill(incarnation) => self.table.kill(incarnation, &mut self.outbox),
            Order::Signal { incarnation, signal, reply } => {
                // Whoever asked may have given up.
                let _ = reply.send(self.table.signal(incarnation, signal, &mut self.outbox));
            }
            Order::Renew { session, kill_at } => {
                self.table.out_of_memory.look_now_and_then(Instant::now());
                self.outbox.say(&ToGuard::Renew { session, kill_at });
            }
            Order::EndSession(session) => self.outbox.say(&ToGuard::EndSession { session }),
            Order::SetVoters(voters) => {
                self.configuration.voters = voters;
                self.outbox.say(&ToGuard::Configure(self.configuration.clone()));
            }
            Order::CallGuard(number) => self.outbox.say(&ToGuard::Call { number }),
            Order::KillGuard => {
                // It does not go by itself, so what it leaves is to be swept.
                self.killed_guard = true;
                // Where it is gone already, its socket says so.
                let _ = self.guard.start_kill();
            }
            Order::Shutdown { grace, reply } => {
                self.leaving.push(reply);
                self.table.stop_all(grace, &mut self.outbox);
            }
        }
    }

    async fn lose_guard(mut self) {
        tracing::error!("the guard is gone: its reapers end all children, and this node must exit");
        // It may hang with a closed socket.
        let _ = self.guard.start_kill();
        let _ = self.guard.wait().await;
        drop(self.lock.take());
        let reapers = self.table.reapers();
        let (data, mark) = (self.data.clone(), self.mark.clone());
        let cleaned = tokio::task::spawn_blocking(move || loss::clean_up(&data, &mark, &reapers)).await;
        match cleaned {
            Ok(Ok(lock)) => self.lock = Some(lock),
            Ok(Err(error)) => tracing::error!(%error, "what the guard left could not be removed"),
            Err(error) => tracing::error!(%error, "the removal of what the guard left was cut short"),
        }
        self.table.abandon();
        // Nobody listens where the node is on its way out already.
        let nothing_left = self.lock.is_some();
        let _ = self.events.send(ChildEvent::GuardLost { nothing_left }).await;
        // The lock goes with the process: nobody else may run on this data folder before.
        std::mem::forget(self.lock);
    }
}

fn spawn_guard(options: &Options, socket: OwnedFd) -> Result<tokio::process::Child, ChildrenError> {
    tokio::process::Command::new(&options.program)
        .arg("guard")
        .stdin(Stdio::from(socket))
        .stdout(Stdio::null())
        // A group of its own: what a terminal sends to the node's is not for it.
        .process_group(0)
        .spawn()
        .map_err(|source| ChildrenError::Guard { program: options.program.clone(), source })
}

fn configuration(options: &Options) -> Configuration {
    use std::os::unix::ffi::OsStrExt;
    Configuration {
        node: options.node.clone(),
        identity: options.identity.as_os_str().as_bytes().to_vec(),
        voters: options.voters.clone(),
        obituary_limit: options.obituary_limit,
    }
}

/// Each run takes two descriptors for its output. After the guard was started, which passes the limit on to children.
fn raise_open_files() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
}

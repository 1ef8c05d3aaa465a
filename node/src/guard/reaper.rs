//! The process above one run: forked by the guard, subreaper of the whole tree, gone when the tree is gone.
//!
//! ```text
//!   guard ══ socket ══ reaper ── main process ─┬─ helper
//!                        └── helper that called setsid
//! ```
//!
//! It keeps the timer of a stop, so that SIGKILL follows also when node and guard hang. The end of the socket means that
//! the guard is dead: it kills the tree and ends.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use pando_protocol::spec::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags, Rlimit, WaitStatus};

use super::exec::{Program, Surroundings};
use super::socket::{self, Parcel};
use super::sys::{self, Fork};
use super::tree;
use super::words::{EndedHow, Ending, Order, StartOrder, Word};

/// Orders are a few bytes.
const ORDER_BUFFER: usize = 256;

/// What the guard gives a reaper.
#[derive(Debug)]
pub struct Assignment<'a> {
    /// What to run.
    pub order: &'a StartOrder,
    /// The reaper's end of its socket.
    pub socket: &'a OwnedFd,
    /// The lock that proves the reaper alive.
    pub lock: &'a OwnedFd,
    /// `/dev/null`.
    pub null: &'a OwnedFd,
    /// Standard output and standard error; none for a silent run.
    pub output: &'a [OwnedFd],
    /// The limit of open files for the program.
    pub open_files: Option<Rlimit>,
    /// The nice value for the program.
    pub niceness: Option<i32>,
}

/// Runs the assignment in a process that has just been forked, and ends the process.
pub fn run(assignment: &Assignment<'_>) -> ! {
    // A panic must not unwind into the guard's own frames, which this process has inherited. Whatever is left of the tree
    // then falls to the guard.
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| reap(assignment)));
    sys::exit_now(if ran.is_ok() { 0 } else { 70 })
}

fn reap(assignment: &Assignment<'_>) {
    let mut keep = vec![assignment.socket, assignment.lock, assignment.null];
    keep.extend(assignment.output);
    sys::close_descriptors_except(&keep);
    // The node's own outputs: whoever reads them must see their end when the node is gone.
    let _ = rustix::stdio::dup2_stderr(assignment.null);
    let _ = rustix::thread::set_name(c"pando-reaper");
    let ending = match Reaper::begin(assignment) {
        Ok(reaper) => reaper.attend(),
        Err(why) => never_ran(why),
    };
    tell(assignment.socket, &Word::Ended(ending), Vec::new());
}

struct Reaper<'a> {
    socket: &'a OwnedFd,
    program: Program,
    signals: OwnedFd,
    /// The reading end of the pipe that exec closes; `None` once that is known.
    failure: Option<OwnedFd>,
    main: Pid,
    /// Opened before anybody waited for it, so that it can be no other process. For the guard.
    pinned: Option<OwnedFd>,
    began: Instant,
    status: Option<(WaitStatus, Duration)>,
    start_failed: Option<String>,
    /// A stop that came before the program ran.
    stop_at_start: Option<Signal>,
    kill_at: Option<Instant>,
    killed: bool,
}

impl<'a> Reaper<'a> {
    fn begin(assignment: &Assignment<'a>) -> Result<Self, String> {
        let program = Program::prepare(assignment.order)?;
        let cannot = |what: &'static str| move |error: io::Error| format!("cannot {what}: {error}");
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(|error| cannot("watch over the process")(error.into()))?;
        let signals = sys::signal_descriptor(&[libc::SIGCHLD]).map_err(cannot("watch for its end"))?;
        let (failure, failed) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(|error| cannot("make a pipe")(error.into()))?;
        let main = Self::fork(assignment, &program, &failed)?;
        Ok(Self {
            socket: assignment.socket,
            program,
            signals,
            failure: Some(failure),
            main,
            pinned: rustix::process::pidfd_open(main, PidfdFlags::empty()).ok(),
            began: Instant::now(),
            status: None,
            start_failed: None,
            stop_at_start: None,
            kill_at: None,
            killed: false,
        })
    }

    fn fork(assignment: &Assignment<'_>, program: &Program, failed: &OwnedFd) -> Result<Pid, String> {
        let parent = rustix::process::getpid();
        match sys::fork() {
            Ok(Fork::Parent(main)) => Ok(main),
            Ok(Fork::Child) => program.become_it(&Surroundings {
                parent,
                null: assignment.null,
                stdout: assignment.output.first().map(AsFd::as_fd),
                stderr: assignment.output.get(1).map(AsFd::as_fd),
                open_files: assignment.open_files,
                niceness: assignment.niceness,
                failure: failed,
            }),
            Err(error) => Err(format!("cannot make a process: {error}")),
        }
    }

    /// Until the main process has ended or its tree is to be killed, and then until nothing is left.
    fn attend(mut self) -> Ending {
        while self.status.is_none() && !self.killed {
            self.wait();
            self.look_for_failure();
            self.take_orders();
            if !sys::take_signals(&self.signals).is_empty() {
                let (main, began) = (self.main, self.began);
                tree::reap(|pid, status| note_end(main, began, pid, status, &mut self.status));
            }
            self.killed |= self.kill_at.is_some_and(|at| at <= Instant::now()) && self.status.is_none();
        }
        let (main, began) = (self.main, self.began);
        tree::end_all(|pid, status| note_end(main, began, pid, status, &mut self.status));
        self.look_for_failure();
        self.ending()
    }

    fn wait(&self) {
        let mut watched = vec![PollFd::new(self.socket, PollFlags::IN), PollFd::new(&self.signals, PollFlags::IN)];
        if let Some(failure) = &self.failure {
            watched.push(PollFd::new(failure, PollFlags::IN));
        }
        let left = self.kill_at.map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        // An interruption is a reason to look, like any other.
        let _ = poll(&mut watched, left.as_ref());
    }

    /// The pipe closes when the program runs, and carries the reason when it does not.
    fn look_for_failure(&mut self) {
        let Some(failure) = &self.failure else { return };
        let mut report = [0; 8];
        match rustix::io::read(failure, &mut report) {
            Err(_) => return,
            Ok(0) => {
                let pid = self.main.as_raw_nonzero().get().unsigned_abs();
                let pinned = self.pinned.take().into_iter().collect();
                tell(self.socket, &Word::Started { pid }, pinned);
                if let Some(signal) = self.stop_at_start.take() {
                    self.signal_group(signal);
                }
            }
            Ok(length) => self.start_failed = self.program.failure(&report[..length]),
        }
        self.failure = None;
    }

    fn take_orders(&mut self) {
        let mut buffer = [0; ORDER_BUFFER];
        loop {
            match socket::receive::<Order>(self.socket, &mut buffer) {
                Ok(Some((order, _))) => self.obey(order),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The guard is gone.
                Ok(None) | Err(_) => {
                    self.killed = true;
                    return;
                }
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Kill => self.killed = true,
            Order::Stop { signal, grace } => {
                // A grace beyond what the clock can hold is for ever.
                self.kill_at = grace.and_then(|grace| Instant::now().checked_add(grace));
                if self.failure.is_some() { self.stop_at_start = Some(signal) } else { self.signal_group(signal) }
            }
            Order::Signal(signal) if signal == Signal::KILL => self.killed = true,
            Order::Signal(signal) => {
                let _ = sys::signal_process(self.main, i32::from(signal.0));
            }
        }
    }

    /// The main process has not been waited for, so its number, and that of its group, are still its own.
    fn signal_group(&self, signal: Signal) {
        let _ = sys::signal_group(self.main, i32::from(signal.0));
        // A stopped process could not act on it.
        let _ = sys::signal_group(self.main, libc::SIGCONT);
    }

    fn ending(self) -> Ending {
        if let Some(why) = self.start_failed {
            return never_ran(why);
        }
        match self.status {
            Some((status, ran)) => Ending { how: how(status), ran, killed: self.killed },
            // Only where the kernel says that there are no children, and never said how this one ended.
            None => Ending { how: EndedHow::ReaperLost, ran: self.began.elapsed(), killed: self.killed },
        }
    }
}

fn note_end(main: Pid, began: Instant, pid: Pid, status: WaitStatus, to: &mut Option<(WaitStatus, Duration)>) {
    if pid == main {
        *to = Some((status, began.elapsed()));
    }
}

fn how(status: WaitStatus) -> EndedHow {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => EndedHow::Code(u8::try_from(code).unwrap_or(u8::MAX)),
        (_, Some(signal)) => EndedHow::Signal(Signal(u8::try_from(signal).unwrap_or(Signal::KILL.0))),
        (None, None) => EndedHow::ReaperLost,
    }
}

fn never_ran(why: String) -> Ending {
    Ending { how: EndedHow::StartFailed(why), ran: Duration::ZERO, killed: false }
}

/// Two small words in a socket of 208 KiB always fit; where the guard is gone, nobody wants them.
fn tell(socket: &OwnedFd, word: &Word, descriptors: Vec<OwnedFd>) {
    if let Ok(parcel) = Parcel::with(word, descriptors) {
        let _ = socket::send(socket, &parcel);
    }
}

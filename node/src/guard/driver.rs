//! The guard's loop: hears node and reapers, lets the rules decide, does what they say.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use pando_protocol::ids::SessionId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

use super::clock::BootTime;
use super::obituary::{Report, deliver};
use super::reaper::{self, Assignment};
use super::rules::{Action, Event, Rules};
use super::socket::{self, Parcel};
use super::sys::{self, Fork};
use super::tree;
use super::words::{Configuration, FromGuard, Order, RunId, StartOrder, ToGuard, WORD_LIMIT, Word};

/// Words of the node heard in one round, so that a flood of them cannot hold up a fence.
const WORDS_A_ROUND: usize = 32;
/// The pauses between two looks at orphans that are being killed: the second is for what the kernel takes long to end.
const FIRST_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000 };
const LATER_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
const SHORT_ROUNDS: u32 = 100;
/// Asked for, so that a busy machine does not hold up a fence; only privileged processes get it.
const NICENESS: i32 = -10;
/// Asked for, so that the kernel takes children before their guard; only privileged processes get it.
const OOM_SCORE: &str = "-900";

/// The guard at work.
pub struct Driver {
    rules: Rules,
    node: Option<OwnedFd>,
    configuration: Option<Configuration>,
    lock: Option<OwnedFd>,
    null: OwnedFd,
    signals: OwnedFd,
    timer: OwnedFd,
    reapers: BTreeMap<RunId, Reaper>,
    /// What came with starts that are not forked yet.
    outputs: BTreeMap<RunId, Vec<OwnedFd>>,
    /// Words for the node. It holds a few for each run, so the runs bound it.
    outgoing: VecDeque<Parcel>,
    /// How often orphans were looked at since they fell to the guard; `None` where there are none.
    orphans: Option<u32>,
    finished: Option<Vec<SessionId>>,
    buffer: Vec<u8>,
    open_files: Option<Rlimit>,
    niceness: Option<i32>,
}

struct Reaper {
    pid: Pid,
    /// Its main process, pinned, once it runs.
    main: Option<OwnedFd>,
    /// `None` once its end was seen.
    socket: Option<OwnedFd>,
    reaped: bool,
}

impl Driver {
    /// Prepares this process for its task. `node` is the socket to the node.
    ///
    /// # Errors
    /// Where the machine has no descriptors left, or `/dev/null` is missing.
    pub fn new(node: OwnedFd) -> io::Result<Self> {
        let null: OwnedFd = OpenOptions::new().read(true).write(true).open("/dev/null")?.into();
        rustix::stdio::dup2_stdin(&null)?;
        // What a terminal or a service manager sends to all processes is the node's to act on: the guard ends with it.
        sys::ignore_signals(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE]);
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let _ = rustix::thread::set_name(c"pando-guard");
        let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE);
        let niceness = rustix::process::getpriority_process(None).ok();
        let _ = rustix::process::setpriority_process(None, NICENESS);
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(Self {
            rules: Rules::default(),
            node: Some(node),
            configuration: None,
            lock: None,
            null,
            signals: sys::signal_descriptor(&[libc::SIGCHLD])?,
            timer,
            reapers: BTreeMap::new(),
            outputs: BTreeMap::new(),
            outgoing: VecDeque::new(),
            orphans: None,
            finished: None,
            buffer: vec![0; WORD_LIMIT],
            open_files: raise_open_files(),
            niceness,
        })
    }

    /// Works until nothing is left to guard, and reports the death of the node if that was the reason.
    ///
    /// # Errors
    /// The text for people where the death could not be reported.
    pub fn run(mut self, report: &mut Report<'_>) -> Result<(), String> {
        loop {
            let spoke = self.wait();
            self.reap();
            self.hear_reapers(&spoke);
            self.hear_node();
            self.look_after_orphans();
            self.step(Event::Tick);
            self.send();
            // A reaper that has said its last word holds the lock until it is gone.
            if self.reapers.is_empty()
                && let Some(over) = self.finished.take()
            {
                return self.end(&over, report);
            }
        }
    }

    /// Waits for a reason to go on, and says which reapers have something to say.
    fn wait(&self) -> Vec<RunId> {
        self.set_timer();
        let mut watched = vec![PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&self.timer, PollFlags::IN)];
        if let Some(node) = &self.node {
            let interest = if self.outgoing.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
            watched.push(PollFd::new(node, interest));
        }
        let first_reaper = watched.len();
        let sockets = || self.reapers.iter().filter_map(|(run, reaper)| Some((*run, reaper.socket.as_ref()?)));
        watched.extend(sockets().map(|(_, socket)| PollFd::new(socket, PollFlags::IN)));
        let pause = self.orphans.map(|rounds| if rounds < SHORT_ROUNDS { &FIRST_PAUSE } else { &LATER_PAUSE });
        // An interruption is a reason to look, like any other.
        let _ = poll(&mut watched, pause);
        let spoke = sockets().zip(&watched[first_reaper..]).filter(|(_, watched)| !watched.revents().is_empty());
        spoke.map(|((run, _), _)| run).collect()
    }

    fn set_timer(&self) {
        let nothing = Timespec { tv_sec: 0, tv_nsec: 0 };
        let deadline = self.rules.next_deadline().map(|at| Timespec::try_from(at.since_boot()).unwrap_or(nothing));
        let setting = Itimerspec { it_interval: nothing, it_value: deadline.unwrap_or(nothing) };
        // An absolute time that has passed fires at once; zero disarms.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &setting);
    }

    fn reap(&mut self) {
        sys::take_signals(&self.signals);
        let reapers = &mut self.reapers;
        tree::reap(|pid, _| {
            if let Some(reaper) = reapers.values_mut().find(|reaper| reaper.pid == pid && !reaper.reaped) {
                reaper.reaped = true;
            }
        });
    }

    /// Hears all words of these reapers. A reaper counts as gone when its socket has ended *and* it was waited for: only then
    /// are its orphans children of the guard.
    fn hear_reapers(&mut self, spoke: &[RunId]) {
        let mut heard = Vec::new();
        for run in spoke {
            let Some(reaper) = self.reapers.get_mut(run) else { continue };
            while let Some(socket) = &reaper.socket {
                match socket::receive::<Word>(socket, &mut self.buffer) {
                    Ok(Some((word, mut descriptors))) => {
                        reaper.main = descriptors.pop().or_else(|| reaper.main.take());
                        heard.push((*run, word));
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Ok(None) | Err(_) => reaper.socket = None,
                }
            }
        }
        for (run, word) in heard {
            self.step(Event::Reaper(run, word));
        }
        let gone = self.reapers.iter().filter(|(_, reaper)| reaper.reaped && reaper.socket.is_none());
        for run in gone.map(|(run, _)| *run).collect::<Vec<_>>() {
            self.reapers.remove(&run);
            self.step(Event::ReaperGone(run));
        }
    }

    fn hear_node(&mut self) {
        for _ in 0..WORDS_A_ROUND {
            let Some(node) = &self.node else { return };
            match socket::receive::<ToGuard>(node, &mut self.buffer) {
                Ok(Some((word, descriptors))) => self.take(word, descriptors),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Also what is no word: a node that cannot be understood cannot be obeyed.
                Ok(None) | Err(_) => {
                    self.node = None;
                    self.step(Event::NodeGone);
                }
            }
        }
    }

    fn take(&mut self, word: ToGuard, mut descriptors: Vec<OwnedFd>) {
        match &word {
            ToGuard::Configure(configuration) => {
                self.configuration = Some(configuration.clone());
                if let Some(lock) = descriptors.pop() {
                    self.lock = Some(lock);
                }
            }
            ToGuard::Start(order) => {
                self.outputs.insert(order.run, descriptors);
            }
            _ => {}
        }
        self.step(Event::Node(word));
    }

    fn look_after_orphans(&mut self) {
        let Some(rounds) = &mut self.orphans else { return };
        *rounds = rounds.saturating_add(1);
        let spared: BTreeSet<i32> =
            self.reapers.values().filter(|reaper| !reaper.reaped).map(|r| r.pid.as_raw_nonzero().get()).collect();
        // Killed ones are children still until they are reaped, so nothing is missed between two looks.
        if tree::kill_children(&spared) == 0 {
            self.orphans = None;
            self.step(Event::OrphansGone);
        }
    }

    fn step(&mut self, event: Event) {
        let actions = self.rules.step(BootTime::now(), event);
        self.kill_mains(&actions);
        for action in actions {
            self.act(action);
        }
    }

    /// Before any reaper is told: hundreds of them take their time to be scheduled, and a fence must not.
    fn kill_mains(&self, actions: &[Action]) {
        for action in actions {
            if let Action::Order(run, Order::Kill) = action
                && let Some(main) = self.reapers.get(run).and_then(|reaper| reaper.main.as_ref())
            {
                // It may have ended by itself.
                let _ = rustix::process::pidfd_send_signal(main, Signal::KILL);
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Fork(order) => self.fork(&order),
            Action::Refuse(run) => {
                self.outputs.remove(&run);
            }
            Action::Tell(word) => self.tell(word),
            Action::Order(run, order) => self.order(run, &order),
            Action::KillReaper(run) => self.kill_reaper(run),
            Action::EndOrphans => self.orphans = Some(0),
            Action::End(over) => self.finished = Some(over),
        }
    }

    fn fork(&mut self, order: &StartOrder) {
        let output = self.outputs.remove(&order.run).unwrap_or_default();
        match self.try_fork(order, &output) {
            Ok(reaper) => {
                self.reapers.insert(order.run, reaper);
            }
            Err(error) => self.step(Event::NoReaper(order.run, format!("cannot make its reaper: {error}"))),
        }
    }

    fn try_fork(&self, order: &StartOrder, output: &[OwnedFd]) -> io::Result<Reaper> {
        let (ours, theirs) = socket::pair()?;
        // Without a lock there was no configuration, and nothing may run that nobody could prove gone.
        let lock = self.lock.as_ref().ok_or_else(|| io::Error::other("the guard has no lock"))?;
        match sys::fork()? {
            Fork::Parent(pid) => Ok(Reaper { pid, main: None, socket: Some(ours), reaped: false }),
            Fork::Child => reaper::run(&Assignment {
                order,
                socket: &theirs,
                lock,
                null: &self.null,
                output,
                open_files: self.open_files,
                niceness: self.niceness,
            }),
        }
    }

    fn order(&mut self, run: RunId, order: &Order) {
        let Some(socket) = self.reapers.get(&run).and_then(|reaper| reaper.socket.as_ref()) else { return };
        let sent = Parcel::new(order).map_err(io::Error::other).and_then(|parcel| socket::send(socket, &parcel));
        // A reaper that reads nothing obeys nothing. One that is gone is noticed by the end of its socket.
        if sent.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            self.kill_reaper(run);
        }
    }

    fn kill_reaper(&self, run: RunId) {
        // Once reaped, its number may be another's.
        if let Some(reaper) = self.reapers.get(&run).filter(|reaper| !reaper.reaped) {
            let _ = sys::signal_process(reaper.pid, libc::SIGKILL);
        }
    }

    fn tell(&mut self, word: FromGuard) {
        let word = match word {
            FromGuard::Started { run, pid, .. } => {
                let reaper = self.reapers.get(&run).map_or(0, |reaper| reaper.pid.as_raw_nonzero().get());
                FromGuard::Started { run, pid, reaper: reaper.unsigned_abs() }
            }
            word => word,
        };
        // Our own words are far below the limit, and a node that is gone hears none.
        if let (Ok(parcel), true) = (Parcel::new(&word), self.node.is_some()) {
            self.outgoing.push_back(parcel);
        }
    }

    fn send(&mut self) {
        while let (Some(node), Some(parcel)) = (&self.node, self.outgoing.front()) {
            match socket::send(node.as_fd(), parcel) {
                Ok(()) => {
                    self.outgoing.pop_front();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Its end is noticed where it is read.
                Err(_) => self.outgoing.clear(),
            }
        }
    }

    fn end(mut self, over: &[SessionId], report: &mut Report<'_>) -> Result<(), String> {
        // Everything is gone: a new node may begin while this one's death is reported.
        self.lock = None;
        let Some(configuration) = &self.configuration else { return Ok(()) };
        for session in over {
            match deliver(configuration, *session, "its process died", report) {
                Ok(pando_protocol::session::ObituaryReply::Refused) => {
                    return Err(format!("the cluster refused the obituary of {} under {session}", configuration.node));
                }
                Ok(_) => {}
                // The others would fare no better.
                Err(why) => {
                    return Err(format!(
                        "the death of {} under {session} could not be reported ({why}); the cluster waits for its lease, or \
                         for the node where it kept something",
                        configuration.node
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Each run takes a descriptor. Returns the limit as it was, for the programs.
fn raise_open_files() -> Option<Rlimit> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(Resource::Nofile, raised).is_ok().then_some(limit)
}

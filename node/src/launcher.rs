//! `pando-node launch -- program args…`: PID 1 of a container, above the node.
//!
//! It passes signals on, waits for every orphan, and after the node's death waits for its guard before it ends: the end of
//! PID 1 is the end of the container, and a foreign init would take the guard down before it has killed and reported
//! anything. It starts nothing again; that is for whoever runs the container.

use std::collections::BTreeSet;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, WaitStatus};

use crate::guard::sys::{self, Fork};
use crate::guard::{say, tree};

/// How long the guard may take after the node's death.
const GUARD_LIMIT: Duration = Duration::from_secs(2);
/// The exit code where a signal ended the node.
const KILLED: u8 = 70;
/// The exit codes of shells for a program that does not exist, or cannot be run.
const NOT_FOUND: u8 = 127;
const CANNOT_RUN: u8 = 126;
const USAGE: u8 = 2;

const PASSED_ON: [i32; 6] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];

/// Runs a program and ends the process with its exit code, or with 70 where a signal ended it. `arguments` follow the word
/// `launch`. To be called before any thread, runtime or logger exists.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ! {
    let mut command: Vec<OsString> = arguments.collect();
    if command.first().is_some_and(|first| first == "--") {
        command.remove(0);
    }
    std::process::exit(i32::from(launch(&command)))
}

fn launch(command: &[OsString]) -> u8 {
    let Some(program) = command.first() else {
        say("pando-node launch: which program? usage: pando-node launch -- program [arguments]\n");
        return USAGE;
    };
    match Launcher::start(command) {
        Ok(launcher) => launcher.run(),
        Err(error) => {
            say(&format!("pando-node launch: cannot run {}: {error}\n", program.to_string_lossy()));
            CANNOT_RUN
        }
    }
}

struct Launcher {
    signals: OwnedFd,
    main: Pid,
    ended: Option<WaitStatus>,
}

impl Launcher {
    fn start(command: &[OsString]) -> io::Result<Self> {
        // So that it also works where it is not PID 1.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let mut awaited = vec![libc::SIGCHLD];
        awaited.extend(PASSED_ON);
        // Before the fork: a signal that comes at once is passed on too.
        let signals = sys::signal_descriptor(&awaited)?;
        match sys::fork()? {
            Fork::Parent(main) => Ok(Self { signals, main, ended: None }),
            Fork::Child => become_it(command),
        }
    }

    fn run(mut self) -> u8 {
        while self.ended.is_none() {
            self.wait(None);
        }
        if let Some(signal) = self.ended.and_then(WaitStatus::terminating_signal) {
            say(&format!(
                "pando-node launch: signal {signal} ended the node; its guard ends and reports what ran there, then the \
                 container ends with {KILLED}, to be started again\n"
            ));
        }
        let until = Instant::now() + GUARD_LIMIT;
        let mut left = self.reap();
        while left && Instant::now() < until {
            left = self.wait(Some(until.saturating_duration_since(Instant::now())));
        }
        if left {
            say("pando-node launch: the guard did not end in time; what it left is killed\n");
            tree::kill_children(&BTreeSet::new());
        }
        self.ended.and_then(WaitStatus::exit_status).map_or(KILLED, |code| u8::try_from(code).unwrap_or(KILLED))
    }

    /// Waits for signals and acts on them. Says whether any child is left.
    fn wait(&mut self, limit: Option<Duration>) -> bool {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // An interruption is a reason to look, like any other.
        let _ = poll(&mut [PollFd::new(&self.signals, PollFlags::IN)], limit.as_ref());
        for signal in sys::take_signals(&self.signals) {
            // Once it was waited for, its number may be another's.
            if PASSED_ON.contains(&signal) && self.ended.is_none() {
                let _ = sys::signal_process(self.main, signal);
            }
        }
        self.reap()
    }

    fn reap(&mut self) -> bool {
        let (main, ended) = (self.main, &mut self.ended);
        tree::reap(|pid, status| {
            if pid == main {
                *ended = Some(status);
            }
        })
    }
}

fn become_it(command: &[OsString]) -> ! {
    sys::reset_signals();
    let error = try_to_become_it(command);
    let program = command.first().map(|program| program.to_string_lossy()).unwrap_or_default();
    say(&format!("pando-node launch: cannot run {program}: {error}\n"));
    sys::exit_now(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN })
}

fn try_to_become_it(command: &[OsString]) -> io::Error {
    let strings = |items: Vec<Vec<u8>>| items.into_iter().map(CString::new).collect::<Result<Vec<_>, _>>();
    let arguments = strings(command.iter().map(|item| item.as_bytes().to_vec()).collect());
    let environment = strings(
        std::env::vars_os()
            .map(|(key, value)| {
                let mut entry = key.into_vec();
                entry.push(b'=');
                entry.extend(value.into_vec());
                entry
            })
            .collect(),
    );
    let (Ok(arguments), Ok(environment)) = (arguments, environment) else {
        return io::Error::new(io::ErrorKind::InvalidInput, "an argument holds a NUL character");
    };
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for candidate in candidates(command.first().map_or(OsStr::new(""), OsString::as_os_str)) {
        let error = sys::exec(&candidate, &arguments, &environment);
        if error.kind() != io::ErrorKind::NotFound {
            last = error;
        }
    }
    last
}

fn candidates(program: &OsStr) -> Vec<CString> {
    let paths: Vec<Vec<u8>> = if program.as_bytes().contains(&b'/') {
        vec![program.as_bytes().to_vec()]
    } else {
        let search = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&search).map(|folder| folder.join(program).into_os_string().into_vec()).collect()
    };
    paths.into_iter().filter_map(|path| CString::new(path).ok()).collect()
}

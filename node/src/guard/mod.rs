//! The process beside the node that outlives it and kills what it must.
//!
//! ```text
//!   node ══ SEQPACKET ══ guard ─┬═ socket ═ reaper ── /shop/api and all below it
//!    │                          └═ socket ═ reaper ── /shop/web and all below it
//!    └────────────── one flock()ed descriptor, shared by all ──────────────┘
//! ```
//!
//! | what dies | what follows |
//! | --- | --- |
//! | the main process | its reaper kills the rest of its tree, then says how it ended |
//! | a reaper | its child dies with it (PDEATHSIG), the rest falls to the guard, which kills it: *reaper lost* |
//! | the guard | every reaper kills its tree; the node sees the end of the socket, sweeps and exits |
//! | the node | the guard kills everything, waits until it is gone, and reports the death: an *obituary* |
//! | the lease | the guard kills everything under the session, whatever the node does |
//!
//! The guard has one thread and never blocks on the node. It decides in `rules` and acts in `driver`. It knows no network:
//! `main` gives it a function that sends an obituary. Nothing here restarts anything.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

mod clock;
mod driver;
mod exec;
mod lock;
mod obituary;
mod reaper;
mod rules;
pub mod socket;
mod sweep;
pub(crate) mod sys;
pub(crate) mod tree;
pub mod words;

pub use clock::BootTime;
pub use lock::{GuardLock, LOCK_FILE, LockError};
pub use obituary::{OBITUARY_LIMIT, ObituaryContext, Report, deliver};
pub use sweep::{MARK_VARIABLE, SweepError, find_marked, mark, sweep};

/// How long before the end of a lease the guard kills. Covers clocks that differ by 0.1 %, a guard scheduled 100 ms late and
/// 50 ms until SIGKILL took effect. The runner subtracts it: the guard gets the time to kill.
pub const FENCE_MARGIN: Duration = Duration::from_millis(150);

/// Runs the guard and ends the process: `pando-node guard`, started by the node with its socket as standard input. To be
/// called before any thread, runtime or logger exists. Exits with 0, or with 70 where the node's death could not be
/// reported.
pub fn main(report: &mut Report<'_>) -> ! {
    let guarded = take_socket().and_then(driver::Driver::new).map_err(|error| {
        format!("{error}; this command is not for people: the node starts its guard with a socket as standard input")
    });
    match guarded.and_then(|driver| driver.run(report)) {
        Ok(()) => std::process::exit(0),
        Err(why) => {
            say(&format!("pando-node guard: {why}\n"));
            std::process::exit(70)
        }
    }
}

fn take_socket() -> io::Result<std::os::fd::OwnedFd> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return Err(io::Error::other("standard input is a terminal"));
    }
    let socket = stdin.as_fd().try_clone_to_owned()?;
    rustix::net::sockopt::socket_type(&socket)?;
    Ok(socket)
}

/// Writes to standard error unless that would block: a full pipe of a dead node must not hold up its guard.
pub(crate) fn say(text: &str) {
    let mut stderr = io::stderr();
    let mut watched = [PollFd::new(&stderr, PollFlags::OUT)];
    let ready = poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0);
    if ready {
        let _ = stderr.write_all(text.as_bytes());
    }
}

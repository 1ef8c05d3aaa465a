//! Finding what a dead guard left: every process of a data folder carries its mark in its environment.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal};

use super::tree::parse_pid;

/// The variable that carries the mark.
pub const MARK_VARIABLE: &str = "PANDO_MARK";
/// The file in the data folder that keeps the mark.
const MARK_FILE: &str = "mark";
/// For how long leftovers are killed before they count as unkillable.
const SWEEP_LIMIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(2);

/// Why leftovers could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// `/proc` cannot be read.
    #[error("cannot search /proc for processes that an earlier run left")]
    Proc(#[source] io::Error),
    /// Some would not die.
    #[error(
        "processes {pids:?} of an earlier run did not end within {SWEEP_LIMIT:?} of SIGKILL: end them, or restart the \
         machine, before this node runs again"
    )]
    Left {
        /// Their process ids.
        pids: Vec<i32>,
    },
}

/// The mark of a data folder: random, made at the first call and kept in the folder.
///
/// # Errors
/// Where the folder cannot be written or read.
pub fn mark(data: &Path) -> io::Result<String> {
    let path = data.join(MARK_FILE);
    match fs::read_to_string(&path) {
        Ok(mark) if !mark.trim().is_empty() => return Ok(mark.trim().to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    fs::create_dir_all(data)?;
    let mark = format!("{:032x}", rand::random::<u128>());
    let aside = data.join(format!("{MARK_FILE}.new"));
    fs::write(&aside, &mark)?;
    fs::File::open(&aside)?.sync_all()?;
    fs::rename(aside, path)?;
    fs::File::open(data)?.sync_all()?;
    Ok(mark)
}

/// Kills every process with this mark, and returns how many there were once none is left. To be called while the
/// [`super::GuardLock`] is held and no guard runs. Blocks the calling thread.
///
/// # Errors
/// [`SweepError::Left`] where some do not die.
pub fn sweep(mark: &str) -> Result<usize, SweepError> {
    let began = Instant::now();
    let mut found = BTreeSet::new();
    loop {
        let marked = find_marked(mark).map_err(SweepError::Proc)?;
        if marked.is_empty() {
            return Ok(found.len());
        }
        if began.elapsed() > SWEEP_LIMIT {
            return Err(SweepError::Left { pids: marked.into_iter().map(number).collect() });
        }
        for pid in marked {
            kill_if_marked(pid, mark);
            found.insert(number(pid));
        }
        std::thread::sleep(PAUSE);
    }
}

/// The processes with this mark, this one excepted.
///
/// # Errors
/// Where `/proc` cannot be read.
pub fn find_marked(mark: &str) -> io::Result<Vec<Pid>> {
    let own = rustix::process::getpid();
    let pids = fs::read_dir("/proc")?.flatten().filter_map(|entry| parse_pid(entry.file_name().to_str()?));
    Ok(pids.filter(|pid| *pid != own && is_marked(*pid, mark)).collect())
}

fn is_marked(pid: Pid, mark: &str) -> bool {
    // Gone, a zombie, or another user's: not ours to kill in any case.
    let Ok(environment) = fs::read(format!("/proc/{}/environ", number(pid))) else { return false };
    let entry = format!("{MARK_VARIABLE}={mark}");
    environment.split(|byte| *byte == 0).any(|found| found == entry.as_bytes())
}

/// The descriptor pins the process before its mark is read again, so that a reused number hits nobody.
fn kill_if_marked(pid: Pid, mark: &str) {
    let Ok(pinned) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return };
    if is_marked(pid, mark) {
        let _ = rustix::process::pidfd_send_signal(pinned, Signal::KILL);
    }
}

fn number(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_mark_stays_the_same() {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(mark(data.path()).unwrap(), mark(data.path()).unwrap());
    }

    #[test]
    fn a_sweep_kills_what_has_the_mark_and_nothing_else() {
        let data = tempfile::tempdir().unwrap();
        let mark = mark(data.path()).unwrap();
        let spawn = |mark: &str| Command::new("sleep").arg("60").env(MARK_VARIABLE, mark).spawn().unwrap();
        let (mut ours, mut other) = (spawn(&mark), spawn("another"));
        // Until the exec, the process has its parent's environment.
        let began = Instant::now();
        while find_marked(&mark).unwrap().is_empty() && began.elapsed() < SWEEP_LIMIT {
            std::thread::yield_now();
        }
        assert_eq!(sweep(&mark).unwrap(), 1);
        assert!(!ours.wait().unwrap().success());
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(sweep(&mark).unwrap(), 0);
    }
}

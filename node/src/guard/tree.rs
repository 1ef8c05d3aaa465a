//! Ending a process tree from above it: a subreaper inherits every orphan below it, so killing its children again and
//! again until it has none leaves nothing, whatever they call themselves and whichever session they moved to.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, WaitStatus};

use super::sys;

/// Pauses between two rounds. The second is for processes that the kernel takes long to end.
const FIRST_PAUSE: Duration = Duration::from_micros(200);
const LATER_PAUSE: Duration = Duration::from_millis(5);
const SHORT_ROUNDS: u32 = 50;

/// The children of this process, zombies included. It must have one thread.
pub fn children() -> Vec<Pid> {
    let own = rustix::process::getpid().as_raw_nonzero();
    match fs::read_to_string(format!("/proc/{own}/task/{own}/children")) {
        Ok(list) => list.split_whitespace().filter_map(parse_pid).collect(),
        // A kernel without CONFIG_PROC_CHILDREN.
        Err(_) => children_by_scan(own.get()),
    }
}

fn children_by_scan(own: i32) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| parse_pid(entry.file_name().to_str()?));
    pids.filter(|pid| parent(*pid) == Some(own)).collect()
}

/// The parent of a process; `None` where it is gone.
pub fn parent(pid: Pid) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name stands in parentheses and may hold any character.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The process with this number as text.
pub fn parse_pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.parse().ok()?)
}

/// Sends SIGKILL to every child of this process that is not among `spared`, and says how many there were. Their numbers
/// cannot be reused meanwhile, because only this process waits for them.
pub fn kill_children(spared: &BTreeSet<i32>) -> usize {
    let doomed: Vec<Pid> = children().into_iter().filter(|pid| !spared.contains(&pid.as_raw_nonzero().get())).collect();
    for pid in &doomed {
        // A zombie has nothing left to kill, and what is another user's cannot be killed.
        let _ = sys::signal_process(*pid, libc::SIGKILL);
    }
    doomed.len()
}

/// Waits for the children that have ended, without blocking. Says whether there are any left.
pub fn reap(mut ended: impl FnMut(Pid, WaitStatus)) -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => ended(pid, status),
            Ok(None) => return true,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Kills all that lives below this process and returns when nothing does.
pub fn end_all(mut ended: impl FnMut(Pid, WaitStatus)) {
    let mut rounds = 0;
    loop {
        kill_children(&BTreeSet::new());
        if !reap(&mut ended) {
            return;
        }
        std::thread::sleep(if rounds < SHORT_ROUNDS { FIRST_PAUSE } else { LATER_PAUSE });
        rounds += 1;
    }
}

//! After the guard's death: making sure that nothing it guarded is left.

use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, WaitOptions};

use crate::guard::{GuardLock, LockError, SweepError, sweep, sys, tree};

/// How long the reapers get to end their trees by themselves. They need milliseconds; hung ones must not cost the rest of a
/// lease, and what they leave when they are killed is swept.
const REAPERS_LIMIT: Duration = Duration::from_millis(250);
/// How long the kernel gets once they were killed.
const KILL_LIMIT: Duration = Duration::from_secs(2);

/// Why something may be left.
#[derive(Debug, thiserror::Error)]
pub enum LossError {
    /// Some reaper lives on.
    #[error("the reapers of the dead guard did not end")]
    Reapers(#[from] LockError),
    /// Some child lives on.
    #[error("children of the dead guard did not end")]
    Children(#[from] SweepError),
}

/// Waits until all reapers are gone, killing those that take too long, and sweeps. Returns the lock, held anew. Blocks the
/// calling thread.
///
/// # Errors
/// See [`LossError`].
pub fn clean_up(data: &Path, mark: &str, reapers: &[u32]) -> Result<GuardLock, LossError> {
    let lock = match GuardLock::acquire(data, REAPERS_LIMIT) {
        Ok(lock) => lock,
        Err(_) => {
            kill_adopted(reapers);
            GuardLock::acquire(data, KILL_LIMIT)?
        }
    };
    let found = sweep(mark)?;
    tracing::warn!(found, "swept what the guard left");
    wait_for_adopted(reapers);
    Ok(lock)
}

/// Only what has become a child of this process, so that a reused number hits nobody.
fn kill_adopted(reapers: &[u32]) {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    for pid in reapers.iter().filter_map(|pid| Pid::from_raw(i32::try_from(*pid).ok()?)) {
        if tree::parent(pid) == Some(own) {
            let _ = sys::signal_process(pid, libc::SIGKILL);
        }
    }
}

fn wait_for_adopted(reapers: &[u32]) {
    for pid in reapers.iter().filter_map(|pid| Pid::from_raw(i32::try_from(*pid).ok()?)) {
        // Not a child of this process where it ended before the guard did.
        let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
    }
}

//! What falls to `pando dev` when nodes die: their guards and whatever those left. None of it outlives `pando dev`.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_child_subreaper, waitpid};
use tokio::time::{Instant, sleep};

/// Makes this process the one to which orphans below it fall.
///
/// # Errors
/// The kernel refuses it.
pub fn adopt() -> io::Result<()> {
    set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

/// Takes note of the end of adopted processes; gives those that still run. The processes in `own` are somebody else's to wait
/// for.
pub fn reap(own: &BTreeSet<u32>) -> Vec<Pid> {
    let mut running = Vec::new();
    for pid in children() {
        if own.contains(&pid.as_raw_nonzero().get().unsigned_abs()) {
            continue;
        }
        // Nothing to report means that it runs; an error, that it is no child of ours any more.
        if let Ok(None) = waitpid(Some(pid), WaitOptions::NOHANG) {
            running.push(pid);
        }
    }
    running
}

/// Waits until every adopted process is gone: by itself within `grace`, then by SIGKILL. Gives those that even that did not
/// end.
pub async fn wait_until_gone(grace: Duration) -> Vec<Pid> {
    let own = BTreeSet::new();
    let deadline = Instant::now() + grace;
    loop {
        let running = reap(&own);
        if running.is_empty() {
            return running;
        }
        if Instant::now() > deadline + AFTER_KILL {
            return running;
        }
        if Instant::now() > deadline {
            for pid in running {
                // It may have ended this moment; what it leaves falls to us and is next.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        sleep(PAUSE).await;
    }
}

/// The children of all threads of this process.
fn children() -> Vec<Pid> {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    let lists = threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let texts: Vec<String> = lists.collect();
    texts.iter().flat_map(|list| list.split_whitespace()).filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

/// Held by every test that starts a process and waits for it: [`reap`] takes note of the end of any.
#[cfg(test)]
pub static OWN_CHILDREN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);
/// How long SIGKILL may take over a whole tree: each level falls to us in turn.
const AFTER_KILL: Duration = Duration::from_secs(2);

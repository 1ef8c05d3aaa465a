//! `pando dev kill`: ends a node process without warning, as a machine would.

use std::path::Path;

use anyhow::anyhow;
use pando_protocol::ids::NodeName;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};

use super::grove;
use super::layout::Layout;
use super::process::Known;
use crate::exit::Failure;
use crate::output;

/// Kills the process of a node, and returns when it is dead.
///
/// # Errors
/// There is no such node, or it does not run.
pub fn run(folder: &Path, name: &NodeName) -> Result<(), Failure> {
    Layout::read(folder)?.node(name)?;
    let Some((known, handle)) = Known::running(folder, name) else {
        return Err(Failure::refused(anyhow!("{name} does not run: {}", how_to_start(folder, name))));
    };
    pidfd_send_signal(&handle, Signal::KILL)
        .map_err(|error| Failure::failed(anyhow!("{name} (pid {}) cannot be killed: {error}", known.pid)))?;
    let limit = Timespec { tv_sec: DEATH_LIMIT, tv_nsec: 0 };
    match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&limit)) {
        Ok(1..) => output::emit(&format!("killed {name} (pid {}); {}\n", known.pid, how_to_start(folder, name))),
        _ => Err(Failure::failed(anyhow!(
            "{name} (pid {}) got SIGKILL and is not dead after {DEATH_LIMIT} s",
            known.pid
        ))),
    }
}

/// Only a `pando dev` that runs can start a node alone.
fn how_to_start(folder: &Path, name: &NodeName) -> String {
    if grove::runs_in(folder) {
        return format!("`pando dev start {name}` starts it again");
    }
    let data = output::shell_word(&folder.display().to_string());
    format!("no `pando dev` runs in this folder, and `pando dev --data {data}` starts it with all others")
}

/// Most seconds for the kernel to end a process.
const DEATH_LIMIT: i64 = 5;

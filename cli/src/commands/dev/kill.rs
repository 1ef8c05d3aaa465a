//! `pando dev kill`: ends a node process without warning, as a machine would.

use std::path::Path;

use anyhow::anyhow;
use pando_protocol::ids::NodeName;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};

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
        return Err(Failure::refused(anyhow!("{name} does not run: `pando dev start {name}` starts it")));
    };
    pidfd_send_signal(&handle, Signal::KILL)
        .map_err(|error| Failure::failed(anyhow!("{name} (pid {}) cannot be killed: {error}", known.pid)))?;
    let limit = Timespec { tv_sec: DEATH_LIMIT, tv_nsec: 0 };
    match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&limit)) {
        Ok(1..) => {
            output::emit(&format!("killed {name} (pid {}); `pando dev start {name}` starts it again\n", known.pid))
        }
        _ => Err(Failure::failed(anyhow!(
            "{name} (pid {}) got SIGKILL and is not dead after {DEATH_LIMIT} s",
            known.pid
        ))),
    }
}

/// Most seconds for the kernel to end a process.
const DEATH_LIMIT: i64 = 5;

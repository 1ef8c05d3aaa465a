//! The worker of every row: this program, started by a node.
//!
//! | payload | what it does |
//! | --- | --- |
//! | `abort …` | the process aborts |
//! | `fail …` | says that it failed |
//! | anything else | says that it is done, without a reply |
//!
//! With a file as its argument it writes a line there for each message that it handled: see [`Handled`].

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use pando_protocol::worker::{Failure, Worker};

use super::load::PREFETCH;

/// Works until the node says stop.
pub fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.context("no runtime").and_then(|runtime| runtime.block_on(work())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench, as a worker: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn work() -> anyhow::Result<()> {
    let file = std::env::args_os().nth(1);
    let open = |path: &Path| OpenOptions::new().create(true).append(true).open(path);
    let file = file.map(|path| open(path.as_ref())).transpose().context("the file of handled messages")?;
    let worker = Worker::connect().await?.starts(true).prefetch(PREFETCH);
    let handle = async |message: pando_protocol::worker::Message| match message.payload.bytes() {
        [b'a', b'b', b'o', b'r', b't', ..] => std::process::abort(),
        [b'f', b'a', b'i', b'l', ..] => Err(Failure::retry("it does not work out")),
        _ => {
            if let Some(file) = &file {
                Handled { at: now(), id: message.id }.write(file)?;
            }
            Ok(())
        }
    };
    worker.run(handle).await?;
    Ok(())
}

/// A message that was handled: a line of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handled {
    /// When, as [`now`] tells it.
    pub at: u64,
    /// Its id.
    pub id: String,
}

impl Handled {
    /// One write for each line, so that lines of several workers never mix.
    fn write(&self, mut file: &File) -> std::io::Result<()> {
        file.write_all(format!("{} {}\n", self.at, self.id).as_bytes())
    }

    /// The lines of a file.
    pub fn read(text: &str) -> Vec<Self> {
        let line = |line: &str| {
            let (at, id) = line.split_once(' ')?;
            Some(Self { at: at.parse().ok()?, id: id.to_owned() })
        };
        text.lines().filter_map(line).collect()
    }
}

/// Microseconds since the machine began: one clock for all processes.
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000_000 + now.tv_nsec / 1_000).unwrap_or_default()
}

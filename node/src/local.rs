//! What this node can be asked about what runs on it: signals and logs.

use std::io;
use std::path::PathBuf;

use pando_protocol::ids::{NodeName, Path};
use pando_protocol::message::LogLine;
use pando_protocol::spec::Signal;
use tokio::sync::mpsc;

use crate::disk::{self, Room};
pub use crate::runner::{Presence, Signalled};
use crate::runner::{RunnerHandle, logs};

/// The children of this node. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LocalChildren {
    node: NodeName,
    data: PathBuf,
    runner: RunnerHandle,
}

impl LocalChildren {
    /// Those of `node`, with logs in the folder `data`.
    pub fn new(node: NodeName, data: PathBuf, runner: RunnerHandle) -> Self {
        Self { node, data, runner }
    }

    /// Whether this node holds a session, and how much runs here.
    pub fn presence(&self) -> Presence {
        self.runner.presence()
    }

    /// The room on the disk of the data folder; `None` where the kernel does not tell.
    pub fn room(&self) -> Option<Room> {
        disk::room(&self.data)
    }

    /// Sends a signal to what runs here at `path`.
    ///
    /// # Errors
    /// Where nothing runs here at that path, or the kernel refuses.
    pub async fn signal(&self, path: Path, signal: Signal) -> io::Result<Signalled> {
        self.runner.signal(path, signal).await
    }

    /// The last `tail` lines that a child wrote here, the oldest first.
    ///
    /// # Errors
    /// Where a log exists and cannot be read.
    pub async fn tail(&self, path: Path, tail: u32) -> io::Result<Vec<LogLine>> {
        let Self { node, data, .. } = self.clone();
        let lines = usize::try_from(tail).unwrap_or(usize::MAX);
        tokio::task::spawn_blocking(move || logs::tail(&data, &node, &path, lines)).await.map_err(io::Error::other)?
    }

    /// The last `tail` lines, then new ones as they are written, until the receiver is dropped.
    ///
    /// # Errors
    /// Where a log exists and cannot be read.
    pub async fn follow(&self, path: Path, tail: u32) -> io::Result<mpsc::Receiver<LogLine>> {
        let Self { node, data, .. } = self.clone();
        let lines = usize::try_from(tail).unwrap_or(usize::MAX);
        tokio::task::spawn_blocking(move || logs::follow(&data, &node, &path, lines)).await.map_err(io::Error::other)?
    }
}

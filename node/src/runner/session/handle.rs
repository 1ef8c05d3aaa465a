//! The way to a runner for the rest of the node: what it asks, and what it may know of the runner's standing.

use std::io;

use openraft::AsyncRuntime;
use pando_protocol::ids::{Path, SessionId};
use pando_protocol::spec::Signal;
use tokio::sync::{mpsc, oneshot, watch};

use super::{Runner, Standing};
use crate::guard::BootTime;
use crate::runner::processes::{Processes, SignalReply, Signalled};

/// Requests that may wait for the runner; who finds no room waits too.
const REQUESTS_WAITING: usize = 64;

/// A node's standing with the cluster, as its runner knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Presence {
    /// The session that it holds; `None`: nothing may run here.
    pub session: Option<SessionId>,
    /// How many children have a process here, as of the last beat.
    pub children: usize,
    /// From when on the lease of the session counts, as of the last beat: when that beat was sent which a leader answered last.
    pub renewed: Option<BootTime>,
}

/// A way to the runner.
#[derive(Debug, Clone)]
pub struct RunnerHandle {
    requests: mpsc::Sender<Request>,
    presence: watch::Receiver<Presence>,
}

/// What is asked by way of a handle.
#[derive(Debug)]
pub(super) struct Request {
    path: Path,
    signal: Signal,
    reply: SignalReply,
}

impl RunnerHandle {
    /// One, and the runner's ends of it.
    pub(super) fn new() -> (Self, mpsc::Receiver<Request>, watch::Sender<Presence>) {
        let (requests, asked) = mpsc::channel(REQUESTS_WAITING);
        let (told, presence) = watch::channel(Presence::default());
        (Self { requests, presence }, asked, told)
    }

    /// Whether a session is held, and how much runs here.
    pub fn presence(&self) -> Presence {
        self.presence.borrow().clone()
    }

    /// Sends a signal to what runs here at `path`.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] where nothing runs here at that path; what the kernel says otherwise.
    pub async fn signal(&self, path: Path, signal: Signal) -> io::Result<Signalled> {
        let (reply, answer) = oneshot::channel();
        _ = self.requests.send(Request { path, signal, reply }).await;
        answer.await.unwrap_or_else(|_| Err(io::Error::other("the node is stopping")))
    }

    /// One to a runner that is gone, for tests of what asks it nothing.
    #[cfg(test)]
    pub(crate) fn to_nobody() -> Self {
        Self::new().0
    }
}

impl<R: AsyncRuntime, P: Processes> Runner<R, P> {
    pub(super) fn session(&self) -> Option<SessionId> {
        match &self.standing {
            Standing::Held(session) => Some(session.id),
            Standing::Asking(_) => None,
        }
    }

    pub(super) fn tell_presence(&self) {
        let (children, renewed) = match &self.standing {
            Standing::Held(session) => (session.runs.count(), Some(session.lease.renewed())),
            Standing::Asking(_) => (self.kept.runs.count(), None),
        };
        self.presence.send_replace(Presence { session: self.session(), children, renewed });
    }

    pub(super) fn request(&mut self, request: Request) {
        let Request { path, signal, reply } = request;
        match self.runs().running(&path) {
            Some(incarnation) => self.processes.signal(incarnation, signal, reply),
            None => {
                _ = reply.send(Err(io::Error::new(io::ErrorKind::NotFound, format!("nothing runs here at {path}"))));
            }
        }
    }
}

//! Why a runner ended without being told to.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use pando_protocol::ids::SessionId;

use crate::disk::remedy;

/// Why the runner ended without being told to.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// The guard died, and nothing that it ran is left.
    #[error("the guard has died: nobody could fence what ran here, and all of it was killed")]
    GuardLost {
        /// The sessions that are known to be over by that.
        over: Vec<SessionId>,
    },
    /// The guard did not do its duty. It was killed, and nothing that it ran is left.
    #[error("{silence}, so that nobody fenced what ran here: all of it was killed")]
    GuardSilent {
        /// What was wrong with it.
        silence: Silence,
        /// The sessions that are known to be over by that.
        over: Vec<SessionId>,
    },
    /// What the guard ran could not be killed in time.
    #[error(
        "{0}, and what it ran may still run: look for processes with PANDO_SESSION in their environment, and kill them \
         before you start this node again"
    )]
    NotCleanedUp(Silence),
    /// The session could not be written down before anything starts under it.
    #[error("cannot write the session to {}: {}, then start the node again", .path.display(), remedy(.source))]
    Record {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl RunnerError {
    /// The sessions of which nothing is left, and of which the cluster may not know it.
    pub fn known_over(&self) -> &[SessionId] {
        match self {
            Self::GuardLost { over } | Self::GuardSilent { over, .. } => over,
            Self::NotCleanedUp(_) | Self::Record { .. } => &[],
        }
    }
}

/// What is wrong with the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Silence {
    /// It is dead.
    #[error("the guard has died")]
    Dead,
    /// It owed a word for so long.
    #[error("the guard has not answered for {0:?}")]
    Unanswered(Duration),
    /// The lease is over, and it did not say that it killed.
    #[error("the guard did not say that it killed what ran under a lease that has ended")]
    Unfenced,
}

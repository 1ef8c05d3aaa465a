//! Writes: on any node, applied once.

use std::time::Duration;

use openraft::AsyncRuntime;
use pando_protocol::message::{Answer, Call, Reply, Write};
use pando_protocol::rejection::Rejection;
use pando_supervision::{Command, Done};

use super::Api;
use super::forward::{Forwarded, Led};
use crate::control::{Control, NotProposed};
use crate::peer::OtherNodes;

/// A write has this long to reach a leader and a majority: less than a client gives one attempt (5 s), so that it hears why.
pub(super) const WRITE_LIMIT: Duration = Duration::from_secs(4);
/// A leader has this long to be found. The client asks again, here or elsewhere, for as long as *its* user will wait.
pub(super) const SEARCH_LIMIT: Duration = Duration::from_millis(500);

impl<R: AsyncRuntime, N: OtherNodes> Api<R, N> {
    /// Has the leader apply a write. It carries the client's id and number, so that it may be tried again with each leader.
    pub(super) async fn write(&self, write: Write) -> Answer {
        let Some(control) = &self.control else { return Err(Rejection::BadRequest("an agent applies nothing".into())) };
        match self.to_leader(control, &Call::Write(write), SEARCH_LIMIT, WRITE_LIMIT).await {
            Forwarded::Answered(answer) => answer,
            Forwarded::TimedOut { was_sent: true, .. } => Err(Rejection::Unknown),
            Forwarded::TimedOut { was_sent: false, waited, last_seen } => Err(no_leader(waited, &last_seen)),
        }
    }

    /// Applies a write as the leader.
    pub(super) async fn write_here(&self, control: &Control<R>, write: Write) -> Led {
        Led::Answered(match control.propose(Command::Write(write)).await {
            Ok(Ok(Done::Changed(changed))) => Ok(Reply::Changed(changed)),
            Ok(Ok(other)) => Err(Rejection::Internal(format!("a write was answered with {other:?}"))),
            Ok(Err(refused)) => Err(refused),
            Err(NotProposed::NotLeader) => return Led::NotLeader,
            Err(NotProposed::Unknown) => return Led::Lost,
        })
    }
}

/// What a client is told when no leader was found.
pub(super) fn no_leader(waited: Duration, last_seen: &str) -> Rejection {
    let why = format!(
        "{last_seen}; a majority of the voters must be up: `pando cluster status --stale` shows what this node knows"
    );
    Rejection::NoLeader { waited, why }
}

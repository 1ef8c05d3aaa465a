//! What a runner does about its guard: it hears it, judges its silence, and ends the node where nobody is there to fence.

use std::time::Duration;

use openraft::AsyncRuntime;
use tokio::sync::mpsc;

use super::{Runner, Standing};
use crate::runner::children::ChildEvent;
use crate::runner::error::{RunnerError, Silence};
use crate::runner::processes::Processes;

/// A guard that does not do its duty is killed, and what it ran has this long to be gone before the node ends.
const CLEAN_UP_LIMIT: Duration = Duration::from_secs(10);

impl<R: AsyncRuntime, P: Processes> Runner<R, P> {
    /// What the guard says of itself and of whole sessions.
    pub(super) fn hear_guard(&mut self, event: &ChildEvent) {
        match event {
            ChildEvent::Started { .. } => self.guard.started(self.processes.now()),
            ChildEvent::GuardAnswered { number } => self.guard.answered(*number),
            ChildEvent::Renewed { session, .. } if self.holds(*session) => self.guard.settled_kill_time(),
            ChildEvent::Fenced { session } if self.holds(*session) => {
                tracing::warn!(%session, "no beat was answered in time: the guard has killed what ran under this session");
                self.session_over();
            }
            ChildEvent::SessionGone { session } => {
                if self.holds(*session) {
                    self.session_over();
                }
                self.lingering.remove(session);
                self.say_kept();
                tracing::info!(%session, "nothing that ran under this session is left");
            }
            _ => {}
        }
    }

    /// What is wrong with the guard, if anything.
    pub(super) fn silence(&mut self) -> Option<Silence> {
        let now = self.processes.now();
        if self.guard.is_silent(now) {
            return Some(Silence::Unanswered(self.guard.patience()));
        }
        let Standing::Held(session) = &mut self.standing else { return None };
        session.lease.fence_is_missing(now).then_some(Silence::Unfenced)
    }

    /// Nobody may be there to fence what runs here: no more is beaten, and it is killed by way of its guard.
    pub(super) async fn without_guard(
        &mut self,
        silence: Silence,
        children: &mut mpsc::Receiver<ChildEvent>,
    ) -> RunnerError {
        tracing::error!(%silence, "the guard is killed with everything that runs here");
        self.processes.kill_guard();
        let lost = R::timeout(CLEAN_UP_LIMIT, async {
            loop {
                match children.recv().await {
                    Some(ChildEvent::GuardLost { nothing_left }) => return nothing_left,
                    Some(_) => {}
                    None => return false,
                }
            }
        });
        if !lost.await.unwrap_or(false) {
            return RunnerError::NotCleanedUp(silence);
        }
        RunnerError::GuardSilent { silence, over: self.own_sessions() }
    }
}

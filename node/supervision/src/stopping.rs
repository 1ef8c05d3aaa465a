//! Stopping: a run, a supervisor and all below it, the last started first.

use pando_protocol::ids::Path;
use pando_protocol::spec::Restart;

use crate::change::Change;
use crate::cluster::{
    Body, DownReason, Group, Pending, Process, ProcessPhase, StopReason, Supervisor, SupervisorPhase, Then,
};
use crate::colocation::outermost;
use crate::endings::is_held_or_removed;
use crate::mutation::{Mutation, broken};

impl Change<'_> {
    /// Asks the run of a process to end. Says nothing twice.
    pub fn stop_run(&mut self, path: &Path, reason: StopReason) {
        let Some(run) = self.cluster.run(path).filter(|run| run.stopping.is_none()) else { return };
        let (node, session) = (run.node.clone(), run.session);
        let leaves = self.cluster.session(&node, session).is_some_and(|session| session.leaving);
        let moves = self.is_drained(&node) && self.has_place(path);
        let reason = match reason {
            StopReason::Group if leaves => StopReason::Shutdown,
            StopReason::Group if moves => StopReason::Drain,
            _ => reason,
        };
        if let ProcessPhase::Assigned(run) = &mut self.process(path).phase {
            run.stopping = Some(reason);
        }
        self.touch(&node, session);
        self.worker_stops(path);
        // Who waited to be where this one runs may be free to go elsewhere.
        self.room_changed |= outermost(self.cluster, path).is_some();
    }

    /// Begins to stop everything below a supervisor; `then` follows.
    pub fn stop_supervisor(&mut self, path: &Path, then: Then) {
        self.begin_stop(path, then);
        self.advance_stop(path);
    }

    /// From here on a supervisor starts nothing: what waits below it for a place or a delay waits no longer.
    fn begin_stop(&mut self, path: &Path, then: Then) {
        self.cancel_timer(path);
        let now = self.now();
        let delayed_until = match self.supervisor(path).group() {
            Some(Group::TakingDown { not_before, .. } | Group::Pending { pending: Pending { not_before, .. }, .. }) => {
                *not_before
            }
            Some(Group::Starting | Group::Settled) | None => now,
        };
        self.delay_group(path, delayed_until.saturating_sub(now));
        self.stop_waiting(path);
        if is_held_or_removed(self.cluster, path) {
            self.release_places_below(path);
        } else if !self.is_taken_down_with(path) {
            self.release_new_places_below(path); // With its group it starts again.
        }
        let supervisor = self.supervisor(path);
        let was_up = match supervisor.phase {
            SupervisorPhase::Up { since, .. } => now.saturating_sub(since),
            SupervisorPhase::Stopping { was_up, .. } => was_up,
            SupervisorPhase::Down(_) | SupervisorPhase::Delayed { .. } | SupervisorPhase::Failed(_) => {
                Default::default()
            }
        };
        supervisor.phase = SupervisorPhase::Stopping { was_up, then };
        if broken(Mutation::StartsWhileStopping) {
            return;
        }
        for id in self.supervisor(path).children.clone() {
            self.stand_down(&path.child(&id));
        }
    }

    /// Takes a member down that waits for a place or a delay. Others are left as they are. Where its group does it, that waits out
    /// the delay.
    pub fn stand_down(&mut self, child: &Path) {
        let now = self.now();
        match &self.member(child).body {
            Body::Process(Process { phase: ProcessPhase::Pending(Pending { not_before, .. }), .. }) => {
                let owed = not_before.saturating_sub(now);
                self.delay_group(child, owed);
                self.stop_waiting(child);
                self.set_down(child, DownReason::Supervisor);
            }
            Body::Supervisor(Supervisor { phase: SupervisorPhase::Delayed { until }, .. }) => {
                let owed = until.saturating_sub(now);
                self.delay_group(child, owed);
                self.set_down(child, DownReason::Supervisor);
            }
            Body::Process(_) | Body::Supervisor(_) => {}
        }
    }

    /// Stops the last child that still runs, or finishes when there is none. Called each time a child of a stopping
    /// supervisor is down.
    pub fn advance_stop(&mut self, path: &Path) {
        if self.stop_children(path) {
            self.finish_stop(path);
        }
    }

    /// Whether all children are down now; if not, the last that runs is being stopped.
    fn stop_children(&mut self, path: &Path) -> bool {
        let children = self.supervisor(path).children.clone();
        for id in children.iter().rev() {
            if !self.stop_child(&path.child(id), StopReason::Supervisor) && !broken(Mutation::FailBeforeStopped) {
                return false;
            }
        }
        true
    }

    /// Whether a child, and all below it, is down now; if not, the last that runs is being stopped.
    pub fn stop_child(&mut self, child: &Path, reason: StopReason) -> bool {
        self.stand_down(child);
        match &self.member(child).body {
            Body::Process(Process { phase, .. }) => match phase {
                ProcessPhase::Down(_) | ProcessPhase::Pending(_) => true,
                ProcessPhase::Assigned(_) => {
                    self.stop_run(child, reason);
                    false
                }
            },
            Body::Supervisor(Supervisor { phase, .. }) => match phase {
                SupervisorPhase::Down(_) | SupervisorPhase::Failed(_) | SupervisorPhase::Delayed { .. } => true,
                SupervisorPhase::Up { .. } => {
                    // Not `stop_supervisor`: that would come back up to us where the child is down at once.
                    self.begin_stop(child, Then::Down(DownReason::Supervisor));
                    self.stop_below(child, reason)
                }
                SupervisorPhase::Stopping { .. } => self.stop_below(child, reason),
            },
        }
    }

    fn stop_below(&mut self, supervisor: &Path, reason: StopReason) -> bool {
        let all_down = self.stop_children(supervisor);
        if all_down {
            match reason {
                StopReason::Group => self.down_with_group(supervisor),
                _ => self.set_down(supervisor, DownReason::Supervisor),
            }
        }
        all_down
    }

    /// A member that its group took down waits for the next generation; a temporary one is gone.
    pub fn down_with_group(&mut self, path: &Path) {
        let is_temporary = self.member(path).restart == Restart::Temporary && !broken(Mutation::TemporaryReturns);
        if is_temporary {
            self.release_places_below(path);
        }
        self.set_down(path, if is_temporary { DownReason::Finished } else { DownReason::Supervisor });
    }

    /// All children of a stopping supervisor are down: does what was to follow.
    fn finish_stop(&mut self, path: &Path) {
        let SupervisorPhase::Stopping { was_up, then } = self.supervisor(path).phase.clone() else { return };
        self.set_down(path, DownReason::Supervisor);
        let member = self.member(path);
        let (held, removed) = (member.held, member.removed);
        if removed {
            return self.forget(path);
        }
        if let Some(parent) = path.parent()
            && self.supervisor(&parent).is_stopping()
        {
            return self.advance_stop(&parent);
        }
        if held {
            return self.set_down(path, DownReason::Held);
        }
        if self.is_taken_down(path) {
            return self.down_with_group(path); // Whatever was to follow: it starts again with its group.
        }
        // Taken down for a group that a new spec has put in another order, so that it does not take this one down any more.
        let is_wanted = path.parent().is_some_and(|parent| self.supervisor(&parent).is_up());
        match then {
            Then::Down(DownReason::Supervisor) if is_wanted => self.start_in_turn(path),
            Then::Down(reason) => self.set_down(path, reason),
            Then::Restart => self.start_in_turn(path),
            Then::Fail(cause) => self.failed(path, cause, was_up),
            Then::End(cause) => self.ended(path, cause, was_up),
        }
    }

    /// Marks a member as down. Nothing at or below it runs any more.
    pub fn set_down(&mut self, path: &Path, reason: DownReason) {
        self.unsettled.insert(path.clone());
        let member = self.member(path);
        let reason = if member.held { DownReason::Held } else { reason };
        if matches!(reason, DownReason::Held | DownReason::Finished) {
            self.release_places_below(path); // It does not start again by itself, so nothing of it goes back.
            self.room_changed |= outermost(self.cluster, path).is_some(); // What stays together needs less as a whole.
        }
        let member = self.member(path);
        match &mut member.body {
            Body::Process(process) => process.phase = ProcessPhase::Down(reason),
            Body::Supervisor(_) => {
                self.cancel_timer(path);
                self.supervisor(path).phase = SupervisorPhase::Down(reason);
            }
        }
    }

    /// Forgets when a delayed supervisor was to start.
    pub fn cancel_timer(&mut self, path: &Path) {
        if let SupervisorPhase::Delayed { until } = self.supervisor(path).phase {
            self.cluster.timers.remove(&(until, path.clone()));
        }
    }
}

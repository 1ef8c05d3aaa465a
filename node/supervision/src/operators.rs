//! What operators say to a running tree: start, stop, restart.

use std::time::Duration;

use pando_protocol::ids::Path;
use pando_protocol::message::{Difference, DifferenceKind};
use pando_protocol::rejection::Rejection;

use crate::change::Change;
use crate::cluster::{Body, DownReason, ProcessPhase, StopReason, Supervisor, SupervisorPhase, Then};
use crate::command::EventKind;
use crate::differences::nearest;

impl Change<'_> {
    /// Lets a member run again: one that was stopped, one that ended, one that a rule stopped.
    pub fn operator_start(&mut self, path: &Path) -> Result<Vec<Difference>, Rejection> {
        self.known(path)?;
        if self.has_failed(path) {
            let why = format!(
                "has failed: `pando explain {path}` says why; `pando restart {path}` clears it and starts it afresh"
            );
            return Err(Rejection::WrongState { path: path.clone(), why });
        }
        let was_held = self.member(path).held;
        if !was_held && !self.member(path).is_down() {
            return Ok(Vec::new());
        }
        let parent_up = path.parent().is_none_or(|parent| self.supervisor(&parent).is_up());
        if !parent_up && !was_held {
            return Err(self.parent_down(path));
        }
        self.let_go(path);
        if parent_up && self.member(path).is_down() {
            self.forgive(path);
            self.start_in_turn(path);
        }
        self.event(EventKind::MemberStarted, Some(path), None, format!("{path} was started by an operator"));
        Ok(vec![difference(path, DifferenceKind::Started)])
    }

    /// Ends the operator's hold on a member. One that is still stopping for it starts again once it is down.
    fn let_go(&mut self, path: &Path) {
        let member = self.member(path);
        (member.held, member.quarantined) = (false, false);
        match &mut member.body {
            Body::Process(process) => {
                if let ProcessPhase::Down(reason) = &mut process.phase {
                    *reason = DownReason::Supervisor;
                }
            }
            Body::Supervisor(supervisor) => match &mut supervisor.phase {
                SupervisorPhase::Down(reason) => *reason = DownReason::Supervisor,
                SupervisorPhase::Stopping { then, .. } if matches!(then, Then::Down(_)) => *then = Then::Restart,
                SupervisorPhase::Stopping { .. }
                | SupervisorPhase::Delayed { .. }
                | SupervisorPhase::Up { .. }
                | SupervisorPhase::Failed(_) => {}
            },
        }
    }

    /// Stops a member until it is started again.
    pub fn operator_stop(&mut self, path: &Path) -> Result<Vec<Difference>, Rejection> {
        self.known(path)?;
        if self.has_failed(path) {
            let why = format!(
                "has failed and runs nothing: `pando restart {path}` starts it afresh, `pando delete {path}` removes it"
            );
            return Err(Rejection::WrongState { path: path.clone(), why });
        }
        let member = self.member(path);
        if std::mem::replace(&mut member.held, true) {
            return Ok(Vec::new());
        }
        self.unsettled.insert(path.clone());
        self.release_places_below(path);
        self.worker_replaced(path);
        match &mut self.member(path).body {
            Body::Process(process) => match &mut process.phase {
                ProcessPhase::Assigned(_) => self.stop_run(path, StopReason::Operator),
                ProcessPhase::Pending(_) => {
                    self.stop_waiting(path);
                    self.process(path).phase = ProcessPhase::Down(DownReason::Held);
                }
                ProcessPhase::Down(reason) => *reason = DownReason::Held,
            },
            Body::Supervisor(supervisor) => match &mut supervisor.phase {
                SupervisorPhase::Up { .. } | SupervisorPhase::Delayed { .. } => {
                    self.stop_supervisor(path, Then::Down(DownReason::Held));
                }
                SupervisorPhase::Down(reason) => *reason = DownReason::Held,
                SupervisorPhase::Stopping { .. } | SupervisorPhase::Failed(_) => {} // `held` decides when all are down.
            },
        }
        self.event(EventKind::MemberStopped, Some(path), None, format!("{path} was stopped by an operator"));
        Ok(vec![difference(path, DifferenceKind::Stopped)])
    }

    /// Stops a member as [`Self::operator_stop`] does, and marks it as dangerous to start.
    pub fn quarantine(&mut self, path: &Path) -> Result<Vec<Difference>, Rejection> {
        self.known(path)?;
        let differences = self.operator_stop(path)?;
        if !std::mem::replace(&mut self.member(path).quarantined, true) {
            self.event(
                EventKind::MemberQuarantined,
                Some(path),
                None,
                format!("{path} was quarantined by an operator"),
            );
        }
        Ok(differences)
    }

    /// Stops and starts a member, with an empty budget and base backoff.
    pub fn operator_restart(&mut self, path: &Path) -> Result<Vec<Difference>, Rejection> {
        self.known(path)?;
        if path.parent().is_some_and(|parent| !self.supervisor(&parent).is_up()) {
            return Err(self.parent_down(path));
        }
        self.forgive(path);
        self.event(EventKind::MemberRestarted, Some(path), None, format!("{path} was restarted by an operator"));
        let member = self.member(path);
        (member.held, member.quarantined) = (false, false);
        match &member.body {
            Body::Process(process) => match &process.phase {
                ProcessPhase::Assigned(_) => self.stop_run(path, StopReason::Restart),
                ProcessPhase::Pending(_) => {
                    self.stop_waiting(path);
                    self.wait_for_place(path, Duration::ZERO);
                }
                ProcessPhase::Down(_) => self.start_in_turn(path),
            },
            Body::Supervisor(supervisor) => match &supervisor.phase {
                SupervisorPhase::Up { .. } | SupervisorPhase::Stopping { .. } => {
                    self.stop_supervisor(path, Then::Restart);
                }
                SupervisorPhase::Failed(_) => {
                    let text = format!("tree {} is cleared by an operator", path.tree());
                    self.event(EventKind::TreeCleared, Some(path), None, text);
                    self.start(path);
                }
                SupervisorPhase::Down(_) => self.start_in_turn(path),
                SupervisorPhase::Delayed { .. } => self.start(path),
            },
        }
        Ok(vec![difference(path, DifferenceKind::Restarted)])
    }

    fn has_failed(&self, path: &Path) -> bool {
        let supervisor = self.cluster.supervisor(path);
        matches!(supervisor, Some(Supervisor { phase: SupervisorPhase::Failed(_), .. }))
    }

    fn parent_down(&self, path: &Path) -> Rejection {
        let parent = path.parent().unwrap_or_else(|| path.clone());
        let why = format!("cannot run now: its supervisor {parent} is not up; `pando explain {parent}` says why");
        Rejection::WrongState { path: path.clone(), why }
    }

    fn known(&self, path: &Path) -> Result<(), Rejection> {
        match self.cluster.member(path) {
            Some(member) if member.removed => {
                let why = "is being removed, and its last processes are stopping: wait until it is gone".to_owned();
                Err(Rejection::WrongState { path: path.clone(), why })
            }
            Some(_) => Ok(()),
            None => Err(Rejection::NoSuchPath { path: path.clone(), nearest: nearest(self.cluster, path) }),
        }
    }
}

fn difference(path: &Path, what: DifferenceKind) -> Difference {
    Difference { path: path.clone(), what, keys: Vec::new() }
}

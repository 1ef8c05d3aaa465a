//! Makes what runs here what should run, and tells the cluster what becomes of it.

use openraft::{AsyncRuntime, Instant};
use pando_protocol::ids::{Incarnation, Path};
use pando_protocol::session::{Desired, Observation};
use pando_protocol::spec::OnDisconnect;
use pando_supervision::desired::Action;

use super::{Runner, Standing};
use crate::runner::children::ChildEvent;
use crate::runner::error::{RunnerError, Silence};
use crate::runner::kept::{never_started, plan_with};
use crate::runner::processes::Processes;

impl<R: AsyncRuntime, P: Processes> Runner<R, P> {
    /// Makes what runs what should run.
    pub(super) fn act(&mut self, desired: &Desired) {
        let Standing::Held(session) = &mut self.standing else { return };
        if !session.runs.admit(desired) {
            return;
        }
        let now = self.processes.now();
        session.newest = Some(desired.clone());
        for action in plan_with(desired, &session.runs, session.adoption.as_ref()) {
            match action {
                Action::Start(wanted) => {
                    // A first word, for the sake of the one that it waits for.
                    if wanted.spec.on_disconnect == OnDisconnect::Keep && !session.outbox.has_spoken() {
                        let begun = Observation::Kept { sessions: Vec::new(), runs: Vec::new() };
                        session.observe(&self.voters, now, begun);
                    }
                    session.runs.take_up(wanted, R::Instant::now());
                }
                Action::Stop(ending) => {
                    session.runs.stopping(ending.incarnation);
                    self.processes.stop(ending.incarnation);
                }
                Action::Promise(ending) => {
                    session.runs.promise(&ending.path, ending.incarnation);
                    let (path, incarnation) = (ending.path, ending.incarnation);
                    session.observe(&self.voters, now, Observation::NeverStarted { path, incarnation });
                }
            }
        }
        // One that ended and is not known to the cluster yet would be taken for one that never started.
        if session.adoption.is_none() {
            session.runs.forget(desired);
        }
    }

    /// Acts on what was told last, now that the cluster knows of all that runs here.
    pub(super) fn act_again(&mut self) {
        let Standing::Held(session) = &mut self.standing else { return };
        if let Some(newest) = session.newest.take() {
            self.act(&newest);
        }
    }

    /// Starts what has waited out its delay.
    pub(super) fn start_due(&mut self) {
        let Standing::Held(session) = &mut self.standing else { return };
        // What was assigned before the cluster knew that this node goes waits until it is told to end.
        if session.leaving.is_some() {
            return;
        }
        for wanted in session.runs.take_due(R::Instant::now(), session.is_known) {
            self.processes.start(wanted.path, wanted.incarnation, session.id, wanted.spec);
        }
    }

    /// What became of a run, or of the guard.
    pub(super) fn child(&mut self, event: ChildEvent) -> Result<(), RunnerError> {
        match event {
            ChildEvent::GuardLost { nothing_left: true } => {
                return Err(RunnerError::GuardLost { over: self.own_sessions() });
            }
            ChildEvent::GuardLost { nothing_left: false } => return Err(RunnerError::NotCleanedUp(Silence::Dead)),
            // Heard already.
            ChildEvent::GuardAnswered { .. }
            | ChildEvent::Renewed { .. }
            | ChildEvent::Fenced { .. }
            | ChildEvent::SessionGone { .. } => {}
            ChildEvent::Started { path, incarnation, pid, .. } => {
                self.observe_alive(incarnation, Observation::Started { path, incarnation, pid });
            }
            ChildEvent::Ready { path, incarnation, .. } => {
                self.observe_alive(incarnation, Observation::Ready { path, incarnation });
            }
            ChildEvent::NeverStarted { path, incarnation } => self.never_started(path, incarnation),
            ChildEvent::WorkerReady { path, incarnation, readiness } => {
                self.observe_alive(incarnation, Observation::WorkerReady { path, incarnation, readiness });
            }
            ChildEvent::Settled { incarnation, settlements } => self.settled(incarnation, settlements),
            ChildEvent::Exited { path, incarnation, mut exit, started, .. } => {
                if self.runs().exited(&path, incarnation, R::Instant::now(), Some(&mut exit)) {
                    // What its worker settled counts only before its end.
                    self.say_all_settled();
                    self.observe(Observation::Exited { path, incarnation, exit, started });
                }
            }
        }
        Ok(())
    }

    fn never_started(&mut self, path: Path, incarnation: Incarnation) {
        let stood = self.runs().stands(incarnation);
        if self.runs().exited(&path, incarnation, R::Instant::now(), None) {
            self.observe(never_started(path, incarnation, stood));
        }
    }

    fn observe_alive(&mut self, incarnation: Incarnation, observation: Observation) {
        if self.runs().is_alive(incarnation) {
            self.observe(observation);
        }
    }
}

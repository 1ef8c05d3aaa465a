//! How an ending is classified, who pays for it, and what follows. Design section 5.2: one ending, one payer.

use std::sync::Arc;
use std::time::Duration;

use pando_protocol::cause::{CauseChain, CauseClass, Exit};
use pando_protocol::ids::Path;
use pando_protocol::spec::{ExitAction, ProcessSpec, Restart};

use crate::causes::{action_for, cause_of};
use crate::change::{Change, chain, escalated, human};
use crate::cluster::{Cluster, DownReason, ProcessPhase, Refusal, Run, Stage, StopReason};
use crate::command::EventKind;
use crate::mutation::{Mutation, broken};
use crate::placement::fits_elsewhere_alone;
use crate::restarts::{Budget, Crash, delay, dice};
use crate::supervisors::Escalation;

/// Endings in a row that may go unpaid; the next is charged whatever it is, so that nothing restarts for ever for free.
pub const MAX_UNPAID: u32 = 3;
/// Nodes that may refuse to start a child, each once a round, before its budget pays.
const REFUSALS_BEFORE_CHARGE: usize = 2;

/// Why a run is over.
pub(crate) enum Over {
    /// Its runner reported the exit.
    Exited {
        /// How it ended.
        exit: Exit,
        /// The hands that a worker had started and not settled.
        started: Vec<u64>,
    },
    /// Its runner promised that it never started and never will.
    NeverStarted,
    /// Its session is over. The child is not placed again before `brake` from now.
    Lost { how: String, brake: Duration },
}

impl Change<'_> {
    /// A run is over: takes it off its node, records why, and decides what follows.
    pub fn run_over(&mut self, path: &Path, run: Run, over: Over) {
        self.take_off(path, &run);
        let spec = self.process(path).spec.clone();
        self.process(path).phase = ProcessPhase::Down(DownReason::Supervisor);
        self.unsettled.insert(path.clone());
        match &over {
            Over::Exited { exit, .. } => self.settle_backoff(path, exit),
            Over::NeverStarted => {}
            Over::Lost { .. } => *self.member(path).node_losses.entry(run.node.clone()).or_default() += 1,
        }
        let cause = cause_of(self.cluster, path, &run, &over, &spec);
        let text = format!("{path} ended on {}: {}", run.node, cause.message);
        self.event(EventKind::ChildExited, Some(path), Some(&run.node), text);
        let class = cause.class;
        *self.member(path).endings.entry(class).or_default() += 1;
        let cause = chain(cause);
        let started = if let Over::Exited { started, .. } = &over { started.as_slice() } else { &[] };
        let message = self.worker_over(path, &run, started, &cause);
        let brake = if let Over::Lost { brake, .. } = over { brake } else { Duration::ZERO };
        if let Some(why) = self.unwanted(path, &run) {
            return self.stay_down(path, &run, &cause, why, brake);
        }
        match class {
            CauseClass::Stopped if broken(Mutation::StopIsCharged) => self.pay_and_restart(path, &run, cause),
            CauseClass::NodeLost if broken(Mutation::LossIsCharged) => self.pay_and_restart(path, &run, cause),
            CauseClass::Stopped => self.stopped(path, &run, &cause),
            CauseClass::NodeLost => self.lost(path, &run, &cause, brake),
            CauseClass::Normal | CauseClass::Crash | CauseClass::Unhealthy | CauseClass::ReaperLost
                if let Some(payer) = &message =>
            {
                self.message_pays(path, &run, cause, payer, &spec);
            }
            CauseClass::ReaperLost => self.reaper_lost(path, &run, cause),
            CauseClass::StartFailed => self.start_failed(path, &run, cause),
            CauseClass::Normal | CauseClass::Crash | CauseClass::Unhealthy => {
                self.ended_by_itself(path, &run, cause, &spec);
            }
            CauseClass::Escalated | CauseClass::AutoShutdown => {} // Of supervisors only.
        }
    }

    /// Frees what the run took of its node.
    fn take_off(&mut self, path: &Path, run: &Run) {
        if let Some(session) = self.session(&run.node, run.session) {
            session.assigned.remove(path);
            session.used -= run.slots;
            session.revision += 1;
            if session.silent && session.assigned.is_empty() {
                self.node(&run.node).sessions.remove(&run.session); // It stood for this run alone.
            }
        }
        self.room_changed |= !broken(Mutation::RoomForgotten);
    }

    /// A run that was healthy long enough returns the delay to its base.
    fn settle_backoff(&mut self, path: &Path, exit: &Exit) {
        let member = self.member(path);
        let healthy = exit.healthy.is_some_and(|healthy| healthy >= member.backoff.reset_after);
        if healthy && !broken(Mutation::BackoffNeverForgets) {
            member.delays = 0;
            member.at_cap = 0;
            member.unpaid = 0;
        }
    }

    /// Why a child that ended is not to run again now, whatever its ending was; `None` where its restart type decides.
    fn unwanted(&mut self, path: &Path, run: &Run) -> Option<&'static str> {
        // A temporary child that ends by itself has come to its own end, whatever its group is about.
        let own_end = self.member(path).restart == Restart::Temporary && run.stopping.is_none();
        let parent = path.parent().map(|parent| self.supervisor(&parent).is_up());
        let member = self.member(path);
        if member.removed {
            Some("nobody: it was removed")
        } else if parent != Some(true) {
            Some("nobody: its supervisor stops")
        } else if member.held {
            Some("nobody: an operator stopped it")
        } else if self.is_taken_down(path) && !own_end {
            Some("nobody: its group restarts")
        } else {
            None
        }
    }

    fn stay_down(&mut self, path: &Path, run: &Run, cause: &Arc<CauseChain>, why: &str, brake: Duration) {
        let unbegun = !self.has_begun(run);
        let is_temporary = self.member(path).restart == Restart::Temporary;
        let decision = match self.is_taken_down(path) {
            true if is_temporary && !unbegun => "not restarted",
            true => "starts again with its group",
            false => "stays down",
        };
        self.note(path, cause, false, why.into(), decision.into());
        if self.member(path).removed {
            return self.forget(path);
        }
        self.delay_group(path, self.owed(run).max(brake)); // Before its group can go on.
        if self.is_taken_down(path) && unbegun {
            self.set_down(path, DownReason::Supervisor);
        } else if self.is_taken_down(path) {
            self.down_with_group(path);
        } else {
            self.release_place(path);
            self.set_down(path, DownReason::Supervisor);
        }
        self.keep_place_with_group(path, run, cause);
        if let Some(parent) = path.parent()
            && self.supervisor(&parent).is_stopping()
        {
            self.advance_stop(&parent);
        }
    }

    /// What a group takes down starts again where it ran, unless its node could not start it. On a drained node it has a way back
    /// even then, since others are tried first anyway; and also where a supervisor stops that may start again.
    fn keep_place_with_group(&mut self, path: &Path, run: &Run, cause: &CauseChain) {
        let refused = cause.innermost().is_some_and(|cause| cause.class == CauseClass::StartFailed);
        let has_finished = self.process(path).has_finished();
        let returns = !has_finished && !is_held_or_removed(self.cluster, path);
        let with_group = self.is_taken_down_with(path);
        let with_supervisor = path.parent().is_some_and(|parent| self.supervisor(&parent).is_stopping());
        if returns && self.is_drained(&run.node) && (with_group || with_supervisor) {
            self.keep_way_back(path, run);
        } else if returns && with_group && !refused {
            self.keep_place_of(path, run);
        }
    }

    /// Starts a child again whose ending nobody pays for: alone, or with the group that it belongs to.
    fn start_again_as_member(&mut self, path: &Path, run: &Run, cause: &Arc<CauseChain>, payer: &str, after: Duration) {
        match path.parent().filter(|parent| self.is_group(parent)) {
            Some(group) => {
                self.note(path, cause, false, payer.into(), self.group_decision(path, after));
                self.restart_group(&group, path, after, false);
                self.keep_place_with_group(path, run, cause);
            }
            None => {
                self.start_again(path, cause, payer, after);
                self.keep_way_back(path, run);
            }
        }
    }

    fn start_again(&mut self, path: &Path, cause: &Arc<CauseChain>, payer: &str, after: Duration) {
        let decision = if after.is_zero() {
            "starts again at once".into()
        } else {
            format!("starts again after {}", human(after))
        };
        self.note(path, cause, false, payer.into(), decision);
        self.wait_for_place(path, after);
    }

    /// A run that we asked to end has ended, and its child is still wanted.
    fn stopped(&mut self, path: &Path, run: &Run, cause: &Arc<CauseChain>) {
        match run.stopping {
            // One that has never run has nothing behind it that must not be done again.
            Some(StopReason::Shutdown | StopReason::Drain)
                if self.member(path).restart == Restart::Temporary && self.has_begun(run) =>
            {
                self.end_temporary(path, cause);
            }
            Some(StopReason::Shutdown | StopReason::Drain) => {
                let owed = self.owed(run);
                self.start_again_as_member(path, run, cause, "nobody: we asked for it", owed);
            }
            _ => self.start_again_in_place(path, run, cause, "nobody: we asked for it", Duration::ZERO),
        }
    }

    /// Starts a child again where it ran, as long as its node can take it: a working folder and warm caches are worth keeping.
    fn start_again_in_place(&mut self, path: &Path, run: &Run, cause: &Arc<CauseChain>, payer: &str, after: Duration) {
        self.start_again(path, cause, payer, after);
        if self.can_stay(path, run) {
            self.stop_waiting(path);
            self.assign(path, run.node.clone(), run.session, Some(run.incarnation), after);
        } else {
            self.keep_way_back(path, run);
        }
    }

    fn lost(&mut self, path: &Path, run: &Run, cause: &Arc<CauseChain>, brake: Duration) {
        let was_to_restart = matches!(run.stopping, Some(StopReason::Restart | StopReason::Update));
        if self.member(path).restart == Restart::Temporary && !was_to_restart {
            return self.end_temporary(path, cause);
        }
        let owed = if was_to_restart { Duration::ZERO } else { self.owed(run) };
        self.start_again_as_member(path, run, cause, "nobody: its node was lost", owed.max(brake));
    }

    /// Whether a run that is over was ever started.
    fn has_begun(&self, run: &Run) -> bool {
        !matches!(run.stage, Stage::Assigned) || broken(Mutation::TemporaryForgottenUnbegun)
    }

    /// What is left of the delay of a run that had not started yet: going to another node does not shorten it.
    fn owed(&self, run: &Run) -> Duration {
        let waited = self.now().saturating_sub(run.since);
        let waits = matches!(run.stage, Stage::Assigned) && !broken(Mutation::OwedDelayForgotten);
        if waits { run.delay.saturating_sub(waited) } else { Duration::ZERO }
    }

    fn end_temporary(&mut self, path: &Path, cause: &Arc<CauseChain>) {
        self.finish(path, cause, "nobody: a temporary child is never restarted");
    }

    fn reaper_lost(&mut self, path: &Path, run: &Run, cause: Arc<CauseChain>) {
        if self.member(path).restart == Restart::Temporary {
            return self.end_temporary(path, &cause);
        }
        if !self.may_go_unpaid(path) {
            return self.pay_and_restart(path, run, cause);
        }
        let member = self.member(path);
        member.unpaid += 1;
        let wait = delay(&member.backoff, 0, dice(path, run.incarnation.0));
        let payer = "nobody: its reaper was killed";
        match path.parent().filter(|parent| self.is_group(parent)) {
            Some(_) => self.start_again_as_member(path, run, &cause, payer, wait),
            None => self.start_again_in_place(path, run, &cause, payer, wait),
        }
    }

    /// Whether one more ending of a child may go unpaid: nothing restarts for ever for free.
    fn may_go_unpaid(&mut self, path: &Path) -> bool {
        self.member(path).unpaid < MAX_UNPAID || broken(Mutation::UnpaidForEver)
    }

    /// The node pays until two nodes, or all that could take the child, refused it; then the budget.
    fn start_failed(&mut self, path: &Path, run: &Run, cause: Arc<CauseChain>) {
        self.note_refusal(path, run, &cause);
        let refused = &self.process(path).refused_by;
        let enough = refused.len() >= REFUSALS_BEFORE_CHARGE && !broken(Mutation::StartFailuresFree);
        if self.member(path).restart == Restart::Temporary {
            return self.temporary_start_failed(path, run, &cause, enough);
        }
        let another = self.could_start_elsewhere(path);
        if enough || !(another || broken(Mutation::StartFailuresFree)) || !self.may_go_unpaid(path) {
            return self.pay_and_restart(path, run, cause);
        }
        self.member(path).unpaid += 1;
        self.note_another_try(path, run, &cause);
        match path.parent().filter(|parent| self.is_group(parent)) {
            Some(group) => {
                self.restart_group(&group, path, Duration::ZERO, false);
                self.keep_place_with_group(path, run, &cause);
            }
            None => {
                self.wait_for_place(path, Duration::ZERO);
                self.keep_way_back(path, run);
            }
        }
    }

    /// What was never started has not run, so a temporary child is tried elsewhere, too; but alone, since its end restarts nothing.
    fn temporary_start_failed(&mut self, path: &Path, run: &Run, cause: &Arc<CauseChain>, enough: bool) {
        let another = fits_elsewhere_alone(self.cluster, path) && !broken(Mutation::TemporaryTriedOnce);
        if enough || !another || self.is_taken_down(path) {
            return self.end_temporary(path, cause);
        }
        self.note_another_try(path, run, cause);
        self.wait_for_place(path, Duration::ZERO);
    }

    fn note_another_try(&mut self, path: &Path, run: &Run, cause: &Arc<CauseChain>) {
        let payer = format!("node {}: other nodes are tried first", run.node);
        self.note(path, cause, false, payer, "tried on another node at once".into());
    }

    fn note_refusal(&mut self, path: &Path, run: &Run, cause: &CauseChain) {
        let now = self.now();
        let why = cause.outermost().map(|cause| cause.message.clone()).unwrap_or_default();
        let process = self.process(path);
        let count = process.refusals.get(&run.node).map_or(0, |refusal| refusal.count_at(now)).saturating_add(1);
        process.refusals.insert(run.node.clone(), Refusal { count, at: now, why });
        process.refused_by.insert(run.node.clone());
    }

    fn ended_by_itself(&mut self, path: &Path, run: &Run, cause: Arc<CauseChain>, spec: &ProcessSpec) {
        let normal = cause.outermost().is_some_and(|cause| cause.class == CauseClass::Normal);
        let rule = cause.outermost().and_then(|cause| action_for(cause, spec));
        match (rule, self.member(path).restart) {
            (Some(ExitAction::Stop), _) => {
                let decision = "stays down until it is started".into();
                self.note(path, &cause, false, "nobody: a rule of on_exit".into(), decision);
                self.release_place(path);
                self.process(path).phase = ProcessPhase::Down(DownReason::Rule);
            }
            (Some(ExitAction::Escalate), _) => {
                self.keep_way_back(path, run); // Its supervisor may start it again.
                self.escalate_at_once(path, cause);
            }
            (Some(ExitAction::Restart), _) | (_, Restart::Permanent) => self.pay_and_restart(path, run, cause),
            (_, Restart::Transient) if !normal || broken(Mutation::TransientRestarts) => {
                self.pay_and_restart(path, run, cause);
            }
            (_, Restart::Transient) => self.finish(path, &cause, "nobody: a normal ending of a transient child"),
            (_, Restart::Temporary) => self.end_temporary(path, &cause),
        }
    }

    /// A message that the worker had started pays, so the budget does not. Rules for its exit code hold all the same.
    fn message_pays(&mut self, path: &Path, run: &Run, cause: Arc<CauseChain>, payer: &str, spec: &ProcessSpec) {
        let rule = cause.outermost().and_then(|cause| action_for(cause, spec));
        match (rule, self.member(path).restart) {
            (Some(ExitAction::Stop | ExitAction::Escalate), _) => self.ended_by_itself(path, run, cause, spec),
            (_, Restart::Temporary) => self.finish(path, &cause, payer),
            _ => {
                let stir = self.cluster.head.next_incarnation;
                let member = self.member(path);
                let wait = delay(&member.backoff, member.delays, dice(path, stir));
                member.delays = member.delays.saturating_add(1);
                match path.parent().filter(|parent| self.is_group(parent)) {
                    Some(_) => self.start_again_as_member(path, run, &cause, payer, wait),
                    None => self.start_again_in_place(path, run, &cause, payer, wait),
                }
            }
        }
    }

    /// Charges an ending of a worker that was not charged when it came, since messages were accused of it.
    pub fn charge_late(&mut self, path: &Path, cause: Arc<CauseChain>) {
        const DECISION: &str = "none of the messages that it worked on did it";
        let is_there = self.cluster.member(path).is_some_and(|member| !member.removed);
        let Some(parent) = path.parent().filter(|parent| is_there && self.supervisor(parent).is_up()) else { return };
        let now = self.now();
        let member = self.member(path);
        if let Some(own) = cause.levels.iter().rfind(|level| level.path == *path) {
            *member.restarts.entry(own.class).or_default() += 1;
        }
        member.rate.count(now);
        match self.charge_own(path, &cause) {
            Own::Paid(payer) => self.note(path, &cause, true, payer, DECISION.into()),
            Own::Passed(cause, _) => match self.charge(&parent, path, cause.clone()) {
                Ok(payer) => self.note(path, &cause, true, payer, DECISION.into()),
                Err(escalation) => {
                    let payer = format!("budget of {parent}, which is spent");
                    self.note(path, &cause, true, payer, format!("{DECISION}; escalated to {parent}"));
                    self.escalate(&parent, escalation);
                }
            },
        }
    }

    fn escalate_at_once(&mut self, path: &Path, cause: Arc<CauseChain>) {
        let Some(parent) = path.parent() else { return };
        let payer = format!("budget of {parent}: a rule of on_exit spends it");
        self.note(path, &cause, true, payer, format!("escalated to {parent}"));
        let earlier = self.supervisor(&parent).window.crashes.iter().map(|crash| crash.cause.clone()).collect();
        self.escalate(&parent, Escalation { message: "a rule of on_exit".into(), cause, earlier });
    }

    fn finish(&mut self, path: &Path, cause: &Arc<CauseChain>, payer: &str) {
        self.note(path, cause, false, payer.into(), "not restarted".into());
        self.release_place(path);
        self.process(path).phase = ProcessPhase::Down(DownReason::Finished);
        self.significant_ended(path);
    }

    /// Charges an ending to the child's own account where it has one, else to its supervisor's, and restarts the child within
    /// that budget.
    fn pay_and_restart(&mut self, path: &Path, run: &Run, cause: Arc<CauseChain>) {
        let Some(parent) = path.parent() else { return };
        if self.is_paid_for(&parent) {
            let payer = "nobody: its group restarts already, and that is paid for".to_owned();
            let wait = self.unpaid_delay(path);
            self.note(path, &cause, false, payer, self.group_decision(path, wait));
            self.restart_group(&parent, path, wait, true);
            return self.keep_place_with_group(path, run, &cause);
        }
        match self.charge_own(path, &cause) {
            Own::Paid(payer) => self.restart_process(path, run, &cause, payer),
            Own::Passed(cause, own) => match self.charge(&parent, path, cause.clone()) {
                Ok(payer) => {
                    self.restart_process(path, run, &cause, own.map_or(payer.clone(), |own| format!("{own}; {payer}")));
                }
                Err(escalation) => {
                    let payer = format!("budget of {parent}, which is spent");
                    self.note(path, &cause, true, payer, format!("escalated to {parent}"));
                    self.keep_way_back(path, run); // Its supervisor may be started again, and it with it.
                    self.escalate(&parent, escalation);
                }
            },
        }
    }

    fn charge_own(&mut self, path: &Path, cause: &Arc<CauseChain>) -> Own {
        let at = self.now();
        let process = self.process(path);
        let Some(intensity) = process.spec.intensity else { return Own::Passed(cause.clone(), None) };
        let crash = Crash { at, child: path.clone(), cause: cause.clone() };
        match process.window.charge(intensity, crash) {
            Budget::Pays { spent } => {
                Own::Paid(format!("its own budget: {spent} of {} spent", crate::change::budget(intensity)))
            }
            Budget::Unlimited => Own::Paid("its own budget: unlimited".into()),
            Budget::Spent { crashes, within } => {
                process.window.crashes.clear();
                let message = format!("{crashes} crashes in {}", human(within));
                let outer = cause.as_ref().clone().below(escalated(path, message));
                Own::Passed(Arc::new(outer), Some("its own budget, which is spent".into()))
            }
        }
    }

    /// A crash restart stays on its node; placement decides only where that cannot take it.
    fn restart_process(&mut self, path: &Path, run: &Run, cause: &Arc<CauseChain>, payer: String) {
        let wait = self.next_delay(path, cause);
        if let Some(group) = path.parent().filter(|parent| self.is_group(parent)) {
            self.note(path, cause, true, payer, self.group_decision(path, wait));
            self.restart_group(&group, path, wait, true);
            return self.keep_place_with_group(path, run, cause);
        }
        self.note(path, cause, true, payer, format!("restarts after {}", human(wait)));
        let refused = matches!(cause.innermost(), Some(cause) if cause.class == CauseClass::StartFailed);
        if !refused && self.can_stay(path, run) {
            self.assign(path, run.node.clone(), run.session, Some(run.incarnation), wait);
        } else {
            self.wait_for_place(path, wait);
            self.keep_way_back(path, run);
        }
    }
}

/// Whether an operator stopped a member, or one above it, or it is being removed.
pub(crate) fn is_held_or_removed(cluster: &Cluster, path: &Path) -> bool {
    let is = |path: &Path| cluster.member(path).is_none_or(|member| member.held || member.removed);
    is(path) || path.parent().is_some_and(|parent| is_held_or_removed(cluster, &parent))
}

/// Where the charge for an ending went.
enum Own {
    /// To the child's own account; who paid.
    Paid(String),
    /// On to the supervisor's, with this cause; what the child's own account said, where it has one.
    Passed(Arc<CauseChain>, Option<String>),
}

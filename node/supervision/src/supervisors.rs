//! Supervisors: how they start and stop their children, fail, escalate and end.
//!
//! ```text
//!            start                     crash beyond the budget             all children down
//!   Down ───────────► Up ─────────────────────────────────────► Stopping ───────────────────► parent decides
//!    ▲                 ▲  delay over                                                             │
//!    │                 └─────────── Delayed ◄────────────────── within the parent's budget ──────┤
//!    └──────────────────────────────────────────── Failed (a root) ◄── no parent ───────────────┘
//! ```
//!
//! Children start in parallel and stop one after the other, the last started first.

use std::sync::Arc;
use std::time::Duration;

use pando_protocol::cause::{CauseChain, CauseClass};
use pando_protocol::ids::{ChildId, Path};
use pando_protocol::spec::{AutoShutdown, Restart};

use crate::change::{Change, budget, chain, escalated, human};
use crate::cluster::{
    Body, DownReason, HistoryEntry, Member, Pending, Process, ProcessPhase, StopReason, Supervisor, SupervisorPhase,
    Then,
};
use crate::command::EventKind;
use crate::mutation::{Mutation, broken};
use crate::restarts::{Budget, Crash, Window, delay, dice};

impl Change<'_> {
    /// Starts a member that is down, and all below it, unless an operator stopped it.
    pub fn start(&mut self, path: &Path) {
        let member = self.member(path);
        if member.removed {
            return;
        }
        let held = member.held;
        match &mut member.body {
            Body::Process(process) => match process.phase {
                ProcessPhase::Assigned(_) | ProcessPhase::Pending(_) => {}
                ProcessPhase::Down(_) if held => process.phase = ProcessPhase::Down(DownReason::Held),
                ProcessPhase::Down(_) => self.wait_for_place(path, Duration::ZERO),
            },
            Body::Supervisor(supervisor) => match supervisor.phase {
                SupervisorPhase::Up { .. } | SupervisorPhase::Stopping { .. } => {}
                _ if held => self.set_down(path, DownReason::Held),
                SupervisorPhase::Down(_) | SupervisorPhase::Delayed { .. } | SupervisorPhase::Failed(_) => {
                    self.start_supervisor(path);
                }
            },
        }
    }

    fn start_supervisor(&mut self, path: &Path) {
        self.cancel_timer(path);
        let since = self.now();
        let supervisor = self.supervisor(path);
        supervisor.phase = SupervisorPhase::Up { since };
        if !broken(Mutation::WindowSurvivesRestart) {
            supervisor.window = Window::default();
        }
        let children = supervisor.children.clone();
        self.event(EventKind::SupervisorStarted, Some(path), None, format!("{path} is up"));
        for id in children {
            let child = path.child(&id);
            self.forget_failures(&child);
            self.start(&child);
        }
    }

    /// Gives a member an empty account and base backoff.
    pub fn forget_failures(&mut self, path: &Path) {
        let member = self.member(path);
        member.delays = 0;
        member.at_cap = 0;
        member.unpaid = 0;
        match &mut member.body {
            Body::Supervisor(_) => {}
            Body::Process(process) => {
                process.window = Window::default();
                process.refused_by.clear();
            }
        }
    }

    /// Puts a child into the queue for a place, not before `after` from now.
    pub fn wait_for_place(&mut self, path: &Path, after: Duration) {
        let order = self.cluster.head.next_order;
        self.cluster.head.next_order += 1;
        let not_before = self.now() + after;
        self.process(path).phase = ProcessPhase::Pending(Pending { order, not_before, waits_for: None });
        self.cluster.pending.insert((order, path.clone()));
        if after.is_zero() {
            self.to_place.insert((order, path.clone()));
        } else {
            self.cluster.timers.insert((not_before, path.clone()));
        }
    }

    /// Takes a child out of the queue for a place.
    pub fn stop_waiting(&mut self, path: &Path) {
        let ProcessPhase::Pending(pending) = self.process(path).phase.clone() else { return };
        self.cluster.pending.remove(&(pending.order, path.clone()));
        self.to_place.remove(&(pending.order, path.clone()));
        self.cluster.timers.remove(&(pending.not_before, path.clone()));
    }

    fn cancel_timer(&mut self, path: &Path) {
        if let SupervisorPhase::Delayed { until } = self.supervisor(path).phase {
            self.cluster.timers.remove(&(until, path.clone()));
        }
    }

    fn set_down(&mut self, path: &Path, reason: DownReason) {
        let member = self.member(path);
        match &mut member.body {
            Body::Process(process) => process.phase = ProcessPhase::Down(reason),
            Body::Supervisor(_) => {
                self.cancel_timer(path);
                self.supervisor(path).phase = SupervisorPhase::Down(reason);
            }
        }
    }

    /// Asks the run of a process to end. Says nothing twice.
    pub fn stop_run(&mut self, path: &Path, reason: StopReason) {
        let ProcessPhase::Assigned(run) = &mut self.process(path).phase else { return };
        if run.stopping.is_none() {
            run.stopping = Some(reason);
            let (node, session) = (run.node.clone(), run.session);
            self.touch(&node, session);
        }
    }

    /// Begins to stop everything below a supervisor; `then` follows.
    pub fn stop_supervisor(&mut self, path: &Path, then: Then) {
        let supervisor = self.supervisor(path);
        let was_up_since = match supervisor.phase {
            SupervisorPhase::Up { since } => Some(since),
            SupervisorPhase::Stopping { was_up_since, .. } => was_up_since,
            SupervisorPhase::Down(_) | SupervisorPhase::Delayed { .. } | SupervisorPhase::Failed(_) => None,
        };
        self.cancel_timer(path);
        self.supervisor(path).phase = SupervisorPhase::Stopping { was_up_since, then };
        self.advance_stop(path);
    }

    /// Stops the last child that still runs, or finishes when there is none. Called each time a child of a stopping
    /// supervisor is down.
    pub fn advance_stop(&mut self, path: &Path) {
        let children = self.supervisor(path).children.clone();
        for id in children.iter().rev() {
            if !self.stop_child(&path.child(id)) && !broken(Mutation::FailBeforeStopped) {
                return;
            }
        }
        self.finish_stop(path);
    }

    /// Whether the child is down now; if not, it is being stopped.
    fn stop_child(&mut self, child: &Path) -> bool {
        match &self.member(child).body {
            Body::Process(Process { phase, .. }) => match phase {
                ProcessPhase::Down(_) => true,
                ProcessPhase::Pending(_) => {
                    self.stop_waiting(child);
                    self.set_down(child, DownReason::Supervisor);
                    true
                }
                ProcessPhase::Assigned(_) => {
                    self.stop_run(child, StopReason::Supervisor);
                    false
                }
            },
            Body::Supervisor(Supervisor { phase, .. }) => match phase {
                SupervisorPhase::Down(_) | SupervisorPhase::Failed(_) => true,
                SupervisorPhase::Delayed { .. } => {
                    self.set_down(child, DownReason::Supervisor);
                    true
                }
                SupervisorPhase::Up { since } => {
                    // Not `stop_supervisor`: that would come back up to us when the child is down at once.
                    let (was_up_since, then) = (Some(*since), Then::Down(DownReason::Supervisor));
                    self.supervisor(child).phase = SupervisorPhase::Stopping { was_up_since, then };
                    self.stop_grandchildren(child)
                }
                SupervisorPhase::Stopping { .. } => self.stop_grandchildren(child),
            },
        }
    }

    fn stop_grandchildren(&mut self, child: &Path) -> bool {
        let grandchildren = self.supervisor(child).children.clone();
        for id in grandchildren.iter().rev() {
            if !self.stop_child(&child.child(id)) {
                return false;
            }
        }
        self.set_down(child, DownReason::Supervisor);
        true
    }

    /// All children of a stopping supervisor are down: does what was to follow.
    fn finish_stop(&mut self, path: &Path) {
        let SupervisorPhase::Stopping { was_up_since, then } = self.supervisor(path).phase.clone() else { return };
        self.supervisor(path).phase = SupervisorPhase::Down(DownReason::Supervisor);
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
        match then {
            Then::Down(reason) => self.set_down(path, reason),
            Then::Restart => self.start(path),
            Then::Fail(cause) => self.failed(path, cause, was_up_since),
            Then::End(cause) => self.ended(path, cause, was_up_since),
        }
    }

    /// A supervisor has failed and everything below it is down: its own supervisor decides.
    fn failed(&mut self, path: &Path, cause: Arc<CauseChain>, was_up_since: Option<Duration>) {
        let Some(parent) = path.parent() else {
            self.supervisor(path).phase = SupervisorPhase::Failed(cause.clone());
            let text = format!("tree {} has failed and waits for an operator: {cause}", path.tree());
            return self.event(EventKind::TreeFailed, Some(path), None, text);
        };
        if self.member(path).restart == Restart::Temporary {
            let payer = "nobody: a temporary child is never restarted".to_owned();
            self.note(path, &cause, false, payer, "not restarted".into());
            self.set_down(path, DownReason::Finished);
            return self.significant_ended(&parent);
        }
        self.restart_supervisor(path, &parent, cause, was_up_since);
    }

    /// A supervisor ended with its significant children: like a process that exited normally.
    fn ended(&mut self, path: &Path, cause: Arc<CauseChain>, was_up_since: Option<Duration>) {
        self.event(EventKind::SupervisorEnded, Some(path), None, format!("{path} ended: {cause}"));
        let parent = path.parent();
        match (parent, self.member(path).restart) {
            (Some(parent), Restart::Permanent) => self.restart_supervisor(path, &parent, cause, was_up_since),
            (parent, _) => {
                let payer = "nobody: it ended by itself and is not restarted".to_owned();
                self.note(path, &cause, false, payer, "not restarted".into());
                self.set_down(path, DownReason::Finished);
                if let Some(parent) = parent {
                    self.significant_ended(&parent);
                }
            }
        }
    }

    fn restart_supervisor(
        &mut self,
        path: &Path,
        parent: &Path,
        cause: Arc<CauseChain>,
        was_up_since: Option<Duration>,
    ) {
        let now = self.now();
        let member = self.member(path);
        if was_up_since.is_some_and(|since| now.saturating_sub(since) >= member.backoff.reset_after) {
            member.delays = 0;
            member.at_cap = 0;
        }
        match self.charge(parent, path, cause.clone()) {
            Ok(payer) => {
                let wait = self.next_delay(path);
                self.note(path, &cause, true, payer, format!("starts again after {}", human(wait)));
                let until = self.now() + wait;
                self.supervisor(path).phase = SupervisorPhase::Delayed { until };
                self.cluster.timers.insert((until, path.clone()));
            }
            Err(escalation) => {
                let payer = format!("budget of {parent}, which is spent");
                self.note(path, &cause, true, payer, format!("escalated to {parent}"));
                self.escalate(parent, escalation);
            }
        }
    }

    /// Takes the delay before the next restart of a member, and counts that restart.
    pub fn next_delay(&mut self, path: &Path) -> Duration {
        let now = self.now();
        let stir = self.cluster.head.next_incarnation;
        let member = self.member(path);
        let wait = delay(&member.backoff, member.delays, dice(path, stir));
        member.at_cap = if member.backoff.is_at_cap(member.delays) { member.at_cap + 1 } else { 0 };
        member.delays = member.delays.saturating_add(1);
        member.unpaid = 0;
        member.restarts += 1;
        member.rate.count(now);
        wait
    }

    /// Charges a crash of `child` to the budget of `supervisor`. `Ok` says who paid; `Err` is the cause of the escalation.
    pub fn charge(&mut self, supervisor: &Path, child: &Path, cause: Arc<CauseChain>) -> Result<String, Escalation> {
        let at = self.now();
        let owner = self.supervisor(supervisor);
        let intensity = owner.intensity;
        let crash = Crash { at, child: child.clone(), cause: cause.clone() };
        match owner.window.charge(intensity, crash) {
            Budget::Pays { spent } => Ok(format!("budget of {supervisor}: {spent} of {} spent", budget(intensity))),
            Budget::Unlimited => Ok(format!("budget of {supervisor}: unlimited")),
            Budget::Spent { crashes, within } => {
                let message = format!("{crashes} crashes in {}", human(within));
                let mut earlier: Vec<_> = owner.window.crashes.iter().map(|crash| crash.cause.clone()).collect();
                earlier.pop(); // The last is the cause itself.
                Err(Escalation { message, cause, earlier })
            }
        }
    }

    /// A supervisor's budget is spent (or a rule says so): it stops its children and then fails.
    pub fn escalate(&mut self, path: &Path, escalation: Escalation) {
        let Escalation { message, cause, earlier } = escalation;
        let outer = Arc::new(cause.as_ref().clone().below(escalated(path, message.clone())));
        let decision = match path.parent() {
            Some(parent) => format!("stops its children and fails; {parent} decides"),
            None => "stops its children and fails; waits for an operator".to_owned(),
        };
        let text = format!("{path} escalates: {outer}");
        self.event(EventKind::Escalated, Some(path), None, text);
        let wall = self.wall;
        let payer = "its own budget is spent".to_owned();
        let entry = HistoryEntry {
            cause: outer.clone(),
            charged: false,
            payer,
            decision,
            count: 1,
            first: wall,
            last: wall,
            earlier,
        };
        self.record(path, entry);
        self.stop_supervisor(path, Then::Fail(outer));
    }

    /// Records what was decided about an ending.
    pub fn note(&mut self, path: &Path, cause: &Arc<CauseChain>, charged: bool, payer: String, decision: String) {
        let wall = self.wall;
        let entry = HistoryEntry {
            cause: cause.clone(),
            charged,
            payer,
            decision,
            count: 1,
            first: wall,
            last: wall,
            earlier: Vec::new(),
        };
        self.record(path, entry);
    }

    /// A child ended for good by itself: ends the supervisor with it where its `auto_shutdown` says so.
    pub fn significant_ended(&mut self, path: &Path) {
        let supervisor = self.supervisor(path);
        if !supervisor.is_up() || supervisor.auto_shutdown == AutoShutdown::Never {
            return;
        }
        let auto = supervisor.auto_shutdown;
        let children = supervisor.children.clone();
        let significant: Vec<_> =
            children.iter().map(|id| path.child(id)).filter(|child| self.member(child).significant).collect();
        let ended: Vec<_> = significant.iter().filter(|child| is_finished(self.member(child))).collect();
        let over = match auto {
            AutoShutdown::Never => false,
            AutoShutdown::AnySignificant => !ended.is_empty(),
            AutoShutdown::AllSignificant => !significant.is_empty() && ended.len() == significant.len(),
        };
        if over {
            let names: Vec<_> = ended.iter().map(ToString::to_string).collect();
            let mut cause = escalated(path, format!("significant children ended: {}", names.join(", ")));
            cause.class = CauseClass::AutoShutdown;
            self.stop_supervisor(path, Then::End(chain(cause)));
        }
    }

    /// Forgets a removed member that is down, and all below it; goes on with what waited for that.
    pub fn forget(&mut self, path: &Path) {
        for gone in self.cluster.walk(path) {
            self.cluster.members.remove(&gone);
        }
        let Some(parent) = path.parent() else {
            let tree = path.tree();
            self.cluster.trees.remove(&tree);
            return self.event(EventKind::TreeDeleted, Some(path), None, format!("tree {tree} is gone"));
        };
        let name = path.name().to_owned();
        let supervisor = self.supervisor(&parent);
        supervisor.children.retain(|id: &ChildId| id.as_str() != name);
        if supervisor.is_stopping() {
            self.advance_stop(&parent);
        }
    }
}

fn is_finished(member: &Member) -> bool {
    match &member.body {
        Body::Process(process) => matches!(process.phase, ProcessPhase::Down(DownReason::Finished)),
        Body::Supervisor(supervisor) => matches!(supervisor.phase, SupervisorPhase::Down(DownReason::Finished)),
    }
}

/// Why a supervisor fails.
pub(crate) struct Escalation {
    /// `6 crashes in 10 s`.
    pub message: String,
    /// The last of them.
    pub cause: Arc<CauseChain>,
    /// The ones before it.
    pub earlier: Vec<Arc<CauseChain>>,
}

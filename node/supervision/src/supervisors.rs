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
//! Children start in parallel, or in order where they form a group; they stop one after the other, the last started first.

use std::sync::Arc;
use std::time::Duration;

use pando_protocol::cause::{CauseChain, CauseClass};
use pando_protocol::ids::Path;
use pando_protocol::spec::{AutoShutdown, Restart};

use crate::change::{Change, budget, chain, escalated, human};
use crate::cluster::{Body, DownReason, Group, HistoryEntry, Member, Pending, ProcessPhase, SupervisorPhase, Then};
use crate::command::EventKind;
use crate::mutation::{Mutation, broken};
use crate::restarts::{Budget, Crash, Window, delay, dice};

/// Crashes that the record of an escalation keeps of those in the window before it, the newest. A budget may count a thousand,
/// and a history keep a hundred such records.
pub const EARLIER_KEPT: usize = 20;

impl Change<'_> {
    /// Starts a member that is down, and all below it, unless an operator stopped it.
    pub fn start(&mut self, path: &Path) {
        self.start_after(path, Duration::ZERO);
    }

    /// The same, where a process is not placed before `brake` from now; what is below a supervisor is held back on its own.
    fn start_after(&mut self, path: &Path, brake: Duration) {
        let member = self.member(path);
        if member.removed {
            return;
        }
        let held = member.held && !broken(Mutation::HoldForgotten);
        match &mut member.body {
            Body::Process(process) => match process.phase {
                ProcessPhase::Assigned(_) | ProcessPhase::Pending(_) => {}
                ProcessPhase::Down(_) if held => process.phase = ProcessPhase::Down(DownReason::Held),
                ProcessPhase::Down(_) => self.wait_for_place(path, brake),
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
        supervisor.phase = SupervisorPhase::Up { since, group: Group::Settled };
        if !broken(Mutation::WindowSurvivesRestart) {
            supervisor.window = Window::default();
        }
        let children = supervisor.children.clone();
        self.event(EventKind::SupervisorStarted, Some(path), None, format!("{path} is up"));
        self.unsettled.insert(path.clone());
        self.room_changed = true; // What ended below it counts otherwise from here on for what has to move together.
        for id in &children {
            self.forget_failures(&path.child(id));
        }
        if self.is_group(path) {
            return self.begin_group(path);
        }
        let brakes = self.brakes_of_a_start(children.len());
        for (id, brake) in children.iter().zip(brakes) {
            self.start_after(&path.child(id), brake);
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
        let not_before = self.now().saturating_add(after);
        let pending = self.enqueue(path, not_before);
        self.process(path).phase = ProcessPhase::Pending(pending);
    }

    /// The last place in the queue of those that wait for places, for a child or the next generation of a group.
    pub fn enqueue(&mut self, path: &Path, not_before: Duration) -> Pending {
        let order = self.cluster.head.next_order;
        self.cluster.head.next_order += 1;
        self.cluster.pending.insert((order, path.clone()));
        if not_before <= self.now() {
            self.to_place.insert((order, path.clone()));
        } else {
            self.cluster.timers.insert((not_before, path.clone()));
        }
        Pending { order, not_before, waits_for: None }
    }

    /// Takes a child, or the next generation of a group, out of the queue for places.
    pub fn stop_waiting(&mut self, path: &Path) {
        let Some(pending) = self.cluster.pending_at(path).cloned() else { return };
        self.cluster.pending.remove(&(pending.order, path.clone()));
        self.to_place.remove(&(pending.order, path.clone()));
        self.cluster.timers.remove(&(pending.not_before, path.clone()));
    }

    /// A supervisor has failed and everything below it is down: its own supervisor decides.
    pub fn failed(&mut self, path: &Path, cause: Arc<CauseChain>, was_up: Duration) {
        let Some(parent) = path.parent() else {
            self.release_places_below(path);
            self.supervisor(path).phase = SupervisorPhase::Failed(cause.clone());
            let text = format!("tree {} has failed and waits for an operator: {cause}", path.tree());
            return self.event(EventKind::TreeFailed, Some(path), None, text);
        };
        if self.member(path).restart == Restart::Temporary {
            let payer = "nobody: a temporary child is never restarted".to_owned();
            self.conclude(path, &cause, false, payer, "not restarted".into());
            self.set_down(path, DownReason::Finished);
            return self.significant_ended(path);
        }
        self.restart_supervisor(path, &parent, cause, was_up);
    }

    /// A supervisor ended with its significant children: like a process that exited normally.
    pub fn ended(&mut self, path: &Path, cause: Arc<CauseChain>, was_up: Duration) {
        self.event(EventKind::SupervisorEnded, Some(path), None, format!("{path} ended: {cause}"));
        match (path.parent(), self.member(path).restart) {
            (Some(parent), Restart::Permanent) => self.restart_supervisor(path, &parent, cause, was_up),
            (_, _) => {
                let payer = "nobody: it ended by itself and is not restarted".to_owned();
                self.conclude(path, &cause, false, payer, "not restarted".into());
                self.set_down(path, DownReason::Finished);
                self.significant_ended(path);
            }
        }
    }

    fn restart_supervisor(&mut self, path: &Path, parent: &Path, cause: Arc<CauseChain>, was_up: Duration) {
        let member = self.member(path);
        if was_up >= member.backoff.reset_after {
            member.delays = 0;
            member.at_cap = 0;
        }
        if self.is_paid_for(parent) {
            let payer = "nobody: its group restarts already, and that is paid for".to_owned();
            let wait = self.unpaid_delay(path);
            self.conclude(path, &cause, false, payer, self.group_decision(path, wait));
            return self.restart_group(parent, path, wait, true);
        }
        match self.charge(parent, path, cause.clone()) {
            Ok(payer) if self.is_group(parent) => {
                let wait = self.next_delay(path, &cause);
                self.conclude(path, &cause, true, payer, self.group_decision(path, wait));
                self.restart_group(parent, path, wait, true);
            }
            Ok(payer) => {
                let wait = self.next_delay(path, &cause);
                self.conclude(path, &cause, true, payer, format!("starts again after {}", human(wait)));
                let until = self.now().saturating_add(wait);
                self.supervisor(path).phase = SupervisorPhase::Delayed { until };
                self.cluster.timers.insert((until, path.clone()));
            }
            Err(escalation) => {
                let payer = format!("budget of {parent}, which is spent");
                self.conclude(path, &cause, true, payer, format!("escalated to {parent}"));
                self.escalate(parent, escalation);
            }
        }
    }

    /// Takes the delay before the next restart of a member, and counts that restart by what ended the member.
    pub fn next_delay(&mut self, path: &Path, cause: &CauseChain) -> Duration {
        let now = self.now();
        let stir = self.cluster.head.next_incarnation;
        let member = self.member(path);
        let wait = delay(&member.backoff, member.delays, dice(path, stir));
        member.at_cap = if member.backoff.is_at_cap(member.delays) { member.at_cap + 1 } else { 0 };
        member.delays = member.delays.saturating_add(1);
        member.unpaid = 0;
        // Of several levels about itself (its own budget is spent, too) the innermost is the ending.
        if let Some(own) = cause.levels.iter().rfind(|level| level.path == *path) {
            *member.restarts.entry(own.class).or_default() += 1;
        }
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
        let Escalation { message, cause, mut earlier } = escalation;
        earlier.drain(..earlier.len().saturating_sub(EARLIER_KEPT));
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

    /// A child ended for good by itself: ends its supervisor with it where that one's `auto_shutdown` says so.
    pub fn significant_ended(&mut self, child: &Path) {
        let Some(path) = child.parent() else { return };
        if !self.member(child).significant || !self.supervisor(&path).is_up() {
            return;
        }
        let supervisor = self.supervisor(&path);
        let (auto, children) = (supervisor.auto_shutdown, supervisor.children.clone());
        // One that a new spec took out counts no more, though its process may still be stopping.
        let counts = |member: &Member| member.significant && !member.removed;
        let significant: Vec<_> =
            children.iter().map(|id| path.child(id)).filter(|child| counts(self.member(child))).collect();
        let ended: Vec<_> = significant.iter().filter(|child| is_finished(self.member(child))).collect();
        let is_over = match auto {
            AutoShutdown::Never => false,
            AutoShutdown::AnySignificant => true,
            AutoShutdown::AllSignificant => ended.len() == significant.len(),
        };
        if is_over && !broken(Mutation::SignificantIgnored) {
            let names: Vec<_> = ended.iter().map(ToString::to_string).collect();
            let mut cause = escalated(&path, format!("significant children ended: {}", names.join(", ")));
            cause.class = CauseClass::AutoShutdown;
            self.stop_supervisor(&path, Then::End(chain(cause)));
        }
    }
}

fn is_finished(member: &Member) -> bool {
    match &member.body {
        Body::Process(process) => process.has_finished(),
        Body::Supervisor(supervisor) => supervisor.has_finished(),
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

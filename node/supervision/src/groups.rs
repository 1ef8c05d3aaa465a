//! Groups: what the strategies `one_for_all` and `rest_for_one` do when a member ends. Design section 5.3.
//!
//! ```text
//!             a member ends               all of them ended               places for all             each is ready
//!   Settled ────────────────► TakingDown ──────────────────► Pending ────────────────► Starting ─────────────────► Settled
//!                               │    ▲                          │                          │
//!                               └────┴──── an earlier one ends ─┴────── a member ends ─────┘
//! ```
//!
//! The next generation starts only when the former is known to have ended, on whatever nodes it ran. What a group does next is
//! derived from what its members are, each time one of them changed: nothing here is remembered to be done later.

use std::time::Duration;

use pando_protocol::ids::Path;
use pando_protocol::spec::{Restart, Strategy};

use crate::change::{Change, human};
use crate::cluster::{
    Body, Cluster, DownReason, Group, Member, Pending, Process, ProcessPhase, Stage, StopReason, Supervisor,
    SupervisorPhase,
};
use crate::command::EventKind;
use crate::mutation::{Mutation, broken};

impl Change<'_> {
    /// Starts the first generation of a supervisor that has just come up.
    pub fn begin_group(&mut self, path: &Path) {
        for id in self.supervisor(path).children.clone() {
            let child = path.child(&id);
            if !self.member(&child).removed {
                self.set_down(&child, DownReason::Supervisor);
            }
        }
        self.await_generation(path, self.now());
    }

    /// A member of a group ended: takes down what the strategy says, and starts all of that again, not before `after` from now.
    /// Widens a restart that is under way. `charged` says whether a budget paid.
    pub fn restart_group(&mut self, path: &Path, ended: &Path, after: Duration, charged: bool) {
        let mut not_before = self.now().saturating_add(after);
        let mut charged = charged;
        let supervisor = self.supervisor(path);
        let children = &supervisor.children;
        let at = |id: &str| children.iter().position(|child| child.as_str() == id).unwrap_or(children.len());
        let mut first = match supervisor.strategy {
            Strategy::OneForAll if !broken(Mutation::AllIsOne) => 0,
            Strategy::OneForAll | Strategy::RestForOne | Strategy::OneForOne => at(ended.name()),
        };
        match supervisor.group() {
            Some(Group::TakingDown { from, not_before: earlier, charged: paid }) => {
                first = first.min(at(from.as_str()));
                not_before = not_before.max(*earlier);
                charged |= paid;
            }
            Some(Group::Pending(pending)) => not_before = not_before.max(pending.not_before),
            Some(Group::Starting | Group::Settled) | None => {}
        }
        let Some(from) = children.get(first).cloned() else { return };
        let taken =
            children.iter().skip(first).map(pando_protocol::ids::ChildId::as_str).collect::<Vec<_>>().join(", ");
        let text = format!("{path} restarts {taken}: {ended} ended");
        self.stop_waiting(path);
        self.set_group(path, Group::TakingDown { from, not_before, charged });
        self.event(EventKind::GroupRestarts, Some(path), None, text);
    }

    /// Whether a group restart that is under way takes a child down.
    pub fn is_taken_down(&self, child: &Path) -> bool {
        let above = child.parent().and_then(|parent| self.cluster.supervisor(&parent));
        above.is_some_and(|supervisor| supervisor.taken_down().iter().any(|id| id.as_str() == child.name()))
    }

    /// Whether that is so of a child or of a supervisor above it.
    pub fn is_taken_down_with(&self, child: &Path) -> bool {
        let mut at = Some(child.clone());
        while let Some(path) = at {
            if self.is_taken_down(&path) {
                return true;
            }
            at = path.parent();
        }
        false
    }

    /// Whether the children of a supervisor stand and fall together.
    pub fn is_group(&self, path: &Path) -> bool {
        self.cluster.supervisor(path).is_some_and(|supervisor| supervisor.strategy.is_group())
    }

    /// Whether a group restart that is under way was paid for: another ending of the old generation costs nothing more.
    pub fn is_paid_for(&self, path: &Path) -> bool {
        let group = self.cluster.supervisor(path).and_then(Supervisor::group);
        matches!(group, Some(Group::TakingDown { charged: true, .. })) && !broken(Mutation::GroupChargesTwice)
    }

    /// Starts a member that is down: at once, or in its turn where its supervisor starts its children in order.
    pub fn start_in_turn(&mut self, path: &Path) {
        let Some(parent) = path.parent().filter(|parent| self.is_group(parent)) else { return self.start(path) };
        if !self.member(path).is_down() || self.member(path).removed {
            return;
        }
        self.set_down(path, DownReason::Supervisor);
        if self.supervisor(&parent).group() == Some(&Group::Settled) {
            self.set_group(&parent, Group::Starting);
        }
    }

    /// A supervisor whose strategy is `one_for_one` from now on starts what waited for its turn.
    pub fn disband(&mut self, path: &Path) {
        match self.supervisor(path).group() {
            Some(Group::Pending(_) | Group::Starting) => {
                self.end_waiting(path);
                self.start_all(path, Duration::ZERO);
            }
            Some(Group::Settled | Group::TakingDown { .. }) | None => {}
        }
    }

    /// A group waits no longer, and no room is kept for it.
    pub fn end_waiting(&mut self, path: &Path) {
        self.stop_waiting(path);
        if self.supervisor(path).is_up() {
            self.set_group(path, Group::Settled);
        }
        self.release_places_below(path);
    }

    /// The next step of each group that a changed member belongs to.
    pub fn advance_groups(&mut self, changed: &Path) {
        let mut at = Some(changed.clone());
        while let Some(path) = at {
            match self.cluster.supervisor(&path).and_then(Supervisor::group) {
                Some(Group::TakingDown { .. }) => self.take_down(&path),
                Some(Group::Starting) => self.start_next(&path),
                Some(Group::Settled | Group::Pending(_)) | None => {}
            }
            at = path.parent();
        }
    }

    /// Stops the last member that still runs; when there is none, the next generation may come.
    fn take_down(&mut self, path: &Path) {
        let members = self.supervisor(path).taken_down().to_vec();
        for id in members.iter().rev() {
            if !self.stop_child(&path.child(id), StopReason::Group) && !broken(Mutation::GenerationsOverlap) {
                return;
            }
        }
        let Some(Group::TakingDown { not_before, .. }) = self.supervisor(path).group().cloned() else { return };
        // Where a node refused to start one of them, all of them are placed anew, so that those which stay together can move.
        let members: Vec<Path> = members.iter().map(|id| path.child(id)).collect();
        if members.iter().any(|member| self.was_refused(member)) {
            members.iter().for_each(|member| self.release_places_below(member));
        }
        for member in &members {
            self.revive(member);
        }
        if self.is_group(path) {
            return self.await_generation(path, not_before);
        }
        self.set_group(path, Group::Settled);
        self.start_all(path, not_before.saturating_sub(self.now()));
    }

    fn was_refused(&self, member: &Path) -> bool {
        self.cluster.process(member).is_some_and(|process| !process.refused_by.is_empty())
    }

    /// One that ended for good starts again with its group, unless it is temporary.
    fn revive(&mut self, path: &Path) {
        let member = self.member(path);
        if is_down_for(member, DownReason::Finished) && member.restart != Restart::Temporary && !member.removed {
            self.set_down(path, DownReason::Supervisor);
        }
    }

    fn start_all(&mut self, path: &Path, after: Duration) {
        for id in self.supervisor(path).children.clone() {
            let child = path.child(&id);
            if !is_down_for(self.member(&child), DownReason::Supervisor) || self.member(&child).removed {
                continue;
            }
            match (&self.member(&child).body, after) {
                (Body::Process(_), _) => self.wait_for_place(&child, after),
                (Body::Supervisor(_), _) => self.start(&child),
            }
        }
    }

    fn await_generation(&mut self, path: &Path, not_before: Duration) {
        let pending = self.enqueue(path, not_before);
        self.set_group(path, Group::Pending(pending));
    }

    /// Finds places for all members that are to start, and begins with the first; or says what is missing.
    pub fn place_group(&mut self, path: &Path) -> Result<(), String> {
        self.keep_places(path)?;
        self.stop_waiting(path);
        self.set_group(path, Group::Starting);
        Ok(())
    }

    /// Starts the first member that waits for its turn, once all before it are settled.
    fn start_next(&mut self, path: &Path) {
        for id in self.supervisor(path).children.clone() {
            let child = path.child(&id);
            if is_startable(self.cluster, &child) {
                self.start(&child);
                if !broken(Mutation::GroupStartsAtOnce) {
                    return;
                }
            } else if !is_settled(self.cluster, &child) {
                return;
            }
        }
        self.set_group(path, Group::Settled);
        let text = format!("{path}: all of its group have started");
        self.event(EventKind::GroupStarted, Some(path), None, text);
    }

    fn set_group(&mut self, path: &Path, group: Group) {
        if let SupervisorPhase::Up { group: known, .. } = &mut self.supervisor(path).phase {
            *known = group;
        }
        self.unsettled.insert(path.clone());
    }

    /// What is written into the history of a member whose group restarts for its sake.
    pub fn group_decision(&self, path: &Path, after: Duration) -> String {
        let group = path.parent().unwrap_or_else(|| path.clone());
        if after.is_zero() {
            format!("{group} restarts with it at once")
        } else {
            format!("{group} restarts with it after {}", human(after))
        }
    }
}

/// Whether a member waits for nothing but its turn.
pub(crate) fn is_startable(cluster: &Cluster, path: &Path) -> bool {
    cluster
        .member(path)
        .is_some_and(|member| !member.removed && !member.held && is_down_for(member, DownReason::Supervisor))
}

fn is_down_for(member: &Member, reason: DownReason) -> bool {
    match &member.body {
        Body::Process(process) => process.phase == ProcessPhase::Down(reason),
        Body::Supervisor(supervisor) => supervisor.phase == SupervisorPhase::Down(reason),
    }
}

/// Whether the members after this one may start: it is ready, all below it is, or it is down on purpose.
pub(crate) fn is_settled(cluster: &Cluster, path: &Path) -> bool {
    let Some(member) = cluster.member(path) else { return true };
    match &member.body {
        _ if member.removed => true,
        Body::Process(Process { phase, .. }) => match phase {
            ProcessPhase::Down(DownReason::Supervisor) | ProcessPhase::Pending(Pending { .. }) => false,
            ProcessPhase::Down(DownReason::Held | DownReason::Finished | DownReason::Rule) => true,
            ProcessPhase::Assigned(run) => matches!(run.stage, Stage::Ready { .. }) && run.stopping.is_none(),
        },
        Body::Supervisor(Supervisor { phase, children, .. }) => match phase {
            SupervisorPhase::Up { group: Group::Settled, .. } => {
                children.iter().all(|id| is_settled(cluster, &path.child(id)))
            }
            SupervisorPhase::Down(DownReason::Held | DownReason::Finished | DownReason::Rule) => true,
            SupervisorPhase::Down(DownReason::Supervisor)
            | SupervisorPhase::Up { .. }
            | SupervisorPhase::Delayed { .. }
            | SupervisorPhase::Stopping { .. }
            | SupervisorPhase::Failed(_) => false,
        },
    }
}

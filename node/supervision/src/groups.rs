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

use std::collections::BTreeSet;
use std::time::Duration;

use pando_protocol::ids::{NodeName, Path};
use pando_protocol::spec::{Restart, Strategy};

use crate::change::{Change, human};
use crate::cluster::{
    Body, Cluster, DownReason, Group, Member, Pending, Process, ProcessPhase, Stage, StopReason, Supervisor,
    SupervisorPhase,
};
use crate::command::EventKind;
use crate::mutation::{Mutation, broken};
use crate::places::collect;
use crate::restarts::{delay, dice};

impl Change<'_> {
    /// Starts the first generation of a supervisor that has just come up.
    pub fn begin_group(&mut self, path: &Path) {
        for id in self.supervisor(path).children.clone() {
            let child = path.child(&id);
            if !self.member(&child).removed {
                self.set_down(&child, DownReason::Supervisor);
            }
        }
        self.await_generation(path, self.now(), false);
    }

    /// A member of a group ended: takes down what the strategy says, and starts all of that again, not before `after` from now.
    /// Widens a restart that is under way. `charged` says whether a budget paid.
    pub fn restart_group(&mut self, path: &Path, ended: &Path, after: Duration, charged: bool) {
        self.restart_group_for(path, ended, "ended", after, charged);
    }

    /// The same for a member that has not ended, for the reason `why`.
    pub fn restart_group_for(&mut self, path: &Path, ended: &Path, why: &str, after: Duration, charged: bool) {
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
            Some(Group::Pending { pending, charged: paid }) => {
                not_before = not_before.max(pending.not_before);
                charged |= paid;
            }
            Some(Group::Starting | Group::Settled) | None => {}
        }
        let Some(from) = children.get(first).cloned() else { return };
        let taken =
            children.iter().skip(first).map(pando_protocol::ids::ChildId::as_str).collect::<Vec<_>>().join(", ");
        let text = format!("{path} restarts {taken}: {ended} {why}");
        self.stop_waiting(path);
        self.set_group(path, Group::TakingDown { from, not_before, charged });
        self.event(EventKind::GroupRestarts, Some(path), None, text);
    }

    /// The next generation of the group that takes a child down, be it with a supervisor above it, does not start before what is
    /// left of that child's own delay is over.
    pub fn delay_group(&mut self, child: &Path, owed: Duration) {
        if owed.is_zero() {
            return;
        }
        let earliest = self.now().saturating_add(owed);
        let with = std::iter::successors(Some(child.clone()), Path::parent).find(|with| self.is_taken_down(with));
        let Some(parent) = with.and_then(|with| with.parent()) else { return };
        if let SupervisorPhase::Up { group: Group::TakingDown { not_before, .. }, .. } =
            &mut self.supervisor(&parent).phase
        {
            *not_before = earliest.max(*not_before);
        }
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

    /// Whether a group restart that is under way was paid for: until the next generation begins another ending of the old one
    /// costs nothing more.
    pub fn is_paid_for(&self, path: &Path) -> bool {
        match self.cluster.supervisor(path).and_then(Supervisor::group) {
            Some(Group::TakingDown { charged, .. }) => *charged && !broken(Mutation::GroupChargesTwice),
            Some(Group::Pending { charged, .. }) => *charged && !broken(Mutation::WaitingGroupChargesAgain),
            Some(Group::Settled | Group::Starting) | None => false,
        }
    }

    /// How long a group waits for a member whose ending costs nothing: no restart is without a delay, and the one that was paid for
    /// may have waited out its own already.
    pub fn unpaid_delay(&mut self, path: &Path) -> Duration {
        let stir = self.cluster.head.next_incarnation;
        delay(&self.member(path).backoff, 0, dice(path, stir))
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
            Some(Group::Pending { .. } | Group::Starting) => {
                self.stop_waiting(path);
                self.set_group(path, Group::Settled);
                self.release_new_places_below(path);
                self.start_all(path, Duration::ZERO);
            }
            Some(Group::Settled | Group::TakingDown { .. }) | None => {}
        }
    }

    /// The next step of each group that a changed member belongs to.
    pub fn advance_groups(&mut self, changed: &Path) {
        let mut at = Some(changed.clone());
        while let Some(path) = at {
            match self.cluster.supervisor(&path).and_then(Supervisor::group) {
                Some(Group::TakingDown { .. }) => self.take_down(&path),
                Some(Group::Starting) => self.start_next(&path),
                Some(Group::Settled | Group::Pending { .. }) | None => {}
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
        let Some(Group::TakingDown { not_before, charged, .. }) = self.supervisor(path).group().cloned() else {
            return;
        };
        let members: Vec<Path> = members.iter().map(|id| path.child(id)).collect();
        self.leave_what_refused(&members);
        for member in &members {
            self.revive(member);
        }
        if self.is_group(path) {
            return self.await_generation(path, not_before, charged);
        }
        self.set_group(path, Group::Settled);
        self.start_all(path, not_before.saturating_sub(self.now()));
    }

    /// Where a node refused to start one of these, those that have places there are placed anew, so that all which stay together
    /// can move.
    fn leave_what_refused(&mut self, members: &[Path]) {
        let refused = members.iter().filter_map(|member| self.cluster.process(member));
        let refused: BTreeSet<NodeName> = refused.flat_map(|process| process.refused_by.iter().cloned()).collect();
        if refused.is_empty() {
            return;
        }
        for path in members.iter().flat_map(|member| self.cluster.walk(member)).collect::<Vec<_>>() {
            let place = self.cluster.process(&path).and_then(|process| process.place.as_ref());
            // A way back is used only where no other node can take it.
            if place.is_some_and(|place| refused.contains(&place.node)) && !self.keeps_way_back(&path) {
                self.release_place(&path);
            }
        }
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

    fn await_generation(&mut self, path: &Path, not_before: Duration, charged: bool) {
        let pending = self.enqueue(path, not_before);
        self.set_group(path, Group::Pending { pending, charged });
    }

    /// Finds places for all members that are to start, and begins with the first; or says what is missing.
    pub fn place_group(&mut self, path: &Path) -> Result<(), String> {
        self.keep_places(path)?;
        self.room_changed = true; // What waits before these may go back with them, so that they need not wait for it.
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

/// The processes that start again where a member has to end: it alone, or what its group takes down and starts with it.
pub(crate) fn restarting_with(cluster: &Cluster, path: &Path) -> Vec<Path> {
    let Some(parent) = path.parent() else { return Vec::new() };
    let Some(supervisor) = cluster.supervisor(&parent) else { return Vec::new() };
    let taken = supervisor.children.iter().map(|id| parent.child(id));
    let taken: Vec<Path> = match supervisor.strategy {
        Strategy::OneForOne => return vec![path.clone()],
        Strategy::OneForAll => taken.collect(),
        Strategy::RestForOne => taken.skip_while(|member| member != path).collect(),
    };
    let mut found = Vec::new();
    for member in taken.iter().filter(|member| returns_with_its_group(cluster, member)) {
        collect(cluster, member, &mut found);
    }
    found
}

/// Whether a member that its group takes down starts again with it: a temporary one only where it had not started yet.
pub(crate) fn returns_with_its_group(cluster: &Cluster, path: &Path) -> bool {
    let Some(member) = cluster.member(path) else { return false };
    let is_waiting = match &member.body {
        Body::Process(process) => {
            matches!(process.phase, ProcessPhase::Pending(_) | ProcessPhase::Down(DownReason::Supervisor))
        }
        Body::Supervisor(supervisor) => {
            matches!(supervisor.phase, SupervisorPhase::Delayed { .. } | SupervisorPhase::Down(DownReason::Supervisor))
        }
    };
    is_waiting || (member.restart != Restart::Temporary && !is_down_for(member, DownReason::Rule))
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

//! Who should pay for an ending: the table of the design, written down a second time and naively.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pando_protocol::cause::{Exit, ExitHow};
use pando_protocol::ids::{NodeName, Path};
use pando_protocol::session::Observation;
use pando_protocol::spec::{ExitAction, ExitMatch, ProcessSpec, Restart, Strategy};
use pando_supervision::cluster::{DownReason, Group, ProcessPhase, Run, Supervisor};
use pando_supervision::{Applied, Cluster, Command, Event, EventKind};

/// A command between two states.
#[derive(Clone, Copy)]
pub struct Step<'a> {
    /// The state before.
    pub before: &'a Cluster,
    /// What was asked.
    pub command: &'a Command,
    /// The state after.
    pub after: &'a Cluster,
}

impl<'a> Step<'a> {
    /// Cluster time.
    pub fn now(&self) -> Duration {
        self.after.head.now
    }

    /// The runner's word in it, where it is a new one of a session that is not over.
    pub fn word(&self) -> Option<&'a Observation> {
        let Command::Observe { node, session, number, observation } = self.command else { return None };
        let standing = self.before.session(node, *session)?;
        (*number == standing.observed + 1).then_some(observation)
    }

    /// The child and the run that the word is about, where that run counts as running under that session.
    pub fn meant(&self) -> Option<(&'a Path, &'a Run)> {
        let Command::Observe { node, session, .. } = self.command else { return None };
        let (path, incarnation) = match self.word()? {
            Observation::Started { path, incarnation, .. }
            | Observation::Ready { path, incarnation }
            | Observation::Exited { path, incarnation, .. }
            | Observation::NeverStarted { path, incarnation }
            | Observation::Stopping { path, incarnation }
            | Observation::WorkerReady { path, incarnation, .. } => (path, *incarnation),
            Observation::Leaving | Observation::Left | Observation::Kept { .. } | Observation::Settled(_) => {
                return None;
            }
        };
        let run = self.before.run(path)?;
        let is_meant = run.incarnation == incarnation && run.node == *node && run.session == *session;
        is_meant.then_some((path, run))
    }
}

/// What an ending should cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// The child that ended.
    pub path: Path,
    /// Whether a budget pays.
    pub charged: bool,
    /// Whether a rule of `on_exit` escalates at once.
    pub escalates: bool,
    /// Whether nobody pays only because its group restarts already, and that was paid for.
    pub paid_before: bool,
}

/// What must be remembered to know who pays.
#[derive(Debug, Clone, Default)]
pub struct Payers {
    unpaid: BTreeMap<Path, u32>,
    refused: BTreeMap<Path, BTreeSet<NodeName>>,
    /// Groups that restart, where something was charged since the generation that ends began.
    paid: BTreeSet<Path>,
}

impl Payers {
    /// A child begins anew.
    pub fn forget(&mut self, path: &Path) {
        self.unpaid.remove(path);
        self.refused.remove(path);
    }

    /// The ending that a step reports, with what it should cost; `None` where it reports none.
    pub fn expected(&mut self, step: Step<'_>) -> Option<Expected> {
        let (path, run) = step.meant()?;
        let free = Expected { path: path.clone(), charged: false, escalates: false, paid_before: false };
        match step.word()? {
            Observation::Started { .. } => {
                self.refused.remove(path);
                None
            }
            Observation::NeverStarted { .. } => run.stopping.is_some().then_some(free),
            Observation::Exited { exit, started, .. } if message_pays(step, path, run, started) => {
                let escalates = rule(exit, &step.before.process(path)?.spec) == Some(ExitAction::Escalate);
                Some(Expected { charged: escalates, escalates, ..free })
            }
            Observation::Exited { exit, .. } => {
                let would_be = self.charged(step, path, run, exit);
                let escalates = would_be && rule(exit, &step.before.process(path)?.spec) == Some(ExitAction::Escalate);
                let paid_before = would_be && !escalates && self.is_paid_for(path);
                Some(Expected { charged: would_be && !paid_before, escalates, paid_before, ..free })
            }
            Observation::Ready { .. }
            | Observation::Stopping { .. }
            | Observation::Leaving
            | Observation::Left
            | Observation::Kept { .. }
            | Observation::WorkerReady { .. }
            | Observation::Settled(_) => None,
        }
    }

    /// Whether the restart of the group of a member is under way and paid for.
    pub fn is_paid_for(&self, member: &Path) -> bool {
        member.parent().is_some_and(|group| self.paid.contains(&group))
    }

    /// Takes what was charged into the books of the groups that restart for it. A restart is over once its next generation begins.
    pub fn note_charged(&mut self, step: Step<'_>, applied: &Applied, charged: &[Path], expected: Option<&Expected>) {
        let begins = |event: &&Event| event.kind == EventKind::SupervisorStarted;
        for path in applied.events.iter().filter(begins).filter_map(|event| event.path.as_ref()) {
            self.paid.remove(path);
        }
        let restarts = |group: &Path| {
            let group = step.after.supervisor(group).and_then(Supervisor::group);
            matches!(group, Some(Group::TakingDown { .. } | Group::Pending { .. }))
        };
        self.paid.retain(|group| restarts(group));
        // A charge in what is no group any more, while it still takes down what it was, is for one child alone.
        let is_group = |group: &Path| step.after.supervisor(group).is_some_and(|group| group.strategy.is_group());
        for path in charged {
            // What is charged late is no reason to restart.
            let in_time = step.after.process(path).is_none() || expected.is_some_and(|one| one.path == *path);
            self.paid.extend(path.parent().filter(|group| in_time && restarts(group) && is_group(group)));
        }
    }

    /// Whether a budget would pay, were the restart of its group not paid for.
    fn charged(&mut self, step: Step<'_>, path: &Path, run: &Run, exit: &Exit) -> bool {
        let (Some(member), Some(process)) = (step.before.member(path), step.before.process(path)) else { return false };
        if exit.healthy.is_some_and(|healthy| healthy >= member.backoff.reset_after) {
            self.unpaid.remove(path);
        }
        let parent_up = path.parent().and_then(|parent| step.before.supervisor(&parent)).is_some_and(Supervisor::is_up);
        let group = path.parent().and_then(|parent| step.before.supervisor(&parent));
        let own_end = member.restart == Restart::Temporary && run.stopping.is_none();
        let is_taken_down =
            !own_end && group.is_some_and(|group| group.taken_down().iter().any(|id| id.as_str() == path.name()));
        if member.removed || member.held || !parent_up || is_taken_down {
            return false;
        }
        if self.is_paid_for(path) && rule(exit, &process.spec) != Some(ExitAction::Escalate) {
            return self.would_be_charged(step.before, path, run, exit);
        }
        let charged = match &exit.how {
            _ if run.stopping.is_some() => return false,
            ExitHow::ReaperLost if member.restart == Restart::Temporary => return false,
            ExitHow::ReaperLost => self.fourth_unpaid(path),
            ExitHow::StartFailed(_) if member.restart == Restart::Temporary => return false,
            ExitHow::StartFailed(_) => self.refused_enough(step.before, path, run, &process.spec),
            ExitHow::Unready(_) | ExitHow::Hung(_) | ExitHow::Idle(_) | ExitHow::Misbehaved(_) => {
                return member.restart != Restart::Temporary && self.paid(path);
            }
            ExitHow::Code(_) | ExitHow::Signal(_) => {
                return by_itself(exit, &process.spec, member.restart) && self.paid(path);
            }
        };
        if charged {
            return self.paid(path);
        }
        *self.unpaid.entry(path.clone()).or_default() += 1;
        false
    }

    /// What is remembered of an ending that costs nothing, because the restart of its group is paid for already; whether a budget
    /// would have paid.
    fn would_be_charged(&mut self, cluster: &Cluster, path: &Path, run: &Run, exit: &Exit) -> bool {
        let (Some(member), Some(process)) = (cluster.member(path), cluster.process(path)) else { return false };
        if run.stopping.is_some() || member.restart == Restart::Temporary {
            return false;
        }
        let charged = match &exit.how {
            ExitHow::ReaperLost => self.fourth_unpaid(path),
            ExitHow::StartFailed(_) => self.refused_enough(cluster, path, run, &process.spec),
            ExitHow::Unready(_) | ExitHow::Hung(_) | ExitHow::Idle(_) | ExitHow::Misbehaved(_) => return true,
            ExitHow::Code(_) | ExitHow::Signal(_) => return by_itself(exit, &process.spec, member.restart),
        };
        if !charged {
            *self.unpaid.entry(path.clone()).or_default() += 1;
        }
        charged
    }

    fn paid(&mut self, path: &Path) -> bool {
        self.unpaid.remove(path);
        true
    }

    fn fourth_unpaid(&self, path: &Path) -> bool {
        self.unpaid.get(path).is_some_and(|unpaid| *unpaid >= 3)
    }

    fn refused_enough(&mut self, cluster: &Cluster, path: &Path, run: &Run, spec: &ProcessSpec) -> bool {
        let refused = self.refused.entry(path.clone()).or_default();
        refused.insert(run.node.clone());
        let along = goes_along(cluster, path);
        let another = cluster.nodes.iter().any(|(name, node)| {
            let Some(along) = &along else { return false };
            let used: u64 = node.sessions.values().map(|session| u64::from(session.used)).sum();
            let specs = || along.iter().filter_map(|path| cluster.process(path)).map(|process| &*process.spec);
            let theirs = along.iter().filter_map(|path| cluster.run(path)).filter(|run| run.node == *name);
            let theirs: u64 = theirs.map(|run| u64::from(run.slots)).sum();
            let needed: u64 = specs().chain([spec]).map(|spec| u64::from(spec.slots)).sum();
            // The room of the run that failed is free by then.
            let own = if *name == run.node { u64::from(run.slots) } else { 0 };
            node.current.is_some()
                && !node.drained
                && !refused.contains(name)
                && specs().chain([spec]).all(|spec| spec.place.require.iter().all(|label| node.labels.contains(label)))
                && used + needed <= u64::from(node.slots) + theirs + own
        });
        refused.len() >= 2 || !another || self.fourth_unpaid(path)
    }
}

/// Whether messages that a worker had started pay for its ending, or are tried alone first.
fn message_pays(step: Step<'_>, path: &Path, run: &Run, started: &[u64]) -> bool {
    let hands = step.before.session(&run.node, run.session).map(|session| &session.hands);
    let held = |hand: &&u64| hands.and_then(|hands| hands.get(*hand)).is_some_and(|held| held.worker == *path);
    let mailbox = step.before.mailbox_of(path).and_then(|at| step.before.mailbox(&at));
    let is_sick = mailbox.and_then(|mailbox| mailbox.workers.get(path)).is_some_and(|worker| worker.sick);
    let accused = started.iter().filter(held).count();
    run.stopping.is_none() && (accused > 1 || (accused == 1 && !is_sick))
}

/// Crashes of a worker that are charged late: none of the messages that were accused of them did it.
pub fn late_charges(step: Step<'_>, path: &Path) -> usize {
    let open = |cluster: &Cluster| {
        let accusations = cluster.mail.values().flat_map(|mailbox| mailbox.accusations.values());
        accusations.filter(|accusation| accusation.worker == *path).count()
    };
    open(step.before).saturating_sub(open(step.after))
}

/// The processes that would have to go along if a child went to another node; `None` where one of them would stay.
fn goes_along(cluster: &Cluster, path: &Path) -> Option<Vec<Path>> {
    let mut above = path.parent();
    let mut by = None;
    while let Some(at) = above {
        if cluster.supervisor(&at)?.colocate {
            by = Some(at.clone());
        }
        above = at.parent();
    }
    let Some(by) = by else { return Some(Vec::new()) };
    let parent = path.parent()?;
    let supervisor = cluster.supervisor(&parent)?;
    let restarts = |other: &Path| {
        let id = other.as_str()[parent.as_str().len()..].trim_start_matches('/').split('/').next().unwrap_or_default();
        let at = |name: &str| supervisor.children.iter().position(|child| child.as_str() == name);
        match supervisor.strategy {
            Strategy::OneForOne => false,
            Strategy::OneForAll => true,
            Strategy::RestForOne => at(id) >= at(path.name()),
        }
    };
    let mut along = Vec::new();
    for other in cluster.members.keys().filter(|other| other.is_within(&by) && *other != path) {
        let Some(process) = cluster.process(other) else { continue };
        match &process.phase {
            ProcessPhase::Down(DownReason::Held | DownReason::Finished | DownReason::Rule) => continue,
            ProcessPhase::Assigned(run) if run.stopping.is_none() && !(other.is_within(&parent) && restarts(other)) => {
                return None;
            }
            ProcessPhase::Down(_) | ProcessPhase::Pending(_) | ProcessPhase::Assigned(_) => along.push(other.clone()),
        }
    }
    Some(along)
}

/// Whether an exit of its own making leads to a charge.
fn by_itself(exit: &Exit, spec: &ProcessSpec, restart: Restart) -> bool {
    let normal = matches!(exit.how, ExitHow::Code(code) if spec.normal_exit.contains(&code));
    let normal = match rule(exit, spec) {
        Some(ExitAction::Stop) => return false,
        Some(ExitAction::Escalate | ExitAction::Restart) => return true,
        Some(ExitAction::Ignore) => true,
        None => normal,
    };
    match restart {
        Restart::Permanent => true,
        Restart::Transient => !normal,
        Restart::Temporary => false,
    }
}

fn rule(exit: &Exit, spec: &ProcessSpec) -> Option<ExitAction> {
    let matches = |when: ExitMatch| match (&exit.how, when) {
        (ExitHow::Code(code), ExitMatch::Code(wanted)) => *code == wanted,
        (ExitHow::Signal(signal), ExitMatch::Signal(wanted)) => *signal == wanted,
        _ => false,
    };
    spec.on_exit.iter().find(|rule| matches(rule.when)).map(|rule| rule.action)
}

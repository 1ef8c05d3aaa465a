//! Trees: how a spec becomes members, and what a changed spec changes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pando_protocol::ids::{ChildId, Path, TreeName};
use pando_protocol::mail::Leftover;
use pando_protocol::message::{Change as Request, Changed, Difference, DifferenceKind, MailChanged};
use pando_protocol::rejection::Rejection;
use pando_protocol::spec::{Backoff, ChildSpec, Pool, ProcessSpec, Restart, SupervisorSpec, TreeSpec, Work};

use crate::change::Change;
use crate::cluster::{Body, DownReason, Member, Process, ProcessPhase, StopReason, Supervisor, SupervisorPhase, Then};
use crate::command::EventKind;
use crate::differences::restarts_not;
pub use crate::differences::{differences, nearest};
use crate::mail::MAIL_RULES;
use crate::mutation::{Mutation, broken};
use crate::placement::{can_return, can_return_alone};
use crate::restarts::{Rate, Window};

/// Paths that a cluster can hold.
pub const MAX_PATHS: usize = 100_000;

impl Change<'_> {
    /// Does what an operator asks.
    pub fn request(&mut self, request: Request) -> Result<Changed, Rejection> {
        let mut mail = None;
        let differences = match request {
            Request::Apply(spec) => self.apply_spec(spec, Leftover::Refuse)?,
            Request::Delete(tree) => self.delete(&tree, Leftover::Refuse)?,
            Request::ApplyLeaving(spec, leftover) => self.apply_spec(spec, leftover)?,
            Request::DeleteLeaving(tree, leftover) => self.delete(&tree, leftover)?,
            Request::Scale { pool, count } => self.scale(&pool, count)?,
            Request::Pause(path) => self.pause(&path)?,
            Request::Resume(path) => self.resume(&path)?,
            Request::Send { to, messages, asks } => {
                mail = Some(MailChanged::Sent(self.send(&to, messages, asks)?));
                Vec::new()
            }
            Request::Redrive { from, letters, rate } => {
                mail = Some(MailChanged::Moved(self.redrive(&from, &letters, rate)?));
                Vec::new()
            }
            Request::PurgeDead { from, letters } => {
                mail = Some(MailChanged::Moved(self.purge_dead(&from, &letters)?));
                Vec::new()
            }
            Request::PurgeWaiting(from) => {
                mail = Some(MailChanged::Moved(self.purge_waiting(&from)?));
                Vec::new()
            }
            Request::Start(path) => self.operator_start(&path)?,
            Request::Stop(path) => self.operator_stop(&path)?,
            Request::Restart(path) => self.operator_restart(&path)?,
            Request::Drain(node) => self.drain(&node)?,
            Request::Undrain(node) => self.undrain(&node)?,
            Request::RemoveNode(node) => self.remove_node(&node)?,
            Request::RemoveDeadNode(node) => self.remove_dead_node(&node)?,
            Request::Quarantine(path) => self.quarantine(&path)?,
        };
        self.room_changed |= mail.is_none(); // What waits may need less now, or more is to move.
        Ok(Changed { differences, event: self.cluster.last_event(), mail })
    }

    fn apply_spec(&mut self, spec: TreeSpec, leftover: Leftover) -> Result<Vec<Difference>, Rejection> {
        spec.check().map_err(|mistakes| Rejection::BadSpec { tree: spec.name.clone(), mistakes })?;
        self.refuse_before_its_rules(&spec)?;
        let differences = differences(self.cluster, &spec)?;
        let root = Path::root(&spec.name);
        if leftover == Leftover::Refuse {
            self.refuse_to_lose_mail(&root, Some(&spec.root))?;
        }
        let added = differences.iter().filter(|difference| difference.what == DifferenceKind::Added).count();
        let paths = self.cluster.members.len() + added;
        if paths > MAX_PATHS {
            return Err(Rejection::TooMany { what: format!("{paths} paths in the cluster"), limit: MAX_PATHS as u64 });
        }
        if differences.is_empty() {
            return Ok(differences);
        }
        let spec = Arc::new(spec);
        self.cluster.trees.insert(spec.name.clone(), spec.clone());
        let text = format!("tree {} applied: {} differences", spec.name, differences.len());
        self.event(EventKind::TreeApplied, Some(&root), None, text);
        self.put_supervisor(&root, &spec.root, None);
        self.put_mailboxes(&root, Some(&spec.root), leftover);
        self.rouse_root(&root);
        Ok(differences)
    }

    /// Refuses what the rules that the log goes by do not know, though this build does.
    fn refuse_before_its_rules(&self, spec: &TreeSpec) -> Result<(), Rejection> {
        let current = self.cluster.head.rules;
        if current < MAIL_RULES && uses_mail(&spec.root) {
            let what = format!("tree {} with its mailboxes and pools", spec.name);
            return Err(Rejection::RulesTooOld { what, needed: MAIL_RULES, current });
        }
        Ok(())
    }

    /// Gives a pool another number of workers.
    fn scale(&mut self, pool: &Path, count: u32) -> Result<Vec<Difference>, Rejection> {
        let Some(supervisor) = self.cluster.supervisor(pool) else {
            return Err(Rejection::NoSuchPath { path: pool.clone(), nearest: nearest(self.cluster, pool) });
        };
        if !supervisor.is_pool {
            let why = "is no pool: only a child with the key count is";
            return Err(Rejection::WrongState { path: pool.clone(), why: why.into() });
        }
        let Some(mut spec) = self.cluster.trees.get(&pool.tree()).map(|spec| spec.as_ref().clone()) else {
            return Err(Rejection::NoSuchTree(pool.tree()));
        };
        let root = Path::root(&spec.name);
        if let Some(found) = pool_of(&mut spec.root, &root, pool) {
            found.count = count;
        }
        self.apply_spec(spec, Leftover::Refuse)
    }

    /// A new tree starts, and a new spec gives one that failed or ended another try.
    fn rouse_root(&mut self, root: &Path) {
        let clears = format!("tree {} is cleared by a new spec", root.tree());
        match &mut self.supervisor(root).phase {
            SupervisorPhase::Down(DownReason::Held) => {}
            SupervisorPhase::Down(_) => self.start(root),
            SupervisorPhase::Failed(_) => {
                self.event(EventKind::TreeCleared, Some(root), None, clears);
                self.start(root);
            }
            SupervisorPhase::Stopping { then, .. } if matches!(then, Then::Fail(_) | Then::End(_)) => {
                *then = Then::Restart;
                self.event(EventKind::TreeCleared, Some(root), None, clears);
            }
            SupervisorPhase::Stopping { .. } | SupervisorPhase::Delayed { .. } | SupervisorPhase::Up { .. } => {}
        }
    }

    /// Makes a supervisor, and all below it, what the spec says. `child` holds what its own supervisor says of it.
    fn put_supervisor(&mut self, path: &Path, spec: &SupervisorSpec, child: Option<&ChildSpec>) {
        match self.cluster.member(path).is_some() {
            false => self.add(path, child, Body::Supervisor(new_supervisor(spec, is_pool(child)))),
            true => self.update_supervisor(path, spec, child),
        }
        for child in &spec.children {
            let below = path.child(&child.id);
            match &child.work {
                Work::Supervisor(spec) => self.put_supervisor(&below, spec, Some(child)),
                Work::Process(spec) => self.put_process(&below, child, spec),
                Work::Pool(_) => {
                    let pool = child.as_supervisor().unwrap_or_else(|| unreachable!("a pool"));
                    self.put_supervisor(&below, &pool, Some(child));
                }
            }
        }
        // The list names only members that exist by now: stopping walks it.
        for id in self.put_children(path, spec).iter().rev() {
            self.remove(&path.child(id));
        }
        for child in &spec.children {
            let below = path.child(&child.id);
            if self.supervisor(path).is_up() && self.is_startable(&below) {
                self.start_in_turn(&below);
            }
        }
        self.unsettled.insert(path.clone());
    }

    /// Puts the children of a supervisor into the order of the spec; returns those that are not in it, which stand last. What its
    /// group takes down still goes down, wherever it stands now.
    fn put_children(&mut self, path: &Path, spec: &SupervisorSpec) -> Vec<ChildId> {
        let supervisor = self.supervisor(path);
        let taken_down = supervisor.taken_down().to_vec();
        let named: BTreeSet<_> = spec.children.iter().map(|child| &child.id).collect();
        let leaving: Vec<_> = supervisor.children.iter().filter(|id| !named.contains(id)).cloned().collect();
        supervisor.children =
            spec.children.iter().map(|child| child.id.clone()).chain(leaving.iter().cloned()).collect();
        if !broken(Mutation::TakenDownFromElsewhere)
            && let Some(first) = supervisor.children.iter().find(|id| taken_down.contains(id)).cloned()
        {
            supervisor.take_down_from(first);
        }
        leaving
    }

    fn update_supervisor(&mut self, path: &Path, spec: &SupervisorSpec, child: Option<&ChildSpec>) {
        let returns = self.take_back(path);
        let changed = child.is_some_and(|child| self.update_own(path, child));
        if returns || changed {
            self.forgive(path);
        }
        self.supervisor(path).is_pool = is_pool(child);
        let SupervisorSpec { strategy, intensity, auto_shutdown, colocate, children: _ } = spec;
        let supervisor = self.supervisor(path);
        if supervisor.intensity != *intensity {
            supervisor.window = Window::default(); // What was allowed under the old budget does not break the new one.
        }
        (supervisor.strategy, supervisor.intensity, supervisor.auto_shutdown) = (*strategy, *intensity, *auto_shutdown);
        supervisor.colocate = *colocate;
        if changed && matches!(supervisor.phase, SupervisorPhase::Down(DownReason::Finished)) {
            supervisor.phase = SupervisorPhase::Down(DownReason::Supervisor);
        }
        if !strategy.is_group() {
            self.disband(path);
        }
    }

    /// Whether a child is down only because it is new or its supervisor was not up.
    fn is_startable(&mut self, path: &Path) -> bool {
        match &self.member(path).body {
            Body::Process(process) => matches!(process.phase, ProcessPhase::Down(DownReason::Supervisor)),
            Body::Supervisor(supervisor) => matches!(supervisor.phase, SupervisorPhase::Down(DownReason::Supervisor)),
        }
    }

    fn put_process(&mut self, path: &Path, child: &ChildSpec, spec: &Arc<ProcessSpec>) {
        if self.cluster.member(path).is_none() {
            return self.add(path, Some(child), Body::Process(new_process(spec)));
        }
        let returns = self.take_back(path);
        let changed = self.update_own(path, child) | !restarts_not(&self.process(path).spec, spec);
        if !changed {
            self.process(path).spec = spec.clone(); // Its mailbox may be another.
        }
        if !returns && !changed && !broken(Mutation::ApplyRestartsAll) {
            return;
        }
        self.forgive(path);
        self.worker_replaced(path);
        let way_back = self.keeps_way_back(path).then(|| self.take_place(path)).flatten();
        self.release_place(path); // The new spec may need more room, or another node.
        self.process(path).spec = spec.clone();
        let returns = if broken(Mutation::WayBackForgotten) { can_return } else { can_return_alone };
        if let Some((node, session)) = way_back.filter(|(node, session)| returns(self.cluster, path, node, *session)) {
            self.keep_place(path, node, session);
        }
        let process = self.process(path);
        match process.phase {
            ProcessPhase::Assigned(_) => self.stop_run(path, StopReason::Update),
            ProcessPhase::Pending(_) => {
                self.stop_waiting(path);
                self.wait_for_place(path, Duration::ZERO);
            }
            // A new spec gives one that ended, or that a rule stopped, another try.
            ProcessPhase::Down(DownReason::Finished | DownReason::Rule | DownReason::Supervisor) => {
                process.phase = ProcessPhase::Down(DownReason::Supervisor);
            }
            ProcessPhase::Down(DownReason::Held) => {}
        }
    }

    /// A member that comes back while it is being removed is as good as new: it runs once what still stops is down. Whether it
    /// was being removed.
    fn take_back(&mut self, path: &Path) -> bool {
        let member = self.member(path);
        if !std::mem::replace(&mut member.removed, false) {
            return false;
        }
        (member.held, member.quarantined) = (false, false);
        match &mut member.body {
            Body::Process(process) => {
                if let ProcessPhase::Down(reason) = &mut process.phase {
                    *reason = DownReason::Supervisor;
                }
            }
            Body::Supervisor(supervisor) => match &mut supervisor.phase {
                SupervisorPhase::Down(reason) => *reason = DownReason::Supervisor,
                SupervisorPhase::Stopping { then, .. } => *then = Then::Restart,
                SupervisorPhase::Delayed { .. } | SupervisorPhase::Up { .. } | SupervisorPhase::Failed(_) => {}
            },
        }
        true
    }

    /// Takes over what a supervisor's spec says of a child of it. Whether that differs from before.
    fn update_own(&mut self, path: &Path, child: &ChildSpec) -> bool {
        let ChildSpec { id: _, restart, backoff, significant, work: _ } = child;
        let member = self.member(path);
        let before = (member.restart, member.backoff, member.significant);
        (member.restart, member.backoff, member.significant) = (*restart, *backoff, *significant);
        before != (*restart, *backoff, *significant)
    }

    fn add(&mut self, path: &Path, child: Option<&ChildSpec>, body: Body) {
        let (restart, backoff, significant) = match child {
            Some(child) => (child.restart, child.backoff, child.significant),
            None => (Restart::Permanent, Backoff::default(), false),
        };
        let member = Member {
            restart,
            backoff,
            significant,
            held: false,
            quarantined: false,
            removed: false,
            delays: 0,
            at_cap: 0,
            unpaid: 0,
            restarts: Default::default(),
            rate: Rate::default(),
            history: Vec::new(),
            node_losses: Default::default(),
            endings: Default::default(),
            body,
        };
        self.cluster.members.insert(path.clone(), Arc::new(member));
    }

    /// Takes a member out: forgotten at once where it is down, else when it is. What waits below it waits no longer.
    fn remove(&mut self, path: &Path) {
        for below in self.cluster.walk(path) {
            self.member(&below).removed = true;
            self.stand_down(&below);
            self.release_place(&below);
            self.unsettled.insert(below);
        }
        let member = self.member(path);
        if member.is_down() {
            return self.forget(path);
        }
        match &member.body {
            Body::Process(_) => self.stop_run(path, StopReason::Removed),
            Body::Supervisor(_) => self.stop_supervisor(path, Then::Down(DownReason::Supervisor)),
        }
    }

    fn delete(&mut self, tree: &TreeName, leftover: Leftover) -> Result<Vec<Difference>, Rejection> {
        let root = Path::root(tree);
        let Some(member) = self.cluster.member(&root) else { return Err(Rejection::NoSuchTree(tree.clone())) };
        if member.removed {
            self.put_mailboxes(&root, None, leftover); // It may be said only now that they are to be purged.
            return Ok(Vec::new());
        }
        if leftover == Leftover::Refuse {
            self.refuse_to_lose_mail(&root, None)?;
        }
        self.put_mailboxes(&root, None, leftover);
        self.remove(&root);
        Ok(vec![Difference { path: root, what: DifferenceKind::Removed, keys: Vec::new() }])
    }

    /// Forgets a removed member that is down, and all below it; goes on with what waited for that.
    pub fn forget(&mut self, path: &Path) {
        self.release_places_below(path);
        self.unsettled.insert(path.clone());
        for gone in self.cluster.walk(path) {
            self.worker_gone(&gone);
            self.cluster.members.remove(&gone);
        }
        let Some(parent) = path.parent() else {
            let tree = path.tree();
            self.cluster.trees.remove(&tree);
            return self.event(EventKind::TreeDeleted, Some(path), None, format!("tree {tree} is gone"));
        };
        let name = path.name().to_owned();
        let supervisor = self.supervisor(&parent);
        if let [first, next, ..] = supervisor.taken_down()
            && first.as_str() == name
        {
            let next = next.clone();
            supervisor.take_down_from(next);
        }
        supervisor.children.retain(|id| id.as_str() != name);
        if supervisor.is_stopping() {
            self.advance_stop(&parent);
        }
    }

    /// Forgives what a member did: its own account, its delays, and its crashes in its supervisor's window.
    pub fn forgive(&mut self, path: &Path) {
        self.forget_failures(path);
        if let Some(parent) = path.parent() {
            self.supervisor(&parent).window.forgive(path);
        }
    }
}

fn pool_of<'s>(supervisor: &'s mut SupervisorSpec, at: &Path, pool: &Path) -> Option<&'s mut Pool> {
    supervisor.children.iter_mut().find_map(|child| {
        let path = at.child(&child.id);
        match &mut child.work {
            Work::Pool(found) if path == *pool => Some(found),
            Work::Supervisor(below) if pool.is_within(&path) => pool_of(below, &path, pool),
            Work::Pool(_) | Work::Supervisor(_) | Work::Process(_) => None,
        }
    })
}

fn uses_mail(supervisor: &SupervisorSpec) -> bool {
    supervisor.children.iter().any(|child| match &child.work {
        Work::Pool(_) => true,
        Work::Process(process) => process.mailbox.is_some(),
        Work::Supervisor(below) => uses_mail(below),
    })
}

fn is_pool(child: Option<&ChildSpec>) -> bool {
    child.is_some_and(|child| matches!(child.work, Work::Pool(_)))
}

fn new_supervisor(spec: &SupervisorSpec, is_pool: bool) -> Supervisor {
    let SupervisorSpec { strategy, intensity, auto_shutdown, colocate, children: _ } = spec;
    Supervisor {
        strategy: *strategy,
        intensity: *intensity,
        auto_shutdown: *auto_shutdown,
        colocate: *colocate,
        is_pool,
        children: Vec::new(),
        window: Window::default(),
        phase: SupervisorPhase::Down(DownReason::Supervisor),
    }
}

fn new_process(spec: &Arc<ProcessSpec>) -> Process {
    Process {
        spec: spec.clone(),
        window: Window::default(),
        refusals: Default::default(),
        refused_by: BTreeSet::new(),
        place: None,
        phase: ProcessPhase::Down(DownReason::Supervisor),
    }
}

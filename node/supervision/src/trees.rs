//! Trees: how a spec becomes members, what a changed spec changes, and what operators say.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pando_protocol::ids::{Path, TreeName};
use pando_protocol::message::{Change as Request, Changed, Difference, DifferenceKind};
use pando_protocol::rejection::Rejection;
use pando_protocol::spec::{ChildSpec, SupervisorSpec, TreeSpec, Work};

use crate::change::Change;
use crate::cluster::{
    Body, Cluster, DownReason, Member, Process, ProcessPhase, StopReason, Supervisor, SupervisorPhase, Then,
};
use crate::command::EventKind;
use crate::restarts::{Rate, Window};

/// Paths that a cluster can hold.
pub const MAX_PATHS: usize = 100_000;

impl Change<'_> {
    /// Does what an operator asks.
    pub fn request(&mut self, request: Request) -> Result<Changed, Rejection> {
        let differences = match request {
            Request::Apply(spec) => self.apply_spec(spec)?,
            Request::Delete(tree) => self.delete(&tree)?,
            Request::Start(path) => self.operator_start(&path)?,
            Request::Stop(path) => self.operator_stop(&path)?,
            Request::Restart(path) => self.operator_restart(&path)?,
        };
        Ok(Changed { differences, event: self.cluster.last_event() })
    }

    fn apply_spec(&mut self, spec: TreeSpec) -> Result<Vec<Difference>, Rejection> {
        spec.check().map_err(|mistakes| Rejection::BadSpec { tree: spec.name.clone(), mistakes })?;
        let differences = differences(self.cluster, &spec)?;
        let root = Path::root(&spec.name);
        let added = differences.iter().filter(|difference| difference.what == DifferenceKind::Added).count();
        let paths = self.cluster.members.len() + added;
        if paths > MAX_PATHS {
            return Err(Rejection::TooMany { what: format!("{paths} paths in the cluster"), limit: MAX_PATHS as u64 });
        }
        if differences.is_empty() {
            return Ok(differences);
        }
        let name = spec.name.clone();
        let is_new = self.cluster.member(&root).is_none();
        let failed = matches!(self.cluster.supervisor(&root).map(|root| &root.phase), Some(SupervisorPhase::Failed(_)));
        self.cluster.trees.insert(name.clone(), Arc::new(spec.clone()));
        let text = format!("tree {name} applied: {} differences", differences.len());
        self.event(EventKind::TreeApplied, Some(&root), None, text);
        self.put_supervisor(&root, &spec.root, None);
        if is_new {
            self.start(&root);
        } else if failed {
            self.event(EventKind::TreeCleared, Some(&root), None, format!("tree {name} is cleared by a new spec"));
            self.start(&root);
        }
        Ok(differences)
    }

    /// Makes a supervisor, and all below it, what the spec says. `child` holds what its own supervisor says of it.
    fn put_supervisor(&mut self, path: &Path, spec: &SupervisorSpec, child: Option<&ChildSpec>) {
        match self.cluster.member(path).is_some() {
            false => self.add(path, child, Body::Supervisor(new_supervisor(spec))),
            true => self.update_own(path, child),
        }
        let supervisor = self.supervisor(path);
        let SupervisorSpec { strategy, intensity, auto_shutdown, children } = spec;
        (supervisor.strategy, supervisor.intensity, supervisor.auto_shutdown) = (*strategy, *intensity, *auto_shutdown);
        let named: BTreeSet<_> = children.iter().map(|child| &child.id).collect();
        let leaving: Vec<_> = supervisor.children.iter().filter(|id| !named.contains(id)).cloned().collect();
        supervisor.children = children.iter().map(|child| child.id.clone()).chain(leaving.iter().cloned()).collect();
        for id in leaving.iter().rev() {
            self.remove(&path.child(id));
        }
        for child in children {
            let below = path.child(&child.id);
            match &child.work {
                Work::Supervisor(spec) => self.put_supervisor(&below, spec, Some(child)),
                Work::Process(spec) => self.put_process(&below, child, spec),
            }
            if self.supervisor(path).is_up() && self.is_startable(&below) {
                self.start(&below);
            }
        }
    }

    /// Whether a child is down only because it is new or its supervisor was not up.
    fn is_startable(&mut self, path: &Path) -> bool {
        match &self.member(path).body {
            Body::Process(process) => matches!(process.phase, ProcessPhase::Down(DownReason::Supervisor)),
            Body::Supervisor(supervisor) => matches!(supervisor.phase, SupervisorPhase::Down(DownReason::Supervisor)),
        }
    }

    fn put_process(&mut self, path: &Path, child: &ChildSpec, spec: &Arc<pando_protocol::spec::ProcessSpec>) {
        if self.cluster.member(path).is_none() {
            let process = Process {
                spec: spec.clone(),
                window: Window::default(),
                refusals: Default::default(),
                refused_by: BTreeSet::new(),
                phase: ProcessPhase::Down(DownReason::Supervisor),
            };
            return self.add(path, Some(child), Body::Process(process));
        }
        if !self.differs(path, child, spec) {
            return;
        }
        self.update_own(path, Some(child));
        self.forgive(path);
        self.process(path).spec = spec.clone();
        match self.process(path).phase.clone() {
            ProcessPhase::Assigned(_) => self.stop_run(path, StopReason::Update),
            ProcessPhase::Pending(_) => {
                self.stop_waiting(path);
                self.wait_for_place(path, Duration::ZERO);
            }
            // A new spec gives one that ended, or that a rule stopped, another try.
            ProcessPhase::Down(DownReason::Finished | DownReason::Rule | DownReason::Supervisor) => {
                self.process(path).phase = ProcessPhase::Down(DownReason::Supervisor);
            }
            ProcessPhase::Down(DownReason::Held) => {}
        }
    }

    /// Whether a process's own spec differs, or it comes back while it is being removed.
    fn differs(&mut self, path: &Path, child: &ChildSpec, spec: &Arc<pando_protocol::spec::ProcessSpec>) -> bool {
        let member = self.member(path);
        let own = (member.restart, member.backoff, member.significant);
        own != (child.restart, child.backoff, child.significant) || member.removed || self.process(path).spec != *spec
    }

    fn update_own(&mut self, path: &Path, child: Option<&ChildSpec>) {
        let member = self.member(path);
        member.removed = false;
        if let Some(child) = child {
            (member.restart, member.backoff, member.significant) = (child.restart, child.backoff, child.significant);
        }
    }

    fn add(&mut self, path: &Path, child: Option<&ChildSpec>, body: Body) {
        let (restart, backoff, significant) = match child {
            Some(child) => (child.restart, child.backoff, child.significant),
            None => (pando_protocol::spec::Restart::Permanent, Default::default(), false),
        };
        let member = Member {
            restart,
            backoff,
            significant,
            held: false,
            removed: false,
            delays: 0,
            at_cap: 0,
            unpaid: 0,
            restarts: 0,
            rate: Rate::default(),
            history: Vec::new(),
            node_losses: Default::default(),
            endings: Default::default(),
            body,
        };
        self.cluster.members.insert(path.clone(), Arc::new(member));
    }

    /// Takes a member out: forgotten at once where it is down, else when it is.
    fn remove(&mut self, path: &Path) {
        for below in self.cluster.walk(path) {
            self.member(&below).removed = true;
        }
        match &self.member(path).body {
            Body::Process(process) => match process.phase {
                ProcessPhase::Assigned(_) => self.stop_run(path, StopReason::Removed),
                ProcessPhase::Pending(_) => {
                    self.stop_waiting(path);
                    self.forget(path);
                }
                ProcessPhase::Down(_) => self.forget(path),
            },
            Body::Supervisor(supervisor) if supervisor.is_down() => self.forget(path),
            Body::Supervisor(_) => self.stop_supervisor(path, Then::Down(DownReason::Supervisor)),
        }
    }

    fn delete(&mut self, tree: &TreeName) -> Result<Vec<Difference>, Rejection> {
        let root = Path::root(tree);
        let Some(member) = self.cluster.member(&root) else { return Err(Rejection::NoSuchTree(tree.clone())) };
        if member.removed {
            return Ok(Vec::new());
        }
        self.remove(&root);
        Ok(vec![Difference { path: root, what: DifferenceKind::Removed, keys: Vec::new() }])
    }

    /// Forgives what a member did: its own account, its delays, and its crashes in its supervisor's window.
    fn forgive(&mut self, path: &Path) {
        self.forget_failures(path);
        if let Some(parent) = path.parent() {
            self.supervisor(&parent).window.forgive(path);
        }
    }

    fn operator_start(&mut self, path: &Path) -> Result<Vec<Difference>, Rejection> {
        self.known(path)?;
        if let Body::Supervisor(Supervisor { phase: SupervisorPhase::Failed(_), .. }) = &self.member(path).body {
            let why = format!(
                "has failed: `pando explain {path}` says why; `pando restart {path}` clears it and starts it afresh"
            );
            return Err(Rejection::WrongState { path: path.clone(), why });
        }
        let member = self.member(path);
        let was_held = std::mem::replace(&mut member.held, false);
        if !was_held && !member.is_down() {
            return Ok(Vec::new());
        }
        let parent_up = path.parent().is_none_or(|parent| self.supervisor(&parent).is_up());
        if !parent_up && !was_held {
            return Err(self.parent_down(path));
        }
        if self.member(path).is_down() {
            if parent_up {
                self.forgive(path);
                self.start(path);
            } else {
                self.down_with_supervisor(path);
            }
        }
        self.event(EventKind::MemberStarted, Some(path), None, format!("{path} was started by an operator"));
        Ok(vec![Difference { path: path.clone(), what: DifferenceKind::Started, keys: Vec::new() }])
    }

    fn down_with_supervisor(&mut self, path: &Path) {
        match &mut self.member(path).body {
            Body::Process(process) => process.phase = ProcessPhase::Down(DownReason::Supervisor),
            Body::Supervisor(supervisor) => supervisor.phase = SupervisorPhase::Down(DownReason::Supervisor),
        }
    }

    fn operator_stop(&mut self, path: &Path) -> Result<Vec<Difference>, Rejection> {
        self.known(path)?;
        let member = self.member(path);
        if member.held {
            return Ok(Vec::new());
        }
        if let Body::Supervisor(Supervisor { phase: SupervisorPhase::Failed(_), .. }) = &member.body {
            let why = format!(
                "has failed and runs nothing: `pando restart {path}` starts it afresh, `pando delete` removes it"
            );
            return Err(Rejection::WrongState { path: path.clone(), why });
        }
        member.held = true;
        match &mut member.body {
            Body::Process(process) => match &process.phase {
                ProcessPhase::Assigned(_) => self.stop_run(path, StopReason::Operator),
                ProcessPhase::Pending(_) => {
                    self.stop_waiting(path);
                    self.process(path).phase = ProcessPhase::Down(DownReason::Held);
                }
                ProcessPhase::Down(_) => process.phase = ProcessPhase::Down(DownReason::Held),
            },
            Body::Supervisor(supervisor) => match &supervisor.phase {
                SupervisorPhase::Up { .. } | SupervisorPhase::Delayed { .. } => {
                    self.stop_supervisor(path, Then::Down(DownReason::Held));
                }
                SupervisorPhase::Down(_) => supervisor.phase = SupervisorPhase::Down(DownReason::Held),
                SupervisorPhase::Stopping { .. } | SupervisorPhase::Failed(_) => {} // `held` decides when all are down.
            },
        }
        self.event(EventKind::MemberStopped, Some(path), None, format!("{path} was stopped by an operator"));
        Ok(vec![Difference { path: path.clone(), what: DifferenceKind::Stopped, keys: Vec::new() }])
    }

    fn operator_restart(&mut self, path: &Path) -> Result<Vec<Difference>, Rejection> {
        self.known(path)?;
        if let Some(parent) = path.parent()
            && !self.supervisor(&parent).is_up()
        {
            return Err(self.parent_down(path));
        }
        self.forgive(path);
        self.event(EventKind::MemberRestarted, Some(path), None, format!("{path} was restarted by an operator"));
        let member = self.member(path);
        member.held = false;
        match &member.body {
            Body::Process(process) => match &process.phase {
                ProcessPhase::Assigned(_) => self.stop_run(path, StopReason::Restart),
                ProcessPhase::Pending(_) => {
                    self.stop_waiting(path);
                    self.wait_for_place(path, Duration::ZERO);
                }
                ProcessPhase::Down(_) => self.start(path),
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
                SupervisorPhase::Down(_) | SupervisorPhase::Delayed { .. } => self.start(path),
            },
        }
        Ok(vec![Difference { path: path.clone(), what: DifferenceKind::Restarted, keys: Vec::new() }])
    }

    fn parent_down(&mut self, path: &Path) -> Rejection {
        let parent = path.parent().unwrap_or_else(|| path.clone());
        let why = format!("cannot run now: its supervisor {parent} is not up; `pando explain {parent}` says why");
        Rejection::WrongState { path: path.clone(), why }
    }

    fn known(&mut self, path: &Path) -> Result<(), Rejection> {
        match self.cluster.member(path) {
            Some(member) if member.removed => {
                let why = "is being removed, and its last processes are stopping".to_owned();
                Err(Rejection::WrongState { path: path.clone(), why })
            }
            Some(_) => Ok(()),
            None => Err(Rejection::NoSuchPath { path: path.clone(), nearest: nearest(self.cluster, path) }),
        }
    }
}

fn new_supervisor(spec: &SupervisorSpec) -> Supervisor {
    Supervisor {
        strategy: spec.strategy,
        intensity: spec.intensity,
        auto_shutdown: spec.auto_shutdown,
        children: Vec::new(),
        window: Window::default(),
        phase: SupervisorPhase::Down(DownReason::Supervisor),
    }
}

/// What applying a spec would do, in tree order. Empty: everything is so already.
///
/// # Errors
/// A tree that is being deleted, and a process that would become a supervisor or the other way round.
pub fn differences(cluster: &Cluster, spec: &TreeSpec) -> Result<Vec<Difference>, Rejection> {
    let root = Path::root(&spec.name);
    if cluster.member(&root).is_some_and(|member| member.removed) {
        return Err(Rejection::BeingDeleted(spec.name.clone()));
    }
    let mut found = Vec::new();
    compare_supervisor(cluster, &root, &spec.root, None, &mut found)?;
    Ok(found)
}

fn compare_supervisor(
    cluster: &Cluster,
    path: &Path,
    spec: &SupervisorSpec,
    child: Option<&ChildSpec>,
    found: &mut Vec<Difference>,
) -> Result<(), Rejection> {
    let mut keys = Vec::new();
    let mut removed = Vec::new();
    match cluster.member(path) {
        None => found.push(added(path)),
        Some(Member { body: Body::Process(_), .. }) => return Err(kind_changed(path, "process", "supervisor")),
        Some(member) => {
            if member.removed {
                found.push(added(path));
            }
            if let Some(child) = child {
                own_keys(member, child, &mut keys);
            }
            if let Body::Supervisor(known) = &member.body {
                let SupervisorSpec { strategy, intensity, auto_shutdown, children } = spec;
                push_if(&mut keys, known.strategy != *strategy, "strategy");
                push_if(&mut keys, known.intensity != *intensity, "intensity");
                push_if(&mut keys, known.auto_shutdown != *auto_shutdown, "auto_shutdown");
                let gone = |id: &&pando_protocol::ids::ChildId| !children.iter().any(|child| child.id == **id);
                removed = known.children.iter().filter(gone).map(|id| path.child(id)).collect();
                let staying = known.children.iter().filter(|id| !gone(id));
                let known_too = children.iter().map(|child| &child.id).filter(|id| known.children.contains(id));
                push_if(&mut keys, !staying.eq(known_too), "children");
            }
        }
    }
    if !keys.is_empty() {
        found.push(Difference { path: path.clone(), what: DifferenceKind::Changed, keys });
    }
    for path in removed {
        if cluster.member(&path).is_some_and(|member| !member.removed) {
            found.push(Difference { path, what: DifferenceKind::Removed, keys: Vec::new() });
        }
    }
    for child in &spec.children {
        let below = path.child(&child.id);
        match &child.work {
            Work::Supervisor(spec) => compare_supervisor(cluster, &below, spec, Some(child), found)?,
            Work::Process(spec) => compare_process(cluster, &below, child, spec, found)?,
        }
    }
    Ok(())
}

fn compare_process(
    cluster: &Cluster,
    path: &Path,
    child: &ChildSpec,
    spec: &pando_protocol::spec::ProcessSpec,
    found: &mut Vec<Difference>,
) -> Result<(), Rejection> {
    let Some(member) = cluster.member(path) else {
        found.push(added(path));
        return Ok(());
    };
    let Body::Process(process) = &member.body else { return Err(kind_changed(path, "supervisor", "process")) };
    if member.removed {
        found.push(added(path));
        return Ok(());
    }
    let mut keys = Vec::new();
    own_keys(member, child, &mut keys);
    process_keys(&process.spec, spec, &mut keys);
    if !keys.is_empty() {
        found.push(Difference { path: path.clone(), what: DifferenceKind::Restarted, keys });
    }
    Ok(())
}

fn own_keys(member: &Member, child: &ChildSpec, keys: &mut Vec<String>) {
    let ChildSpec { id: _, restart, backoff, significant, work: _ } = child;
    push_if(keys, member.restart != *restart, "restart");
    push_if(keys, member.backoff != *backoff, "backoff");
    push_if(keys, member.significant != *significant, "significant");
}

fn process_keys(
    known: &pando_protocol::spec::ProcessSpec,
    spec: &pando_protocol::spec::ProcessSpec,
    keys: &mut Vec<String>,
) {
    let pando_protocol::spec::ProcessSpec {
        command,
        env,
        cwd,
        shutdown,
        stop_signal,
        normal_exit,
        intensity,
        slots,
        ready,
        place,
        on_exit,
    } = spec;
    push_if(keys, known.command != *command, "command");
    push_if(keys, known.env != *env, "env");
    push_if(keys, known.cwd != *cwd, "cwd");
    push_if(keys, known.shutdown != *shutdown, "shutdown");
    push_if(keys, known.stop_signal != *stop_signal, "stop_signal");
    push_if(keys, known.normal_exit != *normal_exit, "normal_exit");
    push_if(keys, known.intensity != *intensity, "intensity");
    push_if(keys, known.slots != *slots, "slots");
    push_if(keys, known.ready != *ready, "ready");
    push_if(keys, known.place != *place, "place");
    push_if(keys, known.on_exit != *on_exit, "on_exit");
}

fn push_if(keys: &mut Vec<String>, differs: bool, key: &str) {
    if differs {
        keys.push(key.to_owned());
    }
}

fn added(path: &Path) -> Difference {
    Difference { path: path.clone(), what: DifferenceKind::Added, keys: Vec::new() }
}

fn kind_changed(path: &Path, from: &str, to: &str) -> Rejection {
    Rejection::KindChanged { path: path.clone(), from: from.into(), to: to.into() }
}

/// The known path that shares most with `path`: the same last name, or the longest common beginning.
pub fn nearest(cluster: &Cluster, path: &Path) -> Option<Path> {
    let common = |known: &Path| known.as_str().bytes().zip(path.as_str().bytes()).take_while(|(a, b)| a == b).count();
    let score = |known: &Path| (usize::from(known.name() == path.name()) * 64) + common(known);
    cluster.members.keys().max_by_key(|known| score(known)).filter(|known| score(known) > 2).cloned()
}

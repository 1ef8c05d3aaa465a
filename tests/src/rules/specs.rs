//! Specs in few words. Each builder takes an edit of the defaults.

use std::sync::Arc;
use std::time::Duration;

use pando_protocol::ids::Path;
use pando_protocol::spec::{
    AutoShutdown, Backoff, ChildSpec, Command, Intensity, ProcessSpec, Restart, Strategy, SupervisorSpec, TreeSpec,
    Work,
};

/// A tree: a root with these children.
pub fn tree(name: &str, edit: impl FnOnce(&mut SupervisorSpec), children: Vec<ChildSpec>) -> TreeSpec {
    let mut root = plain_supervisor(children);
    edit(&mut root);
    TreeSpec { name: name.parse().expect("a name"), root }
}

/// A process.
pub fn process(id: &str, edit: impl FnOnce(&mut ChildSpec, &mut ProcessSpec)) -> ChildSpec {
    let mut spec = ProcessSpec::new(Command { program: "true".into(), args: vec![id.into()] });
    let mut child = plain_child(id, Work::Process(Arc::new(spec.clone())));
    edit(&mut child, &mut spec);
    child.work = Work::Process(Arc::new(spec));
    child
}

/// A process with every default: permanent.
pub fn permanent(id: &str) -> ChildSpec {
    process(id, |_, _| {})
}

/// A process with this restart type.
pub fn with_restart(id: &str, restart: Restart) -> ChildSpec {
    process(id, |child, _| child.restart = restart)
}

/// A supervisor below another.
pub fn nested(id: &str, edit: impl FnOnce(&mut ChildSpec, &mut SupervisorSpec), children: Vec<ChildSpec>) -> ChildSpec {
    let mut spec = plain_supervisor(children);
    let mut child = plain_child(id, Work::Supervisor(spec.clone()));
    edit(&mut child, &mut spec);
    child.work = Work::Supervisor(spec);
    child
}

/// A budget.
pub fn budget(max_restarts: u32, seconds: u64) -> Intensity {
    Intensity::Limited { max_restarts, within: Duration::from_secs(seconds) }
}

/// A path.
pub fn path(text: &str) -> Path {
    text.parse().expect("a path")
}

/// Milliseconds.
pub fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn plain_supervisor(children: Vec<ChildSpec>) -> SupervisorSpec {
    let (strategy, intensity) = (Strategy::OneForOne, Intensity::default());
    SupervisorSpec { strategy, intensity, auto_shutdown: AutoShutdown::Never, colocate: false, children }
}

fn plain_child(id: &str, work: Work) -> ChildSpec {
    let (restart, backoff) = (Restart::Permanent, Backoff::default());
    ChildSpec { id: id.parse().expect("a name"), restart, backoff, significant: false, work }
}

//! What should run on a node, and what a runner does about it.
//!
//! Work is derived from the state, never from a one-time effect: a runner compares what it is told should run with what it
//! runs, so that a new leader, a reconnecting runner and a restarted node need no path of their own.

use std::collections::{BTreeMap, BTreeSet};

use pando_protocol::ids::{Incarnation, NodeName, SessionId};
use pando_protocol::session::{Desired, Ending, Wanted};

use crate::cluster::Cluster;

/// What should run on `node` under `session`, from a state with the log index `index`. `None` where the session is over.
pub fn desired(cluster: &Cluster, node: &NodeName, session: SessionId, index: u64) -> Option<Desired> {
    let standing = cluster.session(node, session)?;
    let mut desired = Desired { session, index, run: Vec::new(), end: Vec::new() };
    for path in &standing.assigned {
        let (Some(process), Some(run)) = (cluster.process(path), cluster.run(path)) else { continue };
        if run.stopping.is_some() {
            desired.end.push(Ending { path: path.clone(), incarnation: run.incarnation });
            continue;
        }
        desired.run.push(Wanted {
            path: path.clone(),
            incarnation: run.incarnation,
            after: run.after,
            delay: run.delay,
            spec: process.spec.clone(),
        });
    }
    Some(desired)
}

/// How a run stands with the runner that owns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Local {
    /// It waits out its delay.
    Waiting,
    /// It was started and has not ended.
    Running,
    /// It was asked to end.
    Stopping,
    /// It ended, or it was promised that it never starts; the report is under way.
    Over,
}

/// Something for a runner to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start it, after its delay.
    Start(Wanted),
    /// Ask it to end.
    Stop(Ending),
    /// It has not started: see to it that it never does, and report so.
    Promise(Ending),
}

/// What a runner does so that what runs becomes what should run. Done twice with its actions carried out, the second time is
/// empty. What is in neither list is older than the state and over for the cluster already: it is stopped, or never started.
pub fn plan(desired: &Desired, local: &BTreeMap<Incarnation, (pando_protocol::ids::Path, Local)>) -> Vec<Action> {
    let mut actions = Vec::new();
    for ending in &desired.end {
        match local.get(&ending.incarnation).map(|(_, state)| state) {
            None | Some(Local::Waiting) => actions.push(Action::Promise(ending.clone())),
            Some(Local::Running) => actions.push(Action::Stop(ending.clone())),
            Some(Local::Stopping | Local::Over) => {}
        }
    }
    for wanted in &desired.run {
        if !local.contains_key(&wanted.incarnation) {
            actions.push(Action::Start(wanted.clone()));
        }
    }
    let wanted = desired.run.iter().map(|wanted| wanted.incarnation);
    let named: BTreeSet<Incarnation> = wanted.chain(desired.end.iter().map(|ending| ending.incarnation)).collect();
    for (incarnation, (path, state)) in local {
        if named.contains(incarnation) {
            continue;
        }
        let ending = Ending { path: path.clone(), incarnation: *incarnation };
        match state {
            Local::Running => actions.push(Action::Stop(ending)),
            Local::Waiting => actions.push(Action::Promise(ending)),
            Local::Stopping | Local::Over => {}
        }
    }
    actions
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use pando_protocol::ids::Path;
    use pando_protocol::spec::{Command, ProcessSpec};

    use super::*;

    fn path(text: &str) -> Path {
        text.parse().unwrap()
    }

    fn ending(number: u64) -> Ending {
        Ending { path: path("/t/a"), incarnation: Incarnation(number) }
    }

    fn wanted(number: u64) -> Wanted {
        let command = Command { program: "true".into(), args: vec![] };
        let (incarnation, spec) = (Incarnation(number), Arc::new(ProcessSpec::new(command)));
        Wanted { path: path("/t/a"), incarnation, after: None, delay: Duration::ZERO, spec }
    }

    fn told(run: Vec<Wanted>, end: Vec<Ending>) -> Desired {
        Desired { session: SessionId(1), index: 1, run, end }
    }

    #[test]
    fn what_is_missing_is_started_and_what_runs_is_left_alone() {
        let local = BTreeMap::from([(Incarnation(1), (path("/t/a"), Local::Running))]);
        let desired = told(vec![wanted(1), wanted(2)], vec![]);
        assert_eq!(plan(&desired, &local), vec![Action::Start(wanted(2))]);
    }

    #[test]
    fn one_that_never_started_is_promised_and_one_that_runs_is_stopped() {
        let local = BTreeMap::from([
            (Incarnation(1), (path("/t/a"), Local::Running)),
            (Incarnation(2), (path("/t/b"), Local::Waiting)),
        ]);
        let desired = told(vec![], vec![ending(1), ending(2), ending(3)]);
        let expected = vec![Action::Stop(ending(1)), Action::Promise(ending(2)), Action::Promise(ending(3))];
        assert_eq!(plan(&desired, &local), expected);
    }

    #[test]
    fn what_the_state_does_not_name_is_stopped_or_never_started() {
        let local = BTreeMap::from([
            (Incarnation(1), (path("/t/a"), Local::Running)),
            (Incarnation(2), (path("/t/b"), Local::Waiting)),
        ]);
        let waiting = Ending { path: path("/t/b"), incarnation: Incarnation(2) };
        let expected = vec![Action::Stop(ending(1)), Action::Promise(waiting)];
        assert_eq!(plan(&told(vec![], vec![]), &local), expected);
    }

    #[test]
    fn a_plan_carried_out_leaves_nothing_to_do() {
        let local = BTreeMap::from([
            (Incarnation(1), (path("/t/a"), Local::Stopping)),
            (Incarnation(2), (path("/t/b"), Local::Waiting)),
            (Incarnation(3), (path("/t/c"), Local::Over)),
        ]);
        assert_eq!(plan(&told(vec![wanted(2)], vec![ending(1), ending(3)]), &local), vec![]);
    }
}

//! What runs on this node under one session.

use std::collections::{BTreeMap, BTreeSet};

use openraft::AsyncRuntime;
use pando_protocol::cause::Exit;
use pando_protocol::ids::{Incarnation, Path};
use pando_protocol::session::{Desired, Wanted};
use pando_protocol::spec::OnDisconnect;
use pando_supervision::desired::Local;

/// The runs of a session.
#[derive(Debug)]
pub struct Runs<R: AsyncRuntime> {
    runs: BTreeMap<Incarnation, Held<R>>,
    /// How the last run of each path ended.
    exits: BTreeMap<Path, LastExit<R>>,
    /// The index of the newest state that was acted on.
    acted_on: u64,
}

/// How the last run of a path ended, as read here.
#[derive(Debug)]
struct LastExit<R: AsyncRuntime> {
    incarnation: Incarnation,
    /// The delay before the next run counts from here.
    at: R::Instant,
    /// Its last lines: equal ones of the next run are not sent again.
    stderr: Option<String>,
}

#[derive(Debug)]
struct Held<R: AsyncRuntime> {
    path: Path,
    /// The run before it, where that one ran here too.
    after: Option<Incarnation>,
    state: Local,
    /// Whether it outlives its session.
    keep: bool,
    /// While it waits out its delay: when that ends, and what to start.
    start: Option<(R::Instant, Wanted)>,
}

impl<R: AsyncRuntime> Default for Runs<R> {
    fn default() -> Self {
        Self { runs: BTreeMap::new(), exits: BTreeMap::new(), acted_on: 0 }
    }
}

impl<R: AsyncRuntime> Runs<R> {
    /// Whether a state is newer than the one acted on, or the same one again; older ones are ignored.
    pub fn admit(&mut self, desired: &Desired) -> bool {
        let admitted = desired.index >= self.acted_on;
        self.acted_on = self.acted_on.max(desired.index);
        admitted
    }

    /// How each run stands, for the plan.
    pub fn standing(&self) -> BTreeMap<Incarnation, (Path, Local)> {
        self.runs.iter().map(|(number, held)| (*number, (held.path.clone(), held.state))).collect()
    }

    /// Forgets runs that are over and that the state does not name any more, since no newer state ever will; and how the last
    /// run of a path ended, once no run of that path follows here.
    pub fn forget(&mut self, desired: &Desired) {
        let wanted = desired.run.iter().map(|wanted| (wanted.incarnation, &wanted.path));
        let named: BTreeMap<Incarnation, &Path> =
            wanted.chain(desired.end.iter().map(|ending| (ending.incarnation, &ending.path))).collect();
        self.runs.retain(|number, held| held.state != Local::Over || named.contains_key(number));
        let paths: BTreeSet<&Path> = named.into_values().chain(self.runs.values().map(|held| &held.path)).collect();
        self.exits.retain(|path, _| paths.contains(path));
    }

    /// Takes up a run that is to start when its delay has passed since the exit before it, or since `now`.
    pub fn take_up(&mut self, wanted: Wanted, now: R::Instant) {
        let counted_from = match (&wanted.after, self.exits.get(&wanted.path)) {
            (Some(after), Some(last)) if last.incarnation == *after => last.at,
            _ => now,
        };
        let (number, path, after) = (wanted.incarnation, wanted.path.clone(), wanted.after);
        let keep = wanted.spec.on_disconnect == OnDisconnect::Keep;
        let start = Some((counted_from + wanted.delay, wanted));
        self.runs.insert(number, Held { path, after, state: Local::Waiting, keep, start });
    }

    /// When the next start is due; with or without those that are kept.
    pub fn next_start(&self, with_kept: bool) -> Option<R::Instant> {
        let may_start = self.runs.values().filter(|held| with_kept || !held.keep);
        may_start.filter_map(|held| held.start.as_ref().map(|(at, _)| *at)).min()
    }

    /// Takes the runs whose start is due, with or without those that are kept; they count as running from here on.
    pub fn take_due(&mut self, now: R::Instant, with_kept: bool) -> Vec<Wanted> {
        let mut due = Vec::new();
        for held in self.runs.values_mut().filter(|held| with_kept || !held.keep) {
            if held.start.as_ref().is_some_and(|(at, _)| *at <= now)
                && let Some((_, wanted)) = held.start.take()
            {
                held.state = Local::Running;
                due.push(wanted);
            }
        }
        due
    }

    /// A run that has not started never will.
    pub fn promise(&mut self, path: &Path, number: Incarnation) {
        self.runs
            .insert(number, Held { path: path.clone(), after: None, state: Local::Over, keep: false, start: None });
    }

    /// A run was asked to end.
    pub fn stopping(&mut self, number: Incarnation) {
        if let Some(held) = self.runs.get_mut(&number) {
            held.state = Local::Stopping;
        }
    }

    /// The whole tree of a run is gone. *False* where it is none of this session. Last lines that equal those of the run before
    /// it here are taken out of `exit`: the cluster has them.
    pub fn exited(&mut self, path: &Path, number: Incarnation, at: R::Instant, exit: Option<&mut Exit>) -> bool {
        let Some(held) = self.runs.get_mut(&number) else { return false };
        held.state = Local::Over;
        held.start = None;
        let stderr = exit.as_ref().and_then(|exit| exit.stderr.clone());
        let before = self.exits.insert(path.clone(), LastExit { incarnation: number, at, stderr: stderr.clone() });
        let is_same = before.is_some_and(|before| Some(before.incarnation) == held.after && before.stderr == stderr);
        if let Some(exit) = exit.filter(|_| is_same) {
            exit.stderr = None;
        }
        true
    }

    /// The session is over: forgets all but what is kept and was started, and what has ended since and is among `untold`. States
    /// of the next session are newer than any acted on.
    pub fn retain_kept(&mut self, untold: &BTreeSet<Incarnation>) {
        self.acted_on = 0;
        self.runs.retain(|number, held| {
            held.keep
                && match held.state {
                    Local::Running | Local::Stopping => true,
                    Local::Over => untold.contains(number),
                    Local::Waiting => false,
                }
        });
        let paths: BTreeSet<&Path> = self.runs.values().map(|held| &held.path).collect();
        self.exits.retain(|path, _| paths.contains(path));
    }

    /// Whether it knows of this run.
    pub fn holds(&self, number: Incarnation) -> bool {
        self.runs.contains_key(&number)
    }

    /// Whether it knows of none.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Every run that it knows of.
    pub fn listed(&self) -> BTreeMap<Incarnation, Path> {
        self.runs.iter().map(|(number, held)| (*number, held.path.clone())).collect()
    }

    /// How a run stands.
    pub fn stands(&self, number: Incarnation) -> Option<Local> {
        self.runs.get(&number).map(|held| held.state)
    }

    /// Whether a run is one of this session and not over.
    pub fn is_alive(&self, number: Incarnation) -> bool {
        self.runs.get(&number).is_some_and(|held| held.state != Local::Over)
    }

    /// How many runs have a process that should be there.
    pub fn count(&self) -> usize {
        self.runs.values().filter(|held| matches!(held.state, Local::Running | Local::Stopping)).count()
    }

    /// The run of a path whose process should be there.
    pub fn running(&self, path: &Path) -> Option<Incarnation> {
        let is_there = |held: &Held<R>| held.path == *path && matches!(held.state, Local::Running | Local::Stopping);
        self.runs.iter().find(|(_, held)| is_there(held)).map(|(number, _)| *number)
    }

    /// The runs whose processes are there or will be, the newest first.
    pub fn alive(&self) -> Vec<(Path, Incarnation, Local)> {
        let alive = self.runs.iter().rev().filter(|(_, held)| held.state != Local::Over);
        alive.map(|(number, held)| (held.path.clone(), *number, held.state)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use openraft::Instant;
    use openraft::impls::TokioRuntime;
    use pando_protocol::ids::SessionId;
    use pando_protocol::spec::{Command, ProcessSpec};

    use super::*;

    type Moment = <TokioRuntime as AsyncRuntime>::Instant;

    fn wanted(number: u64, after: Option<u64>, delay: u64) -> Wanted {
        let command = Command { program: "true".into(), args: vec![] };
        Wanted {
            path: "/t/a".parse().unwrap(),
            incarnation: Incarnation(number),
            after: after.map(Incarnation),
            delay: Duration::from_millis(delay),
            spec: Arc::new(ProcessSpec::new(command)),
        }
    }

    #[test]
    fn a_delay_counts_from_the_exit_that_was_read_here() {
        let mut runs = Runs::<TokioRuntime>::default();
        let start = Moment::now();
        runs.take_up(wanted(1, None, 0), start);
        assert_eq!(runs.take_due(start, false).len(), 1);
        runs.exited(&"/t/a".parse().unwrap(), Incarnation(1), start + Duration::from_millis(40), None);
        runs.take_up(wanted(2, Some(1), 100), start + Duration::from_millis(60));
        assert_eq!(runs.next_start(false), Some(start + Duration::from_millis(140)));
    }

    #[test]
    fn a_run_that_is_over_stays_known_until_no_state_names_it() {
        let mut runs = Runs::<TokioRuntime>::default();
        runs.take_up(wanted(1, None, 0), Moment::now());
        runs.exited(&"/t/a".parse().unwrap(), Incarnation(1), Moment::now(), None);
        let mut desired = Desired { session: SessionId(1), index: 5, run: vec![wanted(1, None, 0)], end: vec![] };
        runs.forget(&desired);
        assert_eq!(runs.standing().len(), 1);
        desired.run.clear();
        runs.forget(&desired);
        assert_eq!(runs.standing().len(), 0);
    }

    #[test]
    fn older_states_are_ignored() {
        let mut runs = Runs::<TokioRuntime>::default();
        let desired = |index| Desired { session: SessionId(1), index, run: vec![], end: vec![] };
        assert!(runs.admit(&desired(7)) && runs.admit(&desired(7)) && !runs.admit(&desired(6)));
    }

    #[test]
    fn how_a_path_ended_is_forgotten_once_no_run_follows_here() {
        let mut runs = Runs::<TokioRuntime>::default();
        runs.take_up(wanted(1, None, 0), Moment::now());
        runs.exited(&"/t/a".parse().unwrap(), Incarnation(1), Moment::now(), None);
        let mut desired = Desired { session: SessionId(1), index: 5, run: vec![wanted(2, Some(1), 0)], end: vec![] };
        runs.forget(&desired);
        assert_eq!(runs.exits.len(), 1);
        desired.run.clear();
        runs.forget(&desired);
        assert_eq!(runs.exits.len(), 0);
    }
}

//! The books of budgets and delays, kept a second time from what happened, and compared with the state after each step.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pando_protocol::ids::Path;
use pando_protocol::message::{Change, DifferenceKind};
use pando_protocol::session::Observation;
use pando_protocol::spec::Intensity;
use pando_supervision::change::HISTORY_KEPT;
use pando_supervision::cluster::{
    Body, Cluster, Group, HistoryEntry, Member, Process, ProcessPhase, Supervisor, SupervisorPhase,
};
use pando_supervision::{Applied, Command, Done, EventKind};

use super::payers::{Expected, Payers, Step, late_charges};

/// What every budget has paid for, and how far every backoff is.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    accounts: BTreeMap<Path, Vec<(Duration, Path)>>,
    delays: BTreeMap<Path, u32>,
    payers: Payers,
    up_since: BTreeMap<Path, Duration>,
    stopping_since: BTreeMap<Path, Duration>,
}

impl Ledger {
    /// Takes a step into the books, and compares.
    ///
    /// # Errors
    /// What the books and the state do not agree on.
    pub fn check(&mut self, step: Step<'_>, applied: &Applied) -> Result<(), String> {
        self.note_forgiven(step, applied);
        let expected = self.payers.expected(step);
        endings_are_recorded_once(step, applied)?;
        let charged = charged(step);
        only_the_expected_is_charged(step, &charged, expected.as_ref())?;
        words_about_no_run_change_nothing(step, expected.as_ref())?;
        self.note_healthy(step);
        self.a_group_restart_is_charged_once(step, &charged)?;
        self.note_charges(step, applied, &charged, expected.as_ref())?;
        self.payers.note_charged(step, applied, &charged, expected.as_ref());
        if let Some(Expected { path, paid_before: true, .. }) = &expected {
            waits_without_paying(step, path)?;
        }
        // Starts come last: where one loss completes several stops, a supervisor may be charged and then start in one step.
        self.note_starts(step, applied);
        self.note_stops(step);
        Ok(())
    }

    /// The times at which something that counts will be forgotten: the edges of the windows.
    pub fn edges(&self, cluster: &Cluster) -> Vec<Duration> {
        let edges = self.accounts.iter().flat_map(|(owner, crashes)| {
            let intensity = cluster.member(owner).and_then(intensity_of);
            let within = match intensity {
                Some(Intensity::Limited { within, .. }) => Some(within),
                Some(Intensity::Unlimited) | None => None,
            };
            crashes.iter().filter_map(move |(at, _)| Some(*at + within?))
        });
        edges.filter(|edge| *edge > cluster.head.now).collect()
    }

    fn note_starts(&mut self, step: Step<'_>, applied: &Applied) {
        for event in applied.events.iter().filter(|event| event.kind == EventKind::SupervisorStarted) {
            let Some(path) = &event.path else { continue };
            self.accounts.remove(path);
            self.up_since.insert(path.clone(), step.now());
            self.stopping_since.remove(path);
            for child in children(step.after, path) {
                self.begin_anew(step.after, &child);
            }
        }
    }

    fn begin_anew(&mut self, cluster: &Cluster, path: &Path) {
        self.delays.remove(path);
        self.payers.forget(path);
        if cluster.process(path).is_some() {
            self.accounts.remove(path);
        }
    }

    fn forgive(&mut self, cluster: &Cluster, path: &Path) {
        self.begin_anew(cluster, path);
        if let Some(crashes) = path.parent().and_then(|parent| self.accounts.get_mut(&parent)) {
            crashes.retain(|(_, child)| child != path);
        }
    }

    fn note_forgiven(&mut self, step: Step<'_>, applied: &Applied) {
        let Step { before, after, .. } = step;
        for path in before.members.keys().filter(|path| after.member(path).is_none()) {
            self.accounts.remove(path);
            self.delays.remove(path);
            self.payers.forget(path);
        }
        let (Command::Write(write), Ok(Done::Changed(changed))) = (step.command, &applied.outcome) else { return };
        let known = before.clients.get(&write.client);
        if known.is_some_and(|client| client.replies.contains_key(&write.sequence)) {
            return;
        }
        for difference in &changed.differences {
            let path = &difference.path;
            let own = difference.keys.iter().any(|key| ["restart", "backoff", "significant"].contains(&key.as_str()));
            let is_forgiven = match difference.what {
                DifferenceKind::Restarted => true,
                DifferenceKind::Changed => own,
                DifferenceKind::Added => before.member(path).is_some(),
                DifferenceKind::Started => {
                    before.member(path).is_some_and(Member::is_down) && parent_is_up(before, path)
                }
                DifferenceKind::Removed | DifferenceKind::Stopped | DifferenceKind::Moved => false,
            };
            if is_forgiven {
                self.forgive(after, path);
            }
        }
        if matches!(write.change, Change::Apply(_)) {
            let budget = |cluster: &Cluster, path: &Path| cluster.supervisor(path).map(|known| known.intensity);
            self.accounts.retain(|path, _| budget(before, path) == budget(after, path));
        }
    }

    /// A run that was healthy for long enough returns its delay to the base.
    fn note_healthy(&mut self, step: Step<'_>) {
        let (Some(Observation::Exited { exit, .. }), Some((path, _))) = (step.word(), step.meant()) else { return };
        let Some(member) = step.before.member(path) else { return };
        if exit.healthy.is_some_and(|healthy| healthy >= member.backoff.reset_after) {
            self.delays.remove(path);
        }
    }

    fn note_charges(
        &mut self,
        step: Step<'_>,
        applied: &Applied,
        charged: &[Path],
        expected: Option<&Expected>,
    ) -> Result<(), String> {
        let mut escalates = BTreeSet::new();
        for path in charged {
            let by_rule = expected.is_some_and(|expected| expected.escalates && expected.path == *path);
            match self.pay(step, path, by_rule) {
                Some(owner) => _ = escalates.insert(owner),
                None if started(applied, path) || late_charges(step, path) > 0 => {}
                None => self.is_delayed(step, path)?,
            }
        }
        let events = applied.events.iter().filter(|event| event.kind == EventKind::Escalated);
        let escalated: BTreeSet<Path> = events.filter_map(|event| event.path.clone()).collect();
        if escalated != escalates {
            let now = step.now();
            return Err(format!(
                "budgets are exact: by the books {escalates:?} escalate at {now:?}, and {escalated:?} did: {:?}",
                self.accounts
            ));
        }
        Ok(())
    }

    /// Puts a charge on the account that covers it. The supervisor that has to escalate for it, if one has.
    fn pay(&mut self, step: Step<'_>, path: &Path, by_rule: bool) -> Option<Path> {
        let parent = path.parent()?;
        if by_rule {
            return Some(parent);
        }
        if let Some(own) = step.before.process(path).and_then(|process| process.spec.intensity) {
            if !self.is_spent(path, path, own, step.now()) {
                return None;
            }
            self.accounts.remove(path);
        }
        let intensity = step.before.supervisor(&parent)?.intensity;
        self.is_spent(&parent, path, intensity, step.now()).then_some(parent)
    }

    fn is_spent(&mut self, owner: &Path, child: &Path, intensity: Intensity, now: Duration) -> bool {
        let account = self.accounts.entry(owner.clone()).or_default();
        account.push((now, child.clone()));
        match intensity {
            Intensity::Unlimited => false,
            Intensity::Limited { max_restarts, within } => {
                account.iter().filter(|(then, _)| now - *then < within).count() > max_restarts as usize
            }
        }
    }

    /// Of processes this is known from what is expected of their endings; supervisors fail in a restart of their group, too.
    fn a_group_restart_is_charged_once(&self, step: Step<'_>, charged: &[Path]) -> Result<(), String> {
        let is_supervisor = |path: &&Path| step.before.supervisor(path).is_some();
        match charged.iter().filter(is_supervisor).find(|path| self.payers.is_paid_for(path)) {
            Some(path) => Err(format!("a group restart is charged once: {path} was charged in one that is paid for")),
            None => Ok(()),
        }
    }

    /// A charged ending is followed by a delay of the right length, counted once.
    fn is_delayed(&mut self, step: Step<'_>, path: &Path) -> Result<(), String> {
        let (Some(old), Some(new)) = (step.before.member(path), step.after.member(path)) else { return Ok(()) };
        // Its supervisor may have begun to stop in the same step, for another's sake.
        let wait = match waits(step, path) {
            Some(wait) => wait,
            None if !parent_is_up(step.after, path) => return Ok(()),
            None => return Err(format!("{path} was charged and does not restart")),
        };
        if self.was_up(step, path) >= Some(old.backoff.reset_after) {
            self.delays.remove(path);
        }
        let n = self.delays.entry(path.clone()).or_default();
        let (shortest, longest) = (old.backoff.shortest(*n), old.backoff.longest(*n));
        *n += 1;
        // A group waits for the longest delay of those that ended, and of those that it takes down while they wait.
        let until = group_starts(step.before, path).into_iter().chain(delays_in_its_group(step.before, path)).max();
        let longest = until.map_or(longest, |until| longest.max(until.saturating_sub(step.now())));
        if wait < shortest || wait > longest {
            return Err(format!("delay {n} of {path} is {wait:?}, expected {shortest:?} to {longest:?}"));
        }
        let (before, after) = (old.charged_restarts(), new.charged_restarts());
        if after != before + 1 {
            return Err(format!("{path} counts {after} restarts after {before} and one charged"));
        }
        Ok(())
    }

    /// How long a supervisor was up before it began to stop; `None` for a process.
    fn was_up(&self, step: Step<'_>, path: &Path) -> Option<Duration> {
        step.before.supervisor(path)?;
        let until = self.stopping_since.get(path).copied().unwrap_or(step.now());
        Some(until.saturating_sub(*self.up_since.get(path)?))
    }

    fn note_stops(&mut self, step: Step<'_>) {
        for (path, member) in &step.after.members {
            if let Body::Supervisor(supervisor) = &member.body
                && supervisor.is_stopping()
            {
                self.stopping_since.entry(path.clone()).or_insert(step.now());
            }
        }
    }
}

/// How long a member that ended waits before it runs again, alone or with its group.
fn waits(step: Step<'_>, path: &Path) -> Option<Duration> {
    let until = match &step.after.member(path)?.body {
        Body::Process(Process { phase: ProcessPhase::Assigned(run), .. }) => return Some(run.delay),
        Body::Process(Process { phase: ProcessPhase::Pending(pending), .. }) => pending.not_before,
        Body::Supervisor(Supervisor { phase: SupervisorPhase::Delayed { until }, .. }) => *until,
        Body::Process(_) | Body::Supervisor(_) => group_starts(step.after, path)?,
    };
    parent_is_up(step.after, path).then(|| until.saturating_sub(step.now()))
}

/// A restart that costs nothing, because that of the group is paid for, is not without a delay.
fn waits_without_paying(step: Step<'_>, path: &Path) -> Result<(), String> {
    let Some(member) = step.before.member(path) else { return Ok(()) };
    match waits(step, path) {
        Some(wait) if wait < member.backoff.shortest(0) => Err(format!("{path} restarts after {wait:?}")),
        Some(_) | None => Ok(()),
    }
}

/// Each `ChildExited` stands for one ending in the history of its path, with a payer or a named reason for none.
fn endings_are_recorded_once(step: Step<'_>, applied: &Applied) -> Result<(), String> {
    let endings = |member: &Member| member.history.iter().map(|entry| entry.count).sum::<u64>();
    let forgotten = |old: &Member, new: &Member| forgotten(old, new).map_or(0, |entry| entry.count);
    for (path, member) in &step.after.members {
        let Some(old) = step.before.member(path) else { continue };
        let is_exit = |event: &&pando_supervision::Event| {
            event.kind == EventKind::ChildExited && event.path.as_ref() == Some(path)
        };
        let told = applied.events.iter().filter(is_exit).count() as u64;
        let recorded = endings(member) + forgotten(old, member) - endings(old);
        let late = recorded.saturating_sub(told);
        if matches!(member.body, Body::Process(_)) && (told > recorded || late > late_charges(step, path) as u64) {
            return Err(format!("every ending has one record: {path} ended {told} times, {recorded} are recorded"));
        }
        let Some(newest) = member.history.last().filter(|_| recorded > 0) else { continue };
        let named = if newest.charged { newest.payer.contains("budget") } else { !newest.payer.is_empty() };
        if !named {
            return Err(format!("every ending has a payer or a reason for none: {path} has {:?}", newest.payer));
        }
    }
    Ok(())
}

/// The ending that made room for a newer one in this step.
fn forgotten<'m>(old: &'m Member, new: &Member) -> Option<&'m HistoryEntry> {
    let is_full = old.history.len() == HISTORY_KEPT && new.history.len() == HISTORY_KEPT;
    let first = old.history.first().filter(|first| is_full && new.history.first() != Some(first))?;
    Some(first)
}

/// The members that a budget paid for in this step, the deepest first: those above fail because of those below.
fn charged(step: Step<'_>) -> Vec<Path> {
    let paid =
        |member: &Member| member.history.iter().filter(|entry| entry.charged).map(|entry| entry.count).sum::<u64>();
    let mut found: Vec<Path> = Vec::new();
    for (path, member) in &step.after.members {
        let gone = |old| forgotten(old, member).filter(|entry| entry.charged).map_or(0, |entry| entry.count);
        let before = step.before.member(path).map_or(0, |old| paid(old) - gone(old));
        found.extend((before..paid(member)).map(|_| path.clone()));
    }
    found.sort_by_key(|path| std::cmp::Reverse(path.depth()));
    found
}

fn only_the_expected_is_charged(step: Step<'_>, charged: &[Path], expected: Option<&Expected>) -> Result<(), String> {
    let is_told = |path: &Path| expected.is_some_and(|expected| expected.charged && expected.path == *path);
    let of_process =
        |path: &&Path| step.after.process(path).is_some() && (is_told(path) || late_charges(step, path) == 0);
    let processes: Vec<&Path> = charged.iter().filter(of_process).collect();
    let due: Vec<&Path> = expected.iter().filter(|expected| expected.charged).map(|expected| &expected.path).collect();
    if processes != due {
        let newest = step.meant().and_then(|(path, _)| step.after.member(path)?.history.last().cloned());
        return Err(format!(
            "one ending, one payer: {processes:?} were charged, expected {due:?}; recorded {newest:?}"
        ));
    }
    if let Some(twice) = charged.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("one ending, one payer: {} was charged twice", twice[0]));
    }
    Ok(())
}

/// Words about a run that is not, and promises for one that should run, change no member; an ending that is meant ends it.
fn words_about_no_run_change_nothing(step: Step<'_>, expected: Option<&Expected>) -> Result<(), String> {
    let Some(word) = step.word() else { return Ok(()) };
    let about = match word {
        Observation::Leaving | Observation::Left | Observation::Kept { .. } | Observation::Settled(_) => return Ok(()),
        Observation::Started { path, .. }
        | Observation::Ready { path, .. }
        | Observation::WorkerReady { path, .. }
        | Observation::Stopping { path, .. } => (path, false),
        Observation::Exited { path, .. } | Observation::NeverStarted { path, .. } => (path, true),
    };
    let meant = step.meant();
    if (meant.is_none() || (about.1 && expected.is_none())) && step.before.members != step.after.members {
        return Err(format!("late words change nothing: {word:?} did"));
    }
    let Some((path, run)) = meant else { return Ok(()) };
    if expected.is_some() && step.after.run(path).is_some_and(|still| still.incarnation == run.incarnation) {
        return Err(format!("a reported ending ends the run: {word:?} did not"));
    }
    Ok(())
}

/// The budget of a supervisor, or the own one of a process.
fn intensity_of(member: &Member) -> Option<Intensity> {
    match &member.body {
        Body::Process(process) => process.spec.intensity,
        Body::Supervisor(supervisor) => Some(supervisor.intensity),
    }
}

/// Whether a supervisor, or the one above a member, started in this step.
fn started(applied: &Applied, path: &Path) -> bool {
    let above = path.parent();
    let starts = applied.events.iter().filter(|event| event.kind == EventKind::SupervisorStarted);
    starts.filter_map(|event| event.path.as_ref()).any(|at| at == path || Some(at) == above.as_ref())
}

/// When those are to start that wait in the group of a member, or deeper below it.
fn delays_in_its_group(cluster: &Cluster, path: &Path) -> Vec<Duration> {
    let group = path.parent().filter(|at| cluster.supervisor(at).is_some_and(|above| above.strategy.is_group()));
    let below = group.map_or_else(Vec::new, |group| cluster.walk(&group));
    let until = |below: &Path| {
        let phase = cluster.supervisor(below).map(|supervisor| &supervisor.phase);
        match (cluster.pending_at(below), phase) {
            (Some(pending), _) => Some(pending.not_before),
            (None, Some(SupervisorPhase::Delayed { until })) => Some(*until),
            (None, Some(SupervisorPhase::Up { group: Group::TakingDown { not_before, .. }, .. })) => Some(*not_before),
            (None, Some(_) | None) => None,
        }
    };
    below.iter().filter_map(until).collect()
}

/// When the next generation of the group of a member may start, where one waits for that.
fn group_starts(cluster: &Cluster, path: &Path) -> Option<Duration> {
    match cluster.supervisor(&path.parent()?)?.group()? {
        Group::TakingDown { not_before, .. } => Some(*not_before),
        Group::Pending { pending, .. } => Some(pending.not_before),
        Group::Settled | Group::Starting => None,
    }
}

fn parent_is_up(cluster: &Cluster, path: &Path) -> bool {
    path.parent().is_none_or(|parent| cluster.supervisor(&parent).is_some_and(Supervisor::is_up))
}

fn children(cluster: &Cluster, path: &Path) -> Vec<Path> {
    let supervisor = cluster.supervisor(path);
    supervisor.map(|known| known.children.iter().map(|id| path.child(id)).collect()).unwrap_or_default()
}

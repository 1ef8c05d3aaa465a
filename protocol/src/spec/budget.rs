//! Whether a restart budget can be spent at all: the most crashes that backoff lets into one window.
//!
//! A budget of `max_restarts` is spent by one crash more than that, all within one window, the first and the last less
//! than `within` apart. Between two crashes of one child lies at least one delay of its backoff; crashes of several
//! children lie apart by nothing. So a child can add one crash, and one more for each delay that still fits.

use std::time::Duration;

use super::{Backoff, ChildSpec, ExitAction, Intensity, MAX_MAX_RESTARTS, Restart, Work};

/// How many crashes `children` can bring into one window of their supervisor's budget, where these are too few to spend
/// it. `None`: it can be spent, or it is not the backoff that keeps it from being spent.
///
/// Errs on the side of `None`: a supervisor or a child with an account of its own counts like any child, though each crash
/// that it charges here took more than one delay.
pub(super) fn most_crashes(max_restarts: u32, within: Duration, children: &[ChildSpec]) -> Option<u32> {
    if is_refused_already(max_restarts, within) {
        return None;
    }
    let mut most = 0u32;
    let mut delayed = false;
    for child in children.iter().filter(|child| charges_its_supervisor(child)) {
        let restarts = if is_restarted(child) { restarts_within(max_restarts, within, &child.backoff) } else { 0 };
        delayed |= is_restarted(child);
        most = most.saturating_add(restarts).saturating_add(1);
        if most > max_restarts {
            return None;
        }
    }
    delayed.then_some(most)
}

/// The same for the account of a single child.
pub(super) fn most_crashes_alone(max_restarts: u32, within: Duration, child: &ChildSpec) -> Option<u32> {
    if is_refused_already(max_restarts, within) || !is_restarted(child) {
        return None;
    }
    let most = restarts_within(max_restarts, within, &child.backoff).saturating_add(1);
    (most <= max_restarts).then_some(most)
}

/// Whether the budget is out of bounds, which says more than that it cannot be spent.
fn is_refused_already(max_restarts: u32, within: Duration) -> bool {
    max_restarts > MAX_MAX_RESTARTS || within.is_zero()
}

fn charges_its_supervisor(child: &ChildSpec) -> bool {
    match &child.work {
        Work::Process(spec) => spec.intensity != Some(Intensity::Unlimited),
        Work::Supervisor(_) | Work::Pool(_) => true,
    }
}

/// Whether backoff stands between two crashes of the child. A temporary child crashes once, unless a rule restarts it.
fn is_restarted(child: &ChildSpec) -> bool {
    let by_rule = match &child.work {
        Work::Process(spec) => spec.on_exit.iter().any(|rule| rule.action == ExitAction::Restart),
        Work::Supervisor(_) | Work::Pool(_) => false,
    };
    child.restart != Restart::Temporary || by_rule
}

/// The most restarts, up to `enough`, that can follow one another in less than `within`.
fn restarts_within(enough: u32, within: Duration, backoff: &Backoff) -> u32 {
    let sums = Sums::of(backoff, enough);
    let (mut fits, mut too_many) = (0, enough + 1);
    while fits + 1 < too_many {
        let middle = fits.midpoint(too_many);
        if sums.least(middle) < within {
            fits = middle;
        } else {
            too_many = middle;
        }
    }
    fits
}

/// The sums of the first delays at their shortest.
struct Sums {
    of_first: Vec<Duration>,
    reset_after: Duration,
}

impl Sums {
    fn of(backoff: &Backoff, most: u32) -> Self {
        let mut of_first = vec![Duration::ZERO];
        let mut sum = Duration::ZERO;
        for n in 0..most {
            sum = sum.saturating_add(backoff.shortest(n));
            of_first.push(sum);
        }
        Self { of_first, reset_after: backoff.reset_after }
    }

    /// The least time that `restarts` in a row take. A run that is healthy for `reset_after` begins the delays anew, which
    /// may be quicker than to wait out the long ones; as delays only grow, rows of equal length are then the quickest.
    fn least(&self, restarts: u32) -> Duration {
        let mut least = self.first(restarts);
        for rows in 2..=restarts {
            let resets = self.reset_after.saturating_mul(rows - 1);
            if resets >= least {
                break;
            }
            let (length, longer) = (restarts / rows, restarts % rows);
            let short = self.first(length).saturating_mul(rows - longer);
            let long = self.first(length + 1).saturating_mul(longer);
            least = least.min(resets.saturating_add(short).saturating_add(long));
        }
        least
    }

    fn first(&self, delays: u32) -> Duration {
        self.of_first.get(delays as usize).or(self.of_first.last()).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{AutoShutdown, Command, ExitMatch, ExitRule, ProcessSpec, Strategy, SupervisorSpec};
    use super::*;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Delays of 50, 100, 200 ms … at their shortest: 100 ms up to a cap of 1 s, jitter 50.
    fn slow() -> Backoff {
        Backoff { base: millis(100), ..Backoff::default() }
    }

    fn process(backoff: Backoff) -> ChildSpec {
        let command = Command { program: "x".into(), args: vec![] };
        let work = Work::Process(Arc::new(ProcessSpec::new(command)));
        ChildSpec { id: "x".parse().unwrap(), restart: Restart::Permanent, backoff, significant: false, work }
    }

    fn changed(mut child: ChildSpec, change: impl FnOnce(&mut ProcessSpec)) -> ChildSpec {
        if let Work::Process(spec) = &mut child.work {
            change(Arc::make_mut(spec));
        }
        child
    }

    fn supervisor(backoff: Backoff) -> ChildSpec {
        let (strategy, intensity) = (Strategy::OneForOne, Intensity::default());
        let children = vec![process(Backoff::default())];
        let spec =
            SupervisorSpec { strategy, intensity, auto_shutdown: AutoShutdown::Never, colocate: false, children };
        ChildSpec { work: Work::Supervisor(spec), ..process(backoff) }
    }

    #[test]
    fn the_usual_budgets_can_be_spent_by_one_child() {
        let child = process(Backoff::default());
        for (max_restarts, seconds) in [(0, 1), (5, 10), (2, 30), (3, 30), (20, 10), (1_000, 3_600)] {
            let within = Duration::from_secs(seconds);
            assert_eq!(most_crashes(max_restarts, within, std::slice::from_ref(&child)), None, "{max_restarts}");
            assert_eq!(most_crashes_alone(max_restarts, within, &child), None, "{max_restarts}");
        }
    }

    #[test]
    fn a_budget_ends_being_spendable_where_its_shortest_delays_fill_the_window() {
        // Three restarts wait 50 + 100 + 200 ms. A crash counts while it is less than the window away.
        let children = [process(slow())];
        assert_eq!(most_crashes(3, millis(351), &children), None);
        assert_eq!(most_crashes(3, millis(350), &children), Some(3));
        assert_eq!(most_crashes(2, millis(150), &children), Some(2));
        assert_eq!(most_crashes_alone(3, millis(350), &children[0]), Some(3));
    }

    #[test]
    fn children_crash_side_by_side() {
        // Four crashes of two children: each restarts once, after 50 ms. That is less than ceil(3 / 2) delays.
        let children = [process(slow()), process(slow())];
        assert_eq!(most_crashes(3, millis(51), &children), None);
        assert_eq!(most_crashes(3, millis(50), &children), Some(2));
        // Two crashes of two children wait for nothing.
        assert_eq!(most_crashes(1, millis(1), &children), None);
    }

    #[test]
    fn a_quick_sibling_spends_what_a_slow_one_cannot() {
        let glacial = process(Backoff { base: Duration::from_secs(60), cap: Duration::from_secs(60), ..slow() });
        assert_eq!(most_crashes(5, Duration::from_secs(10), std::slice::from_ref(&glacial)), Some(1));
        assert_eq!(most_crashes(5, Duration::from_secs(10), &[glacial, process(Backoff::default())]), None);
    }

    #[test]
    fn a_healthy_run_makes_the_delays_short_again() {
        // Without reset 25 + 250 + 2500 ms; with a reset after each crash 25 + (10 + 25) + (10 + 25).
        let backoff = Backoff { base: millis(50), cap: millis(5_000), factor: 10, ..slow() };
        let quickly_healthy = Backoff { reset_after: millis(10), ..backoff };
        assert_eq!(most_crashes(3, millis(2_775), &[process(backoff)]), Some(3));
        assert_eq!(most_crashes(3, millis(96), &[process(quickly_healthy)]), None);
        assert_eq!(most_crashes(3, millis(95), &[process(quickly_healthy)]), Some(3));
    }

    #[test]
    fn supervisors_and_own_accounts_count_like_any_child() {
        let window = millis(50);
        assert_eq!(most_crashes(1, window, &[supervisor(slow())]), Some(1));
        assert_eq!(most_crashes(1, window, &[supervisor(slow()), process(slow())]), None);
        let own = changed(process(slow()), |spec| spec.intensity = Some(Intensity::default()));
        assert_eq!(most_crashes(1, window, &[own, process(slow())]), None);
    }

    #[test]
    fn a_child_that_never_charges_its_supervisor_spends_nothing() {
        let unlimited = changed(process(slow()), |spec| spec.intensity = Some(Intensity::Unlimited));
        assert_eq!(most_crashes(1, millis(50), &[unlimited.clone(), process(slow())]), Some(1));
        // Where no child charges it, it is not the backoff that keeps the budget whole.
        assert_eq!(most_crashes(1, millis(50), &[unlimited]), None);
    }

    #[test]
    fn temporary_children_alone_are_no_mistake() {
        let temporary = ChildSpec { restart: Restart::Temporary, ..process(slow()) };
        assert_eq!(most_crashes(5, Duration::from_secs(10), std::slice::from_ref(&temporary)), None);
        let restarted = changed(temporary, |spec| {
            spec.on_exit = vec![ExitRule { when: ExitMatch::Code(1), action: ExitAction::Restart }];
        });
        assert_eq!(most_crashes(3, millis(350), &[restarted]), Some(3));
    }

    #[test]
    fn values_that_nobody_checked_yet_cannot_overflow() {
        let backoff = Backoff {
            base: Duration::MAX,
            cap: Duration::MAX,
            factor: u32::MAX,
            jitter: 255,
            reset_after: Duration::MAX,
        };
        assert_eq!(most_crashes(1_000, Duration::MAX, &[process(Backoff { jitter: 0, ..backoff })]), Some(1));
        assert!(most_crashes(1_000, Duration::MAX, &[process(backoff)]).is_none());
        assert_eq!(Backoff { jitter: 0, ..backoff }.shortest(7), Duration::MAX);
    }
}

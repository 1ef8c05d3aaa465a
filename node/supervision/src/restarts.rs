//! Restart budgets and backoff: how many crashes count, and how long a restart waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use pando_protocol::cause::CauseChain;
use pando_protocol::ids::Path;
use pando_protocol::spec::{Backoff, Intensity};
use serde::{Deserialize, Serialize};

use crate::mutation::{Mutation, broken};

/// The time over which a restart rate is counted.
pub const RATE_WINDOW: Duration = Duration::from_secs(60);

/// The crashes that count against a budget, the oldest first. Holds at most one more than the budget allows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// They.
    pub crashes: VecDeque<Crash>,
}

/// A crash that counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crash {
    /// When it was applied.
    pub at: Duration,
    /// The child of the budget's owner that crashed.
    pub child: Path,
    /// Why.
    pub cause: Arc<CauseChain>,
}

/// What a budget says to one more crash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Budget {
    /// It pays; `spent` of `max_restarts` are spent.
    Pays {
        /// Crashes in the window, this one included.
        spent: u32,
    },
    /// It never ends.
    Unlimited,
    /// It is spent: escalate.
    Spent {
        /// Crashes in the window, this one included.
        crashes: u32,
        /// The length of the window.
        within: Duration,
    },
}

impl Window {
    /// Counts a crash: `max_restarts` of them within the window are paid for, the next is not. A crash counts while
    /// `now - then < within`.
    pub fn charge(&mut self, intensity: Intensity, crash: Crash) -> Budget {
        let Intensity::Limited { max_restarts, within } = intensity else {
            self.crashes.clear();
            return Budget::Unlimited;
        };
        self.forget(crash.at, within);
        self.crashes.push_back(crash);
        let crashes = u32::try_from(self.crashes.len()).unwrap_or(u32::MAX);
        let allowed = if broken(Mutation::BudgetOffByOne) { max_restarts + 1 } else { max_restarts };
        if crashes > allowed { Budget::Spent { crashes, within } } else { Budget::Pays { spent: crashes } }
    }

    fn forget(&mut self, now: Duration, within: Duration) {
        let counts = |then: Duration| {
            let ago = now.saturating_sub(then);
            if broken(Mutation::WindowClosedInterval) { ago <= within } else { ago < within }
        };
        while self.crashes.front().is_some_and(|crash| !counts(crash.at)) {
            self.crashes.pop_front();
        }
    }

    /// The crashes that count at `now`.
    pub fn counting(&self, now: Duration, intensity: Intensity) -> impl Iterator<Item = &Crash> {
        let within = match intensity {
            Intensity::Limited { within, .. } => within,
            Intensity::Unlimited => Duration::ZERO,
        };
        self.crashes.iter().filter(move |crash| now.saturating_sub(crash.at) < within)
    }

    /// Forgets the crashes of one child.
    pub fn forgive(&mut self, child: &Path) {
        self.crashes.retain(|crash| crash.child != *child);
    }
}

/// The `n`-th delay (from 0) of a backoff: `min(cap, base * factor^n)`, shortened by up to `jitter` percent. `dice` decides by
/// how much: equal dice, equal delay.
pub fn delay(backoff: &Backoff, n: u32, dice: u64) -> Duration {
    if broken(Mutation::NoBackoff) {
        return Duration::ZERO;
    }
    let n = if broken(Mutation::DelaysDoNotGrow) { 0 } else { n };
    let longest = if broken(Mutation::CapIgnored) { backoff.cap * (n + 1) } else { backoff.longest(n) };
    let longest = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX);
    // 1/1024ths of the jitter percentage; a delay is at most a day, so nothing overflows.
    let cut = longest / 100 * u64::from(backoff.jitter) / 1024 * (dice % 1025);
    Duration::from_micros(longest - cut)
}

/// A number that differs between children and runs and is the same on every machine: FNV-1a of the path and the run, stirred
/// by SplitMix64's finaliser. A named, fixed algorithm, because it is replayed from the log for ever.
pub fn dice(path: &Path, run: u64) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in path.as_str().bytes().chain(run.to_le_bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// What happened in the last 60 s of cluster time, counted by whole seconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// (second, how many in it), the oldest first; at most 61.
    buckets: VecDeque<(u64, u32)>,
}

impl Rate {
    /// Counts one.
    pub fn count(&mut self, now: Duration) {
        self.count_many(now, 1);
    }

    /// Counts several at once.
    pub fn count_many(&mut self, now: Duration, many: u64) {
        let many = u32::try_from(many).unwrap_or(u32::MAX);
        let second = now.as_secs();
        while self.buckets.front().is_some_and(|(then, _)| second.saturating_sub(*then) > RATE_WINDOW.as_secs()) {
            self.buckets.pop_front();
        }
        match self.buckets.back_mut() {
            Some((then, count)) if *then == second => *count = count.saturating_add(many),
            _ => self.buckets.push_back((second, many)),
        }
    }

    /// How many in the last 60 s.
    pub fn per_minute(&self, now: Duration) -> u32 {
        let second = now.as_secs();
        self.buckets
            .iter()
            .filter(|(then, _)| second.saturating_sub(*then) < RATE_WINDOW.as_secs())
            .fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_protocol::cause::{Cause, CauseClass};

    fn crash(at: u64) -> Crash {
        let path: Path = "/t/a".parse().unwrap();
        let cause = Cause {
            path: path.clone(),
            class: CauseClass::Crash,
            message: String::new(),
            code: Some(1),
            signal: None,
            incarnation: None,
            node: None,
            stderr: String::new(),
        };
        Crash { at: Duration::from_millis(at), child: path, cause: Arc::new(CauseChain::of(cause)) }
    }

    #[test]
    fn the_sixth_crash_spends_a_budget_of_five() {
        let mut window = Window::default();
        for n in 1..=5 {
            assert_eq!(
                window.charge(Intensity::default(), crash(n)),
                Budget::Pays { spent: u32::try_from(n).unwrap() }
            );
        }
        let spent = Budget::Spent { crashes: 6, within: Duration::from_secs(10) };
        assert_eq!(window.charge(Intensity::default(), crash(6)), spent);
    }

    #[test]
    fn a_crash_is_forgotten_exactly_when_the_window_has_passed() {
        let intensity = Intensity::Limited { max_restarts: 1, within: Duration::from_secs(10) };
        let mut window = Window::default();
        window.charge(intensity, crash(0));
        assert!(matches!(window.clone().charge(intensity, crash(9_999)), Budget::Spent { .. }));
        assert_eq!(window.charge(intensity, crash(10_000)), Budget::Pays { spent: 1 });
    }

    #[test]
    fn delays_double_to_the_cap_and_jitter_takes_at_most_half() {
        let backoff = Backoff::default();
        for (n, longest) in [50, 100, 200, 400, 800, 1000, 1000].into_iter().enumerate() {
            let longest = Duration::from_millis(longest);
            for die in 0..2000 {
                let delay = delay(&backoff, u32::try_from(n).unwrap(), die);
                assert!(delay <= longest && delay >= longest / 2, "{n} {die} {delay:?}");
            }
        }
    }

    #[test]
    fn a_rate_forgets_after_a_minute() {
        let mut rate = Rate::default();
        for second in 0..100 {
            rate.count(Duration::from_secs(second));
        }
        assert_eq!(rate.per_minute(Duration::from_secs(99)), 60);
        assert_eq!(rate.per_minute(Duration::from_secs(400)), 0);
    }
}

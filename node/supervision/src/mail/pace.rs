//! How much a worker is handed beyond its prefetch: what it works off while one hand-out goes through the log.
//!
//! A hand-out is in the log of a majority before its worker has it, and so is a settlement before the next hand-out. A quick worker
//! would have worked off its prefetch long before more comes. So its runner is handed more ahead, which waits at the worker's
//! desk: the worker itself never has more than its prefetch. A slow worker gets nothing ahead, since others could do it sooner.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::mutation::{Mutation, broken};

/// A worker is handed ahead what it settles in this time of the cluster: some round trips through the log.
pub const AHEAD_FOR: Duration = Duration::from_millis(25);
/// Most messages that are handed ahead. So many more are accused when a node is lost.
pub const MOST_AHEAD: u32 = 1_000;
/// Of a worker that settled nothing for so long nothing is known: it gets nothing more ahead.
const REST: Duration = AHEAD_FOR.saturating_mul(4);

/// How quickly a run of a worker settles.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    /// Since when settlements are counted.
    pub since: Duration,
    /// Messages settled since.
    pub settled: u32,
    /// Messages that it is handed ahead.
    pub ahead: u32,
}

impl Pace {
    /// Of a run that is ready from `now` on.
    pub fn new(now: Duration) -> Self {
        Self { since: now, settled: 0, ahead: 0 }
    }

    /// It settles a message.
    pub fn settle(&mut self, now: Duration) {
        self.settled = self.settled.saturating_add(1);
        let passed = now.saturating_sub(self.since);
        if passed >= AHEAD_FOR {
            let ahead = u128::from(self.settled) * AHEAD_FOR.as_nanos() / passed.as_nanos();
            let ahead = u32::try_from(ahead).unwrap_or(u32::MAX).min(MOST_AHEAD);
            *self = Self { since: now, settled: 0, ahead };
        }
        if broken(Mutation::AheadOfThePace) {
            self.ahead = MOST_AHEAD;
        }
    }

    /// It gets a message while it holds none.
    pub fn begin(&mut self, now: Duration) {
        if self.is_stale(now) {
            *self = Self::new(now);
        }
    }

    /// Whether it settled nothing of late, so that nothing is known of its pace.
    pub fn is_stale(&self, now: Duration) -> bool {
        now.saturating_sub(self.since) >= REST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// One that settles a message each so many microseconds, up to 1 s.
    fn settling_each(microseconds: usize) -> Pace {
        let mut pace = Pace::new(Duration::ZERO);
        (0..=1_000_000).step_by(microseconds).for_each(|us| pace.settle(Duration::from_micros(us as u64)));
        pace
    }

    #[test]
    fn a_worker_is_handed_ahead_what_it_settles_meanwhile() {
        assert_eq!(settling_each(100).ahead, 250);
        assert_eq!(settling_each(5_000).ahead, 5);
        assert_eq!(settling_each(100_000).ahead, 0);
        assert_eq!(settling_each(10).ahead, MOST_AHEAD);
    }

    #[test]
    fn a_worker_that_becomes_slow_or_held_nothing_for_long_is_handed_nothing_ahead() {
        let mut slow = settling_each(100);
        slow.settle(at(2_000));
        assert_eq!(slow.ahead, 0);
        let mut rested = settling_each(100);
        rested.begin(at(1_050));
        assert_eq!(rested.ahead, 250);
        rested.begin(at(1_100));
        assert_eq!(rested, Pace::new(at(1_100)));
    }
}

//! What was said to the cluster about what happened here, until the cluster is known to have applied it.

use std::collections::VecDeque;
use std::time::Duration;

use pando_protocol::session::Observation;

use crate::guard::BootTime;

/// Observations that are said again at once, so that many of them do not crowd out beats.
const SAID_AT_ONCE: usize = 256;

/// Observations that the cluster was not told of, or has not confirmed.
#[derive(Debug, Default)]
pub struct Outbox {
    waiting: VecDeque<Said>,
    last: u64,
}

#[derive(Debug)]
struct Said {
    number: u64,
    observation: Observation,
    /// When it was said last.
    at: BootTime,
}

impl Outbox {
    /// Numbers an observation and keeps it; it is said at `now`.
    pub fn push(&mut self, observation: Observation, now: BootTime) -> (u64, Observation) {
        self.last += 1;
        self.waiting.push_back(Said { number: self.last, observation: observation.clone(), at: now });
        (self.last, observation)
    }

    /// Observations up to `through` are applied.
    pub fn applied(&mut self, through: u64) {
        while self.waiting.front().is_some_and(|said| said.number <= through) {
            self.waiting.pop_front();
        }
    }

    /// What is not confirmed, in order.
    pub fn unconfirmed(&self) -> impl Iterator<Item = (u64, &Observation)> {
        self.waiting.iter().map(|said| (said.number, &said.observation))
    }

    /// The oldest of those that were said at least `after` ago without being confirmed, in order; they are said again now.
    pub fn overdue(&mut self, now: BootTime, after: Duration) -> Vec<(u64, Observation)> {
        let overdue = self.waiting.iter_mut().take(SAID_AT_ONCE).filter(|said| now.since(said.at) >= after);
        overdue
            .map(|said| {
                said.at = now;
                (said.number, said.observation.clone())
            })
            .collect()
    }

    /// Whether the observation with this number is not confirmed.
    pub fn holds(&self, number: u64) -> bool {
        self.waiting.front().is_some_and(|said| said.number <= number) && number <= self.last
    }

    /// Whether anything was said.
    pub fn has_spoken(&self) -> bool {
        self.last > 0
    }

    /// Whether everything is confirmed.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> BootTime {
        BootTime::after_boot(Duration::from_millis(ms))
    }

    #[test]
    fn an_outbox_keeps_what_is_not_confirmed_in_order() {
        let mut outbox = Outbox::default();
        for _ in 0..3 {
            outbox.push(Observation::Leaving, at(0));
        }
        outbox.applied(2);
        assert_eq!(outbox.unconfirmed().map(|(number, _)| number).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn an_outbox_says_again_what_had_its_time_and_only_so_much_at_once() {
        let mut outbox = Outbox::default();
        for number in 0..300 {
            outbox.push(Observation::Leaving, at(number));
        }
        let numbers = |said: Vec<(u64, Observation)>| said.iter().map(|(number, _)| *number).collect::<Vec<_>>();
        assert_eq!(numbers(outbox.overdue(at(202), Duration::from_millis(200))), [1, 2, 3]);
        assert_eq!(numbers(outbox.overdue(at(203), Duration::from_millis(200))), [4]);
        let all: Vec<u64> = (1..=256).collect();
        assert_eq!(numbers(outbox.overdue(at(9_000), Duration::from_millis(200))), all);
    }
}

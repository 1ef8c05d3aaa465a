//! Whether the guard is there: pure arithmetic on moments of the boot clock.
//!
//! Two things are owed by a guard: the word that it counts on a kill time it was told, and an answer to each call. Calls go on
//! whatever the network does, because a node that is cut off is told no new kill times, and needs its guard more than ever.
//!
//! A guard does one thing after another, so that its word on a start says that it is at work on what came before the call.

use std::collections::VecDeque;
use std::time::Duration;

use crate::guard::BootTime;

/// What a guard owes, and since when.
#[derive(Debug)]
pub struct GuardWatch {
    /// How long it may owe a word.
    patience: Duration,
    /// A node that did not look for so long did not run itself.
    pause: Duration,
    /// Since when it owes the word that it counts on the newest kill time.
    unconfirmed_since: Option<BootTime>,
    /// The calls that it has not answered, the oldest first. Their number is bounded by the patience.
    calls: VecDeque<(u64, BootTime)>,
    called: u64,
    answered: u64,
    /// When its silence was judged last.
    judged: BootTime,
}

impl GuardWatch {
    /// A guard that came up just now, watched for leases of this length: it may owe a word for half of one.
    pub fn new(lease: Duration, now: BootTime) -> Self {
        let (patience, pause) = (lease / 2, lease / 3);
        Self { patience, pause, unconfirmed_since: None, calls: VecDeque::new(), called: 0, answered: 0, judged: now }
    }

    /// It is called; the number of the call.
    pub fn call(&mut self, now: BootTime) -> u64 {
        self.called += 1;
        self.calls.push_back((self.called, now));
        self.called
    }

    /// It answered a call, and with it those before: it hears in order.
    pub fn answered(&mut self, number: u64) {
        self.answered = self.answered.max(number);
        while self.calls.front().is_some_and(|(call, _)| *call <= number) {
            self.calls.pop_front();
        }
    }

    /// It started something: it goes through what it was told, and has what it owes before it. It may take its time where a
    /// machine has too much to do, and it starts nothing under a session whose kill time came.
    pub fn started(&mut self, now: BootTime) {
        self.owe_since(now);
    }

    /// The newest call.
    pub fn called(&self) -> u64 {
        self.called
    }

    /// Whether it answered a call that came after this one: then it also heard what it was told between the two.
    pub fn has_answered_after(&self, call: u64) -> bool {
        self.answered > call
    }

    /// It was told a new kill time.
    pub fn told_kill_time(&mut self, now: BootTime) {
        self.unconfirmed_since.get_or_insert(now);
    }

    /// It counts on the kill time it was told last, or needs none any more.
    pub fn settled_kill_time(&mut self) {
        self.unconfirmed_since = None;
    }

    /// For how long it may owe a word.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Whether it has owed a word for too long: the node then ends, since nobody may be there to fence. A node that did not run
    /// itself may just not have heard it yet, and begins to count anew.
    pub fn is_silent(&mut self, now: BootTime) -> bool {
        let paused = now.since(self.judged) > self.pause;
        self.judged = now;
        if paused {
            self.owe_since(now);
        }
        let oldest = self.calls.front().map(|(_, since)| *since);
        self.unconfirmed_since.into_iter().chain(oldest).any(|since| now.since(since) >= self.patience)
    }

    fn owe_since(&mut self, now: BootTime) {
        self.unconfirmed_since = self.unconfirmed_since.map(|_| now);
        self.calls.iter_mut().for_each(|(_, since)| *since = now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(2);

    fn at(ms: u64) -> BootTime {
        BootTime::after_boot(Duration::from_millis(ms))
    }

    /// Judges every 100 ms from `from` on, and says when the guard was found silent, before `until`.
    fn silent(watch: &mut GuardWatch, from: u64, until: u64) -> Option<u64> {
        (from..until).step_by(100).find(|ms| watch.is_silent(at(*ms)))
    }

    #[test]
    fn a_guard_that_owes_the_word_on_a_kill_time_for_half_a_lease_is_silent() {
        let mut watch = GuardWatch::new(LEASE, at(0));
        watch.told_kill_time(at(100));
        watch.told_kill_time(at(900));
        assert_eq!(silent(&mut watch, 100, 9_000), Some(1_100));
        watch.settled_kill_time();
        assert_eq!(silent(&mut watch, 1_200, 9_000), None);
    }

    #[test]
    fn a_guard_that_answers_no_call_for_half_a_lease_is_silent_whatever_it_answered_before() {
        let mut watch = GuardWatch::new(LEASE, at(0));
        for ms in [0, 200, 400] {
            watch.call(at(ms));
        }
        watch.answered(2);
        assert_eq!(silent(&mut watch, 500, 9_000), Some(1_400), "the third came at 400 ms");
        watch.answered(3);
        assert_eq!(silent(&mut watch, 1_500, 9_000), None);
    }

    #[test]
    fn what_was_told_between_two_calls_is_heard_once_the_second_is_answered() {
        let mut watch = GuardWatch::new(LEASE, at(0));
        watch.call(at(0));
        let told_after = watch.called();
        watch.call(at(200));
        watch.answered(1);
        assert!(!watch.has_answered_after(told_after));
        watch.answered(2);
        assert!(watch.has_answered_after(told_after));
    }

    #[test]
    fn a_guard_that_is_at_work_on_many_starts_is_not_silent_and_one_that_stops_in_the_midst_of_them_is() {
        let mut watch = GuardWatch::new(LEASE, at(0));
        watch.told_kill_time(at(0));
        watch.call(at(0));
        for ms in (0..=3_000).step_by(500) {
            assert_eq!(silent(&mut watch, ms, ms + 500), None);
            watch.started(at(ms + 500));
        }
        assert_eq!(silent(&mut watch, 3_500, 9_000), Some(4_500));
    }

    #[test]
    fn a_node_that_did_not_run_does_not_blame_its_guard() {
        let mut watch = GuardWatch::new(LEASE, at(0));
        watch.told_kill_time(at(100));
        watch.call(at(100));
        assert_eq!(silent(&mut watch, 100, 300), None);
        assert!(!watch.is_silent(at(60_000)), "the word may wait to be read");
        assert_eq!(silent(&mut watch, 60_100, 90_000), Some(61_000));
    }
}

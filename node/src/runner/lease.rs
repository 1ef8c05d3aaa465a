//! How long a runner may act: pure arithmetic on moments of the boot clock.
//!
//! The lease counts from when the runner *sent* the beat that was answered (or the request that was granted), so that it
//! ends here before it ends for the leader, whatever the network did meanwhile.

use std::collections::VecDeque;
use std::time::Duration;

use crate::guard::BootTime;

/// Beats whose answers may still come; older ones would renew nothing.
const BEATS_KEPT: usize = 256;

/// The lease of one session.
#[derive(Debug)]
pub struct Lease {
    length: Duration,
    /// The beats that were sent and not yet answered, the oldest first.
    sent: VecDeque<(u64, BootTime)>,
    next: u64,
    /// The newest beat that was answered, and when it was sent. Beat 0 is the request that was granted.
    answered: (u64, BootTime),
    /// Since when the guard owes the word that it counts on the newest kill time.
    unconfirmed_since: Option<BootTime>,
    /// When the guard's silence was judged last.
    judged: BootTime,
}

/// A beat to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    /// Its number.
    pub number: u64,
    /// The newest that was answered.
    pub answered: u64,
    /// How long ago that one was sent.
    pub answered_age: Duration,
}

impl Lease {
    /// A lease of a session that was asked for at `asked`.
    pub fn granted(length: Duration, asked: BootTime) -> Self {
        Self { length, sent: VecDeque::new(), next: 1, answered: (0, asked), unconfirmed_since: None, judged: asked }
    }

    /// A beat, sent at `now`.
    pub fn beat(&mut self, now: BootTime) -> Beat {
        let number = self.next;
        self.next += 1;
        if self.sent.len() == BEATS_KEPT {
            self.sent.pop_front();
        }
        self.sent.push_back((number, now));
        let (answered, sent) = self.answered;
        Beat { number, answered, answered_age: now.since(sent) }
    }

    /// A beat was answered: the new end of the lease, where it moved.
    pub fn answered(&mut self, number: u64) -> Option<BootTime> {
        let position = self.sent.iter().position(|(sent, _)| *sent == number)?;
        let (_, sent) = self.sent[position];
        self.sent.drain(..=position);
        if sent <= self.answered.1 {
            return None;
        }
        self.answered = (number, sent);
        Some(self.end())
    }

    /// When the lease ends unless it is renewed.
    pub fn end(&self) -> BootTime {
        self.answered.1.plus(self.length)
    }

    /// Whether it has ended.
    pub fn is_over(&self, now: BootTime) -> bool {
        now >= self.end()
    }

    /// The guard was told a new kill time.
    pub fn told_guard(&mut self, now: BootTime) {
        self.unconfirmed_since.get_or_insert(now);
    }

    /// The guard counts on the kill time it was told last.
    pub fn guard_confirmed(&mut self) {
        self.unconfirmed_since = None;
    }

    /// Whether the guard has owed its word for half a lease: the node then ends, since nobody may be there to fence. A node that
    /// did not run itself for a third of a lease may just not have heard it yet, and begins to count anew.
    pub fn guard_is_silent(&mut self, now: BootTime) -> bool {
        let paused = now.since(self.judged) > self.length / 3;
        self.judged = now;
        if paused {
            self.unconfirmed_since = self.unconfirmed_since.map(|_| now);
        }
        self.unconfirmed_since.is_some_and(|since| now.since(since) >= self.length / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(2);

    fn at(ms: u64) -> BootTime {
        BootTime::after_boot(Duration::from_millis(ms))
    }

    #[test]
    fn an_answer_renews_from_when_its_beat_was_sent() {
        let mut lease = Lease::granted(LEASE, at(1_000));
        assert_eq!(lease.end(), at(3_000));
        let beat = lease.beat(at(1_200));
        assert_eq!((beat.number, beat.answered, beat.answered_age), (1, 0, Duration::from_millis(200)));
        assert_eq!(lease.answered(1), Some(at(3_200)), "whenever the answer came");
        assert!(!lease.is_over(at(3_199)) && lease.is_over(at(3_200)));
    }

    #[test]
    fn late_and_repeated_answers_renew_nothing() {
        let mut lease = Lease::granted(LEASE, at(0));
        lease.beat(at(100));
        lease.beat(at(300));
        assert_eq!(lease.answered(2), Some(at(2_300)));
        assert_eq!(lease.answered(1), None);
        assert_eq!(lease.answered(2), None);
        assert_eq!(lease.answered(9), None);
        assert_eq!(lease.end(), at(2_300));
    }

    /// Judges every 100 ms from `from` on, and says when the guard was found silent, before `until`.
    fn silent(lease: &mut Lease, from: u64, until: u64) -> Option<u64> {
        (from..until).step_by(100).find(|ms| lease.guard_is_silent(at(*ms)))
    }

    #[test]
    fn a_guard_that_owes_its_word_for_half_a_lease_is_silent() {
        let mut lease = Lease::granted(LEASE, at(0));
        lease.told_guard(at(100));
        lease.told_guard(at(900));
        assert_eq!(silent(&mut lease, 100, 9_000), Some(1_100));
        lease.guard_confirmed();
        assert_eq!(silent(&mut lease, 1_200, 9_000), None);
    }

    #[test]
    fn a_node_that_did_not_run_does_not_blame_its_guard() {
        let mut lease = Lease::granted(LEASE, at(0));
        lease.told_guard(at(100));
        assert_eq!(silent(&mut lease, 100, 300), None);
        assert!(!lease.guard_is_silent(at(60_000)), "the word may wait to be read");
        assert_eq!(silent(&mut lease, 60_100, 90_000), Some(61_000));
    }
}

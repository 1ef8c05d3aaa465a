//! How long a runner may act: pure arithmetic on moments of the boot clock.
//!
//! The lease counts from when the runner *sent* the beat that was answered (or the request that was granted), so that it
//! ends here before it ends for the leader, whatever the network did meanwhile.

use std::collections::VecDeque;
use std::time::Duration;

use crate::guard::{BootTime, FENCE_MARGIN};

/// From the kill time on, the guard has this long to say that it killed: it is scheduled within 100 ms, or the promise does
/// not hold.
const FENCE_PATIENCE: Duration = Duration::from_millis(100);
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
    /// When this node saw first that the kill time had come.
    kill_time_seen: Option<BootTime>,
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
        Self { length, sent: VecDeque::new(), next: 1, answered: (0, asked), kill_time_seen: None }
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

    /// When the newest beat was sent that was answered; where none was, the request that was granted.
    pub fn renewed(&self) -> BootTime {
        self.answered.1
    }

    /// Whether it has ended.
    pub fn is_over(&self, now: BootTime) -> bool {
        now >= self.end()
    }

    /// When the guard kills everything under this session, unless the lease is renewed.
    pub fn kill_at(&self) -> BootTime {
        self.end().minus(FENCE_MARGIN)
    }

    /// Notes at `now` whether the kill time has come, and says whether the guard ought to have said by now that it killed: the
    /// lease is over, and this node itself ran meanwhile, so that it would have heard it. A node that was stopped across the
    /// kill time cannot tell.
    pub fn fence_is_missing(&mut self, now: BootTime) -> bool {
        if now < self.kill_at() {
            self.kill_time_seen = None;
            return false;
        }
        let seen = *self.kill_time_seen.get_or_insert(now);
        self.is_over(now) && now.since(seen) >= FENCE_PATIENCE
    }

    /// When [`Self::fence_is_missing`] is to be asked next.
    pub fn next_look(&self, now: BootTime) -> BootTime {
        if now < self.kill_at() { self.kill_at() } else { self.end() }
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

    #[test]
    fn a_fence_is_missing_at_the_end_of_a_lease_whose_kill_time_was_seen() {
        let mut lease = Lease::granted(LEASE, at(0));
        assert_eq!(lease.next_look(at(0)), at(1_850));
        assert!(!lease.fence_is_missing(at(1_850)));
        assert_eq!(lease.next_look(at(1_850)), at(2_000));
        assert!(!lease.fence_is_missing(at(1_999)) && lease.fence_is_missing(at(2_000)));
    }

    #[test]
    fn a_node_that_slept_over_the_kill_time_misses_no_fence() {
        let mut lease = Lease::granted(LEASE, at(0));
        assert!(!lease.fence_is_missing(at(1_000)) && !lease.fence_is_missing(at(60_000)));
        let mut renewed = Lease::granted(LEASE, at(0));
        renewed.beat(at(1_840));
        assert!(!renewed.fence_is_missing(at(1_860)));
        renewed.answered(1);
        assert!(!renewed.fence_is_missing(at(3_600)) && !renewed.fence_is_missing(at(3_840)), "it counts anew");
    }
}

//! When a session is over, as the leader sees it: pure arithmetic on instants.
//!
//! A session stands for lease + margin from the *arrival* of the last beat that was answered; its runner counts the lease
//! from when it *sent* that beat, so the runner always ends first. A new leader, and one that did not run for a while, gives
//! every session a full lease.

use std::collections::BTreeMap;
use std::time::Duration;

use openraft::Instant;
use pando_protocol::ids::{NodeName, SessionId};

/// The time between the end of a lease for its runner and for the leader. It covers clock rates 0.1 % apart over a 20 s lease
/// and the guard's wakeup; the guard kills another 150 ms before the lease ends.
pub const MARGIN: Duration = Duration::from_millis(150);

/// Which session.
pub type Key = (NodeName, SessionId);

/// The sessions of a leadership.
#[derive(Debug)]
pub struct Leases<I> {
    lease: Duration,
    standing: BTreeMap<Key, Standing<I>>,
    last_look: I,
}

#[derive(Debug)]
struct Standing<I> {
    /// Silent beyond this: over.
    until: I,
    /// It was found over: never answered again, whatever comes.
    is_ending: bool,
}

impl<I: Instant> Leases<I> {
    /// A leadership begins at `now`: every session gets a full lease.
    pub fn take_over(now: I, lease: Duration, sessions: impl IntoIterator<Item = Key>) -> Self {
        let until = now + lease + MARGIN;
        let standing = sessions.into_iter().map(|key| (key, Standing { until, is_ending: false })).collect();
        Self { lease, standing, last_look: now }
    }

    /// Takes note of the time. A leader that did not run for a fifth of a lease cannot know what it missed: all that still
    /// stand get a full lease.
    pub fn look(&mut self, now: I) {
        let paused = now.saturating_duration_since(self.last_look) > self.lease / 5;
        self.last_look = now;
        if paused {
            let until = now + self.lease + MARGIN;
            self.standing
                .values_mut()
                .filter(|standing| !standing.is_ending)
                .for_each(|standing| standing.until = until);
        }
    }

    /// The longest time between two looks that does not count as a pause.
    pub fn longest_gap(&self) -> Duration {
        self.lease / 10
    }

    /// A session was granted.
    pub fn granted(&mut self, now: I, key: Key) {
        let until = now + self.lease + MARGIN;
        self.standing.entry(key).or_insert(Standing { until, is_ending: false });
    }

    /// A session is over in the state.
    pub fn over(&mut self, key: &Key) {
        self.standing.remove(key);
    }

    /// Whether a beat may be answered. Not where the session is unknown or ending, and not where the newest answer that its
    /// runner got is older than the lease: a cut one way must end too.
    pub fn may_answer(&self, key: &Key, answered_age: Duration) -> bool {
        self.standing.get(key).is_some_and(|standing| !standing.is_ending) && answered_age <= self.lease
    }

    /// A beat that arrived at `arrived` is being answered, after a proof of leadership that began later.
    pub fn answered(&mut self, key: &Key, arrived: I) {
        let until = arrived + self.lease + MARGIN;
        if let Some(standing) = self.standing.get_mut(key).filter(|standing| !standing.is_ending) {
            standing.until = standing.until.max(until);
        }
    }

    /// The sessions that are over at `now`. From here on none of them is answered; each is told once.
    pub fn overdue(&mut self, now: I) -> Vec<Key> {
        let over = |(key, standing): (&Key, &mut Standing<I>)| {
            let is_over = !standing.is_ending && standing.until <= now;
            standing.is_ending |= is_over;
            is_over.then(|| key.clone())
        };
        self.standing.iter_mut().filter_map(over).collect()
    }

    /// The end of that session could not be put into the log: try again.
    pub fn not_ended(&mut self, key: &Key) {
        if let Some(standing) = self.standing.get_mut(key) {
            // Still never answered: `until` lies in the past and stays there.
            standing.is_ending = false;
            standing.until = standing.until.min(self.last_look);
        }
    }

    /// When the next session is over if nothing comes.
    pub fn next_end(&self) -> Option<I> {
        self.standing.values().filter(|standing| !standing.is_ending).map(|standing| standing.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openraft::impls::TokioRuntime;

    type Moment = <TokioRuntime as openraft::AsyncRuntime>::Instant;
    const LEASE: Duration = Duration::from_secs(2);

    fn key() -> Key {
        ("n1".parse().unwrap(), SessionId(1))
    }

    /// Looks every 100 ms from `from` for `time`.
    fn pass(leases: &mut Leases<Moment>, from: Moment, time: Duration) -> Moment {
        let mut now = from;
        while now < from + time {
            now += Duration::from_millis(100);
            leases.look(now);
        }
        now
    }

    #[test]
    fn a_silent_session_is_over_after_lease_and_margin_and_is_told_once() {
        let start = Moment::now();
        let mut leases = Leases::take_over(start, LEASE, [key()]);
        let now = pass(&mut leases, start, LEASE);
        assert_eq!(leases.overdue(now), vec![]);
        assert!(leases.may_answer(&key(), Duration::ZERO));
        let now = pass(&mut leases, now, MARGIN);
        assert_eq!(leases.overdue(now), vec![key()]);
        assert!(!leases.may_answer(&key(), Duration::ZERO));
        assert_eq!(leases.overdue(now), vec![]);
    }

    #[test]
    fn an_answer_counts_from_the_arrival_of_its_beat() {
        let start = Moment::now();
        let mut leases = Leases::take_over(start, LEASE, [key()]);
        let now = pass(&mut leases, start, Duration::from_secs(1));
        leases.answered(&key(), start + Duration::from_millis(500));
        let now = pass(&mut leases, now, Duration::from_millis(1_600));
        assert_eq!(leases.overdue(now), vec![], "2.6 s after the start, 2.1 s after the beat");
        let now = pass(&mut leases, now, Duration::from_millis(100));
        assert_eq!(leases.overdue(now), vec![key()]);
    }

    #[test]
    fn a_leader_that_did_not_run_gives_every_session_a_full_lease() {
        let start = Moment::now();
        let mut leases = Leases::take_over(start, LEASE, [key()]);
        let late = start + LEASE + LEASE;
        leases.look(late);
        assert_eq!(leases.overdue(late), vec![]);
        let now = pass(&mut leases, late, LEASE + MARGIN);
        assert_eq!(leases.overdue(now), vec![key()]);
    }

    #[test]
    fn a_runner_that_hears_no_answers_is_not_answered_so_that_a_one_way_cut_ends() {
        let leases = Leases::take_over(Moment::now(), LEASE, [key()]);
        assert!(leases.may_answer(&key(), LEASE));
        assert!(!leases.may_answer(&key(), LEASE + Duration::from_millis(1)));
    }
}

//! When a session is over, as the leader sees it: pure arithmetic on instants.
//!
//! A session stands for lease + margin from the *arrival* of the last beat that was answered; its runner counts the lease
//! from when it *sent* that beat, so the runner always ends first. A new leader, and one that did not run for a while, gives
//! every session a full lease.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::Instant;
use pando_protocol::ids::{NodeName, SessionId};

/// The time between the end of a lease for its runner and for the leader. It covers clock rates 0.1 % apart over a 20 s lease
/// and the guard's wakeup; the guard kills another 150 ms before the lease ends.
pub const MARGIN: Duration = Duration::from_millis(150);

/// The pause before an end that could not be put into the log is tried again.
const RETRY: Duration = Duration::from_millis(100);

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
enum Standing<I> {
    /// Silent beyond this: over.
    Until(I),
    /// It was found over, and is never answered again, whatever comes. Its end goes into the log, for the next time at `again`.
    Ending { again: Option<I> },
}

impl<I: Instant> Leases<I> {
    /// A leadership begins at `now`: every session gets a full lease.
    pub fn take_over(now: I, lease: Duration, sessions: impl IntoIterator<Item = Key>) -> Self {
        let until = now + lease + MARGIN;
        let standing = sessions.into_iter().map(|key| (key, Standing::Until(until))).collect();
        Self { lease, standing, last_look: now }
    }

    /// Takes note of the time. A leader that did not run for a fifth of a lease cannot know what it missed: all that still
    /// stand get a full lease.
    pub fn look(&mut self, now: I) {
        let paused = now.saturating_duration_since(self.last_look) > self.lease / 5;
        self.last_look = now;
        if paused {
            let full = now + self.lease + MARGIN;
            for standing in self.standing.values_mut() {
                if let Standing::Until(until) = standing {
                    *until = full;
                }
            }
        }
    }

    /// The longest time between two looks that does not count as a pause.
    pub fn longest_gap(&self) -> Duration {
        self.lease / 10
    }

    /// A session was granted.
    pub fn granted(&mut self, now: I, key: Key) {
        let until = now + self.lease + MARGIN;
        self.standing.entry(key).or_insert(Standing::Until(until));
    }

    /// These sessions stand in the state: one that was not known (its grant was heard by nobody) gets a full lease, one that
    /// is known and stands no more is over.
    pub fn agree(&mut self, now: I, sessions: impl IntoIterator<Item = Key>) {
        let sessions: BTreeSet<Key> = sessions.into_iter().collect();
        self.standing.retain(|key, _| sessions.contains(key));
        for key in sessions {
            self.granted(now, key);
        }
    }

    /// A session is over in the state.
    pub fn over(&mut self, key: &Key) {
        self.standing.remove(key);
    }

    /// Whether a beat may be answered. Not where the session is unknown or ending, and not where the newest answer that its
    /// runner got is older than the lease: a cut one way must end too.
    pub fn may_answer(&self, key: &Key, answered_age: Duration) -> bool {
        matches!(self.standing.get(key), Some(Standing::Until(_))) && answered_age <= self.lease
    }

    /// A beat that arrived at `arrived` is being answered, after a proof of leadership that began later.
    pub fn answered(&mut self, key: &Key, arrived: I) {
        let renewed = arrived + self.lease + MARGIN;
        if let Some(Standing::Until(until)) = self.standing.get_mut(key) {
            *until = renewed.max(*until);
        }
    }

    /// The sessions whose end is to be put into the log at `now`: those that are over, and those whose end could not be put
    /// there before. None of them is ever answered again.
    pub fn overdue(&mut self, now: I) -> Vec<Key> {
        let mut overdue = Vec::new();
        for (key, standing) in &mut self.standing {
            let (Standing::Until(at) | Standing::Ending { again: Some(at) }) = standing else { continue };
            if *at <= now {
                *standing = Standing::Ending { again: None };
                overdue.push(key.clone());
            }
        }
        overdue
    }

    /// The end of that session could not be put into the log, or may yet appear there: it is tried again soon.
    pub fn not_ended(&mut self, now: I, key: &Key) {
        if let Some(standing) = self.standing.get_mut(key) {
            *standing = Standing::Ending { again: Some(now + RETRY) };
        }
    }

    /// When the next session is over if nothing comes, or the next end is tried again.
    pub fn next_end(&self) -> Option<I> {
        let moments = self.standing.values().filter_map(|standing| match standing {
            Standing::Until(at) | Standing::Ending { again: Some(at) } => Some(*at),
            Standing::Ending { again: None } => None,
        });
        moments.min()
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
    fn a_session_whose_end_may_be_in_the_log_is_never_answered_again_also_after_a_pause() {
        let start = Moment::now();
        let mut leases = Leases::take_over(start, LEASE, [key()]);
        let now = pass(&mut leases, start, LEASE + MARGIN);
        assert_eq!(leases.overdue(now), vec![key()]);
        leases.not_ended(now, &key());
        assert_eq!(leases.overdue(now), vec![], "not in a tight loop");
        let late = now + LEASE;
        leases.look(late);
        assert!(!leases.may_answer(&key(), Duration::ZERO));
        leases.answered(&key(), late);
        leases.granted(late, key());
        assert!(!leases.may_answer(&key(), Duration::ZERO));
        assert_eq!(leases.overdue(late), vec![key()]);
    }

    #[test]
    fn a_session_that_nobody_told_of_gets_a_lease_and_one_that_is_gone_is_forgotten() {
        let start = Moment::now();
        let mut leases = Leases::take_over(start, LEASE, []);
        leases.agree(start, [key()]);
        assert!(leases.may_answer(&key(), Duration::ZERO));
        assert_eq!(leases.next_end(), Some(start + LEASE + MARGIN));
        leases.agree(start, []);
        assert_eq!((leases.may_answer(&key(), Duration::ZERO), leases.next_end()), (false, None));
    }

    #[test]
    fn a_runner_that_hears_no_answers_is_not_answered_so_that_a_one_way_cut_ends() {
        let leases = Leases::take_over(Moment::now(), LEASE, [key()]);
        assert!(leases.may_answer(&key(), LEASE));
        assert!(!leases.may_answer(&key(), LEASE + Duration::from_millis(1)));
    }
}

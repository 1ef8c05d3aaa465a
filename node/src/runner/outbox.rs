//! Words that wait for the guard, and in which order it gets them.
//!
//! Starts wait behind everything else, and only a few of them are with the guard at a time: each costs it a fork, and a call that
//! waits behind hundreds of forks would make a busy guard look like one that hangs. Whatever overtakes a start means another run,
//! or a session that is over, for which the guard starts nothing; a word for the same run withdraws the start instead.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::OwnedFd;

use pando_protocol::ids::SessionId;

use crate::guard::socket::Parcel;
use crate::guard::words::{RunId, ToGuard};

/// Starts that are with the guard and not answered yet: enough to keep two cores busy, and so few that a machine on which each
/// takes 20 ms hears its guard within a third of the shortest lease's patience. The others wait here.
const STARTS_AT_ONCE: usize = 16;

/// Words that wait for the guard.
#[derive(Debug, Default)]
pub struct Outbox {
    parcels: VecDeque<(Option<Replaced>, Parcel)>,
    starts: VecDeque<(RunId, Parcel)>,
    /// Starts that were sent and are not answered.
    starting: BTreeSet<RunId>,
}

/// A word that replaces one of its kind that still waits, so that a guard that does not read cannot make the queue grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Replaced {
    /// A renewal of this session. It takes the place of the older one: what waits behind that one needs it.
    Renewal(SessionId),
    /// A call. It goes behind all that waits, because its answer says that this was heard.
    Call,
}

impl Outbox {
    /// Queues a word with its descriptors. Renewals and calls replace older ones that still wait.
    ///
    /// # Errors
    /// Where the word is larger than a word may be.
    pub fn push(&mut self, word: &ToGuard, descriptors: Vec<OwnedFd>) -> Result<(), String> {
        let parcel = Parcel::with(word, descriptors).map_err(|error| error.to_string())?;
        if let ToGuard::Start(order) = word {
            self.starts.push_back((order.run, parcel));
            return Ok(());
        }
        let tag = match word {
            ToGuard::Renew { session, .. } => Some(Replaced::Renewal(*session)),
            ToGuard::Call { .. } => Some(Replaced::Call),
            _ => None,
        };
        if tag == Some(Replaced::Call) {
            self.parcels.retain(|(waiting, _)| *waiting != tag);
        }
        match self.parcels.iter_mut().find(|(waiting, _)| tag.is_some() && *waiting == tag) {
            Some(waiting) => waiting.1 = parcel,
            None => self.parcels.push_back((tag, parcel)),
        }
        Ok(())
    }

    /// Queues a word that is small by its kind.
    pub fn say(&mut self, word: &ToGuard) {
        if let Err(error) = self.push(word, Vec::new()) {
            tracing::error!(?word, error, "a word for the guard cannot be written");
        }
    }

    /// What is to be sent next.
    pub fn front(&self) -> Option<&Parcel> {
        let start = || self.starts.front().filter(|_| self.starting.len() < STARTS_AT_ONCE).map(|(_, parcel)| parcel);
        self.parcels.front().map(|(_, parcel)| parcel).or_else(start)
    }

    /// The front was sent.
    pub fn sent(&mut self) {
        if self.parcels.pop_front().is_some() {
            return;
        }
        if let Some((run, _)) = self.starts.pop_front() {
            self.starting.insert(run);
        }
    }

    /// The guard said what came of a start, or that its run has ended.
    pub fn start_answered(&mut self, run: RunId) {
        self.starting.remove(&run);
    }

    /// Takes a start back. False where the guard has it, or there was none.
    pub fn withdraw(&mut self, run: RunId) -> bool {
        let before = self.starts.len();
        self.starts.retain(|(waiting, _)| *waiting != run);
        self.starts.len() < before
    }

    /// Nobody hears words any more.
    pub fn clear(&mut self) {
        self.parcels.clear();
        self.starts.clear();
    }
}

#[cfg(test)]
mod tests {
    use pando_protocol::ids::Incarnation;

    use super::*;
    use crate::guard::words::StartOrder;

    fn run(number: u64) -> RunId {
        RunId { incarnation: Incarnation(number), probe: 0 }
    }

    fn with_starts(count: u64) -> Outbox {
        let mut outbox = Outbox::default();
        for number in 1..=count {
            let order = StartOrder {
                run: run(number),
                session: SessionId(1),
                command: vec!["true".into()],
                environment: Vec::new(),
                folder: Vec::new(),
                make_folder: false,
                keep: false,
            };
            outbox.push(&ToGuard::Start(order), Vec::new()).unwrap();
        }
        outbox
    }

    /// Sends all that may be sent now, and says how many words that were.
    fn send(outbox: &mut Outbox) -> usize {
        let mut sent = 0;
        while outbox.front().is_some() {
            outbox.sent();
            sent += 1;
        }
        sent
    }

    #[test]
    fn a_call_waits_behind_a_few_starts_and_not_behind_hundreds() {
        let mut outbox = with_starts(300);
        assert_eq!(send(&mut outbox), STARTS_AT_ONCE);
        outbox.say(&ToGuard::Call { number: 1 });
        assert_eq!(send(&mut outbox), 1, "the call, and no start until one is answered");
        outbox.start_answered(run(1));
        outbox.start_answered(run(1));
        assert_eq!(send(&mut outbox), 1);
        (2..=300).for_each(|number| {
            outbox.start_answered(run(number));
            send(&mut outbox);
        });
        assert!(outbox.starts.is_empty() && outbox.starting.is_empty());
    }

    #[test]
    fn a_start_can_be_taken_back_until_the_guard_has_it() {
        let mut outbox = with_starts(STARTS_AT_ONCE as u64 + 1);
        send(&mut outbox);
        assert!(!outbox.withdraw(run(1)), "the guard has it");
        let last = run(STARTS_AT_ONCE as u64 + 1);
        assert!(outbox.withdraw(last) && !outbox.withdraw(last));
        outbox.start_answered(run(1));
        assert_eq!(send(&mut outbox), 0);
    }
}

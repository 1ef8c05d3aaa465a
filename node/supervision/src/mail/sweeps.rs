//! What is done with all messages of a mailbox: so many in each entry of the log, so that none takes long.
//!
//! ```text
//!   close, purge, another limit ──► a sweep begins: up to the newest message that there is
//!                                       │  the first of it in the same entry, the rest by the timer of the mailbox
//!                                       ▼
//!                                   one event with the count
//! ```
//!
//! Nothing is handed out meanwhile. A message that a worker gives back meanwhile is swept too, where its turn is still to come.
//! What closed a mailbox ends where it is opened again: what is there by then stays.

use std::time::Duration;

use pando_protocol::ids::Path;
use pando_protocol::mail::{DeathKind, Leftover};
use serde::{Deserialize, Serialize};

use super::{Mailbox, Message, State};
use crate::change::Change;
use crate::command::EventKind;
use crate::mutation::{Mutation, broken, swept_at_once};

/// Messages that one entry of the log sweeps: some milliseconds of every voter. More wait for the next one.
pub const SWEPT_AT_ONCE: usize = 1_000;
/// Cluster time until the next of a sweep: other commands come between.
pub(super) const NEXT_SWEEP: Duration = Duration::from_millis(1);

/// What a sweep does, in the order in which they are done where there are several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Chore {
    /// Messages that wait are purged.
    PurgeWaiting,
    /// The limit of attempts is another one: messages that wait are looked at again.
    Review,
    /// The mailbox is closed, and what waits is kept as dead letters.
    SetAside,
    /// Dead letters are purged, with their mailbox.
    PurgeDead,
}

/// How far a sweep is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    /// Messages up to this number were looked at.
    pub after: u64,
    /// The last number that is looked at.
    pub upto: u64,
    /// Messages to which something was done.
    pub count: u64,
}

impl Change<'_> {
    /// Goes on with the sweeps of a mailbox.
    pub(super) fn sweep(&mut self, at: &Path) {
        let mut left = if broken(Mutation::SweepsAtOnce) { usize::MAX } else { swept_at_once() };
        while left > 0 {
            let mailbox = self.mailbox(at);
            let Some((chore, sweep)) = mailbox.sweeps.iter().next().map(|(chore, sweep)| (*chore, *sweep)) else {
                return;
            };
            let numbers = mailbox.unswept(chore, sweep, left);
            let is_last = numbers.len() < left;
            left -= numbers.len();
            let mut count = sweep.count;
            for number in &numbers {
                count += u64::from(self.swept(at, chore, *number));
            }
            if is_last {
                self.mailbox(at).sweeps.remove(&chore);
                self.swept_all(at, chore, count);
            } else if let Some(sweep) = self.mailbox(at).sweeps.get_mut(&chore) {
                sweep.after = numbers.last().copied().unwrap_or(sweep.after);
                sweep.count = count;
            }
        }
    }

    /// A closed mailbox is open again: what is left in it stays.
    pub(super) fn end_closing(&mut self, at: &Path) {
        if self.mailbox(at).closed == Some(Leftover::Purge) {
            self.end_sweep(at, Chore::PurgeWaiting);
        }
        self.end_sweep(at, Chore::SetAside);
        self.end_sweep(at, Chore::PurgeDead);
    }

    /// Ends a sweep where it is, if there is one.
    pub(super) fn end_sweep(&mut self, at: &Path, chore: Chore) {
        if let Some(sweep) = self.mailbox(at).sweeps.remove(&chore) {
            self.swept_all(at, chore, sweep.count);
        }
    }

    /// Whether something was done to the message.
    fn swept(&mut self, at: &Path, chore: Chore, number: u64) -> bool {
        let now = self.now();
        if chore == Chore::PurgeDead {
            self.mailbox(at).purge_letter(now, number);
            return true;
        }
        let mailbox = self.mailbox(at);
        let waits = |message: &&Message| !matches!(message.state, State::Held(_));
        let Some(message) = mailbox.messages.get(&number).filter(waits) else { return false };
        match chore {
            Chore::PurgeWaiting => self.purge(at, number),
            Chore::SetAside => self.set_aside(at, number, DeathKind::Closed, CLOSED.into()),
            Chore::Review => {
                if message.trouble.is_none() || broken(Mutation::LimitsNotLowered) {
                    return false;
                }
                let charged = message.charged();
                if !mailbox.spec.max_attempts.are_spent(charged) {
                    let until = if let State::Delayed(until) = message.state { Some(until) } else { None };
                    // Where it is closed, all that waits has its own sweep.
                    if mailbox.closed.is_none() {
                        self.stand_again(at, number, until.filter(|until| *until > now));
                    }
                    return false;
                }
                let why = format!("{charged} attempts were charged to it, and max_attempts allows no more");
                self.set_aside(at, number, DeathKind::Attempts, why);
            }
            Chore::PurgeDead => {}
        }
        true
    }

    fn swept_all(&mut self, at: &Path, chore: Chore, count: u64) {
        if count == 0 {
            return;
        }
        let (kind, text) = match chore {
            Chore::PurgeWaiting => (EventKind::MailPurged, format!("{count} waiting messages of {at} were purged")),
            Chore::PurgeDead => (EventKind::MailPurged, format!("{count} dead letters of {at} were purged")),
            Chore::SetAside => (EventKind::MessageDead, format!("{count} messages of {at} are dead letters: {CLOSED}")),
            Chore::Review => {
                let why = "max_attempts allows no more attempts than they had";
                (EventKind::MessageDead, format!("{count} messages of {at} are dead letters: {why}"))
            }
        };
        self.event(kind, Some(at), None, text);
    }
}

impl Mailbox {
    /// A sweep over all that is there begins, or begins again.
    pub(super) fn begin_sweep(&mut self, chore: Chore) {
        let upto = self.named;
        let sweep = self.sweeps.entry(chore).or_default();
        (sweep.after, sweep.upto) = (0, upto);
    }

    fn unswept(&self, chore: Chore, sweep: Sweep, most: usize) -> Vec<u64> {
        let Sweep { after, upto, count: _ } = sweep;
        let is_meant = |number: &u64| *number <= upto;
        match chore {
            Chore::PurgeDead => {
                self.dead.range(after + 1..).map(|(number, _)| *number).take_while(is_meant).take(most).collect()
            }
            Chore::PurgeWaiting | Chore::Review | Chore::SetAside => {
                self.messages.range(after + 1..).map(|(number, _)| *number).take_while(is_meant).take(most).collect()
            }
        }
    }
}

/// Why a message dies with its mailbox.
pub(super) const CLOSED: &str = "its mailbox was taken out of its tree";

//! Dead letters: how a message becomes one, and what operators do with them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pando_protocol::ids::Path;
use pando_protocol::mail::{DeathKind, Leftover, Letters, Payload};
use pando_protocol::rejection::Rejection;

use super::blame::Verdict;
use super::sending::any_mailbox;
use super::sweeps::{CLOSED, Chore};
use super::{DeadLetter, IDS_KEPT, KeptReply, MAIL_REPLIES_KEPT, Mailbox, Message, State, Trouble};
use crate::change::Change;
use crate::command::EventKind;
use crate::mutation::{Mutation, broken};

/// Most dead letters that one request redrives or purges: with it, no entry of the log takes long.
pub const MOVED_AT_ONCE: usize = 1_000;

impl Change<'_> {
    /// Sets a message aside, and says so.
    pub(super) fn die(&mut self, at: &Path, number: u64, kind: DeathKind, why: String) {
        let Some(message) = self.mailbox(at).messages.get(&number) else { return };
        let id = message.content.shown_id(number);
        let text = format!("message {id} of {at} is a dead letter: {why}");
        self.set_aside(at, number, kind, why);
        self.event(EventKind::MessageDead, Some(at), None, text);
    }

    /// Sets a message aside, with all its evidence.
    pub(super) fn set_aside(&mut self, at: &Path, number: u64, kind: DeathKind, why: String) {
        let (now, wall) = (self.now(), self.wall);
        self.absolve(at, number, Verdict::Unknown);
        let mailbox = self.mailbox(at);
        let Some(message) = mailbox.take(number) else { return };
        let Message { content, trouble, state: _ } = message;
        if content.asks {
            mailbox.keep_reply(now, number, Err(format!("it is a dead letter: {why}")));
        }
        let trouble = trouble.unwrap_or_default();
        *mailbox.ledger.died.entry(kind).or_default() += 1;
        let letter = DeadLetter { content, trouble, kind, why, at: now, wall };
        mailbox.bytes += letter.weight();
        if broken(Mutation::DeadForgotten) {
            mailbox.bytes -= letter.weight();
        } else {
            mailbox.dead.insert(number, Arc::new(letter));
        }
    }

    /// A message leaves for good: it is done, or was purged.
    pub(super) fn end_message(&mut self, at: &Path, number: u64, reply: Result<Option<Payload>, String>) {
        let now = self.now();
        let mailbox = self.mailbox(at);
        let Some(message) = mailbox.take(number) else { return };
        if message.content.asks != broken(Mutation::RepliesSwapped) {
            mailbox.keep_reply(now, number, reply);
        }
        mailbox.remember_id(now, number, message.content.id.as_ref());
    }

    /// Gives dead letters another life.
    pub fn redrive(&mut self, from: &Path, letters: &Letters, rate: Option<u32>) -> Result<u64, Rejection> {
        let mailbox = any_mailbox(self.cluster, from)?;
        if mailbox.closed.is_some() {
            let why = "was taken out of its tree: apply a spec that has it, then redrive";
            return Err(Rejection::WrongState { path: from.clone(), why: why.into() });
        }
        if !mailbox.sweeps.is_empty() {
            let why = "is being swept: what is done with all that is in it takes a moment, so redrive then";
            return Err(Rejection::WrongState { path: from.clone(), why: why.into() });
        }
        if rate == Some(0) {
            return Err(Rejection::BadRequest("a rate of 0 redrives nothing: say 1 or more a second".into()));
        }
        let chosen = self.chosen(from, letters)?;
        let now = self.now();
        let mailbox = self.mailbox(from);
        for (turn, number) in (0..).zip(&chosen) {
            let Some(letter) = mailbox.dead.remove(number) else { continue };
            mailbox.bytes -= letter.weight();
            let mut trouble = letter.trouble.as_ref().clone();
            trouble.begin_life();
            let state = match rate.filter(|_| turn > 0 && !broken(Mutation::PaceIgnored)) {
                Some(rate) => State::Delayed(now + Duration::from_secs(1) * turn / rate),
                None => State::Again,
            };
            let content = letter.content.clone();
            mailbox.put(*number, Message { content, trouble: Some(Arc::new(trouble)), state });
        }
        let count = chosen.len() as u64;
        if count > 0 {
            let pace = rate.map_or_else(|| "at once".to_owned(), |rate| format!("at {rate} a second"));
            let text = format!("{count} dead letters of {from} were redriven by an operator, {pace}");
            self.event(EventKind::LettersRedriven, Some(from), None, text);
        }
        self.mail_changed(from);
        Ok(count)
    }

    /// Forgets dead letters.
    pub fn purge_dead(&mut self, from: &Path, letters: &Letters) -> Result<u64, Rejection> {
        let chosen = self.chosen(from, letters)?;
        let now = self.now();
        let mailbox = self.mailbox(from);
        for number in &chosen {
            mailbox.purge_letter(now, *number);
        }
        let count = chosen.len() as u64;
        if count > 0 {
            let text = format!("{count} dead letters of {from} were purged by an operator");
            self.event(EventKind::MailPurged, Some(from), None, text);
        }
        self.mail_changed(from);
        Ok(count)
    }

    /// Forgets the messages that wait; how many those are.
    pub fn purge_waiting(&mut self, from: &Path) -> Result<u64, Rejection> {
        let count = any_mailbox(self.cluster, from)?.waiting();
        self.mailbox(from).begin_sweep(Chore::PurgeWaiting);
        self.sweep(from);
        self.mail_changed(from);
        Ok(count)
    }

    pub(super) fn purge(&mut self, at: &Path, number: u64) {
        self.absolve(at, number, Verdict::Unknown);
        self.end_message(at, number, Err("it was purged by an operator".into()));
        self.mailbox(at).ledger.purged += u64::from(!broken(Mutation::PurgesUncounted));
    }

    /// What becomes of a message whose mailbox is closed.
    pub(super) fn leave_over(&mut self, at: &Path, number: u64) {
        match self.mailbox(at).closed {
            Some(Leftover::Purge) if !broken(Mutation::LeftoverMixed) => self.purge(at, number),
            Some(Leftover::Purge | Leftover::DeadLetter | Leftover::Refuse) | None => {
                self.die(at, number, DeathKind::Closed, CLOSED.into());
            }
        }
    }

    fn chosen(&self, from: &Path, letters: &Letters) -> Result<Vec<u64>, Rejection> {
        let mailbox = any_mailbox(self.cluster, from)?;
        let chosen: Vec<u64> = select(mailbox, letters, self.now()).collect();
        if chosen.len() > MOVED_AT_ONCE {
            let what = format!("{} dead letters in one request", chosen.len());
            return Err(Rejection::TooMany { what, limit: MOVED_AT_ONCE as u64 });
        }
        Ok(chosen)
    }
}

/// The numbers of the dead letters that are meant, in order.
pub fn select<'m>(mailbox: &'m Mailbox, letters: &'m Letters, now: Duration) -> impl Iterator<Item = u64> + 'm {
    // Those that are named are looked up; only a filter looks at all.
    let all = mailbox.dead.keys().copied().filter(|_| letters.ids.is_empty());
    let named: BTreeSet<u64> = letters.ids.iter().filter_map(|id| mailbox.number_of(id)).collect();
    let meant = move |number: &u64| mailbox.dead.get(number).is_some_and(|letter| is_meant(letter, letters, now));
    all.chain(named).filter(meant)
}

fn is_meant(letter: &DeadLetter, letters: &Letters, now: Duration) -> bool {
    let Letters { ids: _, cause, worker, older_than, text } = letters;
    let age = now.saturating_sub(letter.at);
    let says = |text: &String| {
        let mut attempts = letter.trouble.attempts.iter();
        letter.why.contains(text) || attempts.any(|one| one.why.contains(text) || one.stderr.contains(text))
    };
    let last = letter.trouble.attempts.last().map(|attempt| &attempt.worker);
    cause.is_none_or(|cause| letter.kind == cause)
        && worker.as_ref().is_none_or(|worker| last == Some(worker))
        && older_than.is_none_or(|least| age >= least)
        && text.as_ref().is_none_or(says)
}

impl Trouble {
    /// Attempts from zero, what happened before is kept.
    fn begin_life(&mut self) {
        self.life += 1;
        (self.undecided, self.node_losses) = (0, 0);
        (self.handed, self.accusation) = (false, None);
        if !broken(Mutation::RedriveKeepsCount) {
            self.charged = 0;
        }
    }
}

impl Mailbox {
    /// The number of the message with this id, as people see it.
    pub(super) fn number_of(&self, id: &str) -> Option<u64> {
        match id.strip_prefix('#') {
            Some(number) => number.parse().ok().filter(|number| *number <= self.named),
            None => self.ids.get(id).copied(),
        }
    }

    fn keep_reply(&mut self, now: Duration, number: u64, reply: Result<Option<Payload>, String>) {
        let reply = KeptReply { reply };
        self.bytes += reply.weight();
        self.replied.insert(number, now);
        // One that was redriven may end twice at one time.
        if let Some(former) = self.replies.insert((now, number), Arc::new(reply)) {
            self.bytes -= former.weight();
        }
        // Replies take the room of messages, and never more than there is: the newest one stays, so that its sender gets it.
        let is_over = |mailbox: &Self| mailbox.bytes > mailbox.spec.max_bytes && mailbox.replies.len() > 1;
        while self.replies.len() > MAIL_REPLIES_KEPT || is_over(self) {
            self.forget_oldest_reply();
        }
    }

    /// Forgets a dead letter for good.
    pub(super) fn purge_letter(&mut self, now: Duration, number: u64) {
        let Some(letter) = self.dead.remove(&number) else { return };
        self.bytes -= letter.weight();
        self.ledger.purged += 1;
        self.remember_id(now, number, letter.content.id.as_ref());
    }

    pub(super) fn forget_oldest_reply(&mut self) {
        let Some(oldest) = self.replies.get_min().map(|(key, _)| *key) else { return };
        if let Some(reply) = self.replies.remove(&oldest) {
            self.bytes -= reply.weight();
        }
        if self.replied.get(&oldest.1) == Some(&oldest.0) {
            self.replied.remove(&oldest.1);
        }
    }

    /// A message with a producer's id is gone: the id is known for a while.
    fn remember_id(&mut self, now: Duration, number: u64, id: Option<&Arc<str>>) {
        let Some(id) = id else { return };
        self.ended_ids.insert((now, number), id.clone());
        if self.ended_ids.len() > IDS_KEPT {
            self.forget_oldest_id();
        }
    }

    pub(super) fn forget_oldest_id(&mut self) {
        let Some(oldest) = self.ended_ids.get_min().map(|(key, _)| *key) else { return };
        let Some(id) = self.ended_ids.remove(&oldest) else { return };
        if self.ids.get(&id) == Some(&oldest.1) {
            self.ids.remove(&id);
        }
    }
}

impl KeptReply {
    /// What it counts against bounds of bytes.
    pub fn weight(&self) -> u64 {
        let bytes = match &self.reply {
            Ok(reply) => reply.as_ref().map_or(0, Payload::len),
            Err(why) => why.len(),
        };
        bytes as u64 + pando_protocol::mail::MESSAGE_OVERHEAD
    }
}

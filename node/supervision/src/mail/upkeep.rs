//! Mailboxes over time: opened and closed with their workers, changed by specs and operators, and what is due of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pando_protocol::ids::Path;
use pando_protocol::mail::Leftover;
use pando_protocol::message::{Difference, DifferenceKind};
use pando_protocol::rejection::Rejection;
use pando_protocol::spec::{MailboxSpec, SupervisorSpec, Work};

use super::sending::open_mailbox;
use super::sweeps::{Chore, NEXT_SWEEP, SWEPT_AT_ONCE};
use super::{IDS_KNOWN_FOR, Mailbox, REPLIES_KEPT_FOR};
use crate::change::Change;
use crate::command::EventKind;
use crate::mutation::{Mutation, broken};

/// What is kept for a time is forgotten in strokes of at least this, so that time alone makes few log entries.
const FORGET_EVERY: Duration = Duration::from_secs(10);
/// Ids that one stroke forgets. More are known for a stroke longer, which does no harm.
const FORGOTTEN_AT_ONCE: usize = 20_000;

impl Change<'_> {
    /// The mailbox at `path`, to be changed. Only called with paths that are known to have one.
    pub(super) fn mailbox(&mut self, path: &Path) -> &mut Mailbox {
        let mailbox = self.cluster.mail.get_mut(path).unwrap_or_else(|| panic!("no mailbox {path}"));
        Arc::make_mut(mailbox)
    }

    /// The mailbox that knows the worker at `path`, whatever its spec says by now.
    pub(super) fn mailbox_with(&self, worker: &Path) -> Option<Path> {
        let knows =
            |path: &Path| self.cluster.mailbox(path).is_some_and(|mailbox| mailbox.workers.contains_key(worker));
        [Some(worker.clone()), worker.parent()].into_iter().flatten().find(knows)
    }

    /// Notes that a mailbox changed: it is looked at before this application ends.
    pub(super) fn mail_changed(&mut self, path: &Path) {
        self.mail_to_hand_out.insert(path.clone());
    }

    /// Hands out of every mailbox that changed, and notes when each is due next.
    pub fn settle_mail(&mut self) {
        while let Some(path) = self.mail_to_hand_out.pop_first() {
            if self.cluster.mail.contains_key(&path) {
                self.hand_out(&path);
                self.sum_up(&path);
                self.reschedule(&path);
            }
        }
    }

    /// Keeps the sum of what all mailboxes weigh: no command walks through them for it.
    fn sum_up(&mut self, path: &Path) {
        let mailbox = self.mailbox(path);
        let (before, now) = (std::mem::replace(&mut mailbox.summed, mailbox.bytes), mailbox.bytes);
        if !broken(Mutation::SumForgotten) {
            self.cluster.head.mail_bytes = self.cluster.head.mail_bytes + now - before;
        }
    }

    /// Makes the mailboxes of a tree those of its spec. `leftover` says what becomes of the messages of others.
    pub fn put_mailboxes(&mut self, root: &Path, spec: Option<&SupervisorSpec>, leftover: Leftover) {
        let mut wanted = BTreeMap::new();
        if let Some(spec) = spec {
            mailboxes(root, spec, &mut wanted);
        }
        for path in self.mailboxes_below(root) {
            if !wanted.contains_key(&path) {
                self.close(&path, leftover);
            }
        }
        for (path, spec) in wanted {
            self.open(&path, spec);
        }
    }

    /// Refuses a change that would take away mailboxes with something in them.
    pub fn refuse_to_lose_mail(&self, root: &Path, spec: Option<&SupervisorSpec>) -> Result<(), Rejection> {
        let mut wanted = BTreeMap::new();
        if let Some(spec) = spec {
            mailboxes(root, spec, &mut wanted);
        }
        let holds =
            |path: &Path| self.cluster.mailbox(path).filter(|mailbox| mailbox.closed.is_none() && !mailbox.is_empty());
        for path in self.mailboxes_below(root).iter().filter(|path| !wanted.contains_key(path)) {
            if let Some(mailbox) = holds(path) {
                let (messages, dead) = (mailbox.messages.len(), mailbox.dead.len());
                let why = format!(
                    "would lose its mailbox, which holds {messages} messages and {dead} dead letters: nothing was changed. Say \
                     --dead-letter to keep them all as dead letters, or --purge to forget them"
                );
                return Err(Rejection::WrongState { path: path.clone(), why });
            }
        }
        Ok(())
    }

    fn mailboxes_below(&self, root: &Path) -> BTreeSet<Path> {
        self.cluster.mail.keys().filter(|path| path.is_within(root)).cloned().collect()
    }

    fn open(&mut self, path: &Path, spec: &MailboxSpec) {
        let known = self.cluster.mailbox(path).map(|mailbox| (mailbox.spec.clone(), mailbox.closed));
        if known == Some((spec.clone(), None)) {
            return;
        }
        if known.is_none() {
            self.cluster.mail.insert(path.clone(), Arc::default());
        }
        let was_closed = known.is_some_and(|(_, closed)| closed.is_some());
        if was_closed && !broken(Mutation::SweepGoesOn) {
            self.end_closing(path);
        }
        let mailbox = self.mailbox(path);
        // Those that have had as many attempts as are allowed now are set aside, and those that wait for a verdict may not need it;
        // what was left when it was closed was not looked at meanwhile.
        if was_closed || mailbox.spec.max_attempts != spec.max_attempts {
            mailbox.begin_sweep(Chore::Review);
        }
        (mailbox.spec, mailbox.closed) = (spec.clone(), None);
        mailbox.recount_free();
        self.sweep(path);
        self.mail_changed(path);
    }

    /// Takes a mailbox away. Workers that hold messages may still settle them.
    fn close(&mut self, path: &Path, leftover: Leftover) {
        let mailbox = self.mailbox(path);
        if mailbox.closed.is_some() && leftover != Leftover::Purge {
            return;
        }
        mailbox.closed = Some(leftover);
        match leftover {
            Leftover::Purge => {
                self.end_sweep(path, Chore::SetAside);
                let mailbox = self.mailbox(path);
                mailbox.begin_sweep(Chore::PurgeWaiting);
                mailbox.begin_sweep(Chore::PurgeDead);
            }
            Leftover::DeadLetter | Leftover::Refuse => mailbox.begin_sweep(Chore::SetAside),
        }
        self.event(EventKind::MailboxClosed, Some(path), None, format!("the mailbox {path} was taken out of its tree"));
        self.sweep(path);
        self.mail_changed(path);
    }

    /// Hands nothing out of a mailbox until it is resumed.
    pub fn pause(&mut self, path: &Path) -> Result<Vec<Difference>, Rejection> {
        self.set_paused(path, true, EventKind::MailboxPaused, "was paused by an operator: nothing is handed out")
    }

    /// Hands out of a mailbox again.
    pub fn resume(&mut self, path: &Path) -> Result<Vec<Difference>, Rejection> {
        self.set_paused(path, false, EventKind::MailboxResumed, "was resumed by an operator")
    }

    fn set_paused(
        &mut self,
        path: &Path,
        paused: bool,
        kind: EventKind,
        text: &str,
    ) -> Result<Vec<Difference>, Rejection> {
        open_mailbox(self.cluster, path)?;
        if std::mem::replace(&mut self.mailbox(path).paused, paused) == paused {
            return Ok(Vec::new());
        }
        self.event(kind, Some(path), None, format!("the mailbox {path} {text}"));
        self.mail_changed(path);
        Ok(vec![Difference { path: path.clone(), what: DifferenceKind::Changed, keys: vec!["paused".into()] }])
    }

    /// What is due of a mailbox: retry delays that are over, and what was kept for a time.
    pub fn mail_due(&mut self, path: &Path) {
        let now = self.now();
        if !self.cluster.mail.contains_key(path) {
            return;
        }
        let mailbox = self.mailbox(path);
        mailbox.wake = None;
        mailbox.forget_old(now);
        self.sweep(path);
        // What failed together is due together: no entry of the log takes long for it. Nothing is handed out before all is swept.
        let most = if self.mailbox(path).sweeps.is_empty() { SWEPT_AT_ONCE } else { 0 };
        for _ in 0..most {
            let first = self.mailbox(path).queues.delayed.get_min().copied();
            let Some((_, number)) = first.filter(|(until, _)| *until <= now) else { break };
            self.stand_again(path, number, None);
        }
        self.mail_changed(path);
    }

    /// Puts a message that waits to where it belongs now.
    pub(super) fn stand_again(&mut self, path: &Path, number: u64, until: Option<Duration>) {
        let Some(message) = self.mailbox(path).messages.get(&number) else { return };
        let was_handed = message.trouble.as_ref().is_some_and(|trouble| trouble.handed);
        self.put_back_until(path, number, until);
        // Waiting is no hand-out: one of a new life has had none yet.
        self.mailbox(path).trouble(number, |trouble| trouble.handed = was_handed);
    }

    /// Notes when something of a mailbox is due next; forgets one that is closed and empty.
    fn reschedule(&mut self, path: &Path) {
        let now = self.now();
        let mailbox = self.mailbox(path);
        let (was, wake) = (mailbox.wake, mailbox.due(now));
        mailbox.wake = wake;
        let is_over = mailbox.closed.is_some() && mailbox.is_empty() && mailbox.sweeps.is_empty();
        if was != wake || is_over {
            if let Some(was) = was {
                self.cluster.mail_timers.remove(&(was, path.clone()));
            }
            if let Some(wake) = wake.filter(|_| !is_over) {
                self.cluster.mail_timers.insert((wake, path.clone()));
            }
        }
        if is_over && let Some(mailbox) = self.cluster.mail.remove(path) {
            self.cluster.head.mail_bytes -= mailbox.summed; // Replies may be left.
        }
    }
}

impl Mailbox {
    /// When something of it is due.
    fn due(&self, now: Duration) -> Option<Duration> {
        let soon = now + NEXT_SWEEP;
        // Entries may come faster than that: what is set already stays, or it would never be due.
        let soon = self.wake.filter(|wake| *wake > now).map_or(soon, |wake| wake.min(soon));
        let sweep = (!self.sweeps.is_empty()).then_some(soon);
        // Those that are due already were too many for one entry.
        let retry = self.queues.delayed.get_min().map(|(until, _)| if *until > now { *until } else { soon });
        let id = self.ended_ids.get_min().map(|((at, _), _)| *at + IDS_KNOWN_FOR);
        let reply = self.replies.get_min().map(|((at, _), _)| *at + REPLIES_KEPT_FOR);
        let forget = id.into_iter().chain(reply).min().map(|at| at.max(now + FORGET_EVERY));
        // One that is set already is not moved by what comes after it.
        let forget = forget.map(|at| self.wake.filter(|wake| *wake > now && *wake < at).unwrap_or(at));
        retry.into_iter().chain(sweep).chain(forget).min()
    }

    fn forget_old(&mut self, now: Duration) {
        let is_old = |at: Duration, kept: Duration| now.saturating_sub(at) >= kept;
        for _ in 0..if broken(Mutation::IdsKnownForEver) { 0 } else { FORGOTTEN_AT_ONCE } {
            if !self.ended_ids.get_min().is_some_and(|((at, _), _)| is_old(*at, IDS_KNOWN_FOR)) {
                break;
            }
            self.forget_oldest_id();
        }
        while self.replies.get_min().is_some_and(|((at, _), _)| is_old(*at, REPLIES_KEPT_FOR)) {
            self.forget_oldest_reply();
        }
    }
}

/// The mailboxes of a spec, by path.
fn mailboxes<'s>(at: &Path, spec: &'s SupervisorSpec, found: &mut BTreeMap<Path, &'s MailboxSpec>) {
    for child in &spec.children {
        let path = at.child(&child.id);
        match &child.work {
            Work::Supervisor(below) => mailboxes(&path, below, found),
            Work::Process(process) => found.extend(process.mailbox.as_ref().map(|mailbox| (path, mailbox))),
            Work::Pool(pool) => found.extend(pool.process.mailbox.as_ref().map(|mailbox| (path, mailbox))),
        }
    }
}

//! The books of one mailbox: who should pay, written down a second time from design section 7, naively, from what was said.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pando_protocol::ids::{Incarnation, NodeName, Path, SessionId};
use pando_protocol::mail::{AttemptEnd, DeathKind, Leftover, Letters, NewMessage, Word};
use pando_protocol::message::{Change, Changed, MailChanged};
use pando_protocol::session::Observation;
use pando_protocol::spec::{MailboxSpec, SupervisorSpec, TreeSpec, Work};
use pando_supervision::cluster::{Cluster, Run, Session};
use pando_supervision::mail::{Chore, Mailbox, Payer, State};
use pando_supervision::{Applied, Command, Done, EventKind};

use crate::rules::payers::Step;

/// How long ids are known after their messages are gone.
const KNOWN_FOR: Duration = Duration::from_secs(600);
/// A worker that settled nothing for so long gets nothing ahead.
const STUCK_AFTER: Duration = Duration::from_millis(100);
/// The growth of retry delays ends at this many times the first.
const GROWTH: u32 = 64;

/// What the books say of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    life: u32,
    charged: u32,
    losses: u32,
    accused: bool,
    group: Option<u64>,
    last: Option<Path>,
    place: Place,
    /// The earliest and the latest end of the retry delay that began last.
    delay: Option<(Duration, Duration)>,
    id: Option<String>,
    /// Whether its sender waits for a reply.
    asks: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Waiting,
    Held(Hand),
    Done,
    Dead(DeathKind),
    Purged,
}

/// Which hand, of which session.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Hand {
    node: NodeName,
    session: SessionId,
    number: u64,
    worker: Path,
    incarnation: Incarnation,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Standing {
    /// Messages, with their lives, that it crashed on with no success between.
    streak: Vec<(u64, u32)>,
    sick: bool,
}

#[derive(Debug, Clone)]
struct Group {
    worker: Path,
    open: BTreeSet<u64>,
    explained: bool,
}

/// The books.
#[derive(Debug, Clone, Default)]
pub struct Books {
    at: Option<Path>,
    spec: MailboxSpec,
    closed: Option<Leftover>,
    entries: BTreeMap<u64, Entry>,
    workers: BTreeMap<Path, Standing>,
    /// Messages that each run of a worker settled so far, and when the last.
    settled: BTreeMap<Incarnation, (u32, Duration)>,
    groups: BTreeMap<u64, Group>,
    last_group: u64,
    ids: BTreeMap<String, (u64, Option<Duration>)>,
    named: u64,
    /// What is to be done with all messages up to the newest, from this step on.
    begun: BTreeMap<Chore, u64>,
    /// Messages that were done, set aside or purged in this step.
    ended: BTreeSet<u64>,
    /// Crashes that workers pay for late in this step.
    late: Vec<Path>,
    /// Kinds of things that happened, to see what a run reached.
    pub reached: BTreeMap<&'static str, u64>,
}

impl Books {
    /// Books of the mailbox at `at`.
    pub fn new(at: Path) -> Self {
        Self { at: Some(at), ..Self::default() }
    }

    /// Takes a step into the books, and compares.
    ///
    /// # Errors
    /// What the books and the state do not agree on.
    pub fn note(&mut self, step: Step<'_>, applied: &Applied) -> Result<(), String> {
        self.late.clear();
        let now = step.now();
        self.ended.clear();
        self.begun.clear();
        self.ids.retain(|_, (_, ended)| ended.is_none_or(|at| now - at < KNOWN_FOR));
        let paid = self.say(step, applied)?;
        let Some(at) = self.at.clone() else { return Ok(()) };
        self.sweep(step, &at);
        self.workers_gone(step.after);
        let Some(mailbox) = step.after.mailbox(&at) else { return self.is_over() };
        let held_nothing: BTreeSet<Path> =
            self.workers.keys().filter(|path| self.held_by(path) == 0).cloned().collect();
        let untried = self.is_untried(mailbox);
        self.judge(mailbox, &held_nothing, untried, now)?;
        self.hand_out(step, mailbox)?;
        self.compare(step, mailbox)?;
        self.budgets(step, paid)
    }

    /// How many wait or are held.
    pub fn open(&self) -> usize {
        self.entries.values().filter(|entry| matches!(entry.place, Place::Waiting | Place::Held(_))).count()
    }

    /// Those that died of this.
    pub fn dead_of(&self, kind: DeathKind) -> usize {
        self.entries.values().filter(|entry| entry.place == Place::Dead(kind)).count()
    }

    fn reach(&mut self, what: &'static str) {
        *self.reached.entry(what).or_default() += 1;
    }

    /// What was said. The worker that a budget pays for, where an ending was told.
    fn say(&mut self, step: Step<'_>, applied: &Applied) -> Result<Option<Path>, String> {
        match step.command {
            Command::Write(write) => {
                let known = step.before.clients.get(&write.client);
                let is_new = known.is_none_or(|client| !client.replies.contains_key(&write.sequence));
                if let (true, Ok(Done::Changed(changed))) = (is_new, &applied.outcome) {
                    self.change(step, &write.change, changed)?;
                }
                Ok(None)
            }
            Command::Observe { node, session, .. } => match step.word() {
                Some(Observation::Settled(settlements)) => {
                    for settlement in settlements {
                        self.settle(node, *session, settlement.hand, &settlement.word, step.now());
                    }
                    Ok(None)
                }
                Some(Observation::Exited { started, .. }) => {
                    let Some((path, run)) = step.meant() else { return Ok(None) };
                    let asked = run.stopping.is_some();
                    let free = self.over(path, run, started, asked, step);
                    Ok((!free && !asked).then(|| path.clone()))
                }
                Some(Observation::Left) => {
                    self.lost(node, *session, step.now());
                    Ok(None)
                }
                _ => Ok(None),
            },
            Command::GrantSession(request) => {
                let known = step.before.nodes.get(&request.node);
                let is_new = known.is_none_or(|node| node.sessions.values().all(|one| one.nonce != request.nonce));
                for session in request.proven_over.iter().filter(|_| is_new) {
                    self.lost(&request.node, *session, step.now());
                }
                Ok(None)
            }
            Command::EndSession { node, session, .. } => {
                self.lost(node, *session, step.now());
                Ok(None)
            }
            Command::Tick | Command::RaiseRules(_) => Ok(None),
        }
    }

    fn change(&mut self, step: Step<'_>, change: &Change, changed: &Changed) -> Result<(), String> {
        let now = step.now();
        let at = self.at.clone().ok_or("no mailbox")?;
        let moved = if let Some(MailChanged::Moved(count)) = &changed.mail { *count } else { 0 };
        match change {
            Change::Send { to, messages, asks } if *to == at => self.sent(step, messages, *asks, changed)?,
            Change::Apply(spec) | Change::ApplyLeaving(spec, _) => self.applied(step, spec),
            Change::Scale { pool, .. } => {
                if let Some(spec) = step.after.trees.get(&pool.tree()) {
                    self.applied(step, spec);
                }
            }
            Change::DeleteLeaving(_, leftover) => {
                if self.closed.is_some() && *leftover != Leftover::Purge {
                    return Ok(()); // What was said first holds.
                }
                self.closed = Some(*leftover);
                if *leftover == Leftover::Purge {
                    self.begun.extend([(Chore::PurgeWaiting, self.named), (Chore::PurgeDead, self.named)]);
                } else {
                    self.begun.insert(Chore::SetAside, self.named);
                }
            }
            Change::Redrive { letters, rate, .. } => {
                let chosen = self.chosen(letters);
                if chosen.len() as u64 != moved {
                    return Err(format!("{moved} were redriven, expected {chosen:?}"));
                }
                for (turn, number) in (0..).zip(chosen) {
                    let Some(entry) = self.entries.get_mut(&number) else { continue };
                    entry.life += 1;
                    (entry.charged, entry.losses, entry.group, entry.place) = (0, 0, None, Place::Waiting);
                    let begins = rate.filter(|_| turn > 0).map(|rate| now + Duration::from_secs(1) * turn / rate);
                    entry.delay = begins.filter(|begins| *begins > now).map(|begins| (begins, begins));
                    self.reach("redriven");
                }
            }
            Change::PurgeDead { letters, .. } => {
                let chosen = self.chosen(letters);
                if chosen.len() as u64 != moved {
                    return Err(format!("{moved} were purged, expected {chosen:?}"));
                }
                chosen.into_iter().for_each(|number| self.end(number, Place::Purged, now));
            }
            Change::PurgeWaiting(_) => _ = self.begun.insert(Chore::PurgeWaiting, self.named),
            _ => {}
        }
        Ok(())
    }

    fn all(&self, which: impl Fn(&Entry) -> bool) -> Vec<u64> {
        self.entries.iter().filter(|(_, entry)| which(entry)).map(|(number, _)| *number).collect()
    }

    fn chosen(&self, letters: &Letters) -> Vec<u64> {
        let shown = |number: u64| self.entries[&number].id.clone().unwrap_or_else(|| format!("#{number}"));
        let mut dead = self.all(is_dead);
        dead.retain(|number| letters.ids.is_empty() || letters.ids.contains(&shown(*number)));
        dead
    }

    fn sent(&mut self, step: Step<'_>, messages: &[NewMessage], asks: bool, changed: &Changed) -> Result<(), String> {
        let mut weight = 0;
        let Some(MailChanged::Sent(sent)) = &changed.mail else { return Err("a send is not answered as one".into()) };
        let mut known = Vec::new();
        for (index, message) in (0u32..).zip(messages) {
            let id = message.id.as_ref().map(ToString::to_string);
            if let Some((number, _)) = id.as_ref().and_then(|id| self.ids.get(id)) {
                known.push((index, *number));
                continue;
            }
            self.named += 1;
            weight += message.weight();
            self.ids.extend(id.clone().map(|id| (id, (self.named, None))));
            let place = Place::Waiting;
            let entry = Entry {
                life: 1,
                charged: 0,
                losses: 0,
                accused: false,
                group: None,
                last: None,
                place,
                delay: None,
                id,
                asks,
            };
            self.entries.insert(self.named, entry);
        }
        let told: Vec<(u32, u64)> = sent.known.iter().map(|known| (known.index, known.number)).collect();
        if told != known {
            return Err(format!("each id is taken in once: known were {known:?}, told {told:?}"));
        }
        let holds = self.entries.values().filter(|entry| !matches!(entry.place, Place::Done | Place::Purged)).count();
        if sent.accepted > 0 && holds > self.spec.max_messages as usize {
            return Err(format!("a mailbox of {} took in more and holds {holds}", self.spec.max_messages));
        }
        let held = self.at.as_ref().and_then(|at| step.before.mailbox(at)).map_or(0, |mailbox| mailbox.bytes);
        if sent.accepted > 0 && held + weight > self.spec.max_bytes {
            return Err(format!("a mailbox of {} bytes held {held} and took in {weight}", self.spec.max_bytes));
        }
        if !known.is_empty() {
            self.reach("known by its id");
        }
        Ok(())
    }

    fn applied(&mut self, step: Step<'_>, spec: &TreeSpec) {
        let Some(at) = self.at.clone() else { return };
        // Workers of another version begin anew; so do those that are taken back while they were being removed.
        let paths: Vec<Path> = self.workers.keys().cloned().collect();
        for path in paths {
            let process = |cluster: &Cluster| {
                let mut spec = cluster.process(&path).map(|process| process.spec.as_ref().clone());
                spec.iter_mut().for_each(|spec| spec.mailbox = None);
                spec
            };
            let was_removed = step.before.member(&path).is_some_and(|member| member.removed);
            let is_removed = step.after.member(&path).is_none_or(|member| member.removed);
            if process(step.before) != process(step.after) || (was_removed && !is_removed) {
                self.replaced(&path, step.now());
            }
        }
        let Some(mailbox) = mailbox_of(&spec.root, &Path::root(&spec.name), &at) else { return };
        let was_closed = self.closed.take().is_some();
        if was_closed && step.before.mailbox(&at).is_some_and(|mailbox| !mailbox.sweeps.is_empty()) {
            self.reach("opened while it was closed");
        }
        if was_closed || self.spec.max_attempts != mailbox.max_attempts {
            self.begun.insert(Chore::Review, self.named);
        }
        self.spec = mailbox;
    }

    /// Takes over how far the state is with what is to be done with all messages, and does it with those.
    fn sweep(&mut self, step: Step<'_>, at: &Path) {
        let was_purged = step.before.mailbox(at).is_some_and(|mailbox| mailbox.closed == Some(Leftover::Purge));
        let under_way = |cluster: &Cluster, chore| Some(*cluster.mailbox(at)?.sweeps.get(&chore)?);
        for chore in [Chore::PurgeWaiting, Chore::Review, Chore::SetAside, Chore::PurgeDead] {
            let (before, after) = (under_way(step.before, chore), under_way(step.after, chore));
            let (from, upto) = match (self.begun.get(&chore), before) {
                (Some(upto), _) => (0, *upto),
                (None, Some(sweep)) => (sweep.after, sweep.upto),
                (None, None) => continue,
            };
            // What closes a mailbox goes no further where it is open again, or closed in another way.
            let goes_on = match chore {
                Chore::SetAside => self.closed.is_some_and(|leftover| leftover != Leftover::Purge),
                Chore::PurgeDead => self.closed == Some(Leftover::Purge),
                Chore::PurgeWaiting => !was_purged || self.closed == Some(Leftover::Purge),
                Chore::Review => true,
            };
            if !goes_on {
                continue;
            }
            let to = after.map_or(upto, |sweep| sweep.after);
            if after.is_some() {
                self.reach("swept in steps");
            }
            let numbers: Vec<u64> =
                self.entries.keys().copied().filter(|number| from < *number && *number <= to).collect();
            for number in numbers {
                self.swept(number, chore, step.now());
            }
        }
    }

    fn swept(&mut self, number: u64, chore: Chore, now: Duration) {
        let is_dead = is_dead(&self.entries[&number]);
        if chore == Chore::PurgeDead && is_dead {
            self.end(number, Place::Purged, now);
        }
        if self.entries[&number].place != Place::Waiting {
            return;
        }
        match chore {
            Chore::PurgeWaiting => {
                self.absolve(number, true);
                self.end(number, Place::Purged, now);
                let is_closed = self.closed.is_some();
                self.reach(if is_closed { "purged with its mailbox" } else { "purged while waiting" });
            }
            Chore::Review if self.is_spent(number) => {
                self.die(number, DeathKind::Attempts);
                self.reach("died of a lower limit");
            }
            Chore::Review if self.closed.is_none() && self.spec.max_attempts.are_spent(self.counted(number)) => {
                // It waits for a verdict now, and for nothing else afterwards.
                self.entries.entry(number).and_modify(|entry| entry.delay = None);
            }
            Chore::SetAside => {
                self.die(number, DeathKind::Closed);
                self.reach("died with its mailbox");
            }
            Chore::Review | Chore::PurgeDead => {}
        }
    }

    fn workers_gone(&mut self, after: &Cluster) {
        let gone: Vec<Path> = self.workers.keys().filter(|path| after.member(path).is_none()).cloned().collect();
        for path in gone {
            self.replaced(&path, after.head.now);
            self.workers.remove(&path);
        }
    }

    fn settle(&mut self, node: &NodeName, session: SessionId, hand: u64, word: &Word, now: Duration) {
        let is_it = |entry: &Entry| matches!(&entry.place, Place::Held(held) if (&held.node, held.session, held.number) == (node, session, hand));
        let Some(number) = self.all(is_it).first().copied() else { return };
        let Some(Place::Held(held)) = self.entries.get(&number).map(|entry| entry.place.clone()) else { return };
        let settled = self.settled.entry(held.incarnation).or_default();
        *settled = (settled.0 + 1, now);
        if let Some(entry) = self.entries.get_mut(&number).filter(|_| !matches!(word, Word::Done { .. })) {
            entry.last = Some(held.worker.clone());
        }
        match word {
            Word::Done { .. } => {
                self.absolve(number, false);
                self.end(number, Place::Done, now);
                self.is_well(&held.worker, now);
            }
            Word::Failed { .. } => {
                self.absolve(number, false);
                self.charge(number);
                self.put_back(number, Some(self.counted(number)), now);
                self.reach("failed");
            }
            Word::Rejected { .. } => {
                self.absolve(number, false);
                self.die(number, DeathKind::Rejected);
                self.reach("rejected");
            }
            Word::Returned => {
                self.put_back(number, None, now);
                self.reach("returned");
            }
        }
    }

    /// A run is over. Whether the budget goes free.
    fn over(&mut self, path: &Path, run: &Run, started: &[u64], asked: bool, step: Step<'_>) -> bool {
        let now = step.now();
        let (mut accused, mut neighbours) = (Vec::new(), Vec::new());
        for (number, entry) in &self.entries {
            let Place::Held(held) = &entry.place else { continue };
            if held.worker != *path || held.incarnation != run.incarnation {
                continue;
            }
            let has_started = started.contains(&held.number);
            if has_started && !asked { accused.push(*number) } else { neighbours.push((*number, has_started)) }
        }
        for (number, has_started) in neighbours {
            if has_started {
                self.entries.entry(number).and_modify(|entry| entry.last = Some(path.clone()));
                self.reach("returned by a stop");
            }
            self.put_back(number, None, now);
        }
        for number in &accused {
            self.entries.entry(*number).and_modify(|entry| {
                entry.last = Some(path.clone());
                entry.accused = true;
            });
        }
        match accused.as_slice() {
            [] => false,
            [number] => self.dies_alone(*number, path, step),
            several => {
                self.last_group += 1;
                let name = self.last_group;
                let open = several.iter().copied().collect();
                self.groups.insert(name, Group { worker: path.clone(), open, explained: false });
                for number in several {
                    self.entries.entry(*number).and_modify(|entry| entry.group = Some(name));
                    self.put_back(*number, None, now);
                }
                self.reach("several accused");
                true
            }
        }
    }

    /// A worker died with one started message. Whether its budget goes free.
    fn dies_alone(&mut self, number: u64, path: &Path, step: Step<'_>) -> bool {
        let now = step.now();
        self.absolve(number, true);
        let life = self.entries[&number].life;
        let standing = self.workers.entry(path.clone()).or_default();
        if standing.sick {
            self.put_back(number, Some(self.counted(number).max(1)), now);
            self.reach("a probe crashed");
            return false;
        }
        standing.streak.push((number, life));
        self.put_back(number, Some(self.counted(number)), now);
        self.reach("crashed alone");
        let standing = &self.workers[path];
        let different: BTreeSet<u64> = standing.streak.iter().map(|(number, _)| *number).collect();
        let enough = different.len() >= self.spec.suspect_after as usize;
        let mailbox = self.at.as_ref().and_then(|at| step.after.mailbox(at));
        if enough && mailbox.is_some_and(|mailbox| self.is_untried(mailbox)) {
            self.workers.entry(path.clone()).or_default().sick = true;
            self.reach("taken for sick");
        }
        true
    }

    fn lost(&mut self, node: &NodeName, session: SessionId, now: Duration) {
        let is_it =
            |entry: &Entry| matches!(&entry.place, Place::Held(held) if held.node == *node && held.session == session);
        let held = self.all(is_it);
        let suspects = held.iter().filter(|number| self.entries[number].losses > 0).count();
        for number in &held {
            let Some(entry) = self.entries.get_mut(number) else { continue };
            let Place::Held(hand) = &entry.place else { continue };
            entry.last = Some(hand.worker.clone());
            entry.accused = true;
            entry.losses += 1;
            let (losses, most) = (entry.losses, self.spec.max_node_losses);
            let alone = if most == 1 { held.len() == 1 } else { losses > 1 && suspects == 1 };
            if losses >= most && alone {
                self.absolve(*number, true);
                self.die(*number, DeathKind::NodeLosses);
                self.reach("died of losses");
            } else {
                self.put_back(*number, None, now);
                self.reach("lost with its node");
            }
        }
    }

    /// `explains`: it did it, or cannot be tried any more.
    fn absolve(&mut self, number: u64, explains: bool) {
        let Some(name) = self.entries.get_mut(&number).and_then(|entry| entry.group.take()) else { return };
        let Some(group) = self.groups.get_mut(&name) else { return };
        group.open.remove(&number);
        group.explained |= explains;
        if group.open.is_empty() {
            let Group { worker, explained, .. } = group.clone();
            self.groups.remove(&name);
            if !explained {
                self.late.push(worker);
                self.reach("the budget pays late");
            }
        }
    }

    fn counted(&self, number: u64) -> u32 {
        let entry = &self.entries[&number];
        entry.charged + self.undecided(number)
    }

    fn undecided(&self, number: u64) -> u32 {
        let life = self.entries[&number].life;
        let strikes = self.workers.values().flat_map(|standing| &standing.streak);
        u32::try_from(strikes.filter(|strike| **strike == (number, life)).count()).unwrap_or(u32::MAX)
    }

    fn is_spent(&self, number: u64) -> bool {
        self.spec.max_attempts.are_spent(self.entries[&number].charged)
    }

    fn charge(&mut self, number: u64) {
        self.entries.entry(number).and_modify(|entry| entry.charged += 1);
    }

    /// A message that was held waits again, or is dead. `after`: the retry delay after so many attempts begins.
    fn put_back(&mut self, number: u64, after: Option<u32>, now: Duration) {
        let delay = after.map(|attempts| {
            let growth = 2u32.saturating_pow(attempts.saturating_sub(1)).min(GROWTH);
            let least = self.spec.retry_delay * growth;
            (now + least, now + least + least / 4)
        });
        let is_spent = self.is_spent(number);
        let closed = self.closed;
        // One that waits for a verdict waits for nothing else afterwards.
        let is_undecided = self.spec.max_attempts.are_spent(self.counted(number));
        if let Some(entry) = self.entries.get_mut(&number) {
            (entry.place, entry.delay) = (Place::Waiting, delay.filter(|(least, _)| *least > now && !is_undecided));
        }
        match closed {
            _ if is_spent => {
                self.die(number, DeathKind::Attempts);
                self.reach("died of attempts");
            }
            Some(Leftover::Purge) => {
                self.absolve(number, true);
                self.end(number, Place::Purged, now);
                self.reach("purged with its mailbox");
            }
            Some(_) => {
                self.die(number, DeathKind::Closed);
                self.reach("died with its mailbox");
            }
            None => {}
        }
    }

    fn die(&mut self, number: u64, kind: DeathKind) {
        self.absolve(number, true);
        self.ended.insert(number);
        self.entries.entry(number).and_modify(|entry| entry.place = Place::Dead(kind));
    }

    fn end(&mut self, number: u64, place: Place, now: Duration) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        entry.place = place;
        self.ended.insert(number);
        if let Some(known) = entry.id.as_ref().and_then(|id| self.ids.get_mut(id)) {
            known.1 = Some(now);
        }
    }

    fn is_well(&mut self, worker: &Path, now: Duration) {
        let standing = self.workers.entry(worker.clone()).or_default();
        if std::mem::take(&mut standing.sick) {
            self.reach("well again");
        }
        self.pay(worker, true, now);
    }

    fn replaced(&mut self, worker: &Path, now: Duration) {
        let Some(standing) = self.workers.get_mut(worker) else { return };
        let was_sick = std::mem::take(&mut standing.sick);
        if was_sick {
            self.reach("replaced while sick");
        }
        self.pay(worker, !was_sick, now);
    }

    /// A streak ends, and its messages pay or nobody does.
    fn pay(&mut self, worker: &Path, messages_pay: bool, now: Duration) {
        let strikes = self.workers.get_mut(worker).map(|standing| std::mem::take(&mut standing.streak));
        for (number, life) in strikes.unwrap_or_default() {
            let Some(entry) = self.entries.get(&number).filter(|entry| entry.life == life) else { continue };
            let is_waiting = entry.place == Place::Waiting;
            if !messages_pay || !(is_waiting || matches!(entry.place, Place::Held(_))) {
                continue;
            }
            self.charge(number);
            if is_waiting && self.is_spent(number) && self.closed.is_none() {
                let delay = self.entries[&number].delay;
                self.put_back(number, None, now);
                self.entries.entry(number).and_modify(|entry| entry.delay = delay);
            }
        }
    }

    fn held_by(&self, worker: &Path) -> usize {
        self.held(worker).count()
    }

    fn held(&self, worker: &Path) -> impl Iterator<Item = u64> {
        let is_its = move |entry: &Entry| matches!(&entry.place, Place::Held(held) if held.worker == *worker);
        self.entries.iter().filter(move |(_, entry)| is_its(entry)).map(|(number, _)| *number)
    }

    fn is_fresh(&self, number: u64, mailbox: &Mailbox) -> bool {
        let entry = &self.entries[&number];
        let waits_out = mailbox.messages.get(&number).is_some_and(|one| matches!(one.state, State::Delayed(_)));
        entry.place == Place::Waiting && !entry.accused && entry.life == 1 && !waits_out
    }

    /// Whether a message is there that was never accused.
    fn is_untried(&self, mailbox: &Mailbox) -> bool {
        self.entries.keys().any(|number| self.is_fresh(*number, mailbox))
    }

    /// Takes over which streaks ended because nothing is left to try their workers with, where that was so.
    fn judge(
        &mut self,
        mailbox: &Mailbox,
        held_nothing: &BTreeSet<Path>,
        untried: bool,
        now: Duration,
    ) -> Result<(), String> {
        let workers: Vec<Path> = self.workers.keys().cloned().collect();
        for path in &workers {
            if self.workers[path].streak.is_empty() {
                continue;
            }
            let is_over = mailbox.workers.get(path).is_none_or(|worker| worker.streak.is_empty());
            let must = !untried && held_nothing.contains(path);
            let may = held_nothing.contains(path) && mailbox.queues.fresh.is_empty();
            if is_over && !may {
                return Err(format!("the messages of {path} pay before its verdict: {:?}", self.workers[path]));
            }
            if must && !is_over {
                return Err(format!("nothing is left to try {path} with, and its messages do not pay"));
            }
            if is_over {
                self.workers.entry(path.clone()).and_modify(|standing| standing.sick = false);
                self.pay(path, true, now);
                self.reach("nothing left to try");
            }
        }
        Ok(())
    }

    /// Takes over what was handed out, where that was allowed.
    fn hand_out(&mut self, step: Step<'_>, mailbox: &Mailbox) -> Result<(), String> {
        let (after, now) = (step.after, step.now());
        let mut handed = BTreeSet::new();
        for (number, hand) in hands(after, self.at.as_ref()) {
            let Some(entry) = self.entries.get(&number) else { return Err(format!("{number} is not known and held")) };
            if entry.place == Place::Held(hand.clone()) {
                continue;
            }
            if entry.place != Place::Waiting {
                return Err(format!("{number} is handed out to {hand:?} while it is {:?}", entry.place));
            }
            if mailbox.paused || self.closed.is_some() {
                return Err(format!("{number} is handed out of a mailbox that is paused or closed"));
            }
            if self.spec.max_attempts.are_spent(self.counted(number)) {
                return Err(format!("{number} had all its attempts and is handed out: {entry:?}"));
            }
            if entry.group.is_none() && entry.delay.is_some_and(|(least, _)| now < least) {
                return Err(format!("{number} is handed out in its retry delay: {entry:?}"));
            }
            let run = after.run(&hand.worker);
            if run.is_none_or(|run| run.incarnation != hand.incarnation || run.stopping.is_some()) {
                return Err(format!("{number} is handed to a run that is over or stops: {hand:?}"));
            }
            handed.insert(number);
            self.entries.entry(number).and_modify(|entry| (entry.place, entry.delay) = (Place::Held(hand), None));
        }
        let workers: BTreeSet<Path> = handed.iter().filter_map(|number| self.holder(*number)).collect();
        for worker in &workers {
            self.is_allowed(worker, mailbox, now)?;
        }
        let before = self.at.as_ref().and_then(|at| step.before.mailbox(at));
        let well = well_all_the_time(before, mailbox);
        for number in &handed {
            self.is_well_chosen(*number, mailbox, &well)?;
        }
        Ok(())
    }

    fn holder(&self, number: u64) -> Option<Path> {
        match &self.entries.get(&number)?.place {
            Place::Held(held) => Some(held.worker.clone()),
            _ => None,
        }
    }

    /// Whether a worker may hold what it holds.
    fn is_allowed(&self, worker: &Path, mailbox: &Mailbox, now: Duration) -> Result<(), String> {
        let holds: Vec<u64> = self.held(worker).collect();
        let is_sick = self.workers.get(worker).is_some_and(|standing| standing.sick);
        let run = mailbox.workers.get(worker).and_then(|worker| worker.run.as_ref());
        let most = match run {
            Some(run) if run.readiness.starts && !is_sick => {
                let (settled, last) = self.settled.get(&run.incarnation).copied().unwrap_or_default();
                if run.pace.ahead > settled {
                    return Err(format!(
                        "{worker} has settled {settled}, and may hold {} ahead of that",
                        run.pace.ahead
                    ));
                }
                let in_doubt = self.workers.values().any(|standing| !standing.streak.is_empty());
                let was_lowered = self.spec.prefetch < run.readiness.prefetch;
                let is_stuck = now.saturating_sub(last) >= STUCK_AFTER;
                let ahead = if in_doubt || was_lowered || is_stuck { 0 } else { run.pace.ahead };
                run.readiness.prefetch.min(self.spec.prefetch).max(1) + ahead
            }
            _ => 1,
        };
        if holds.len() > most as usize {
            return Err(format!("{worker} may hold {most} and holds {holds:?}"));
        }
        if holds.len() > 1 && holds.iter().any(|number| self.entries[number].group.is_some()) {
            return Err(format!("suspects are handed out alone, and {worker} holds {holds:?}"));
        }
        Ok(())
    }

    /// `well`: workers that were under no suspicion all the time.
    fn is_well_chosen(&self, number: u64, mailbox: &Mailbox, well: &BTreeSet<Path>) -> Result<(), String> {
        let entry = &self.entries[&number];
        let Place::Held(hand) = &entry.place else { return Ok(()) };
        if self.workers.get(&hand.worker).is_some_and(|standing| standing.sick) {
            let later = self.entries.keys().any(|other| *other > number && self.is_fresh(*other, mailbox));
            if entry.accused || later {
                return Err(format!("{} is tried with {number}, and not from the far end: {entry:?}", hand.worker));
            }
        }
        let was_accused = entry.accused || entry.life > 1;
        let in_doubt = self.workers.get(&hand.worker).is_some_and(|standing| !standing.streak.is_empty());
        if let Some(other) = well.iter().next().filter(|_| was_accused && in_doubt) {
            return Err(format!(
                "{number} was accused and goes to {}, which is in doubt; {other} is well",
                hand.worker
            ));
        }
        let on = |other: &Entry| matches!(&other.place, Place::Held(held) if held.node == hand.node);
        if entry.losses > 0 && self.entries.iter().any(|(n, other)| *n != number && other.losses > 0 && on(other)) {
            return Err(format!("suspects of a loss are kept on different nodes, and {number} is not"));
        }
        let has_suspects = !mailbox.queues.suspects.is_empty() || !mailbox.queues.risky_suspects.is_empty();
        // One that is taken for sick is tried with whatever there is.
        let is_sick = self.workers.get(&hand.worker).is_some_and(|standing| standing.sick);
        if entry.last.as_ref() == Some(&hand.worker) && !has_suspects && !is_sick {
            let fits = |path: &Path| {
                let run = mailbox.workers.get(path).and_then(|worker| worker.run.as_ref());
                let node = run.map(|run| run.node.clone());
                let risky = |other: &Entry| {
                    other.losses > 0 && matches!(&other.place, Place::Held(held) if Some(&held.node) == node.as_ref())
                };
                (entry.losses == 0 || !self.entries.values().any(risky))
                    && (entry.group.is_none() || self.held_by(path) == 0)
            };
            // What is handed ahead is owed to nobody.
            let has_room = |path: &&Path| {
                let run = mailbox.workers.get(*path).and_then(|worker| worker.run.as_ref());
                run.is_some_and(|run| {
                    self.held_by(path) < run.readiness.prefetch.min(self.spec.prefetch).max(1) as usize
                })
            };
            let mut free = mailbox.free.iter().map(|(_, path)| path).filter(has_room);
            let is_well = |path: &&Path| {
                !self.workers.get(*path).is_some_and(|standing| standing.sick) && (!was_accused || well.contains(*path))
            };
            if let Some(other) = free.find(|path| **path != hand.worker && is_well(path) && fits(path)) {
                return Err(format!("{number} goes to {} again, and {other} is free: {entry:?}", hand.worker));
            }
        }
        Ok(())
    }

    fn compare(&self, step: Step<'_>, mailbox: &Mailbox) -> Result<(), String> {
        let now = step.now();
        // What is due is looked at once all sweeps are done, by the timer that goes on with them.
        let is_looked_at = mailbox.sweeps.is_empty() && *step.command == Command::Tick;
        for (number, entry) in &self.entries {
            let (message, letter) = (mailbox.messages.get(number), mailbox.dead.get(number));
            let trouble = message.and_then(|one| one.trouble.as_ref()).or(letter.map(|letter| &letter.trouble));
            let undecided = if message.is_some() { self.undecided(*number) } else { 0 };
            let there = message.is_some() || letter.is_some();
            let has_reply = mailbox.replied.contains_key(number);
            if has_reply != entry.asks && (has_reply || self.ended.contains(number)) {
                return Err(format!(
                    "whoever asks is answered, and nobody else: {number} has a reply {has_reply}, {entry:?}"
                ));
            }
            let is = trouble.map_or((1, 0, 0, false, false), |one| {
                (one.life, one.charged, one.node_losses, one.accused, one.accusation.is_some())
            });
            let expected = (entry.life, entry.charged, entry.losses, entry.accused, entry.group.is_some());
            if there && is != expected {
                return Err(format!("who pays: {number} is {is:?}, by the books {expected:?}: {trouble:?}"));
            }
            let is_undecided = message.and_then(|one| one.trouble.as_ref()).map_or(0, |one| one.undecided);
            if is_undecided != undecided {
                return Err(format!("{number} has {is_undecided} undecided, by the books {undecided}"));
            }
            let state = message.map(|one| one.state);
            let agrees = match &entry.place {
                Place::Held(hand) => state == Some(State::Held(hand.number)),
                Place::Waiting => state.is_some_and(|state| !matches!(state, State::Held(_))),
                Place::Dead(kind) => message.is_none() && letter.is_some_and(|letter| letter.kind == *kind),
                Place::Done | Place::Purged => !there,
            };
            if !agrees {
                let died = letter.map(|letter| &letter.why);
                return Err(format!("{number} is {state:?}, dead {died:?}, by the books {entry:?}; {trouble:?}"));
            }
            if let Some(State::Delayed(until)) = state {
                let is_right = entry.delay.is_some_and(|(least, most)| (least..=most).contains(&until));
                if !is_right || (until <= now && is_looked_at) {
                    return Err(format!("{number} waits until {until:?} at {now:?}, by the books {:?}", entry.delay));
                }
            }
        }
        for (path, worker) in &mailbox.workers {
            let nothing = Standing::default();
            let expected = self.workers.get(path).unwrap_or(&nothing);
            let streak: Vec<(u64, u32)> = worker.streak.iter().map(|strike| (strike.message, strike.life)).collect();
            if (&streak, worker.sick) != (&expected.streak, expected.sick) {
                return Err(format!("{path} has {streak:?}, sick {}: by the books {expected:?}", worker.sick));
            }
        }
        let count = |which: fn(&Entry) -> bool| self.entries.values().filter(|entry| which(entry)).count() as u64;
        let (done, purged) = (count(|entry| entry.place == Place::Done), count(|entry| entry.place == Place::Purged));
        let ledger = &mailbox.ledger;
        if (ledger.enqueued, ledger.done, ledger.purged) != (self.entries.len() as u64, done, purged) {
            return Err(format!(
                "{ledger:?}, by the books {} in all, {done} done, {purged} purged",
                self.entries.len()
            ));
        }
        Ok(())
    }

    /// Budgets pay for what no message pays for, and for nothing else.
    fn budgets(&self, step: Step<'_>, paid: Option<Path>) -> Result<(), String> {
        for (path, member) in &step.after.members {
            let Some(old) = step.before.member(path).filter(|_| step.after.process(path).is_some()) else { continue };
            let is_wanted = |member: &pando_supervision::cluster::Member| !member.removed && !member.held;
            // One crash too many restarts nothing: it escalates.
            let above = path.parent().and_then(|above| step.after.supervisor(&above));
            if !is_wanted(old)
                || !is_wanted(member)
                || !above.is_some_and(pando_supervision::cluster::Supervisor::is_up)
            {
                continue;
            }
            let expected = self.late.iter().chain(&paid).filter(|payer| *payer == path).count() as u64;
            let charged = member.charged_restarts() - old.charged_restarts();
            if charged != expected {
                let last = member.history.last();
                return Err(format!("the budget of {path} pays {charged} times, by the books {expected}: {last:?}"));
            }
        }
        Ok(())
    }

    /// The mailbox was forgotten: nothing may be left of it.
    fn is_over(&mut self) -> Result<(), String> {
        if self.open() > 0 || self.entries.values().any(is_dead) {
            return Err(format!(
                "the mailbox was forgotten with {:?}",
                self.all(|entry| entry.place == Place::Waiting)
            ));
        }
        let (at, reached) = (self.at.take(), std::mem::take(&mut self.reached));
        *self = Self { at, reached, ..Self::default() };
        Ok(())
    }

    /// No innocent message was charged by a crash: `is_innocent` tells them by their payload.
    ///
    /// # Errors
    /// One was.
    pub fn innocents_are_not_charged(mailbox: &Mailbox, is_innocent: impl Fn(&[u8]) -> bool) -> Result<(), String> {
        let waiting =
            mailbox.messages.iter().filter_map(|(number, one)| Some((number, &one.content, one.trouble.as_ref()?)));
        let dead = mailbox.dead.iter().map(|(number, letter)| (number, &letter.content, &letter.trouble));
        for (number, content, trouble) in
            waiting.chain(dead).filter(|(_, content, _)| is_innocent(content.payload.bytes()))
        {
            let pays = |payer: Payer| matches!(payer, Payer::Message | Payer::Undecided);
            if let Some(attempt) = trouble.attempts.iter().find(|one| one.how == AttemptEnd::Crashed && pays(one.payer))
            {
                return Err(format!("{number} harms nobody and is charged by a crash: {attempt:?}, {content:?}"));
            }
        }
        Ok(())
    }
}

/// Workers that were ready and under no suspicion before a step, and are the same after it.
fn well_all_the_time(before: Option<&Mailbox>, after: &Mailbox) -> BTreeSet<Path> {
    let well = |mailbox: &Mailbox, path: &Path| {
        let worker = mailbox.workers.get(path).filter(|worker| worker.streak.is_empty())?;
        Some(worker.run.as_ref().filter(|run| !run.stopping)?.incarnation)
    };
    let is_well = |path: &&Path| {
        let now = well(after, path);
        now.is_some() && now == before.and_then(|before| well(before, path))
    };
    after.workers.keys().filter(is_well).cloned().collect()
}

/// Events of a kind in what a step did.
pub fn count(applied: &Applied, kind: EventKind) -> usize {
    applied.events.iter().filter(|event| event.kind == kind).count()
}

fn is_dead(entry: &Entry) -> bool {
    matches!(entry.place, Place::Dead(_))
}

/// Every hand of a mailbox in the state, by message.
fn hands(cluster: &Cluster, of: Option<&Path>) -> Vec<(u64, Hand)> {
    let of_session = |node: &NodeName, id: SessionId, session: &Session| -> Vec<(u64, Hand)> {
        let held = session.hands.iter().filter(|(_, held)| Some(&held.mailbox) == of);
        let hand = |(number, held): (&u64, &pando_supervision::mail::Held)| {
            let (worker, incarnation) = (held.worker.clone(), held.incarnation);
            (held.message, Hand { node: node.clone(), session: id, number: *number, worker, incarnation })
        };
        held.map(hand).collect()
    };
    let sessions =
        cluster.nodes.iter().flat_map(|(name, node)| node.sessions.iter().map(move |(id, one)| (name, id, one)));
    sessions.flat_map(|(name, id, session)| of_session(name, *id, session)).collect()
}

fn mailbox_of(supervisor: &SupervisorSpec, at: &Path, of: &Path) -> Option<MailboxSpec> {
    supervisor.children.iter().find_map(|child| {
        let path = at.child(&child.id);
        match &child.work {
            Work::Pool(pool) if path == *of => pool.process.mailbox.clone(),
            Work::Process(process) if path == *of => process.mailbox.clone(),
            Work::Supervisor(below) => mailbox_of(below, &path, of),
            Work::Pool(_) | Work::Process(_) => None,
        }
    })
}

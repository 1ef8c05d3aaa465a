//! The desk of one run: what its worker holds, what it says of it, and when it has been silent for too long. No IO and no clock.
//!
//! ```text
//!   hands ──► waiting ── a line ──► given ── started ──► started ── done, failed, returned ──► settled
//!                                     │                     │  no progress: hung
//!                                     └─ none started: idle ┘
//! ```
//!
//! It decides that a run is to be killed, and says it once; it does not kill. Messages of a run that has ended go with the desk.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use pando_protocol::mail::{Hand, MAX_FAILURE, Readiness, Settlement, Word};
use pando_protocol::worker::{
    FromWorker, Line, MAX_LINE, Message, NONSENSE_IN_A_ROW, NONSENSE_IN_A_RUN, READY_WITHIN, ToWorker,
};

/// Lines are written together up to this many bytes.
const WRITE_BYTES: usize = 64 << 10;
/// A process that dies closes its socket a moment before its death is heard of. One that lives on after this has closed it.
const CLOSED_PATIENCE: Duration = Duration::from_secs(1);

/// What a run's spec says about its desk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// A message that was started is hung after this long without progress.
    pub handling_timeout: Duration,
    /// Most messages that a worker may ask to hold.
    pub prefetch: u32,
    /// Whether the worker's `ready` is what makes its run ready.
    pub makes_ready: bool,
}

/// Why a run is to be killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It was not ready in this time.
    Unready(Duration),
    /// It worked on these hands without progress for this long.
    Hung {
        /// For how long.
        limit: Duration,
        /// The hands.
        hands: BTreeSet<u64>,
    },
    /// It held messages and started none for this long.
    Idle(Duration),
    /// It said too much that cannot be taken; the last of it.
    Nonsense(String),
    /// It closed its socket and went on running.
    Closed,
}

/// What the cluster is to be told, and whether the run is to be killed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// What the worker is ready for. Once in a run.
    pub ready: Option<Readiness>,
    /// What it settled, in order.
    pub settlements: Vec<Settlement>,
    /// The run is to be killed. Once in a run.
    pub verdict: Option<Verdict>,
}

/// What a run leaves behind.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Remains {
    /// The hands that it had started and not settled.
    pub started: Vec<u64>,
    /// Those of them that the verdict blames, where it was killed for one.
    pub blamed: Vec<u64>,
}

/// The desk.
#[derive(Debug)]
pub struct Desk {
    terms: Terms,
    /// When its process began; the time to be ready counts from there.
    began: Option<Instant>,
    readiness: Option<Readiness>,
    /// The number of the newest hand; older ones are late.
    newest: u64,
    held: BTreeMap<u64, Stage>,
    /// Those of them to which somebody waits for a reply.
    asked: BTreeSet<u64>,
    /// Messages that the worker was given, by their ids.
    numbers: HashMap<String, u64>,
    /// Hands whose messages the worker was not given yet.
    waiting: VecDeque<(u64, Message)>,
    /// Other lines for it.
    lines: VecDeque<ToWorker>,
    /// When each started message was last heard of.
    heard_of: BTreeSet<(Instant, u64)>,
    /// Since when it holds messages and works on none.
    idle_since: Option<Instant>,
    closed_since: Option<Instant>,
    nonsense_in_a_row: u32,
    nonsense: u32,
    stopping: bool,
    /// Since when nobody reads what it says: that time does not count against it.
    held_up: Option<Instant>,
    verdict: Option<Verdict>,
}

/// How far a message is that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The worker does not know of it.
    Waiting,
    /// It was told, or is just being told.
    Given,
    /// It works on it, and was last heard of then.
    Started(Instant),
}

impl Desk {
    /// An empty one.
    pub fn new(terms: Terms) -> Self {
        Self {
            terms,
            began: None,
            readiness: None,
            newest: 0,
            held: BTreeMap::new(),
            asked: BTreeSet::new(),
            numbers: HashMap::new(),
            waiting: VecDeque::new(),
            lines: VecDeque::new(),
            heard_of: BTreeSet::new(),
            idle_since: None,
            closed_since: None,
            nonsense_in_a_row: 0,
            nonsense: 0,
            stopping: false,
            held_up: None,
            verdict: None,
        }
    }

    /// The process has begun.
    pub fn begun(&mut self, now: Instant) {
        self.began.get_or_insert(now);
    }

    /// Takes hands; late ones are left out.
    pub fn hand(&mut self, hands: Vec<Hand>, now: Instant) {
        for Hand { number, worker: _, incarnation: _, id, attempt, life, asks, headers, payload } in hands {
            if number <= self.newest {
                continue;
            }
            self.newest = number;
            self.held.insert(number, Stage::Waiting);
            if asks {
                self.asked.insert(number);
            }
            self.waiting.push_back((number, Message { id, attempt, life, payload, headers }));
        }
        self.look_for_work(now);
    }

    /// The run is being stopped: nothing more is given out, and nobody judges it.
    pub fn stop(&mut self) {
        if !std::mem::replace(&mut self.stopping, true) {
            self.lines.push_back(ToWorker::Stop);
        }
    }

    /// What the worker says is not read any more, or again from `now` on: what had passed of its times before goes on from there,
    /// so that a hold that comes and goes saves no worker that hangs.
    pub fn hold_up(&mut self, holds: bool, now: Instant) {
        if holds {
            self.held_up.get_or_insert(now);
            return;
        }
        let Some(since) = self.held_up.take() else { return };
        let later = |at: Instant| at + now.saturating_duration_since(at.max(since));
        self.began = self.began.map(later);
        self.idle_since = self.idle_since.map(later);
        self.heard_of =
            std::mem::take(&mut self.heard_of).into_iter().map(|(at, number)| (later(at), number)).collect();
        for (at, number) in &self.heard_of {
            self.held.insert(*number, Stage::Started(*at));
        }
    }

    /// Whether the worker is not to be read. One that stops is: it says what became of what it holds.
    pub fn is_held_up(&self) -> bool {
        self.held_up.is_some() && !self.stopping
    }

    /// The worker said this.
    pub fn hear(&mut self, line: Line<'_>, now: Instant, told: &mut Told) {
        let heard = match line {
            Line::Whole(line) => FromWorker::parse(line).and_then(|word| self.take(word, now, told)),
            Line::TooLong => Err(format!("a line of more than {MAX_LINE} bytes")),
        };
        match heard {
            Ok(()) => self.nonsense_in_a_row = 0,
            Err(why) => self.complain(why, told),
        }
    }

    /// The worker says and hears nothing any more.
    pub fn closed(&mut self, now: Instant) {
        self.closed_since.get_or_insert(now);
    }

    /// When to [`Self::judge`] at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        if self.stopping || self.held_up.is_some() || self.verdict.is_some() {
            return None;
        }
        // It can say nothing more for itself: all else is over with it.
        if let Some(since) = self.closed_since {
            return Some(since + CLOSED_PATIENCE);
        }
        let unready = self.began.filter(|_| self.terms.makes_ready && self.readiness.is_none());
        let hung = self.heard_of.first().map(|(at, _)| *at + self.terms.handling_timeout);
        let idle = self.idle_since.map(|since| since + self.terms.handling_timeout);
        [unready.map(|began| began + READY_WITHIN), hung, idle].into_iter().flatten().min()
    }

    /// Whether it has been silent for too long. What it said before `now` must have been heard.
    pub fn judge(&mut self, now: Instant, told: &mut Told) {
        if self.deadline().is_none_or(|deadline| deadline > now) {
            return;
        }
        let limit = self.terms.handling_timeout;
        let is_over = |since: Option<Instant>, limit| since.is_some_and(|since| now >= since + limit);
        let hung = self.heard_of.iter().take_while(|(at, _)| *at + limit <= now);
        let hands: BTreeSet<u64> = hung.map(|(_, number)| *number).collect();
        let verdict = if is_over(self.closed_since, CLOSED_PATIENCE) {
            Verdict::Closed
        } else if !hands.is_empty() {
            Verdict::Hung { limit, hands }
        } else if is_over(self.idle_since, limit) {
            Verdict::Idle(limit)
        } else {
            Verdict::Unready(READY_WITHIN)
        };
        self.decide(verdict, told);
    }

    /// Appends lines for the worker, some at a time: what it does not read stays here, as it came.
    pub fn write(&mut self, to: &mut Vec<u8>) {
        while self.closed_since.is_none() && to.len() < WRITE_BYTES {
            if let Some(line) = self.lines.pop_front() {
                line.write(to);
                continue;
            }
            let Some((number, message)) = self.may_give().then(|| self.waiting.pop_front()).flatten() else { return };
            self.held.insert(number, Stage::Given);
            self.numbers.insert(message.id.clone(), number);
            ToWorker::Message(message).write(to);
        }
    }

    /// All that was appended is with the worker.
    pub fn written(&mut self, now: Instant) {
        if self.says_what_it_starts() || self.closed_since.is_some() {
            return;
        }
        // It has one, and getting it is starting it.
        if let Some(number) = self.numbers.values().next().copied() {
            self.start(number, now, false);
        }
    }

    /// What its end leaves.
    pub fn remains(&self) -> Remains {
        let is_started = |stage: &Stage| matches!(stage, Stage::Started(_));
        let started: Vec<u64> =
            self.held.iter().filter(|(_, stage)| is_started(stage)).map(|(number, _)| *number).collect();
        let blamed = match &self.verdict {
            Some(Verdict::Hung { hands, .. }) => {
                started.iter().copied().filter(|number| hands.contains(number)).collect()
            }
            Some(Verdict::Closed) => started.clone(),
            Some(Verdict::Unready(_) | Verdict::Idle(_) | Verdict::Nonsense(_)) | None => Vec::new(),
        };
        Remains { started, blamed }
    }

    fn says_what_it_starts(&self) -> bool {
        self.readiness.is_some_and(|readiness| readiness.starts)
    }

    fn may_give(&self) -> bool {
        // What the cluster handed ahead waits here.
        let is_free = |readiness: Readiness| self.numbers.len() < readiness.prefetch.max(1) as usize;
        !self.waiting.is_empty() && !self.stopping && self.readiness.is_some_and(is_free)
    }

    fn take(&mut self, word: FromWorker, now: Instant, told: &mut Told) -> Result<(), String> {
        if self.readiness.is_none() && !matches!(word, FromWorker::Ready { .. }) {
            return Err("the first line must be \"ready\"".into());
        }
        match word {
            FromWorker::Ready { starts, prefetch } => {
                if self.readiness.is_some() {
                    return Err("\"ready\" was said already".into());
                }
                let prefetch = if starts { prefetch.unwrap_or(u32::MAX).min(self.terms.prefetch) } else { 1 };
                let readiness = Readiness { starts, prefetch };
                self.readiness = Some(readiness);
                told.ready = Some(readiness);
            }
            FromWorker::Started { id } => {
                let number = self.number_of(&id)?;
                self.start(number, now, true);
            }
            FromWorker::Progress { id } => {
                let number = self.number_of(&id)?;
                if !matches!(self.held.get(&number), Some(Stage::Started(_))) {
                    return Err(format!("{id:?} was not started"));
                }
                self.start(number, now, true);
            }
            FromWorker::Done { ids, reply } => return self.settle(ids, &Word::Done { reply }, now, told),
            FromWorker::Failed { id, mut error, retry } => {
                error.truncate(error.floor_char_boundary(MAX_FAILURE));
                let word = if retry { Word::Failed { error } } else { Word::Rejected { error } };
                return self.settle(vec![id], &word, now, told);
            }
            FromWorker::Returned { ids } => return self.settle(ids, &Word::Returned, now, told),
        }
        Ok(())
    }

    fn number_of(&self, id: &str) -> Result<u64, String> {
        self.numbers.get(id).copied().ok_or_else(|| not_held(id))
    }

    /// It works on this one; heard of now, where that is news.
    fn start(&mut self, number: u64, now: Instant, again: bool) {
        let Some(stage) = self.held.get_mut(&number) else { return };
        if let Stage::Started(before) = *stage {
            if !again {
                return;
            }
            self.heard_of.remove(&(before, number));
        }
        *stage = Stage::Started(now);
        self.heard_of.insert((now, number));
        self.idle_since = None;
    }

    /// Settles those that it holds; the first other one is complained of.
    fn settle(&mut self, ids: Vec<String>, word: &Word, now: Instant, told: &mut Told) -> Result<(), String> {
        let mut wrong = None;
        for id in ids {
            let Some(number) = self.numbers.remove(&id) else {
                wrong.get_or_insert_with(|| not_held(&id));
                continue;
            };
            if let Some(Stage::Started(at)) = self.held.remove(&number) {
                self.heard_of.remove(&(at, number));
            }
            self.idle_since = None;
            // A reply that nobody waits for would only cost the log its bytes.
            let word = match word {
                Word::Done { reply: Some(_) } if !self.asked.contains(&number) => Word::Done { reply: None },
                word => word.clone(),
            };
            self.asked.remove(&number);
            told.settlements.push(Settlement { hand: number, word });
        }
        self.look_for_work(now);
        wrong.map_or(Ok(()), Err)
    }

    /// It is idle from now on where it holds messages and works on none.
    fn look_for_work(&mut self, now: Instant) {
        if self.held.is_empty() || !self.heard_of.is_empty() {
            self.idle_since = None;
        } else {
            self.idle_since.get_or_insert(now);
        }
    }

    fn complain(&mut self, why: String, told: &mut Told) {
        self.nonsense_in_a_row += 1;
        self.nonsense += 1;
        // Who goes or is killed is not answered any more: it may say much, and read nothing.
        if self.nonsense > NONSENSE_IN_A_RUN || self.verdict.is_some() {
            return;
        }
        let is_too_much = self.nonsense_in_a_row >= NONSENSE_IN_A_ROW || self.nonsense == NONSENSE_IN_A_RUN;
        if is_too_much && !self.stopping {
            self.decide(Verdict::Nonsense(why.clone()), told);
        }
        self.lines.push_back(ToWorker::Error { error: why });
    }

    fn decide(&mut self, verdict: Verdict, told: &mut Told) {
        self.verdict = Some(verdict.clone());
        told.verdict = Some(verdict);
    }
}

fn not_held(id: &str) -> String {
    let shown: String = id.chars().take(64).collect();
    format!("{shown:?} is not held by this worker")
}

#[cfg(test)]
mod tests;

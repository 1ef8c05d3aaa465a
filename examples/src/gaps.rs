//! Which gaps lie between the answers of one child, seen from outside while it crashes, moves and comes back.
//!
//! Two answers of different runs always make a gap worth telling; two of the same run only when they lie far apart.
//! Nothing here looks at a clock: the caller says when it asked and when the answer was there.

use std::fmt;
use std::time::{Duration, Instant};

use crate::run::Run;

/// One answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The run that gave it.
    pub from: Run,
    /// When the question was sent.
    pub asked: Instant,
    /// When the answer was there.
    pub answered: Instant,
}

/// What an answer shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// The first answer of all.
    First(Run),
    /// Between two answers there was none for this long.
    Gap {
        /// From the last answer of `before` to the first one of `after`.
        lasted: Duration,
        /// The run that answered last.
        before: Run,
        /// The run that answers now; the same one where it was only silent.
        after: Run,
    },
    /// A run answered a question that was asked after a later run had answered. Pando promises that this never happens.
    TwoCopies {
        /// The earlier run, which should be gone.
        old: Run,
        /// The later one.
        new: Run,
    },
}

/// The answers so far, as far as they matter for the next one.
#[derive(Debug)]
pub struct Watch {
    /// Silence of one run that is shorter than this is not told.
    silence: Duration,
    last: Option<Answer>,
    /// When the run of `last` first answered.
    since: Option<Instant>,
}

impl Watch {
    /// A watch that has seen nothing, and tells of a silence of one run from `silence` on.
    pub fn new(silence: Duration) -> Self {
        Self { silence, last: None, since: None }
    }

    /// Takes an answer; `None` where it shows nothing new.
    pub fn take(&mut self, answer: Answer) -> Option<Seen> {
        let Some(last) = &self.last else {
            let first = Seen::First(answer.from.clone());
            self.since = Some(answer.answered);
            self.last = Some(answer);
            return Some(first);
        };
        if answer.from.incarnation < last.from.incarnation {
            // An answer may arrive late; only one to a question asked after the new run answered proves anything.
            let proven = self.since.is_some_and(|since| answer.asked > since);
            return proven.then(|| Seen::TwoCopies { old: answer.from, new: last.from.clone() });
        }
        let lasted = answer.answered.saturating_duration_since(last.answered);
        let moved = answer.from != last.from;
        let seen = (moved || lasted >= self.silence).then(|| Seen::Gap {
            lasted,
            before: last.from.clone(),
            after: answer.from.clone(),
        });
        if moved {
            self.since = Some(answer.answered);
        }
        if answer.answered >= last.answered || moved {
            self.last = Some(answer);
        }
        seen
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First(run) => write!(f, "first answer: {run}"),
            Self::Gap { lasted, before, after } => {
                write!(f, "gap of {} ms: {before} -> {after}", lasted.as_millis())
            }
            Self::TwoCopies { old, new } => write!(f, "two copies: {old} answered after {new}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(watch: &mut Watch, start: Instant, node: &str, incarnation: u64, asked: u64, answered: u64) -> String {
        let from = Run { node: node.into(), incarnation };
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let seen = watch.take(Answer { from, asked: at(asked), answered: at(answered) });
        seen.map(|seen| seen.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_move_is_told_with_its_gap_and_short_silence_is_not() {
        let (mut watch, start) = (Watch::new(Duration::from_millis(100)), Instant::now());
        assert_eq!(take(&mut watch, start, "n1", 12, 0, 1), "first answer: n1/12");
        assert_eq!(take(&mut watch, start, "n1", 12, 20, 21), "");
        assert_eq!(take(&mut watch, start, "n3", 19, 50, 55), "gap of 34 ms: n1/12 -> n3/19");
        assert_eq!(take(&mut watch, start, "n3", 19, 300, 301), "gap of 246 ms: n3/19 -> n3/19");
    }

    #[test]
    fn an_old_run_that_answers_a_new_question_is_a_second_copy_and_a_late_answer_is_not() {
        let (mut watch, start) = (Watch::new(Duration::from_millis(100)), Instant::now());
        take(&mut watch, start, "n1", 12, 0, 1);
        take(&mut watch, start, "n3", 19, 50, 55);
        assert_eq!(take(&mut watch, start, "n1", 12, 54, 56), "");
        assert_eq!(take(&mut watch, start, "n1", 12, 57, 58), "two copies: n1/12 answered after n3/19");
    }
}

//! Which lines a mailbox has, and how to go on where it has not all.

use std::time::Duration;

use pando_protocol::ids::Path;

use super::messages;
use crate::exit::Failure;
use crate::human;

/// What became of the lines of a file.
#[derive(Debug, Default)]
pub struct Taken {
    /// Messages that are new in the mailbox.
    pub accepted: u64,
    /// Messages that were known by their ids already.
    pub known: u64,
    /// Lines that the mailbox has, as ranges from and to in order, none beside another.
    lines: Vec<(u64, u64)>,
    /// Lines of which nobody knows whether it has them.
    unsure: Vec<(u64, u64)>,
    /// How long it took.
    pub took: Duration,
}

impl Taken {
    /// The mailbox has these lines, of which so many are new and known.
    pub fn add(&mut self, first: u64, last: u64, accepted: u64, known: u64) {
        self.accepted += accepted;
        self.known += known;
        join(&mut self.lines, first, last);
    }

    /// The mailbox may have these lines.
    pub fn add_unsure(&mut self, first: u64, last: u64) {
        join(&mut self.unsure, first, last);
    }

    /// The rate so far, `took` after the begin.
    pub fn rate(&self, took: Duration) -> u64 {
        let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX).max(1);
        (self.accepted + self.known).saturating_mul(1_000) / millis
    }

    /// That all went well, for people.
    pub fn in_words(&self, path: &Path) -> String {
        let known = match self.known {
            0 => String::new(),
            known => format!("; {known} more were known already, and were not sent again"),
        };
        let (sent, took, rate) = (messages(self.accepted), human::duration(self.took), self.rate(self.took));
        format!("{sent} sent to {path} in {took} ({rate}/s){known}\n")
    }

    /// The failure, with how far it got and how to go on. `skipped` lines were left out from the start.
    pub fn tell(&self, failure: Failure, path: &Path, skipped: u64) -> Failure {
        let far = match self.lines.as_slice() {
            [] => format!("nothing was sent to {path}"),
            lines => format!("the mailbox of {path} has {}", ranges(lines)),
        };
        let unsure = match self.unsure.as_slice() {
            [] => String::new(),
            unsure => format!("; {} may be in it or not", ranges(unsure)),
        };
        failure.context(format!("{far}{unsure}; {}", self.next_step(skipped)))
    }

    fn next_step(&self, skipped: u64) -> String {
        let whole = match self.lines.as_slice() {
            [] => skipped,
            [(first, last)] if *first == skipped + 1 => *last,
            _ => return "what is missing must be sent for itself".into(),
        };
        let again = "send them again if twice is better than never (with --id nothing is sent twice)";
        match (self.unsure.is_empty(), whole) {
            (true, 0) => "begin again once that is mended".into(),
            (true, whole) => format!("go on with --skip {whole}"),
            (false, _) => again.into(),
        }
    }
}

/// Adds a range of lines that overlaps none.
fn join(ranges: &mut Vec<(u64, u64)>, first: u64, last: u64) {
    let at = ranges.partition_point(|(_, end)| *end < first);
    ranges.insert(at, (first, last));
    ranges.dedup_by(|next, before| {
        let touches = before.1 + 1 == next.0;
        if touches {
            before.1 = next.1;
        }
        touches
    });
}

/// Ranges in words: `line 7`, `lines 1 to 5, 9`.
fn ranges(ranges: &[(u64, u64)]) -> String {
    if let [(first, last)] = ranges
        && first == last
    {
        return format!("line {first}");
    }
    let mut each: Vec<String> = ranges.iter().map(|(first, last)| range(*first, *last)).collect();
    each.truncate(RANGES_SHOWN);
    let left = ranges.len() - each.len();
    let more = if left == 0 { String::new() } else { format!(" and {left} ranges more") };
    format!("lines {}{more}", each.join(", "))
}

fn range(first: u64, last: u64) -> String {
    if first == last { first.to_string() } else { format!("{first} to {last}") }
}

/// Ranges that are named before the rest is counted.
const RANGES_SHOWN: usize = 8;

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    fn told(taken: &Taken, skipped: u64) -> String {
        let failure = taken.tell(Failure::failed(anyhow!("it is full")), &"/shop/orders".parse().unwrap(), skipped);
        format!("{:#}", failure.error.unwrap())
    }

    #[test]
    fn lines_that_follow_one_another_are_one_range_in_whatever_order_they_are_answered() {
        let mut taken = Taken::default();
        for (first, last) in [(11, 20), (1, 10), (31, 40), (21, 30)] {
            taken.add(first, last, 10, 0);
        }
        assert_eq!((taken.lines.as_slice(), taken.accepted), ([(1, 40)].as_slice(), 40));
        assert_eq!(told(&taken, 0), "the mailbox of /shop/orders has lines 1 to 40; go on with --skip 40: it is full");
    }

    #[test]
    fn a_gap_and_an_unknown_outcome_are_said() {
        let mut taken = Taken::default();
        assert_eq!(told(&taken, 0), "nothing was sent to /shop/orders; begin again once that is mended: it is full");
        assert_eq!(told(&taken, 7), "nothing was sent to /shop/orders; go on with --skip 7: it is full");
        taken.add(8, 10, 3, 0);
        assert!(told(&taken, 7).contains("go on with --skip 10"));
        taken.add_unsure(11, 12);
        assert!(
            told(&taken, 7).contains("lines 11 to 12 may be in it or not; send them again if"),
            "{}",
            told(&taken, 7)
        );
        taken.add(20, 20, 1, 0);
        assert!(
            told(&taken, 7).starts_with("the mailbox of /shop/orders has lines 8 to 10, 20;"),
            "{}",
            told(&taken, 7)
        );
    }

    #[test]
    fn what_was_sent_is_told_with_its_rate() {
        let mut taken = Taken { took: Duration::from_millis(500), ..Taken::default() };
        taken.add(1, 1_000, 990, 10);
        assert_eq!(
            taken.in_words(&"/shop/orders".parse().unwrap()),
            "990 messages sent to /shop/orders in 500 ms (2000/s); 10 more were known already, and were not sent again\n"
        );
    }
}

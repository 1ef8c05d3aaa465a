//! What runs gave, and whether that is the goal.

use std::collections::BTreeMap;

use super::rows::{Goal, Peer, Row, Subject};

/// What one run of a subject gave, of Pando or of a peer.
#[derive(Debug, Default)]
pub struct Measured {
    /// The numbers of each row: one, or one for each time that it was tried in the run.
    pub values: BTreeMap<Row, Vec<f64>>,
    /// CPU time for a message in microseconds, by who took it.
    pub costs: BTreeMap<Row, Vec<(&'static str, f64)>>,
    /// Entries of the log a second.
    pub entries: BTreeMap<Row, f64>,
    /// What went otherwise than it should, in words: lost messages, wrong counts.
    pub faults: Vec<String>,
    /// What else is worth knowing, in words.
    pub notes: Vec<String>,
}

/// All that was measured.
#[derive(Debug)]
pub struct Results {
    rows: Vec<Row>,
    /// How often.
    pub runs: u32,
    /// By row, and by who: `None` is Pando.
    series: BTreeMap<(Row, Option<Peer>), Series>,
}

/// What all runs of a row gave, of Pando or of a peer.
#[derive(Debug, Default)]
pub struct Series {
    /// The numbers of all runs, in ascending order; empty where it was skipped.
    pub values: Vec<f64>,
    /// Why it was skipped, where it was.
    pub skipped: Option<String>,
    /// CPU time for a message in microseconds, by who took it: one number a run.
    pub costs: BTreeMap<&'static str, Vec<f64>>,
    /// Entries of the log a second, one number a run.
    pub entries: Vec<f64>,
    /// Faults of all runs.
    pub faults: Vec<String>,
    /// Notes of all runs.
    pub notes: Vec<String>,
}

impl Measured {
    /// A number of a row.
    pub fn put(&mut self, row: Row, value: f64) {
        self.values.entry(row).or_default().push(value);
    }
}

/// Whether a goal is met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is; by how much, in words.
    Met(String),
    /// It is not; by how much, in words.
    Missed(String),
    /// Nobody to compare with.
    Unknown(String),
}

impl Results {
    /// Nothing so far.
    pub fn new(mut rows: Vec<Row>, runs: u32) -> Self {
        rows.sort_unstable();
        rows.dedup();
        Self { rows, runs, series: BTreeMap::new() }
    }

    /// The rows that are asked for.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Adds what a run of a subject gave, or why there was none. `None` is Pando.
    pub fn add(&mut self, subject: Subject, who: Option<Peer>, run: &Result<Measured, String>) {
        for row in self.rows.iter().filter(|row| row.subject() == subject) {
            let series = self.series.entry((*row, who)).or_default();
            match run {
                Err(why) => series.skipped = Some(why.clone()),
                Ok(measured) => series.take(*row, measured),
            }
        }
    }

    /// What all runs of a row gave; `None`: nothing was measured.
    pub fn series(&self, row: Row, who: Option<Peer>) -> Option<&Series> {
        self.series.get(&(row, who))
    }

    /// Whether no run of Pando had a fault.
    pub fn are_right(&self) -> bool {
        self.series.iter().all(|((_, who), series)| who.is_some() || series.faults.is_empty())
    }

    /// Whether a row reaches its goal; `None` where it has none.
    pub fn verdict(&self, row: Row) -> Option<Verdict> {
        let goal = row.facts().goal?;
        let ours = self.series(row, None)?;
        if let Some(fault) = ours.faults.first() {
            return Some(Verdict::Missed(fault.clone()));
        }
        let median_of = |peer: Peer| self.series(row, Some(peer)).and_then(Series::median);
        let Some(reached) = ours.median() else { return Some(Verdict::Unknown("nothing was measured".into())) };
        let of_it = |most: f64| if most > 0.0 { format!("{:.2} of it", reached / most) } else { shown(reached) };
        let (least, most) =
            (ours.values.first().copied().unwrap_or(reached), ours.values.last().copied().unwrap_or(reached));
        Some(match goal {
            Goal::AtMost(most) => judged(reached <= most, of_it(most)),
            Goal::AtLeast(least) => judged(reached >= least, of_it(least)),
            Goal::Within { median, most: limit } => {
                let said = format!("{}, and the largest {:.2} of its own", of_it(median), most / limit);
                judged(reached <= median && most <= limit, said)
            }
            Goal::Between(low, high) => {
                judged(low <= least && most <= high, format!("{} to {}", shown(least), shown(most)))
            }
            Goal::AtMostTimes(peer, times) => match median_of(peer) {
                Some(theirs) => judged(reached <= times * theirs, format!("{:.2} × {}", reached / theirs, peer.name())),
                None => Verdict::Unknown(format!("{} was not measured", peer.name())),
            },
            Goal::Times(parts) => {
                let (mut is_met, mut is_known, mut said) = (true, true, Vec::new());
                for (peer, times) in parts {
                    match median_of(*peer) {
                        Some(theirs) => {
                            is_met &= reached >= times * theirs;
                            said.push(format!("{:.2} × {}", reached / theirs, peer.name()));
                        }
                        None => {
                            is_known = false;
                            said.push(format!("{} was not measured", peer.name()));
                        }
                    }
                }
                let said = said.join(", ");
                if is_met && !is_known { Verdict::Unknown(said) } else { judged(is_met, said) }
            }
        })
    }
}

fn shown(value: f64) -> String {
    format!("{value:.0}")
}

fn judged(is_met: bool, said: String) -> Verdict {
    if is_met { Verdict::Met(said) } else { Verdict::Missed(said) }
}

impl Series {
    fn take(&mut self, row: Row, measured: &Measured) {
        self.values.extend(measured.values.get(&row).into_iter().flatten());
        self.values.sort_by(f64::total_cmp);
        for (who, micros) in measured.costs.get(&row).into_iter().flatten() {
            self.costs.entry(who).or_default().push(*micros);
        }
        self.entries.extend(measured.entries.get(&row));
        self.faults.extend(measured.faults.iter().cloned());
        self.notes.extend(measured.notes.iter().cloned());
    }

    /// The middle one.
    pub fn median(&self) -> Option<f64> {
        median(&self.values)
    }
}

/// The middle one of numbers in any order; the upper one of two.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(ours: &[f64], nats: &[f64], rabbit: &[f64]) -> Results {
        let mut results = Results::new(vec![Row::Publish, Row::Aborting, Row::Publish], 1);
        for (who, values) in [(None, ours), (Some(Peer::Nats), nats), (Some(Peer::Rabbit), rabbit)] {
            for value in values {
                let mut measured = Measured::default();
                measured.put(Row::Publish, *value);
                measured.put(Row::Consume, 1.0);
                results.add(Subject::Throughput, who, &Ok(measured));
            }
        }
        results
    }

    #[test]
    fn a_goal_is_judged_by_medians_and_against_every_peer() {
        let verdict = |ours: &[f64], nats: &[f64], rabbit: &[f64]| results(ours, nats, rabbit).verdict(Row::Publish);
        let said = |verdict: &str| verdict.to_owned();
        let met = Verdict::Met(said("2.00 × NATS, 10.00 × RabbitMQ"));
        assert_eq!(verdict(&[1.0, 100.0, 900.0], &[50.0], &[10.0]), Some(met));
        let missed = Verdict::Missed(said("2.00 × NATS, 5.00 × RabbitMQ"));
        assert_eq!(verdict(&[100.0], &[50.0], &[20.0]), Some(missed));
        let unknown = Verdict::Unknown(said("NATS was not measured, 10.00 × RabbitMQ"));
        assert_eq!(verdict(&[100.0], &[], &[10.0]), Some(unknown));
        let missed = Verdict::Missed(said("NATS was not measured, 1.00 × RabbitMQ"));
        assert_eq!(verdict(&[100.0], &[], &[100.0]), Some(missed));
    }

    #[test]
    fn a_fault_is_a_goal_missed_whatever_the_number() {
        let mut results = Results::new(vec![Row::Aborting], 1);
        let faults = vec!["3 innocents charged".to_owned()];
        let mut measured = Measured { faults, ..Measured::default() };
        measured.put(Row::Aborting, 0.1);
        results.add(Subject::Aborting, None, &Ok(measured));
        assert_eq!(results.verdict(Row::Aborting), Some(Verdict::Missed("3 innocents charged".into())));
        assert!(!results.are_right());
    }

    #[test]
    fn the_largest_of_all_is_judged_too_where_the_goal_says_so() {
        let verdict = |row: Row, values: &[f64]| {
            let mut results = Results::new(vec![row], 1);
            let measured = Measured { values: BTreeMap::from([(row, values.to_vec())]), ..Measured::default() };
            results.add(row.subject(), None, &Ok(measured));
            results.verdict(row)
        };
        let is_met = |row: Row, values: &[f64]| matches!(verdict(row, values), Some(Verdict::Met(_)));
        assert!(is_met(Row::WriteGap, &[10.0, 60.0, 200.0]));
        assert!(!is_met(Row::WriteGap, &[10.0, 61.0, 100.0]), "the median");
        assert!(!is_met(Row::WriteGap, &[10.0, 20.0, 201.0]), "the largest");
        assert!(is_met(Row::FailingRestarts, &[6.0, 10.0]));
        assert!(!is_met(Row::FailingRestarts, &[5.0, 8.0, 8.0]), "each of them");
        assert!(is_met(Row::BusyLosses, &[0.0]) && !is_met(Row::BusyLosses, &[1.0]));
    }
}

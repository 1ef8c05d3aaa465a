//! What a voter measures of its own work since it began, for `/metrics`: no replicated state knows how long something took.
//!
//! Handles: clones count in the same place.

use std::time::Duration;

use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// The upper bounds of all histograms: from 50 µs, each twice the one before, to 1.6 s. An fsync takes 0.1 to 20 ms.
const FIRST_BUCKET: f64 = 0.000_05;
const BUCKETS: u16 = 16;

/// The instruments of a voter.
#[derive(Debug, Clone)]
pub struct Instruments {
    /// Of each entry that this node proposed: from handing it to Raft to its outcome, committed by a majority and applied here.
    pub commit: Durations,
    /// Of each append to the log: from handing it to the thread that writes to the end of the fsync that covers it.
    pub sync: Durations,
    /// Of each entry: applying all its commands to the state.
    pub apply: Durations,
    /// Of each snapshot: writing and verifying it, beside all other work.
    pub snapshot: Durations,
}

impl Default for Instruments {
    fn default() -> Self {
        let durations = || Durations(Histogram::new(exponential_buckets(FIRST_BUCKET, 2.0, BUCKETS)));
        Self { commit: durations(), sync: durations(), apply: durations(), snapshot: durations() }
    }
}

/// How long something took, each time.
#[derive(Debug, Clone)]
pub struct Durations(Histogram);

impl Durations {
    /// Notes one.
    pub fn note(&self, took: Duration) {
        self.0.observe(took.as_secs_f64());
    }

    /// What was noted, to be registered.
    pub fn histogram(&self) -> Histogram {
        self.0.clone()
    }
}

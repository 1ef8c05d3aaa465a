//! Whether the kernel is killing for memory: the machine's own counter, watched for a rise.

use std::time::{Duration, Instant};

/// How long after a rise a SIGKILL that was not ours counts as its work.
const WINDOW: Duration = Duration::from_secs(10);
/// How often it is looked at while nothing asks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The kernel's count of processes killed for memory.
#[derive(Debug)]
pub struct OutOfMemoryKills {
    count: Option<u64>,
    looked: Instant,
    rose: Option<Instant>,
}

impl OutOfMemoryKills {
    /// Notes the count as it is now.
    pub fn watch(now: Instant) -> Self {
        Self { count: read_count(), looked: now, rose: None }
    }

    /// Looks again if the last look is old. Without regular looks an old rise would seem new.
    pub fn look_now_and_then(&mut self, now: Instant) {
        if now.saturating_duration_since(self.looked) >= LOOK_EVERY {
            self.note(now, read_count());
        }
    }

    /// Whether the count rose in the last moments before `now`, and not before `since`.
    pub fn rose_since(&mut self, since: Instant, now: Instant) -> bool {
        self.note(now, read_count());
        self.counts(since, now)
    }

    fn counts(&self, since: Instant, now: Instant) -> bool {
        self.rose.is_some_and(|rose| rose >= since && now.saturating_duration_since(rose) <= WINDOW)
    }

    fn note(&mut self, now: Instant, count: Option<u64>) {
        if matches!((self.count, count), (Some(before), Some(after)) if after > before) {
            self.rose = Some(now);
        }
        self.count = count.or(self.count);
        self.looked = now;
    }
}

/// `None` on kernels before 4.13.
fn read_count() -> Option<u64> {
    let counters = std::fs::read_to_string("/proc/vmstat").ok()?;
    counters.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rise_counts_for_runs_that_had_begun_and_for_a_while() {
        let began = Instant::now();
        let mut kills = OutOfMemoryKills { count: Some(3), looked: began, rose: None };
        let later = began + Duration::from_secs(5);
        kills.note(later, Some(4));
        assert!(kills.counts(began, later));
        assert!(!kills.counts(later + Duration::from_millis(1), later + Duration::from_secs(1)));
        assert!(!kills.counts(began, later + WINDOW + Duration::from_secs(1)));
    }
}

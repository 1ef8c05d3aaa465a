//! The clock of leases: time since the machine booted, suspended time included (`CLOCK_BOOTTIME`).

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};
use serde::{Deserialize, Serialize};

/// A moment by `CLOCK_BOOTTIME`. All processes of a machine read the same, and a suspended machine's clock goes on, so a
/// lease cannot outlast its time by sleeping through it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BootTime(Duration);

impl BootTime {
    /// Now.
    pub fn now() -> Self {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(tv_sec).unwrap_or(0);
        Self(Duration::new(seconds, u32::try_from(tv_nsec).unwrap_or(0)))
    }

    /// The moment this long after boot.
    pub const fn after_boot(duration: Duration) -> Self {
        Self(duration)
    }

    /// How long after boot this is.
    pub const fn since_boot(self) -> Duration {
        self.0
    }

    /// This much later.
    #[must_use]
    pub const fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }

    /// This much earlier, at the earliest boot.
    #[must_use]
    pub const fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(duration))
    }

    /// How long after `earlier` this is; zero where it is before it.
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

//! What a worker is fed from. Design section 7.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Backoff, MAX_BACKOFF};

/// How far the delay of retries grows beyond `retry_delay`: doubled at each, to this many times it.
const RETRY_GROWTH: u32 = 64;

/// The mailbox of a worker or pool. Design section 7.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailboxSpec {
    /// Attempts that a message can be charged with before it is set aside. Default 3.
    pub max_attempts: Attempts,
    /// How long a message waits after a charged attempt; doubled with each, up to 64 times this, and up to a quarter longer at
    /// random. Default none.
    pub retry_delay: Duration,
    /// A message that was started is hung after this long without progress, and its worker is killed; so is one that holds
    /// messages and starts none. Default 30 s.
    pub handling_timeout: Duration,
    /// Most messages that a worker holds at once, where it says when it starts one; at least 1. Default 16.
    pub prefetch: u32,
    /// Most messages, dead letters included. Default 100,000.
    pub max_messages: u32,
    /// Most bytes, dead letters included. Default 64 MiB.
    pub max_bytes: u64,
    /// Different messages that a worker crashes on in a row, with no success between, before it is taken for sick. Default 5.
    pub suspect_after: u32,
    /// Losses of nodes that a message can be accused of before it is set aside. Default 2.
    pub max_node_losses: u32,
}

/// How many attempts a message is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Attempts {
    /// So many; at least 1.
    Limited(u32),
    /// Without end. Must be said, and only with a `retry_delay`.
    Unlimited,
}

impl Attempts {
    /// Whether a message that was charged so often has had them all.
    pub fn are_spent(self, charged: u32) -> bool {
        match self {
            Self::Limited(most) => charged >= most,
            Self::Unlimited => false,
        }
    }
}

impl Default for MailboxSpec {
    fn default() -> Self {
        Self {
            max_attempts: Attempts::Limited(3),
            retry_delay: Duration::ZERO,
            handling_timeout: Duration::from_secs(30),
            prefetch: 16,
            max_messages: 100_000,
            max_bytes: 64 << 20,
            suspect_after: 5,
            max_node_losses: 2,
        }
    }
}

impl MailboxSpec {
    /// The delay after the `n`-th charged attempt (from 1), before what is added at random.
    pub fn retry_after(&self, n: u32) -> Duration {
        let cap = self.retry_delay.saturating_mul(RETRY_GROWTH).min(MAX_BACKOFF).max(self.retry_delay);
        let growing = Backoff { base: self.retry_delay, cap, factor: 2, jitter: 0, reset_after: Duration::ZERO };
        growing.longest(n.saturating_sub(1))
    }
}

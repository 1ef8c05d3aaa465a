//! The replicated state.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The replicated state. Cloning costs a few pointers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// Cluster time of the newest stamp.
    pub now: Duration,
}

//! Which run of a child this process is: what Pando tells every child in its environment.

use std::env;
use std::fmt;

/// One run: where, and which. Runs of one child are ordered by their incarnation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// `PANDO_NODE`: the node. Empty outside of Pando.
    pub node: String,
    /// `PANDO_INCARNATION`: the number of the run; 0 outside of Pando, whose numbers begin with 1.
    pub incarnation: u64,
}

impl Run {
    /// The run that this process is.
    pub fn of_this_process() -> Self {
        Self { node: variable("PANDO_NODE"), incarnation: variable("PANDO_INCARNATION").parse().unwrap_or(0) }
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = if self.node.is_empty() { "nowhere" } else { &self.node };
        write!(f, "{node}/{}", self.incarnation)
    }
}

/// A variable of the environment; empty where it is not set or no UTF-8.
pub fn variable(name: &str) -> String {
    env::var(name).unwrap_or_default()
}

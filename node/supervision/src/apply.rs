//! The only way to change replicated state.

use crate::cluster::Cluster;
use crate::command::{Applied, Command, Done, Stamp};

/// Runs what is due at `stamp`, then `command`.
pub fn apply(cluster: &mut Cluster, stamp: Stamp, _command: Command) -> Applied {
    cluster.now = cluster.now.max(stamp.at);
    Applied { outcome: Ok(Done::Ticked), events: vec![] }
}

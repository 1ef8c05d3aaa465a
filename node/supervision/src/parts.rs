//! The state in parts, so that a snapshot is written and read piece by piece, never as one buffer.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cluster::Cluster;

/// A piece of the state: at most some hundred KiB when encoded, save for a single larger value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// Everything that does not grow.
    Head(Duration),
}

/// The state, piece by piece, in an order that [`from_parts`] takes back. Costs nothing until it is iterated.
pub fn parts(cluster: &Cluster) -> impl Iterator<Item = Part> + use<> {
    std::iter::once(Part::Head(cluster.now))
}

/// The state of these pieces.
///
/// # Errors
/// A sentence that says which piece is missing or does not fit.
pub fn from_parts(parts: impl IntoIterator<Item = Part>) -> Result<Cluster, String> {
    let mut cluster = Cluster::default();
    for Part::Head(now) in parts {
        cluster.now = now;
    }
    Ok(cluster)
}

//! Snapshots over the network: what the storage keeps, as the pieces that the network sends and takes.

use std::io;

use bytes::Bytes;

use super::network::SnapshotSource;
use super::service::{SnapshotSink, SnapshotStore};
use super::wire::SnapshotMeta;
use crate::storage::snapshot::{Snapshot, SnapshotReceiver, SnapshotStore as Snapshots};

impl SnapshotSource for Snapshot {
    fn pieces(&self) -> Box<dyn Iterator<Item = io::Result<Bytes>> + Send> {
        Box::new(self.chunks().map(|piece| piece.map(Bytes::from)))
    }
}

impl SnapshotStore for Snapshots {
    type Snapshot = Snapshot;
    type Sink = SnapshotReceiver;

    async fn begin(&self, _: &SnapshotMeta) -> io::Result<SnapshotReceiver> {
        self.receive().map_err(io::Error::other)
    }
}

impl SnapshotSink for SnapshotReceiver {
    type Snapshot = Snapshot;

    async fn push(&mut self, piece: Bytes) -> io::Result<()> {
        // At most 1 MiB into the page cache.
        Self::push(self, &piece).map_err(io::Error::other)
    }

    async fn finish(self) -> io::Result<Snapshot> {
        // Verifies the whole file and syncs it.
        tokio::task::spawn_blocking(|| Self::finish(self)).await.map_err(io::Error::other)?.map_err(io::Error::other)
    }
}

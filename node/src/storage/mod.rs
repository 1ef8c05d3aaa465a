//! Log and snapshots on disk.

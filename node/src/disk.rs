//! What a person does where a disk refuses. Errors that name a file end with it, so that all of them say the same.

use std::io;
use std::path::Path;

/// The room on a disk, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// What may still be written without privileges.
    pub free: u64,
    /// All of it.
    pub size: u64,
}

/// The room on the disk that a folder lies on; `None` where the kernel does not tell.
pub fn room(folder: &Path) -> Option<Room> {
    let told = rustix::fs::statvfs(folder).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(told.f_frsize);
    Some(Room { free: bytes(told.f_bavail), size: bytes(told.f_blocks) })
}

/// What to do about what the operating system said of a file or folder that was named before: why, then what. Begins in lower
/// case and ends without a stop; "then start the node again" follows where the node ended by it.
pub fn remedy(refused: &io::Error) -> &'static str {
    use io::ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    match refused.kind() {
        StorageFull => "the disk is full: free space there",
        QuotaExceeded => "the quota of the node's user is used up: free space there, or raise it",
        ReadOnlyFilesystem => {
            "the file system is read-only: the kernel's log (dmesg) says why; repair the disk, or replace it"
        }
        PermissionDenied => "the node's user may not do that there: give it the folder",
        _ => "check that the disk is there and whole, and who owns the folder",
    }
}

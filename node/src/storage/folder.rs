//! Folders that are there after a power failure.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Makes `folder` and those above it where they are missing, durably.
pub(super) fn make(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let above = above(folder);
    make(above)?;
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists || !folder.is_dir() => return Err(error),
        _ => {}
    }
    sync(above)
}

/// Makes new files in `folder`, and new names of files, durable.
pub(super) fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn above(folder: &Path) -> &Path {
    folder.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

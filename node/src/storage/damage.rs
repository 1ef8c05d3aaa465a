//! Finds where a log folder is damaged, so that the refusal names the place.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use raft_log::RaftLogRecord;
use raft_log::codeq::Decode;

use super::error::StorageError;
use super::wal::Records;

/// The end of a log that a start has cut off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The file.
    pub path: PathBuf,
    /// Where it ends now; 0: it is gone as a whole.
    pub offset: u64,
    /// How many bytes there were after that.
    pub bytes: u64,
}

/// The files of the log in `folder`, the oldest first, each with its size in bytes.
pub(super) fn sizes(folder: &Path) -> Result<Vec<(PathBuf, u64)>, StorageError> {
    let size = |path: PathBuf| {
        let size = fs::metadata(&path).map_err(StorageError::io("look at", &path))?.len();
        Ok((path, size))
    };
    log_files(folder)?.into_iter().map(size).collect()
}

/// What was cut off these files since they had these sizes. raft-log removes a last file that ends inside its first record.
pub(super) fn cut_off(before: Vec<(PathBuf, u64)>) -> Result<Vec<Cut>, StorageError> {
    let mut cuts = vec![];
    for (path, before) in before {
        let offset = match fs::metadata(&path) {
            Ok(found) => found.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(StorageError::io("look at", &path)(error)),
        };
        if offset < before {
            cuts.push(Cut { path, offset, bytes: before - offset });
        }
    }
    Ok(cuts)
}

/// Why the log in `folder` could not be opened, with the place where it is damaged.
pub(super) fn why_refused(folder: &Path, error: io::Error) -> StorageError {
    if error.kind() == io::ErrorKind::WouldBlock {
        return StorageError::InUse(folder.to_owned());
    }
    match first_damage(folder) {
        Ok(Some(damage)) => damage,
        Ok(None) if is_from_the_system(&error) => {
            StorageError::Io { doing: "open the log in", path: folder.to_owned(), source: error }
        }
        Ok(None) => StorageError::Contradiction { path: folder.to_owned(), what: error.to_string() },
        Err(cannot_look) => cannot_look,
    }
}

// Where raft-log puts words of its own around what the system said, only the kind is left.
pub(super) fn is_from_the_system(error: &io::Error) -> bool {
    use io::ErrorKind::{NotFound, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    error.raw_os_error().is_some()
        || matches!(error.kind(), NotFound | PermissionDenied | QuotaExceeded | ReadOnlyFilesystem | StorageFull)
}

/// The first damage in the log files of `folder`, in the order of the files; `None` where every record is whole, save
/// for a torn end of the last file.
fn first_damage(folder: &Path) -> Result<Option<StorageError>, StorageError> {
    let files = log_files(folder)?;
    for (position, path) in files.iter().enumerate() {
        let is_last = position + 1 == files.len();
        if let Some(damage) = damage_in(path, is_last)? {
            return Ok(Some(damage));
        }
    }
    Ok(None)
}

/// The log files of `folder`, the oldest first: their names are padded numbers.
pub(super) fn log_files(folder: &Path) -> Result<Vec<PathBuf>, StorageError> {
    let mut files = vec![];
    for entry in fs::read_dir(folder).map_err(StorageError::io("list", folder))? {
        let path = entry.map_err(StorageError::io("list", folder))?.path();
        if path.extension().is_some_and(|extension| extension == "wal") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn damage_in(path: &Path, is_last: bool) -> Result<Option<StorageError>, StorageError> {
    let file = File::open(path).map_err(StorageError::io("open", path))?;
    let length = file.metadata().map_err(StorageError::io("read the size of", path))?.len();
    let mut reader = Counting { input: BufReader::new(file), read: 0 };
    for number in 0u64.. {
        let offset = reader.read;
        if offset == length {
            break;
        }
        let Err(error) = RaftLogRecord::<Records>::decode(&mut reader) else { continue };
        if error.raw_os_error().is_some() {
            return Err(StorageError::io("read", path)(error));
        }
        if is_last && error.kind() == io::ErrorKind::UnexpectedEof {
            break;
        }
        return Ok(Some(StorageError::Damaged {
            path: path.to_owned(),
            offset,
            place: format!("record {number}"),
            what: error.to_string(),
        }));
    }
    Ok(None)
}

struct Counting<R> {
    input: R,
    read: u64,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.read += count as u64;
        Ok(count)
    }
}

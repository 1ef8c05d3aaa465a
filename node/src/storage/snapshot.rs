//! Snapshots: the state at one position of the log, in one file that is verified whole before it replaces another.
//!
//! ```text
//!   build:    parts(&cluster) ──► snapshot-1.tmp ──► fsync ──► verify ──► rename to `snapshot` ──► fsync of the folder
//!   send:     Snapshot::chunks ──► frames
//!   receive:  SnapshotReceiver::push … finish: fsync, verify ──► Snapshot ──► SnapshotStore::adopt: rename, fsync
//! ```
//!
//! All of it blocks on the disk: call it from where that is allowed. A store in memory takes the place of the folder where
//! no disk is wanted; it survives a simulated crash as long as one handle to it does.

pub mod format;
mod store;

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use pando_supervision::Cluster;
use pando_supervision::parts::from_parts;

pub use self::format::Header;
use self::format::{Damage, ReadError, Reader};
pub use self::store::{SnapshotReceiver, SnapshotStore};
use super::error::StorageError;

/// Most bytes of one piece of [`Snapshot::chunks`].
pub const CHUNK_BYTES: usize = 1 << 20;

/// A snapshot that can be read, sent and installed. A handle: clones are the same snapshot, and it stays readable after
/// another has taken its place.
#[derive(Debug, Clone)]
pub struct Snapshot {
    content: Arc<Content>,
}

#[derive(Debug)]
struct Content {
    header: Header,
    bytes: u64,
    source: Source,
}

#[derive(Debug)]
enum Source {
    File {
        file: File,
        /// Where the file is while it is not yet the current one: removed with the last handle.
        unadopted: Mutex<Option<PathBuf>>,
        /// Where it is once it is the current one.
        adopted: PathBuf,
    },
    Memory(Bytes),
}

impl Snapshot {
    /// What it says before the state.
    pub fn header(&self) -> &Header {
        &self.content.header
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.content.bytes
    }

    /// Its bytes in pieces of at most [`CHUNK_BYTES`], for [`SnapshotReceiver::push`]. Each call begins anew. Reading blocks
    /// for one piece at a time.
    pub fn chunks(&self) -> impl Iterator<Item = io::Result<Vec<u8>>> + Send + use<> {
        let mut reader = self.reader();
        std::iter::from_fn(move || {
            let mut chunk = vec![];
            match reader.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut chunk) {
                Ok(0) => None,
                Ok(_) => Some(Ok(chunk)),
                Err(error) => Some(Err(error)),
            }
        })
    }

    /// Verifies every byte, holding no more than a section of it at a time.
    ///
    /// # Errors
    /// [`StorageError::Damaged`] with the place; [`StorageError::NewerFormat`].
    pub fn verify(&self) -> Result<Header, StorageError> {
        let (header, mut parts) = self.parts()?;
        while parts.next_part().map_err(|e| self.refused(e))?.is_some() {}
        Ok(header)
    }

    /// Reads the state, and with it verifies every byte.
    ///
    /// # Errors
    /// [`StorageError::Damaged`] with the place; [`StorageError::NewerFormat`]; [`StorageError::Contradiction`] where whole parts make no state.
    pub fn read(&self) -> Result<(Header, Cluster), StorageError> {
        let (header, mut reader) = self.parts()?;
        let mut failed = None;
        let parts = std::iter::from_fn(|| {
            reader.next_part().unwrap_or_else(|error| {
                failed = Some(error);
                None
            })
        });
        let made = from_parts(parts);
        // Whatever the parts made, it counts only where each of them was whole and none was left unread.
        while failed.is_none() && reader.next_part().map_err(|e| self.refused(e))?.is_some() {}
        match (failed, made) {
            (Some(error), _) => Err(self.refused(error)),
            (None, Ok(cluster)) => Ok((header, cluster)),
            (None, Err(what)) => Err(StorageError::Contradiction { path: self.path(), what }),
        }
    }

    fn parts(&self) -> Result<(Header, Reader<impl Read + use<>>), StorageError> {
        Reader::open(BufReader::with_capacity(64 << 10, self.reader())).map_err(|e| self.refused(e))
    }

    fn reader(&self) -> ContentReader {
        ContentReader { content: self.content.clone(), position: 0 }
    }

    fn path(&self) -> PathBuf {
        match &self.content.source {
            Source::File { unadopted, adopted, .. } => {
                let unadopted = unadopted.lock().unwrap_or_else(PoisonError::into_inner);
                unadopted.clone().unwrap_or_else(|| adopted.clone())
            }
            Source::Memory(_) => PathBuf::from("snapshot in memory"),
        }
    }

    fn refused(&self, error: ReadError) -> StorageError {
        match error {
            ReadError::Io(source) => StorageError::Io { doing: "read", path: self.path(), source },
            ReadError::Newer(what) => StorageError::NewerFormat { path: self.path(), what },
            ReadError::Damaged(Damage { offset, place, what }) => {
                StorageError::Damaged { path: self.path(), offset, place, what }
            }
        }
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        let Source::File { unadopted, .. } = &self.source else { return };
        if let Some(path) = unadopted.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // Where it cannot be removed, the next start does it.
            let _ = fs::remove_file(path);
        }
    }
}

/// Reads by position, so that several can read one file.
struct ContentReader {
    content: Arc<Content>,
    position: u64,
}

impl Read for ContentReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = match &self.content.source {
            Source::File { file, .. } => file.read_at(buffer, self.position)?,
            Source::Memory(bytes) => {
                let rest = bytes.get(usize::try_from(self.position).unwrap_or(usize::MAX)..).unwrap_or_default();
                let count = rest.len().min(buffer.len());
                buffer[..count].copy_from_slice(&rest[..count]);
                count
            }
        };
        self.position += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests;

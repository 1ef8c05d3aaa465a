//! Where snapshots are kept: one current one, and those that are being made.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pando_supervision::Cluster;
use pando_supervision::parts::parts;

use super::format::{self, Header, ReadError, Reader};
use super::{Content, Snapshot, Source};
use crate::storage::error::StorageError;
use crate::storage::folder;

const CURRENT: &str = "snapshot";
const UNFINISHED_PREFIX: &str = "snapshot-";
const UNFINISHED_SUFFIX: &str = ".tmp";
/// A snapshot goes to the disk in pieces of so many bytes: a file system may have the sync of the log wait for all that was written
/// before it, whatever the file.
const SYNC_EVERY: usize = 1 << 20;
/// Most bytes of a snapshot that is received: far above what the bounds of a cluster's state allow, and below what fills a
/// disk by mistake.
const RECEIVE_LIMIT: u64 = 16 << 30;

/// Keeps the current snapshot. A handle: clones are the same store.
#[derive(Debug, Clone)]
pub struct SnapshotStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// `None`: in memory.
    folder: Option<PathBuf>,
    current: Mutex<Option<Snapshot>>,
    made: AtomicU64,
}

impl SnapshotStore {
    /// The store in `folder`, which is made if it is missing. Removes what was left unfinished. The current snapshot is not
    /// verified yet: [`Snapshot::read`] does.
    ///
    /// # Errors
    /// [`StorageError::Damaged`] and [`StorageError::NewerFormat`] where the header of the current one is; [`StorageError::Io`].
    pub fn open(folder: &Path) -> Result<Self, StorageError> {
        folder::make(folder).map_err(StorageError::io("create", folder))?;
        // First, so that a folder that this build cannot use stays as it is.
        let current = open_current(&folder.join(CURRENT))?;
        remove_unfinished(folder)?;
        // The process before may have ended between the rename and this: what is forgotten of the log from now on must find the
        // name after a power failure too.
        folder::sync(folder).map_err(StorageError::io("sync the folder", folder))?;
        Ok(Self::new(Some(folder.to_owned()), current))
    }

    /// An empty store in memory.
    pub fn in_memory() -> Self {
        Self::new(None, None)
    }

    fn new(folder: Option<PathBuf>, current: Option<Snapshot>) -> Self {
        Self { shared: Arc::new(Shared { folder, current: Mutex::new(current), made: AtomicU64::new(0) }) }
    }

    /// Whether it blocks on a disk.
    pub fn is_on_disk(&self) -> bool {
        self.shared.folder.is_some()
    }

    /// The current snapshot; `None` before the first.
    pub fn current(&self) -> Option<Snapshot> {
        self.lock().clone()
    }

    /// Writes a snapshot of `cluster`, verifies it, and makes it the current one unless that is newer.
    ///
    /// # Errors
    /// [`StorageError`]; the current one stays as it is.
    pub fn write(&self, header: &Header, cluster: &Cluster) -> Result<Snapshot, StorageError> {
        let mut unfinished = self.unfinished()?;
        let written = format::write(BufWriter::with_capacity(64 << 10, &mut unfinished), header, parts(cluster));
        written.map_err(|error| match error.kind() {
            io::ErrorKind::FileTooLarge => StorageError::TooLarge(error.to_string()),
            _ => StorageError::Io { doing: "write", path: unfinished.path(), source: error },
        })?;
        let snapshot = unfinished.into_snapshot(header.clone())?;
        snapshot.verify()?;
        self.adopt(&snapshot)?;
        Ok(snapshot)
    }

    /// Begins to receive a snapshot from another node.
    ///
    /// # Errors
    /// [`StorageError::Io`].
    pub fn receive(&self) -> Result<SnapshotReceiver, StorageError> {
        Ok(SnapshotReceiver { unfinished: self.unfinished()?, received: 0 })
    }

    /// Makes `snapshot` the current one, durably, unless the current one is as new or newer. Does not verify it: what
    /// [`SnapshotReceiver::finish`] or [`Self::write`] returned is verified.
    ///
    /// # Errors
    /// [`StorageError::Io`]; then either is the current one, and both are whole.
    pub fn adopt(&self, snapshot: &Snapshot) -> Result<(), StorageError> {
        let mut current = self.lock();
        if current.as_ref().is_some_and(|current| current.header().applied >= snapshot.header().applied) {
            return Ok(());
        }
        if let (Some(folder), Source::File { unadopted, .. }) = (&self.shared.folder, &snapshot.content.source) {
            let mut unadopted = unadopted.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(from) = unadopted.as_ref() {
                let to = folder.join(CURRENT);
                fs::rename(from, &to).map_err(StorageError::io("rename a new snapshot to", &to))?;
                *unadopted = None;
                folder::sync(folder).map_err(StorageError::io("sync the folder", folder))?;
            }
        }
        *current = Some(snapshot.clone());
        Ok(())
    }

    fn unfinished(&self) -> Result<Unfinished, StorageError> {
        let Some(folder) = &self.shared.folder else { return Ok(Unfinished::Memory(vec![])) };
        let number = self.shared.made.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("{UNFINISHED_PREFIX}{number}{UNFINISHED_SUFFIX}"));
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
        let file = opened.map_err(StorageError::io("create", &path))?;
        Ok(Unfinished::File { file, path: Some(path), unsynced: 0 })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Snapshot>> {
        // Nothing panics between the changes under this lock.
        self.shared.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the pieces of a snapshot from another node, in order. Dropped unfinished, it leaves nothing behind.
#[derive(Debug)]
pub struct SnapshotReceiver {
    unfinished: Unfinished,
    received: u64,
}

impl SnapshotReceiver {
    /// Bytes received so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Takes the next piece. Blocks on the disk.
    ///
    /// # Errors
    /// [`StorageError::BadTransfer`] beyond 16 GiB; [`StorageError::Io`].
    pub fn push(&mut self, chunk: &[u8]) -> Result<(), StorageError> {
        self.received += chunk.len() as u64;
        if self.received > RECEIVE_LIMIT {
            let what = format!("more than {RECEIVE_LIMIT} bytes");
            return Err(StorageError::BadTransfer { offset: self.received, place: "end".into(), what });
        }
        self.unfinished.write_all(chunk).map_err(StorageError::io("write", self.unfinished.path()))
    }

    /// Verifies everything and makes it durable. The snapshot is not the current one yet: installing it does that.
    ///
    /// # Errors
    /// [`StorageError::BadTransfer`] with the place; [`StorageError::Io`].
    pub fn finish(self) -> Result<Snapshot, StorageError> {
        let unverified = self.unfinished.into_snapshot(Header::default())?;
        match unverified.verify() {
            Ok(header) => Ok(unverified.with_header(header)),
            Err(StorageError::Damaged { offset, place, what, .. }) => {
                Err(StorageError::BadTransfer { offset, place, what })
            }
            Err(StorageError::NewerFormat { what, .. }) => {
                let what =
                    format!("it is of {what}, which this build does not know: run the leader's version here too");
                Err(StorageError::BadTransfer { offset: 0, place: "beginning".into(), what })
            }
            Err(other) => Err(other),
        }
    }
}

impl Snapshot {
    /// # Panics
    /// Where a clone exists already: a snapshot never changes once it is handed out.
    fn with_header(mut self, header: Header) -> Self {
        Arc::get_mut(&mut self.content).expect("no clone exists yet").header = header;
        self
    }
}

#[derive(Debug)]
enum Unfinished {
    File {
        file: File,
        /// `None` once it belongs to a [`Snapshot`].
        path: Option<PathBuf>,
        /// Bytes since the last sync.
        unsynced: usize,
    },
    Memory(Vec<u8>),
}

impl Unfinished {
    fn path(&self) -> PathBuf {
        match self {
            Self::File { path: Some(path), .. } => path.clone(),
            _ => PathBuf::from("snapshot in memory"),
        }
    }

    fn into_snapshot(mut self, header: Header) -> Result<Snapshot, StorageError> {
        let at = self.path();
        let (bytes, source) = match &mut self {
            Self::Memory(bytes) => (bytes.len() as u64, Source::Memory(std::mem::take(bytes).into())),
            Self::File { file, path, .. } => {
                file.sync_all().map_err(StorageError::io("sync", &at))?;
                let bytes = file.metadata().map_err(StorageError::io("read the size of", &at))?.len();
                let file = file.try_clone().map_err(StorageError::io("open", &at))?;
                (bytes, Source::File { file, unadopted: Mutex::new(path.take()), adopted: at.with_file_name(CURRENT) })
            }
        };
        Ok(Snapshot { content: Arc::new(Content { header, bytes, source }) })
    }
}

impl Write for Unfinished {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File { file, unsynced, .. } => {
                let written = file.write(bytes)?;
                *unsynced += written;
                if *unsynced >= SYNC_EVERY {
                    file.sync_data()?;
                    *unsynced = 0;
                }
                Ok(written)
            }
            Self::Memory(memory) => memory.write(bytes),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Self::File { path: Some(path), .. } = self {
            // Where it cannot be removed, the next start does it.
            let _ = fs::remove_file(path);
        }
    }
}

fn remove_unfinished(folder: &Path) -> Result<(), StorageError> {
    for entry in fs::read_dir(folder).map_err(StorageError::io("list", folder))? {
        let path = entry.map_err(StorageError::io("list", folder))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(UNFINISHED_PREFIX) && name.ends_with(UNFINISHED_SUFFIX) {
            fs::remove_file(&path).map_err(StorageError::io("remove", &path))?;
        }
    }
    Ok(())
}

fn open_current(path: &Path) -> Result<Option<Snapshot>, StorageError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(StorageError::Io { doing: "open", path: path.to_owned(), source }),
    };
    let bytes = file.metadata().map_err(StorageError::io("read the size of", path))?.len();
    let source = Source::File { file, unadopted: Mutex::new(None), adopted: path.to_owned() };
    let snapshot = Snapshot { content: Arc::new(Content { header: Header::default(), bytes, source }) };
    let header = read_header(snapshot.reader()).map_err(|error| snapshot.refused(error))?;
    Ok(Some(snapshot.with_header(header)))
}

fn read_header(input: impl Read) -> Result<Header, ReadError> {
    Reader::open(input).map(|(header, _)| header)
}

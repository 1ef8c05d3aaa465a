//! One lock for the data folder, shared by node, guard and reapers: free means that all of them are gone.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

use crate::disk::remedy;

/// The name of the lock in the data folder.
pub const LOCK_FILE: &str = "guard.lock";

/// The pause between two attempts.
const RETRY: Duration = Duration::from_millis(5);

/// Why the lock of a data folder was not acquired.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody holds it.
    #[error(
        "the data folder {} is in use (its {LOCK_FILE} was held for {waited:?}): another node runs on it, or the guard of a \
         dead one still ends its children; stop that one, or give this node a data folder of its own",
        data.display()
    )]
    Held {
        /// The data folder.
        data: PathBuf,
        /// How long it was tried.
        waited: Duration,
    },
    /// The file cannot be made or locked.
    #[error("cannot make and lock {}: {}, then start the node again", path.display(), remedy(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The held lock. It is free again when this, its copies in the guard and in every reaper, are closed: by the end of those
/// processes at the latest.
#[derive(Debug)]
pub struct GuardLock {
    file: File,
}

impl GuardLock {
    /// Takes the lock of a data folder, waiting for at most `wait`. Blocks the calling thread. Makes the folder.
    ///
    /// # Errors
    /// [`LockError::Held`] where somebody else has it all that time.
    pub fn acquire(data: &Path, wait: Duration) -> Result<Self, LockError> {
        let path = data.join(LOCK_FILE);
        let io = |source| LockError::Io { path: path.clone(), source };
        fs::create_dir_all(data).map_err(io)?;
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(io)?;
        let began = Instant::now();
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { file }),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) if began.elapsed() < wait => {
                    std::thread::sleep(RETRY);
                }
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(LockError::Held { data: data.into(), waited: wait }),
                Err(error) => return Err(io(error.into())),
            }
        }
    }

    /// What the file system says of the lock file that is held, whatever lies at its path by now.
    ///
    /// # Errors
    /// What the file system says.
    pub fn metadata(&self) -> io::Result<fs::Metadata> {
        self.file.metadata()
    }

    /// A copy of the descriptor, which holds the lock as this one does.
    ///
    /// # Errors
    /// Where the process has no descriptors left.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_is_free_only_when_every_copy_is_closed() {
        let data = tempfile::tempdir().unwrap();
        let lock = GuardLock::acquire(data.path(), Duration::ZERO).unwrap();
        let copy = lock.share().unwrap();
        drop(lock);
        let refused = GuardLock::acquire(data.path(), Duration::from_millis(20)).unwrap_err();
        assert!(refused.to_string().contains("is in use"), "{refused}");
        drop(copy);
        GuardLock::acquire(data.path(), Duration::ZERO).unwrap();
    }
}

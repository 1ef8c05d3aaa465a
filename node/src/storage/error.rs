//! What can go wrong on disk.

use std::io;
use std::path::PathBuf;

use crate::disk::remedy;

/// What to do about a data folder that cannot be used. Which copy of it is the newest nobody can tell, and an older one would
/// have forgotten what it promised.
pub(super) const START_EMPTY: &str = "move the data folder away, all but the certificate, and start the node again under the \
    same name and address: it begins empty, and the leader takes it in where most voters are up; never restore an older copy \
    of a voter while the others go on (a cluster of one voter has no others: restore its newest copy)";

/// Why the log or a snapshot cannot be used. Whoever meets it stops the node: nothing here is tried again.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The operating system refused.
    #[error("cannot {doing} {}: {}, then start the node again", .path.display(), remedy(.source))]
    Io {
        /// What was tried, as a verb.
        doing: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The bytes on disk are not those that were written.
    #[error(
        "{} is damaged at byte {offset} ({place}): {what}; nothing was changed; {START_EMPTY}",
        .path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the damaged piece begins, in bytes from the beginning of the file.
        offset: u64,
        /// Which piece that is: `record 7`, `section 2`, `header`.
        place: String,
        /// What does not fit.
        what: String,
    },
    /// Every record is whole, but they contradict each other or the log.
    #[error(
        "{} cannot be used: {what}; nothing was changed; {START_EMPTY}",
        .path.display()
    )]
    Contradiction {
        /// The file or folder.
        path: PathBuf,
        /// What does not fit.
        what: String,
    },
    /// A snapshot came over the network and is not whole.
    #[error("the received snapshot is refused at byte {offset} ({place}): {what}; the leader sends it again")]
    BadTransfer {
        /// Where, in bytes from the beginning of the snapshot.
        offset: u64,
        /// Which piece that is.
        place: String,
        /// What does not fit.
        what: String,
    },
    /// The state is larger than the format holds.
    #[error("the state cannot be written as a snapshot: {0}")]
    TooLarge(String),
    /// It was written in a format that this build does not know.
    #[error(
        "{} is of {what}, which this build of pando-node does not know; nothing was changed. Start the newer version of \
         pando-node that ran here. Where none ever ran here the file is damaged",
        .path.display()
    )]
    NewerFormat {
        /// The file or folder.
        path: PathBuf,
        /// Which format, and which one is known.
        what: String,
    },
    /// The state is under rules that this build does not know.
    #[error(
        "the state is under rules of version {found}, this build knows them up to {known}; nothing was changed. Start the \
         newer version of pando-node that ran here"
    )]
    NewerRules {
        /// The version that the state is under.
        found: u32,
        /// The newest version that this build knows.
        known: u32,
    },
    /// The folder is in use.
    #[error("{} is in use by another node process: stop that one first, or give this one a folder of its own", .0.display())]
    InUse(PathBuf),
}

impl StorageError {
    /// An [`StorageError::Io`] for `map_err`.
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { doing, path, source }
    }
}

impl From<StorageError> for io::Error {
    fn from(error: StorageError) -> Self {
        let kind = match &error {
            StorageError::Io { source, .. } => source.kind(),
            StorageError::Damaged { .. } | StorageError::Contradiction { .. } | StorageError::BadTransfer { .. } => {
                io::ErrorKind::InvalidData
            }
            StorageError::NewerFormat { .. } | StorageError::NewerRules { .. } => io::ErrorKind::Unsupported,
            StorageError::TooLarge(_) => io::ErrorKind::FileTooLarge,
            StorageError::InUse(_) => io::ErrorKind::WouldBlock,
        };
        Self::new(kind, error)
    }
}

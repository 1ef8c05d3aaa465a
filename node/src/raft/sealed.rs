//! A batch of commands with its bytes: written once where it is proposed, read once on each voter.
//!
//! ```text
//!   proposer ── seals ──► log (bytes) ──► frame to a follower: log id | bytes ──► log there (bytes)
//!                          └──► state machine: opens it                            └──► state machine: opens it
//! ```
//!
//! The bytes are those of the log, and those of a frame but for the log id before them, so that nothing on the way has to understand
//! them. Only a follower opens what comes over the network at once, to check that it can be; it leaves it open for its state
//! machine.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use pando_protocol::codec::{self, CodecError, ENTRY_LIMIT};
use pando_supervision::Batch;
use serde::{Deserialize, Serialize};

/// Before a batch, where an entry could carry something else: the number of [`Written::Batch`].
const MARK: u8 = 1;
/// The codec's version, and the mark.
const HEAD: [u8; 2] = [codec::VERSION, MARK];

/// The beginning of [`super::wire::Payload`] and of what the log stores.
#[derive(Serialize)]
enum Writing<'a> {
    #[allow(dead_code)] // Its place is what counts.
    Blank,
    Batch(&'a Batch),
}

#[derive(Deserialize)]
enum Written {
    Blank,
    Batch(Batch),
}

/// A batch as it is stored and sent. Clones share it; the first that opens it takes what is open already.
#[derive(Clone, Serialize, Deserialize)]
#[serde(from = "Bytes", into = "Bytes")]
pub struct Sealed {
    /// [`HEAD`], then the batch.
    bytes: Bytes,
    open: Arc<Mutex<Option<Batch>>>,
}

impl Sealed {
    /// Seals a batch. It is opened from its bytes here too: every voter applies what they say, and nothing else.
    ///
    /// # Errors
    /// [`CodecError::TooLarge`] where it takes more than [`ENTRY_LIMIT`] bytes.
    pub fn new(batch: &Batch) -> Result<Self, CodecError> {
        let bytes = codec::encode::<ENTRY_LIMIT>(&Writing::Batch(batch))?;
        // Cut to its length: the log keeps it for long, and counts no more than that.
        Ok(Self::from(Bytes::from(bytes.into_boxed_slice())))
    }

    /// What the log has, if it is a batch. It is opened later.
    pub fn stored(bytes: &Bytes) -> Option<Self> {
        bytes.starts_with(&HEAD).then(|| Self::from(bytes.clone()))
    }

    /// What came over the network behind a log id, and what it was found to be. `None` where it is not written as [`Self::new`]
    /// does.
    pub fn received(behind_the_id: &[u8], batch: Batch) -> Option<Self> {
        let written = behind_the_id.strip_prefix(&[MARK])?;
        let bytes = [&HEAD, written].concat().into();
        Some(Self { bytes, open: Arc::new(Mutex::new(Some(batch))) })
    }

    /// As the log has it.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// As it stands in a frame, behind the log id.
    pub fn behind_the_id(&self) -> &[u8] {
        &self.bytes[HEAD.len() - 1..]
    }

    /// Whether it is open already.
    pub fn is_open(&self) -> bool {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// The batch.
    ///
    /// # Errors
    /// Every kind of [`CodecError`], where these are the bytes of a newer build.
    pub fn open(&self) -> Result<Batch, CodecError> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        open.map_or_else(|| self.decode(), Ok)
    }

    /// The batch, read from its bytes: as often as it is asked for.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn decode(&self) -> Result<Batch, CodecError> {
        match codec::decode::<Written, ENTRY_LIMIT>(&self.bytes)? {
            Written::Batch(batch) => Ok(batch),
            Written::Blank => Err(CodecError::Malformed("nothing where a batch was expected".into())),
        }
    }
}

impl From<Bytes> for Sealed {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, open: Arc::default() }
    }
}
impl From<Sealed> for Bytes {
    fn from(sealed: Sealed) -> Self {
        sealed.bytes
    }
}

impl PartialEq for Sealed {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}
impl Eq for Sealed {}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.decode() {
            Ok(batch) => batch.fmt(f),
            Err(error) => write!(f, "{} bytes: {error}", self.bytes.len()),
        }
    }
}
impl fmt::Display for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of commands", self.bytes.len())
    }
}

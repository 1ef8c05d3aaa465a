//! The one codec: values to bytes and back, for wire and disk. Nothing else in Pando names bincode.
//!
//! ```text
//!   frame = length (u32, little endian) | body          body = version byte | bincode(value)
//! ```
//!
//! Untrusted bytes can neither allocate beyond the limit of their class nor panic; bytes left over are an error. The
//! format is positional, so a shipped struct never changes and enum variants are only ever appended.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The version byte of every body written today.
pub const VERSION: u8 = 1;
/// Bytes of the length before each frame.
pub const LENGTH_BYTES: usize = 4;
/// Most bytes in the body of a frame between processes: a spec of 1 MiB with room around it.
pub const FRAME_LIMIT: usize = 4 << 20;
/// Most bytes in one log entry on disk. A batch is cut well below it by the proposer.
pub const ENTRY_LIMIT: usize = 16 << 20;
/// Most bytes in one section of a snapshot file; sections aim for 1 MiB and may exceed it by one value.
pub const SECTION_LIMIT: usize = 8 << 20;

/// Why bytes could not be read, or a value could not be written.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The value needs more bytes than its class allows.
    #[error("value is larger than the limit of {limit} bytes")]
    TooLarge {
        /// The limit of the class, in bytes.
        limit: usize,
    },
    /// There is no byte, or its version is not ours.
    #[error("bytes begin with version {found:?}, expected {VERSION}: the other side runs another version of pando")]
    Version {
        /// The first byte, if there was one.
        found: Option<u8>,
    },
    /// The bytes are not a value of the expected type.
    #[error("malformed bytes: {0}")]
    Malformed(String),
    /// Bytes were left over after the value.
    #[error("{0} bytes left over after the value")]
    Trailing(usize),
}

/// Writes `value` as a body (version byte and bincode).
///
/// # Errors
/// [`CodecError::TooLarge`] where the body would exceed `LIMIT` bytes.
pub fn encode<const LIMIT: usize>(value: &impl Serialize) -> Result<Vec<u8>, CodecError> {
    let mut body = vec![VERSION];
    bincode::serde::encode_into_std_write(value, &mut body, config::<LIMIT>())
        .map_err(|e| CodecError::Malformed(e.to_string()))?;
    if body.len() > LIMIT { Err(CodecError::TooLarge { limit: LIMIT }) } else { Ok(body) }
}

/// Reads a value from a whole body.
///
/// # Errors
/// Every kind of [`CodecError`]; never panics, and allocates at most `LIMIT` bytes for what the bytes claim to hold.
pub fn decode<T: DeserializeOwned, const LIMIT: usize>(body: &[u8]) -> Result<T, CodecError> {
    let Some((&VERSION, bytes)) = body.split_first() else {
        return Err(CodecError::Version { found: body.first().copied() });
    };
    if body.len() > LIMIT {
        return Err(CodecError::TooLarge { limit: LIMIT });
    }
    let (value, used) = bincode::serde::decode_from_slice(bytes, config::<LIMIT>())
        .map_err(|e| CodecError::Malformed(e.to_string()))?;
    if used == bytes.len() { Ok(value) } else { Err(CodecError::Trailing(bytes.len() - used)) }
}

/// Writes `value` as a whole frame: length and body.
///
/// # Errors
/// [`CodecError::TooLarge`] where the body would exceed [`FRAME_LIMIT`] bytes.
pub fn frame(value: &impl Serialize) -> Result<Vec<u8>, CodecError> {
    let mut frame = vec![0; LENGTH_BYTES];
    frame.push(VERSION);
    bincode::serde::encode_into_std_write(value, &mut frame, config::<FRAME_LIMIT>())
        .map_err(|e| CodecError::Malformed(e.to_string()))?;
    let body = frame.len() - LENGTH_BYTES;
    if body > FRAME_LIMIT {
        return Err(CodecError::TooLarge { limit: FRAME_LIMIT });
    }
    let length = u32::try_from(body).map_err(|_| CodecError::TooLarge { limit: FRAME_LIMIT })?;
    frame[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// The length of the body that follows these four bytes, checked before anything is read or allocated.
///
/// # Errors
/// [`CodecError::TooLarge`] where it exceeds [`FRAME_LIMIT`].
pub fn frame_length(bytes: [u8; LENGTH_BYTES]) -> Result<usize, CodecError> {
    let length = u32::from_le_bytes(bytes) as usize;
    if length > FRAME_LIMIT { Err(CodecError::TooLarge { limit: FRAME_LIMIT }) } else { Ok(length) }
}

fn config<const LIMIT: usize>() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<LIMIT>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_comes_back_and_leftovers_are_an_error() {
        let mut body = encode::<1024>(&(7u32, "seven")).unwrap();
        assert_eq!(decode::<(u32, String), 1024>(&body).unwrap(), (7, "seven".into()));
        body.push(0);
        assert!(matches!(decode::<(u32, String), 1024>(&body), Err(CodecError::Trailing(1))));
    }

    #[test]
    fn another_version_and_no_bytes_are_named() {
        assert!(matches!(decode::<u8, 64>(&[]), Err(CodecError::Version { found: None })));
        assert!(matches!(decode::<u8, 64>(&[9, 1]), Err(CodecError::Version { found: Some(9) })));
    }

    #[test]
    fn a_claim_beyond_the_limit_is_refused() {
        // A byte vector that claims 2^32 - 1 elements.
        assert!(decode::<Vec<u8>, 1024>(&[VERSION, 252, 255, 255, 255, 255]).is_err());
        assert!(frame_length(u32::MAX.to_le_bytes()).is_err());
    }
}

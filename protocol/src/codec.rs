//! The one codec: values to bytes and back, for wire and disk. Nothing else in Pando names bincode.
//!
//! ```text
//!   frame = length (u32, little endian) | body          body = version byte | bincode(value)
//! ```
//!
//! Untrusted bytes can neither panic nor allocate beyond a stated multiple of the limit of their class
//! ([`MEMORY_FACTOR`]); bytes left over are an error. The format is positional, so a shipped struct never changes and enum
//! variants are only ever appended.

use serde::Serialize;
use serde::de::DeserializeOwned;

mod reader;

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
/// How many times the limit of its class a value may take in memory: one byte can stand for a whole element of a vector. A
/// value that takes more is refused while it is read. Honest values of a full frame take up to about eight times its size.
pub const MEMORY_FACTOR: usize = 16;

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
    bincode::serde::encode_into_std_write(value, &mut body, config())
        .map_err(|e| CodecError::Malformed(e.to_string()))?;
    if body.len() > LIMIT { Err(CodecError::TooLarge { limit: LIMIT }) } else { Ok(body) }
}

/// Reads a value from a whole body.
///
/// # Errors
/// Every kind of [`CodecError`]; never panics, and allocates at most [`MEMORY_FACTOR`] × `LIMIT` bytes, whatever the bytes
/// claim to hold. A container of elements that take no byte each cannot be read.
pub fn decode<T: DeserializeOwned, const LIMIT: usize>(body: &[u8]) -> Result<T, CodecError> {
    let Some((&VERSION, bytes)) = body.split_first() else {
        return Err(CodecError::Version { found: body.first().copied() });
    };
    if body.len() > LIMIT {
        return Err(CodecError::TooLarge { limit: LIMIT });
    }
    let memory = LIMIT.saturating_mul(MEMORY_FACTOR);
    let (value, used) = reader::read(bytes, config(), memory).map_err(|e| CodecError::Malformed(e.to_string()))?;
    if used == bytes.len() { Ok(value) } else { Err(CodecError::Trailing(bytes.len() - used)) }
}

/// Writes `value` as a whole frame: length and body.
///
/// # Errors
/// [`CodecError::TooLarge`] where the body would exceed [`FRAME_LIMIT`] bytes.
pub fn frame(value: &impl Serialize) -> Result<Vec<u8>, CodecError> {
    frame_behind(value, &[])
}

/// Writes as a whole frame what begins with `value` and goes on with `rest`, which is encoded already.
///
/// # Errors
/// As [`frame`].
pub fn frame_behind(value: &impl Serialize, rest: &[u8]) -> Result<Vec<u8>, CodecError> {
    let mut frame = vec![0; LENGTH_BYTES];
    frame.push(VERSION);
    bincode::serde::encode_into_std_write(value, &mut frame, config())
        .map_err(|e| CodecError::Malformed(e.to_string()))?;
    frame.extend_from_slice(rest);
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

/// Without the library's own limit: it counts small numbers by their size in memory, and would refuse bodies that were
/// written within the limit. The length of a body is checked here, and its memory by `reader`.
fn config() -> impl bincode::config::Config {
    bincode::config::standard()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

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

    #[test]
    fn a_container_cannot_claim_more_elements_than_there_are_bytes() {
        let error = decode::<Vec<u8>, 1024>(&[VERSION, 3, 1, 2]).unwrap_err().to_string();
        assert!(error.contains("3 elements are claimed where 2 bytes are left"), "{error}");
        assert!(decode::<BTreeMap<u8, u8>, 1024>(&[VERSION, 3, 1, 2]).is_err());
    }

    #[test]
    fn elements_that_grow_in_memory_are_refused_beyond_the_factor() {
        // An empty text is one byte, and 24 in memory.
        let texts = |count| encode::<1024>(&vec![String::new(); count]).unwrap();
        assert_eq!(decode::<Vec<String>, 1024>(&texts(100)).unwrap().len(), 100);
        let error = decode::<Vec<String>, 1024>(&texts(1_000)).unwrap_err().to_string();
        assert!(error.contains("more memory than its class allows"), "{error}");
        // Thirty bytes that say "none" take 480 behind a pointer.
        let boxes = |count| encode::<1024>(&vec![[None::<u64>; 30]; count]).unwrap();
        assert!(decode::<Vec<Box<[Option<u64>; 30]>>, 1024>(&boxes(20)).is_ok());
        assert!(decode::<Vec<Box<[Option<u64>; 30]>>, 1024>(&boxes(33)).is_err());
    }

    #[test]
    fn small_numbers_may_fill_a_body() {
        // Counted by their size in memory, these would be eight times the limit.
        let body = encode::<1024>(&[1u64; 31].map(|n| [n; 31])).unwrap();
        assert_eq!(decode::<[[u64; 31]; 31], 1024>(&body).unwrap()[30][30], 1);
    }

    #[test]
    fn every_shape_of_serde_comes_back_equal() {
        #[derive(Debug, PartialEq, Serialize, serde::Deserialize)]
        enum Shape {
            Unit,
            Newtype(Box<Shape>),
            Tuple(i8, i16, i32, i64, i128),
            Struct { one: Option<Arc<str>>, two: BTreeMap<char, (u16, u128)>, three: [bool; 3] },
        }
        #[derive(Debug, PartialEq, Serialize, serde::Deserialize)]
        struct Empty;
        let map = BTreeMap::from([('a', (1, u128::MAX)), ('ß', (2, 0))]);
        let value = (
            vec![
                Shape::Unit,
                Shape::Newtype(Box::new(Shape::Tuple(-1, i16::MIN, 3, i64::MAX, i128::MIN))),
                Shape::Struct { one: Some("text".into()), two: map, three: [true, false, true] },
            ],
            Empty,
            (),
            bytes::Bytes::from_static(b"payload"),
        );
        let body = encode::<1024>(&value).unwrap();
        let back: (Vec<Shape>, Empty, (), bytes::Bytes) = decode::<_, 1024>(&body).unwrap();
        assert_eq!(back, value);
        for length in 0..body.len() {
            assert!(decode::<(Vec<Shape>, Empty, (), bytes::Bytes), 1024>(&body[..length]).is_err());
        }
    }
}

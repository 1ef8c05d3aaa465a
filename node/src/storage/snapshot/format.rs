//! The bytes of a snapshot.
//!
//! ```text
//!   snapshot = magic (8) | block header | block section … | block footer
//!   block n  = length (u32) | CRC32C of n and length | body | CRC32C of n and body        integers little endian
//!   body     = kind (1) | header or footer by the codec, or (length (u32) | part by the codec) …
//! ```
//!
//! Every byte is under a checksum, and the number of its block with it: blocks that were damaged, lost, doubled or exchanged
//! are all noticed, and so is an end too early or too late. Written and read piece by piece; no buffer holds more than a
//! section.

use std::io::{self, Read, Write};

use pando_protocol::codec::{self, CodecError, SECTION_LIMIT};
use pando_supervision::parts::Part;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::raft::types::LogId;
use crate::storage::format::{SnapshotMeta, StoredLogId, StoredMembers, StoredMembership, newer_codec};

const MAGIC: [u8; 8] = *b"PANDOSN1";
/// The last byte of the magic is the format's version, a digit.
const MAGIC_VERSION: usize = MAGIC.len() - 1;
/// Sections are closed at this size, in bytes; a part that is larger by itself makes a section of its own.
pub const SECTION_BYTES: usize = 1 << 20;
/// Most bytes of a block's body.
const BLOCK_LIMIT: usize = SECTION_LIMIT + 64;
const LENGTH_BYTES: usize = 4;
const HEADER: u8 = 1;
const SECTION: u8 = 2;
const FOOTER: u8 = 3;

/// What a snapshot says before the state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Header {
    /// The last entry whose effects are in the state; `None` for the state before any entry.
    pub applied: Option<LogId>,
    /// Who votes, as of that entry.
    pub membership: StoredMembership,
    /// The version of the rules that the state is under.
    pub rules: u32,
}

impl Header {
    /// As openraft asks for it.
    pub fn meta(&self) -> SnapshotMeta {
        SnapshotMeta { last_log_id: self.applied, last_membership: self.membership.clone() }
    }
}

#[derive(Serialize, Deserialize)]
struct StoredHeader {
    applied: Option<StoredLogId>,
    members_at: Option<StoredLogId>,
    members: StoredMembers,
    rules: u32,
}

impl From<&Header> for StoredHeader {
    fn from(Header { applied, membership, rules }: &Header) -> Self {
        Self {
            applied: applied.as_ref().map(StoredLogId::from),
            members_at: membership.log_id().as_ref().map(StoredLogId::from),
            members: membership.membership().into(),
            rules: *rules,
        }
    }
}
impl TryFrom<StoredHeader> for Header {
    type Error = CodecError;
    fn try_from(StoredHeader { applied, members_at, members, rules }: StoredHeader) -> Result<Self, CodecError> {
        let membership = StoredMembership::new(members_at.map(LogId::from), members.try_into()?);
        Ok(Self { applied: applied.map(LogId::from), membership, rules })
    }
}

#[derive(Debug, PartialEq, Eq, Clone, Copy, Default, Serialize, Deserialize)]
struct Footer {
    sections: u64,
    parts: u64,
    bytes: u64,
}

/// Where and why bytes are no snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Bytes from the beginning to the block in question.
    pub offset: u64,
    /// Which block that is.
    pub place: String,
    /// What does not fit.
    pub what: String,
}

/// Why a snapshot could not be read.
#[derive(Debug)]
pub enum ReadError {
    /// The bytes are not those of a snapshot.
    Damaged(Damage),
    /// They are those of a newer format; which, and which one is known.
    Newer(String),
    /// The bytes could not be had.
    Io(io::Error),
}

/// Writes a whole snapshot; returns its size in bytes.
///
/// # Errors
/// Those of `out`, and [`io::ErrorKind::FileTooLarge`] where one part exceeds [`SECTION_LIMIT`].
pub fn write(out: impl Write, header: &Header, parts: impl Iterator<Item = Part>) -> io::Result<u64> {
    let mut blocks = BlockWriter { out, number: 0, bytes: MAGIC.len() as u64 };
    blocks.out.write_all(&MAGIC)?;
    blocks.write_value(HEADER, &StoredHeader::from(header))?;
    let footer = write_sections(&mut blocks, parts)?;
    blocks.write_value(FOOTER, &footer)?;
    blocks.out.flush()?;
    Ok(blocks.bytes)
}

fn write_sections<W: Write>(blocks: &mut BlockWriter<W>, parts: impl Iterator<Item = Part>) -> io::Result<Footer> {
    let mut footer = Footer::default();
    let mut section = vec![SECTION];
    for part in parts {
        let bytes = codec::encode::<SECTION_LIMIT>(&part).map_err(too_large)?;
        if section.len() > 1 && section.len() + LENGTH_BYTES + bytes.len() > SECTION_BYTES {
            footer.add_section(&section);
            blocks.write(&section)?;
            section.truncate(1);
        }
        footer.parts += 1;
        let length = u32::try_from(bytes.len()).map_err(too_large)?;
        section.extend_from_slice(&length.to_le_bytes());
        section.extend_from_slice(&bytes);
    }
    if section.len() > 1 {
        footer.add_section(&section);
        blocks.write(&section)?;
    }
    Ok(footer)
}

impl Footer {
    fn add_section(&mut self, body: &[u8]) {
        self.sections += 1;
        self.bytes += body.len() as u64;
    }
}

struct BlockWriter<W> {
    out: W,
    number: u64,
    bytes: u64,
}

impl<W: Write> BlockWriter<W> {
    fn write_value(&mut self, kind: u8, value: &impl Serialize) -> io::Result<()> {
        let mut body = vec![kind];
        body.extend(codec::encode::<SECTION_LIMIT>(value).map_err(too_large)?);
        self.write(&body)
    }

    fn write(&mut self, body: &[u8]) -> io::Result<()> {
        let length = u32::try_from(body.len()).map_err(too_large)?.to_le_bytes();
        self.out.write_all(&length)?;
        self.out.write_all(&checksum(self.number, &length))?;
        self.out.write_all(body)?;
        self.out.write_all(&checksum(self.number, body))?;
        self.number += 1;
        self.bytes += (body.len() + 12) as u64;
        Ok(())
    }
}

fn is_newer(version: u8) -> bool {
    version.is_ascii_digit() && version > MAGIC[MAGIC_VERSION]
}

fn checksum(number: u64, bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), bytes).to_le_bytes()
}

fn too_large(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, error)
}

/// Reads a snapshot part by part. Only after it returned `Ok(None)` are the parts known to be all of them.
pub struct Reader<I> {
    input: I,
    number: u64,
    /// Where the current block begins.
    offset: u64,
    read: u64,
    section: Vec<u8>,
    position: usize,
    seen: Footer,
    is_whole: bool,
}

impl<I: Read> Reader<I> {
    /// Reads the header.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn open(input: I) -> Result<(Header, Self), ReadError> {
        let mut reader = Self {
            input,
            number: 0,
            offset: 0,
            read: 0,
            section: vec![],
            position: 0,
            seen: Footer::default(),
            is_whole: false,
        };
        let mut magic = [0; MAGIC.len()];
        reader.fill(&mut magic)?;
        if magic[..MAGIC_VERSION] == MAGIC[..MAGIC_VERSION] && is_newer(magic[MAGIC_VERSION]) {
            let [found, known] = [magic, MAGIC].map(|magic| char::from(magic[MAGIC_VERSION]));
            return Err(ReadError::Newer(format!("snapshot format {found}, after {known}")));
        }
        if magic != MAGIC {
            return Err(
                reader.damage(format!("it begins with {magic:?}, expected {MAGIC:?}: no snapshot of this version"))
            );
        }
        reader.offset = reader.read;
        let body = reader.block()?;
        let stored: StoredHeader = reader.value(HEADER, &body)?;
        let header =
            Header::try_from(stored).map_err(|e| reader.damage(format!("its membership is impossible: {e}")))?;
        reader.next_block();
        Ok((header, reader))
    }

    /// The next part; `None` once the footer agrees and nothing follows it.
    ///
    /// # Errors
    /// [`ReadError`]. Nothing that came before may be used then.
    pub fn next_part(&mut self) -> Result<Option<Part>, ReadError> {
        while self.position == self.section.len() {
            if self.is_whole {
                return Ok(None);
            }
            self.read_section_or_footer()?;
        }
        let part = self.part_here()?;
        self.seen.parts += 1;
        if self.position == self.section.len() {
            self.next_block();
        }
        Ok(Some(part))
    }

    fn read_section_or_footer(&mut self) -> Result<(), ReadError> {
        let body = self.block()?;
        match body.first() {
            Some(&SECTION) if body.len() > 1 => {
                self.seen.add_section(&body);
                self.section = body;
                self.position = 1;
                Ok(())
            }
            Some(&FOOTER) => self.finish(&body),
            kind => Err(self.damage(format!("a block of kind {kind:?}, expected a section or the footer"))),
        }
    }

    fn finish(&mut self, body: &[u8]) -> Result<(), ReadError> {
        let footer: Footer = self.value(FOOTER, body)?;
        if footer != self.seen {
            return Err(self.damage(format!("the footer counts {footer:?}, read were {:?}", self.seen)));
        }
        self.next_block();
        match self.input.read(&mut [0]) {
            Ok(0) => {
                self.is_whole = true;
                Ok(())
            }
            Ok(_) => Err(self.damage("bytes follow the footer".into())),
            Err(error) => Err(ReadError::Io(error)),
        }
    }

    fn part_here(&mut self) -> Result<Part, ReadError> {
        let rest = &self.section[self.position..];
        let Some((length, rest)) = rest.split_first_chunk::<LENGTH_BYTES>() else {
            return Err(self.damage("a part without its length".into()));
        };
        let length = u32::from_le_bytes(*length) as usize;
        let Some(bytes) = rest.get(..length) else {
            return Err(self.damage(format!("a part of {length} bytes where {} are left", rest.len())));
        };
        let part = codec::decode::<Part, SECTION_LIMIT>(bytes);
        self.position += LENGTH_BYTES + length;
        part.map_err(|e| self.not_understood("a part", e))
    }

    fn block(&mut self) -> Result<Vec<u8>, ReadError> {
        let mut length = [0; LENGTH_BYTES];
        let mut check = [0; 4];
        self.fill(&mut length)?;
        self.fill(&mut check)?;
        if checksum(self.number, &length) != check {
            return Err(self.damage("its length does not fit its checksum".into()));
        }
        let length = u32::from_le_bytes(length) as usize;
        if length > BLOCK_LIMIT {
            return Err(self.damage(format!("{length} bytes, at most {BLOCK_LIMIT} are written")));
        }
        let mut body = vec![0; length];
        self.fill(&mut body)?;
        self.fill(&mut check)?;
        if checksum(self.number, &body) != check {
            return Err(self.damage("it does not fit its checksum".into()));
        }
        Ok(body)
    }

    fn value<T: DeserializeOwned>(&self, kind: u8, body: &[u8]) -> Result<T, ReadError> {
        match body.split_first() {
            Some((found, bytes)) if *found == kind => {
                codec::decode::<T, SECTION_LIMIT>(bytes).map_err(|e| self.not_understood("it", e))
            }
            _ => Err(self.damage(format!("a block of kind {:?}, expected {kind}", body.first()))),
        }
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), ReadError> {
        match self.input.read_exact(buffer) {
            Ok(()) => {
                self.read += buffer.len() as u64;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(self.damage("it ends too early".into())),
            Err(error) => Err(ReadError::Io(error)),
        }
    }

    fn next_block(&mut self) {
        self.number += 1;
        self.offset = self.read;
    }

    fn not_understood(&self, what: &str, error: CodecError) -> ReadError {
        match newer_codec(&error) {
            Some(newer) => ReadError::Newer(newer),
            None => self.damage(format!("{what} cannot be understood: {error}")),
        }
    }

    fn damage(&self, what: String) -> ReadError {
        let place = match (self.number, self.offset) {
            (0, 0) => "beginning".into(),
            (0, _) => "header".into(),
            (number, _) => format!("section {number}"),
        };
        ReadError::Damaged(Damage { offset: self.offset, place, what })
    }
}

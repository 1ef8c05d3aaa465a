//! The records of the write-ahead log, byte for byte.
//!
//! ```text
//!   log id  = mark | term | node | index | CRC32C            vote = mark | term | node | committed | CRC32C
//!   payload = length | CRC32C of the length | bytes          a record = type | these | CRC32, by raft-log
//! ```
//!
//! raft-log takes *the file ends inside a record* as a torn write and cuts it. So nothing but the end of the file may
//! ever look like it: sizes are fixed or carry a checksum of their own, and everything begins with a mark that no other
//! piece begins with. Damage is then always `InvalidData`, which raft-log refuses.

use std::io::{self, Read, Write};

use bytes::Bytes;
use pando_protocol::codec::ENTRY_LIMIT;
use raft_log::codeq::{Decode, Encode};

use super::format::{StoredLogId, StoredVote};

// Neither 0, 1 (raft-log's tags of an optional value, and its version) nor the other: see the head of this file.
const LOG_ID_MARK: u8 = 0xA5;
const VOTE_MARK: u8 = 0xC3;
const USER_DATA_MARK: u8 = 0x96;

/// What raft-log keeps for us.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Records;

impl raft_log::Types for Records {
    type LogId = StoredLogId;
    type LogPayload = RecordedPayload;
    type Vote = StoredVote;
    type Callback = Flushed;
    type UserData = NoUserData;

    fn log_index(id: &StoredLogId) -> u64 {
        id.index
    }

    fn payload_size(payload: &RecordedPayload) -> u64 {
        payload.0.len() as u64 + CACHE_OVERHEAD
    }
}

// What the cache holds beside the bytes of an entry: its key, the tree around it, the handle of the bytes.
const CACHE_OVERHEAD: u64 = 128;

/// The bytes of an entry's payload; what is in them is no business of the log.
#[derive(Debug, Clone)]
pub(super) struct RecordedPayload(pub Bytes);

/// We keep nothing in raft-log's place for more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NoUserData;

/// Called once the disk has what was written before it, or will never have it.
pub(super) struct Flushed(pub Box<dyn FnOnce(io::Result<()>) + Send>);

impl raft_log::Callback for Flushed {
    fn send(self, result: io::Result<()>) {
        (self.0)(result);
    }
}

impl Encode for StoredLogId {
    fn encode<W: Write>(&self, out: W) -> io::Result<usize> {
        let mut bytes = [LOG_ID_MARK; 25];
        bytes[1..9].copy_from_slice(&self.term.to_le_bytes());
        bytes[9..17].copy_from_slice(&self.node.to_le_bytes());
        bytes[17..].copy_from_slice(&self.index.to_le_bytes());
        write_checked(out, &bytes)
    }
}
impl Decode for StoredLogId {
    fn decode<R: Read>(input: R) -> io::Result<Self> {
        let bytes: [u8; 25] = read_checked(input, LOG_ID_MARK, "a log id")?;
        Ok(Self { term: number(&bytes, 1), node: number(&bytes, 9), index: number(&bytes, 17) })
    }
}

impl Encode for StoredVote {
    fn encode<W: Write>(&self, out: W) -> io::Result<usize> {
        let mut bytes = [VOTE_MARK; 18];
        bytes[1..9].copy_from_slice(&self.term.to_le_bytes());
        bytes[9..17].copy_from_slice(&self.node.to_le_bytes());
        bytes[17] = u8::from(self.committed);
        write_checked(out, &bytes)
    }
}
impl Decode for StoredVote {
    fn decode<R: Read>(input: R) -> io::Result<Self> {
        let bytes: [u8; 18] = read_checked(input, VOTE_MARK, "a vote")?;
        Ok(Self { term: number(&bytes, 1), node: number(&bytes, 9), committed: bytes[17] != 0 })
    }
}

impl Encode for RecordedPayload {
    fn encode<W: Write>(&self, mut out: W) -> io::Result<usize> {
        let length = u32::try_from(self.0.len()).map_err(|_| invalid("a payload above 4 GiB".into()))?.to_le_bytes();
        out.write_all(&length)?;
        out.write_all(&crc32c::crc32c(&length).to_le_bytes())?;
        out.write_all(&self.0)?;
        Ok(8 + self.0.len())
    }
}
impl Decode for RecordedPayload {
    fn decode<R: Read>(mut input: R) -> io::Result<Self> {
        let mut head = [0; 8];
        input.read_exact(&mut head)?;
        let (length, checksum) = head.split_at(4);
        if crc32c::crc32c(length).to_le_bytes() != *checksum {
            return Err(invalid("the length of a payload does not fit its checksum".into()));
        }
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        if length > ENTRY_LIMIT {
            return Err(invalid(format!("a payload of {length} bytes, at most {ENTRY_LIMIT} are written")));
        }
        let mut bytes = vec![0; length];
        input.read_exact(&mut bytes)?;
        Ok(Self(bytes.into()))
    }
}

impl Encode for NoUserData {
    fn encode<W: Write>(&self, mut out: W) -> io::Result<usize> {
        out.write_all(&[USER_DATA_MARK])?;
        Ok(1)
    }
}
impl Decode for NoUserData {
    fn decode<R: Read>(mut input: R) -> io::Result<Self> {
        read_mark(&mut input, USER_DATA_MARK, "user data").map(|()| Self)
    }
}

fn write_checked(mut out: impl Write, bytes: &[u8]) -> io::Result<usize> {
    out.write_all(bytes)?;
    out.write_all(&crc32c::crc32c(bytes).to_le_bytes())?;
    Ok(bytes.len() + 4)
}

fn read_checked<const N: usize>(mut input: impl Read, mark: u8, what: &str) -> io::Result<[u8; N]> {
    // The mark first and alone: a record of another type may be shorter, and its end would look like a torn write.
    read_mark(&mut input, mark, what)?;
    let mut bytes = [mark; N];
    input.read_exact(&mut bytes[1..])?;
    let mut checksum = [0; 4];
    input.read_exact(&mut checksum)?;
    if crc32c::crc32c(&bytes).to_le_bytes() == checksum {
        Ok(bytes)
    } else {
        Err(invalid(format!("{what} does not fit its checksum")))
    }
}

fn read_mark(input: &mut impl Read, mark: u8, what: &str) -> io::Result<()> {
    let mut found = [0];
    input.read_exact(&mut found)?;
    if found[0] == mark {
        Ok(())
    } else {
        Err(invalid(format!("{what} begins with {:#04x}, expected {mark:#04x}", found[0])))
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use raft_log::RaftLogAction::{Append, Commit, PurgeUpto, SaveVote, TruncateAfter};
    use raft_log::RaftLogRecord;

    use super::*;

    #[test]
    fn every_record_keeps_its_bytes() {
        let id = StoredLogId { term: 3, node: 7, index: 0x0102 };
        let vote = StoredVote { term: 3, node: 7, committed: true };
        let id_bytes = "a5 0300000000000000 0700000000000000 0201000000000000 464e0ee6";
        let golden = [
            (SaveVote(vote), "00000000 c3 0300000000000000 0700000000000000 01 25a6c874 0000000036684acc".to_owned()),
            (
                Append(id, RecordedPayload(Bytes::from_static(b"\x01\x00"))),
                format!("00000001 {id_bytes} 02000000 466800f7 0100 00000000957f13d4"),
            ),
            (Commit(id), format!("00000002 {id_bytes} 00000000d0e80b8e")),
            (TruncateAfter(Some(id)), format!("00000003 01 {id_bytes} 00000000bc6c4142")),
            (PurgeUpto(id), format!("00000004 {id_bytes} 0000000059aa41be")),
        ];
        for (action, bytes) in golden {
            let mut written = vec![];
            RaftLogRecord::<Records>::Action(action).encode(&mut written).unwrap();
            let hex: String = written.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, bytes.replace(' ', ""));
        }
    }
}

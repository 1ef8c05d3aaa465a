//! A log applied again, and what comes of it: the same bytes, whoever applies it.

use pando_protocol::codec::{SECTION_LIMIT, decode, encode};
use pando_supervision::parts::{Part, from_parts, parts};
use pando_supervision::{Cluster, Command, Stamp, apply};

/// Applies a log and tells the hash of the state after every `each` commands. Before the command with the index `restored`
/// the state is written as a snapshot is, and read back.
///
/// # Errors
/// The state cannot be written or read.
pub fn replay(log: &[(Stamp, Command)], each: usize, restored: Option<usize>) -> Result<Vec<(usize, u64)>, String> {
    let mut cluster = Cluster::default();
    let mut hashes = Vec::new();
    for (index, (stamp, command)) in log.iter().enumerate() {
        if restored == Some(index) {
            cluster = restore(&cluster)?;
        }
        apply(&mut cluster, *stamp, command.clone());
        if (index + 1).is_multiple_of(each) || index + 1 == log.len() {
            hashes.push((index + 1, hash(&cluster)?));
        }
    }
    Ok(hashes)
}

fn restore(cluster: &Cluster) -> Result<Cluster, String> {
    let bytes: Result<Vec<Vec<u8>>, _> = parts(cluster).map(|part| encode::<SECTION_LIMIT>(&part)).collect();
    let bytes = bytes.map_err(|error| error.to_string())?;
    let back: Result<Vec<Part>, _> = bytes.iter().map(|part| decode::<Part, SECTION_LIMIT>(part)).collect();
    from_parts(back.map_err(|error| error.to_string())?)
}

/// FNV-1a over the bytes of every part.
fn hash(cluster: &Cluster) -> Result<u64, String> {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for part in parts(cluster) {
        for byte in encode::<SECTION_LIMIT>(&part).map_err(|error| error.to_string())? {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    Ok(hash)
}

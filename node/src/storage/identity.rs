//! The data folder: whom it belongs to.
//!
//! `node.id` in it is a text that people can read, with a checksum, written once and durably when the folder is made:
//!
//! ```text
//!   pando node 1
//!   cluster shop
//!   node n1
//!   raft-id 1402…
//!   checksum 6b2f…
//! ```
//!
//! The number in the first line is the format of the whole folder: it is raised where a build before could misread any file
//! of it that does not tell its format itself. A later format keeps the form of the first line, and of the last.
//!
//! The Raft id is as old as the folder. A folder that was wiped gets a new one, because a voter that forgot what it promised
//! must not come back under the same id. Certificates and other files may lie in the folder beside it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use pando_protocol::ids::NodeName;

use super::error::START_EMPTY;
use super::folder;
use crate::disk::remedy;
use crate::raft::types::RaftId;

const IDENTITY: &str = "node.id";
const UNFINISHED: &str = "node.id.tmp";
const FIRST_LINE: &str = "pando node 1";
const FIRST_WORDS: &str = "pando node ";
/// The number in [`FIRST_LINE`].
const FORMAT: u32 = 1;
// What only a node that once ran leaves behind.
const TRACES: [&str; 2] = ["log", "snapshot"];

/// Why a folder cannot be this node's.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// It belongs to another node or cluster.
    #[error(
        "{} belongs to node {found_node} of cluster {found_cluster:?}, not to {node} of {cluster:?}: start {node} with a \
         folder of its own, or correct the name of the node or cluster",
        .folder.display()
    )]
    Foreign {
        /// The folder.
        folder: PathBuf,
        /// The cluster in it.
        found_cluster: String,
        /// The node in it.
        found_node: String,
        /// The configured cluster.
        cluster: String,
        /// The configured node.
        node: NodeName,
    },
    /// The folder is of a newer format.
    #[error(
        "{} is of format {found}, this build of pando-node knows them up to {FORMAT}; nothing was changed. Start the newer \
         version of pando-node that ran here",
        .folder.display()
    )]
    Newer {
        /// The folder.
        folder: PathBuf,
        /// Its format.
        found: u32,
    },
    /// `node.id` is not as it was written.
    #[error(
        "{} is damaged: {what}; {START_EMPTY}",
        .path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        what: String,
    },
    /// There is a log or a snapshot, but no `node.id`.
    #[error(
        "{} holds {trace:?} but no {IDENTITY}: without the id it was written under it cannot be used; {START_EMPTY}",
        .folder.display()
    )]
    Lost {
        /// The folder.
        folder: PathBuf,
        /// What is there.
        trace: &'static str,
    },
    /// Another process holds the folder.
    #[error("{} is in use by another node process: stop that one first, or give this one a folder of its own", .0.display())]
    InUse(PathBuf),
    /// A cluster name that cannot stand in a line of its own.
    #[error("{0:?} is no name for a cluster: use 1 to 63 characters without control characters")]
    BadClusterName(String),
    /// The operating system refused.
    #[error("cannot {doing} {}: {}, then start the node again", .path.display(), remedy(.source))]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

/// A data folder that is this node's, and locked by this process until this is dropped.
#[derive(Debug)]
pub struct DataFolder {
    path: PathBuf,
    raft_id: RaftId,
    is_fresh: bool,
    _lock: File,
}

impl DataFolder {
    /// Opens the folder of `node` in `cluster`; makes it, with the Raft id that `draw` gives, where it is missing. `draw`
    /// must be random over all 64 bits: an id is never used twice.
    ///
    /// # Errors
    /// [`IdentityError`]; nothing was changed then, save that the folder may have been made.
    pub fn open(
        path: &Path,
        cluster: &str,
        node: &NodeName,
        draw: impl FnOnce() -> RaftId,
    ) -> Result<Self, IdentityError> {
        if cluster.is_empty() || cluster.len() > 63 || cluster.chars().any(char::is_control) {
            return Err(IdentityError::BadClusterName(cluster.to_owned()));
        }
        folder::make(path).map_err(failed("create", path))?;
        let file = path.join(IDENTITY);
        let is_fresh = !file.try_exists().map_err(failed("look for", &file))?;
        if is_fresh {
            refuse_traces(path)?;
            write_identity(path, &Identity { cluster: cluster.into(), node: node.to_string(), raft_id: draw() })?;
        }
        let lock = lock(path, &file)?;
        let found = read_identity(&file)?;
        if found.cluster != cluster || found.node != node.as_str() {
            let Identity { cluster: found_cluster, node: found_node, .. } = found;
            let (folder, cluster, node) = (path.to_owned(), cluster.to_owned(), node.clone());
            return Err(IdentityError::Foreign { folder, found_cluster, found_node, cluster, node });
        }
        Ok(Self { path: path.to_owned(), raft_id: found.raft_id, is_fresh, _lock: lock })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the log lies: for [`super::log::LogStore::open`].
    pub fn log(&self) -> PathBuf {
        self.path.join(TRACES[0])
    }

    /// This node's Raft id.
    pub fn raft_id(&self) -> RaftId {
        self.raft_id
    }

    /// Whether it was made by this call. A folder that is not fresh may still be one whose log was never written.
    pub fn is_fresh(&self) -> bool {
        self.is_fresh
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Identity {
    cluster: String,
    node: String,
    raft_id: RaftId,
}

impl Identity {
    fn text(&self) -> String {
        let Self { cluster, node, raft_id } = self;
        let body = format!("{FIRST_LINE}\ncluster {cluster}\nnode {node}\nraft-id {raft_id}\n");
        format!("{body}checksum {:08x}\n", crc32c::crc32c(body.as_bytes()))
    }

    /// The error says what does not fit.
    fn parse(text: &str) -> Result<Self, String> {
        let lines: Vec<&str> = text.lines().collect();
        let [FIRST_LINE, cluster, node, raft_id, _] = lines[..] else {
            return Err(format!("expected five lines, the first of them {FIRST_LINE:?}"));
        };
        let after = |line: &str, key: &str| {
            let rest = line.strip_prefix(key).and_then(|rest| rest.strip_prefix(' '));
            rest.map(str::to_owned).ok_or_else(|| format!("a line does not begin with {key:?}"))
        };
        let raft_id = after(raft_id, "raft-id")?.parse().map_err(|e| format!("its Raft id is no number: {e}"))?;
        let identity = Self { cluster: after(cluster, "cluster")?, node: after(node, "node")?, raft_id };
        // Compared as a whole, so that no byte is left out of the checksum.
        if identity.text() == text { Ok(identity) } else { Err("it does not fit its checksum".into()) }
    }
}

fn failed<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> IdentityError + 'a {
    move |source| IdentityError::Io { doing, path: path.to_owned(), source }
}

fn refuse_traces(folder: &Path) -> Result<(), IdentityError> {
    for trace in TRACES {
        let path = folder.join(trace);
        if path.try_exists().map_err(failed("look for", &path))? {
            return Err(IdentityError::Lost { folder: folder.to_owned(), trace });
        }
    }
    Ok(())
}

fn write_identity(folder: &Path, identity: &Identity) -> Result<(), IdentityError> {
    let aside = folder.join(UNFINISHED);
    let mut file = File::create(&aside).map_err(failed("create", &aside))?;
    file.write_all(identity.text().as_bytes()).map_err(failed("write", &aside))?;
    file.sync_all().map_err(failed("sync", &aside))?;
    let path = folder.join(IDENTITY);
    fs::rename(&aside, &path).map_err(failed("rename a new file to", &path))?;
    folder::sync(folder).map_err(failed("sync the folder", folder))
}

fn lock(folder: &Path, file: &Path) -> Result<File, IdentityError> {
    let opened = OpenOptions::new().read(true).open(file).map_err(failed("open", file))?;
    match opened.try_lock() {
        Ok(()) => Ok(opened),
        Err(TryLockError::WouldBlock) => Err(IdentityError::InUse(folder.to_owned())),
        Err(TryLockError::Error(source)) => Err(failed("lock", file)(source)),
    }
}

fn read_identity(path: &Path) -> Result<Identity, IdentityError> {
    let bytes = fs::read(path).map_err(failed("read", path))?;
    let damaged = |what: String| IdentityError::Damaged { path: path.to_owned(), what };
    let text = String::from_utf8(bytes).map_err(|_| damaged("it is no text".into()))?;
    if let Some(found) = format(&text).filter(|found| *found > FORMAT) {
        return Err(IdentityError::Newer { folder: path.parent().unwrap_or(path).to_owned(), found });
    }
    Identity::parse(&text).map_err(damaged)
}

/// The format that the first line names; `None` where the last line is not the checksum of those before.
fn format(text: &str) -> Option<u32> {
    let (body, checksum) = text.trim_end_matches('\n').rsplit_once('\n')?;
    let is_whole =
        checksum.strip_prefix("checksum ")? == format!("{:08x}", crc32c::crc32c(format!("{body}\n").as_bytes()));
    text.lines().next()?.strip_prefix(FIRST_WORDS)?.parse().ok().filter(|_| is_whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_a_newer_format_is_refused_in_words_and_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let body = "pando node 2\ncluster shop\nnode n1\nraft-id 77\nzone a\n";
        let text = format!("{body}checksum {:08x}\n", crc32c::crc32c(body.as_bytes()));
        fs::write(folder.path().join(IDENTITY), &text).unwrap();
        let refused = open(folder.path(), "shop", "n1").unwrap_err().to_string();
        assert!(refused.contains("is of format 2, this build of pando-node knows them up to 1"), "{refused}");
        assert!(refused.contains("nothing was changed. Start the newer version"), "{refused}");
        assert_eq!(fs::read_to_string(folder.path().join(IDENTITY)).unwrap(), text);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    fn open(path: &Path, cluster: &str, node: &str) -> Result<DataFolder, IdentityError> {
        DataFolder::open(path, cluster, &node.parse().unwrap(), || 77)
    }

    #[test]
    fn a_folder_keeps_the_id_it_was_made_with() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data/n1");
        let made = open(&path, "shop", "n1").unwrap();
        assert!(made.is_fresh());
        drop(made);
        let again = DataFolder::open(&path, "shop", &"n1".parse().unwrap(), || 78).unwrap();
        assert_eq!((again.raft_id(), again.is_fresh()), (77, false));
    }

    #[test]
    fn a_folder_of_another_node_or_cluster_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        drop(open(folder.path(), "shop", "n1").unwrap());
        for (cluster, node) in [("shop", "n2"), ("farm", "n1")] {
            let refused = open(folder.path(), cluster, node).unwrap_err().to_string();
            assert!(refused.contains("belongs to node n1 of cluster \"shop\""), "{refused}");
            assert!(refused.contains(&format!("not to {node} of {cluster:?}")), "{refused}");
        }
    }

    #[test]
    fn a_folder_in_use_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let _held = open(folder.path(), "shop", "n1").unwrap();
        assert!(matches!(open(folder.path(), "shop", "n1"), Err(IdentityError::InUse(_))));
    }

    #[test]
    fn a_log_or_snapshot_without_an_id_is_refused() {
        for trace in TRACES {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir(folder.path().join(trace)).unwrap();
            assert!(matches!(open(folder.path(), "shop", "n1"), Err(IdentityError::Lost { .. })));
        }
    }

    #[test]
    fn every_flipped_or_missing_byte_of_the_id_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        drop(open(folder.path(), "shop", "n1").unwrap());
        let path = folder.path().join(IDENTITY);
        let good = fs::read(&path).unwrap();
        let refused = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            matches!(open(folder.path(), "shop", "n1"), Err(IdentityError::Damaged { .. }))
        };
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(refused(&bad), "bit {bit} of byte {at}");
            }
            assert!(refused(&good[..at]), "cut at {at}");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let refused = open(&file.join("data"), "shop", "n1").unwrap_err();
        assert!(
            refused.to_string().starts_with(&format!("cannot create {}", file.join("data").display())),
            "{refused}"
        );
    }
}

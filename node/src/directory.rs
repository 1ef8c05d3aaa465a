//! Where the voters are, as this node knows it: its configuration to begin with, then the word of the confirmed leader.
//!
//! ```text
//!   --voters ──┐                           ┌──► runner: whom to beat       guard: whom to tell of a death
//!   file ──────┼──► Directory ── watch ────┼──► api: whom to pass calls on to
//!   leader ────┘    newest entry wins      └──► raft: who may speak, and whether this node still votes
//! ```
//!
//! The file in the data folder is for a node that was away while voters were replaced: it knows more than the configuration
//! then. Until the leader has spoken both are tried, afterwards only what it said.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pando_protocol::codec::{self, FRAME_LIMIT};
use pando_protocol::ids::NodeName;
use pando_protocol::session::{Member, Members};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::disk::remedy;

/// The file in the data folder.
pub(crate) const FILE: &str = "members";

/// What is known of the members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The newest membership; index 0 and nobody before one is known.
    pub members: Members,
    /// Whether a leader said so to this process; else it is from the file.
    pub is_told: bool,
}

/// A handle to what is known.
#[derive(Debug, Clone)]
pub struct Directory {
    configured: Arc<BTreeMap<NodeName, String>>,
    known: watch::Sender<Known>,
}

impl Directory {
    /// A directory that begins with the configured voters alone.
    pub fn new(configured: BTreeMap<NodeName, String>) -> Self {
        let members = Members { index: 0, members: Vec::new() };
        let (known, _) = watch::channel(Known { members, is_told: false });
        Self { configured: Arc::new(configured), known }
    }

    /// The same with what an earlier process of this node left in its data folder. A file that cannot be read is left out: the
    /// configuration is enough to ask, and the leader says the rest.
    pub fn open(folder: &Path, configured: BTreeMap<NodeName, String>) -> Self {
        let directory = Self::new(configured);
        match read(folder) {
            Ok(Some(members)) => _ = directory.known.send_replace(Known { members, is_told: false }),
            Ok(None) => {}
            Err(error) => {
                let file = folder.join(FILE);
                tracing::warn!(
                    file = %file.display(), %error,
                    "the known members cannot be read: going by --voters until the leader names them; where none of those is a \
                     voter any more, start it with newer ones"
                );
            }
        }
        directory
    }

    /// Takes the leader's word. Repeated and older words change nothing.
    pub fn learn(&self, members: Members) {
        self.known.send_if_modified(|known| {
            let is_news = members.index > known.members.index || !known.is_told;
            if members.index >= known.members.index && is_news {
                *known = Known { members, is_told: true };
                return true;
            }
            false
        });
    }

    /// What is known now, and what will be.
    pub fn watch(&self) -> watch::Receiver<Known> {
        self.known.subscribe()
    }

    /// The voters by configuration.
    pub fn configured(&self) -> &BTreeMap<NodeName, String> {
        &self.configured
    }

    /// The voters, with their addresses: those that the leader named; before it spoke, those of the file and of the
    /// configuration.
    pub fn voters(&self) -> BTreeMap<NodeName, String> {
        let known = self.known.borrow();
        let mut voters = if known.is_told { BTreeMap::new() } else { BTreeMap::clone(&self.configured) };
        let voting = known.members.members.iter().filter(|member| member.votes);
        voters.extend(voting.map(|member| (member.name.clone(), member.address.clone())));
        voters
    }

    /// The same with the learners: whom a runner keeps a stream to.
    pub fn members(&self) -> BTreeMap<NodeName, String> {
        let mut members = self.voters();
        for member in &self.known.borrow().members.members {
            members.entry(member.name.clone()).or_insert_with(|| member.address.clone());
        }
        members
    }

    /// Whether a node belongs to Raft, or did by configuration.
    pub fn knows(&self, node: &NodeName) -> bool {
        self.configured.contains_key(node) || self.known.borrow().members.members.iter().any(|m| m.name == *node)
    }

    /// Writes down what is learnt, until `stop`. It need not survive a power failure: then the configuration serves.
    pub async fn keep(self, folder: PathBuf, stop: CancellationToken) {
        let mut known = self.watch();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                changed = known.changed() => if changed.is_err() { return },
            }
            let file = folder.join(FILE);
            let (members, folder) = (known.borrow_and_update().members.clone(), folder.clone());
            let voters: Vec<_> = members.members.iter().filter(|m| m.votes).map(|m| m.name.to_string()).collect();
            tracing::info!(index = members.index, ?voters, "the voters are known");
            let written = tokio::task::spawn_blocking(move || write(&folder, &members)).await;
            if let Ok(Err(error)) = written {
                let todo = remedy(&error);
                tracing::warn!(file = %file.display(), %error, todo, "the known members cannot be written down");
            }
        }
    }
}

impl Known {
    /// Whether what is known here is newer than the log's membership as of `index`, and does not let this Raft id vote: it
    /// was taken out, or not yet promoted, whatever the log here says.
    pub fn denies(&self, raft_id: u64, index: Option<u64>) -> bool {
        let may = |member: &Member| member.raft_id == raft_id && member.votes;
        index.is_none_or(|index| self.members.index > index)
            && self.members.index > 0
            && !self.members.members.iter().any(may)
    }
}

fn read(folder: &Path) -> io::Result<Option<Members>> {
    let bytes = match fs::read(folder.join(FILE)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // Of a damaged index all that the leader says could look old.
    let Some((bytes, checksum)) = bytes.split_last_chunk() else { return Err(io::Error::other("it is cut short")) };
    if crc32c::crc32c(bytes).to_le_bytes() != *checksum {
        return Err(io::Error::other("it does not fit its checksum"));
    }
    codec::decode::<Members, FRAME_LIMIT>(bytes).map(Some).map_err(io::Error::other)
}

pub(crate) fn write(folder: &Path, members: &Members) -> io::Result<()> {
    let mut bytes = codec::encode::<FRAME_LIMIT>(members).map_err(io::Error::other)?;
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    let aside = folder.join(format!("{FILE}.new"));
    fs::write(&aside, bytes)?;
    fs::rename(&aside, folder.join(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(index: u64, names: &[(&str, u64, bool)]) -> Members {
        let member = |(name, raft_id, votes): &(&str, u64, bool)| Member {
            name: name.parse().unwrap(),
            raft_id: *raft_id,
            address: format!("{name}:1"),
            votes: *votes,
        };
        Members { index, members: names.iter().map(member).collect() }
    }

    fn names(directory: &Directory) -> Vec<String> {
        directory.voters().into_keys().map(|name| name.to_string()).collect()
    }

    fn configured() -> BTreeMap<NodeName, String> {
        BTreeMap::from([("n1".parse().unwrap(), "n1:9".to_owned())])
    }

    #[test]
    fn the_newest_word_of_a_leader_replaces_the_configuration_and_learners_are_no_voters() {
        let directory = Directory::new(configured());
        assert_eq!(names(&directory), ["n1"]);
        directory.learn(members(9, &[("n2", 2, true), ("n3", 3, false)]));
        assert_eq!(names(&directory), ["n2"]);
        directory.learn(members(4, &[("n1", 1, true)]));
        assert_eq!(names(&directory), ["n2"], "an older word");
        assert_eq!(directory.members().len(), 2);
        assert!(directory.knows(&"n3".parse().unwrap()) && directory.knows(&"n1".parse().unwrap()));
    }

    #[tokio::test]
    async fn a_node_that_comes_back_tries_those_it_knew_beside_the_configured_ones() {
        let folder = tempfile::tempdir().unwrap();
        let (directory, stop) = (Directory::open(folder.path(), configured()), CancellationToken::new());
        let keeping = tokio::spawn(directory.clone().keep(folder.path().to_owned(), stop.clone()));
        tokio::task::yield_now().await;
        directory.learn(members(9, &[("n2", 2, true)]));
        let until = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
        while !folder.path().join(FILE).exists() {
            assert!(tokio::time::Instant::now() < until, "it is not written");
            tokio::task::yield_now().await;
        }
        stop.cancel();
        keeping.await.unwrap();
        let again = Directory::open(folder.path(), configured());
        assert_eq!(names(&again), ["n1", "n2"]);
        again.learn(members(9, &[("n2", 2, true)]));
        assert_eq!(names(&again), ["n2"], "the same, but now a leader says so");
        fs::write(folder.path().join(FILE), "nonsense").unwrap();
        assert_eq!(names(&Directory::open(folder.path(), configured())), ["n1"]);
    }

    #[test]
    fn a_newer_membership_without_an_id_denies_its_vote_and_an_older_one_says_nothing() {
        let known = Known { members: members(9, &[("n1", 1, true), ("n2", 2, false)]), is_told: true };
        assert!(!known.denies(1, Some(5)));
        assert!(known.denies(2, Some(5)) && known.denies(3, Some(8)) && known.denies(3, None));
        assert!(!known.denies(3, Some(9)), "the log here is as new");
        let nothing = Known { members: members(0, &[]), is_told: false };
        assert!(!nothing.denies(3, None));
    }
}

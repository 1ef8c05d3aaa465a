//! What a cluster of `pando dev` consists of: its nodes with their ports, kept in `dev.json`, and its folders.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use pando_protocol::ids::NodeName;
use pando_protocol::session::NodeRole;
use serde::{Deserialize, Serialize};

use crate::context::replace_file;
use crate::exit::Failure;

/// What the command line asks for; `None` where it does not say.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    /// How many nodes.
    pub nodes: Option<usize>,
    /// How many of them vote.
    pub voters: Option<usize>,
}

/// The nodes of a cluster. The voters never change: they stand in the cluster's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// In order of number.
    pub nodes: Vec<NodePlan>,
}

/// One node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodePlan {
    /// Its name: `n1`.
    pub name: NodeName,
    /// Whether it votes.
    pub role: NodeRole,
    /// Where it answers, on loopback.
    pub port: u16,
    /// Where its metrics are, on loopback.
    pub http: u16,
    /// Its label `zone`.
    pub zone: String,
}

impl NodePlan {
    /// Where it answers.
    pub fn address(&self) -> String {
        format!("{}:{}", Ipv4Addr::LOCALHOST, self.port)
    }

    /// Where its metrics are.
    pub fn http_address(&self) -> String {
        format!("{}:{}", Ipv4Addr::LOCALHOST, self.http)
    }
}

impl Layout {
    /// The layout kept in a folder.
    ///
    /// # Errors
    /// There is none, or it is damaged.
    pub fn read(folder: &Path) -> Result<Self, Failure> {
        Self::read_if_there(folder)?.ok_or_else(|| {
            Failure::unreached(anyhow!(
                "there is no cluster of `pando dev` in {}: start one with `pando dev`, or name its folder with --data DIR",
                folder.display()
            ))
        })
    }

    /// The layout kept in a folder, with more agents where more nodes are wanted; a new one where there is none.
    ///
    /// # Errors
    /// What is wanted does not fit what is there, or no ports are free.
    pub fn open(folder: &Path, wanted: Wanted) -> Result<Self, Failure> {
        let known = Self::read_if_there(folder)?;
        let is_new = known.is_none();
        let mut layout = known.unwrap_or(Self { nodes: Vec::new() });
        let there = layout.nodes.len();
        let voters = if is_new { voters_for(wanted)? } else { layout.fitting_voters(folder, wanted)? };
        let more = wanted.nodes.unwrap_or(if is_new { DEFAULT_NODES } else { there }) - there;
        let taken: Vec<u16> = layout.nodes.iter().flat_map(|node| [node.port, node.http]).collect();
        let ports = free_ports(more * 2, &taken).context("no free ports on 127.0.0.1").map_err(Failure::failed)?;
        for (offset, pair) in ports.chunks_exact(2).enumerate() {
            let number = there + offset;
            let role = if number < voters { NodeRole::Voter } else { NodeRole::Agent };
            let name = format!("n{}", number + 1).parse().map_err(Failure::failed)?;
            let zone = ZONES[number % ZONES.len()].into();
            layout.nodes.push(NodePlan { name, role, port: pair[0], http: pair[1], zone });
        }
        layout.write(folder)?;
        Ok(layout)
    }

    /// The node of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn node(&self, name: &NodeName) -> Result<&NodePlan, Failure> {
        self.nodes.iter().find(|node| node.name == *name).ok_or_else(|| {
            let names: Vec<&str> = self.nodes.iter().map(|node| node.name.as_str()).collect();
            Failure::refused(anyhow!("there is no node {name} in this cluster: it has {}", names.join(", ")))
        })
    }

    /// The nodes that vote.
    pub fn voters(&self) -> impl Iterator<Item = &NodePlan> {
        self.nodes.iter().filter(|node| node.role == NodeRole::Voter)
    }

    /// The number of voters, where what is wanted fits what is there.
    fn fitting_voters(&self, folder: &Path, wanted: Wanted) -> Result<usize, Failure> {
        let (nodes, voters) = (self.nodes.len(), self.voters().count());
        let folder = folder.display();
        if wanted.voters.is_some_and(|wanted| wanted != voters) {
            return Err(Failure::usage(anyhow!(
                "the cluster in {folder} has {voters} voters, and that stands in its log: leave --voters out, or use another --data"
            )));
        }
        if wanted.nodes.is_some_and(|wanted| wanted < nodes) {
            return Err(Failure::usage(anyhow!(
                "the cluster in {folder} has {nodes} nodes: leave --nodes out, use another --data, or remove the folder"
            )));
        }
        Ok(voters)
    }

    fn read_if_there(folder: &Path) -> Result<Option<Self>, Failure> {
        let file = layout_file(folder);
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Failure::failed(error).context(format!("{} cannot be read", file.display()))),
        };
        let layout: Self = serde_json::from_str(&text).map_err(|error| {
            let (file, folder) = (file.display(), folder.display());
            Failure::failed(anyhow!(
                "{file} is damaged ({error}): mend it, or remove {folder} to begin with a new cluster"
            ))
        })?;
        Ok(Some(layout))
    }

    fn write(&self, folder: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(self).map_err(Failure::failed)? + "\n";
        replace_file(&layout_file(folder), &text).map_err(Failure::failed)
    }
}

/// How many of so many nodes vote in a new cluster.
fn voters_for(wanted: Wanted) -> Result<usize, Failure> {
    let nodes = wanted.nodes.unwrap_or(DEFAULT_NODES);
    let voters = wanted.voters.unwrap_or(if nodes < 3 { 1 } else { 3 });
    if voters > nodes {
        return Err(Failure::usage(anyhow!("{voters} voters need as many nodes: add --nodes {voters}")));
    }
    Ok(voters)
}

/// Ports that are free for TCP and UDP alike. None of those that the kernel lends to whoever connects to something: a node that is
/// killed could not have its port back while that is lent. `taken` are those of nodes that do not run now.
fn free_ports(count: usize, taken: &[u16]) -> io::Result<Vec<u16>> {
    let start = std::process::id() % u32::from(PORTS);
    let candidates = (0..u32::from(PORTS)).filter_map(|n| u16::try_from((start + n) % u32::from(PORTS)).ok());
    let free = |port: &u16| !taken.contains(port) && is_free(*port);
    let found: Vec<u16> = candidates.map(|n| FIRST_PORT + n).filter(free).take(count).collect();
    if found.len() < count {
        let last = FIRST_PORT + PORTS - 1;
        let why = format!(
            "fewer than {count} of the ports {FIRST_PORT} to {last} of 127.0.0.1 are free: end what holds them"
        );
        return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
    }
    Ok(found)
}

/// Whether a node could listen there now.
pub fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() && UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// The file that keeps the layout.
fn layout_file(folder: &Path) -> PathBuf {
    folder.join("dev.json")
}

/// The folder of a node: its log, its process file, its data.
pub fn node_folder(folder: &Path, node: &NodeName) -> PathBuf {
    folder.join(node.as_str())
}

/// The log of a node process.
pub fn log_file(folder: &Path, node: &NodeName) -> PathBuf {
    node_folder(folder, node).join("node.log")
}

/// The folder with the certificate of a node, or of `admin`.
pub fn identity_folder(folder: &Path, name: &NodeName) -> PathBuf {
    folder.join("identities").join(name.as_str())
}

/// Nodes of a new cluster.
const DEFAULT_NODES: usize = 3;
/// Values of the label `zone`, so that `spread` has something to spread over.
const ZONES: [&str; 3] = ["a", "b", "c"];
/// The first port that a node of `pando dev` may get.
const FIRST_PORT: u16 = 20_000;
/// How many there are: all below what Linux lends (from 32,768 on, unless it is told otherwise).
const PORTS: u16 = 12_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(nodes: usize, voters: Option<usize>) -> Wanted {
        Wanted { nodes: Some(nodes), voters }
    }

    #[test]
    fn an_odd_number_of_nodes_votes() {
        let voters = |nodes, voters| voters_for(wanted(nodes, voters)).ok();
        assert_eq!([1, 2, 3, 4, 5, 9].map(|nodes| voters(nodes, None)), [1, 1, 3, 3, 3, 3].map(Some));
        assert_eq!((voters(5, Some(5)), voters(4, Some(5)), voters(4, Some(1))), (Some(5), None, Some(1)));
    }

    #[test]
    fn the_same_ports_are_used_again_and_more_nodes_join_as_agents() {
        let folder = tempfile::tempdir().unwrap();
        let first = Layout::open(folder.path(), wanted(3, None)).unwrap();
        assert_eq!(Layout::open(folder.path(), Wanted::default()).unwrap(), first);
        let grown = Layout::open(folder.path(), wanted(5, None)).unwrap();
        assert_eq!((&grown.nodes[..3], grown.voters().count()), (&first.nodes[..], 3));
        let mut ports: Vec<u16> = grown.nodes.iter().flat_map(|node| [node.port, node.http]).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 10);
    }

    #[test]
    fn a_cluster_never_loses_nodes_or_changes_its_voters() {
        let folder = tempfile::tempdir().unwrap();
        Layout::open(folder.path(), wanted(3, None)).unwrap();
        assert!(Layout::open(folder.path(), wanted(1, None)).is_err());
        assert!(Layout::open(folder.path(), wanted(5, Some(5))).is_err());
        assert_eq!(Layout::read(folder.path()).unwrap().nodes.len(), 3);
    }
}

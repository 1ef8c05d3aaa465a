//! A cluster of real node processes on loopback, in a folder of its own.
//!
//! ```text
//!   Cluster ── pando-node n1 … nN (voters first, then agents), one guard each
//!      │            └── children, each with the mark of its node's data folder in its environment
//!      └── Client (admin), CLI with its own PANDO_HOME
//! ```
//!
//! Dropped, it kills every node and checks that nothing with a mark of it is left.

mod asking;
mod http;
mod node;
mod sleepers;

use std::collections::BTreeMap;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path as FilePath, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pando_protocol::client::Client;
use pando_protocol::client::certs::{Authority, CERTIFICATE_VALIDITY};
use pando_protocol::client::identity::{Identity, Role};
use pando_protocol::ids::{NodeName, Path};
use pando_protocol::view::NodeRow;
use tempfile::TempDir;

pub use http::Answer;
pub use node::{NodeProcess, marked_processes, send, started_at};
pub use sleepers::{sleeper, sleepers};

use crate::disk::SmallDisk;
use crate::programs;
use crate::wait::wait_until;

/// Bound for anything that takes milliseconds when all is well.
pub const SOON: Duration = Duration::from_secs(60);
/// The lease of the profile `lan`, which is that of a cluster here unless its flags say otherwise.
pub const LEASE: Duration = Duration::from_secs(2);

/// How a cluster is made.
#[derive(Debug, Clone)]
pub struct Options {
    /// 1, 3 or 5.
    pub voters: usize,
    /// Further nodes.
    pub agents: usize,
    /// Flags for every node, beside those that the fixture sets.
    pub flags: Vec<String>,
    /// Further flags of a node, by its name.
    pub own_flags: fn(&str) -> Vec<String>,
    /// Where the nodes answer, in their order; empty: on free ports of 127.0.0.1.
    pub addresses: Vec<String>,
    /// Where they listen, where that is not where they answer: something between passes on what comes.
    pub listens: Vec<String>,
    /// How long the certificates of the nodes are valid.
    pub validity: Duration,
    /// What every node logs unless `PANDO_LOG` says otherwise.
    pub logs: &'static str,
    /// Whether every node serves health and metrics, on a free port of 127.0.0.1.
    pub http: bool,
    /// What stands before the command of a node, by its name: it must become that command (`nsenter …`).
    pub prefix: fn(&str) -> Vec<String>,
    /// The program that every node is; `None`: the one that ships.
    pub program: Option<PathBuf>,
    /// The size in bytes of a disk of its own for the data folder of a node, by its name; `None`: none. Only in a namespace of
    /// mounts: see [`crate::namespace`].
    pub disk: fn(&str) -> Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            voters: 3,
            agents: 0,
            flags: Vec::new(),
            own_flags: |_| Vec::new(),
            addresses: Vec::new(),
            listens: Vec::new(),
            validity: CERTIFICATE_VALIDITY,
            logs: node::LOGS,
            http: false,
            prefix: |_| Vec::new(),
            program: None,
            disk: |_| None,
        }
    }
}

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    // Before the folder that they are mounted in, so that they are dropped before it.
    disks: BTreeMap<NodeName, SmallDisk>,
    folder: TempDir,
    nodes: BTreeMap<NodeName, NodeProcess>,
    client: Client,
}

impl Cluster {
    /// Three voters.
    pub async fn start() -> Self {
        Self::with(Options::default()).await
    }

    /// Three voters, and a tree that is whole.
    pub async fn running(toml: &str) -> Self {
        let cluster = Self::start().await;
        cluster.bring_up(toml).await;
        cluster
    }

    /// A cluster whose nodes all have a session.
    ///
    /// # Panics
    /// Where it does not come up within [`SOON`].
    pub async fn with(options: Options) -> Self {
        let cluster = Self::prepare(&options);
        cluster.all_up().await;
        cluster
    }

    /// Starts the nodes and waits for nothing.
    pub fn prepare(options: &Options) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let authority = Authority::create_or_load(&folder.path().join("ca"), "test").expect("an authority");
        let authority = authority.with_validity(options.validity);
        let names: Vec<NodeName> = (1..=options.voters + options.agents).map(|n| name(&format!("n{n}"))).collect();
        let mut addresses = options.addresses.clone();
        addresses.extend(names.iter().skip(addresses.len()).map(|_| free_address("127.0.0.1")));
        let voters = names.iter().zip(&addresses).take(options.voters);
        let voters = voters.map(|(name, address)| format!("{name}={address}")).collect::<Vec<_>>().join(",");
        let (mut nodes, mut disks) = (BTreeMap::new(), BTreeMap::new());
        for (index, (name, address)) in names.iter().zip(&addresses).enumerate() {
            let home = folder.path().join(name.as_str());
            authority.issue(name, Role::Node, &home.join("identity")).expect("a certificate");
            let flags = options.flags.iter().cloned().chain((options.own_flags)(name.as_str())).collect();
            let mut node = NodeProcess::new(name.clone(), home, address.clone(), &voters, flags);
            if let Some(listens) = options.listens.get(index) {
                node.set_listens(listens.clone());
            }
            node.set_logs(options.logs);
            node.set_prefix((options.prefix)(name.as_str()));
            if let Some(program) = &options.program {
                node.set_program(program.clone());
            }
            if options.http {
                node.set_http(free_address("127.0.0.1"));
            }
            if let Some(bytes) = (options.disk)(name.as_str()) {
                disks.insert(name.clone(), SmallDisk::mount(node.data(), bytes));
            }
            node.start();
            nodes.insert(name.clone(), node);
        }
        let admin = folder.path().join("admin");
        let authority = authority.with_validity(CERTIFICATE_VALIDITY);
        authority.issue(&name("admin"), Role::Admin, &admin).expect("a certificate");
        let client = client(&admin, addresses);
        Self { disks, folder, nodes, client }
    }

    /// Waits until every running node has a session and a leader is confirmed.
    pub async fn all_up(&self) {
        let running = self.nodes.values().filter(|node| node.is_running()).count();
        let up = |rows: &Result<Vec<NodeRow>, String>| {
            rows.as_ref().is_ok_and(|rows| rows.iter().filter(|row| row.session.is_some()).count() >= running)
        };
        _ = wait_until("all nodes to be up", SOON, async || self.try_nodes().await, up).await;
    }

    /// The folder of everything.
    pub fn folder(&self) -> &FilePath {
        self.folder.path()
    }

    /// A node process.
    pub fn node(&mut self, name: &str) -> &mut NodeProcess {
        self.nodes.get_mut(&self::name(name)).unwrap_or_else(|| panic!("no node {name}"))
    }

    /// The disk of a node that has one of its own.
    pub fn disk(&self, node: &str) -> &SmallDisk {
        &self.disks[&name(node)]
    }

    /// Every node process.
    pub fn nodes(&mut self) -> impl Iterator<Item = &mut NodeProcess> {
        self.nodes.values_mut()
    }

    /// The names of all nodes but this one, in their order.
    pub fn others(&self, node: &str) -> Vec<String> {
        self.nodes.keys().filter(|name| name.as_str() != node).map(ToString::to_string).collect()
    }

    /// These nodes and where they answer, as `--voters` takes them.
    pub fn named(&self, nodes: &[&str]) -> String {
        nodes.iter().map(|node| format!("{node}={}", self.address(node))).collect::<Vec<_>>().join(",")
    }

    /// The admin's client, which tries all nodes.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// A client with the admin's identity that asks one node only.
    pub fn client_of(&self, node: &str) -> Client {
        client(&self.folder.path().join("admin"), vec![self.nodes[&name(node)].address().to_owned()])
    }

    /// A client with the admin's identity that asks these nodes only.
    pub fn client_of_some(&self, nodes: &[String]) -> Client {
        let addresses = nodes.iter().map(|node| self.nodes[&name(node)].address().to_owned()).collect();
        client(&self.folder.path().join("admin"), addresses)
    }

    /// A client like [`Self::client`], for a task of its own.
    pub fn client_of_all(&self) -> Client {
        let addresses = self.nodes.values().map(|node| node.address().to_owned()).collect();
        client(&self.folder.path().join("admin"), addresses)
    }

    /// A client with the admin's identity that asks whoever answers at an address.
    pub fn client_at(&self, address: &str) -> Client {
        client(&self.folder.path().join("admin"), vec![address.to_owned()])
    }

    /// Where a node answers.
    pub fn address(&self, node: &str) -> &str {
        self.nodes[&name(node)].address()
    }

    /// What a node answers over HTTP; an error where nobody answers.
    ///
    /// # Errors
    /// What the connection says.
    ///
    /// # Panics
    /// Where the node serves none: see [`Options::http`].
    pub async fn get(&self, node: &str, path: &str) -> std::io::Result<Answer> {
        let address = self.nodes[&name(node)].http().unwrap_or_else(|| panic!("{node} serves no HTTP"));
        http::get(address, path).await
    }

    /// The processes of children that run on a node.
    pub fn children(&self, node: &str) -> Vec<u32> {
        self.nodes[&name(node)].mark().map(|mark| marked_processes(&mark)).unwrap_or_default()
    }

    /// The processes of children that run on any node, each with when it began: see [`started_at`].
    pub fn all_children(&self) -> BTreeMap<u32, u64> {
        let marks = self.nodes.values().filter_map(NodeProcess::mark);
        let pids = marks.flat_map(|mark| marked_processes(&mark));
        pids.filter_map(|pid| Some((pid, started_at(pid)?))).collect()
    }

    /// Adds an agent that knows the voters by these addresses, and starts it with these flags.
    pub fn add_agent(&mut self, agent: &str, voters: &str, flags: &[&str]) {
        let agent = name(agent);
        let authority = Authority::create_or_load(&self.folder.path().join("ca"), "test").expect("an authority");
        let home = self.folder.path().join(agent.as_str());
        let flags = flags.iter().map(ToString::to_string).collect();
        authority.issue(&agent, Role::Node, &home.join("identity")).expect("a certificate");
        let mut node = NodeProcess::new(agent.clone(), home, free_address("127.0.0.1"), voters, flags);
        node.start();
        self.nodes.insert(agent, node);
    }

    /// Makes an identity with this role, and gives its folder.
    pub fn issue(&self, holder: &str, role: Role) -> PathBuf {
        let authority = Authority::create_or_load(&self.folder.path().join("ca"), "test").expect("an authority");
        let folder = self.folder.path().join(holder);
        authority.issue(&name(holder), role, &folder).expect("a certificate");
        folder
    }

    /// Runs `pando` with these words, its own PANDO_HOME, and this cluster as endpoints.
    pub fn cli(&self, words: &[&str]) -> Output {
        self.cli_command(words).output().expect("pando runs")
    }

    /// Runs `pando` with these words; what it printed.
    ///
    /// # Panics
    /// Where it does not succeed.
    #[track_caller]
    pub fn done(&self, words: &[&str]) -> String {
        let (code, said) = said(&self.cli(words));
        assert_eq!(code, Some(0), "pando {}: {said}", words.join(" "));
        said
    }

    /// The command that [`Self::cli`] runs, for whoever does not wait for its end.
    pub fn cli_command(&self, words: &[&str]) -> std::process::Command {
        let endpoints: Vec<_> = self.nodes.values().map(|node| node.address().to_owned()).collect();
        let mut command = std::process::Command::new(programs::folder().join("pando"));
        command.args(words).current_dir(self.folder.path());
        command.env("PANDO_HOME", self.folder.path().join("home")).env("PANDO_ENDPOINTS", endpoints.join(","));
        command.env("PANDO_IDENTITY", self.folder.path().join("admin"));
        command
    }

    /// Stops every node by SIGTERM, and waits for each.
    pub fn stop(&mut self) {
        self.nodes.values_mut().for_each(NodeProcess::terminate);
        self.nodes.values_mut().for_each(NodeProcess::wait_for_end);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let marks: Vec<String> = self.nodes.values().filter_map(NodeProcess::mark).collect();
        self.nodes.values_mut().for_each(NodeProcess::kill);
        for node in self.nodes.values() {
            node.wait_for_guard();
            if std::thread::panicking() {
                eprintln!("--- {} ---\n{}", node.name(), node.log_tail(60));
            }
        }
        let left: Vec<u32> = marks.iter().flat_map(|mark| marked_processes(mark)).collect();
        if !std::thread::panicking() {
            assert!(left.is_empty(), "processes are left: {left:?}");
        }
    }
}

/// How a command ended, and what it wrote: standard output, then standard error.
pub fn said(output: &Output) -> (Option<i32>, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

/// A path from a text that is known to be one.
pub fn path(text: &str) -> Path {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

/// A node name from a text that is known to be one.
pub fn name(text: &str) -> NodeName {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn client(identity: &FilePath, endpoints: Vec<String>) -> Client {
    let identity = Identity::load(identity).expect("the admin's identity");
    Client::new(identity, endpoints).expect("a client")
}

/// An address whose port is free for UDP and TCP, and that this process gives once. It is free again when it is used: it is none of
/// those that the kernel lends to whoever connects to something, which a node that was killed could not have back.
pub fn free_address(host: &str) -> String {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Tests of other processes begin elsewhere.
    let start = std::process::id().wrapping_mul(97);
    for _ in 0..PORTS {
        let n = start.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % u32::from(PORTS);
        let port = FIRST_PORT + u16::try_from(n).expect("less than PORTS");
        if UdpSocket::bind((host, port)).is_ok() && TcpListener::bind((host, port)).is_ok() {
            return format!("{host}:{port}");
        }
    }
    panic!("no free port on {host}");
}

/// The first port that a test may use, and how many there are: below what Linux lends, and apart from those of `pando dev`.
const FIRST_PORT: u16 = 10_000;
const PORTS: u16 = 10_000;

/// The folder of the repository.
pub fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

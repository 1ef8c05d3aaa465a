//! The daemons of a peer: three processes on ports of their own, started and stopped by the folder's script, and their client.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::super::rows::Peer;
use crate::cluster::send;

/// Everything of a peer takes less.
const LIMIT: Duration = Duration::from_secs(240);
/// From its start on, until its client is served.
const UP_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What a peer calls its things.
#[derive(Debug)]
struct Kind {
    /// For the script.
    name: &'static str,
    daemon: &'static str,
    /// What `apt-get` installs.
    packages: &'static str,
    client: &'static str,
    /// Before the number of a measurement.
    letter: &'static str,
    scheme: &'static str,
    after_port: &'static str,
    ports: [u16; 3],
}

const ETCD: Kind = Kind {
    name: "etcd",
    daemon: "etcd",
    packages: "etcd-server etcd-client",
    client: "etcd",
    letter: "d",
    scheme: "http",
    after_port: "",
    ports: [2179, 2279, 2379],
};

const NATS: Kind = Kind {
    name: "nats",
    daemon: "nats-server",
    packages: "nats-server",
    client: "nats",
    letter: "c",
    scheme: "nats",
    after_port: "",
    ports: [4122, 4222, 4322],
};

const RABBIT: Kind = Kind {
    name: "rabbit",
    daemon: "rabbitmq-server",
    packages: "rabbitmq-server",
    client: "amqp",
    letter: "b",
    scheme: "amqp",
    after_port: "/%2f",
    ports: [5172, 5272, 5372],
};

/// What is needed to run a peer.
#[derive(Debug)]
pub struct Tools {
    /// Who.
    pub peer: Peer,
    /// The folder of all peers.
    pub folder: PathBuf,
    kind: &'static Kind,
    clients: PathBuf,
}

impl Tools {
    /// Looks for them.
    ///
    /// # Errors
    /// What is missing, and what to do.
    pub fn of(peer: Peer, folder: Option<&Path>) -> Result<Self, String> {
        let kind = match peer {
            Peer::Etcd => &ETCD,
            Peer::Nats => &NATS,
            Peer::Rabbit => &RABBIT,
            Peer::Floor | Peer::Runsv => return Err("it has no daemons".into()),
        };
        let folder = folder.ok_or("no folder of peers: name it with --peers or PANDO_PEERS")?.to_owned();
        let script = folder.join("cluster.sh");
        if !script.is_file() {
            return Err(format!("there is no {}", script.display()));
        }
        let clients = folder.join("b_c_d_clients/target/release");
        let tools = Self { peer, folder, kind, clients };
        let client = tools.client();
        if !client.is_file() {
            return Err(format!("there is no {}: cargo build --release in b_c_d_clients", client.display()));
        }
        let (daemon, packages) = (kind.daemon, kind.packages);
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&path).any(|folder| folder.join(daemon).is_file()) {
            return Err(format!("{daemon} is not installed: apt-get install {packages}"));
        }
        Ok(tools)
    }

    fn client(&self) -> PathBuf {
        self.clients.join(self.kind.client)
    }

    /// What its client calls this measurement.
    pub fn verb(&self, number: &str) -> String {
        format!("{}{number}", self.kind.letter)
    }

    /// Where its first daemon answers.
    pub fn url(&self) -> String {
        self.url_of(self.kind.ports[0])
    }

    /// Where the daemon with that port answers.
    pub fn url_of(&self, port: u16) -> String {
        format!("{}://127.0.0.1:{port}{}", self.kind.scheme, self.kind.after_port)
    }

    /// Where its daemons answer.
    pub fn ports(&self) -> [u16; 3] {
        self.kind.ports
    }
}

/// The three daemons of a peer. Dropped, they are ended, and what they left.
#[derive(Debug)]
pub struct Daemons<'a> {
    /// Whose they are.
    pub tools: &'a Tools,
    data: TempDir,
    /// The mappers of ports of Erlang that ran before: the first node starts one, which outlives it.
    mappers: BTreeSet<u32>,
}

impl<'a> Daemons<'a> {
    /// Starts them, with data of their own.
    ///
    /// # Errors
    /// They do not come up.
    pub fn start(tools: &'a Tools) -> Result<Self, String> {
        let data = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
        let daemons = Self { tools, data, mappers: processes_named("epmd") };
        let mut command = daemons.command(&tools.folder.join("cluster.sh"));
        command.args(["start", tools.kind.name]).stdout(Stdio::null());
        let status = command.status().map_err(|error| format!("cluster.sh: {error}"))?;
        if !status.success() {
            return Err(format!("cluster.sh start {}: {status}", tools.kind.name));
        }
        let end = Instant::now() + UP_WITHIN;
        while !tools.ports().iter().all(|port| TcpStream::connect(("127.0.0.1", *port)).is_ok()) {
            if Instant::now() > end {
                return Err(format!("its daemons do not listen after {UP_WITHIN:?}"));
            }
            sleep(LOOK_EVERY);
        }
        Ok(daemons)
    }

    /// A command that finds their data and the clients.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("PEERS", self.data.path()).env("BIN", &self.tools.clients).stdin(Stdio::null());
        command
    }

    /// What the client says, who is asked again while the daemons come up and refuse, where `again` says that it may be.
    ///
    /// # Errors
    /// What went wrong, in words.
    pub fn client(&self, words: &[&str], again: bool) -> Result<Value, String> {
        let end = Instant::now() + UP_WITHIN;
        loop {
            let mut command = self.command(&self.tools.client());
            command.args(words);
            match self.object(command) {
                Err(_) if again && Instant::now() < end => sleep(LOOK_EVERY * 5),
                said => return said,
            }
        }
    }

    /// Waits until its client is served: a small run of it is whole.
    pub fn settle(&self) {
        let verb = self.tools.verb("1");
        _ = self.client(&[&verb, &self.tools.url(), "100", "10", "10"], true);
    }

    /// Looks until there is something.
    ///
    /// # Errors
    /// `why` there is none, once daemons should be up.
    pub fn wait_for<T>(&self, why: &str, look: impl Fn() -> Option<T>) -> Result<T, String> {
        let end = Instant::now() + UP_WITHIN;
        loop {
            match look() {
                Some(found) => return Ok(found),
                None if Instant::now() > end => return Err(format!("{why} after {UP_WITHIN:?}")),
                None => sleep(LOOK_EVERY),
            }
        }
    }

    /// The last object that a command prints.
    ///
    /// # Errors
    /// It printed none; what it said instead.
    pub fn object(&self, mut command: Command) -> Result<Value, String> {
        let (out, err) = (self.data.path().join("client.out"), self.data.path().join("client.err"));
        let file = |path: &Path| File::create(path).map_err(|error| format!("{}: {error}", path.display()));
        let started = command.stdout(file(&out)?).stderr(file(&err)?).spawn();
        let mut client = started.map_err(|error| format!("its client: {error}"))?;
        let end = Instant::now() + LIMIT;
        let status = loop {
            match client.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < end => sleep(Duration::from_millis(10)),
                Ok(None) => {
                    _ = client.kill();
                    _ = client.wait();
                    return Err(format!("its client was not done after {LIMIT:?}"));
                }
                Err(error) => return Err(format!("its client: {error}")),
            }
        };
        let text = fs::read_to_string(&out).unwrap_or_default();
        let line = text.lines().rev().find(|line| line.starts_with('{'));
        let object = line.and_then(|line| serde_json::from_str(line).ok());
        object.ok_or_else(|| {
            let err = fs::read_to_string(&err).unwrap_or_default();
            format!("its client ended with {status}: {}", err.lines().last().unwrap_or_default())
        })
    }

    fn pids(&self) -> Vec<u32> {
        let pid = |node: &str| {
            let mut command = self.command(&self.tools.folder.join("cluster.sh"));
            let said = command.args(["pid", self.tools.kind.name, node]).stderr(Stdio::null()).output().ok()?;
            String::from_utf8(said.stdout).ok()?.trim().parse().ok()
        };
        ["1", "2", "3"].into_iter().filter_map(pid).collect()
    }
}

impl Drop for Daemons<'_> {
    fn drop(&mut self) {
        let pids = self.pids();
        pids.iter().for_each(|pid| send(*pid, Signal::TERM));
        let is_alive = |pid: &u32| fs::exists(format!("/proc/{pid}")).unwrap_or_default();
        let end = Instant::now() + Duration::from_secs(30);
        while pids.iter().any(is_alive) && Instant::now() < end {
            sleep(LOOK_EVERY);
        }
        pids.iter().filter(|pid| is_alive(pid)).for_each(|pid| send(*pid, Signal::KILL));
        for mapper in processes_named("epmd").difference(&self.mappers) {
            send(*mapper, Signal::TERM);
        }
    }
}

fn processes_named(name: &str) -> BTreeSet<u32> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_named = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name);
    pids.filter(is_named).collect()
}

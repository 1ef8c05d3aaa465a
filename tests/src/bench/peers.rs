//! The peers: their own daemons on this machine, and clients in the language of this project, as processes.
//!
//! The folder of the peers has `cluster.sh` (`start KIND`, `stop KIND`, `pid KIND 1..3`; data below `$PEERS`), a script for the death
//! of a leader in `b_rabbitmq/` and `c_nats/`, and the clients `amqp` and `nats`, built in release in `b_c_d_clients/`. Each client
//! prints one object of JSON.

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

use super::load::PREFETCH;
use super::measured::Measured;
use super::rows::{Peer, Row, Subject};
use super::throughput::MESSAGES;
use crate::cluster::send;

/// Everything of a peer takes less.
const LIMIT: Duration = Duration::from_secs(240);
/// From its start on, until its client is served.
const UP_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// In how many milliseconds NATS takes a message for not handled: its lowest without double deliveries in a run without crashes.
const ACK_WAIT: &str = "1000";

/// Where the peers are.
#[derive(Debug)]
pub struct Peers {
    folder: Option<PathBuf>,
}

impl Peers {
    /// The peers of a folder.
    pub fn find(folder: Option<&Path>) -> Self {
        Self { folder: folder.map(|folder| fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned())) }
    }

    /// One run of a peer, with daemons of its own.
    ///
    /// # Errors
    /// It is skipped, or failed; why, in words.
    pub fn run(&self, peer: Peer, subject: Subject) -> Result<Measured, String> {
        let tools = Tools::of(peer, self.folder.as_deref())?;
        let daemons = Daemons::start(&tools)?;
        match subject {
            Subject::Throughput => throughput(&daemons),
            Subject::Failing => failing(&daemons),
            Subject::Aborting => aborting(&daemons),
            Subject::Leader => leader(&daemons),
            Subject::Memory => Err("it is not compared".into()),
        }
    }
}

fn throughput(daemons: &Daemons<'_>) -> Result<Measured, String> {
    let (messages, prefetch) = (MESSAGES.to_string(), PREFETCH.to_string());
    let verb = daemons.tools.verb("1");
    let said = daemons.client(&[&verb, daemons.tools.url(), &messages, "1000", &prefetch], true)?;
    let mut measured = Measured::default();
    for (row, field) in [(Row::Publish, "publish_per_s"), (Row::Consume, "consume_per_s"), (Row::Both, "both_per_s")] {
        measured.values.insert(row, number(&said, field)?);
    }
    Ok(measured)
}

fn failing(daemons: &Daemons<'_>) -> Result<Measured, String> {
    let how = match daemons.tools.peer {
        Peer::Nats => "nak",
        Peer::Rabbit => "reject",
    };
    poison(daemons, Row::Failing, how, PREFETCH)
}

fn aborting(daemons: &Daemons<'_>) -> Result<Measured, String> {
    let mut measured = poison(daemons, Row::Aborting, "crash", PREFETCH)?;
    // What it charges is what was delivered: it is right only where one message is delivered at a time.
    let right = poison(daemons, Row::Aborting, "crash", 1)?;
    let took = right.values.get(&Row::Aborting).copied().unwrap_or_default();
    let faults = if right.faults.is_empty() { "all right".to_owned() } else { right.faults.join(", ") };
    measured.notes.push(format!("with prefetch 1: {took:.2} s, {faults}"));
    Ok(measured)
}

fn poison(daemons: &Daemons<'_>, row: Row, how: &str, prefetch: u32) -> Result<Measured, String> {
    let (verb, prefetch) = (daemons.tools.verb("2"), prefetch.to_string());
    let mut words = vec![verb.as_str(), daemons.tools.url(), how, &prefetch];
    if daemons.tools.peer == Peer::Nats {
        words.push(ACK_WAIT);
    }
    let said = daemons.client(&words, true)?;
    let mut measured = Measured::default();
    measured.values.insert(row, number(&said, "s")?);
    let (processed, dead) = (number(&said, "processed")?, number(&said, "dead")?);
    if (processed, dead) != (9_990.0, 10.0) {
        measured.faults.push(format!("{processed} of 9990 innocents were processed, {dead} are dead"));
    }
    Ok(measured)
}

fn leader(daemons: &Daemons<'_>) -> Result<Measured, String> {
    // Its own first run of the client is not repeated: it kills.
    daemons.settle();
    let (script, seconds) = match daemons.tools.peer {
        Peer::Nats => ("c_nats/failover.sh", "12"),
        Peer::Rabbit => ("b_rabbitmq/failover.sh", "7"),
    };
    let mut command = daemons.command(&daemons.tools.folder.join(script));
    command.args(["1", "on-survivor", seconds, "500"]).env("NACK_RECONNECT", "1");
    let said = daemons.object(command)?;
    let mut measured = Measured::default();
    measured.values.insert(Row::LeaderConfirms, number(&said, "confirm_gap_ms")?);
    measured.values.insert(Row::LeaderHandles, number(&said, "deliver_gap_ms")?);
    let lost = number(&said, "confirmed_but_never_delivered")?;
    if lost > 0.0 {
        measured.faults.push(format!("{lost} were confirmed and never delivered"));
    }
    Ok(measured)
}

fn number(said: &Value, field: &str) -> Result<f64, String> {
    said.get(field).and_then(Value::as_f64).ok_or_else(|| format!("its client said no {field}: {said}"))
}

/// What is needed to run a peer.
#[derive(Debug)]
struct Tools {
    peer: Peer,
    folder: PathBuf,
    clients: PathBuf,
}

impl Tools {
    fn of(peer: Peer, folder: Option<&Path>) -> Result<Self, String> {
        let folder = folder.ok_or("no folder of peers: name it with --peers or PANDO_PEERS")?.to_owned();
        let script = folder.join("cluster.sh");
        if !script.is_file() {
            return Err(format!("there is no {}", script.display()));
        }
        let clients = folder.join("b_c_d_clients/target/release");
        let tools = Self { peer, folder, clients };
        let client = tools.client();
        if !client.is_file() {
            return Err(format!("there is no {}: cargo build --release in b_c_d_clients", client.display()));
        }
        let daemon = match peer {
            Peer::Nats => "nats-server",
            Peer::Rabbit => "rabbitmq-server",
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&path).any(|folder| folder.join(daemon).is_file()) {
            return Err(format!("{daemon} is not installed: apt-get install {daemon}"));
        }
        Ok(tools)
    }

    fn kind(&self) -> &'static str {
        match self.peer {
            Peer::Nats => "nats",
            Peer::Rabbit => "rabbit",
        }
    }

    fn client(&self) -> PathBuf {
        self.clients.join(match self.peer {
            Peer::Nats => "nats",
            Peer::Rabbit => "amqp",
        })
    }

    /// What its client calls this measurement.
    fn verb(&self, number: &str) -> String {
        let letter = match self.peer {
            Peer::Nats => "c",
            Peer::Rabbit => "b",
        };
        format!("{letter}{number}")
    }

    fn url(&self) -> &'static str {
        match self.peer {
            Peer::Nats => "nats://127.0.0.1:4122",
            Peer::Rabbit => "amqp://127.0.0.1:5172/%2f",
        }
    }

    fn ports(&self) -> [u16; 3] {
        match self.peer {
            Peer::Nats => [4122, 4222, 4322],
            Peer::Rabbit => [5172, 5272, 5372],
        }
    }
}

/// The three daemons of a peer. Dropped, they are ended, and what they left.
#[derive(Debug)]
struct Daemons<'a> {
    tools: &'a Tools,
    data: TempDir,
    /// The mappers of ports of Erlang that ran before: the first node starts one, which outlives it.
    mappers: BTreeSet<u32>,
}

impl<'a> Daemons<'a> {
    fn start(tools: &'a Tools) -> Result<Self, String> {
        let data = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
        let daemons = Self { tools, data, mappers: processes_named("epmd") };
        let mut command = daemons.command(&tools.folder.join("cluster.sh"));
        command.args(["start", tools.kind()]).stdout(Stdio::null());
        let status = command.status().map_err(|error| format!("cluster.sh: {error}"))?;
        if !status.success() {
            return Err(format!("cluster.sh start {}: {status}", tools.kind()));
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

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("PEERS", self.data.path()).env("BIN", &self.tools.clients).stdin(Stdio::null());
        command
    }

    /// What the client says, who is asked again while the daemons come up and refuse, where `again` says that it may be.
    fn client(&self, words: &[&str], again: bool) -> Result<Value, String> {
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
    fn settle(&self) {
        let verb = self.tools.verb("1");
        _ = self.client(&[&verb, self.tools.url(), "100", "10", "10"], true);
    }

    /// The object that a command prints.
    fn object(&self, mut command: Command) -> Result<Value, String> {
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
            let said = command.args(["pid", self.tools.kind(), node]).stderr(Stdio::null()).output().ok()?;
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

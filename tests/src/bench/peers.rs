//! The peers: their own daemons on this machine, and clients in the language of this project, as processes.
//!
//! The folder of the peers has `cluster.sh` (`start KIND`, `stop KIND`, `pid KIND 1..3`; data below `$PEERS`), a script for the death
//! of a leader in `b_rabbitmq/` and `c_nats/`, and the clients `amqp` and `nats`, built in release in `b_c_d_clients/`. Each client
//! prints one object of JSON.

mod daemons;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use self::daemons::{Daemons, Tools};
use super::load::PREFETCH;
use super::measured::Measured;
use super::rows::{Peer, Row, Subject};
use super::throughput::MESSAGES;
use super::{commands, restart};

/// In how many milliseconds NATS takes a message for not handled: its lowest without double deliveries in a run without crashes.
const ACK_WAIT: &str = "1000";
/// Leaders of etcd that are killed in a run, and as many that are stopped.
const GAPS_OF_ETCD: usize = 2;

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
        match (peer, subject) {
            (Peer::Floor, Subject::Commands) => return commands::floor(),
            (Peer::Floor, _) => return restart::floor(),
            (Peer::Runsv, _) => return restart::runsv(),
            (Peer::Etcd | Peer::Nats | Peer::Rabbit, _) => {}
        }
        let tools = Tools::of(peer, self.folder.as_deref())?;
        let daemons = Daemons::start(&tools)?;
        match subject {
            Subject::Commands => commands(&daemons),
            Subject::Gaps => gaps(&daemons),
            Subject::Throughput => throughput(&daemons),
            Subject::Failing => failing(&daemons),
            Subject::Aborting => aborting(&daemons),
            Subject::Leader => leader(&daemons),
            _ => Err("it is not compared".into()),
        }
    }
}

/// As many clients, over as many connections, as those of Pando, each with a value of 100 B; all to the leader.
fn commands(daemons: &Daemons<'_>) -> Result<Measured, String> {
    let port = leader_of_etcd(daemons)?;
    let mut measured = Measured::default();
    for (row, clients, connections) in commands::CLIENTS {
        let (clients, connections) = (clients.to_string(), connections.to_string());
        let url = daemons.tools.url_of(port);
        let said = daemons.client(&["put", &url, &clients, &connections, "5", "100"], true)?;
        measured.put(row, number(&said, if row == Row::Command { "p50_ms" } else { "puts_per_s" })?);
    }
    Ok(measured)
}

/// The port of the member that leads, once one does.
fn leader_of_etcd(daemons: &Daemons<'_>) -> Result<u16, String> {
    daemons.wait_for("it has no leader", || {
        daemons.tools.ports().into_iter().find(|port| {
            let mut command = Command::new("etcdctl");
            command.env("ETCDCTL_API", "3").args(["--endpoints", &format!("127.0.0.1:{port}"), "endpoint", "status"]);
            let said = command.args(["-w", "json"]).stdin(Stdio::null()).stderr(Stdio::null()).output().ok();
            let said = said.and_then(|said| serde_json::from_slice::<Value>(&said.stdout).ok()).unwrap_or_default();
            let status = &said[0]["Status"];
            status["leader"].is_u64() && status["leader"] == status["header"]["member_id"]
        })
    })
}

/// Its own script kills or stops the leader under 8 clients.
fn gaps(daemons: &Daemons<'_>) -> Result<Measured, String> {
    let mut measured = Measured::default();
    for (row, signal) in [(Row::WriteGap, "KILL"), (Row::WriteGapHung, "STOP")] {
        for _ in 0..GAPS_OF_ETCD {
            leader_of_etcd(daemons)?;
            let mut command = daemons.command(&daemons.tools.folder.join("d_etcd/gap.sh"));
            command.args(["1", "6", "8"]).env("SIG", signal);
            measured.put(row, number(&daemons.object(command)?, "write_gap_ms")?);
        }
    }
    Ok(measured)
}

fn throughput(daemons: &Daemons<'_>) -> Result<Measured, String> {
    let (messages, prefetch) = (MESSAGES.to_string(), PREFETCH.to_string());
    let verb = daemons.tools.verb("1");
    let said = daemons.client(&[&verb, &daemons.tools.url(), &messages, "1000", &prefetch], true)?;
    let mut measured = Measured::default();
    for (row, field) in [(Row::Publish, "publish_per_s"), (Row::Consume, "consume_per_s"), (Row::Both, "both_per_s")] {
        measured.put(row, number(&said, field)?);
    }
    Ok(measured)
}

fn failing(daemons: &Daemons<'_>) -> Result<Measured, String> {
    let how = match daemons.tools.peer {
        Peer::Nats => "nak",
        _ => "reject",
    };
    poison(daemons, Row::Failing, how, PREFETCH)
}

fn aborting(daemons: &Daemons<'_>) -> Result<Measured, String> {
    let mut measured = poison(daemons, Row::Aborting, "crash", PREFETCH)?;
    // What it charges is what was delivered: it is right only where one message is delivered at a time.
    let right = poison(daemons, Row::Aborting, "crash", 1)?;
    let took = right.values.get(&Row::Aborting).and_then(|values| values.first()).copied().unwrap_or_default();
    let faults = if right.faults.is_empty() { "all right".to_owned() } else { right.faults.join(", ") };
    measured.notes.push(format!("with prefetch 1: {took:.2} s, {faults}"));
    Ok(measured)
}

fn poison(daemons: &Daemons<'_>, row: Row, how: &str, prefetch: u32) -> Result<Measured, String> {
    let (verb, url, prefetch) = (daemons.tools.verb("2"), daemons.tools.url(), prefetch.to_string());
    let mut words = vec![verb.as_str(), &url, how, &prefetch];
    if daemons.tools.peer == Peer::Nats {
        words.push(ACK_WAIT);
    }
    let said = daemons.client(&words, true)?;
    let mut measured = Measured::default();
    measured.put(row, number(&said, "s")?);
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
        _ => ("b_rabbitmq/failover.sh", "7"),
    };
    let mut command = daemons.command(&daemons.tools.folder.join(script));
    command.args(["1", "on-survivor", seconds, "500"]).env("NACK_RECONNECT", "1");
    let said = daemons.object(command)?;
    let mut measured = Measured::default();
    measured.put(Row::LeaderConfirms, number(&said, "confirm_gap_ms")?);
    measured.put(Row::LeaderHandles, number(&said, "deliver_gap_ms")?);
    let lost = number(&said, "confirmed_but_never_delivered")?;
    if lost > 0.0 {
        measured.faults.push(format!("{lost} were confirmed and never delivered"));
    }
    Ok(measured)
}

fn number(said: &Value, field: &str) -> Result<f64, String> {
    said.get(field).and_then(Value::as_f64).ok_or_else(|| format!("its client said no {field}: {said}"))
}

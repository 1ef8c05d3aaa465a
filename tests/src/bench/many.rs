//! Ten thousand children: what they take in a voter, how fast starts are committed, and how fast it is read.
//!
//! Three agents take them that start nothing: the runner of the node, its streams and its lease, with nobody behind it who makes
//! processes. So what is measured is the cluster, and not the kernel.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::{Duration, Instant};

use openraft::impls::TokioRuntime;
use pando_node::directory::Directory;
use pando_node::guard::{BootTime, GuardLock};
use pando_node::runner::children::ChildEvent;
use pando_node::runner::place::Place;
use pando_node::runner::record::SessionRecord;
use pando_node::runner::voters::connect;
use pando_node::runner::{Facts, Feeds, Pace, Processes, Runner, SignalReply};
use pando_node::transport::{Credentials, Peers};
use pando_protocol::client::identity::{Identity, IdentityFiles, Role};
use pando_protocol::client::quic::{self, Tuning};
use pando_protocol::ids::{Incarnation, NodeName, Path, SessionId};
use pando_protocol::mail::Hand;
use pando_protocol::session::NodeRole;
use pando_protocol::spec::{ProcessSpec, Signal};
use rand::Rng as _;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::cost::pss_bytes;
use super::measured::Measured;
use super::rows::Row;
use crate::cluster::{Cluster, LEASE, SOON};
use crate::wait::wait_until;

const CHILDREN: usize = 10_000;
const AGENTS: usize = 3;
/// A spec has at most 1 MiB, so they stand in several trees.
const TREES: usize = 10;
/// Children of one supervisor: nobody writes a flat list of ten thousand.
const EACH: usize = 100;
/// Events of an agent that may wait: all that its children can say at once.
const EVENTS: usize = 4 * CHILDREN;
/// So often the tree is read.
const READS: usize = 5;

/// Applies the tree, waits until it is whole, and looks.
pub async fn run() -> Measured {
    let mut cluster = Cluster::start().await;
    let mut agents = Vec::new();
    for number in 1..=AGENTS {
        agents.push(Agent::start(&mut cluster, &format!("agent{number}")));
    }
    let up = async || cluster.node_rows().await.iter().filter(|row| row.session.is_some()).count();
    wait_until("the agents", SOON, up, |up| *up == 3 + AGENTS).await;
    let memory = |cluster: &mut Cluster| cluster.nodes().map(|node| pss_bytes(node.pid())).collect::<Vec<u64>>();
    let before = memory(&mut cluster);
    let began = Instant::now();
    for number in 0..TREES {
        cluster.apply(&tree(number)).await;
    }
    for number in 0..TREES {
        cluster.whole(&format!("/t{number}")).await;
    }
    let took = began.elapsed();
    let each = memory(&mut cluster).into_iter().zip(before).map(|(now, then)| now.saturating_sub(then));
    let mut measured = Measured::default();
    measured.put(Row::TreeMemory, each.max().unwrap_or_default() as f64 / 1e3 / CHILDREN as f64);
    measured.put(Row::TreeStarts, CHILDREN as f64 / took.as_secs_f64());
    for _ in 0..READS {
        let asked = Instant::now();
        let rows = cluster.tree().await.len();
        measured.put(Row::TreeAnswer, asked.elapsed().as_secs_f64() * 1e3);
        if rows < CHILDREN {
            measured.faults.push(format!("the tree has {rows} rows"));
        }
    }
    measured
}

/// Supervisors with a hundred children each, all of which need a node that starts nothing.
fn tree(number: usize) -> String {
    let mut text = format!("name = \"t{number}\"\n");
    for group in 0..CHILDREN / TREES / EACH {
        _ = writeln!(text, "[[children]]\nid = \"g{group}\"\n");
        for child in 0..EACH {
            _ = writeln!(
                text,
                "[[children.children]]\nid = \"c{child}\"\ncommand = [\"/bin/worker\"]\n\
                 place = {{ require = [\"starts=nothing\"] }}"
            );
        }
    }
    text
}

/// A node whose children are only said to run. Dropped, it is gone without a word.
struct Agent {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Agent {
    fn start(cluster: &mut Cluster, name: &str) -> Self {
        let identity = cluster.issue(name, Role::Node);
        let voters: BTreeMap<NodeName, String> =
            cluster.nodes().map(|node| (node.name().clone(), node.address().to_owned())).collect();
        let (name, data) = (name.parse().expect("a name"), cluster.folder().join(format!("{name}-data")));
        let stop = CancellationToken::new();
        let task = tokio::spawn(take_part(name, identity, data, voters, stop.clone()));
        Self { stop, task }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop.cancel();
        self.task.abort();
    }
}

async fn take_part(
    node: NodeName,
    identity: std::path::PathBuf,
    data: std::path::PathBuf,
    voters: BTreeMap<NodeName, String>,
    stop: CancellationToken,
) {
    std::fs::create_dir_all(&data).expect("a folder");
    let files = IdentityFiles::read(&identity).expect("an identity");
    let own = Identity::from_files(&files).expect("an identity");
    let tuning = Tuning::lan();
    let endpoint = quic::bind(&own, ([127, 0, 0, 1], 0).into(), &tuning).expect("a socket").endpoint;
    let address = endpoint.local_addr().expect("an address").to_string();
    let (credentials, _renewal) = Credentials::renewable(identity, (files, own), endpoint.clone(), tuning.clone());
    let peers = Peers::new(endpoint, credentials, &tuning);
    let directory = Directory::new(voters);
    let (voters, heard, _links) = connect(&peers, &directory, tuning.dial, &stop);
    let (processes, children) = NoProcesses::new();
    let labels = vec!["starts=nothing".parse().expect("a label")];
    let slots = u32::try_from(CHILDREN).expect("a number of slots");
    let facts = Facts { node, address, role: NodeRole::Agent, labels, slots, pid: std::process::id() };
    let pace = Pace { beat: LEASE / 10, lease: LEASE };
    let (runner, _handle) =
        Runner::<TokioRuntime, _>::new(facts, pace, voters, processes, record(&data), || rand::rng().next_u64());
    let feeds = Feeds { heard, children, stop };
    runner.run(feeds).await.unwrap_or_else(|error| panic!("an agent: {error}"));
}

fn record(data: &FilePath) -> SessionRecord {
    let lock = GuardLock::acquire(data, Duration::ZERO).expect("the lock of a new folder");
    SessionRecord::open(data, Place::here(&lock).expect("where this is")).expect("the record of a new folder")
}

/// Says that everything that is to run does.
struct NoProcesses {
    said: mpsc::Sender<ChildEvent>,
}

impl NoProcesses {
    fn new() -> (Self, mpsc::Receiver<ChildEvent>) {
        let (said, events) = mpsc::channel(EVENTS);
        (Self { said }, events)
    }

    fn say(&self, event: ChildEvent) {
        self.said.try_send(event).expect("room for all that is said");
    }
}

impl Processes for NoProcesses {
    fn now(&self) -> BootTime {
        BootTime::now()
    }

    fn start(&mut self, path: Path, incarnation: Incarnation, _: SessionId, _: Arc<ProcessSpec>) {
        let at = Instant::now();
        self.say(ChildEvent::Started { path: path.clone(), incarnation, pid: 1, at });
        self.say(ChildEvent::Ready { path, incarnation, at });
    }

    fn renew(&mut self, session: SessionId, kill_at: BootTime) {
        self.say(ChildEvent::Renewed { session, kill_at });
    }

    fn call_guard(&mut self, number: u64) {
        self.say(ChildEvent::GuardAnswered { number });
    }

    // Nothing is stopped before the cluster is.
    fn stop(&mut self, _: Incarnation) {}
    fn hand(&mut self, _: Vec<Hand>) {}
    fn hold_workers(&mut self, _: bool) {}
    fn kill(&mut self, _: Incarnation) {}
    fn signal(&mut self, _: Incarnation, _: Signal, _: SignalReply) {}
    fn end_session(&mut self, _: SessionId) {}
    fn kill_guard(&mut self) {}
}

//! A cluster with a mailbox, and the load on it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pando_protocol::client::{Client, Pending, Producer};
use pando_protocol::mail::{MailboxRow, NewMessage};
use pando_protocol::message::{Change, Found, Query};

use crate::cluster::{Cluster, Options, path};

/// Messages that a worker holds at once.
pub const PREFETCH: u32 = 100;
/// Messages that were submitted and are not durable yet.
const IN_FLIGHT: usize = 1_000;
/// Bytes of a payload.
const PAYLOAD: usize = 100;
/// The mailbox.
pub const MAILBOX: &str = "/bench/work";
/// Nothing that is measured takes longer.
pub const LIMIT: Duration = Duration::from_secs(300);
/// What is waited for is looked at this often: it is asked over the network, and takes CPU time of what is measured.
const LOOK_EVERY: Duration = Duration::from_millis(4);
/// What a node logs unless it is told otherwise.
const LOGS: &str = "info,openraft=error,chunked_wal=warn,raft_log=warn,quinn=warn";
/// `f_type` of a file system in memory.
const TMPFS: u64 = 0x0102_1994;

/// A cluster of three voters with a mailbox, and workers that are ready.
#[derive(Debug)]
pub struct Load {
    /// The nodes.
    pub cluster: Cluster,
    /// Whoever sends.
    pub client: Arc<Client>,
    /// Who led when all were ready.
    pub leader: String,
}

impl Load {
    /// Starts it. `worker`: what stands in the spec of the worker beside its id and mailbox.
    pub async fn start(worker: &str, words: &[&str]) -> Self {
        let cluster = Cluster::with(Options { logs: LOGS, ..Options::default() }).await;
        let own = std::env::current_exe().expect("the path of this program");
        let own = own.to_str().expect("a path that is text");
        let command: Vec<&str> = [own].into_iter().chain(words.iter().copied()).collect();
        let spec = format!(
            "name = \"bench\"\n[[children]]\nid = \"work\"\ncommand = {command:?}\n{worker}\n\
             backoff = {{ base = \"10ms\", cap = \"10ms\" }}\n\
             mailbox = {{ max_attempts = 3, prefetch = {PREFETCH}, max_messages = 2000000, max_bytes = \"512MiB\" }}\n"
        );
        cluster.apply_once_rules_are_raised(&spec).await;
        cluster.whole("/bench").await;
        let (client, leader) = (Arc::new(cluster.client_of_all()), cluster.leader().await);
        Self { cluster, client, leader }
    }

    /// A producer for the mailbox.
    pub fn producer(&self) -> Producer {
        Producer::new(self.client.clone(), path(MAILBOX), LIMIT)
    }

    /// The mailbox.
    pub async fn row(&self) -> MailboxRow {
        match self.cluster.ask(Query::Mailboxes(Some(path(MAILBOX)))).await {
            Found::Mailboxes(rows) => rows.into_iter().next().expect("the mailbox"),
            other => panic!("{other:?}"),
        }
    }

    /// Nothing is handed out until [`Self::resume`].
    pub async fn pause(&self) {
        self.change(Change::Pause(path(MAILBOX))).await;
    }

    /// Goes on.
    pub async fn resume(&self) {
        self.change(Change::Resume(path(MAILBOX))).await;
    }

    async fn change(&self, change: Change) {
        self.cluster.change(change).await.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Waits until so many are done or dead and no others are left.
    ///
    /// # Panics
    /// After [`LIMIT`].
    pub async fn settled(&self, messages: u64) -> MailboxRow {
        let end = Instant::now() + LIMIT;
        loop {
            let row = self.row().await;
            if row.done + row.dead >= messages && row.waiting == 0 && row.in_flight == 0 {
                return row;
            }
            assert!(Instant::now() < end, "{messages} messages are not settled: {row:#?}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// A message of the usual size without an id of its own, whose first word the worker goes by.
pub fn message(word: &str, number: u32) -> NewMessage {
    let mut payload = format!("{word} {number} ").into_bytes();
    payload.resize(PAYLOAD, b'x');
    NewMessage::of(payload)
}

/// Sends them in order, so many in flight as a row says, and waits until the last is durable.
///
/// # Panics
/// One was refused.
pub async fn publish(producer: &Producer, messages: impl Iterator<Item = NewMessage>) {
    let mut in_flight: VecDeque<Pending> = VecDeque::with_capacity(IN_FLIGHT);
    for message in messages {
        if in_flight.len() >= IN_FLIGHT
            && let Some(oldest) = in_flight.pop_front()
        {
            durable(oldest).await;
        }
        in_flight.push_back(producer.submit(message).await);
    }
    for pending in in_flight {
        durable(pending).await;
    }
}

/// Waits until it is durable.
///
/// # Panics
/// It was refused.
pub async fn durable(pending: Pending) {
    let receipt = pending.outcome().await;
    assert!(receipt.is_ok(), "a message was not taken in: {receipt:?}");
}

/// Says no where the folders of nodes would lie in memory: what is measured is durable.
pub fn check_disk() -> anyhow::Result<()> {
    let folder = std::env::temp_dir();
    let disk = rustix::fs::statfs(&folder).with_context(|| format!("cannot look at {}", folder.display()))?;
    if u64::try_from(disk.f_type) == Ok(TMPFS) {
        bail!("{} lies in memory, and nothing there is durable: set TMPDIR to a folder on a disk", folder.display());
    }
    Ok(())
}

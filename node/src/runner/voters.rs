//! The streams to the voters: one task each, that connects, says what the runner says, and hands back what it hears.
//!
//! Words may be lost here (no connection, no room): the runner says everything again until it is confirmed.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use pando_protocol::ids::NodeName;
use pando_protocol::message::Channel;
use pando_protocol::session::{LeaderWord, RunnerWord};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::transport::{Lane, Peers};

/// Words that may wait for one voter.
const WORDS_WAITING: usize = 4_096;
/// Words of all voters that may wait for the runner.
const HEARD_WAITING: usize = 1_024;
/// The pause before a voter is dialled again.
const REDIAL: Duration = Duration::from_millis(100);

/// Something from a voter.
#[derive(Debug)]
pub enum Heard {
    /// The stream stands: everything unconfirmed is to be said again.
    Connected(NodeName),
    /// A word of the leader.
    Word(NodeName, LeaderWord),
}

/// The ways to the voters.
#[derive(Debug)]
pub struct Voters {
    ways: BTreeMap<NodeName, mpsc::Sender<RunnerWord>>,
}

impl Voters {
    /// Ways over these channels: for the node those of [`connect`], for a simulator its own.
    pub fn new(ways: BTreeMap<NodeName, mpsc::Sender<RunnerWord>>) -> Self {
        Self { ways }
    }

    /// Says a word to every voter.
    pub fn say(&self, word: &RunnerWord) {
        for way in self.ways.values() {
            _ = way.try_send(word.clone());
        }
    }

    /// Says a word to one voter.
    pub fn say_to(&self, voter: &NodeName, word: &RunnerWord) {
        if let Some(way) = self.ways.get(voter) {
            _ = way.try_send(word.clone());
        }
    }
}

/// Keeps a stream to each voter until `stop`.
pub fn connect(
    peers: &Peers,
    voters: &BTreeMap<NodeName, String>,
    dial: Duration,
    stop: &CancellationToken,
) -> (Voters, mpsc::Receiver<Heard>, JoinSet<()>) {
    let (heard, hearing) = mpsc::channel(HEARD_WAITING);
    let mut ways = BTreeMap::new();
    let mut tasks = JoinSet::new();
    for (name, address) in voters {
        let (way, words) = mpsc::channel(WORDS_WAITING);
        ways.insert(name.clone(), way);
        let link =
            Link { peers: peers.clone(), name: name.clone(), address: address.clone(), dial, heard: heard.clone() };
        let stop = stop.clone();
        tasks.spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = link.run(words) => {}
            }
        });
    }
    (Voters::new(ways), hearing, tasks)
}

struct Link {
    peers: Peers,
    name: NodeName,
    address: String,
    dial: Duration,
    heard: mpsc::Sender<Heard>,
}

impl Link {
    async fn run(self, mut words: mpsc::Receiver<RunnerWord>) {
        loop {
            if let Err(error) = self.stream(&mut words).await {
                tracing::debug!(voter = %self.name, %error, "no session stream");
            }
            tokio::time::sleep(REDIAL).await;
            while words.try_recv().is_ok() {} // What was said to nobody is said again.
        }
    }

    async fn stream(&self, words: &mut mpsc::Receiver<RunnerWord>) -> io::Result<()> {
        let opened = self.peers.open(Lane::Session, Channel::Session, &self.name, &self.address, self.dial).await;
        let (mut writer, mut reader) = opened?;
        while words.try_recv().is_ok() {}
        _ = self.heard.send(Heard::Connected(self.name.clone())).await;
        loop {
            tokio::select! {
                biased;
                word = reader.next::<LeaderWord>() => match word? {
                    Some(word) => _ = self.heard.send(Heard::Word(self.name.clone(), word)).await,
                    None => return Ok(()),
                },
                word = words.recv() => match word {
                    Some(word) => writer.send(&word).await?,
                    None => return Ok(()),
                },
            }
        }
    }
}

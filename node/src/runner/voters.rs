//! The streams to the voters: one task each, that connects, says what the runner says, and hands back what it hears.
//!
//! Who the voters are stands in the directory: a new one gets a stream, one that was taken out loses its own. Learners get one
//! too, so that a thousand runners have come to a voter before its vote counts; and they come one after the other, since as
//! many handshakes at once would keep it from everything else.
//!
//! Words may be lost here (no connection, no room): the runner says everything again until it is confirmed.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use pando_protocol::ids::NodeName;
use pando_protocol::message::Channel;
use pando_protocol::session::{LeaderWord, Members, RunnerWord};
use rand::RngExt;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::directory::Directory;
use crate::transport::{Lane, Peers};

/// Words that may wait for one voter.
const WORDS_WAITING: usize = 4_096;
/// Words of all voters that may wait for the runner.
const HEARD_WAITING: usize = 1_024;
/// The pause before a voter is dialled again whose stream stood: it was just restarted, or is about to be.
const REDIAL: Duration = Duration::from_millis(100);
/// The longest pause after tries in vain, each twice as long as the one before. Below half a lease of a LAN.
const LONGEST_REDIAL: Duration = Duration::from_millis(800);

/// Something from a voter.
#[derive(Debug)]
pub enum Heard {
    /// The stream stands: everything unconfirmed is to be said again.
    Connected(NodeName),
    /// A word of the leader.
    Word(NodeName, LeaderWord),
}

type Ways = BTreeMap<NodeName, mpsc::Sender<RunnerWord>>;

/// The ways to the voters.
#[derive(Debug)]
pub struct Voters {
    ways: watch::Receiver<Ways>,
    directory: Option<Directory>,
}

impl Voters {
    /// Ways over these channels, for a simulator; those of the node come from [`connect`].
    pub fn new(ways: Ways) -> Self {
        Self { ways: watch::channel(ways).1, directory: None }
    }

    /// Says a word to every voter.
    pub fn say(&self, word: &RunnerWord) {
        for way in self.ways.borrow().values() {
            _ = way.try_send(word.clone());
        }
    }

    /// Says a word to one voter.
    pub fn say_to(&self, voter: &NodeName, word: &RunnerWord) {
        if let Some(way) = self.ways.borrow().get(voter) {
            _ = way.try_send(word.clone());
        }
    }

    /// Takes the leader's word for who the voters are.
    pub fn learn(&self, members: Members) {
        if let Some(directory) = &self.directory {
            directory.learn(members);
        }
    }
}

/// Keeps a stream to each voter of the directory until `stop`.
pub fn connect(
    peers: &Peers,
    directory: &Directory,
    dial: Duration,
    stop: &CancellationToken,
) -> (Voters, mpsc::Receiver<Heard>, JoinSet<()>) {
    let (heard, hearing) = mpsc::channel(HEARD_WAITING);
    let (ways, known) = watch::channel(Ways::new());
    let mut links =
        Links { peers: peers.clone(), dial, heard, ways, addresses: BTreeMap::new(), tasks: JoinSet::new() };
    links.follow(&directory.members(), Duration::ZERO);
    let mut tasks = JoinSet::new();
    let (changes, followed, stop) = (directory.watch(), directory.clone(), stop.clone());
    tasks.spawn(async move {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = links.run(changes, followed) => {}
        }
    });
    (Voters { ways: known, directory: Some(directory.clone()) }, hearing, tasks)
}

/// The streams that there are. Dropped, all of them end.
struct Links {
    peers: Peers,
    dial: Duration,
    heard: mpsc::Sender<Heard>,
    ways: watch::Sender<Ways>,
    addresses: BTreeMap<NodeName, String>,
    tasks: JoinSet<()>,
}

impl Links {
    async fn run(mut self, mut changes: watch::Receiver<crate::directory::Known>, directory: Directory) {
        loop {
            let spread = self.dial;
            self.follow(&directory.members(), spread);
            tokio::select! {
                biased;
                Some(_) = self.tasks.join_next() => {}
                changed = changes.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Begins the streams that are missing, each at a time within `spread`. Those that are too many end with the way to them.
    fn follow(&mut self, voters: &BTreeMap<NodeName, String>, spread: Duration) {
        if self.addresses == *voters {
            return;
        }
        let mut ways = self.ways.borrow().clone();
        ways.retain(|name, _| voters.get(name) == self.addresses.get(name));
        for (name, address) in voters {
            if ways.contains_key(name) {
                continue;
            }
            let (way, words) = mpsc::channel(WORDS_WAITING);
            ways.insert(name.clone(), way);
            let (peers, name, address) = (self.peers.clone(), name.clone(), address.clone());
            let link = Link { peers, name, address, dial: self.dial, heard: self.heard.clone() };
            self.tasks.spawn(async move {
                tokio::time::sleep(at_random(spread)).await;
                link.run(words).await;
            });
        }
        self.addresses.clone_from(voters);
        self.ways.send_replace(ways);
    }
}

struct Link {
    peers: Peers,
    name: NodeName,
    address: String,
    dial: Duration,
    heard: mpsc::Sender<Heard>,
}

impl Link {
    /// Until nobody has a way to it any more.
    async fn run(self, mut words: mpsc::Receiver<RunnerWord>) {
        let mut pause = REDIAL;
        while !words.is_closed() {
            let begun = tokio::time::Instant::now();
            if let Err(error) = self.stream(&mut words).await {
                tracing::debug!(voter = %self.name, %error, "no session stream");
            }
            let stood = begun.elapsed() > self.dial * 2;
            pause = if stood { REDIAL } else { (pause * 2).min(LONGEST_REDIAL) };
            tokio::time::sleep(pause / 2 + at_random(pause / 2)).await;
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

/// A time up to this one.
fn at_random(most: Duration) -> Duration {
    most.mul_f64(rand::rng().random())
}

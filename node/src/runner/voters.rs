//! The streams to the voters: one task for each voter, that connects, says what the runner says, and hands back what it hears.
//!
//! ```text
//!   say ──► [beats]            ══ Lease ═══╗
//!       ──► [asks, observations] ══ Session ═╬══ a connection to each voter ──► heard
//!       ──► [what is held]     ══ Mail ════╝
//! ```
//!
//! Each stream has its own queue, and is read and written side by side: neither a flood of words from the leader, nor one that
//! it does not take, holds up a beat. One of words or messages that ends alone, as one does that takes nothing for too long, is
//! made again alone: the lease does not suffer from it. The end of the stream of beats takes the others with it.
//!
//! Who the voters are stands in the directory: a new one gets a stream, one that was taken out loses its own. Learners get one
//! too, so that a thousand runners have come to a voter before its vote counts; and they come one after the other, since as
//! many handshakes at once would keep it from everything else.
//!
//! Words may be lost here (no connection, no room): the runner says everything again until it is confirmed.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use pando_protocol::client::frames::{FrameReader, FrameWriter};
use pando_protocol::ids::NodeName;
use pando_protocol::message::Channel;
use pando_protocol::session::{LeaderWord, Members, RunnerWord};
use rand::RngExt;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::directory::Directory;
use crate::transport::{Lane, Peers};

/// Observations that may wait for one voter.
const WORDS_WAITING: usize = 4_096;
/// Beats, or words of what is held, that may wait for one voter: the next one says the same.
const BEATS_WAITING: usize = 8;
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

type Ways = BTreeMap<NodeName, Way>;
type Stream = (FrameWriter, FrameReader);

/// The way to a voter.
#[derive(Debug, Clone)]
struct Way {
    lease: mpsc::Sender<RunnerWord>,
    session: mpsc::Sender<RunnerWord>,
    mail: mpsc::Sender<RunnerWord>,
}

/// What is said on the way to a voter.
struct Said {
    lease: mpsc::Receiver<RunnerWord>,
    session: mpsc::Receiver<RunnerWord>,
    mail: mpsc::Receiver<RunnerWord>,
}

impl Way {
    fn new() -> (Self, Said) {
        let (lease, beats) = mpsc::channel(BEATS_WAITING);
        let (session, words) = mpsc::channel(WORDS_WAITING);
        let (mail, held) = mpsc::channel(BEATS_WAITING);
        (Self { lease, session, mail }, Said { lease: beats, session: words, mail: held })
    }

    fn say(&self, word: &RunnerWord) {
        match word {
            RunnerWord::Beat { .. } => _ = self.lease.try_send(word.clone()),
            RunnerWord::Ask(_) | RunnerWord::Observe { .. } => _ = self.session.try_send(word.clone()),
            RunnerWord::Holds { .. } => {
                _ = self.session.try_send(word.clone());
                _ = self.mail.try_send(word.clone());
            }
        }
    }
}

impl Said {
    /// What was said to nobody is said again.
    fn forget(&mut self) {
        for words in [&mut self.lease, &mut self.session, &mut self.mail] {
            while words.try_recv().is_ok() {}
        }
    }
}

/// The ways to the voters.
#[derive(Debug)]
pub struct Voters {
    ways: watch::Receiver<Ways>,
    directory: Option<Directory>,
}

impl Voters {
    /// Ways over these channels, one for all streams of a voter, for a simulator; those of the node come from [`connect`].
    pub fn new(ways: BTreeMap<NodeName, mpsc::Sender<RunnerWord>>) -> Self {
        let way = |words: mpsc::Sender<RunnerWord>| Way { lease: words.clone(), session: words.clone(), mail: words };
        let ways = ways.into_iter().map(|(voter, words)| (voter, way(words))).collect();
        Self { ways: watch::channel(ways).1, directory: None }
    }

    /// Says a word to every voter.
    pub fn say(&self, word: &RunnerWord) {
        self.ways.borrow().values().for_each(|way| way.say(word));
    }

    /// Says a word to one voter.
    pub fn say_to(&self, voter: &NodeName, word: &RunnerWord) {
        if let Some(way) = self.ways.borrow().get(voter) {
            way.say(word);
        }
    }

    /// The voters for whom no observation waits here: what was said to them is on its way, or lost.
    pub fn idle(&self) -> Vec<NodeName> {
        let ways = self.ways.borrow();
        let idle = ways.iter().filter(|(_, way)| way.session.capacity() == way.session.max_capacity());
        idle.map(|(voter, _)| voter.clone()).collect()
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
            let (way, said) = Way::new();
            ways.insert(name.clone(), way);
            let (peers, name, address) = (self.peers.clone(), name.clone(), address.clone());
            let link = Link { peers, name, address, dial: self.dial, heard: self.heard.clone() };
            self.tasks.spawn(async move {
                tokio::time::sleep(at_random(spread)).await;
                link.run(said).await;
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
    async fn run(self, mut said: Said) {
        let mut pause = REDIAL;
        while !said.session.is_closed() {
            let begun = tokio::time::Instant::now();
            if let Err(error) = self.streams(&mut said).await {
                tracing::debug!(voter = %self.name, %error, "no session streams");
            }
            let stood = begun.elapsed() > self.dial * 2;
            pause = if stood { REDIAL } else { (pause * 2).min(LONGEST_REDIAL) };
            tokio::time::sleep(pause / 2 + at_random(pause / 2)).await;
            said.forget();
        }
    }

    /// Carries words both ways until the stream of beats ends, or another one cannot be made again.
    async fn streams(&self, said: &mut Said) -> io::Result<()> {
        let lease = self.open(Channel::Lease).await?;
        let session = self.open(Channel::Session).await?;
        let mail = self.open(Channel::Mail).await?;
        said.forget();
        _ = self.heard.send(Heard::Connected(self.name.clone())).await;
        tokio::select! {
            biased;
            ended = self.carry(lease, &mut said.lease) => ended,
            ended = self.keep(Channel::Session, session, &mut said.session) => ended,
            ended = self.keep(Channel::Mail, mail, &mut said.mail) => ended,
        }
    }

    /// Carries words over one stream, and over another one where it ends, until there is none.
    async fn keep(&self, channel: Channel, first: Stream, said: &mut mpsc::Receiver<RunnerWord>) -> io::Result<()> {
        let mut stream = first;
        loop {
            let ended = self.carry(stream, said).await;
            if said.is_closed() {
                return ended;
            }
            tracing::debug!(voter = %self.name, ?channel, error = ?ended.err(), "a stream ended");
            tokio::time::sleep(REDIAL / 2 + at_random(REDIAL / 2)).await;
            stream = self.open(channel).await?;
            while said.try_recv().is_ok() {}
            // What is held is said with each beat.
            if channel == Channel::Session {
                _ = self.heard.send(Heard::Connected(self.name.clone())).await;
            }
        }
    }

    async fn open(&self, channel: Channel) -> io::Result<Stream> {
        self.peers.open(Lane::Session, channel, &self.name, &self.address, self.dial).await
    }

    /// Reads and writes one stream side by side: if both sides could only do one at a time, each might wait for ever for the
    /// other to read.
    async fn carry(&self, (mut writer, mut reader): Stream, said: &mut mpsc::Receiver<RunnerWord>) -> io::Result<()> {
        let writing = async {
            while let Some(word) = said.recv().await {
                writer.send(&word).await?;
            }
            Ok(())
        };
        let reading = async {
            while let Some(word) = reader.next::<LeaderWord>().await? {
                _ = self.heard.send(Heard::Word(self.name.clone(), word)).await;
            }
            Ok(())
        };
        tokio::select! {
            biased;
            ended = writing => ended,
            ended = reading => ended,
        }
    }
}

/// A time up to this one.
fn at_random(most: Duration) -> Duration {
    most.mul_f64(rand::rng().random())
}

#[cfg(test)]
mod tests;

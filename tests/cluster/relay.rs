//! A relay between a client or node and a node: datagrams and streams pass through it, unless they are swallowed or held back.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pando_tests::cluster::free_address;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// What a relay does to datagrams now.
#[derive(Debug, Default)]
struct Mood {
    swallows_replies: AtomicBool,
    swallows_all: AtomicBool,
    /// Of 1,000 datagrams, how many are lost.
    loss: AtomicU64,
    /// Milliseconds by which each is held back, on its way there and on its way back.
    delay: AtomicU64,
}

impl Mood {
    fn delay(&self) -> Duration {
        Duration::from_millis(self.delay.load(Ordering::SeqCst))
    }
}

/// A relay of UDP and, on the same port, of TCP, of which it loses nothing. Dropped, it ends.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    mood: Arc<Mood>,
    _task: JoinSet<()>,
}

impl Relay {
    /// A relay to a node.
    pub async fn to(target: &str) -> Self {
        let target: SocketAddr = target.parse().expect("an address");
        let address: SocketAddr = free_address("127.0.0.1").parse().expect("an address");
        let front = UdpSocket::bind(address).await.expect("a socket");
        let streams = TcpListener::bind(address).await.expect("a socket");
        let mood = Arc::new(Mood::default());
        let mut task = JoinSet::new();
        task.spawn(relay(Arc::new(front), target, mood.clone()));
        task.spawn(relay_streams(streams, target, mood.clone()));
        Self { address, mood, _task: task }
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// From now on requests pass and replies do not.
    pub fn swallow_replies(&self) {
        self.mood.swallows_replies.store(true, Ordering::SeqCst);
    }

    /// From now on nothing passes, or everything again.
    pub fn cut(&self, is_cut: bool) {
        self.mood.swallows_all.store(is_cut, Ordering::SeqCst);
    }

    /// From now on so many of 1,000 datagrams are lost, and each is held back.
    pub fn trouble(&self, loss: u64, delay: Duration) {
        self.mood.loss.store(loss, Ordering::SeqCst);
        self.mood.delay.store(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }
}

async fn relay(front: Arc<UdpSocket>, target: SocketAddr, mood: Arc<Mood>) {
    let mut ways: BTreeMap<SocketAddr, Arc<UdpSocket>> = BTreeMap::new();
    let mut tasks = JoinSet::new();
    let mut buffer = vec![0; 65_536];
    let mut count = 0u64;
    while let Ok((bytes, from)) = front.recv_from(&mut buffer).await {
        if let Entry::Vacant(unknown) = ways.entry(from) {
            let way = Arc::new(UdpSocket::bind("127.0.0.1:0").await.expect("a socket"));
            way.connect(target).await.expect("a way to the node");
            tasks.spawn(replies(way.clone(), front.clone(), from, mood.clone()));
            unknown.insert(way);
        }
        count += 1;
        // Spread like dice, and the same in every run.
        let dice = (count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % 1_000;
        if !mood.swallows_all.load(Ordering::SeqCst) && dice >= mood.loss.load(Ordering::SeqCst) {
            let (way, datagram) = (ways[&from].clone(), buffer[..bytes].to_vec());
            let delay = mood.delay();
            tasks.spawn(async move {
                tokio::time::sleep(delay).await;
                _ = way.send(&datagram).await;
            });
            while tasks.try_join_next().is_some() {}
        }
    }
}

async fn replies(way: Arc<UdpSocket>, front: Arc<UdpSocket>, to: SocketAddr, mood: Arc<Mood>) {
    let mut tasks = JoinSet::new();
    let mut buffer = vec![0; 65_536];
    while let Ok(bytes) = way.recv(&mut buffer).await {
        let swallows = mood.swallows_all.load(Ordering::SeqCst) || mood.swallows_replies.load(Ordering::SeqCst);
        if !swallows {
            let (front, datagram, delay) = (front.clone(), buffer[..bytes].to_vec(), mood.delay());
            tasks.spawn(async move {
                tokio::time::sleep(delay).await;
                _ = front.send_to(&datagram, to).await;
            });
            while tasks.try_join_next().is_some() {}
        }
    }
}

async fn relay_streams(listener: TcpListener, target: SocketAddr, mood: Arc<Mood>) {
    let mut tasks = JoinSet::new();
    while let Ok((here, _)) = listener.accept().await {
        let Ok(there) = TcpStream::connect(target).await else { continue };
        let ((from_here, to_here), (from_there, to_there)) = (here.into_split(), there.into_split());
        tasks.spawn(pass_on(from_here, to_there, mood.clone()));
        tasks.spawn(pass_on(from_there, to_here, mood.clone()));
    }
}

/// Passes on what comes, each piece so much later; its end too.
async fn pass_on(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mood: Arc<Mood>) {
    let (pieces, mut held) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let read = async move {
        let mut buffer = vec![0; 65_536];
        while let Ok(bytes @ 1..) = from.read(&mut buffer).await {
            _ = pieces.send((Instant::now() + mood.delay(), buffer[..bytes].to_vec()));
        }
    };
    let write = async move {
        while let Some((due, piece)) = held.recv().await {
            tokio::time::sleep_until(due).await;
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(read, write);
}

/// An agent whose only ways to the voters lead through relays.
mod agent {
    use pando_protocol::view::State;
    use pando_tests::beats::{lives, overlap};
    use pando_tests::cluster::{Cluster, SOON};
    use pando_tests::wait::wait_until;

    use super::{Duration, Relay};

    /// Beats that are to pass while the network is bad: more than two leases of 2 s.
    const LONG: u64 = 5_000;

    #[tokio::test(flavor = "multi_thread")]
    async fn delay_and_loss_within_the_profile_end_nothing_and_a_cut_ends_at_the_lease() {
        let mut cluster = Cluster::start().await;
        let mut relays = Vec::new();
        let mut voters = Vec::new();
        for name in ["n1", "n2", "n3"] {
            let relay = Relay::to(cluster.address(name)).await;
            voters.push(format!("{name}={}", relay.address()));
            relays.push(relay);
        }
        cluster.add_agent("n4", &voters.join(","), &["--label", "place=far"]);
        cluster.all_up().await;
        let beats = cluster.folder().join("beats");
        let (witness, file) = (env!("CARGO_BIN_EXE_witness"), beats.display());
        let spec = format!(
            "name = \"t\"\n[[children]]\nid = \"far\"\ncommand = [\"{witness}\", \"{file}\"]\n\
             place = {{ prefer = [\"place=far\"] }}\n"
        );
        cluster.apply(&spec).await;
        cluster.whole("/t").await;
        let before = cluster.row("/t/far").await;
        assert_eq!(before.node.as_ref().map(ToString::to_string), Some("n4".into()));
        relays.iter().for_each(|relay| relay.trouble(50, Duration::from_millis(40)));
        let last = async || lives(&beats).into_values().map(|life| life.last).max().unwrap_or(0);
        let now = last().await;
        wait_until("two leases of bad network", SOON, last, |seen| *seen > now + LONG).await;
        assert_eq!(cluster.row("/t/far").await.incarnation, before.incarnation, "delay and loss restart nothing");
        relays.iter().for_each(|relay| relay.cut(true));
        let moved = |row: &pando_protocol::view::TreeRow| {
            row.state == State::Running && row.node.as_ref().is_some_and(|node| node.as_str() != "n4")
        };
        wait_until("the child elsewhere", SOON, async || cluster.row("/t/far").await, moved).await;
        relays.iter().for_each(|relay| relay.cut(false));
        cluster.all_up().await;
        let lives = lives(&beats);
        assert_eq!(overlap(&lives), None, "{lives:#?}");
        assert_eq!(cluster.row("/t/far").await.restarts, 0);
    }
}

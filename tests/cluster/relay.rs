//! A relay between a client or node and a node: datagrams and streams pass through it, unless they are swallowed or held back.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pando_tests::cluster::{Cluster, Options, free_address};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// What a relay does to the datagrams of one way now.
#[derive(Debug, Default)]
struct Mood {
    swallows: AtomicBool,
    /// Of 1,000 datagrams, how many are lost.
    loss: AtomicU64,
    /// Milliseconds by which each is held back, on its way there and on its way back.
    delay: AtomicU64,
    /// Datagrams that came this way.
    count: AtomicU64,
}

impl Mood {
    /// For how long the next datagram is held back; `None`: it is lost.
    fn of_next(&self) -> Option<Duration> {
        let count = self.count.fetch_add(1, Ordering::SeqCst);
        // Spread like dice, and the same in every run.
        let dice = (count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % 1_000;
        let is_lost = self.swallows.load(Ordering::SeqCst) || dice < self.loss.load(Ordering::SeqCst);
        (!is_lost).then(|| Duration::from_millis(self.delay.load(Ordering::SeqCst)))
    }
}

/// Both ways of a relay.
#[derive(Debug, Default)]
struct Moods {
    requests: Mood,
    replies: Mood,
    /// Whose datagrams they concern; everybody's until that is said.
    only: OnceLock<SocketAddr>,
}

impl Moods {
    /// For how long a datagram of somebody's is held back; `None`: it is lost.
    fn of_next(&self, way: fn(&Self) -> &Mood, whose: SocketAddr) -> Option<Duration> {
        let is_meant = self.only.get().is_none_or(|only| *only == whose);
        if is_meant { way(self).of_next() } else { Some(Duration::ZERO) }
    }
}

impl Mood {
    /// By how much what comes now is held back.
    fn delay(&self) -> Duration {
        Duration::from_millis(self.delay.load(Ordering::SeqCst))
    }
}

/// A relay of UDP and, on the same port, of TCP, of which it loses nothing. Dropped, it ends.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    moods: Arc<Moods>,
    _task: JoinSet<()>,
}

impl Relay {
    /// A relay to a node.
    pub async fn to(target: &str) -> Self {
        let target: SocketAddr = target.parse().expect("an address");
        let address: SocketAddr = free_address("127.0.0.1").parse().expect("an address");
        let front = UdpSocket::bind(address).await.expect("a socket");
        let streams = TcpListener::bind(address).await.expect("a socket");
        let moods = Arc::new(Moods::default());
        let mut task = JoinSet::new();
        task.spawn(relay(Arc::new(front), target, moods.clone()));
        task.spawn(relay_streams(streams, target, moods.clone()));
        Self { address, moods, _task: task }
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// What happens here concerns only who sends from this address, and the replies to it.
    pub fn concern_only(&self, sender: &str) {
        self.moods.only.set(sender.parse().expect("an address")).expect("it is said once");
    }

    /// From now on requests pass and replies do not, or everything again.
    pub fn swallow_replies(&self, are_cut: bool) {
        self.moods.replies.swallows.store(are_cut, Ordering::SeqCst);
    }

    /// From now on replies pass and requests do not, or everything again.
    pub fn swallow_requests(&self, are_cut: bool) {
        self.moods.requests.swallows.store(are_cut, Ordering::SeqCst);
    }

    /// From now on nothing passes, or everything again.
    pub fn cut(&self, is_cut: bool) {
        self.swallow_requests(is_cut);
        self.swallow_replies(is_cut);
    }

    /// From now on, so many of 1,000 datagrams are lost each way, and each is held back.
    pub fn trouble(&self, loss: u64, delay: Duration) {
        for mood in [&self.moods.requests, &self.moods.replies] {
            mood.loss.store(loss, Ordering::SeqCst);
            mood.delay.store(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX), Ordering::SeqCst);
        }
    }
}

async fn relay(front: Arc<UdpSocket>, target: SocketAddr, moods: Arc<Moods>) {
    let mut ways: BTreeMap<SocketAddr, Arc<UdpSocket>> = BTreeMap::new();
    let mut tasks = JoinSet::new();
    let mut buffer = vec![0; 65_536];
    while let Ok((bytes, from)) = front.recv_from(&mut buffer).await {
        if let Entry::Vacant(unknown) = ways.entry(from) {
            let way = Arc::new(UdpSocket::bind("127.0.0.1:0").await.expect("a socket"));
            way.connect(target).await.expect("a way to the node");
            tasks.spawn(replies(way.clone(), front.clone(), from, moods.clone()));
            unknown.insert(way);
        }
        let Some(delay) = moods.of_next(|moods| &moods.requests, from) else { continue };
        let (way, datagram) = (ways[&from].clone(), buffer[..bytes].to_vec());
        tasks.spawn(async move {
            tokio::time::sleep(delay).await;
            _ = way.send(&datagram).await;
        });
        while tasks.try_join_next().is_some() {}
    }
}

async fn replies(way: Arc<UdpSocket>, front: Arc<UdpSocket>, to: SocketAddr, moods: Arc<Moods>) {
    let mut tasks = JoinSet::new();
    let mut buffer = vec![0; 65_536];
    while let Ok(bytes) = way.recv(&mut buffer).await {
        let Some(delay) = moods.of_next(|moods| &moods.replies, to) else { continue };
        let (front, datagram) = (front.clone(), buffer[..bytes].to_vec());
        tasks.spawn(async move {
            tokio::time::sleep(delay).await;
            _ = front.send_to(&datagram, to).await;
        });
        while tasks.try_join_next().is_some() {}
    }
}

async fn relay_streams(listener: TcpListener, target: SocketAddr, moods: Arc<Moods>) {
    let mut tasks = JoinSet::new();
    while let Ok((here, _)) = listener.accept().await {
        let Ok(there) = TcpStream::connect(target).await else { continue };
        let ((from_here, to_here), (from_there, to_there)) = (here.into_split(), there.into_split());
        tasks.spawn(pass_on(from_here, to_there, moods.clone(), |moods| &moods.requests));
        tasks.spawn(pass_on(from_there, to_here, moods.clone(), |moods| &moods.replies));
    }
}

/// Passes on what comes, each piece so much later; its end too.
async fn pass_on(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, moods: Arc<Moods>, way: fn(&Moods) -> &Mood) {
    let (pieces, mut held) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let read = async move {
        let mut buffer = vec![0; 65_536];
        while let Ok(bytes @ 1..) = from.read(&mut buffer).await {
            _ = pieces.send((Instant::now() + way(&moods).delay(), buffer[..bytes].to_vec()));
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

/// Three voters that answer at relays, one before each, and these.
pub async fn behind_relays(flags: Vec<String>) -> (Cluster, Vec<Relay>) {
    let (mut listens, mut addresses, mut relays) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..3 {
        let node = free_address("127.0.0.1");
        let relay = Relay::to(&node).await;
        addresses.push(relay.address());
        listens.push(node);
        relays.push(relay);
    }
    (Cluster::with(Options { addresses, listens, flags, ..Options::default() }).await, relays)
}

/// An agent whose ways to the voters lead through relays that can be told to harm it alone.
mod agent {
    use std::path::PathBuf;

    use pando_protocol::view::{State, TreeRow};
    use pando_tests::beats::{lives, overlap};
    use pando_tests::cluster::{Cluster, SOON};
    use pando_tests::wait::wait_until;

    use super::{Duration, Relay, behind_relays};

    /// Beats that are to pass while the network is bad: more than two leases of 2 s.
    const LONG: u64 = 5_000;

    /// A cluster with a relay before each voter, which concern the agent n4 alone, and a child there.
    struct Far {
        cluster: Cluster,
        relays: Vec<Relay>,
        beats: PathBuf,
    }

    impl Far {
        async fn start() -> Self {
            // The voters answer at the relays, since an agent learns from the leader where they answer.
            let (mut cluster, relays) = behind_relays(Vec::new()).await;
            cluster.add_agent("n4", &cluster.named(&["n1", "n2", "n3"]), &["--label", "place=far"]);
            relays.iter().for_each(|relay| relay.concern_only(cluster.address("n4")));
            cluster.all_up().await;
            let beats = cluster.folder().join("beats");
            let (witness, file) = (env!("CARGO_BIN_EXE_witness"), beats.display());
            let spec = format!(
                "name = \"t\"\n[[children]]\nid = \"far\"\ncommand = [\"{witness}\", \"{file}\"]\n\
                 place = {{ prefer = [\"place=far\"] }}\n"
            );
            cluster.bring_up(&spec).await;
            assert_eq!(cluster.home("/t/far").await, "n4");
            Self { cluster, relays, beats }
        }

        async fn moves_away(&self) {
            let moved = |row: &TreeRow| {
                row.state == State::Running && row.node.as_ref().is_some_and(|node| node.as_str() != "n4")
            };
            wait_until("the child elsewhere", SOON, async || self.cluster.row("/t/far").await, moved).await;
        }

        /// After healing: one copy at any time, and nobody paid.
        async fn one_copy(&self) {
            self.cluster.all_up().await;
            let lives = lives(&self.beats);
            assert_eq!(overlap(&lives), None, "{lives:#?}");
            assert_eq!(self.cluster.row("/t/far").await.restarts, 0);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn delay_and_loss_within_the_profile_end_nothing_and_a_cut_ends_at_the_lease() {
        let far = Far::start().await;
        let before = far.cluster.row("/t/far").await;
        far.relays.iter().for_each(|relay| relay.trouble(50, Duration::from_millis(20)));
        let last = async || lives(&far.beats).into_values().map(|life| life.last).max().unwrap_or(0);
        let now = last().await;
        wait_until("two leases of bad network", SOON, last, |seen| *seen > now + LONG).await;
        assert_eq!(far.cluster.row("/t/far").await.incarnation, before.incarnation, "delay and loss restart nothing");
        far.relays.iter().for_each(|relay| relay.cut(true));
        far.moves_away().await;
        far.relays.iter().for_each(|relay| relay.cut(false));
        far.one_copy().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_cut_of_one_way_ends_like_one_of_both() {
        for swallow in [Relay::swallow_replies, Relay::swallow_requests] {
            let far = Far::start().await;
            far.relays.iter().for_each(|relay| swallow(relay, true));
            far.moves_away().await;
            far.relays.iter().for_each(|relay| swallow(relay, false));
            far.one_copy().await;
        }
    }
}

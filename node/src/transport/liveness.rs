//! TCP beside QUIC, for the one thing that QUIC cannot tell: whether a process died or is only silent.
//!
//! ```text
//!   hold ──TLS, "hold"──► serve        open until one of the processes dies; the kernel closes it within microseconds
//!   obituary::send ──TLS, obituary──► serve ──► bounded queue ──► reply
//! ```
//!
//! A connection that closed and cannot be made again says that the process is gone. It never says that its children are.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pando_protocol::client::frames::FrameBuffer;
use pando_protocol::client::identity::{Identity, PeerName, Role};
use pando_protocol::client::tls;
use pando_protocol::codec::{self, FRAME_LIMIT};
use pando_protocol::ids::NodeName;
use pando_protocol::session::{Obituary, ObituaryReply};
use rustls::pki_types::ServerName;
use rustls::server::Acceptor;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::{LazyConfigAcceptor, TlsConnector, client, server};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::Credentials;

/// What a connection is for: the first and only frame from whoever made it. Variants are only ever appended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FirstWord {
    /// Keep it open as long as you live.
    Hold,
    /// Everything that ran under a session is gone; answered with an [`ObituaryReply`].
    Obituary(Obituary),
}

/// An obituary whose sender is verified to be the node it is about, and where its reply goes.
pub type Notice = (Obituary, oneshot::Sender<ObituaryReply>);

/// Accepts connections of peers until `stop`, then closes them all.
///
/// `obituaries` is a bounded queue; while it is full for longer than some seconds, senders are told to try another voter.
pub async fn serve(
    listener: TcpListener,
    credentials: Credentials,
    obituaries: mpsc::Sender<Notice>,
    stop: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let tasks = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((socket, peer)) = accepted else {
            // Out of descriptors: some must be closed before another try makes sense.
            sleep(PAUSE).await;
            continue;
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            debug!(%peer, "refused: {CONNECTIONS} liveness connections are open");
            continue;
        };
        let served = connection(socket, credentials.now(), obituaries.clone());
        let stop = stop.clone();
        tasks.spawn(async move {
            let _place = place;
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                ended = served => if let Err(error) = ended {
                    debug!(%peer, %error, "a liveness connection ended");
                }
            }
        });
    }
    // The listener first: whoever sees its connection close must not be able to make it again.
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

async fn connection(socket: TcpStream, identity: Identity, obituaries: mpsc::Sender<Notice>) -> io::Result<()> {
    notice_lost_machines(&socket)?;
    socket.set_nodelay(true)?;
    let opened = timeout(SETUP, async {
        let mut stream = accept(&identity, socket).await?;
        let peer = verified(&stream, identity.cluster())?;
        let word = read_frame::<FirstWord>(&mut stream).await?;
        Ok::<_, io::Error>((stream, peer, word))
    });
    let (mut stream, peer, word) = opened.await.map_err(|_| late("handshake", SETUP))??;
    match word {
        FirstWord::Hold => until_closed(&mut stream).await,
        FirstWord::Obituary(obituary) => {
            let reply = take(obituary, &peer, &obituaries).await;
            let frame = codec::frame(&reply).map_err(io::Error::other)?;
            let answered = timeout(SETUP, async {
                stream.write_all(&frame).await?;
                stream.shutdown().await
            });
            answered.await.map_err(|_| late("reply", SETUP))??;
        }
    }
    Ok(())
}

/// Shakes hands; where that fails because of versions the error says which ones.
async fn accept(identity: &Identity, socket: TcpStream) -> io::Result<server::TlsStream<TcpStream>> {
    let begun = LazyConfigAcceptor::new(Acceptor::default(), socket).await?;
    let offered = begun.client_hello().alpn().map(|versions| versions.map(String::from_utf8_lossy).collect::<Vec<_>>());
    let offered = offered.map_or_else(|| "none that it names".into(), |versions| versions.join(", "));
    begun.into_stream(tls::server(identity)).await.map_err(|error| {
        let worded = tls::in_words(error);
        if worded.kind() == io::ErrorKind::PermissionDenied { unwelcome(tls::versions_meet(&offered)) } else { worded }
    })
}

/// Passes an obituary on if its sender may send it.
async fn take(obituary: Obituary, peer: &NodeName, obituaries: &mpsc::Sender<Notice>) -> ObituaryReply {
    if obituary.node != *peer {
        debug!(%peer, node = %obituary.node, "an obituary for another node was refused");
        return ObituaryReply::Refused;
    }
    let (sender, reply) = oneshot::channel();
    let taken = timeout(TAKING, async {
        obituaries.send((obituary, sender)).await.ok()?;
        reply.await.ok()
    });
    taken.await.ok().flatten().unwrap_or(ObituaryReply::NotLeader)
}

fn verified(stream: &server::TlsStream<TcpStream>, cluster: &str) -> io::Result<NodeName> {
    let (_, session) = stream.get_ref();
    if !tls::is_our_protocol(session.alpn_protocol()) {
        return Err(unwelcome(tls::versions_meet("none that it names")));
    }
    let chain = session.peer_certificates().unwrap_or_default();
    let peer = PeerName::from_certificates(chain).map_err(|nameless| unwelcome(nameless.to_string()))?;
    if peer.cluster != cluster || peer.role != Role::Node {
        return Err(unwelcome(format!("{peer} has no business here: this is for nodes of cluster {cluster}")));
    }
    Ok(peer.name)
}

/// Holds a connection to a node and returns when that node's process is gone: [`Held::make`], then [`Held::gone`].
pub async fn hold(credentials: &Credentials, name: &NodeName, address: &str) {
    Held::make(credentials, name, address).await.gone().await;
}

/// A connection that is held. Drop it to let go.
pub struct Held {
    credentials: Credentials,
    name: NodeName,
    stream: client::TlsStream<TcpStream>,
    peer: SocketAddr,
    rtt: Duration,
}

impl Held {
    /// Connects to the node `name` at `address` (`host:port`), and tries until that works.
    pub async fn make(credentials: &Credentials, name: &NodeName, address: &str) -> Self {
        loop {
            match timeout(SETUP, make(credentials, name, address)).await {
                Ok(Ok(held)) => return held,
                Ok(Err(error)) => debug!(%name, address, %error, "no liveness connection yet"),
                Err(_) => debug!(%name, address, "no liveness connection yet: no answer within {SETUP:?}"),
            }
            sleep(PAUSE).await;
        }
    }

    /// Returns when the node's process is gone: the connection closed, and another could not be made within 20 ms or two round
    /// trips, whichever is longer. A node that is merely silent keeps it waiting.
    pub async fn gone(mut self) {
        loop {
            until_closed(&mut self.stream).await;
            match self.again().await {
                Some(stream) => self.stream = stream,
                None => return,
            }
        }
    }

    /// Makes a closed connection again, to the very address it had: a name that a dead container took with it would only cost
    /// time. `None` where nobody listens there in time.
    async fn again(&self) -> Option<client::TlsStream<TcpStream>> {
        let patience = SHORTEST_PATIENCE.max(2 * self.rtt);
        loop {
            let socket = timeout(patience, TcpStream::connect(self.peer)).await.ok()?.ok()?;
            // Somebody listens. A process about to die may still accept; then the next round finds nobody.
            if let Ok(Ok(stream)) = timeout(SETUP, greet(&self.credentials.now(), &self.name, socket)).await {
                return Some(stream);
            }
            sleep(SHORTEST_PATIENCE).await;
        }
    }
}

async fn make(credentials: &Credentials, name: &NodeName, address: &str) -> io::Result<Held> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for peer in tokio::net::lookup_host(address).await? {
        let begun = Instant::now();
        match TcpStream::connect(peer).await {
            Ok(socket) => {
                let rtt = begun.elapsed();
                let stream = greet(&credentials.now(), name, socket).await?;
                return Ok(Held { credentials: credentials.clone(), name: name.clone(), stream, peer, rtt });
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn greet(identity: &Identity, name: &NodeName, socket: TcpStream) -> io::Result<client::TlsStream<TcpStream>> {
    socket.set_nodelay(true)?;
    let server_name = ServerName::try_from(identity.server_name(name)).map_err(io::Error::other)?;
    let mut stream =
        TlsConnector::from(tls::client(identity)).connect(server_name, socket).await.map_err(tls::in_words)?;
    if !tls::is_our_protocol(stream.get_ref().1.alpn_protocol()) {
        return Err(unwelcome(tls::another_version()));
    }
    stream.write_all(&codec::frame(&FirstWord::Hold).map_err(io::Error::other)?).await?;
    stream.flush().await?;
    Ok(stream)
}

/// Returns when the other side closed the connection, in whatever way. What it says meanwhile is of no interest.
async fn until_closed(stream: &mut (impl AsyncRead + Unpin)) {
    let mut ignored = [0; 64];
    while !matches!(stream.read(&mut ignored).await, Ok(0) | Err(_)) {}
}

async fn read_frame<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let (mut buffer, mut piece) = (FrameBuffer::default(), vec![0; 4096]);
    loop {
        if let Some(body) = buffer.take().map_err(io::Error::other)? {
            return codec::decode::<T, FRAME_LIMIT>(&body).map_err(io::Error::other);
        }
        match stream.read(&mut piece).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => buffer.push(&piece[..read]),
        }
    }
}

/// A peer whose machine vanished closes nothing; without this its place would be taken for ever.
fn notice_lost_machines(socket: &TcpStream) -> io::Result<()> {
    rustix::net::sockopt::set_socket_keepalive(socket, true)?;
    rustix::net::sockopt::set_tcp_keepidle(socket, KEEP_ALIVE)?;
    Ok(())
}

fn unwelcome(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

fn late(what: &str, limit: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("{what} took longer than {limit:?}"))
}

/// Held connections and obituaries at once: seven voters and a thousand agents' guards in a bad moment.
const CONNECTIONS: usize = 1024;
/// Time for a handshake and the first frame.
const SETUP: Duration = Duration::from_secs(5);
/// Time for an obituary to get into the log.
const TAKING: Duration = Duration::from_secs(5);
/// Between tries of a connection that was never made.
const PAUSE: Duration = Duration::from_millis(50);
/// Time for a closed connection to be made again, on a LAN.
const SHORTEST_PATIENCE: Duration = Duration::from_millis(20);
/// Silence after which the kernel asks whether the other machine is there.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::fixture::{Cluster, LIMIT};
    use crate::transport::obituary;
    use pando_protocol::ids::SessionId;
    use tokio::task::JoinHandle;

    struct Voter {
        address: String,
        notices: mpsc::Receiver<Notice>,
        stop: CancellationToken,
        serving: JoinHandle<()>,
    }

    async fn voter(cluster: &Cluster, name: &str) -> Voter {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sender, notices) = mpsc::channel(4);
        let stop = CancellationToken::new();
        let serving = tokio::spawn(serve(listener, cluster.credentials(name), sender, stop.clone()));
        Voter { address, notices, stop, serving }
    }

    fn obituary_of(name: &str) -> Obituary {
        Obituary { node: name.parse().unwrap(), session: SessionId(3), how: "signal 9".to_owned() }
    }

    async fn send(identity: Identity, address: String, obituary: Obituary) -> io::Result<ObituaryReply> {
        let sending = move || obituary::send(&identity, &address, &"n1".parse().unwrap(), &obituary, LIMIT);
        tokio::task::spawn_blocking(sending).await.unwrap()
    }

    #[tokio::test]
    async fn a_closed_process_is_seen_at_once() {
        let cluster = Cluster::new("grove");
        let voter = voter(&cluster, "n1").await;
        let (credentials, address) = (cluster.credentials("n2"), voter.address.clone());
        let mut holding = tokio::spawn(async move { hold(&credentials, &"n1".parse().unwrap(), &address).await });
        let open = timeout(Duration::from_millis(300), &mut holding).await;
        assert!(open.is_err(), "a living process was taken for dead");
        voter.stop.cancel();
        voter.serving.await.unwrap();
        timeout(Duration::from_secs(1), holding).await.expect("the close was not seen").unwrap();
    }

    #[tokio::test]
    async fn a_connection_that_can_be_made_again_is_no_death() {
        let cluster = Cluster::new("grove");
        let voter = voter(&cluster, "n1").await;
        // Between the two: it cuts the first connection and passes the others on.
        let cutter = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (between, target) = (cutter.local_addr().unwrap().to_string(), voter.address.clone());
        let (again, mut seen_again) = mpsc::channel(1);
        let cutting = tokio::spawn(async move {
            for turn in 0..2 {
                let (mut near, _) = cutter.accept().await.unwrap();
                let mut far = TcpStream::connect(&target).await.unwrap();
                if turn == 0 {
                    let _ =
                        timeout(Duration::from_millis(200), tokio::io::copy_bidirectional(&mut near, &mut far)).await;
                } else {
                    again.send(()).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                }
            }
        });
        let credentials = cluster.credentials("n2");
        let holding = tokio::spawn(async move { hold(&credentials, &"n1".parse().unwrap(), &between).await });
        timeout(LIMIT, seen_again.recv()).await.unwrap().unwrap();
        assert!(!holding.is_finished());
        holding.abort();
        cutting.abort();
        voter.stop.cancel();
        voter.serving.await.unwrap();
    }

    #[tokio::test]
    async fn silence_is_no_death() {
        let cluster = Cluster::new("grove");
        // It accepts connections in the kernel and never answers: what a stopped process looks like.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let credentials = cluster.credentials("n2");
        let name: NodeName = "n1".parse().unwrap();
        let silent = timeout(Duration::from_secs(1), hold(&credentials, &name, &address)).await;
        assert!(silent.is_err(), "silence was taken for death");
    }

    #[tokio::test]
    async fn an_obituary_is_taken_only_from_its_own_node() {
        let cluster = Cluster::new("grove");
        let mut voter = voter(&cluster, "n1").await;
        let identity = cluster.identity("n2", Role::Node);
        let own = tokio::spawn(send(identity.clone(), voter.address.clone(), obituary_of("n2")));
        let (taken, reply) = timeout(LIMIT, voter.notices.recv()).await.unwrap().unwrap();
        assert_eq!(taken, obituary_of("n2"));
        reply.send(ObituaryReply::Recorded).unwrap();
        assert_eq!(own.await.unwrap().unwrap(), ObituaryReply::Recorded);

        let foreign = send(identity, voter.address.clone(), obituary_of("n3")).await.unwrap();
        assert_eq!(foreign, ObituaryReply::Refused);
        let admin = send(cluster.identity("n2", Role::Admin), voter.address.clone(), obituary_of("n2")).await;
        assert!(admin.is_err());
        let outsider = Cluster::new("grove").identity("n2", Role::Node);
        assert!(send(outsider, voter.address.clone(), obituary_of("n2")).await.is_err());
        assert!(voter.notices.try_recv().is_err());
        voter.stop.cancel();
        voter.serving.await.unwrap();
    }

    /// Both ends of a handshake over TCP: what whoever accepts said, and what whoever connects said.
    async fn handshake(
        accepts: impl Future<Output = io::Result<server::TlsStream<TcpStream>>>,
        connects: impl Future<Output = io::Result<client::TlsStream<TcpStream>>>,
    ) -> [String; 2] {
        let (accepted, connected) = timeout(LIMIT, async { tokio::join!(accepts, connects) }).await.unwrap();
        // With TLS 1.3 the side that connects is done first, and reads the refusal behind it.
        let connected = match connected {
            Ok(mut stream) => stream.read(&mut [0]).await.map(drop).map_err(tls::in_words),
            Err(error) => Err(error),
        };
        [accepted.map(drop), connected].map(|ended| ended.unwrap_err().to_string())
    }

    #[tokio::test]
    async fn over_tcp_another_version_is_refused_with_words_on_both_sides() {
        let cluster = Cluster::new("grove");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (near, far) = (cluster.identity("n2", Role::Node), cluster.identity("n1", Role::Node));
        let name: NodeName = "n1".parse().unwrap();

        let mut newer = (*tls::client(&near)).clone();
        newer.alpn_protocols = vec![b"pando/2".to_vec()];
        let server_name = ServerName::try_from(near.server_name(&name)).unwrap();
        let [accepted, _] = handshake(async { accept(&far, listener.accept().await?.0).await }, async {
            TlsConnector::from(Arc::new(newer)).connect(server_name, TcpStream::connect(address).await?).await
        })
        .await;
        assert!(accepted.contains("who connects speaks pando/2, who accepts pando/1; run the same"), "{accepted}");

        let mut newer = (*tls::server(&far)).clone();
        newer.alpn_protocols = vec![b"pando/2".to_vec()];
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(newer));
        let [_, connected] = handshake(async { acceptor.accept(listener.accept().await?.0).await }, async {
            greet(&near, &name, TcpStream::connect(address).await?).await
        })
        .await;
        assert!(connected.contains("another version of the protocol than pando/1: run the same"), "{connected}");
    }

    #[tokio::test]
    async fn a_voter_that_drops_a_notice_does_not_lead() {
        let cluster = Cluster::new("grove");
        let mut voter = voter(&cluster, "n1").await;
        let sending = tokio::spawn(send(cluster.identity("n2", Role::Node), voter.address.clone(), obituary_of("n2")));
        drop(timeout(LIMIT, voter.notices.recv()).await.unwrap());
        assert_eq!(sending.await.unwrap().unwrap(), ObituaryReply::NotLeader);
    }
}

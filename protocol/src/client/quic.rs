//! QUIC as Pando speaks it: endpoints, their tuning, dialling, and what a lost connection means in words.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::HandshakeData;
use quinn::{Connection, ConnectionError, Endpoint, EndpointConfig, TransportConfig, VarInt};
use quinn_proto::HashedConnectionIdGenerator;
use ring::hmac;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::time::Instant;

use super::identity::Identity;
use super::tls;

/// The times of a network and what its cards can do.
#[derive(Debug, Clone)]
pub struct Tuning {
    /// A connection that hears nothing for so long is over; the shorter one of both sides counts.
    pub idle: Duration,
    /// Silence after which a sign of life is sent.
    pub keep_alive: Duration,
    /// The round trip to believe in before the first is measured: it sets how fast a lost first packet is sent again.
    pub initial_rtt: Duration,
    /// Time for one dial, over all addresses of a name.
    pub dial: Duration,
    /// Whether the kernel may cut packets out of large buffers. Some cards and containers get it wrong.
    pub segmentation_offload: bool,
}

impl Tuning {
    /// Machines in one room.
    pub fn lan() -> Self {
        Self {
            idle: Duration::from_secs(2),
            keep_alive: Duration::from_millis(500),
            initial_rtt: Duration::from_millis(10),
            dial: Duration::from_millis(600),
            segmentation_offload: true,
        }
    }

    /// Machines far apart: round trips up to 800 ms.
    pub fn wan() -> Self {
        Self {
            idle: Duration::from_secs(10),
            keep_alive: Duration::from_millis(2500),
            initial_rtt: Duration::from_millis(200),
            dial: Duration::from_secs(4),
            segmentation_offload: true,
        }
    }

    /// A client that does not know how far its cluster is: patient itself, while the node's shorter times still count.
    pub fn client() -> Self {
        Self {
            idle: Duration::from_secs(10),
            keep_alive: Duration::from_millis(500),
            initial_rtt: Duration::from_millis(50),
            dial: Duration::from_secs(3),
            segmentation_offload: true,
        }
    }

    fn transport(&self) -> Arc<TransportConfig> {
        let mut config = TransportConfig::default();
        // Only a time beyond 2^62 ms is refused, and no profile comes near; then the idle time-out is off.
        config.max_idle_timeout(self.idle.try_into().ok());
        config.keep_alive_interval(Some(self.keep_alive));
        config.initial_rtt(self.initial_rtt);
        config.max_concurrent_bidi_streams(MAX_STREAMS.into());
        config.max_concurrent_uni_streams(0u32.into());
        config.stream_receive_window(STREAM_WINDOW.into());
        config.receive_window(CONNECTION_WINDOW.into());
        config.send_window(CONNECTION_WINDOW.into());
        config.datagram_receive_buffer_size(None);
        config.enable_segmentation_offload(self.segmentation_offload);
        Arc::new(config)
    }
}

/// An endpoint, and the socket buffers that the kernel granted it (as the kernel counts, which includes its own bookkeeping).
#[derive(Debug)]
pub struct Bound {
    /// It accepts (if bound by [`bind`]) and dials.
    pub endpoint: Endpoint,
    /// Bytes; [`BUFFER_ASKED`] were asked for.
    pub send_buffer: usize,
    /// Bytes; [`BUFFER_ASKED`] were asked for.
    pub receive_buffer: usize,
}

/// Binds an endpoint that accepts connections at `address` and dials from it. Call it within a tokio runtime.
///
/// # Errors
/// What the kernel says, such as an address in use.
pub fn bind(identity: &Identity, address: SocketAddr, tuning: &Tuning) -> io::Result<Bound> {
    bind_with(identity, socket(address)?, Some(server_config(identity, tuning)), recognised(identity), tuning)
}

/// Binds an endpoint that only dials. Call it within a tokio runtime.
///
/// # Errors
/// What the kernel says.
pub fn bind_dialler(identity: &Identity, tuning: &Tuning) -> io::Result<Bound> {
    // Where a machine has no IPv6 at all, the first one fails.
    let socket = socket((Ipv6Addr::UNSPECIFIED, 0).into()).or_else(|_| socket((Ipv4Addr::UNSPECIFIED, 0).into()))?;
    bind_with(identity, socket, None, EndpointConfig::default(), tuning)
}

fn bind_with(
    identity: &Identity,
    socket: Socket,
    server: Option<quinn::ServerConfig>,
    config: EndpointConfig,
    tuning: &Tuning,
) -> io::Result<Bound> {
    let (send_buffer, receive_buffer) = (socket.send_buffer_size()?, socket.recv_buffer_size()?);
    let runtime = Arc::new(quinn::TokioRuntime);
    let mut endpoint = Endpoint::new(config, server, socket.into(), runtime)?;
    dial_as(&mut endpoint, identity, tuning);
    Ok(Bound { endpoint, send_buffer, receive_buffer })
}

/// Shows this identity to whoever connects from now on. Connections that are there stay as they are, and so do the reset keys
/// that were made of the identity with which the endpoint was bound.
pub fn accept_as(endpoint: &Endpoint, identity: &Identity, tuning: &Tuning) {
    endpoint.set_server_config(Some(server_config(identity, tuning)));
}

/// Shows this identity to whoever is dialled from now on with this handle of the endpoint; other handles have their own.
pub fn dial_as(endpoint: &mut Endpoint, identity: &Identity, tuning: &Tuning) {
    let mut client = quinn::ClientConfig::new(identity.configurations().quic_client.clone());
    client.transport_config(tuning.transport());
    endpoint.set_default_client_config(client);
}

fn server_config(identity: &Identity, tuning: &Tuning) -> quinn::ServerConfig {
    let mut server = quinn::ServerConfig::with_crypto(identity.configurations().quic_server.clone());
    server.transport_config(tuning.transport());
    // Handshakes under way at once: one that floods them meets refusals, not a growing queue.
    server.max_incoming(MAX_INCOMING);
    server
}

/// An endpoint that recognises connections to a former process with the same key, and resets them at the first packet (RFC
/// 9000, section 10.3). Without that a peer would believe in them until they are idle for too long, and a new leader could not
/// reach a node that was just started again.
fn recognised(identity: &Identity) -> EndpointConfig {
    let resets = hmac::Key::new(hmac::HMAC_SHA256, &identity.derive("pando: QUIC stateless resets"));
    let [a, b, c, d, e, f, g, h, ..] = identity.derive("pando: QUIC connection ids");
    let ids = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    let mut config = EndpointConfig::new(Arc::new(resets));
    config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
    config.min_reset_interval(SHORTEST_BETWEEN_RESETS);
    config
}

fn socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        // So that names with addresses of either kind can be dialled from one socket.
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.set_send_buffer_size(BUFFER_ASKED)?;
    socket.set_recv_buffer_size(BUFFER_ASKED)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Why nobody was reached at an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// The text is no `host:port`, or the name is not known.
    #[error("{address} cannot be resolved: {why}")]
    Unresolved {
        /// What was dialled.
        address: String,
        /// Why.
        why: String,
    },
    /// Nobody answered in time.
    #[error("no answer within {0:.1?}")]
    Silent(Duration),
    /// Somebody answered and it came to nothing.
    #[error("{0}")]
    Failed(String),
}

impl From<DialError> for io::Error {
    fn from(error: DialError) -> Self {
        let kind = match &error {
            DialError::Unresolved { .. } => io::ErrorKind::NotFound,
            DialError::Silent(_) => io::ErrorKind::TimedOut,
            DialError::Failed(_) => io::ErrorKind::ConnectionRefused,
        };
        io::Error::new(kind, error)
    }
}

/// Dials `host:port`, resolved now, and verifies that the certificate there carries `server_name`. Each address of the host
/// gets its share of the time.
///
/// # Errors
/// [`DialError`] of the last address tried.
pub async fn dial(
    endpoint: &Endpoint,
    address: &str,
    server_name: &str,
    limit: Duration,
) -> Result<Connection, DialError> {
    let end = Instant::now() + limit;
    let unresolved = |why: String| DialError::Unresolved { address: address.to_owned(), why };
    let found = tokio::time::timeout_at(end, tokio::net::lookup_host(address)).await;
    let addresses: Vec<SocketAddr> = found
        .map_err(|_| unresolved(format!("no answer within {limit:.1?}")))?
        .map_err(|e| unresolved(e.to_string()))?
        .collect();
    let mut last = unresolved("the name has no address".to_owned());
    for (turn, peer) in addresses.iter().enumerate() {
        let left = u32::try_from(addresses.len() - turn).unwrap_or(u32::MAX);
        let share = end.saturating_duration_since(Instant::now()) / left;
        last = match tokio::time::timeout(share, connect(endpoint, *peer, server_name)).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(why)) => DialError::Failed(why),
            Err(_) => DialError::Silent(limit),
        };
    }
    Err(last)
}

async fn connect(endpoint: &Endpoint, peer: SocketAddr, server_name: &str) -> Result<Connection, String> {
    let connecting = endpoint.connect(peer, server_name).map_err(|e| e.to_string())?;
    connecting.await.map_err(|lost| describe(&lost))
}

/// Why this side closes a connection, as a code for programs; the reason beside it is for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum CloseCode {
    /// All is said.
    Done = 0,
    /// The certificate does not belong here.
    Unwelcome = 1,
    /// This process is stopping.
    Stopping = 2,
}

/// Closes a connection with a reason that the other side can show.
pub fn close(connection: &Connection, code: CloseCode, reason: &str) {
    connection.close(VarInt::from_u32(code as u32), reason.as_bytes());
}

/// What the end of a connection means, and what to do where a person can.
pub fn describe(lost: &ConnectionError) -> String {
    match lost {
        ConnectionError::TransportError(error) => match alert(u64::from(error.code)) {
            Some(NO_COMMON_PROTOCOL) => tls::another_version(),
            Some(_) if names_other_authority(&error.reason) => OTHER_AUTHORITY.to_owned(),
            Some(_) => format!("its certificate is not valid here: {}", error.reason),
            None => error.to_string(),
        },
        ConnectionError::ConnectionClosed(close) => match alert(u64::from(close.error_code)) {
            Some(NO_COMMON_PROTOCOL) => tls::another_version(),
            Some(alert) => format!("{REFUSED} (TLS alert {alert})"),
            None => close.to_string(),
        },
        ConnectionError::ApplicationClosed(close) if !close.reason.is_empty() => {
            format!("closed by the other side: {}", String::from_utf8_lossy(&close.reason))
        }
        ConnectionError::TimedOut => "the other side fell silent".to_owned(),
        ConnectionError::Reset => "the other side was started again".to_owned(),
        other => other.to_string(),
    }
}

/// What is said of a peer whose CA is not ours.
const OTHER_AUTHORITY: &str = "its certificate was made by another CA than ours";
/// What is said of a peer that takes us for a stranger.
const REFUSED: &str = "the other side refuses the certificate shown";

/// Whether [`describe`] told of certificates that do not belong together: then the node is there, and whoever dials has brought
/// the wrong ones.
pub(super) fn is_of_certificates(described: &str) -> bool {
    described == OTHER_AUTHORITY || described.starts_with(REFUSED)
}

/// The library of TLS says it only in words: a CA that it does not know, or one of the same name with another key.
fn names_other_authority(reason: &str) -> bool {
    reason.contains("UnknownIssuer") || reason.contains("BadSignature")
}

/// Whether the connection ended because one side did not accept the other: then no request on it was looked at.
pub fn is_refusal(lost: &ConnectionError) -> bool {
    match lost {
        ConnectionError::TransportError(error) => alert(u64::from(error.code)).is_some(),
        ConnectionError::ConnectionClosed(close) => alert(u64::from(close.error_code)).is_some(),
        ConnectionError::ApplicationClosed(close) => close.error_code == VarInt::from_u32(CloseCode::Unwelcome as u32),
        _ => false,
    }
}

/// Why a peer is refused that shook hands as another version of the protocol; `None` where it speaks ours. To be asked of each
/// connection that was accepted, before anything on it is read.
pub fn other_version(connection: &Connection) -> Option<String> {
    let agreed = connection.handshake_data()?.downcast::<HandshakeData>().ok()?.protocol?;
    (!tls::is_our_protocol(Some(&agreed))).then(|| tls::versions_meet(&String::from_utf8_lossy(&agreed)))
}

/// QUIC carries the alerts of TLS as 256 and the alert.
fn alert(code: u64) -> Option<u64> {
    (0x100..0x200).contains(&code).then(|| code - 0x100)
}

/// Bytes of socket buffer to ask for, each way: the kernel's usual 208 KiB overflow in bursts of appends.
pub const BUFFER_ASKED: usize = 4 << 20;

/// A reset answers a packet with a smaller one, so it amplifies nothing; peers with several connections each need one for each.
const SHORTEST_BETWEEN_RESETS: Duration = Duration::from_millis(1);
/// Streams that one peer may have open at once; further ones wait at the peer.
const MAX_STREAMS: u32 = 1024;
/// Handshakes that may be under way at once.
const MAX_INCOMING: usize = 256;
/// Bytes under way on one stream: two frames of the largest size.
const STREAM_WINDOW: u32 = 8 << 20;
/// Bytes under way on one connection, each way.
const CONNECTION_WINDOW: u32 = 32 << 20;
/// The TLS alert `no_application_protocol`.
const NO_COMMON_PROTOCOL: u64 = 120;

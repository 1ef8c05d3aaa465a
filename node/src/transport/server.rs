//! Accepts QUIC connections and hands on their streams, each with the verified name of its peer.
//!
//! ```text
//!   endpoint ──► handshake (own task, deadline) ──► peer named? ──► streams (own task each) ──► bounded queue
//! ```
//!
//! It does not look into streams beyond the first byte, and does not know roles: whoever takes a stream from the queue does.

use std::time::Duration;

use pando_protocol::client::frames::{FrameReader, FrameWriter};
use pando_protocol::client::identity::PeerName;
use pando_protocol::client::quic::{self, CloseCode};
use pando_protocol::message::Channel;
use quinn::{Connection, ConnectionError, Endpoint, Incoming, TransportErrorCode};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug, debug_span, info};

/// A stream that a peer opened, after its channel byte.
#[derive(Debug)]
pub struct IncomingStream {
    /// Who opened it, by the verified certificate; always of our cluster.
    pub peer: PeerName,
    /// What it is for.
    pub channel: Channel,
    /// What the peer says.
    pub reader: FrameReader,
    /// What the peer hears.
    pub writer: FrameWriter,
    /// The connection it belongs to.
    pub connection: Connection,
}

/// Accepts until `stop`, then closes the endpoint with a reason and waits for its tasks. The endpoint's own dialled connections
/// close with it, so whoever still has to say something to peers stops before.
///
/// `streams` is a bounded queue. While it is full, streams wait in their connections, of which each holds at most as many as
/// its peer may open; nothing is dropped.
pub async fn serve(
    endpoint: Endpoint,
    cluster: String,
    streams: mpsc::Sender<IncomingStream>,
    stop: CancellationToken,
) {
    let tasks = TaskTracker::new();
    loop {
        let incoming = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            incoming = endpoint.accept() => incoming,
        };
        let Some(incoming) = incoming else { break };
        let peer = incoming.remote_address();
        let connection = connection(incoming, cluster.clone(), streams.clone(), stop.clone(), tasks.clone());
        tasks.spawn(connection.instrument(debug_span!("connection", %peer)));
    }
    endpoint.close((CloseCode::Stopping as u32).into(), STOPPING.as_bytes());
    tasks.close();
    if timeout(GOODBYE, tasks.wait()).await.is_err() {
        info!("connections were still busy when the transport stopped");
    }
}

async fn connection(
    incoming: Incoming,
    cluster: String,
    streams: mpsc::Sender<IncomingStream>,
    stop: CancellationToken,
    tasks: TaskTracker,
) {
    let Some(connection) = handshake(incoming).await else { return };
    let Some(peer) = welcome(&connection, &cluster) else { return };
    loop {
        let opened = tokio::select! {
            biased;
            () = stop.cancelled() => return quic::close(&connection, CloseCode::Stopping, STOPPING),
            opened = connection.accept_bi() => opened,
        };
        let (send, receive) = match opened {
            Ok(pair) => pair,
            Err(lost) => return debug!(%peer, why = quic::describe(&lost), "connection ended"),
        };
        let stream = (FrameWriter::new(send), FrameReader::new(receive));
        tasks.spawn(hand_on(peer.clone(), connection.clone(), stream, streams.clone(), stop.clone()).in_current_span());
    }
}

async fn handshake(incoming: Incoming) -> Option<Connection> {
    match timeout(HANDSHAKE, incoming).await {
        Ok(Ok(connection)) => Some(connection),
        // The caller gave up: it has another connection by now, or is gone.
        Ok(Err(ConnectionError::ConnectionClosed(close)))
            if close.error_code == TransportErrorCode::APPLICATION_ERROR =>
        {
            debug!("a caller closed its connection before it was made");
            None
        }
        Ok(Err(lost)) => {
            info!(why = quic::describe(&lost), "a connection was refused");
            None
        }
        Err(_) => {
            debug!("a handshake took too long");
            None
        }
    }
}

/// The peer's name, if it belongs here; else the connection is closed with the reason.
fn welcome(connection: &Connection, cluster: &str) -> Option<PeerName> {
    let named = PeerName::of(connection);
    let reason = match (quic::other_version(connection), &named) {
        (Some(versions), _) => versions,
        (None, Ok(peer)) if peer.cluster == cluster => return named.ok(),
        (None, Ok(peer)) => format!("this is cluster {cluster}, your certificate is for {}", peer.cluster),
        (None, Err(nameless)) => nameless.to_string(),
    };
    let peer = named.map_or_else(|_| "nobody known".to_owned(), |peer| peer.to_string());
    info!(peer, reason, "a connection was refused");
    quic::close(connection, CloseCode::Unwelcome, &reason);
    None
}

async fn hand_on(
    peer: PeerName,
    connection: Connection,
    (writer, mut reader): (FrameWriter, FrameReader),
    streams: mpsc::Sender<IncomingStream>,
    stop: CancellationToken,
) {
    let channel = match timeout(FIRST_BYTE, reader.channel()).await {
        Ok(Ok(channel)) => channel,
        Ok(Err(error)) => return debug!(%peer, %error, "a stream was refused"),
        Err(_) => return debug!(%peer, "a stream said nothing"),
    };
    let stream = IncomingStream { peer, channel, reader, writer, connection };
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        // It fails only where nobody serves any more; the stream is then dropped, which the peer sees.
        _ = streams.send(stream) => {}
    }
}

const STOPPING: &str = "this node is stopping";
/// Time for a handshake: two round trips of the farthest profile, with packets lost.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Time from opening a stream to its first byte, which every peer sends at once.
const FIRST_BYTE: Duration = Duration::from_secs(5);
/// Time for the tasks of connections to end after they were closed.
const GOODBYE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::transport::fixture::{Cluster, LIMIT};
    use pando_protocol::client::{frames, tls};
    use quinn::crypto::rustls::QuicClientConfig;

    #[tokio::test]
    async fn streams_come_with_the_name_of_their_peer() {
        let cluster = Cluster::new("grove");
        let mut node = cluster.node("n1");
        let near = cluster.dialler("n2");
        let server_name = near.identity.server_name(&"n1".parse().unwrap());
        let connection = quic::dial(&near.endpoint, &node.address, &server_name, LIMIT).await.unwrap();
        let (mut writer, mut reader) = frames::open(&connection, Channel::Peer).await.unwrap();
        writer.send(&7u32).await.unwrap();
        let mut stream = timeout(LIMIT, node.streams.recv()).await.unwrap().unwrap();
        assert_eq!((stream.peer.to_string().as_str(), stream.channel), ("node n2 of cluster grove", Channel::Peer));
        assert_eq!(stream.reader.expect::<u32>().await.unwrap(), 7);
        node.stop.cancel();
        timeout(LIMIT, node.serving).await.unwrap().unwrap();
        assert!(timeout(LIMIT, reader.next::<u32>()).await.unwrap().is_err());
        assert!(quic::describe(&connection.close_reason().unwrap()).contains(STOPPING));
    }

    #[tokio::test]
    async fn a_peer_of_another_cluster_is_closed_with_the_reason() {
        let cluster = Cluster::new("grove");
        // The same CA made both: only the name in the certificate tells the clusters apart.
        let near = cluster.dialler("n2");
        let bound = quic::bind(&near.identity, "127.0.0.1:0".parse().unwrap(), &near.tuning).unwrap();
        let address = bound.endpoint.local_addr().unwrap().to_string();
        let (streams, _queue) = mpsc::channel(1);
        let stop = CancellationToken::new();
        let serving = tokio::spawn(serve(bound.endpoint, "wood".to_owned(), streams, stop.clone()));
        let server_name = near.identity.server_name(&"n2".parse().unwrap());
        let connection = quic::dial(&near.endpoint, &address, &server_name, LIMIT).await.unwrap();
        let closed = timeout(LIMIT, connection.closed()).await.unwrap();
        assert!(quic::is_refusal(&closed) && quic::describe(&closed).contains("this is cluster wood"), "{closed}");
        stop.cancel();
        timeout(LIMIT, serving).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_peer_of_another_version_is_told_which_versions_meet_and_nothing_it_says_is_read() {
        let cluster = Cluster::new("grove");
        let mut node = cluster.node("n1");
        let near = cluster.dialler("n2");
        let server_name = near.identity.server_name(&"n1".parse().unwrap());
        let dial = async |version: &str| {
            let mut tls = (*tls::client(&near.identity)).clone();
            tls.alpn_protocols = vec![version.as_bytes().to_vec()];
            let mut endpoint = near.endpoint.clone();
            let crypto = QuicClientConfig::try_from(tls).unwrap();
            endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(crypto)));
            quic::dial(&endpoint, &node.address, &server_name, LIMIT).await
        };
        let connection = dial("pando/2").await.unwrap();
        let said = async {
            let (mut writer, _) = frames::open(&connection, Channel::Peer).await?;
            writer.send(&7u32).await
        };
        // Said or not, as fast as the refusal comes.
        _ = said.await;
        let closed = timeout(LIMIT, connection.closed()).await.unwrap();
        let told = quic::describe(&closed);
        assert!(quic::is_refusal(&closed), "{closed}");
        assert!(told.contains("who connects speaks pando/2, who accepts pando/1; run the same version"), "{told}");
        let unheard_of = dial("pando/200").await.unwrap_err().to_string();
        assert!(unheard_of.contains("another version of the protocol than pando/1: run the same"), "{unheard_of}");
        assert!(node.streams.try_recv().is_err());
        node.stop.cancel();
        timeout(LIMIT, node.serving).await.unwrap().unwrap();
        assert!(node.streams.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_full_queue_makes_streams_wait_and_loses_none() {
        let cluster = Cluster::new("grove");
        let mut node = cluster.node("n1");
        let near = cluster.dialler("n2");
        let server_name = near.identity.server_name(&"n1".parse().unwrap());
        let connection = quic::dial(&near.endpoint, &node.address, &server_name, LIMIT).await.unwrap();
        let mut open = Vec::new();
        for number in 0..20u32 {
            let (mut writer, reader) = frames::open(&connection, Channel::Peer).await.unwrap();
            writer.send(&number).await.unwrap();
            open.push((writer, reader));
        }
        let mut seen = Vec::new();
        while seen.len() < 20 {
            let mut stream = timeout(LIMIT, node.streams.recv()).await.unwrap().unwrap();
            seen.push(stream.reader.expect::<u32>().await.unwrap());
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..20).collect::<Vec<_>>());
    }
}

//! Sends an obituary: blocking, without a runtime or threads, because the guard that sends it has neither.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use pando_protocol::client::frames::FrameBuffer;
use pando_protocol::client::identity::Identity;
use pando_protocol::client::tls;
use pando_protocol::codec::{self, FRAME_LIMIT};
use pando_protocol::ids::NodeName;
use pando_protocol::session::{Obituary, ObituaryReply};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use super::liveness::FirstWord;

/// Tells the voter `voter` at `address` (`host:port`) that everything which ran under a session is gone, and waits for its
/// reply. May be repeated, at any voter.
///
/// Only resolving a host's name is not bound by `limit`: the system's resolver has times of its own. An address in digits
/// does not ask it.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] after `limit`; otherwise what kept the reply from coming. It may have been recorded even so.
pub fn send(
    identity: &Identity,
    address: &str,
    voter: &NodeName,
    obituary: &Obituary,
    limit: Duration,
) -> io::Result<ObituaryReply> {
    let end = Instant::now() + limit;
    let socket = Timed { socket: connect(address, end)?, end };
    let server_name = ServerName::try_from(identity.server_name(voter)).map_err(io::Error::other)?;
    let session = ClientConnection::new(tls::client(identity), server_name).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(session, socket);
    let word = codec::frame(&FirstWord::Obituary(obituary.clone())).map_err(io::Error::other)?;
    stream.write_all(&word).and_then(|()| stream.flush()).map_err(tls::in_words)?;
    receive(&mut stream).map_err(tls::in_words)
}

fn connect(address: &str, end: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{address} has no address"));
    let peers: Vec<_> = address.to_socket_addrs()?.collect();
    for (turn, peer) in peers.iter().enumerate() {
        let share = left(end)? / u32::try_from(peers.len() - turn).unwrap_or(u32::MAX);
        match TcpStream::connect_timeout(peer, share.max(Duration::from_millis(1))) {
            Ok(socket) => {
                socket.set_nodelay(true)?;
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn receive(stream: &mut StreamOwned<ClientConnection, Timed>) -> io::Result<ObituaryReply> {
    let (mut buffer, mut piece) = (FrameBuffer::default(), [0; 256]);
    loop {
        if let Some(body) = buffer.take().map_err(io::Error::other)? {
            return codec::decode::<_, FRAME_LIMIT>(&body).map_err(io::Error::other);
        }
        match stream.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => buffer.push(&piece[..read]),
        }
    }
}

/// A socket on which everything together has one deadline, however slowly the other side drips.
struct Timed {
    socket: TcpStream,
    end: Instant,
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(left(self.end)?))?;
        self.socket.read(into).map_err(in_time)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(left(self.end)?))?;
        self.socket.write(bytes).map_err(in_time)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(late()) } else { Ok(left) }
}

/// A blocking socket says "would block" when its time-out is over.
fn in_time(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { late() } else { error }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the voter did not answer in time")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::fixture::Cluster;
    use pando_protocol::client::identity::Role;
    use pando_protocol::ids::SessionId;

    #[test]
    fn a_voter_that_never_answers_costs_no_more_than_the_limit() {
        let cluster = Cluster::new("grove");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let identity = cluster.identity("n2", Role::Node);
        let obituary = Obituary { node: "n2".parse().unwrap(), session: SessionId(1), how: "exit 70".to_owned() };
        let begun = Instant::now();
        let error =
            send(&identity, &address, &"n1".parse().unwrap(), &obituary, Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() < Duration::from_secs(2));
    }
}

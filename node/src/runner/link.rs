//! The node's end of the socket to its guard.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::net::UnixDatagram;

use crate::guard::socket::{self, Parcel};
use crate::guard::words::{FromGuard, WORD_LIMIT};

/// The node's end of the socket.
#[derive(Debug)]
pub struct Link {
    /// Only watched and named by this type: words with descriptors are sent and received by [`socket`].
    socket: UnixDatagram,
}

impl Link {
    /// Takes over one end of a [`socket::pair`].
    ///
    /// # Errors
    /// Where the runtime cannot watch it.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self { socket: UnixDatagram::from_std(socket.into())? })
    }

    /// The next word; `None` where the guard is gone. May be dropped at any time without losing one.
    ///
    /// # Errors
    /// Where what came is no word.
    pub async fn receive(&self, buffer: &mut Buffer) -> io::Result<Option<FromGuard>> {
        loop {
            self.socket.readable().await?;
            let received =
                self.socket.try_io(Interest::READABLE, || socket::receive::<FromGuard>(&self.socket, &mut buffer.0));
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => return Ok(received?.map(|(word, _)| word)),
            }
        }
    }

    /// Sends a parcel, waits for ever without one. May be dropped at any time: then it was not sent.
    ///
    /// # Errors
    /// Where the guard is gone.
    pub async fn send(&self, parcel: Option<&Parcel>) -> io::Result<()> {
        let Some(parcel) = parcel else { return std::future::pending().await };
        loop {
            self.socket.writable().await?;
            match self.socket.try_io(Interest::WRITABLE, || socket::send(&self.socket, parcel)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return sent,
            }
        }
    }
}

/// Room for one word.
#[derive(Debug)]
pub struct Buffer(Vec<u8>);

impl Default for Buffer {
    fn default() -> Self {
        Self(vec![0; WORD_LIMIT])
    }
}

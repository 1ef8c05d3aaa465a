//! Words with descriptors over non-blocking SEQPACKET socket pairs: a word arrives whole or not at all, and the end of a
//! process is an end of file.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pando_protocol::codec::{self, CodecError};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::words::WORD_LIMIT;

/// Most descriptors in one word: standard output and standard error.
const MAX_DESCRIPTORS: usize = 2;

/// A word ready to be sent, with the descriptors that go with it.
#[derive(Debug)]
pub struct Parcel {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl Parcel {
    /// A word without descriptors.
    ///
    /// # Errors
    /// Where the word exceeds [`WORD_LIMIT`].
    pub fn new(word: &impl Serialize) -> Result<Self, CodecError> {
        Self::with(word, Vec::new())
    }

    /// A word with at most two descriptors.
    ///
    /// # Errors
    /// Where the word exceeds [`WORD_LIMIT`].
    pub fn with(word: &impl Serialize, descriptors: Vec<OwnedFd>) -> Result<Self, CodecError> {
        debug_assert!(descriptors.len() <= MAX_DESCRIPTORS);
        Ok(Self { bytes: codec::encode::<WORD_LIMIT>(word)?, descriptors })
    }
}

/// A connected pair of non-blocking sockets that an exec closes.
///
/// # Errors
/// Where the machine has no descriptors left.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (one, other) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok((one, other))
}

/// Sends a parcel; may be called again with the same one after [`io::ErrorKind::WouldBlock`].
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] where the other side has to read first; any other error means that it is gone.
pub fn send(socket: impl AsFd, parcel: &Parcel) -> io::Result<()> {
    let descriptors: Vec<BorrowedFd<'_>> = parcel.descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let bytes = [IoSlice::new(&parcel.bytes)];
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        match rustix::net::sendmsg(&socket, &bytes, &mut control, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Receives the next word with its descriptors; `None` is the end of the other side. `buffer` has [`WORD_LIMIT`] bytes, or
/// fewer where only short words come.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] where there is none yet, [`io::ErrorKind::InvalidData`] where it is no word.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = loop {
        match rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Ok(received) => break received,
            Err(Errno::INTR) => {}
            // The other side closed with words unread: it is gone all the same.
            Err(Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    let bytes = buffer.get(..received.bytes).unwrap_or_default();
    let word = codec::decode::<T, WORD_LIMIT>(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    Ok(Some((word, descriptors)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_arrive_with_their_descriptors_and_the_end_is_seen() {
        let (here, there) = pair().unwrap();
        let mut buffer = vec![0; WORD_LIMIT];
        let nothing = receive::<String>(&there, &mut buffer).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        let (read, write) = rustix::pipe::pipe().unwrap();
        send(&here, &Parcel::with(&"one", vec![write]).unwrap()).unwrap();
        send(&here, &Parcel::new(&"two").unwrap()).unwrap();
        drop(here);
        let (word, descriptors) = receive::<String>(&there, &mut buffer).unwrap().unwrap();
        assert_eq!((word.as_str(), descriptors.len()), ("one", 1));
        rustix::io::write(&descriptors[0], b"x").unwrap();
        assert_eq!(rustix::io::read(&read, &mut [0; 4]).unwrap(), 1);
        assert_eq!(receive::<String>(&there, &mut buffer).unwrap().unwrap().0, "two");
        assert!(receive::<String>(&there, &mut buffer).unwrap().is_none());
    }

    #[test]
    fn the_largest_word_fits_into_the_socket() {
        let (here, there) = pair().unwrap();
        let word = "x".repeat(WORD_LIMIT - 8);
        send(&here, &Parcel::new(&word).unwrap()).unwrap();
        let mut buffer = vec![0; WORD_LIMIT];
        assert_eq!(receive::<String>(&there, &mut buffer).unwrap().unwrap().0.len(), word.len());
        assert!(Parcel::new(&"x".repeat(WORD_LIMIT)).is_err());
    }
}

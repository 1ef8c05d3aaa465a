//! Frames on byte streams: pieces come in, whole bodies come out.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use quinn::{ReadError, RecvStream, SendStream, VarInt, WriteError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::quic::describe;
use crate::codec::{self, CodecError, FRAME_LIMIT, LENGTH_BYTES};
use crate::message::Channel;

/// Most bytes taken from a stream at once: what a reader may hold beyond one frame.
const CHUNK: usize = 64 << 10;

/// Why a frame could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The bytes are no frame, or no value of the expected type.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The stream ended where more had to come.
    #[error("the stream ended in the middle")]
    Ended,
    /// The stream or its connection is gone.
    #[error("{0}")]
    Lost(String),
    /// The first byte of the stream names no channel that this version knows.
    #[error("channel {0} is unknown: the other side runs another version of pando")]
    UnknownChannel(u8),
}

impl From<ReadError> for FrameError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::ConnectionLost(lost) => Self::Lost(describe(&lost)),
            other => Self::Lost(other.to_string()),
        }
    }
}

impl From<WriteError> for FrameError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::ConnectionLost(lost) => Self::Lost(describe(&lost)),
            other => Self::Lost(other.to_string()),
        }
    }
}

impl From<FrameError> for io::Error {
    fn from(error: FrameError) -> Self {
        let kind = match &error {
            FrameError::Codec(_) | FrameError::UnknownChannel(_) => io::ErrorKind::InvalidData,
            FrameError::Ended => io::ErrorKind::UnexpectedEof,
            FrameError::Lost(_) => io::ErrorKind::ConnectionReset,
        };
        io::Error::new(kind, error)
    }
}

/// Pieces of a stream on their way to frames. Pure: fed by whoever reads.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: BytesMut,
}

impl FrameBuffer {
    /// Adds what was read.
    pub fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
    }

    /// Takes the body of the next frame; `None` until it is whole.
    ///
    /// # Errors
    /// [`CodecError::TooLarge`] as soon as the length says so, before more is kept.
    pub fn take(&mut self) -> Result<Option<Bytes>, CodecError> {
        let Some(length) = self.bytes.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = codec::frame_length(*length)?;
        if self.bytes.len() < LENGTH_BYTES + length {
            return Ok(None);
        }
        self.bytes.advance(LENGTH_BYTES);
        Ok(Some(self.bytes.split_to(length).freeze()))
    }

    /// Whether nothing is kept: a stream may end here.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn take_byte(&mut self) -> Option<u8> {
        self.bytes.has_remaining().then(|| self.bytes.get_u8())
    }
}

/// Reads frames from a QUIC stream. Cancel-safe: what came of a frame is kept until the rest is asked for.
#[derive(Debug)]
pub struct FrameReader {
    stream: RecvStream,
    buffer: FrameBuffer,
}

impl FrameReader {
    /// A reader of a stream from its present place on.
    pub fn new(stream: RecvStream) -> Self {
        Self { stream, buffer: FrameBuffer::default() }
    }

    /// The next value; `None` where the stream was finished between frames. Waits as long as the connection lives: put it
    /// under a deadline.
    ///
    /// # Errors
    /// [`FrameError`]; after one the reader is of no more use.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let Some(body) = self.next_body().await? else { return Ok(None) };
        Ok(Some(codec::decode::<T, FRAME_LIMIT>(&body)?))
    }

    /// The next value, which must come.
    ///
    /// # Errors
    /// [`FrameError::Ended`] where the stream was finished instead; else as [`Self::next`].
    pub async fn expect<T: DeserializeOwned>(&mut self) -> Result<T, FrameError> {
        self.next().await?.ok_or(FrameError::Ended)
    }

    /// The next body, not decoded; `None` where the stream was finished between frames.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn next_body(&mut self) -> Result<Option<Bytes>, FrameError> {
        loop {
            if let Some(body) = self.buffer.take()? {
                return Ok(Some(body));
            }
            if !self.fill().await? {
                return if self.buffer.is_empty() { Ok(None) } else { Err(FrameError::Ended) };
            }
        }
    }

    /// The channel byte with which a stream begins.
    ///
    /// # Errors
    /// [`FrameError::UnknownChannel`], or as [`Self::next`].
    pub async fn channel(&mut self) -> Result<Channel, FrameError> {
        loop {
            if let Some(byte) = self.buffer.take_byte() {
                return Channel::from_byte(byte).ok_or(FrameError::UnknownChannel(byte));
            }
            if !self.fill().await? {
                return Err(FrameError::Ended);
            }
        }
    }

    async fn fill(&mut self) -> Result<bool, FrameError> {
        let Some(chunk) = self.stream.read_chunk(CHUNK, true).await? else { return Ok(false) };
        self.buffer.push(&chunk.bytes);
        Ok(true)
    }
}

/// Writes frames to a QUIC stream. Not cancel-safe: a write that was given up leaves half a frame, so drop the writer then.
#[derive(Debug)]
pub struct FrameWriter {
    stream: SendStream,
}

impl FrameWriter {
    /// A writer to a stream from its present place on.
    pub fn new(stream: SendStream) -> Self {
        Self { stream }
    }

    /// Writes one value. Waits while the other side takes nothing: put it under a deadline.
    ///
    /// # Errors
    /// [`FrameError`].
    pub async fn send(&mut self, value: &impl Serialize) -> Result<(), FrameError> {
        self.send_frames(&codec::frame(value)?).await
    }

    /// Writes whole frames that are encoded already.
    ///
    /// # Errors
    /// [`FrameError::Lost`].
    pub async fn send_frames(&mut self, frames: &[u8]) -> Result<(), FrameError> {
        Ok(self.stream.write_all(frames).await?)
    }

    /// Lets what is written here go before or behind what other streams of the connection have, as the channel's rank says.
    pub fn rank(&self, channel: Channel) {
        // It fails only where the stream was finished or reset before.
        let _ = self.stream.set_priority(channel.rank());
    }

    /// Says that nothing more comes. What was written still arrives as long as the connection lives.
    pub fn finish(&mut self) {
        // It fails only where it was finished or reset before.
        let _ = self.stream.finish();
    }

    /// Resolves when the other side no longer reads: it took everything after [`Self::finish`], stopped the stream, or is
    /// gone.
    pub fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        let stopped = self.stream.stopped();
        async move { drop(stopped.await) }
    }

    /// Gives the stream up: the other side's reader fails instead of taking a half for the whole.
    pub fn abandon(&mut self) {
        let _ = self.stream.reset(VarInt::from_u32(1));
    }
}

/// Opens a stream for a channel. Waits silently while the other side allows no more streams: put it under a deadline.
///
/// # Errors
/// [`FrameError::Lost`] where the connection is gone.
pub async fn open(connection: &quinn::Connection, channel: Channel) -> Result<(FrameWriter, FrameReader), FrameError> {
    let (mut send, receive) = connection.open_bi().await.map_err(|lost| FrameError::Lost(describe(&lost)))?;
    send.write_all(&[channel as u8]).await?;
    let writer = FrameWriter::new(send);
    writer.rank(channel);
    Ok((writer, FrameReader::new(receive)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_whole_however_they_come_in() {
        let frames = [codec::frame(&"first").unwrap(), codec::frame(&"second").unwrap()].concat();
        for size in 1..frames.len() {
            let mut buffer = FrameBuffer::default();
            let mut seen = Vec::new();
            for piece in frames.chunks(size) {
                buffer.push(piece);
                while let Some(body) = buffer.take().unwrap() {
                    seen.push(codec::decode::<String, FRAME_LIMIT>(&body).unwrap());
                }
            }
            assert_eq!(seen, ["first", "second"], "in pieces of {size}");
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn a_frame_that_claims_too_much_is_refused_by_its_length_alone() {
        let mut buffer = FrameBuffer::default();
        buffer.push(&u32::try_from(FRAME_LIMIT + 1).unwrap().to_le_bytes());
        assert!(matches!(buffer.take(), Err(CodecError::TooLarge { .. })));
    }
}

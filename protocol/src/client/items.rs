//! One request, many items.

use quinn::Connection;

use super::error::ClientError;
use super::frames::{FrameError, FrameReader};
use crate::message::Item;

/// The items of a stream.
#[derive(Debug)]
pub struct Items {
    pub(super) reader: FrameReader,
    pub(super) endpoint: String,
    pub(super) over: bool,
    // The last handle of a connection closes it.
    pub(super) _connection: Connection,
}

impl Items {
    /// The next item; `None` where the node is done. Waits while there is nothing to tell, which for a stream that follows may
    /// be for ever; a node that falls silent is noticed by the connection. Cancel-safe.
    ///
    /// # Errors
    /// [`ClientError::Refused`] where the node gave up, [`ClientError::Unreachable`] where it went away.
    pub async fn next(&mut self) -> Result<Option<Item>, ClientError> {
        if self.over {
            return Ok(None);
        }
        let next = self.reader.next::<Item>().await;
        self.over = !matches!(next, Ok(Some(Item::Event(_) | Item::Log(_) | Item::Note(_))));
        match next {
            Ok(Some(Item::Failed(why))) => Err(why.into()),
            Ok(item) => Ok(item),
            Err(FrameError::Codec(why)) => {
                Err(ClientError::Protocol { endpoint: self.endpoint.clone(), why: why.to_string() })
            }
            Err(lost) => Err(ClientError::Unreachable { tried: vec![(self.endpoint.clone(), lost.to_string())] }),
        }
    }
}

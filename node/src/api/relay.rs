//! An agent's api: it holds no state, so a voter answers.

use std::time::Duration;

use bytes::Bytes;
use pando_protocol::message::{Answer, Call, Channel, Item};
use pando_protocol::rejection::Rejection;

use super::Api;
use super::write::no_leader;
use crate::transport::{IncomingStream, Lane};

/// A voter has this long to take the call.
const DIAL_LIMIT: Duration = Duration::from_secs(1);

impl Api {
    /// Passes a call on to the first voter that takes it, and its answer back, frame by frame.
    pub(super) async fn relay(&self, call: Call, mut stream: IncomingStream) {
        for (name, address) in &self.voters {
            let Ok((mut writer, mut reader)) =
                self.peers.open(Lane::Call, Channel::Client, name, address, DIAL_LIMIT).await
            else {
                continue;
            };
            if writer.send(&call).await.is_err() {
                continue;
            }
            writer.finish();
            let gone = stream.writer.stopped();
            tokio::pin!(gone);
            loop {
                let body: Bytes = tokio::select! {
                    biased;
                    () = &mut gone => return,
                    body = reader.next_body() => match body {
                        Ok(Some(body)) => body,
                        // The client reads the end of the stream as a lost reply, and tries again with the same number.
                        Ok(None) | Err(_) => return stream.writer.finish(),
                    },
                };
                if stream.writer.send_frames(&framed(&body)).await.is_err() {
                    return;
                }
            }
        }
        self.nobody(call, stream).await;
    }

    async fn nobody(&self, call: Call, mut stream: IncomingStream) {
        let names: Vec<_> = self.voters.keys().map(ToString::to_string).collect();
        let refusal: Rejection =
            no_leader(DIAL_LIMIT, &format!("no voter answers this agent (tried {})", names.join(", ")));
        _ = match call {
            Call::Events { .. } | Call::Logs { .. } => stream.writer.send(&Item::Failed(refusal)).await,
            Call::Write(_) | Call::Read { .. } | Call::Kill { .. } | Call::Transfer { .. } => {
                stream.writer.send(&Answer::Err(refusal)).await
            }
        };
        stream.writer.finish();
    }
}

/// A body as a frame again.
fn framed(body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(body.len() + 4);
    // A body that came in a frame fits one.
    frame.extend_from_slice(&u32::try_from(body.len()).unwrap_or(0).to_le_bytes());
    frame.extend_from_slice(body);
    frame
}

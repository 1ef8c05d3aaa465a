//! The api of a node that is no voter: it holds no state, or none that is kept up, so a voter answers.

use std::time::Duration;

use bytes::Bytes;
use pando_protocol::ids::NodeName;
use pando_protocol::message::{Answer, Call, Channel, Item};
use pando_protocol::rejection::Rejection;
use tokio::time::sleep;

use super::Api;
use super::write::no_leader;
use crate::transport::{IncomingStream, Lane};

/// A voter has this long to take the call.
const DIAL_LIMIT: Duration = Duration::from_secs(1);

/// A voter has this long to begin to answer a read; it answers without a leader after 2 s.
const READ_LIMIT: Duration = Duration::from_secs(4);

enum Passed {
    /// The client has what there was, or is gone.
    On,
    /// This voter answered nothing: another may be asked.
    Nothing,
}

impl Api {
    /// Passes a call on to the first voter that takes it, and its answer back, frame by frame.
    pub(super) async fn relay(&self, call: Call, mut stream: IncomingStream) {
        let voters = self.directory.voters();
        for (name, address) in voters.iter().filter(|(name, _)| **name != self.own) {
            match self.pass_on(&call, name, address, &mut stream).await {
                Passed::On => return stream.writer.finish(),
                Passed::Nothing => {}
            }
        }
        match call {
            Call::Logs { path, tail, follow } => {
                let note = "no voter answers this node: only what it wrote itself is shown";
                _ = stream.writer.send(&Item::Note(note.into())).await;
                self.stream_logs(path, tail, follow, stream).await;
            }
            call => self.nobody(call, stream).await,
        }
    }

    async fn pass_on(&self, call: &Call, name: &NodeName, address: &str, stream: &mut IncomingStream) -> Passed {
        let opened = self.peers.open(Lane::Call, Channel::Client, name, address, DIAL_LIMIT).await;
        let Ok((mut writer, mut reader)) = opened else { return Passed::Nothing };
        if writer.send(call).await.is_err() {
            return Passed::Nothing;
        }
        writer.finish();
        // A signal and a transfer are done once at most; the others may be asked again: a write carries its number.
        let (may_ask_another, limit) = match call {
            Call::Read { .. } => (true, Some(READ_LIMIT)),
            Call::Write(_) | Call::Events { .. } | Call::Logs { .. } | Call::Members(_) => (true, None),
            Call::Kill { .. } | Call::Transfer { .. } => (false, None),
        };
        let gone = stream.writer.stopped();
        tokio::pin!(gone);
        let mut is_first = true;
        loop {
            let silence = limit.filter(|_| is_first);
            let body: Bytes = tokio::select! {
                biased;
                () = &mut gone => return Passed::On,
                body = reader.next_body() => match body {
                    Ok(Some(body)) => body,
                    Ok(None) | Err(_) if is_first && may_ask_another => return Passed::Nothing,
                    // The client reads the end of the stream as a lost reply.
                    Ok(None) | Err(_) => return Passed::On,
                },
                () = sleep(silence.unwrap_or_default()), if silence.is_some() => return Passed::Nothing,
            };
            is_first = false;
            if stream.writer.send_frames(&framed(&body)).await.is_err() {
                return Passed::On;
            }
        }
    }

    /// Says that no voter was found. What was passed on already is not passed on again, so that it never goes in a circle.
    pub(super) async fn nobody(&self, call: Call, mut stream: IncomingStream) {
        let voters = self.directory.voters();
        let names: Vec<_> = voters.keys().filter(|name| **name != self.own).map(ToString::to_string).collect();
        let why = format!("{} is no voter, and no voter answers it (tried {})", self.own, names.join(", "));
        let refusal: Rejection = no_leader(DIAL_LIMIT, &why);
        _ = match call {
            Call::Events { .. } | Call::Logs { .. } => stream.writer.send(&Item::Failed(refusal)).await,
            Call::Write(_) | Call::Read { .. } | Call::Kill { .. } | Call::Transfer { .. } | Call::Members(_) => {
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

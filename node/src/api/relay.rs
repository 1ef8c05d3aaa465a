//! The api of a node that holds no state, or none that is kept up: a voter answers.

use std::time::Duration;

use bytes::Bytes;
use pando_protocol::client::frames::FrameWriter;
use pando_protocol::codec::{self, FRAME_LIMIT};
use pando_protocol::ids::NodeName;
use pando_protocol::message::{Answer, Call, Channel, Item, better};
use pando_protocol::rejection::Rejection;
use tokio::time::{Instant, sleep};

use super::NodeApi;
use super::serve::refuse;
use super::write::no_leader;
use crate::transport::{IncomingStream, Lane};

/// A voter has this long to take the call.
const DIAL_LIMIT: Duration = Duration::from_secs(1);

/// A voter has this long to begin to answer a read; it answers without a leader after 2 s.
const READ_LIMIT: Duration = Duration::from_secs(4);

/// After this no further voter is asked where one has answered that it finds no leader: the client waits.
const SEARCH_LIMIT: Duration = Duration::from_secs(5);

enum Passed {
    /// The client has what there was, or is gone.
    On,
    /// This voter found no leader: another may know better.
    Unsure(Poor),
    /// This voter does not know this node: another may be asked, which has applied more.
    Stranger,
    /// This voter answered nothing: another may be asked.
    Nothing,
}

/// What a voter that finds no leader says.
enum Poor {
    Answer(Answer),
    Item(Item),
}

impl NodeApi {
    /// Passes a call on to the first voter that finds a leader, and its answer back, frame by frame; where none does, the best
    /// that any of them said.
    pub(super) async fn relay(&self, call: Call, mut stream: IncomingStream) {
        let begun = Instant::now();
        let (mut best, mut is_stranger): (Option<Poor>, bool) = (None, false);
        let voters = self.directory.voters();
        for (name, address) in voters.iter().filter(|(name, _)| **name != self.own) {
            match self.pass_on(&call, name, address, &mut stream).await {
                Passed::On => return stream.writer.finish(),
                Passed::Unsure(poor) => {
                    best = Some(match (best, poor) {
                        (Some(Poor::Answer(before)), Poor::Answer(answer)) => Poor::Answer(better(before, answer)),
                        (Some(before), _) => before,
                        (None, poor) => poor,
                    });
                    if begun.elapsed() >= SEARCH_LIMIT {
                        break;
                    }
                }
                Passed::Stranger => is_stranger = true,
                Passed::Nothing => {}
            }
        }
        match (best, call) {
            (Some(poor), _) => say(&mut stream.writer, poor, begun.elapsed()).await,
            (None, Call::Logs { path, tail, follow }) => {
                let note = "no voter answers this node: only what it wrote itself is shown";
                _ = stream.writer.send(&Item::Note(note.into())).await;
                self.stream_logs(path, tail, follow, stream).await;
            }
            (None, call) => self.nobody(call, is_stranger, begun.elapsed(), stream).await,
        }
    }

    /// Answers another node, which asks the other voters itself: what was passed on is not passed on again, so that it never
    /// goes in a circle.
    pub(super) async fn newcomer(&self, call: Call, stream: IncomingStream) {
        let why = format!("{} holds no state of the cluster, or none that is kept up", self.own);
        refuse(&call, no_leader(Duration::ZERO, &why), stream).await;
    }

    async fn pass_on(&self, call: &Call, name: &NodeName, address: &str, stream: &mut IncomingStream) -> Passed {
        let opened = self.peers.open(Lane::Call, Channel::Client, name, address, DIAL_LIMIT).await;
        let Ok((mut writer, mut reader)) = opened else { return Passed::Nothing };
        if writer.send(call).await.is_err() {
            return Passed::Nothing;
        }
        writer.finish();
        let is_stream = matches!(call, Call::Events { .. } | Call::Logs { .. });
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
                    // Nothing to tell is an answer of a stream: no such events, no lines.
                    Ok(None) if is_stream => return Passed::On,
                    Ok(None) | Err(_) if is_first && may_ask_another => return Passed::Nothing,
                    // The client reads the end of the stream as a lost reply.
                    Ok(None) | Err(_) => return Passed::On,
                },
                () = sleep(silence.unwrap_or_default()), if silence.is_some() => return Passed::Nothing,
            };
            if is_first && let Some(passed) = known_better(call, &body) {
                return passed;
            }
            is_first = false;
            if stream.writer.send_frames(&framed(&body)).await.is_err() {
                return Passed::On;
            }
        }
    }

    async fn nobody(&self, call: Call, is_stranger: bool, waited: Duration, stream: IncomingStream) {
        let voters = self.directory.voters();
        let others: Vec<_> = voters.keys().filter(|name| **name != self.own).map(ToString::to_string).collect();
        let (own, tried) = (&self.own, others.join(", "));
        let why = match is_stranger {
            true => {
                format!("{own} has had no session yet, so the voters take nothing from it: ask one of them ({tried})")
            }
            false => format!("no voter answers {own} (tried {tried})"),
        };
        let refusal = no_leader(waited, &why);
        refuse(&call, refusal, stream).await;
    }
}

/// What to make of a first body after which another voter may be asked. What the client may ask was decided here: that a voter
/// refuses it is about this node.
fn known_better(call: &Call, body: &[u8]) -> Option<Passed> {
    if matches!(call, Call::Events { .. } | Call::Logs { .. }) {
        return match codec::decode::<Item, FRAME_LIMIT>(body).ok()? {
            Item::Failed(Rejection::Forbidden { .. }) => Some(Passed::Stranger),
            item @ Item::Failed(Rejection::NoLeader { .. }) => Some(Passed::Unsure(Poor::Item(item))),
            _ => None,
        };
    }
    match codec::decode::<Answer, FRAME_LIMIT>(body).ok()? {
        Err(Rejection::Forbidden { .. }) => Some(Passed::Stranger),
        answer => call.may_be_answered_better(&answer).then_some(Passed::Unsure(Poor::Answer(answer))),
    }
}

/// Says what there is, and how long all of them were asked for.
async fn say(writer: &mut FrameWriter, poor: Poor, waited: Duration) {
    _ = match poor {
        Poor::Answer(Err(Rejection::NoLeader { waited: _, why })) => {
            writer.send(&Answer::Err(Rejection::NoLeader { waited, why })).await
        }
        Poor::Answer(answer) => writer.send(&answer).await,
        Poor::Item(item) => writer.send(&item).await,
    };
    writer.finish();
}

/// A body as a frame again.
fn framed(body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(body.len() + 4);
    // A body that came in a frame fits one.
    frame.extend_from_slice(&u32::try_from(body.len()).unwrap_or(0).to_le_bytes());
    frame.extend_from_slice(body);
    frame
}

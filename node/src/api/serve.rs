//! One client stream, or one stream of another node: who may ask, and who answers.

use std::sync::Arc;
use std::time::Duration;

use openraft::AsyncRuntime;
use pando_protocol::client::identity::Role;
use pando_protocol::message::{Answer, Call, Item};
use pando_protocol::rejection::Rejection;
use tokio::time::timeout;

use super::permissions::{may_ask, stranger};
use super::{Api, NodeApi};
use crate::peer::{OtherNodes, PeerAnswer, PeerCall};
use crate::transport::IncomingStream;

/// A request has this long to arrive.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

impl NodeApi {
    /// Serves one client stream.
    pub async fn serve_client(self: Arc<Self>, mut stream: IncomingStream) {
        let call = match timeout(REQUEST_LIMIT, stream.reader.expect::<Call>()).await {
            Ok(Ok(call)) => call,
            Ok(Err(error)) => {
                tracing::debug!(peer = %stream.peer, %error, "no request");
                let refusal: Answer = Err(Rejection::BadRequest(error.to_string()));
                _ = stream.writer.send(&refusal).await;
                return stream.writer.finish();
            }
            Err(_) => return,
        };
        if let Err(refused) = may_ask(stream.peer.role, &call) {
            tracing::info!(peer = %stream.peer, "refused: its role does not allow this");
            return refuse(&call, refused, stream).await;
        }
        if !self.holds_state() {
            // What a node asks it asks for a client, and asks the other voters itself.
            let is_relayed = stream.peer.role == Role::Node;
            return if is_relayed { self.newcomer(call, stream).await } else { self.relay(call, stream).await };
        }
        if let Some(node) = stream.peer.node().filter(|node| !self.knows(node)).cloned() {
            tracing::info!(peer = %stream.peer, "refused: this node has no session and is no member");
            return refuse(&call, stranger(&node), stream).await;
        }
        match call {
            Call::Events { after, follow } => self.stream_events(after, follow, stream).await,
            Call::Logs { path, tail, follow } => self.stream_logs(path, tail, follow, stream).await,
            call => {
                let answer = self.answer(call).await;
                if let Err(error) = stream.writer.send(&answer).await {
                    tracing::debug!(peer = %stream.peer, %error, "the answer was not delivered");
                }
                stream.writer.finish();
            }
        }
    }

    /// Serves one stream of another node.
    pub async fn serve_peer(self: Arc<Self>, mut stream: IncomingStream) {
        let Ok(Ok(call)) = timeout(REQUEST_LIMIT, stream.reader.expect::<PeerCall>()).await else { return };
        let answer = match call {
            PeerCall::Lead(call) => self.lead_for_another(call).await,
            PeerCall::Signal { path, signal } => match self.children.signal(path, signal).await {
                Ok(sent) => PeerAnswer::Signalled { incarnation: sent.incarnation, pid: sent.pid },
                Err(error) => PeerAnswer::NotSignalled(error.to_string()),
            },
            PeerCall::Logs { path, tail, follow } => return self.own_logs(path, tail, follow, stream).await,
        };
        _ = stream.writer.send(&answer).await;
        stream.writer.finish();
    }
}

impl<R: AsyncRuntime, N: OtherNodes> Api<R, N> {
    /// Answers a call that has one answer.
    pub(super) async fn answer(&self, call: Call) -> Answer {
        match call {
            Call::Write(write) => self.write(write).await,
            Call::Read { query, freshness } => self.read(query, freshness).await,
            Call::Kill { path, signal } => self.kill(path, signal).await,
            Call::Transfer { to } => self.transfer(to).await,
            Call::Members(change) => self.change_members(change).await,
            Call::Events { .. } | Call::Logs { .. } => {
                Err(Rejection::BadRequest("a stream where one answer was asked".into()))
            }
        }
    }
}

/// Tells a client why it gets nothing, in the shape in which it waits for an answer.
pub(super) async fn refuse(call: &Call, why: Rejection, mut stream: IncomingStream) {
    // A client that does not wait for it any more needs no answer.
    _ = match call {
        Call::Events { .. } | Call::Logs { .. } => stream.writer.send(&Item::Failed(why)).await,
        Call::Write(_) | Call::Read { .. } | Call::Kill { .. } | Call::Transfer { .. } | Call::Members(_) => {
            stream.writer.send(&Answer::Err(why)).await
        }
    };
    stream.writer.finish();
}

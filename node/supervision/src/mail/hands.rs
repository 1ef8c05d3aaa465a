//! What a runner is to be told of the messages that its workers hold: derived from the state, like what should run.

use pando_protocol::ids::{NodeName, SessionId};
use pando_protocol::mail::Hand;

use super::Held;
use crate::cluster::Cluster;

/// The messages that workers under a session hold, those after the hand of this number, in order: at most `bytes` of payloads and
/// headers together, but at least one where there is one. Settled ones are left out.
pub fn hands(cluster: &Cluster, node: &NodeName, session: SessionId, after: u64, bytes: u64) -> Vec<Hand> {
    let Some(standing) = cluster.session(node, session) else { return Vec::new() };
    let (mut found, mut weight) = (Vec::new(), 0);
    for (number, held) in standing.hands.range(after + 1..) {
        let Held { mailbox, message, worker, incarnation, began: _, at: _ } = held;
        let Some(known) = cluster.mailbox(mailbox).and_then(|mailbox| mailbox.messages.get(message)) else { continue };
        // As a frame has it: the worker's path, and the lengths around each header, too.
        weight += known.content.weight() + worker.as_str().len() as u64 + 18 * known.content.headers.len() as u64;
        if weight > bytes && !found.is_empty() {
            break;
        }
        found.push(Hand {
            number: *number,
            worker: worker.clone(),
            incarnation: *incarnation,
            id: known.content.shown_id(*message),
            attempt: known.counted() + 1,
            life: known.life(),
            asks: known.content.asks,
            headers: known.content.headers.clone(),
            payload: known.content.payload.clone(),
        });
    }
    found
}

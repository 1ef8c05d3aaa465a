//! Taking messages in: all of a request or none of it, each id once, within bounds.

use std::sync::Arc;

use pando_protocol::ids::Path;
use pando_protocol::mail::{
    Known, MAX_BATCH, MAX_BATCH_BYTES, MAX_HEADERS, MAX_MAIL_BYTES, MAX_MESSAGE_ID, MAX_PAYLOAD, NewMessage, Sent,
};
use pando_protocol::rejection::Rejection;

use super::{Content, Mailbox, Message, State};
use crate::change::Change;
use crate::cluster::Cluster;
use crate::differences::nearest;
use crate::mutation::{Mutation, broken};

impl Change<'_> {
    /// Puts messages into the mailbox at `to`.
    pub fn send(&mut self, to: &Path, messages: Vec<NewMessage>, asks: bool) -> Result<Sent, Rejection> {
        let mailbox = open_mailbox(self.cluster, to)?;
        check(&messages, asks)?;
        let (known, weight) = sort_out(mailbox, &messages);
        let accepted = (messages.len() - known.len()) as u64;
        room_for(self.cluster, mailbox, to, accepted, weight)?;
        let (at, wall) = (self.now(), self.wall);
        let mailbox = self.mailbox(to);
        let first = mailbox.named + 1;
        let mut is_known = known.iter().peekable();
        for (index, message) in messages.into_iter().enumerate() {
            if is_known.next_if(|known| known.index as usize == index).is_some() {
                continue;
            }
            let NewMessage { id, headers, payload } = message;
            mailbox.named += 1;
            let number = mailbox.named;
            if let Some(id) = &id {
                mailbox.ids.insert(id.clone(), number);
            }
            let content = Arc::new(Content { id, headers, payload, at, wall, asks });
            mailbox.put(number, Message { content, trouble: None, state: State::Fresh });
        }
        mailbox.ledger.enqueued += accepted;
        mailbox.enqueue_rate.count_many(at, accepted);
        self.mail_changed(to);
        Ok(Sent { first, accepted, known })
    }
}

/// The mailbox at `path`, where it takes messages.
pub(super) fn open_mailbox<'c>(cluster: &'c Cluster, path: &Path) -> Result<&'c Mailbox, Rejection> {
    let mailbox = any_mailbox(cluster, path)?;
    if mailbox.closed.is_some() {
        let why = "was taken out of its tree, and only its dead letters are kept: apply a spec that has it, then send";
        return Err(Rejection::WrongState { path: path.clone(), why: why.into() });
    }
    Ok(mailbox)
}

/// The mailbox at `path`, also where only dead letters are left of it.
///
/// # Errors
/// There is none; says which one may be meant.
pub fn any_mailbox<'c>(cluster: &'c Cluster, path: &Path) -> Result<&'c Mailbox, Rejection> {
    if let Some(mailbox) = cluster.mailbox(path) {
        return Ok(mailbox);
    }
    if cluster.member(path).is_none() {
        return Err(Rejection::NoSuchPath { path: path.clone(), nearest: nearest(cluster, path) });
    }
    let of_pool = path.parent().filter(|parent| cluster.mailbox(parent).is_some());
    Err(Rejection::NoMailbox { path: path.clone(), nearest: of_pool })
}

fn check(messages: &[NewMessage], asks: bool) -> Result<(), Rejection> {
    let bytes: usize = messages.iter().map(|message| message.payload.len()).sum();
    if messages.len() > MAX_BATCH {
        return Err(too_many(format!("{} messages in one request", messages.len()), MAX_BATCH));
    }
    if bytes > MAX_BATCH_BYTES {
        return Err(too_many(format!("{bytes} bytes of messages in one request"), MAX_BATCH_BYTES));
    }
    if asks && messages.len() != 1 {
        return Err(Rejection::BadRequest(format!("asking takes one message, and these are {}", messages.len())));
    }
    for (index, message) in (0..).zip(messages) {
        refuse_bad(message).map_err(|why| Rejection::BadMessage { index, why })?;
    }
    Ok(())
}

fn too_many(what: String, limit: usize) -> Rejection {
    Rejection::TooMany { what, limit: limit as u64 }
}

fn refuse_bad(message: &NewMessage) -> Result<(), String> {
    let NewMessage { id, headers, payload } = message;
    if payload.len() > MAX_PAYLOAD {
        return Err(format!("its payload has {} bytes, and at most {MAX_PAYLOAD} are allowed", payload.len()));
    }
    let bytes: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > MAX_HEADERS {
        return Err(format!("its headers have {bytes} bytes, and at most {MAX_HEADERS} are allowed"));
    }
    match id.as_deref() {
        None => Ok(()),
        Some("") => Err("its id is empty: leave the id out, and the mailbox names it".into()),
        Some(id) if id.len() > MAX_MESSAGE_ID => {
            Err(format!("its id has {} bytes, and at most {MAX_MESSAGE_ID} are allowed", id.len()))
        }
        Some(id) if id.starts_with('#') => {
            Err(format!("its id {id:?} begins with #: such ids are given by mailboxes to messages without one"))
        }
        Some(id) if id.contains(char::is_control) => Err(format!("its id {id:?} has a control character in it")),
        Some(_) => Ok(()),
    }
}

/// Those that are known already, in the mailbox or earlier in the request, and what the others weigh.
fn sort_out(mailbox: &Mailbox, messages: &[NewMessage]) -> (Vec<Known>, u64) {
    let (mut known, mut weight, mut next) = (Vec::new(), 0, mailbox.named + 1);
    let mut earlier = std::collections::BTreeMap::new();
    for (index, message) in (0..).zip(messages) {
        let number = message.id.as_ref().and_then(|id| mailbox.ids.get(id).or_else(|| earlier.get(id)).copied());
        if let Some(number) = number.filter(|_| !broken(Mutation::IdsForgotten)) {
            known.push(Known { index, number });
            continue;
        }
        if let Some(id) = &message.id {
            earlier.insert(id.clone(), next);
        }
        next += 1;
        weight += message.weight();
    }
    (known, weight)
}

fn room_for(cluster: &Cluster, mailbox: &Mailbox, path: &Path, count: u64, weight: u64) -> Result<(), Rejection> {
    let full = |why: String| Err(Rejection::MailboxFull { path: path.clone(), why });
    let held = (mailbox.messages.len() + mailbox.dead.len()) as u64;
    let most = u64::from(mailbox.spec.max_messages);
    if held + count > most && !broken(Mutation::BoundsIgnored) {
        let dead = mailbox.dead.len();
        return full(format!("it holds {held} messages, {dead} of them dead letters, and max_messages is {most}"));
    }
    if mailbox.bytes + weight > mailbox.spec.max_bytes && !broken(Mutation::BytesIgnored) {
        let (holds, most) = (mailbox.bytes, mailbox.spec.max_bytes);
        return full(format!("it holds {holds} bytes, the request has {weight}, and max_bytes is {most}"));
    }
    let holds = cluster.head.mail_bytes;
    if holds + weight > MAX_MAIL_BYTES {
        return full(format!("all mailboxes together hold {holds} bytes, and a cluster takes {MAX_MAIL_BYTES}"));
    }
    Ok(())
}

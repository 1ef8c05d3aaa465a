//! Sends many messages to one mailbox, in order: what gathers while one request is under way makes the next one.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::{Client, ClientError};
use crate::ids::Path;
use crate::mail::{MAX_BATCH, MAX_BATCH_BYTES, NewMessage, Sent};
use crate::message::{Change, Changed, MailChanged, Reply};

/// Messages that may wait for a request beyond those in one; more wait in those who send.
const WAITING: usize = MAX_BATCH;

/// Feeds one mailbox. Cheap to clone; messages of all clones keep the order in which they were submitted.
#[derive(Debug, Clone)]
pub struct Producer {
    queue: mpsc::Sender<Waiting>,
}

/// A message was taken in: a majority has it on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// Its number in the mailbox.
    pub number: u64,
    /// Whether it was known already by its id, and was not sent again.
    pub known: bool,
}

/// What will come of a message that was submitted.
#[derive(Debug)]
pub struct Pending(oneshot::Receiver<Result<Receipt, Arc<ClientError>>>);

#[derive(Debug)]
struct Waiting {
    message: NewMessage,
    reply: oneshot::Sender<Result<Receipt, Arc<ClientError>>>,
}

impl Producer {
    /// A producer for the mailbox at `to`. Each request is repeated until `limit` as [`Client::change`] does it, so that every
    /// message is taken in once. It ends with its last clone, once what was submitted is answered.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn new(client: Arc<Client>, to: Path, limit: Duration) -> Self {
        let (queue, waiting) = mpsc::channel(WAITING);
        tokio::spawn(run(client, to, limit, waiting));
        Self { queue }
    }

    /// Sends a message and waits until it is durable.
    ///
    /// # Errors
    /// [`ClientError`]: of the request that carried it, which was refused or failed as a whole.
    pub async fn send(&self, message: NewMessage) -> Result<Receipt, Arc<ClientError>> {
        self.submit(message).await.outcome().await
    }

    /// Submits a message, and returns what will come of it. Waits while [`MAX_BATCH`] others wait.
    pub async fn submit(&self, message: NewMessage) -> Pending {
        let (reply, pending) = oneshot::channel();
        // Its task ends after all its senders.
        _ = self.queue.send(Waiting { message, reply }).await;
        Pending(pending)
    }
}

impl Pending {
    /// Waits until the message is durable.
    ///
    /// # Errors
    /// As [`Producer::send`].
    pub async fn outcome(self) -> Result<Receipt, Arc<ClientError>> {
        self.0.await.unwrap_or_else(|_| {
            Err(Arc::new(ClientError::Unusable("the runtime of this producer has ended: it is not known".into())))
        })
    }
}

async fn run(client: Arc<Client>, to: Path, limit: Duration, mut queue: mpsc::Receiver<Waiting>) {
    let (mut waiting, mut is_open) = (Vec::new(), true);
    while is_open || !waiting.is_empty() {
        let room = MAX_BATCH.saturating_sub(waiting.len());
        if waiting.is_empty() {
            is_open = queue.recv_many(&mut waiting, room).await > 0;
        }
        while waiting.len() < MAX_BATCH
            && let Ok(more) = queue.try_recv()
        {
            waiting.push(more);
        }
        let batch: Vec<Waiting> = waiting.drain(..fits(&waiting)).collect();
        if !batch.is_empty() {
            send(&client, &to, limit, batch).await;
        }
    }
}

/// How many of them go into one request.
fn fits(waiting: &[Waiting]) -> usize {
    let mut bytes = 0;
    let within = waiting.iter().take_while(|one| {
        bytes += one.message.weight();
        bytes <= MAX_BATCH_BYTES as u64
    });
    within.count().max(1).min(waiting.len())
}

async fn send(client: &Client, to: &Path, limit: Duration, batch: Vec<Waiting>) {
    let (messages, replies): (Vec<_>, Vec<_>) = batch.into_iter().map(|one| (one.message, one.reply)).unzip();
    let change = Change::Send { to: to.clone(), messages, asks: false };
    match client.change(change, limit).await {
        Ok(Reply::Changed(Changed { mail: Some(MailChanged::Sent(sent)), .. })) => {
            for (reply, receipt) in replies.into_iter().zip(receipts(sent)) {
                // Whoever submitted it may not care any more.
                _ = reply.send(Ok(receipt));
            }
        }
        Ok(other) => {
            let why = format!("the cluster answered a send with something else: {other:?}");
            fail(replies, ClientError::Unusable(why));
        }
        Err(error) => fail(replies, error),
    }
}

fn fail(replies: Vec<oneshot::Sender<Result<Receipt, Arc<ClientError>>>>, error: ClientError) {
    let error = Arc::new(error);
    for reply in replies {
        _ = reply.send(Err(error.clone()));
    }
}

/// The receipts of a request, in its order.
fn receipts(sent: Sent) -> impl Iterator<Item = Receipt> {
    let Sent { first, accepted: _, known } = sent;
    let (mut next, mut known) = (first, known.into_iter().peekable());
    (0u32..).map(move |index| match known.next_if(|known| known.index == index) {
        Some(known) => Receipt { number: known.number, known: true },
        None => {
            next += 1;
            Receipt { number: next - 1, known: false }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mail::Known;

    #[test]
    fn new_messages_are_numbered_in_order_around_those_that_were_known() {
        let known = vec![Known { index: 1, number: 3 }, Known { index: 3, number: 11 }];
        let numbers: Vec<_> = receipts(Sent { first: 10, accepted: 2, known }).take(4).collect();
        let receipt = |number, known| Receipt { number, known };
        assert_eq!(numbers, [receipt(10, false), receipt(3, true), receipt(11, false), receipt(11, true)]);
    }

    #[test]
    fn a_request_takes_what_fits_and_at_least_one() {
        let waiting = |bytes: &[usize]| -> Vec<Waiting> {
            let one = |bytes: &usize| Waiting { message: NewMessage::of(vec![0; *bytes]), reply: oneshot::channel().0 };
            bytes.iter().map(one).collect()
        };
        assert_eq!(fits(&waiting(&[])), 0);
        assert_eq!(fits(&waiting(&[1, 2, 3])), 3);
        assert_eq!(fits(&waiting(&[MAX_BATCH_BYTES + 1, 1])), 1, "the cluster says what is wrong with it");
        assert_eq!(fits(&waiting(&[MAX_BATCH_BYTES - 1_000, 1, 1])), 3);
        assert_eq!(fits(&waiting(&[MAX_BATCH_BYTES - 300, 1, 1])), 2);
    }
}

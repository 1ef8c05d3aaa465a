//! What is asked of mailboxes.

use std::time::Duration;

use pando_protocol::ids::Path;
use pando_protocol::mail::{DeadLetterRow, Letters, MailboxRow, NewMessage, Sent};
use pando_protocol::message::{Asked, Change, Found, Freshness, MailChanged, Query, Reply};

use super::{CALL_LIMIT, Connection, Read, SHORTEST_CALL, another_question, unexpected};
use crate::exit::Failure;

/// Some dead letters of a mailbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SomeLetters {
    /// They, in order of number.
    pub letters: Vec<DeadLetterRow>,
    /// How many are meant in all.
    pub total: u64,
}

impl Connection {
    /// The mailboxes at and below a path, or all.
    ///
    /// # Errors
    /// The cluster cannot be reached, or refuses.
    pub async fn mailboxes(&self, at: Option<Path>, freshness: Freshness) -> Result<Read<Vec<MailboxRow>>, Failure> {
        let take = |found| if let Found::Mailboxes(rows) = found { Some(rows) } else { None };
        self.read(Query::Mailboxes(at), freshness, take).await
    }

    /// The dead letters of a mailbox after the one with the number `after`: as many as one answer holds, none where there are no
    /// more. `whole` asks for payloads too.
    ///
    /// # Errors
    /// The cluster cannot be reached, or refuses.
    pub async fn dead_letters(
        &self,
        of: &Path,
        letters: &Letters,
        after: u64,
        whole: bool,
        freshness: Freshness,
    ) -> Result<Read<SomeLetters>, Failure> {
        let (of, letters) = (of.clone(), letters.clone());
        let query = Query::DeadLetters { of, letters, after, limit: u32::MAX, whole };
        self.read(query, freshness, some_letters).await
    }

    /// One dead letter with its payload.
    ///
    /// # Errors
    /// The cluster cannot be reached, or refuses.
    pub async fn dead_letter(
        &self,
        of: Path,
        id: String,
        freshness: Freshness,
    ) -> Result<Read<DeadLetterRow>, Failure> {
        let take = |found| some_letters(found)?.letters.into_iter().next();
        self.read(Query::DeadLetter { of, id }, freshness, take).await
    }

    /// What became of a message that was sent with the wish for a reply.
    ///
    /// # Errors
    /// The cluster cannot be reached, or refuses.
    pub async fn asked(&self, of: Path, number: u64) -> Result<Asked, Failure> {
        let take = |found| if let Found::Asked(asked) = found { Some(asked) } else { None };
        let read = self.read(Query::Asked { of, number }, Freshness::Linearizable, take).await?;
        // Whoever answers without a leader may not know the message yet.
        if read.view.confirmed {
            Ok(read.value)
        } else {
            Err(Failure::unreached(anyhow::anyhow!(super::unconfirmed(&read.view))))
        }
    }

    /// Puts messages into a mailbox, all or none. A retry sends once. Says nothing of progress.
    ///
    /// # Errors
    /// The cluster cannot be reached, or refuses.
    pub async fn send(
        &self,
        to: &Path,
        messages: Vec<NewMessage>,
        asks: bool,
        limit: Duration,
    ) -> Result<Sent, Failure> {
        let change = Change::Send { to: to.clone(), messages, asks };
        match self.client.change(change, limit.clamp(SHORTEST_CALL, CALL_LIMIT)).await? {
            Reply::Changed(changed) => match changed.mail {
                Some(MailChanged::Sent(sent)) => Ok(sent),
                Some(MailChanged::Moved(_)) | None => Err(another_question()),
            },
            other => Err(unexpected(&other)),
        }
    }

    /// Redrives or purges messages, and gives how many.
    ///
    /// # Errors
    /// The cluster cannot be reached, or refuses.
    pub async fn move_messages(&self, change: Change) -> Result<u64, Failure> {
        match self.change(change).await?.mail {
            Some(MailChanged::Moved(count)) => Ok(count),
            Some(MailChanged::Sent(_)) | None => Err(another_question()),
        }
    }
}

fn some_letters(found: Found) -> Option<SomeLetters> {
    if let Found::DeadLetters { letters, total } = found { Some(SomeLetters { letters, total }) } else { None }
}

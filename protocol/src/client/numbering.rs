//! Under which id and number a change is sent, so that a retry applies once.
//!
//! The cluster takes up a client with its number 1, and answers *too late to tell* to a higher one of a client that it does not
//! know: it may have known and forgotten it. So the first change of a client goes alone, since others might overtake it; one that
//! was not taken up begins again under another id; and so does one that was silent for long.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::ClientError;
use crate::ids::ClientId;
use crate::message::{Change, Write};

/// A client that changed nothing for so long takes another id: the cluster forgets one after ten minutes of its own time.
const SILENCE: Duration = Duration::from_secs(300);

/// What numbers the changes of a client.
#[derive(Debug)]
pub(super) struct Numbering(Mutex<Numbers>);

#[derive(Debug)]
struct Numbers {
    id: ClientId,
    standing: Standing,
    last: u64,
    unanswered: BTreeSet<u64>,
    used: Instant,
}

/// What the cluster knows of the id.
#[derive(Debug)]
enum Standing {
    /// Nothing.
    New,
    /// Its first change is under way. It ends when the sender at the other end is gone.
    Introduced(watch::Receiver<()>),
    /// That there is such a client.
    Known,
}

/// The number of a change: it counts as unanswered until this is dropped.
#[derive(Debug)]
pub(super) struct Numbered<'n> {
    numbering: &'n Numbering,
    client: ClientId,
    sequence: u64,
    lowest_unanswered: u64,
    /// For the first one: whoever waits for it sees the end of this.
    first: Option<watch::Sender<()>>,
    is_known: bool,
}

impl Numbering {
    /// Begins with this id.
    pub(super) fn new(id: ClientId) -> Self {
        let (standing, unanswered) = (Standing::New, BTreeSet::new());
        Self(Mutex::new(Numbers { id, standing, last: 0, unanswered, used: Instant::now() }))
    }

    /// The next number; waits while the first change is under way. `draw` gives another id where one is needed.
    pub(super) async fn next(&self, draw: impl Fn() -> Result<u128, ClientError>) -> Numbered<'_> {
        loop {
            let mut first = match self.begin(&draw) {
                Ok(numbered) => return numbered,
                Err(first) => first,
            };
            // Nothing is ever sent: this ends with the sender.
            while first.changed().await.is_ok() {}
        }
    }

    /// The next number, or what to wait for before there is one.
    fn begin(&self, draw: impl Fn() -> Result<u128, ClientError>) -> Result<Numbered<'_>, watch::Receiver<()>> {
        let mut numbers = self.lock();
        if let Standing::Introduced(first) = &numbers.standing {
            return Err(first.clone());
        }
        let is_silent = numbers.unanswered.is_empty() && numbers.used.elapsed() >= SILENCE;
        if (is_silent || matches!(numbers.standing, Standing::New))
            && numbers.last > 0
            && let Ok(id) = draw()
        {
            (numbers.id, numbers.standing, numbers.last) = (ClientId(id), Standing::New, 0);
            numbers.unanswered.clear();
        }
        let first = matches!(numbers.standing, Standing::New).then(|| {
            let (first, waiting) = watch::channel(());
            numbers.standing = Standing::Introduced(waiting);
            first
        });
        numbers.last += 1;
        numbers.used = Instant::now();
        let (client, sequence) = (numbers.id, numbers.last);
        numbers.unanswered.insert(sequence);
        let lowest_unanswered = numbers.unanswered.first().copied().unwrap_or(sequence);
        Ok(Numbered { numbering: self, client, sequence, lowest_unanswered, first, is_known: false })
    }

    fn lock(&self) -> MutexGuard<'_, Numbers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Numbered<'_> {
    /// The change with its number.
    pub(super) fn write(&self, change: Change) -> Write {
        let Self { client, sequence, lowest_unanswered, .. } = self;
        Write { client: *client, sequence: *sequence, lowest_unanswered: *lowest_unanswered, change }
    }

    /// The cluster answered that the change is made: it knows the client.
    pub(super) fn is_known(&mut self) {
        self.is_known = true;
    }
}

impl Drop for Numbered<'_> {
    fn drop(&mut self) {
        let mut numbers = self.numbering.lock();
        if numbers.id == self.client {
            numbers.unanswered.remove(&self.sequence);
            numbers.used = Instant::now();
            if self.first.is_some() {
                numbers.standing = if self.is_known { Standing::Known } else { Standing::New };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn numbers(numbered: &Numbered<'_>) -> (u128, u64, u64) {
        let Write { client, sequence, lowest_unanswered, change: _ } =
            numbered.write(Change::Delete("t".parse().unwrap()));
        (client.0, sequence, lowest_unanswered)
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_change_goes_alone_and_others_overlap() {
        let numbering = Numbering::new(ClientId(7));
        let none = || Err(ClientError::Unusable("no other id is needed".into()));
        let mut first = numbering.next(none).await;
        assert_eq!(numbers(&first), (7, 1, 1));
        let second = tokio::time::timeout(Duration::from_secs(60), numbering.next(none)).await;
        assert!(second.is_err(), "it would overtake the first");
        first.is_known();
        let (second, ()) = tokio::join!(numbering.next(none), async { drop(first) });
        let third = numbering.next(none).await;
        assert_eq!((numbers(&second), numbers(&third)), ((7, 2, 2), (7, 3, 2)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_was_not_taken_up_or_was_silent_for_long_has_another_id() {
        let numbering = Numbering::new(ClientId(7));
        let drawn = AtomicU64::new(10);
        let draw = || Ok(u128::from(drawn.fetch_add(1, Ordering::SeqCst)));
        drop(numbering.next(draw).await);
        let mut again = numbering.next(draw).await;
        assert_eq!(numbers(&again), (10, 1, 1), "the first one found no leader");
        again.is_known();
        drop(again);
        let slow = numbering.next(draw).await;
        tokio::time::advance(SILENCE).await;
        assert_eq!(numbers(&numbering.next(draw).await), (10, 3, 2), "one is under way");
        drop(slow);
        tokio::time::advance(SILENCE).await;
        assert_eq!(numbers(&numbering.next(draw).await), (11, 1, 1));
    }
}

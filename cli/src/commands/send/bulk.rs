//! Many messages: batches, several under way at once, until all are taken in or one is not.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pando_protocol::ids::Path;
use pando_protocol::mail::Sent;
use pando_protocol::rejection::Rejection;
use tokio::time::Instant;

use super::lines::{Batch, Lines};
use super::messages;
use super::taken::Taken;
use crate::connection::{CALL_LIMIT, Connection};
use crate::exit::Failure;
use crate::terminal::Progress;

/// Batches under way at once: enough that the leader always has one to write while others travel.
const UNDER_WAY: usize = 8;
/// The line of progress is renewed this often.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// Sends the lines, one batch after the other where they are to stay in order, and says how far that came where it does not come to the end.
///
/// # Errors
/// The input is wrong, or the cluster refuses some of it or cannot be reached; with what the mailbox has, and how to go on.
pub async fn send(connection: &Connection, path: &Path, mut lines: Lines, in_order: bool) -> Result<Taken, Failure> {
    let skipped = lines.skipped();
    let mut sending = Sending::new(connection, path, if in_order { 1 } else { UNDER_WAY });
    let ended = sending.all(&mut lines).await;
    let mut taken = sending.taken;
    taken.took = sending.begun.elapsed();
    match ended {
        Ok(()) => Ok(taken),
        Err(failure) => Err(taken.tell(failure, path, skipped)),
    }
}

/// A batch, and what became of it.
type Answered = (Batch, Result<Sent, Failure>);

struct Sending<'c> {
    connection: &'c Connection,
    path: &'c Path,
    /// Most batches under way at once.
    under_way: usize,
    taken: Taken,
    /// Batches for which there was no room as a whole.
    too_large: Vec<Batch>,
    begun: Instant,
    progress: Progress,
    shown: Instant,
}

impl<'c> Sending<'c> {
    fn new(connection: &'c Connection, path: &'c Path, under_way: usize) -> Self {
        let (taken, too_large, begun) = (Taken::default(), Vec::new(), Instant::now());
        Self { connection, path, under_way, taken, too_large, begun, progress: Progress::new(), shown: begun }
    }

    /// Sends all lines.
    async fn all(&mut self, lines: &mut Lines) -> Result<(), Failure> {
        loop {
            let is_over = self.until_full(lines).await?;
            self.fill_up().await?;
            if is_over {
                return Ok(());
            }
        }
    }

    /// Sends lines until they are over, and tells whether they are, or until a batch finds no room. Nothing is under way then.
    async fn until_full(&mut self, lines: &mut Lines) -> Result<bool, Failure> {
        let mut under_way = FuturesUnordered::new();
        let mut ended = None;
        loop {
            let wants_more = ended.is_none() && self.too_large.is_empty() && under_way.len() < self.under_way;
            tokio::select! {
                biased;
                Some(answered) = under_way.next(), if !under_way.is_empty() => {
                    // What went wrong first tells most.
                    if let (Err(failure), None | Some(Ok(()))) = (self.note(answered), &ended) {
                        ended = Some(Err(failure));
                    }
                }
                next = lines.next_batch(), if wants_more => match next {
                    Ok(Some(batch)) => under_way.push(ask(self.connection, self.path, batch)),
                    Ok(None) => ended = Some(Ok(())),
                    Err(failure) => ended = Some(Err(failure)),
                },
                else => break,
            }
        }
        ended.transpose().map(|ended| ended.is_some())
    }

    /// Notes what became of a batch.
    fn note(&mut self, (batch, answer): Answered) -> Result<(), Failure> {
        match answer {
            Ok(sent) => {
                self.taken.add(batch.first, batch.last(), sent.accepted, sent.known.len() as u64);
                self.show();
                Ok(())
            }
            Err(failure) if matches!(failure.rejection(), Some(Rejection::MailboxFull { .. })) => {
                self.too_large.push(batch);
                Ok(())
            }
            Err(failure) => Err(self.name_line(&batch, failure)),
        }
    }

    /// Tells of a line what the cluster tells of a message in its request.
    fn name_line(&mut self, batch: &Batch, failure: Failure) -> Failure {
        match failure.rejection() {
            Some(Rejection::BadMessage { index, why }) => {
                let line = batch.first + index;
                Failure::refused(anyhow::anyhow!("line {line} is refused with those beside it: {why}"))
            }
            Some(Rejection::Unknown) => {
                self.taken.add_unsure(batch.first, batch.last());
                failure
            }
            _ => failure,
        }
    }

    /// Sends what found no room as a whole in ever smaller parts, in order, until not one message more fits.
    async fn fill_up(&mut self) -> Result<(), Failure> {
        let mut parts = std::mem::take(&mut self.too_large);
        parts.sort_by_key(|part| std::cmp::Reverse(part.first));
        while let Some(part) = parts.pop() {
            let (part, answer) = ask(self.connection, self.path, part).await;
            let is_full = |failure: &Failure| matches!(failure.rejection(), Some(Rejection::MailboxFull { .. }));
            match answer {
                Err(failure) if is_full(&failure) && part.messages.len() == 1 => return Err(failure),
                Err(failure) if is_full(&failure) => {
                    let (first, second) = part.halves();
                    parts.extend([second, first]);
                }
                answer => self.note((part, answer))?,
            }
        }
        Ok(())
    }

    fn show(&mut self) {
        if self.shown.elapsed() < PROGRESS_EVERY {
            return;
        }
        self.shown = Instant::now();
        let (sent, rate) = (messages(self.taken.accepted + self.taken.known), self.taken.rate(self.begun.elapsed()));
        self.progress.show(&format!("{sent} sent to {} ({rate}/s)", self.path));
    }
}

async fn ask(connection: &Connection, path: &Path, batch: Batch) -> Answered {
    let answer = connection.send(path, batch.messages.clone(), false, CALL_LIMIT).await;
    (batch, answer)
}

//! The lines of a file as batches of messages: as many in each as are there and fit.

use std::io::{BufRead, BufReader, Read};
use std::path::Path as FilePath;
use std::sync::Arc;

use anyhow::anyhow;
use pando_protocol::mail::{Headers, MAX_PAYLOAD, NewMessage};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::what::{self, Labels};
use crate::exit::Failure;

/// Most messages in a batch: large enough that an fsync is shared by many, small enough that one does not hold up others.
const BATCH: usize = 1_000;
/// Most bytes in a batch of more than one message.
const BATCH_BYTES: u64 = 256 << 10;
/// Lines that are read ahead. A slow reader is waited for line by line, so that what comes from a pipe is sent when it comes.
const READ_AHEAD: usize = 8 * BATCH;

/// Consecutive lines, each a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The number of its first line, from 1.
    pub first: u64,
    /// A message for each line.
    pub messages: Vec<NewMessage>,
}

impl Batch {
    /// The number of its last line.
    pub fn last(&self) -> u64 {
        self.first + self.messages.len() as u64 - 1
    }

    /// Its two halves; the first is the larger one.
    pub fn halves(mut self) -> (Self, Self) {
        let half = self.messages.len().div_ceil(2);
        let second = Self { first: self.first + half as u64, messages: self.messages.split_off(half) };
        (self, second)
    }
}

/// A line with its number.
type Line = (u64, NewMessage);

/// The lines of a file, read by a thread of its own.
pub struct Lines {
    coming: Receiver<Result<Line, Failure>>,
    /// Read, and too much for the batch before.
    held: Option<Line>,
    /// What went wrong behind the lines that came before it.
    failed: Option<Failure>,
    skipped: u64,
}

impl Lines {
    /// Those of a file after the first `skip`; `-` is standard input.
    ///
    /// # Errors
    /// It cannot be opened, or the labels do not fit lines.
    pub fn open(file: &FilePath, skip: u64, labels: Labels) -> Result<Self, Failure> {
        let maker = Maker::new(labels)?;
        let source = what::open(file)?;
        let (out, coming) = channel(READ_AHEAD);
        let file = file.to_owned();
        std::thread::spawn(move || read(&file, BufReader::new(source), skip, &maker, &out));
        Ok(Self { coming, held: None, failed: None, skipped: skip })
    }

    /// How many lines were left out.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Waits for a line, and takes with it what is there and fits. `None` at the end. Cancel-safe.
    ///
    /// # Errors
    /// The file cannot be read on, or has a line that is too long; after the lines before that.
    pub async fn next_batch(&mut self) -> Result<Option<Batch>, Failure> {
        if let Some(failure) = self.failed.take() {
            return Err(failure);
        }
        let (first, message) = match self.held.take() {
            Some(line) => line,
            None => match self.coming.recv().await {
                None => return Ok(None),
                Some(line) => line?,
            },
        };
        let mut bytes = message.weight();
        let mut batch = Batch { first, messages: vec![message] };
        while batch.messages.len() < BATCH {
            match self.coming.try_recv() {
                Ok(Ok((number, message))) if bytes + message.weight() > BATCH_BYTES => {
                    self.held = Some((number, message));
                    break;
                }
                Ok(Ok((_, message))) => {
                    bytes += message.weight();
                    batch.messages.push(message);
                }
                Ok(Err(failure)) => {
                    self.failed = Some(failure);
                    break;
                }
                Err(_) => break,
            }
        }
        Ok(Some(batch))
    }
}

/// Makes messages of lines.
struct Maker {
    id: Option<String>,
    headers: Headers,
}

impl Maker {
    fn new(labels: Labels) -> Result<Self, Failure> {
        let headers = labels.headers()?;
        match labels.id {
            Some(id) if !id.contains(PLACE) => Err(Failure::usage(anyhow!(
                "--id {id:?} would give every line the same id, and only the first would be sent: put {PLACE} where the number of the \
                 line belongs, such as --id '{id}-{PLACE}'"
            ))),
            id => Ok(Self { id, headers }),
        }
    }

    fn message(&self, number: u64, line: Vec<u8>) -> NewMessage {
        let id = self.id.as_ref().map(|id| Arc::from(id.replace(PLACE, &number.to_string())));
        NewMessage { id, headers: self.headers.clone(), payload: line.into() }
    }
}

/// Stands in an id for the number of the line.
const PLACE: &str = "{}";

fn read(file: &FilePath, mut source: impl BufRead, skip: u64, maker: &Maker, out: &Sender<Result<Line, Failure>>) {
    for number in 1.. {
        let line = match next_line(&mut source) {
            Ok(Some(line)) if line.len() > MAX_PAYLOAD => {
                let too_long =
                    anyhow!("line {number} of {} has more than the {MAX_PAYLOAD} bytes of a message", what::name(file));
                Err(Failure::usage(too_long))
            }
            Ok(Some(_)) if number <= skip => continue,
            Ok(Some(line)) => Ok((number, maker.message(number, line))),
            Ok(None) => return,
            Err(error) => Err(what::unreadable(file, &error)),
        };
        let is_over = line.is_err();
        // Nobody waits for more where the other side has given up.
        if out.blocking_send(line).is_err() || is_over {
            return;
        }
    }
}

/// The next line without its end; one that is too long is cut behind the first byte too many.
fn next_line(source: &mut impl BufRead) -> std::io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let most = MAX_PAYLOAD as u64 + 2;
    if source.by_ref().take(most).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    Ok(Some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn batches(text: &[u8], skip: u64, id: Option<&str>) -> Result<Vec<Batch>, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("lines");
        std::fs::write(&file, text).unwrap();
        let labels = Labels { id: id.map(str::to_owned), headers: Vec::new() };
        let mut lines = Lines::open(&file, skip, labels)?;
        let mut all = Vec::new();
        while let Some(batch) = lines.next_batch().await? {
            all.push(batch);
        }
        Ok(all)
    }

    fn texts(batches: &[Batch]) -> Vec<String> {
        let messages = batches.iter().flat_map(|batch| &batch.messages);
        messages.map(|message| String::from_utf8_lossy(message.payload.bytes()).into_owned()).collect()
    }

    #[tokio::test]
    async fn each_line_is_a_message_also_an_empty_one_and_the_last_needs_no_end() {
        let all = batches(b"one\n\nthree", 0, None).await.unwrap();
        assert_eq!(texts(&all), ["one", "", "three"]);
        let rest = batches(b"one\n\nthree\n", 2, None).await.unwrap();
        assert_eq!((texts(&rest), rest[0].first, rest[0].last()), (vec!["three".to_owned()], 3, 3));
        assert_eq!(batches(b"", 0, None).await.unwrap(), []);
    }

    #[tokio::test]
    async fn lines_are_named_by_their_numbers_whatever_is_left_out() {
        let all = batches(b"a\nb\nc\n", 1, Some("order-{}")).await.unwrap();
        let ids: Vec<_> = all.iter().flat_map(|batch| &batch.messages).map(|message| message.id.clone()).collect();
        assert_eq!(ids, [Some("order-2".into()), Some("order-3".into())]);
        let refused = batches(b"a\n", 0, Some("order")).await.unwrap_err().error.unwrap().to_string();
        assert!(refused.contains("--id 'order-{}'"), "{refused}");
    }

    #[tokio::test]
    async fn batches_are_bounded_in_messages_and_bytes_and_follow_one_another() {
        let text = format!("{}\n", "x".repeat(999)).repeat(3_000);
        let all = batches(text.as_bytes(), 0, None).await.unwrap();
        let mut next = 1;
        for batch in &all {
            assert_eq!(batch.first, next);
            assert!(batch.messages.len() <= BATCH);
            assert!(batch.messages.iter().map(NewMessage::weight).sum::<u64>() <= BATCH_BYTES);
            next = batch.last() + 1;
        }
        assert_eq!(next, 3_001);
        let large = batches(&vec![b'x'; MAX_PAYLOAD], 0, None).await.unwrap();
        assert_eq!(large[0].messages[0].payload.len(), MAX_PAYLOAD);
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_named_after_those_before_it() {
        let mut text = b"one\ntwo\n".to_vec();
        text.extend(vec![b'x'; MAX_PAYLOAD + 1]);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("lines");
        std::fs::write(&file, text).unwrap();
        let mut lines = Lines::open(&file, 0, Labels::default()).unwrap();
        let (mut seen, mut failure) = (0, None);
        while failure.is_none() {
            match lines.next_batch().await {
                Ok(Some(batch)) => seen += batch.messages.len(),
                Ok(None) => panic!("the line was taken"),
                Err(error) => failure = Some(error),
            }
        }
        let text = failure.unwrap().error.unwrap().to_string();
        assert!(
            seen == 2 && text.contains("line 3 of ") && text.contains("more than the 1048576 bytes"),
            "{seen} {text}"
        );
    }

    #[test]
    fn halves_keep_the_numbers_of_their_lines() {
        let messages = ["a", "b", "c"].map(NewMessage::of).to_vec();
        let (first, second) = Batch { first: 11, messages }.halves();
        assert_eq!((first.first, first.last(), second.first, second.last()), (11, 12, 13, 13));
    }
}

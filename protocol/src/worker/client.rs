//! The worker's side in Rust.
//!
//! ```text
//!   Worker::connect() ── run(handle) ──► a future a message, as many at once as wanted
//!                  └──── next(), started(), done(), failed(), returned(): the same by hand
//! ```

use std::collections::VecDeque;
use std::env;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::net::UnixStream;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::{FromWorker, Line, Lines, MAX_LINE_TO_WORKER, Message, ToWorker};
use crate::mail::{MAX_FAILURE, MAX_PAYLOAD, Payload};

/// The variable that holds the path of the socket.
pub const SOCKET_VARIABLE: &str = "PANDO_SOCKET";

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// Lines that were said wait for company up to this many bytes.
const WRITE_BYTES: usize = 64 << 10;

/// Why a worker cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// There is no socket.
    #[error("{SOCKET_VARIABLE} is not set: a worker is a child of Pando whose spec has a mailbox")]
    NoSocket,
    /// Nobody answers there.
    #[error("cannot connect to {path}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The socket failed.
    #[error("cannot {what} the node")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The node says what no node says.
    #[error("the node says what this worker does not understand: {0}")]
    Misunderstood(String),
    /// The node could not take a line of this worker.
    #[error("the node refused a line of this worker: {0}")]
    Refused(String),
}

/// What is told to whoever asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reply(Option<Payload>);

/// Why a message was not handled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    error: String,
    retry: bool,
}

impl Failure {
    /// It may be handled another time: the attempt is charged.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self { error: error.to_string(), retry: true }
    }

    /// It can never be handled: it is set aside at once.
    pub fn reject(error: impl fmt::Display) -> Self {
        Self { error: error.to_string(), retry: false }
    }
}

/// Any error is a failure that may pass.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::retry(error)
    }
}

impl From<()> for Reply {
    fn from((): ()) -> Self {
        Self(None)
    }
}

impl From<&str> for Reply {
    fn from(text: &str) -> Self {
        Self(Some(text.into()))
    }
}

impl From<String> for Reply {
    fn from(text: String) -> Self {
        text.into_bytes().into()
    }
}

impl From<Vec<u8>> for Reply {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Some(bytes.into()))
    }
}

impl From<Option<Vec<u8>>> for Reply {
    fn from(bytes: Option<Vec<u8>>) -> Self {
        Self(bytes.map(Into::into))
    }
}

impl From<Payload> for Reply {
    fn from(payload: Payload) -> Self {
        Self(Some(payload))
    }
}

/// Says from within a long handling that it goes on.
#[derive(Debug, Clone)]
pub struct Progress(mpsc::UnboundedSender<String>);

impl Progress {
    /// The handling of this message goes on: its timeout counts from now again.
    pub fn say(&self, id: &str) {
        // Nobody hears it where the worker has ended.
        _ = self.0.send(id.to_owned());
    }
}

/// A worker's connection to its node.
///
/// ```no_run
/// use pando_protocol::worker::{Failure, Worker};
///
/// # #[tokio::main(flavor = "current_thread")]
/// async fn main() -> anyhow::Result<()> {
///     let worker = Worker::connect().await?;
///     worker.starts(true).prefetch(100).run(async |message| {
///         let order = str::from_utf8(message.payload.bytes()).map_err(Failure::reject)?;
///         println!("{order}, attempt {}", message.attempt);
///         Ok(format!("shipped {order}"))
///     }).await?;
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Worker {
    stream: UnixStream,
    lines: Lines,
    waiting: VecDeque<Message>,
    /// Lines that were said and not written, from `written` on.
    said: Vec<u8>,
    written: usize,
    starts: bool,
    prefetch: Option<u32>,
    concurrency: usize,
    is_ready: bool,
    is_over: bool,
    progress: (mpsc::UnboundedSender<String>, mpsc::UnboundedReceiver<String>),
}

impl Worker {
    /// Connects to the node that runs this process.
    ///
    /// # Errors
    /// This is no worker, or its node does not answer.
    pub async fn connect() -> Result<Self, WorkerError> {
        let path = env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty()).ok_or(WorkerError::NoSocket)?;
        Self::connect_to(Path::new(&path)).await
    }

    /// Connects to a socket that another way than [`SOCKET_VARIABLE`] led to.
    ///
    /// # Errors
    /// Nobody answers there.
    pub async fn connect_to(path: &Path) -> Result<Self, WorkerError> {
        let connected = UnixStream::connect(path).await;
        let stream = connected.map_err(|source| WorkerError::Connect { path: path.to_owned(), source })?;
        Ok(Self {
            stream,
            lines: Lines::of(MAX_LINE_TO_WORKER),
            waiting: VecDeque::new(),
            said: Vec::new(),
            written: 0,
            starts: false,
            prefetch: None,
            concurrency: 1,
            is_ready: false,
            is_over: false,
            progress: mpsc::unbounded_channel(),
        })
    }

    /// Whether it says when it starts to work on a message. [`Self::run`] then does; whoever calls [`Self::next`] says
    /// [`Self::started`]. Default false: it gets one message at a time.
    pub fn starts(mut self, starts: bool) -> Self {
        self.starts = starts;
        self
    }

    /// Most messages that it holds at once, at least 1; needs [`Self::starts`]. Default: what the mailbox says.
    pub fn prefetch(mut self, prefetch: u32) -> Self {
        self.prefetch = Some(prefetch.max(1));
        self
    }

    /// Most messages that [`Self::run`] works on at once, at least 1. Default 1. A crash with several started accuses all of
    /// them, and each is tried alone after it.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency.max(1);
        self
    }

    /// A way to say from within a handling that it goes on.
    pub fn progress(&self) -> Progress {
        Progress(self.progress.0.clone())
    }

    /// Handles messages until the node says stop, SIGTERM comes, or the node is gone. What is being handled then is finished, and
    /// the rest given back.
    ///
    /// # Errors
    /// The connection failed, or one side does not keep to the protocol.
    pub async fn run<H, F, R>(mut self, handle: H) -> Result<(), WorkerError>
    where
        H: Fn(Message) -> F,
        F: Future<Output = Result<R, Failure>>,
        R: Into<Reply>,
    {
        let mut terminated =
            signal(SignalKind::terminate()).map_err(|source| WorkerError::Io { what: "hear from", source })?;
        let mut working = FuturesUnordered::new();
        self.say_ready();
        loop {
            let mut begun = Vec::new();
            while working.len() + begun.len() < self.concurrency
                && let Some(message) = self.waiting.pop_front()
            {
                if self.starts {
                    self.started(&message.id);
                }
                begun.push(message);
            }
            // Before any of them is worked on: a crash must find the node told.
            self.flush().await?;
            for message in begun {
                let id = message.id.clone();
                working.push(handle(message).map(|outcome| (id, outcome.map(Into::into))));
            }
            if self.is_over && working.is_empty() {
                return Ok(());
            }
            tokio::select! {
                biased;
                Some((id, outcome)) = working.next() => {
                    self.settle(&id, outcome);
                    while let Some(Some((id, outcome))) = working.next().now_or_never() {
                        self.settle(&id, outcome);
                    }
                }
                Some(id) = self.progress.1.recv() => self.say(&FromWorker::Progress { id }),
                () = heard(&mut terminated), if !self.is_over => self.give_back(),
                read = read(&self.stream, &mut self.lines), if !self.is_over => self.take(read)?,
            }
        }
    }

    /// The next message. `None`: stop, or the node is gone; what had come and was not taken is given back.
    ///
    /// # Errors
    /// The connection failed, or one side does not keep to the protocol.
    pub async fn next(&mut self) -> Result<Option<Message>, WorkerError> {
        self.say_ready();
        loop {
            if let Some(message) = self.waiting.pop_front() {
                return Ok(Some(message));
            }
            self.flush().await?;
            if self.is_over {
                return Ok(None);
            }
            let read = read(&self.stream, &mut self.lines).await;
            self.take(read)?;
        }
    }

    /// It works on this one from now on. [`Self::flush`] before it does: a crash must find the node told.
    pub fn started(&mut self, id: &str) {
        self.say(&FromWorker::Started { id: id.to_owned() });
    }

    /// It is handled. A reply that is larger than [`MAX_PAYLOAD`] is a failure.
    pub fn done(&mut self, id: &str, reply: impl Into<Reply>) {
        let Reply(reply) = reply.into();
        if let Some(length) = reply.as_ref().map(Payload::len).filter(|length| *length > MAX_PAYLOAD) {
            return self.failed(id, &Failure::retry(format_args!("a reply of {length} bytes: at most {MAX_PAYLOAD}")));
        }
        self.say(&FromWorker::Done { ids: vec![id.to_owned()], reply });
    }

    /// It could not be handled.
    pub fn failed(&mut self, id: &str, Failure { error, retry }: &Failure) {
        let end = error.floor_char_boundary(MAX_FAILURE);
        self.say(&FromWorker::Failed { id: id.to_owned(), error: error[..end].to_owned(), retry: *retry });
    }

    /// It was not worked on: another worker gets it.
    pub fn returned(&mut self, id: &str) {
        self.say(&FromWorker::Returned { ids: vec![id.to_owned()] });
    }

    /// Writes what was said. [`Self::next`] does so before it waits.
    ///
    /// # Errors
    /// The node does not hear any more.
    pub async fn flush(&mut self) -> Result<(), WorkerError> {
        while self.written < self.said.len() {
            match self.try_write().await {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(source) => return Err(WorkerError::Io { what: "speak to", source }),
            }
        }
        self.said.clear();
        self.written = 0;
        Ok(())
    }

    async fn try_write(&self) -> io::Result<usize> {
        self.stream.writable().await?;
        self.stream.try_write(&self.said[self.written..])
    }

    fn say_ready(&mut self) {
        if !std::mem::replace(&mut self.is_ready, true) {
            self.say(&FromWorker::Ready { starts: self.starts, prefetch: self.prefetch });
        }
    }

    fn settle(&mut self, id: &str, outcome: Result<Reply, Failure>) {
        match outcome {
            Ok(reply) => self.done(id, reply),
            Err(failure) => self.failed(id, &failure),
        }
    }

    /// Whoever says much without [`Self::flush`] keeps it in memory; what the node holds for this worker bounds it.
    fn say(&mut self, word: &FromWorker) {
        word.write(&mut self.said);
        if self.said.len() - self.written >= WRITE_BYTES
            && let Ok(count) = self.stream.try_write(&self.said[self.written..])
        {
            self.written += count;
        }
    }

    /// Nothing more is worked on: what waits goes back.
    fn give_back(&mut self) {
        self.is_over = true;
        let ids: Vec<String> = self.waiting.drain(..).map(|message| message.id).collect();
        // In a few lines: none may be too long.
        for ids in ids.chunks(100) {
            self.say(&FromWorker::Returned { ids: ids.to_vec() });
        }
    }

    fn take(&mut self, read: io::Result<usize>) -> Result<(), WorkerError> {
        if read.map_err(|source| WorkerError::Io { what: "hear from", source })? == 0 {
            self.is_over = true;
            self.waiting.clear();
            return Ok(());
        }
        while let Some(line) = self.lines.next_line() {
            let Line::Whole(line) = line else {
                return Err(WorkerError::Misunderstood("a line that is too long".into()));
            };
            match ToWorker::parse(line).map_err(WorkerError::Misunderstood)? {
                ToWorker::Message(message) => self.waiting.push_back(message),
                ToWorker::Stop => {
                    self.give_back();
                    return Ok(());
                }
                ToWorker::Error { error } => return Err(WorkerError::Refused(error)),
            }
        }
        Ok(())
    }
}

/// Reads once; 0 at the end. Dropped before it returns, it has read nothing.
async fn read(stream: &UnixStream, lines: &mut Lines) -> io::Result<usize> {
    loop {
        stream.readable().await?;
        let mut bytes = [0; READ_BYTES];
        match stream.try_read(&mut bytes) {
            Ok(count) => {
                lines.push(&bytes[..count]);
                return Ok(count);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

async fn heard(signal: &mut Signal) {
    if signal.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}

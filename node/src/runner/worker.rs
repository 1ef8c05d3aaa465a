//! The worker of a run that has a mailbox: its socket, its desk, and the task between them.
//!
//! ```text
//!   run table ── begun, hands, stop, ended ──► [Attendant: Desk] ══ socket ══ worker
//!             ◄─ ready, settled, verdict, stop said, closed ──┘
//! ```
//!
//! The desk decides; the task reads and writes, many lines at a time, and never waits for the worker: what it does not read stays
//! at the desk as it came, which is what the cluster lets it hold. The other way round a worker may have to wait: while too much
//! that workers settled is not confirmed, nothing is read of them, and no time counts against them.

pub mod desk;
pub mod socket;

use std::io;
use std::time::Duration;

use pando_protocol::ids::Incarnation;
use pando_protocol::mail::{Hand, Readiness, Settlement};
use pando_protocol::worker::{Lines, MAX_LINE};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use self::desk::{Desk, Remains, Terms, Told, Verdict};
use self::socket::WorkerSocket;
use super::runs::Report;

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// Reads before anything else has its turn: more than a socket holds.
const READS_AT_ONCE: usize = 16;
/// What was written before the tree of a run was gone is read within this. Only a process outside the tree that was given the
/// socket can hold it open longer.
const DRAIN_LIMIT: Duration = Duration::from_millis(100);

/// What the desk of a run tells.
#[derive(Debug)]
pub enum DeskWord {
    /// The worker is ready.
    Ready(Readiness),
    /// It settled these.
    Settled(Vec<Settlement>),
    /// The run is to be killed.
    Verdict(Verdict),
    /// The worker was told to stop, where it takes lines; the stop signal may follow, with at most this grace.
    StopSaid(Option<Duration>),
    /// All that the worker ever said is told.
    Closed(Remains),
}

enum Order {
    Begun,
    Hands(Vec<Hand>),
    Stop(Option<Duration>),
    Ended,
}

/// The way to the desk of a run. Dropped, the desk is cleared.
#[derive(Debug)]
pub struct DeskHandle {
    orders: mpsc::UnboundedSender<Order>,
}

impl DeskHandle {
    /// Opens a desk behind a socket. While it is `held_up` the worker is not read, unless it stops.
    pub fn open(
        socket: WorkerSocket,
        terms: Terms,
        incarnation: Incarnation,
        report: mpsc::UnboundedSender<Report>,
        held_up: watch::Receiver<bool>,
    ) -> Self {
        // As many as the cluster has handed out, which it bounds.
        let (orders, received) = mpsc::unbounded_channel();
        let desk = Desk::new(terms);
        let connection = Connection::Awaited(socket);
        let (lines, out) = (Lines::of(MAX_LINE), Vec::new());
        let attendant = Attendant { incarnation, report, desk, held_up, connection, lines, out, written: 0 };
        tokio::spawn(attendant.attend(received));
        Self { orders }
    }

    /// The process has begun.
    pub fn begun(&self) {
        self.order(Order::Begun);
    }

    /// Messages for the worker.
    pub fn hand(&self, hands: Vec<Hand>) {
        self.order(Order::Hands(hands));
    }

    /// The worker is to stop. [`DeskWord::StopSaid`] follows, with this grace.
    pub fn stop(&self, most: Option<Duration>) {
        self.order(Order::Stop(most));
    }

    /// The whole tree of the run is gone. [`DeskWord::Closed`] follows.
    pub fn ended(&self) {
        self.order(Order::Ended);
    }

    /// The task ends only by [`Order::Ended`] or without this handle.
    fn order(&self, order: Order) {
        _ = self.orders.send(order);
    }
}

enum Connection {
    Awaited(WorkerSocket),
    Open(UnixStream),
    /// The worker says nothing any more.
    Closed,
}

struct Attendant {
    incarnation: Incarnation,
    report: mpsc::UnboundedSender<Report>,
    desk: Desk,
    held_up: watch::Receiver<bool>,
    connection: Connection,
    lines: Lines,
    /// Lines that are on their way, from `written` on.
    out: Vec<u8>,
    written: usize,
}

enum Input {
    Order(Option<Order>),
    HeldUp,
    Time,
    Connected(io::Result<UnixStream>),
    Ready,
}

impl Attendant {
    async fn attend(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        loop {
            let held_up = *self.held_up.borrow_and_update();
            self.desk.hold_up(held_up, now());
            self.write();
            let wants_room = self.written < self.out.len();
            let input = tokio::select! {
                biased;
                order = orders.recv() => Input::Order(order),
                Ok(()) = self.held_up.changed() => Input::HeldUp,
                () = until(self.desk.deadline()) => Input::Time,
                connected = accepted(&self.connection) => Input::Connected(connected),
                () = ready(&self.connection, !self.desk.is_held_up(), wants_room) => Input::Ready,
            };
            match input {
                Input::Order(None) => return,
                Input::HeldUp => {}
                Input::Order(Some(Order::Begun)) => self.desk.begun(now()),
                Input::Order(Some(Order::Hands(hands))) => self.desk.hand(hands, now()),
                Input::Order(Some(Order::Stop(most))) => {
                    self.desk.stop();
                    self.write();
                    self.tell(DeskWord::StopSaid(most));
                }
                Input::Order(Some(Order::Ended)) => return self.end().await,
                // What was said in time counts, also where this process was held up meanwhile.
                Input::Time => {
                    self.read();
                    let mut told = Told::default();
                    self.desk.judge(now(), &mut told);
                    self.tell_all(told);
                }
                // One connection a run: the socket goes with the wait for it.
                Input::Connected(Ok(stream)) => self.connection = Connection::Open(stream),
                Input::Connected(Err(error)) => {
                    tracing::warn!(incarnation = %self.incarnation, %error, "a worker cannot be let in");
                    self.close();
                }
                Input::Ready if self.desk.is_held_up() => {}
                Input::Ready => self.read(),
            }
        }
    }

    /// Reads what is there.
    fn read(&mut self) {
        for _ in 0..READS_AT_ONCE {
            let Connection::Open(stream) = &self.connection else { return };
            let mut bytes = [0; READ_BYTES];
            match stream.try_read(&mut bytes) {
                Ok(0) => return self.close(),
                Ok(count) => self.hear(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.close(),
            }
        }
    }

    fn hear(&mut self, bytes: &[u8]) {
        let (now, mut told) = (now(), Told::default());
        self.lines.push(bytes);
        while let Some(line) = self.lines.next_line() {
            self.desk.hear(line, now, &mut told);
        }
        self.tell_all(told);
    }

    /// Writes what the worker takes.
    fn write(&mut self) {
        let Connection::Open(stream) = &self.connection else { return };
        loop {
            if self.written == self.out.len() {
                self.desk.written(now());
                self.out.clear();
                self.out.shrink_to(READ_BYTES);
                self.written = 0;
                self.desk.write(&mut self.out);
                if self.out.is_empty() {
                    return;
                }
            }
            match stream.try_write(&self.out[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // It hears nothing any more; what it has said is still read, to its end.
                Err(_) => {
                    self.desk.closed(now());
                    self.out.clear();
                    self.written = 0;
                    return;
                }
            }
        }
    }

    fn close(&mut self) {
        self.connection = Connection::Closed;
        self.desk.closed(now());
    }

    /// Reads what the worker said before it was gone, and ends.
    async fn end(mut self) {
        let rest = timeout(DRAIN_LIMIT, async {
            while matches!(self.connection, Connection::Open(_)) {
                ready(&self.connection, true, false).await;
                self.read();
            }
        });
        _ = rest.await;
        let remains = self.desk.remains();
        self.tell(DeskWord::Closed(remains));
    }

    fn tell_all(&self, told: Told) {
        let Told { ready, settlements, verdict } = told;
        if let Some(readiness) = ready {
            self.tell(DeskWord::Ready(readiness));
        }
        if !settlements.is_empty() {
            self.tell(DeskWord::Settled(settlements));
        }
        if let Some(verdict) = verdict {
            self.tell(DeskWord::Verdict(verdict));
        }
    }

    /// Nobody hears it where the node leaves.
    fn tell(&self, word: DeskWord) {
        _ = self.report.send(Report::Desk(self.incarnation, word));
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

async fn until(deadline: Option<std::time::Instant>) {
    match deadline {
        Some(deadline) => sleep_until(Instant::from_std(deadline)).await,
        None => std::future::pending().await,
    }
}

async fn accepted(connection: &Connection) -> io::Result<UnixStream> {
    match connection {
        Connection::Awaited(socket) => socket.accept().await,
        Connection::Open(_) | Connection::Closed => std::future::pending().await,
    }
}

/// Returns when something can be read or written, where that is wanted.
async fn ready(connection: &Connection, wants_words: bool, wants_room: bool) {
    let Connection::Open(stream) = connection else { return std::future::pending().await };
    let interest = match (wants_words, wants_room) {
        (true, true) => Interest::READABLE | Interest::WRITABLE,
        (true, false) => Interest::READABLE,
        (false, true) => Interest::WRITABLE,
        (false, false) => return std::future::pending().await,
    };
    // An error shows where it is read.
    _ = stream.ready(interest).await;
}

#[cfg(test)]
mod tests;

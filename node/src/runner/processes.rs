//! What a runner asks of processes and of who guards them.

use std::io;
use std::sync::Arc;

use pando_protocol::ids::{Incarnation, Path, SessionId};
use pando_protocol::mail::Hand;
use pando_protocol::spec::{ProcessSpec, Signal};
use tokio::sync::oneshot;

use super::children::{Children, Start};
use crate::guard::BootTime;

/// What starts and stops processes: [`super::children::Children`], or what a simulator puts in its place.
pub trait Processes: Send + 'static {
    /// The clock by which [`Self::renew`] kills, and leases count.
    fn now(&self) -> BootTime;
    /// Starts a run.
    fn start(&mut self, path: Path, incarnation: Incarnation, session: SessionId, spec: Arc<ProcessSpec>);
    /// Asks a run to end, by its spec's signal and grace.
    fn stop(&mut self, incarnation: Incarnation);
    /// Gives messages to workers.
    fn hand(&mut self, hands: Vec<Hand>);
    /// Lets no worker say anything more, or lets them go on: what they say waits meanwhile, and their times with it.
    fn hold_workers(&mut self, holds: bool);
    /// Kills a run, without grace.
    fn kill(&mut self, incarnation: Incarnation);
    /// Sends a signal to a run's main process, and says so.
    fn signal(&mut self, incarnation: Incarnation, signal: Signal, reply: SignalReply);
    /// Everything under the session that is not kept is killed at `kill_at`, unless it is renewed before.
    fn renew(&mut self, session: SessionId, kill_at: BootTime);
    /// Kills everything under the session that is not kept, now.
    fn end_session(&mut self, session: SessionId);
    /// Asks whoever kills at `kill_at` whether it is there: [`super::children::ChildEvent::GuardAnswered`] follows.
    fn call_guard(&mut self, number: u64);
    /// Kills whoever should kill at `kill_at` and does not answer: [`super::children::ChildEvent::GuardLost`] follows.
    fn kill_guard(&mut self);
}

impl Processes for Children {
    fn now(&self) -> BootTime {
        BootTime::now()
    }
    fn start(&mut self, path: Path, incarnation: Incarnation, session: SessionId, spec: Arc<ProcessSpec>) {
        Self::start(self, Start { path, incarnation, session, spec });
    }
    fn stop(&mut self, incarnation: Incarnation) {
        Self::stop(self, incarnation);
    }
    fn hand(&mut self, hands: Vec<Hand>) {
        Self::hand(self, hands);
    }
    fn hold_workers(&mut self, holds: bool) {
        Self::hold_workers(self, holds);
    }
    fn kill(&mut self, incarnation: Incarnation) {
        Self::kill(self, incarnation);
    }
    fn signal(&mut self, incarnation: Incarnation, signal: Signal, reply: SignalReply) {
        let children = self.clone();
        tokio::spawn(async move {
            let sent = children.signal(incarnation, signal).await;
            _ = reply.send(sent.map(|pid| Signalled { incarnation, pid }).map_err(io::Error::other));
        });
    }
    fn renew(&mut self, session: SessionId, kill_at: BootTime) {
        Self::renew(self, session, kill_at);
    }
    fn end_session(&mut self, session: SessionId) {
        Self::end_session(self, session);
    }
    fn call_guard(&mut self, number: u64) {
        Self::call_guard(self, number);
    }
    fn kill_guard(&mut self) {
        Self::kill_guard(self);
    }
}

/// Where the word about a signal goes.
pub type SignalReply = oneshot::Sender<io::Result<Signalled>>;

/// A signal sent to a child, by an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signalled {
    /// The run.
    pub incarnation: Incarnation,
    /// Its main process.
    pub pid: u32,
}

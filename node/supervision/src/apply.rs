//! The only way to change replicated state.

use std::sync::Arc;
use std::time::Duration;

use pando_protocol::codec::{self, SECTION_LIMIT};
use pando_protocol::ids::Path;
use pando_protocol::message::{Changed, Difference, Write};
use pando_protocol::rejection::Rejection;

use crate::change::Change;
use crate::cluster::{Cluster, Supervisor, SupervisorPhase};
use crate::command::{Applied, Command, Done, EventKind, Outcome, Stamp};
use crate::due;
use crate::mutation::{Mutation, broken};

/// Replies kept of one client.
pub const REPLIES_KEPT: usize = 1_024;
/// Bytes of replies kept of one client, beside the newest: enough for seven requests whose every message was known.
pub const REPLY_BYTES_KEPT: u64 = 1 << 20;
/// Bytes of differences in one reply: what stands in it has to fit into a frame.
pub const DIFFERENCE_BYTES: usize = 2 << 20;
/// Clients whose replies are kept.
pub const CLIENTS_KEPT: usize = 10_000;
/// Cluster time after which a client that is not heard is forgotten.
pub const CLIENT_FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// Runs everything that is due at `stamp`, then `command`. Deterministic to the byte. A panic in what is due is caught: the timer
/// is dropped, with an event of [`EventKind::RulePanicked`].
///
/// # Panics
/// Where `command` panics: only by a bug of ours. Whoever calls it keeps a clone, puts that back and answers *internal*, identically on every voter.
pub fn apply(cluster: &mut Cluster, stamp: Stamp, command: Command) -> Applied {
    // A stamp from a leader whose clock lags never turns time back.
    cluster.head.now = cluster.head.now.max(stamp.at);
    let mut events = due::run(cluster, stamp.wall);
    let mut change = Change::new(cluster, stamp.wall);
    let outcome = change.command(command);
    change.settle();
    events.extend(change.events);
    Applied { outcome, events }
}

/// When something happens by itself next, in cluster time; `None` while nothing will. A tick is due then.
pub fn next_deadline(cluster: &Cluster) -> Option<Duration> {
    let first = |timers: &imbl::OrdSet<(Duration, Path)>| timers.get_min().map(|(at, _)| *at);
    first(&cluster.timers).into_iter().chain(first(&cluster.mail_timers)).min()
}

impl Change<'_> {
    pub(crate) fn delay_is_over(&mut self, path: &Path) {
        if broken(Mutation::DelayPanics) && path.name().ends_with('0') {
            panic!("a delay that is over breaks a rule");
        }
        if let Some(pending) = self.cluster.pending_at(path) {
            let order = pending.order;
            self.to_place.insert((order, path.clone()));
        } else if let Some(Supervisor { phase: SupervisorPhase::Delayed { .. }, .. }) = self.cluster.supervisor(path) {
            self.start(path);
        }
    }

    /// Lets all follow that follows from what was done: places for who waits, the next step of each group, and messages for
    /// workers.
    pub(crate) fn settle(&mut self) {
        loop {
            self.place_waiting();
            let Some(path) = self.unsettled.pop_last() else { break };
            self.advance_groups(&path);
        }
        self.settle_mail();
    }

    fn command(&mut self, command: Command) -> Outcome {
        match command {
            Command::Tick => Ok(Done::Ticked),
            Command::Write(write) => self.write_once(write),
            Command::GrantSession(request) => self.grant_session(request),
            Command::EndSession { node, session, proof } => self.session_over(&node, session, proof),
            Command::Observe { node, session, number, observation } => {
                self.observe(&node, session, number, observation)
            }
            Command::RaiseRules(version) => Ok(self.raise_rules(version)),
        }
    }

    fn raise_rules(&mut self, version: u32) -> Done {
        if version > self.cluster.head.rules {
            self.cluster.head.rules = version;
            self.event(EventKind::RulesRaised, None, None, format!("the rules of version {version} hold from here on"));
        }
        Done::Rules(self.cluster.head.rules)
    }

    /// Applies a client's change, once: a retry gets the reply that the first one got.
    fn write_once(&mut self, write: Write) -> Outcome {
        let Write { client, sequence, lowest_unanswered, change } = write;
        match self.cluster.clients.get(&client) {
            _ if broken(Mutation::RetriesTwice) => {}
            Some(record) => {
                if let Some(reply) = record.replies.get(&sequence) {
                    return reply.as_ref().clone();
                }
                if sequence < record.forgotten_below {
                    return Err(Rejection::TooLateToTell);
                }
            }
            // A client begins at 1, and takes a new id after five minutes of silence: this one was known and is forgotten.
            None if sequence > 1 => return Err(Rejection::TooLateToTell),
            None => {}
        }
        let outcome = self.request(change).map(|changed| Done::Changed(within_bounds(changed)));
        self.remember(client, sequence, lowest_unanswered, &outcome);
        outcome
    }

    fn remember(&mut self, client: pando_protocol::ids::ClientId, sequence: u64, lowest: u64, outcome: &Outcome) {
        let now = self.now();
        let is_full = self.cluster.clients.len() >= CLIENTS_KEPT && !broken(Mutation::ClientsKeptForEver);
        if is_full && !self.cluster.clients.contains_key(&client) {
            self.forget_oldest_client();
        }
        let mut record = self.cluster.clients.get(&client).map(|record| record.as_ref().clone()).unwrap_or_default();
        self.cluster.client_ages.remove(&(record.heard, client));
        record.heard = now;
        // A client never waits for a sequence above its newest one, whatever it claims.
        record.forgotten_below = record.forgotten_below.max(lowest.min(sequence));
        while let Some((oldest, forgotten)) =
            record.replies.get_min().filter(|(oldest, _)| *oldest < record.forgotten_below)
        {
            record.bytes -= weight(forgotten);
            let oldest = *oldest;
            record.replies.remove(&oldest);
        }
        record.bytes += if broken(Mutation::RepliesWeighNothing) { 0 } else { weight(outcome) };
        record.replies.insert(sequence, Arc::new(outcome.clone()));
        while (record.replies.len() > REPLIES_KEPT || record.bytes > REPLY_BYTES_KEPT)
            && record.replies.len() > 1
            && let Some((oldest, forgotten)) = record.replies.get_min().map(|(oldest, reply)| (*oldest, reply.clone()))
        {
            record.replies.remove(&oldest);
            record.bytes -= weight(&forgotten);
            record.forgotten_below = record.forgotten_below.max(oldest + 1);
        }
        self.cluster.client_ages.insert((now, client));
        self.cluster.clients.insert(client, Arc::new(record));
    }

    pub(crate) fn forget_silent_clients(&mut self) {
        let now = self.now();
        while let Some((heard, client)) = self.cluster.client_ages.get_min().copied() {
            if now.saturating_sub(heard) < CLIENT_FORGOTTEN_AFTER {
                break;
            }
            self.cluster.client_ages.remove(&(heard, client));
            self.cluster.clients.remove(&client);
        }
    }

    fn forget_oldest_client(&mut self) {
        if let Some((heard, client)) = self.cluster.client_ages.get_min().copied() {
            self.cluster.client_ages.remove(&(heard, client));
            self.cluster.clients.remove(&client);
        }
    }
}

/// What a reply takes in a snapshot, where all that one client was answered stands in one part.
pub(crate) fn weight(outcome: &Outcome) -> u64 {
    codec::encode::<SECTION_LIMIT>(outcome).map_or(SECTION_LIMIT, |bytes| bytes.len()) as u64
}

/// Leaves differences out that are too many for one reply: the longest paths of a large tree alone are.
fn within_bounds(mut changed: Changed) -> Changed {
    let mut bytes = 0;
    let fit = changed.differences.iter().take_while(|Difference { path, what: _, keys }| {
        bytes += path.as_str().len() + keys.iter().map(|key| key.len() + 1).sum::<usize>() + 3;
        bytes <= DIFFERENCE_BYTES
    });
    let fit = fit.count();
    changed.differences.truncate(fit);
    changed
}

//! What happens because time passed, as a step of its own before each command: one timer whose rule panics must not take every
//! command with it, for ever.
//!
//! A panic in a command is answered *internal*, and the command is left out. But what is due is due again at the next command:
//! so here a panic is caught, the state of before is put back, and the timers are run one by one. The one that panics is dropped,
//! with an event that says which; what it was to do waits for an operator. The same log panics in the same place, so every voter
//! drops the same timer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use pando_protocol::ids::Path;

use crate::apply::CLIENT_FORGOTTEN_AFTER;
use crate::change::Change;
use crate::cluster::Cluster;
use crate::command::{Event, EventKind};

/// Runs everything that is due at the time of the state.
pub(crate) fn run(cluster: &mut Cluster, wall: u64) -> Vec<Event> {
    if first_timer(cluster).is_none() && !is_client_silent(cluster) {
        return Vec::new();
    }
    let all = |change: &mut Change<'_>| {
        while let Some(timer) = first_timer(change.cluster) {
            timer.stop(change.cluster);
            timer.run(change);
        }
        change.settle();
        change.forget_silent_clients();
    };
    attempt(cluster, wall, all).unwrap_or_else(|| one_by_one(cluster, wall))
}

fn one_by_one(cluster: &mut Cluster, wall: u64) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(timer) = first_timer(cluster) {
        timer.stop(cluster);
        let attempted = attempt(cluster, wall, |change| {
            timer.run(change);
            change.settle();
        });
        events.extend(attempted.unwrap_or_else(|| give_up(cluster, wall, timer.path())));
    }
    // Where forgetting panics, clients stay known.
    let forgotten = attempt(cluster, wall, |change| {
        change.forget_silent_clients();
    });
    events.extend(forgotten.unwrap_or_default());
    events
}

fn give_up(cluster: &mut Cluster, wall: u64, path: &Path) -> Vec<Event> {
    let mut change = Change::new(cluster, wall);
    // What the panic said may differ from build to build, and the state must not.
    let text = format!(
        "a rule panicked when the delay of {path} was over, which is a bug: it was left out and {path} waits for `pando restart {path}`; please report what the log of a voter says"
    );
    change.event(EventKind::RulePanicked, Some(path), None, text);
    change.events
}

/// What `step` made happen. `None`: it panicked, and the state is as before.
fn attempt(cluster: &mut Cluster, wall: u64, step: impl FnOnce(&mut Change<'_>)) -> Option<Vec<Event>> {
    let kept = cluster.clone();
    // The state is thrown away after a panic, so nobody sees what it broke.
    let attempted = catch_unwind(AssertUnwindSafe(|| {
        let mut change = Change::new(cluster, wall);
        step(&mut change);
        change.events
    }));
    attempted.map_err(|_| *cluster = kept).ok()
}

/// What is due.
enum Timer {
    /// A delay of a member is over.
    Member(Duration, Path),
    /// Something of a mailbox.
    Mailbox(Duration, Path),
}

impl Timer {
    fn path(&self) -> &Path {
        match self {
            Self::Member(_, path) | Self::Mailbox(_, path) => path,
        }
    }

    fn stop(&self, cluster: &mut Cluster) {
        match self {
            Self::Member(at, path) => cluster.timers.remove(&(*at, path.clone())),
            Self::Mailbox(at, path) => cluster.mail_timers.remove(&(*at, path.clone())),
        };
    }

    fn run(&self, change: &mut Change<'_>) {
        match self {
            Self::Member(_, path) => change.delay_is_over(path),
            Self::Mailbox(_, path) => change.mail_due(path),
        }
    }
}

fn first_timer(cluster: &Cluster) -> Option<Timer> {
    let due =
        |timers: &imbl::OrdSet<(Duration, Path)>| timers.get_min().filter(|(at, _)| *at <= cluster.head.now).cloned();
    let member = due(&cluster.timers).map(|(at, path)| Timer::Member(at, path));
    member.or_else(|| due(&cluster.mail_timers).map(|(at, path)| Timer::Mailbox(at, path)))
}

fn is_client_silent(cluster: &Cluster) -> bool {
    let oldest = cluster.client_ages.get_min();
    oldest.is_some_and(|(heard, _)| cluster.head.now.saturating_sub(*heard) >= CLIENT_FORGOTTEN_AFTER)
}

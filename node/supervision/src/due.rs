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
        while let Some((at, path)) = first_timer(change.cluster) {
            change.cluster.timers.remove(&(at, path.clone()));
            change.delay_is_over(&path);
        }
        change.settle();
        change.forget_silent_clients();
    };
    attempt(cluster, wall, all).unwrap_or_else(|| one_by_one(cluster, wall))
}

fn one_by_one(cluster: &mut Cluster, wall: u64) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some((at, path)) = first_timer(cluster) {
        cluster.timers.remove(&(at, path.clone()));
        let attempted = attempt(cluster, wall, |change| {
            change.delay_is_over(&path);
            change.settle();
        });
        events.extend(attempted.unwrap_or_else(|| give_up(cluster, wall, &path)));
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

fn first_timer(cluster: &Cluster) -> Option<(Duration, Path)> {
    cluster.timers.get_min().filter(|(at, _)| *at <= cluster.head.now).cloned()
}

fn is_client_silent(cluster: &Cluster) -> bool {
    let oldest = cluster.client_ages.get_min();
    oldest.is_some_and(|(heard, _)| cluster.head.now.saturating_sub(*heard) >= CLIENT_FORGOTTEN_AFTER)
}

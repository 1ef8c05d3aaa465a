//! How a node goes that was told to: it says so, starts nothing more, and stops what runs here as the cluster says, the last
//! started first. Where nobody leads that, or time runs out, it stops all of it by itself.
//!
//! ```text
//!   told ── Leaving ──► stops as the cluster says ──► at rest, all is confirmed ── Left ──► confirmed: gone
//!                           │ unheard, unanswered or late           ▲
//!                           └──► stops all by itself ── too late: kills
//! ```

use std::time::Duration;

use openraft::AsyncRuntime;
use pando_protocol::session::Observation;
use pando_supervision::desired::Local;

use super::{Runner, Standing};
use crate::guard::BootTime;
use crate::runner::processes::Processes;

/// Children of a node that was told to go have at most this long to stop.
pub const LEAVE_LIMIT: Duration = Duration::from_secs(30);
/// So long before that what still runs is stopped at once, whatever is to be stopped before it: the usual grace of a child.
pub(super) const STOP_TOGETHER: Duration = Duration::from_secs(5);
/// Once everything has stopped, the cluster has this long to confirm it.
pub const LAST_WORD_LIMIT: Duration = Duration::from_secs(2);

/// A node that was told to go while it holds a session.
pub(super) struct Leaving {
    since: BootTime,
    /// The number of the observation that says so.
    said: u64,
    /// Nobody leads the stopping, or it took too long: all that ran was told to stop.
    stops_alone: bool,
    /// Since when everything has stopped here.
    at_rest: Option<BootTime>,
    said_left: bool,
    /// What did not stop in time was killed.
    lost_patience: bool,
}

impl<R: AsyncRuntime, P: Processes> Runner<R, P> {
    /// Begins to go: says so, and starts nothing more. What runs is stopped as the cluster says, in its order.
    pub(super) fn leave(&mut self) {
        let now = self.processes.now();
        self.leaves_since = Some(now);
        let Standing::Held(session) = &mut self.standing else { return };
        let said = session.observe(&self.voters, now, Observation::Leaving);
        session.leaving = Some(Leaving {
            since: now,
            said,
            stops_alone: false,
            at_rest: None,
            said_left: false,
            lost_patience: false,
        });
    }

    /// A node that was told to go, and that no leader hears, stops all itself while its lease lasts, the newest first; so does
    /// one whose time is nearly up. Each child has its grace, or what the limit leaves of it.
    pub(super) fn stop_alone(&mut self) {
        let now = self.processes.now();
        let Standing::Held(session) = &mut self.standing else { return };
        let Some(leaving) = &mut session.leaving else { return };
        let took = now.since(leaving.since);
        let patience = self.pace.lease / 2;
        let is_unheard = took >= patience && session.outbox.holds(leaving.said);
        // The newest answered beat was sent a lease before the end of the lease.
        let is_unanswered = now.plus(self.pace.lease).since(session.lease.end()) >= patience;
        if leaving.stops_alone || !(is_unheard || is_unanswered || took + STOP_TOGETHER >= LEAVE_LIMIT) {
            return;
        }
        leaving.stops_alone = true;
        tracing::warn!(
            is_unheard,
            is_unanswered,
            "what runs here is stopped all at once: nobody leads that, or it took too long"
        );
        for (path, incarnation, state) in session.runs.alive() {
            if state == Local::Running {
                session.runs.stopping(incarnation);
                // Before its end is told, which would be its own otherwise.
                session.observe(&self.voters, now, Observation::Stopping { path, incarnation });
                self.processes.stop(incarnation);
            }
        }
    }

    /// Whether a node that was told to go is done: everything has stopped and the cluster knows, or it took too long, or no
    /// session is held any more and nothing is there to tell.
    pub(super) fn has_left(&mut self) -> bool {
        let now = self.processes.now();
        let Standing::Held(session) = &mut self.standing else { return self.has_left_unheard(now) };
        let Some(leaving) = &mut session.leaving else { return false };
        let mut alive = session.runs.alive();
        // Where nobody leads the stopping nobody says of these that they shall never start.
        if leaving.stops_alone {
            alive.retain(|(_, _, state)| *state != Local::Waiting);
        }
        if !alive.is_empty() {
            let took = now.since(leaving.since);
            if took >= LEAVE_LIMIT && !leaving.lost_patience {
                leaving.lost_patience = true;
                alive.iter().for_each(|(_, incarnation, _)| self.processes.kill(*incarnation));
            }
            return took >= LEAVE_LIMIT + LAST_WORD_LIMIT;
        }
        let at_rest = *leaving.at_rest.get_or_insert(now);
        if now.since(at_rest) >= LAST_WORD_LIMIT {
            return true;
        }
        // Not before all else is confirmed: the cluster may have assigned something before it knew that this node goes.
        if !session.outbox.is_empty() || session.adoption.is_some() || !session.runs.alive().is_empty() {
            return false;
        }
        if leaving.said_left {
            return true;
        }
        leaving.said_left = true;
        session.observe(&self.voters, now, Observation::Left);
        false
    }

    /// Whether a node that was told to go and holds no session is done: what is kept has stopped, each with its grace. The next
    /// process of this node proves to the cluster that it is gone.
    fn has_left_unheard(&mut self, now: BootTime) -> bool {
        let Some(since) = self.leaves_since else { return false };
        let alive = self.kept.runs.alive();
        for (_, incarnation, state) in &alive {
            if *state == Local::Running {
                self.kept.runs.stopping(*incarnation);
                self.processes.stop(*incarnation);
            }
        }
        alive.is_empty() || now.since(since) >= LEAVE_LIMIT
    }
}

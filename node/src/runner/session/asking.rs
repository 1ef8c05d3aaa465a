//! How a session is got: asked for, granted in time and begun, or declined.

use openraft::AsyncRuntime;
use pando_protocol::ids::SessionId;
use pando_protocol::session::{Observation, RunnerWord, SessionRequest};

use super::{Facts, Runner, Session, Standing};
use crate::guard::BootTime;
use crate::runner::error::RunnerError;
use crate::runner::lease::Lease;
use crate::runner::processes::Processes;

/// A session is asked for.
pub(super) struct Asking {
    nonce: u64,
    /// When this nonce was first sent: a lease counts from there.
    first: Option<BootTime>,
    /// While something lingers, not before this.
    not_before: BootTime,
    /// While something lingers, not before the guard has answered a call after this one, and so has killed it.
    after_call: u64,
}

impl Asking {
    /// Asks from `now` on.
    pub(super) fn at_once(nonce: u64, now: BootTime) -> Self {
        Self { nonce, first: None, not_before: now, after_call: 0 }
    }

    /// Asks after a session, as soon as nothing of it is left; or, without that proof, from `not_before` on, once the guard has
    /// answered a call after `after_call`.
    pub(super) fn after_session(nonce: u64, not_before: BootTime, after_call: u64) -> Self {
        Self { nonce, first: None, not_before, after_call }
    }
}

impl<R: AsyncRuntime, P: Processes> Runner<R, P> {
    /// Asks, unless this node goes, or something of the last session may still run.
    pub(super) fn ask(&mut self, now: BootTime) {
        let left = self.left();
        let Standing::Asking(asking) = &mut self.standing else { return };
        let is_killed = now >= asking.not_before && self.guard.has_answered_after(asking.after_call);
        if self.leaves_since.is_some() || !(self.lingering.is_empty() || is_killed) {
            return;
        }
        // A nonce that waited for half a lease would be granted a session that is nearly over: a lease counts from when its
        // nonce was first sent, since the leader may count it from there too.
        if asking.first.is_some_and(|first| now.since(first) > self.pace.lease / 2) {
            (asking.nonce, asking.first) = ((self.dice)(), None);
        }
        asking.first.get_or_insert(now);
        let proven_over = self.record.sessions().into_iter().filter(|session| !left.contains(session)).collect();
        let Facts { node, address, role, labels, slots, pid } = self.facts.clone();
        let request = SessionRequest { node, nonce: asking.nonce, address, role, labels, slots, pid, proven_over };
        self.voters.say(&RunnerWord::Ask(request));
    }

    /// Begins a session that was granted in time, unless this node was told to go meanwhile; declines any other.
    pub(super) fn granted(&mut self, nonce: u64, id: SessionId) -> Result<(), RunnerError> {
        let now = self.processes.now();
        let asked = match &self.standing {
            Standing::Asking(asking) => asking.first.filter(|_| asking.nonce == nonce && self.leaves_since.is_none()),
            Standing::Held(_) => None,
        };
        let lease = asked.map(|asked| Lease::granted(self.pace.lease, asked)).filter(|lease| !lease.is_over(now));
        let Some(lease) = lease else {
            self.decline(nonce, id);
            return Ok(());
        };
        // Before anything starts under it: the next node process proves it over by this file.
        self.record
            .begin(id, &self.left())
            .map_err(|source| RunnerError::Record { path: self.record.path(), source })?;
        self.newest_begun = Some(id);
        self.guard.told_kill_time(self.processes.now());
        self.processes.renew(id, lease.kill_at());
        tracing::info!(session = %id, "a session is granted");
        self.refusal = None;
        let (runs, adoption) = std::mem::take(&mut self.kept).hand_over();
        self.standing = Standing::Held(Box::new(Session::begun(id, lease, runs, adoption)));
        self.say_kept();
        self.beat();
        Ok(())
    }

    /// Says of a session that was granted too late, or to a node that goes, that nothing runs under it, and nothing ever will: what was assigned to it
    /// would stand still for a lease, and count as lost. Said once; where that is not heard, the lease ends it.
    fn decline(&mut self, nonce: u64, id: SessionId) {
        if self.newest_begun >= Some(id) {
            return; // Told again of a session that was begun.
        }
        if let Standing::Asking(asking) = &mut self.standing
            && asking.nonce == nonce
        {
            // Never begun, also when it is granted once more.
            (asking.nonce, asking.first) = ((self.dice)(), None);
        }
        tracing::info!(session = %id, "a session was granted too late, or to a node that goes: it is not begun");
        self.voters.say(&RunnerWord::Observe { session: id, number: 1, observation: Observation::Left });
    }
}

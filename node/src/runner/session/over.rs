//! What a session that is over leaves behind: processes that are being killed, and runs that are kept and told of under the
//! next session.

use std::collections::BTreeSet;
use std::time::Duration;

use openraft::AsyncRuntime;
use pando_protocol::ids::SessionId;
use pando_protocol::session::{Observation, RunnerWord};

use super::asking::Asking;
use super::{Runner, Session, Standing};
use crate::runner::kept::{Adoption, Kept};
use crate::runner::processes::Processes;

/// After a session is over, its processes have this long to be gone before a new one is asked for without that proof: only the
/// kernel can hold them up then, since the guard has answered.
pub(super) const LINGER_LIMIT: Duration = Duration::from_secs(2);

impl<R: AsyncRuntime, P: Processes> Runner<R, P> {
    /// Ends a session whose lease has ended.
    pub(super) fn end_lease(&mut self) {
        let Standing::Held(session) = &self.standing else { return };
        if session.lease.is_over(self.processes.now()) {
            tracing::warn!(session = %session.id, "the lease has ended: what runs under this session is being killed");
            self.session_over();
        }
    }

    /// The session is over for good: nothing is done or said under it any more.
    pub(super) fn session_over(&mut self) {
        let now = self.processes.now();
        let (not_before, after_call) = (now.plus(LINGER_LIMIT), self.guard.called());
        let asking = Asking::after_session((self.dice)(), not_before, after_call);
        // What is over needs no kill time; that it ends is heard in the answer to a call.
        self.guard.settled_kill_time();
        if let Standing::Held(session) = std::mem::replace(&mut self.standing, Standing::Asking(asking)) {
            self.processes.end_session(session.id);
            self.lingering.insert(session.id);
            // What they say from here on counts for nobody, and nothing of it is kept.
            if session.mail.is_holding_workers() {
                self.processes.hold_workers(false);
            }
            let Session { id, runs, outbox, adoption, .. } = *session;
            let unconfirmed: Vec<Observation> = outbox.unconfirmed().map(|(_, said)| said.clone()).collect();
            self.kept = Kept::of(id, runs, adoption, unconfirmed.into_iter());
        }
    }

    /// Says which runs of older sessions go on under this one, once nothing else of those is left.
    pub(super) fn say_kept(&mut self) {
        let now = self.processes.now();
        let Standing::Held(session) = &mut self.standing else { return };
        let Some(adoption) = &mut session.adoption else { return };
        for (at, observation) in adoption.take_words(&self.lingering).into_iter().enumerate() {
            let (number, observation) = session.outbox.push(observation, now);
            if at == 0 {
                adoption.said(number);
            }
            self.voters.say(&RunnerWord::Observe { session: session.id, number, observation });
        }
    }

    /// The sessions under which anything may count that this process started and that may still have run just now.
    pub(super) fn own_sessions(&self) -> Vec<SessionId> {
        let mut sessions = self.left();
        if let Standing::Held(session) = &self.standing {
            sessions.insert(session.id);
            sessions.extend(session.adoption.iter().flat_map(Adoption::sessions));
        }
        sessions.into_iter().collect()
    }

    /// The sessions that are over and under which something may count that is not known to be gone.
    pub(super) fn left(&self) -> BTreeSet<SessionId> {
        self.lingering.union(self.kept.sessions()).copied().collect()
    }
}

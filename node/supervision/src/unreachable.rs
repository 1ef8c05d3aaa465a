//! Runs that outlive the lease of their node: `on_disconnect = keep`. Design section 6.
//!
//! ```text
//!   s1 ── its lease ends ──► s1 is silent ── Kept, said under s2 ──► the same run, under s2
//!                              └── its report, an obituary, a proof by its node, an operator's oath ──► ended
//! ```
//!
//! *What may run is state* holds as ever: the run stays assigned until an entry ends it, and nothing is started in its place
//! meanwhile. It belongs to one session at any time. Its node process asks for a new session when a lease has ended, as always,
//! and says under that one, once, which runs of the older ones are left. So a run moves to a session that is known to have
//! begun, by the word of the very process that owns it, and never by a request for a session, which may come late or be granted
//! to nobody. A node process that starts anew knows of no runs: its proof ends them.

use std::collections::BTreeSet;

use pando_protocol::ids::{NodeName, Path, SessionId};
use pando_protocol::session::Ending;

use crate::change::Change;
use crate::cluster::{ProcessPhase, Run};
use crate::command::EventKind;
use crate::endings::Over;
use crate::mutation::{Mutation, broken};
use crate::nodes::what_ran;

impl Change<'_> {
    /// The lease of a session has ended without a word: what ran under it is lost, but for what is kept.
    pub fn fall_silent(&mut self, name: &NodeName, id: SessionId) {
        const HOW: &str = "silent beyond its lease";
        let Some(session) = self.cluster.session(name, id) else { return };
        if session.silent {
            return; // Told twice.
        }
        // A runner starts nothing that is kept before a word of its session was applied. So of one that was granted to nobody,
        // as after a lost answer, nothing waits for a node that knows nothing of it.
        let is_begun = session.observed > 0;
        let is_kept = |path: &Path| {
            let keep = self.cluster.run(path).is_some_and(|run| run.keep);
            keep && is_begun && !broken(Mutation::KeepIgnored)
        };
        let (kept, lost): (Vec<Path>, Vec<Path>) = session.assigned.iter().cloned().partition(is_kept);
        if kept.is_empty() {
            return self.end_session(name, id, HOW);
        }
        let brakes = self.brakes(lost.len());
        let node = self.node(name);
        node.losses += 1;
        // First, so that nothing is placed under it while its runs end.
        if node.current == Some(id) {
            node.current = None;
            self.release_places_on(name);
        }
        if let Some(session) = self.session(name, id) {
            session.silent = true;
        }
        let text = format!("{name} lost: {HOW} · {} · kept there: {}", what_ran(&lost), what_ran(&kept));
        self.event(EventKind::NodeLost, None, Some(name), text);
        for path in &kept {
            let text = format!("{path} is unreachable: {name} is silent, and nothing is started in its place");
            self.event(EventKind::ChildUnreachable, Some(path), Some(name), text);
        }
        self.mail_lost(name, id, HOW);
        for (path, brake) in lost.iter().zip(brakes) {
            let Some(run) = self.cluster.run(path).cloned() else { continue };
            self.run_over(path, run, Over::Lost { how: HOW.to_owned(), brake });
        }
    }

    /// A runner says under its session what is left of its older ones: that goes on under this one, all else is over.
    pub fn take_over(&mut self, name: &NodeName, id: SessionId, former: &[SessionId], left: &[Ending]) {
        let left: BTreeSet<&Ending> = left.iter().collect();
        for older in former.iter().filter(|older| **older < id) {
            let Some(session) = self.cluster.session(name, *older) else { continue };
            let was_silent = session.silent;
            let is_left = |path: &Path| {
                let run = self.cluster.run(path).filter(|run| run.keep);
                run.is_some_and(|run| left.contains(&Ending { path: path.clone(), incarnation: run.incarnation }))
            };
            let going_on: Vec<Path> = session.assigned.iter().filter(|path| is_left(path)).cloned().collect();
            for path in going_on {
                if !broken(Mutation::KeptForgotten) {
                    self.go_on_under(&path, id, was_silent);
                }
            }
            if !broken(Mutation::RestStays) {
                self.end_session(name, *older, "its node says that this is gone");
            }
        }
        self.room_changed = true; // What is to leave a drained node may do so now.
        self.go_on_leaving(name, id);
    }

    fn go_on_under(&mut self, path: &Path, id: SessionId, was_silent: bool) {
        let ProcessPhase::Assigned(run) = &mut self.process(path).phase else { return };
        let Run { node, session: older, slots, incarnation, .. } = run.clone();
        run.session = id;
        if let Some(session) = self.session(&node, older) {
            session.assigned.remove(path);
            session.used -= slots;
            session.revision += 1;
        }
        if let Some(session) = self.session(&node, id) {
            session.assigned.insert(path.clone());
            session.used = session.used.saturating_add(slots);
            session.revision += 1;
        }
        if was_silent {
            let text = format!("{path} goes on on {node} as incarnation {incarnation}: {node} is back");
            self.event(EventKind::ChildReachable, Some(path), Some(&node), text);
        }
    }
}

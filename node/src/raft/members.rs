//! Who takes part in Raft, changed at run time by the leader: what people ask for, and the replacement of a voter that lost
//! its data.
//!
//! ```text
//!   add ──► reached? ──► learner ──► catches up          promote ──► one change: voter
//!   remove ──► leadership moves away first ──► voter becomes learner, and hears so ──► out
//!   every half second: a change that an earlier leader left half done is finished; each member is asked who it is
//!     another id, empty ──► wiped ──► new id a learner ──► one change: the new id votes, the old one is gone
//! ```
//!
//! One task, one change at a time, each bound to the membership that it was judged by. Every step leaves a membership that can
//! go on, so a leader may die after any of them, and what was asked for may be asked again.
//!
//! What judges is pure, in a file of its own: `judge` and `replacement`.

mod judging;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::raft::{ClientWriteResponse, Precondition};
use openraft::storage::RaftStateMachine;
use openraft::{AsyncRuntime, ChangeMembers, Instant, Raft};
use pando_protocol::ids::NodeName;
use pando_protocol::message::MemberChange;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::judging::{Assembly, Replacement, Step, judge, replacement};
use super::bootstrap::Configured;
use super::neighbours::{Neighbours, introduce, meet};
use super::questions;
use super::types::{LogId, RaftId, Types, Voter};
use super::wire::{Introduction, Request};
use crate::control::{ChangeRequest, NotChanged, members_of};
use crate::storage::format::StoredMembership;

/// Counts the sessions of a node under which a lease may run, by the state.
pub type Leases = Box<dyn Fn(&NodeName) -> usize + Send + Sync>;
/// Tells the version of the rules that the state is under.
pub type StateRules = Box<dyn Fn() -> u32 + Send + Sync>;

/// The leader's task. It runs on every voter, and does nothing where another one leads.
pub struct Keeper<R: AsyncRuntime, N: Neighbours, SM: RaftStateMachine<Types<R>>> {
    /// Raft.
    pub raft: Raft<Types<R>, SM>,
    /// The ways to other nodes.
    pub neighbours: N,
    /// The voters by configuration: those that are no members are told that the cluster exists.
    pub configured: Configured,
    /// After this long without an answer nothing runs under a session any more: lease and margin.
    pub session_is_over: Duration,
    /// The leases that may run.
    pub leases: Leases,
    /// The rules that whoever takes part must know.
    pub rules: StateRules,
    /// What people ask for.
    pub changes: mpsc::Receiver<ChangeRequest>,
    /// When to end.
    pub stop: CancellationToken,
}

type Written<R> = Result<ClientWriteResponse<Types<R>>, RaftError<Types<R>, ClientWriteError<Types<R>>>>;

impl<R: AsyncRuntime, N: Neighbours, SM: RaftStateMachine<Types<R>>> Keeper<R, N, SM> {
    /// Runs until `stop`.
    pub async fn run(mut self) {
        let stop = self.stop.clone();
        let mut look_at = R::Instant::now();
        let mut strangers = BTreeMap::new();
        loop {
            let request = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                request = self.changes.recv() => match request {
                    Some(request) => request,
                    None => return,
                },
                () = R::sleep_until(look_at) => {
                    look_at = R::Instant::now() + LOOK;
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => return,
                        () = self.look_after(&mut strangers) => continue,
                    }
                }
            };
            let ChangeRequest { change, mut reply } = request;
            let changed = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                // Whoever asked has given up; what was begun is finished by the next look.
                () = reply.closed() => continue,
                changed = self.change(&change) => changed,
            };
            _ = reply.send(changed);
        }
    }

    /// The members; `None` where this node does not lead.
    fn assembly(&self) -> Option<Assembly> {
        let members = questions::members(&self.raft);
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let entry = *metrics.membership_config.log_id();
        let leads = metrics.state.is_leader() && metrics.current_leader == Some(metrics.id);
        let (rules, known) = ((self.rules)(), BTreeMap::new());
        leads.then(|| Assembly { members, leader: metrics.id, entry, rules, known })
    }

    async fn change(&self, change: &MemberChange) -> Result<bool, NotChanged> {
        let patience = R::Instant::now() + PATIENCE;
        let mut changed = false;
        loop {
            self.finish().await;
            let mut now = self.assembly().ok_or(NotChanged::NotLeader)?;
            if !matches!(change, MemberChange::Add { .. }) {
                self.ask_whether_there(&mut now).await;
            }
            let is_late = R::Instant::now() >= patience;
            let step = judge(change, &now);
            let written = match step.clone() {
                Step::Done => return Ok(changed),
                // It may change by itself: who was just started answers soon, and what is behind catches up.
                Step::Refuse(why) if is_late => return Err(NotChanged::Refused(why)),
                Step::Refuse(_) => {
                    R::sleep(PAUSE).await;
                    continue;
                }
                Step::Drop { hears: true, .. } if !is_late => {
                    R::sleep(PAUSE).await;
                    continue;
                }
                Step::HandOver => {
                    let moved = questions::transfer(&self.raft, now.leader, None, PATIENCE).await;
                    moved.map_err(|why| {
                        NotChanged::Refused(format!("it leads, and leadership cannot be moved away from it: {why}"))
                    })?;
                    return Err(NotChanged::NotLeader);
                }
                Step::Reach => {
                    let reached = self.reach(change, &now).await;
                    match reached {
                        Ok((id, voter)) => {
                            self.write(ChangeMembers::AddNodes([(id, voter)].into()), true, now.entry).await
                        }
                        Err(error) => Err(error),
                    }
                }
                Step::Vote { new, instead_of } => self.vote(new, instead_of, now.entry).await,
                Step::Demote(id) => self.write(ChangeMembers::RemoveVoters([id].into()), true, now.entry).await,
                Step::Drop { id, .. } => self.write(ChangeMembers::RemoveNodes([id].into()), true, now.entry).await,
            };
            match written {
                Ok(()) => {
                    info!(name = %change.name(), ?step, "the membership is changed");
                    changed = true;
                }
                // Something else was changed meanwhile, or is about to be; or the one to reach was just started.
                Err(NotChanged::Refused(why)) if !is_late => {
                    tracing::debug!(why, "a change of members is tried again");
                    R::sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Asks every member whether it is there, now, and what it knows: one that died a moment ago still counts as answering
    /// heartbeats.
    async fn ask_whether_there(&self, now: &mut Assembly) {
        let mut asked = Vec::new();
        for (place, member) in now.members.iter().enumerate().filter(|(_, member)| member.raft_id != now.leader) {
            let (neighbours, member) = (self.neighbours.clone(), member.clone());
            asked.push(async move {
                let met = introduce(&neighbours, &member.name, &member.address).await;
                (place, met.ok().filter(|met| met.raft_id == member.raft_id))
            });
        }
        for (place, met) in join_all(asked).await {
            now.members[place].answers = Some(met.is_some());
            now.known.extend(met.map(|met| (met.raft_id, met.rules)));
        }
    }

    /// Asks a node that is to be added who it is.
    async fn reach(&self, change: &MemberChange, now: &Assembly) -> Result<(RaftId, Voter), NotChanged> {
        let MemberChange::Add { name, address } = change else {
            return Err(NotChanged::Refused("only what is added is reached".into()));
        };
        let met = meet(&self.neighbours, name, address).await.map_err(|error| {
            NotChanged::Refused(format!(
                "it was not reached ({error}): start {name} with --join and --advertise {address}, and look that it runs"
            ))
        })?;
        let Introduction { raft_id, initialised, rules, .. } = met;
        if initialised {
            return Err(NotChanged::Refused(format!(
                "its data folder holds a log already, of a former membership or another cluster: stop {name}, move its data \
                 folder away, start it with --join, and add it again"
            )));
        }
        now.ensure_known(rules).map_err(NotChanged::Refused)?;
        Ok((raft_id, Voter { name: Some(name.clone()), address: address.clone() }))
    }

    async fn vote(&self, new: RaftId, instead_of: Option<RaftId>, entry: Option<LogId>) -> Result<(), NotChanged> {
        let vote = ChangeMembers::AddVoterIds([new].into());
        match instead_of {
            None => self.write(vote, true, entry).await,
            // The lost id goes for good: nobody is there to learn under it.
            Some(old) => {
                let both = vec![vote, ChangeMembers::RemoveVoters([old].into())];
                self.write(ChangeMembers::Batch(both), false, entry).await
            }
        }
    }

    /// Writes a change, where the membership is still that of `entry`.
    async fn write(
        &self,
        change: ChangeMembers<RaftId, Voter>,
        retain: bool,
        entry: Option<LogId>,
    ) -> Result<(), NotChanged> {
        let same = Precondition::LastMembershipLogId { last_membership_log_id: entry };
        let written: Written<R> = R::timeout(WRITE, self.raft.change_membership_if(change, retain, [same]))
            .await
            .map_err(|_| NotChanged::Unknown(format!("no majority has it after {WRITE:?}")))?;
        match written {
            Ok(_) => Ok(()),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => Err(NotChanged::NotLeader),
            Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(error))) => {
                Err(NotChanged::Refused(error.to_string()))
            }
            Err(RaftError::APIError(ClientWriteError::PreconditionFailed(error))) => {
                Err(NotChanged::Refused(error.to_string()))
            }
            Err(error) => Err(NotChanged::Unknown(error.to_string())),
        }
    }

    /// Ends a change that was left between its two entries, by another leader or by this one.
    async fn finish(&self) {
        let half_done = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let (effective, committed) = (&metrics.membership_config, &metrics.committed_membership_config);
            let is_joint = effective.membership().get_joint_config().len() > 1;
            (is_joint && effective.log_id() == committed.log_id()).then_some(*effective.log_id())
        };
        let Some(entry) = half_done.filter(|_| self.assembly().is_some()) else { return };
        // Whoever was to go does not vote from here on; whether it stays a learner is asked again.
        match self.write(ChangeMembers::AddVoterIds(BTreeSet::new()), true, entry).await {
            Ok(()) => info!("finished a change of members that was left half done"),
            Err(error) => tracing::debug!(%error, "a change of members is still half done"),
        }
    }

    /// What needs no person. `strangers`: since when a name is known to answer under an id that is no member's.
    async fn look_after(&self, strangers: &mut BTreeMap<(NodeName, RaftId), R::Instant>) {
        self.finish().await;
        let Some(mut now) = self.assembly() else { return strangers.clear() };
        let met = self.ask_silent(&now).await;
        now.known.extend(met.iter().map(|(_, actual)| (actual.raft_id, actual.rules)));
        self.tell_outsiders(&now, &met);
        let before = std::mem::take(strangers);
        for (name, actual) in met {
            let key = (name.clone(), actual.raft_id);
            let since = before.get(&key).copied().unwrap_or_else(R::Instant::now);
            if !before.contains_key(&key) {
                report(&name, &actual, &now);
            }
            strangers.insert(key, since);
            let is_over = since.elapsed() >= self.session_is_over && (self.leases)(&name) <= 1;
            for step in replacement(&name, &actual, is_over, &now) {
                // The next step is judged by what this one leaves.
                let Some(entry) = self.assembly().map(|now| now.entry) else { return };
                match self.replace(&name, &step, entry).await {
                    Ok(()) => info!(%name, ?step, "a member that lost its data is replaced"),
                    Err(error) => {
                        tracing::debug!(%name, ?step, %error, "not yet");
                        break;
                    }
                }
            }
        }
    }

    async fn replace(&self, name: &NodeName, step: &Replacement, entry: Option<LogId>) -> Result<(), NotChanged> {
        match step.clone() {
            Replacement::Drop(id) => self.write(ChangeMembers::RemoveNodes([id].into()), true, entry).await,
            Replacement::Learn { id, address } => {
                let voter = Voter { name: Some(name.clone()), address };
                self.write(ChangeMembers::AddNodes([(id, voter)].into()), true, entry).await
            }
            Replacement::Vote { new, instead_of } => self.vote(new, Some(instead_of), entry).await,
        }
    }

    /// Who answers at the address of each member that is silent, or of which there are two.
    async fn ask_silent(&self, now: &Assembly) -> Vec<(NodeName, Introduction)> {
        let is_twice = |name: &NodeName| now.members.iter().filter(|member| member.name == *name).count() > 1;
        let silent = now.members.iter().filter(|m| m.answers != Some(true) || is_twice(&m.name));
        let places: BTreeMap<_, _> = silent.map(|member| (member.name.clone(), member.address.clone())).collect();
        let mut asked = Vec::new();
        for (name, address) in places {
            let neighbours = self.neighbours.clone();
            asked.push(async move {
                let met = meet(&neighbours, &name, &address).await.ok()?;
                Some((name, met))
            });
        }
        join_all(asked).await.into_iter().flatten().collect()
    }

    /// Tells the configured voters that are no members, and members that lost their data, that the cluster exists and where: they
    /// may have a configuration from when it was another one.
    fn tell_outsiders(&self, now: &Assembly, met: &[(NodeName, Introduction)]) {
        let Some(members) = members_of(&StoredMembership::clone(
            self.raft.server_metrics().borrow_watched().committed_membership_config.as_ref(),
        )) else {
            return;
        };
        let address = |name: &NodeName| now.members.iter().find(|m| m.name == *name).map(|m| m.address.clone());
        let outside = self.configured.iter().filter(|(name, _)| address(name).is_none());
        let empty = met.iter().filter(|(_, actual)| !actual.initialised);
        let outside = outside.map(|(name, address)| (name.clone(), address.clone()));
        for (name, address) in outside.chain(empty.filter_map(|(name, _)| Some((name.clone(), address(name)?)))) {
            let (neighbours, exists) = (self.neighbours.clone(), Request::ClusterExists(members.clone()));
            drop(R::spawn(async move { _ = neighbours.question(&name, &address, exists).await }));
        }
    }
}

fn report(name: &NodeName, actual: &Introduction, now: &Assembly) {
    if now.members.iter().any(|member| member.raft_id == actual.raft_id) {
        return;
    }
    let Introduction { raft_id, initialised, rules, .. } = actual;
    if let Err(why) = now.ensure_known(*rules) {
        warn!(%name, raft_id, why, "a member answers under another Raft id, and is not replaced");
    } else if *initialised {
        warn!(%name, raft_id, "a member answers with data that is not of this membership: it stays out; move its data folder \
              away and start it again");
    } else {
        warn!(%name, raft_id, "a member has lost its data and comes back under another Raft id: it will be replaced");
    }
}

/// How often the leader looks after the members.
const LOOK: Duration = Duration::from_millis(500);
/// So long a change is tried that is refused at first. With a question and a write less than the 4 s that the api gives a leader.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);
/// One change has this long to be committed.
const WRITE: Duration = Duration::from_millis(1_200);

#[cfg(test)]
mod tests;

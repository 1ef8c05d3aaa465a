//! Reads: from the leader's state after a proof, or from this node's own, labelled with its age.

use std::time::Duration;

use openraft::{AsyncRuntime, Instant};
use pando_protocol::ids::Path;
use pando_protocol::message::{Answer, Call, Found, Freshness, Query, Reply, ViewAge};
use pando_protocol::rejection::Rejection;
use pando_protocol::session::NodeRole;
use pando_protocol::view::{ClusterRow, NodeRow};
use pando_supervision::{Cluster, mail, report, trees};

use super::Api;
use super::forward::{Forwarded, Led};
use super::write::no_leader;
use crate::control::{Control, members_of};
use crate::peer::OtherNodes;

/// A read that finds no leader in this time is answered from the local state.
const READ_LIMIT: Duration = Duration::from_secs(2);

impl<R: AsyncRuntime, N: OtherNodes> Api<R, N> {
    /// Answers a query as fresh as it asks.
    pub(super) async fn read(&self, query: Query, freshness: Freshness) -> Answer {
        let Some(control) = &self.control else { return Err(no_leader(READ_LIMIT, "an agent holds no state")) };
        let asked = R::Instant::now();
        if freshness == Freshness::Linearizable {
            let call = Call::Read { query: query.clone(), freshness };
            if let Forwarded::Answered(answer) = self.to_leader(control, &call, READ_LIMIT, READ_LIMIT).await {
                return answer;
            }
        }
        let mut found = self.find(control, query).await?;
        let unanswered = asked.elapsed();
        let mut view = self.view(control, false);
        if freshness == Freshness::Linearizable {
            // Whoever this node takes for the leader, itself included, did not prove it in all that time.
            view.leader = None;
            if let Found::Cluster(row) = &mut found {
                row.leader = None;
            }
        }
        // Nobody has confirmed it for at least so long, whoever this node takes for the leader.
        view.age_ms = view.age_ms.max(u64::try_from(unanswered.as_millis()).unwrap_or(u64::MAX));
        Ok(Reply::Found { found, view })
    }

    /// Answers a query as the leader.
    pub(super) async fn read_here(&self, control: &Control<R>, query: Query) -> Led {
        let found = self.find(control, query).await;
        Led::Answered(found.map(|found| Reply::Found { found, view: self.view(control, true) }))
    }

    async fn find(&self, control: &Control<R>, query: Query) -> Result<Found, Rejection> {
        let cluster = as_of_now(control);
        Ok(match query {
            Query::Tree(from) => {
                if let Some(path) = &from {
                    known(&cluster, path)?;
                }
                Found::Tree(report::tree(&cluster, from.as_ref()))
            }
            Query::Explain(path) => Found::Explanation(Box::new(existing(&cluster, &path, report::explain)?)),
            Query::History(path) => Found::History(existing(&cluster, &path, report::history)?),
            Query::Settled(path) => Found::Settled(existing(&cluster, &path, report::settled)?),
            Query::Nodes => Found::Nodes(with_roles(control, report::nodes(&cluster))),
            Query::Members => Found::Members(control.members().await),
            Query::Mailboxes(from) => Found::Mailboxes(mail::report::mailboxes(&cluster, from.as_ref())?),
            Query::DeadLetters { of, letters, after, limit, whole } => {
                let page = mail::report::Page { after, limit, whole };
                let (letters, total) = mail::report::dead_letters(&cluster, &of, &letters, page)?;
                Found::DeadLetters { letters, total }
            }
            Query::DeadLetter { of, id } => {
                Found::DeadLetters { letters: vec![mail::report::dead_letter(&cluster, &of, &id)?], total: 1 }
            }
            Query::Asked { of, number } => Found::Asked(mail::report::asked(&cluster, &of, number)?),
            Query::Diff(spec) => {
                spec.check().map_err(|mistakes| Rejection::BadSpec { tree: spec.name.clone(), mistakes })?;
                Found::Differences(trees::differences(&cluster, &spec)?)
            }
            Query::Cluster => Found::Cluster(self.cluster_row(control, &cluster).await),
        })
    }

    async fn cluster_row(&self, control: &Control<R>, cluster: &Cluster) -> ClusterRow {
        let voters = control.voters().await;
        let leadership = control.leadership.borrow().clone();
        let applied = control.published.borrow().applied.map_or(0, |applied| applied.index);
        ClusterRow {
            cluster: self.cluster.clone(),
            leader: leadership.leader.map(|leader| leader.name),
            term: leadership.term,
            applied,
            cluster_time_ms: u64::try_from(cluster.head.now.as_millis()).unwrap_or(u64::MAX),
            voters,
        }
    }

    fn view(&self, control: &Control<R>, confirmed: bool) -> ViewAge {
        let leadership = control.leadership.borrow().clone();
        let mut age = leadership.without_since.map_or(Duration::ZERO, |since| since.elapsed());
        let mut leader = leadership.leader.map(|leader| leader.name);
        // A leader that lost its majority takes itself for one, and whoever follows it does too.
        let seen = self.freshness.as_ref().map(crate::freshness::Freshness::seen);
        if let Some(seen) = seen.filter(|seen| !confirmed && seen.leader.is_none()) {
            (age, leader) = (age.max(seen.age()), None);
        }
        ViewAge {
            answered_by: self.own.clone(),
            leader,
            confirmed,
            age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// The state with its time carried on to now, as the next stamp would: uptimes and rates would stand still otherwise, since an
/// idle cluster stamps only every 10 s. It stands still from when no leader is known.
fn as_of_now<R: AsyncRuntime>(control: &Control<R>) -> Cluster {
    let until = control.leadership.borrow().without_since.unwrap_or_else(Instant::now);
    // Not both at once: whoever holds one and waits for the other may wait for ever behind a writer.
    let (mut cluster, at) = {
        let published = control.published.borrow();
        (published.cluster.clone(), published.at)
    };
    cluster.head.now += if until > at { until - at } else { Duration::ZERO };
    cluster
}

/// A node's session says what it was when it was granted; whether it votes may have changed since.
fn with_roles<R: AsyncRuntime>(control: &Control<R>, mut rows: Vec<NodeRow>) -> Vec<NodeRow> {
    let stored = control.published.borrow().membership.clone();
    let Some(members) = members_of(&stored) else { return rows };
    for row in &mut rows {
        let votes = members.members.iter().any(|member| member.votes && member.name == row.name);
        row.role = if votes { NodeRole::Voter } else { NodeRole::Agent };
    }
    rows
}

fn known(cluster: &Cluster, path: &Path) -> Result<(), Rejection> {
    match cluster.member(path) {
        Some(_) => Ok(()),
        None => Err(Rejection::NoSuchPath { path: path.clone(), nearest: trees::nearest(cluster, path) }),
    }
}

fn existing<T>(cluster: &Cluster, path: &Path, view: fn(&Cluster, &Path) -> Option<T>) -> Result<T, Rejection> {
    known(cluster, path)?;
    view(cluster, path).ok_or_else(|| Rejection::NoSuchPath { path: path.clone(), nearest: None })
}

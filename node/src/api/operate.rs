//! Signals to children, and where leadership should be.

use std::time::Duration;

use openraft::{AsyncRuntime, Instant};
use pando_protocol::ids::{NodeName, Path};
use pando_protocol::message::{Answer, Call, Found, Freshness, Query, Reply};
use pando_protocol::rejection::Rejection;
use pando_protocol::spec::Signal;
use pando_protocol::view::Kind;

use super::Api;
use super::forward::{Forwarded, OPERATION_LIMIT, OPERATION_SEARCH};
use super::write::no_leader;
use crate::control::Control;
use crate::peer::{OtherNodes, PeerAnswer, PeerCall};

/// A signal has this long to reach the node that runs the child.
const SIGNAL_LIMIT: Duration = Duration::from_secs(3);

impl<R: AsyncRuntime, N: OtherNodes> Api<R, N> {
    /// Sends a signal to the process that runs at `path`, on whichever node that is by this node's state.
    pub(super) async fn kill(&self, path: Path, signal: Signal) -> Answer {
        let Some(control) = &self.control else { return Err(no_leader(SIGNAL_LIMIT, "an agent holds no state")) };
        // By the leader's state where it can be had: this node may not have heard yet of what a client saw there.
        let asked = R::Instant::now();
        let (row, confirmed) = match self.read(Query::Tree(Some(path.clone())), Freshness::Linearizable).await? {
            Reply::Found { found: Found::Tree(rows), view } => {
                (rows.into_iter().find(|row| row.path == path), view.confirmed)
            }
            _ => (None, false),
        };
        let refuse = |path: Path, why: String| {
            if confirmed {
                return Rejection::WrongState { path, why };
            }
            // What the last known state says of it may be long past, and so may where it runs.
            no_leader(
                asked.elapsed(),
                &format!("nobody can say where {path} runs now: by the last known state it {why}"),
            )
        };
        let is_supervisor = row.as_ref().is_some_and(|row| row.kind == Kind::Supervisor);
        let Some(node) = row.and_then(|row| row.node) else {
            let why = if is_supervisor {
                format!(
                    "is a supervisor, and a supervisor has no process: name a child; `pando tree {path}` shows them"
                )
            } else {
                format!("has no process that runs now: `pando explain {path}` says why")
            };
            return Err(refuse(path, why));
        };
        let sent = if node == self.own {
            self.children
                .signal(path.clone(), signal)
                .await
                .map(|sent| (sent.incarnation, sent.pid))
                .map_err(|e| e.to_string())
        } else {
            let known = control.published.borrow().cluster.nodes.get(&node).map(|node| node.address.clone());
            let address = known.or_else(|| self.directory.voters().remove(&node)).unwrap_or_default();
            let question = PeerCall::Signal { path: path.clone(), signal };
            match self.peers.ask(&node, &address, &question, SIGNAL_LIMIT).await {
                Ok(PeerAnswer::Signalled { incarnation, pid }) => Ok((incarnation, pid)),
                Ok(PeerAnswer::NotSignalled(why)) => Err(why),
                Ok(other) => Err(format!("it answered {other:?}")),
                Err(error) => Err(error.to_string()),
            }
        };
        match sent {
            Ok((incarnation, pid)) => Ok(Reply::Killed { incarnation, node, pid }),
            Err(why) => {
                let why = format!("was not signalled on {node}: {why}; `pando tree` shows where it runs now");
                Err(refuse(path, why))
            }
        }
    }

    /// Moves leadership, wherever it is now.
    pub(super) async fn transfer(&self, to: Option<NodeName>) -> Answer {
        let Some(control) = &self.control else { return Err(no_leader(OPERATION_SEARCH, "an agent holds no state")) };
        match self.to_leader(control, &Call::Transfer { to }, OPERATION_SEARCH, OPERATION_LIMIT).await {
            Forwarded::Answered(answer) => answer,
            Forwarded::TimedOut { waited, last_seen, .. } => Err(no_leader(waited, &last_seen)),
        }
    }

    pub(super) async fn transfer_here(&self, control: &Control<R>, to: Option<NodeName>) -> Answer {
        match control.transfer(to.clone()).await {
            Ok(leader) => Ok(Reply::Transferred { leader }),
            Err(why) => Err(Rejection::NotTransferred { to: to.unwrap_or_else(|| self.own.clone()), why }),
        }
    }
}

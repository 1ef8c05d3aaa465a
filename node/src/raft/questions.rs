//! Answers questions about Raft itself: its voters, and where leadership should be.

use std::time::Duration;

use openraft::AsyncRuntime;
use openraft::async_runtime::watch::WatchReceiver;
use pando_protocol::ids::NodeName;
use pando_protocol::view::VoterRow;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Raft;
use super::types::RaftId;
use crate::control::Question;

/// Answers until `stop`. Each transfer runs in a task of its own and has `limit` to come true.
pub async fn answer<R: AsyncRuntime>(
    raft: Raft<R>,
    own: RaftId,
    mut questions: mpsc::Receiver<Question>,
    limit: Duration,
    stop: CancellationToken,
) {
    loop {
        let question = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            question = questions.recv() => question,
        };
        match question {
            None => return,
            Some(Question::Voters(reply)) => _ = reply.send(voters(&raft)),
            Some(Question::Transfer { to, reply }) => {
                let raft = raft.clone();
                drop(R::spawn(async move {
                    _ = reply.send(transfer(&raft, own, to, limit).await);
                }));
            }
        }
    }
}

fn voters<R: AsyncRuntime>(raft: &Raft<R>) -> Vec<VoterRow> {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    let last = metrics.last_log_index.unwrap_or(0);
    let membership = metrics.membership_config.membership();
    let lag = |id: &RaftId| {
        let replication = metrics.replication.as_ref()?;
        let matched = replication.get(id)?.as_ref().map_or(0, |matched| matched.index);
        Some(last.saturating_sub(matched))
    };
    let row = |id: RaftId| {
        let voter = membership.get_node(&id)?;
        let lag = if id == metrics.id && metrics.replication.is_some() { Some(0) } else { lag(&id) };
        Some(VoterRow { name: voter.name.clone()?, raft_id: id, address: voter.address.clone(), lag })
    };
    let mut rows: Vec<_> = membership.voter_ids().filter_map(row).collect();
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    rows
}

async fn transfer<R: AsyncRuntime>(
    raft: &Raft<R>,
    own: RaftId,
    to: Option<NodeName>,
    limit: Duration,
) -> Result<NodeName, String> {
    let voters = voters(raft);
    let others = || voters.iter().filter(|voter| voter.raft_id != own);
    let target = match &to {
        Some(name) => voters.iter().find(|voter| voter.name == *name),
        None => others().filter(|voter| voter.lag.is_some()).min_by_key(|voter| voter.lag),
    };
    let Some(target) = target else {
        let names: Vec<_> = others().map(|voter| voter.name.to_string()).collect();
        return Err(format!("only another voter can lead; the others are: {}", names.join(", ")));
    };
    if target.raft_id == own {
        return Ok(target.name.clone());
    }
    raft.trigger().transfer_leader(target.raft_id).await.map_err(|fatal| fatal.to_string())?;
    let metrics = raft.wait(Some(limit));
    let leads = metrics.metrics(|metrics| metrics.current_leader == Some(target.raft_id), "the new leader leads").await;
    match leads {
        Ok(_) => Ok(target.name.clone()),
        Err(_) => Err(format!(
            "it does not lead after {limit:?}: is it up, and how far behind? `pando cluster status` shows both"
        )),
    }
}

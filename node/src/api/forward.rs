//! To the leader, here or over there, until it answers or time is up.

use std::io;
use std::time::Duration;

use openraft::{AsyncRuntime, Instant};
use pando_protocol::message::{Answer, Call};
use pando_protocol::rejection::Rejection;

use super::Api;
use super::write::WRITE_LIMIT;
use crate::control::{Control, Leader, Urgency};
use crate::peer::{OtherNodes, PeerAnswer, PeerCall};

/// Between two tries where nothing else is to be waited for.
const PAUSE: Duration = Duration::from_millis(10);
/// What is asked of the cluster itself (a transfer, a change of members) has this long, leadership that moves on the way
/// included. `pando` waits 10 s for an answer, of which it may need 3 s to find a node that gives one.
pub(super) const OPERATION_LIMIT: Duration = Duration::from_secs(6);
/// Of that a leader has this long to be found, as for a read: the client asks another node then, which may know one.
pub(super) const OPERATION_SEARCH: Duration = Duration::from_secs(2);

/// What became of a call that only the leader can answer.
pub(super) enum Forwarded {
    /// The leader answered.
    Answered(Answer),
    /// Nobody did in time. Whether the call ever reached a leader, and what was seen last.
    TimedOut { was_sent: bool, waited: Duration, last_seen: String },
}

/// What became of a call on the node that should lead.
pub(super) enum Led {
    /// It is answered.
    Answered(Answer),
    /// This node does not lead, and did nothing.
    NotLeader,
    /// Leadership was lost on the way: it may or may not have been acted on.
    Lost,
}

enum Tried {
    Answered(Answer),
    /// It was sent, and no answer came.
    Lost(String),
    /// It was not acted on.
    NotDone(String),
}

impl<R: AsyncRuntime, N: OtherNodes> Api<R, N> {
    /// Has the leader answer `call`, wherever it is: tried again with each new leader until `limit`, so only for calls that
    /// may be applied again. Given up after `search` already where it was sent to nobody.
    pub(super) async fn to_leader(
        &self,
        control: &Control<R>,
        call: &Call,
        search: Duration,
        limit: Duration,
    ) -> Forwarded {
        let begun = R::Instant::now();
        let end = begun + limit;
        let (mut was_sent, mut last_seen) = (false, "no leader is known here".to_owned());
        loop {
            let left = (if was_sent { limit } else { search }).saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Forwarded::TimedOut { was_sent, waited: begun.elapsed(), last_seen };
            }
            let tried = if control.leads() {
                self.act_proven(control, call, end).await
            } else {
                match control.leader_within(left).await {
                    Some(leader) if leader.name == self.own => Tried::NotDone("this node is about to lead".into()),
                    Some(leader) => self.ask(control, &leader, call, end).await,
                    None => Tried::NotDone(last_seen.clone()),
                }
            };
            match tried {
                Tried::Answered(Err(Rejection::Unknown)) => {
                    (was_sent, last_seen) = (true, "leadership was lost on the way".into());
                }
                Tried::Answered(answer) => return Forwarded::Answered(answer),
                Tried::Lost(why) => (was_sent, last_seen) = (true, why),
                Tried::NotDone(why) => last_seen = why,
            }
            R::sleep(PAUSE).await;
        }
    }

    /// Asks another node as the leader, and gives up as soon as yet another one leads.
    async fn ask(&self, control: &Control<R>, leader: &Leader, call: &Call, end: R::Instant) -> Tried {
        let Leader { name, address } = leader;
        let question = PeerCall::Lead(call.clone());
        let left = end.saturating_duration_since(R::Instant::now());
        let answer = self.peers.ask(name, address, &question, left);
        let mut leadership = control.leadership.clone();
        let moved = leadership.wait_for(|leadership| leadership.leader.as_ref() != Some(leader));
        tokio::select! {
            biased;
            answer = answer => match answer {
                Ok(PeerAnswer::Led(answer)) => Tried::Answered(answer),
                Ok(PeerAnswer::Lost) => Tried::Lost(format!("{name} lost leadership, or its majority")),
                Ok(_) => Tried::NotDone(format!("{name} does not lead")),
                // Nothing was sent.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Tried::NotDone(error.to_string()),
                Err(error) => Tried::Lost(format!("{name}: {error}")),
            },
            _ = moved => Tried::Lost(format!("{name} does not lead any more")),
        }
    }

    async fn act_proven(&self, control: &Control<R>, call: &Call, end: R::Instant) -> Tried {
        if !control.prove(urgency(call)).await {
            return Tried::NotDone("no majority of the voters confirms this node as leader".into());
        }
        match R::timeout_at(end, self.act(control, call.clone())).await {
            Ok(Led::Answered(answer)) => Tried::Answered(answer),
            Ok(Led::NotLeader) => Tried::NotDone("leadership has just moved".into()),
            Ok(Led::Lost) => Tried::Lost("leadership was lost".into()),
            Err(_) => Tried::Lost("a majority of the voters does not answer".into()),
        }
    }

    /// Answers another node that takes this one for the leader. Whoever asked has given up after the limit, and tries again.
    pub(super) async fn lead_for_another(&self, call: Call) -> PeerAnswer {
        match R::timeout(WRITE_LIMIT, self.lead(call)).await {
            Ok(Led::Answered(answer)) => PeerAnswer::Led(answer),
            Ok(Led::NotLeader) => PeerAnswer::NotLeader,
            Ok(Led::Lost) | Err(_) => PeerAnswer::Lost,
        }
    }

    async fn lead(&self, call: Call) -> Led {
        let Some(control) = self.control.as_ref().filter(|control| control.leads()) else { return Led::NotLeader };
        if !control.prove(urgency(&call)).await {
            return Led::NotLeader;
        }
        self.act(control, call).await
    }

    /// Answers a call as the leader, after the proof of leadership that it needs.
    async fn act(&self, control: &Control<R>, call: Call) -> Led {
        match call {
            Call::Write(write) => self.write_here(control, write).await,
            Call::Read { query, .. } => self.read_here(control, query).await,
            Call::Transfer { to } => Led::Answered(self.transfer_here(control, to).await),
            Call::Members(change) => self.change_members_here(control, change).await,
            Call::Kill { .. } | Call::Events { .. } | Call::Logs { .. } => Led::NotLeader,
        }
    }
}

/// Reads need a proof that begins after they came. A write without any would be kept by a leader that lost its majority, and
/// nobody could tell what became of it.
fn urgency(call: &Call) -> Urgency {
    if matches!(call, Call::Write(_)) { Urgency::OfLate } else { Urgency::Now }
}

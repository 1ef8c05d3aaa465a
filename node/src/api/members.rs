//! Who takes part in Raft, changed by the leader, wherever that is.

use openraft::AsyncRuntime;
use pando_protocol::message::{Answer, Call, MemberChange, MembersChanged, Reply};
use pando_protocol::rejection::Rejection;

use super::Api;
use super::forward::{Forwarded, Led, OPERATION_LIMIT, OPERATION_SEARCH};
use super::write::no_leader;
use crate::control::{Control, NotChanged};
use crate::peer::OtherNodes;

impl<R: AsyncRuntime, N: OtherNodes> Api<R, N> {
    /// Has the leader change the members. What is so already is done, so it is asked of each new leader again.
    pub(super) async fn change_members(&self, change: MemberChange) -> Answer {
        let Some(control) = &self.control else { return Err(no_leader(OPERATION_SEARCH, "an agent holds no state")) };
        match self.to_leader(control, &Call::Members(change), OPERATION_SEARCH, OPERATION_LIMIT).await {
            Forwarded::Answered(answer) => answer,
            Forwarded::TimedOut { was_sent: true, .. } => Err(Rejection::Unknown),
            Forwarded::TimedOut { was_sent: false, waited, last_seen } => Err(no_leader(waited, &last_seen)),
        }
    }

    /// Changes the members as the leader.
    pub(super) async fn change_members_here(&self, control: &Control<R>, change: MemberChange) -> Led {
        let (name, what) = (change.name().clone(), participle(&change).to_owned());
        match control.change_members(change).await {
            Ok(changed) => {
                let members = control.members().await;
                Led::Answered(Ok(Reply::MembersChanged(MembersChanged { changed, members })))
            }
            Err(NotChanged::NotLeader) => Led::NotLeader,
            Err(NotChanged::Unknown(why)) => {
                tracing::info!(%name, why, "the outcome of a change of members is not known");
                Led::Lost
            }
            Err(NotChanged::Refused(why)) => Led::Answered(Err(Rejection::MembersNotChanged { name, what, why })),
        }
    }
}

fn participle(change: &MemberChange) -> &'static str {
    match change {
        MemberChange::Add { .. } => "added",
        MemberChange::Promote(_) => "promoted",
        MemberChange::Remove(_) => "removed",
    }
}

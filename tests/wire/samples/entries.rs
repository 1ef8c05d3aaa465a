//! What the log holds, and what became of it.

use std::time::Duration;

use pando_protocol::ids::SessionId;
use pando_protocol::message::Changed;
use pando_supervision::command::EndProof;
use pando_supervision::{Batch, Command, Done, Outcome, Stamp};

use super::mail::mail_changed;
use super::messages::{changed, changes, rejections, write};
use super::node;
use super::sessions::{observations, session_request};

pub fn batches() -> Vec<Batch> {
    let mut commands: Vec<Command> = changes().into_iter().map(|change| Command::Write(write(change))).collect();
    commands.extend(observations().into_iter().map(|observation| Command::Observe {
        node: node(),
        session: SessionId(3),
        number: 2,
        observation,
    }));
    commands.extend([
        Command::Tick,
        Command::GrantSession(session_request()),
        Command::EndSession { node: node(), session: SessionId(3), proof: EndProof::Lease },
        Command::EndSession { node: node(), session: SessionId(3), proof: EndProof::Obituary("killed".into()) },
        Command::RaiseRules(2),
    ]);
    let alone = commands.iter().map(|command| batch(vec![command.clone()])).collect::<Vec<_>>();
    [alone, vec![batch(commands)]].concat()
}

pub fn outcomes() -> Vec<Outcome> {
    let mut outcomes: Vec<Outcome> = rejections().into_iter().map(Err).collect();
    outcomes.extend([
        Ok(Done::Ticked),
        Ok(Done::Changed(changed())),
        Ok(Done::Granted(SessionId(3))),
        Ok(Done::Ended),
        Ok(Done::Observed(7)),
        Ok(Done::Rules(1)),
    ]);
    outcomes
        .extend(mail_changed().into_iter().map(|mail| Ok(Done::Changed(Changed { mail: Some(mail), ..changed() }))));
    outcomes
}

pub fn batch(commands: Vec<Command>) -> Batch {
    Batch { stamp: Stamp { at: Duration::from_millis(1_234), wall: 1_700_000_000_000 }, commands }
}

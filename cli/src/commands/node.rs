//! `pando node`: the nodes of the cluster.

use clap::{Args, Subcommand};
use pando_protocol::session::NodeRole;
use pando_protocol::view::{NodeRow, NodeState};

use crate::connection::{Reading, with};
use crate::context::Target;
use crate::exit::Failure;
use crate::output::{self, Cell, Format, Style, Table};

mod drain;
mod remove;
mod undrain;

/// The nodes of the cluster
#[derive(Debug, Args)]
pub struct Node {
    #[command(subcommand)]
    verb: NodeVerb,
}

#[derive(Debug, Subcommand)]
enum NodeVerb {
    /// Lists the nodes with what they carry
    Ls {
        #[command(flatten)]
        reading: Reading,
    },
    Drain(drain::Drain),
    Undrain(undrain::Undrain),
    Remove(remove::Remove),
}

impl Node {
    /// Does what was asked of the nodes.
    ///
    /// # Errors
    /// The cluster refuses it or cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        let reading = match self.verb {
            NodeVerb::Ls { reading } => reading,
            NodeVerb::Drain(drain) => return drain.run(target).await,
            NodeVerb::Undrain(undrain) => return undrain.run(target).await,
            NodeVerb::Remove(remove) => return remove.run(target).await,
        };
        let read = with(target, async |connection| connection.nodes(reading.freshness()).await).await?;
        match reading.output {
            Format::Table => output::emit(&render(&read.value, output::wants_colour()))?,
            Format::Json => output::emit_json(&read.value)?,
        }
        reading.judge(&read.view)
    }
}

/// The columns of a list of nodes.
pub const HEADINGS: [&str; 10] =
    ["NODE", "ROLE", "STATE", "CHILDREN", "SLOTS", "LOST", "LABELS", "SESSION", "PID", "ADDRESS"];

/// The nodes as a table.
pub fn render(rows: &[NodeRow], colour: bool) -> String {
    if rows.is_empty() {
        return "no node has joined yet\n".into();
    }
    let mut table = Table::new(HEADINGS);
    for row in rows {
        table.row(cells(row));
    }
    table.render(colour)
}

/// A node as cells under [`HEADINGS`].
pub fn cells(row: &NodeRow) -> [Cell; 10] {
    let NodeRow { name, role, state, session, pid, children, used, slots, labels, losses, address } = row;
    let (state, style) = match state {
        NodeState::Up => ("up", Style::Green),
        NodeState::Leaving => ("leaving", Style::Yellow),
        NodeState::Down => ("down", Style::Red),
        NodeState::Draining => ("draining", Style::Yellow),
        NodeState::Drained => ("drained", Style::Yellow),
        NodeState::Unreachable => ("unreachable", Style::Red),
    };
    [
        name.as_str().into(),
        role_name(*role).into(),
        Cell::styled(state, style),
        children.to_string().into(),
        format!("{used} of {slots}").into(),
        if *losses == 0 { "".into() } else { losses.to_string().into() },
        labels.join(",").into(),
        session.map(|session| session.to_string()).unwrap_or_default().into(),
        pid.map(|pid| pid.to_string()).unwrap_or_default().into(),
        address.as_str().into(),
    ]
}

fn role_name(role: NodeRole) -> &'static str {
    match role {
        NodeRole::Voter => "voter",
        NodeRole::Agent => "agent",
    }
}

#[cfg(test)]
mod tests {
    use pando_protocol::ids::SessionId;

    use super::*;

    #[test]
    fn nodes_are_listed_with_what_they_carry() {
        let up = NodeRow {
            name: "n1".parse().unwrap(),
            role: NodeRole::Voter,
            state: NodeState::Up,
            session: Some(SessionId(4)),
            pid: Some(4711),
            children: 2,
            used: 3,
            slots: 64,
            labels: vec!["zone=a".into()],
            losses: 0,
            address: "127.0.0.1:7601".into(),
        };
        let mut down =
            NodeRow { name: "n2".parse().unwrap(), role: NodeRole::Agent, state: NodeState::Down, ..up.clone() };
        (down.session, down.pid, down.children, down.used, down.losses) = (None, None, 0, 0, 2);
        let expected = "\
NODE  ROLE   STATE  CHILDREN  SLOTS    LOST  LABELS  SESSION  PID   ADDRESS
n1    voter  up     2         3 of 64        zone=a  s4       4711  127.0.0.1:7601
n2    agent  down   0         0 of 64  2     zone=a                 127.0.0.1:7601
";
        assert_eq!(render(&[up, down], false), expected);
    }
}

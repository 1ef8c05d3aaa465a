//! `pando node drain`: moves what runs on a node to others, and waits until it has.

use std::time::Duration;

use clap::Args;
use pando_protocol::ids::{NodeName, Path};
use pando_protocol::message::{Change, Freshness};
use pando_protocol::view::{NodeRow, State, TreeRow};
use tokio::time::Instant;

use crate::connection::{Connection, unconfirmed, with};
use crate::context::Target;
use crate::exit::Failure;
use crate::waiting::Look;
use crate::{human, output, waiting};

/// Moves what runs on a node to other nodes, as these have room, and gives it no more work
///
/// Returns when nothing runs there any more and all of it is ready elsewhere. Each child has its new place before it is asked to
/// stop, so that whoever gives up half-way has lost nothing: `pando node undrain` takes it back. Nobody pays for a move.
#[derive(Debug, Args)]
pub struct Drain {
    /// The node
    node: NodeName,
    /// How long to wait until nothing runs there; the drain itself goes on after that
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = human::parse_duration)]
    deadline: Duration,
    /// Wait until it is done: so it is anyway, unless --no-wait says otherwise
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,
    /// Return as soon as it is written down
    #[arg(long)]
    no_wait: bool,
}

impl Drain {
    /// Asks for it, and waits.
    ///
    /// # Errors
    /// There is no such node, the deadline passed, or the cluster cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        let Self { node, deadline, wait: _, no_wait } = self;
        let started = Instant::now();
        with(target, async |connection| {
            let changed = connection.change(Change::Drain(node.clone())).await?;
            let moving: Vec<Path> = changed.differences.into_iter().map(|difference| difference.path).collect();
            if no_wait {
                let text = format!("{node} is being drained: {} children are to leave it\n", moving.len());
                return output::emit(&text);
            }
            let what = format!("{node} to be empty");
            waiting::until(&what, started, deadline, async || look(connection, &node, &moving).await).await?;
            output::emit(&format!(
                "{node} is drained: nothing runs there, and {} moved children are ready\n",
                moving.len()
            ))
        })
        .await
    }
}

async fn look(connection: &Connection, node: &NodeName, moving: &[Path]) -> Result<Look<()>, Failure> {
    let nodes = connection.nodes(Freshness::Linearizable).await?;
    if !nodes.view.confirmed {
        return Ok(Look::Unsure(unconfirmed(&nodes.view)));
    }
    let rows = connection.tree(None, Freshness::Linearizable).await?;
    Ok(judge(node, moving, &nodes.value, &rows.value))
}

fn judge(node: &NodeName, moving: &[Path], nodes: &[NodeRow], rows: &[TreeRow]) -> Look<()> {
    let there = nodes.iter().find(|row| row.name == *node).map_or(0, |row| row.children);
    let mut missing = rows.iter().filter(|row| row.node.as_ref() == Some(node) || is_under_way(moving, row));
    match missing.next() {
        None if there == 0 => Look::There(()),
        None => Look::NotYet(format!("{there} children still run there")),
        Some(first) => {
            let why = first.waiting.as_deref().unwrap_or("it moves");
            Look::NotYet(format!("{there} children still run there; {}: {why}", first.path))
        }
    }
}

/// Whether a child that moves is not where it should end up: ready, or down on purpose.
fn is_under_way(moving: &[Path], row: &TreeRow) -> bool {
    let is_settled = matches!(row.state, State::Running | State::Stopped | State::Finished | State::Failed);
    moving.contains(&row.path) && !is_settled
}

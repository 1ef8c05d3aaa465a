//! `pando node drain`: moves what runs on a node to others, and waits until it has.

use std::collections::BTreeSet;
use std::fmt;
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
/// stop, so that whoever gives up half-way has lost nothing: `pando node undrain` takes it back. Temporary
/// children end once nothing of their group is left there, since they are never started again. Nobody pays for a move.
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
            let moving: BTreeSet<Path> = changed.differences.into_iter().map(|difference| difference.path).collect();
            if no_wait {
                let text = format!("{node} is being drained: {} children are to leave it\n", moving.len());
                return output::emit(&text);
            }
            let what = format!("{node} to be empty");
            let moved =
                waiting::until(&what, started, deadline, async || look(connection, &node, &moving).await).await?;
            output::emit(&format!("{node} is drained: nothing runs there, and {moved}\n"))
        })
        .await
    }
}

/// What became of the children that were to move.
#[derive(Debug, Default, PartialEq, Eq)]
struct Moved {
    ready: usize,
    /// Those that are not to run: stopped, ended, or of a tree that has failed.
    down: Vec<Path>,
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 5;
        write!(f, "{} moved children are ready", self.ready)?;
        let shown: Vec<String> = self.down.iter().take(SHOWN).map(ToString::to_string).collect();
        match self.down.len().checked_sub(SHOWN) {
            _ if shown.is_empty() => Ok(()),
            None | Some(0) => write!(f, "; ended or stopped, and not to run: {}", shown.join(", ")),
            Some(more) => write!(f, "; ended or stopped, and not to run: {} and {more} more", shown.join(", ")),
        }
    }
}

async fn look(connection: &Connection, node: &NodeName, moving: &BTreeSet<Path>) -> Result<Look<Moved>, Failure> {
    let nodes = connection.nodes(Freshness::Linearizable).await?;
    if !nodes.view.confirmed {
        return Ok(Look::Unsure(unconfirmed(&nodes.view)));
    }
    let rows = connection.tree(None, Freshness::Linearizable).await?;
    if !rows.view.confirmed {
        return Ok(Look::Unsure(unconfirmed(&rows.view)));
    }
    Ok(judge(node, moving, &nodes.value, &rows.value))
}

fn judge(node: &NodeName, moving: &BTreeSet<Path>, nodes: &[NodeRow], rows: &[TreeRow]) -> Look<Moved> {
    let there = nodes.iter().find(|row| row.name == *node).map_or(0, |row| row.children);
    let failed: BTreeSet<&Path> = rows.iter().filter(|row| row.state == State::Failed).map(|row| &row.path).collect();
    let is_under_way = |row: &&TreeRow| moving.contains(&row.path) && is_awaited(row, &failed);
    let mut missing = rows.iter().filter(|row| row.node.as_ref() == Some(node) || is_under_way(row));
    match missing.next() {
        None if there == 0 => Look::There(moved(moving, rows)),
        None => Look::NotYet(format!("{there} children still run there")),
        Some(first) => {
            let why = first.waiting.as_deref().unwrap_or("it moves");
            Look::NotYet(format!("{there} children still run there; {}: {why}", first.path))
        }
    }
}

/// Those that were deleted meanwhile count as neither.
fn moved(moving: &BTreeSet<Path>, rows: &[TreeRow]) -> Moved {
    let rows = rows.iter().filter(|row| moving.contains(&row.path));
    let (ready, down): (Vec<&TreeRow>, Vec<&TreeRow>) = rows.partition(|row| row.state == State::Running);
    Moved { ready: ready.len(), down: down.into_iter().map(|row| row.path.clone()).collect() }
}

/// Whether a child that moves is to be ready and is not. One whose supervisor is to start again is down till then, and to run: its
/// state alone does not tell.
fn is_awaited(row: &TreeRow, failed: &BTreeSet<&Path>) -> bool {
    row.state != State::Running && row.configured > 0 && !failed.contains(&Path::root(&row.path.tree()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_protocol::session::NodeRole;
    use pando_protocol::view::{Kind, NodeState, Verdict};

    fn path(text: &str) -> Path {
        text.parse().unwrap()
    }

    fn row(text: &str, state: State, node: Option<&str>) -> TreeRow {
        TreeRow {
            path: path(text),
            kind: Kind::Process,
            state,
            verdict: Verdict::Healthy,
            node: node.map(|node| node.parse().unwrap()),
            incarnation: None,
            pid: None,
            uptime_ms: None,
            restarts: 0,
            restart_rate: 0,
            alive: 0,
            configured: u32::from(!matches!(state, State::Stopped | State::Finished)),
            waiting: None,
            mailbox: None,
        }
    }

    fn judged(children: u32, moving: &[&str], rows: &[TreeRow]) -> Result<String, String> {
        let node: NodeName = "n1".parse().unwrap();
        let drained = NodeRow {
            name: node.clone(),
            role: NodeRole::Voter,
            state: NodeState::Draining,
            session: None,
            pid: None,
            children,
            used: 0,
            slots: 1,
            labels: Vec::new(),
            losses: 0,
            address: String::new(),
        };
        let moving: BTreeSet<Path> = moving.iter().map(|text| path(text)).collect();
        match judge(&node, &moving, &[drained], rows) {
            Look::There(moved) => Ok(moved.to_string()),
            Look::NotYet(why) | Look::Unsure(why) => Err(why),
        }
    }

    #[test]
    fn a_drain_is_done_when_nothing_runs_there_and_what_moved_is_ready() {
        let elsewhere = |state| [row("/t/a", state, Some("n2"))];
        assert!(judged(1, &["/t/a"], &[row("/t/a", State::Stopping, Some("n1"))]).is_err());
        assert_eq!(
            judged(0, &["/t/a"], &elsewhere(State::Starting)),
            Err("0 children still run there; /t/a: it moves".into())
        );
        assert_eq!(judged(0, &["/t/a"], &elsewhere(State::Running)), Ok("1 moved children are ready".into()));
        assert_eq!(judged(0, &[], &elsewhere(State::Starting)), Ok("0 moved children are ready".into()));
    }

    #[test]
    fn what_ended_or_was_stopped_meanwhile_is_named_and_not_counted_as_ready() {
        let rows = [
            row("/t/a", State::Running, Some("n2")),
            row("/t/once", State::Finished, None),
            row("/u/x", State::Stopped, None),
        ];
        assert_eq!(
            judged(0, &["/t/a", "/t/once", "/u/x", "/t/deleted"], &rows),
            Ok("1 moved children are ready; ended or stopped, and not to run: /t/once, /u/x".into())
        );
    }

    #[test]
    fn what_is_down_until_its_supervisor_starts_again_is_waited_for() {
        let supervisor = |text: &str, state| TreeRow { kind: Kind::Supervisor, ..row(text, state, None) };
        let child = TreeRow { configured: 1, ..row("/t/pool/x", State::Stopped, None) };
        let rows = [supervisor("/t", State::Running), supervisor("/t/pool", State::BackingOff), child.clone()];
        assert_eq!(judged(0, &["/t/pool/x"], &rows), Err("0 children still run there; /t/pool/x: it moves".into()));
        assert_eq!(
            judged(0, &["/t/pool/x"], &[supervisor("/t", State::Failed), child]),
            Ok("0 moved children are ready; ended or stopped, and not to run: /t/pool/x".into())
        );
    }
}

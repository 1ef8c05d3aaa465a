//! What an operator can do from the screen, the question before it, and what is said of it.

use pando_protocol::ids::{NodeName, Path};
use pando_protocol::message::Change;
use pando_protocol::view::{Kind, NodeRow, State, TreeRow};

use crate::human;

/// A change that the operator asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deed {
    /// Stops and starts a member afresh.
    Restart(Path),
    /// Moves what runs on a node to others, and gives it no more work.
    Drain(NodeName),
    /// Gives a drained node work again.
    Undrain(NodeName),
}

impl Deed {
    /// What the cluster is asked.
    pub fn change(&self) -> Change {
        match self {
            Self::Restart(path) => Change::Restart(path.clone()),
            Self::Drain(node) => Change::Drain(node.clone()),
            Self::Undrain(node) => Change::Undrain(node.clone()),
        }
    }

    /// It as the command of a shell.
    pub fn command(&self) -> String {
        match self {
            Self::Restart(path) => format!("pando restart {path}"),
            Self::Drain(node) => format!("pando node drain {node}"),
            Self::Undrain(node) => format!("pando node undrain {node}"),
        }
    }

    /// What will happen, for whoever is to say yes to it.
    pub fn consequence(&self, trees: &[TreeRow], nodes: &[NodeRow]) -> String {
        match self {
            Self::Restart(path) => restarting(path, trees),
            Self::Drain(node) => draining(node, nodes),
            Self::Undrain(node) => format!("{node} takes work again; nothing moves back."),
        }
    }

    /// What is said when it is done, with how many differences it made.
    pub fn done(&self, differences: usize) -> String {
        match self {
            Self::Restart(path) => format!("{path} is restarting"),
            Self::Drain(node) => {
                let children = human::children(differences);
                format!("{node} is being drained: {children} to leave it; its state says when it is drained")
            }
            Self::Undrain(node) => format!("{node} takes work again"),
        }
    }
}

fn restarting(path: &Path, trees: &[TreeRow]) -> String {
    let row = trees.iter().find(|row| row.path == *path);
    let fresh = "with an empty restart budget and the shortest delay";
    match row {
        Some(row) if row.state == State::Failed => {
            format!("The tree {path} has failed: this clears it, and all of it is started again, {fresh}.")
        }
        Some(row) if row.kind == Kind::Supervisor => {
            let below = human::children(row.configured as usize);
            format!("{path} and all below it ({below} that should run) are stopped, then started again, {fresh}.")
        }
        Some(row) if row.pid.is_some() => {
            let node = row.node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
            format!("The process of {path}{node} is stopped, then started again, {fresh}.")
        }
        _ => format!("{path} is started afresh, {fresh}."),
    }
}

fn draining(node: &NodeName, nodes: &[NodeRow]) -> String {
    let there = nodes.iter().find(|row| row.name == *node).map_or(0, |row| row.children);
    let children = human::children(there as usize);
    format!(
        "{children} of {node} move to other nodes as these have room, each with its new place before it is asked to stop; \
         temporary ones end. {node} gets no more work until it is undrained (u)."
    )
}

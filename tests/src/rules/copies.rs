//! What really runs, as the machines see it: the book in which two copies of a child would show.

use std::collections::{BTreeMap, BTreeSet};

use pando_protocol::ids::{Incarnation, NodeName, Path};

/// Every process that runs anywhere, whatever the cluster knows of it.
#[derive(Debug, Clone, Default)]
pub struct Copies {
    live: BTreeMap<Path, (NodeName, Incarnation)>,
    started: BTreeSet<Incarnation>,
    newest: BTreeMap<Path, Incarnation>,
}

impl Copies {
    /// A process starts.
    ///
    /// # Errors
    /// Another copy of it runs; this run started before; a later run of the same path started before.
    pub fn start(&mut self, path: &Path, node: &NodeName, incarnation: Incarnation) -> Result<(), String> {
        if let Some((elsewhere, other)) = self.live.get(path) {
            return Err(format!("two copies: {path} {incarnation} starts on {node} while {other} runs on {elsewhere}"));
        }
        if !self.started.insert(incarnation) {
            return Err(format!("an incarnation starts at most once: {path} {incarnation} starts again on {node}"));
        }
        if self.newest.get(path).is_some_and(|newest| *newest > incarnation) {
            return Err(format!("incarnations grow: {path} {incarnation} starts after a later one"));
        }
        self.newest.insert(path.clone(), incarnation);
        self.live.insert(path.clone(), (node.clone(), incarnation));
        Ok(())
    }

    /// A process has ended, with all it started.
    pub fn end(&mut self, path: &Path, incarnation: Incarnation) {
        if self.live.get(path).is_some_and(|(_, live)| *live == incarnation) {
            self.live.remove(path);
        }
    }
}

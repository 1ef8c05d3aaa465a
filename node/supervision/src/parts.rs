//! The state in parts, so that a snapshot is written and read piece by piece, never as one buffer.

use std::sync::Arc;
use std::time::Duration;

use pando_protocol::ids::{ClientId, NodeName, Path, TreeName};
use pando_protocol::spec::TreeSpec;
use serde::{Deserialize, Serialize};

use crate::cluster::{ClientRecord, Cluster, Head, Member, Node};
use crate::command::Event;

/// A piece of the state. Variants are only ever appended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// Counters and clocks: the first part.
    Head(Head),
    /// A tree as it was applied.
    Tree(TreeName, Arc<TreeSpec>),
    /// A supervisor or child.
    Member(Path, Arc<Member>),
    /// A node.
    Node(NodeName, Arc<Node>),
    /// A child that waits for a place.
    Pending(u64, Path),
    /// When something happens by itself.
    Timer(Duration, Path),
    /// An event.
    Event(Arc<Event>),
    /// What a client was answered.
    Client(ClientId, Arc<ClientRecord>),
}

/// The state, piece by piece, in an order that [`from_parts`] takes back. Holds a cheap clone; costs nothing until iterated.
pub fn parts(cluster: &Cluster) -> impl Iterator<Item = Part> + use<> {
    let Cluster { head, trees, members, nodes, pending, timers, events, clients, client_ages: _ } = cluster.clone();
    std::iter::once(Part::Head(head))
        .chain(trees.into_iter().map(|(name, spec)| Part::Tree(name, spec)))
        .chain(members.into_iter().map(|(path, member)| Part::Member(path, member)))
        .chain(nodes.into_iter().map(|(name, node)| Part::Node(name, node)))
        .chain(pending.into_iter().map(|(order, path)| Part::Pending(order, path)))
        .chain(timers.into_iter().map(|(at, path)| Part::Timer(at, path)))
        .chain(events.into_iter().map(|(_, event)| Part::Event(event)))
        .chain(clients.into_iter().map(|(id, record)| Part::Client(id, record)))
}

/// The state of these pieces.
///
/// # Errors
/// A sentence that says which piece is missing or does not fit.
pub fn from_parts(parts: impl IntoIterator<Item = Part>) -> Result<Cluster, String> {
    let mut parts = parts.into_iter();
    let mut cluster = Cluster::default();
    match parts.next() {
        Some(Part::Head(head)) => cluster.head = head,
        Some(other) => return Err(format!("the state begins with {} instead of its head", name(&other))),
        None => return Err("the state is empty: its head is missing".into()),
    }
    for part in parts {
        match part {
            Part::Head(_) => return Err("the state has two heads".into()),
            Part::Tree(name, spec) => _ = cluster.trees.insert(name, spec),
            Part::Member(path, member) => _ = cluster.members.insert(path, member),
            Part::Node(name, node) => _ = cluster.nodes.insert(name, node),
            Part::Pending(order, path) => _ = cluster.pending.insert((order, path)),
            Part::Timer(at, path) => _ = cluster.timers.insert((at, path)),
            Part::Event(event) => _ = cluster.events.insert(event.number, event),
            Part::Client(id, record) => {
                cluster.client_ages.insert((record.heard, id));
                cluster.clients.insert(id, record);
            }
        }
    }
    Ok(cluster)
}

fn name(part: &Part) -> &'static str {
    match part {
        Part::Head(_) => "a head",
        Part::Tree(..) => "a tree",
        Part::Member(..) => "a member",
        Part::Node(..) => "a node",
        Part::Pending(..) => "a waiting child",
        Part::Timer(..) => "a timer",
        Part::Event(_) => "an event",
        Part::Client(..) => "a client",
    }
}

//! The state in parts, so that a snapshot is written and read piece by piece, never as one buffer.
//!
//! No part may outgrow a section of a snapshot ([`pando_protocol::codec::SECTION_LIMIT`]), whatever the cluster holds: one that
//! did could never be written, and the log behind it never be cut. So whatever there may be thousands of has parts of its own.

use std::sync::Arc;
use std::time::Duration;

use pando_protocol::ids::{ClientId, NodeName, Path, SessionId, TreeName};
use pando_protocol::spec::TreeSpec;
use serde::{Deserialize, Serialize};

use crate::cluster::{Body, ClientRecord, Cluster, Head, HistoryEntry, Member, Node, Session};
use crate::command::Event;
use crate::mail::{Accusation, DeadLetter, Held, KeptReply, Mailbox, Message, Worker};
use crate::restarts::{Crash, Window};

/// A piece of the state. Variants are only ever appended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// Counters and clocks: the first part.
    Head(Head),
    /// A tree as it was applied.
    Tree(TreeName, Arc<TreeSpec>),
    /// A supervisor or child without what has parts of its own, which follow.
    Member(Path, Arc<Member>),
    /// A node without what has parts of its own, which follow.
    Node(NodeName, Arc<Node>),
    /// A child that waits for a place.
    Pending(u64, Path),
    /// When something happens by itself.
    Timer(Duration, Path),
    /// An event.
    Event(Arc<Event>),
    /// What a client was answered.
    Client(ClientId, Arc<ClientRecord>),
    /// A mailbox without what has parts of its own, which follow.
    Mailbox(Path, Box<Mailbox>),
    /// A message of a mailbox.
    Message(Path, u64, Message),
    /// A dead letter of a mailbox.
    DeadLetter(Path, u64, Arc<DeadLetter>),
    /// The id of a message that is done or purged, with when.
    EndedId(Path, (Duration, u64), Arc<str>),
    /// What became of a message whose sender waits, with when.
    Reply(Path, (Duration, u64), Arc<KeptReply>),
    /// How a run of a member ended, the oldest first.
    Ended(Path, Arc<HistoryEntry>),
    /// A crash that counts against the budget of a member, the oldest first.
    Crash(Path, Crash),
    /// A run that is assigned under a session.
    Assigned(NodeName, SessionId, Path),
    /// A child for which room is kept under a session.
    RoomKept(NodeName, SessionId, Path),
    /// A message that a worker under a session holds, by the number of the hand.
    Hand(NodeName, SessionId, u64, Held),
    /// A worker of a mailbox without what it holds, which its session has.
    Worker(Path, Path, Arc<Worker>),
    /// A crash on several messages of a mailbox.
    Accusation(Path, u64, Arc<Accusation>),
    /// A held message of a mailbox that is accused of the loss of a node, with the node that it is on.
    Risky(Path, u64, NodeName),
}

/// The state, piece by piece, in an order that [`from_parts`] takes back. Holds a cheap clone; costs nothing until iterated.
pub fn parts(cluster: &Cluster) -> impl Iterator<Item = Part> + use<> {
    let Cluster { head, trees, members, nodes, pending, timers, events, clients, client_ages: _, mail, mail_timers: _ } =
        cluster.clone();
    std::iter::once(Part::Head(head))
        .chain(trees.into_iter().map(|(name, spec)| Part::Tree(name, spec)))
        .chain(members.into_iter().flat_map(|(path, member)| member_parts(path, &member)))
        .chain(nodes.into_iter().flat_map(|(name, node)| node_parts(name, &node)))
        .chain(pending.into_iter().map(|(order, path)| Part::Pending(order, path)))
        .chain(timers.into_iter().map(|(at, path)| Part::Timer(at, path)))
        .chain(events.into_iter().map(|(_, event)| Part::Event(event)))
        .chain(clients.into_iter().map(|(id, record)| Part::Client(id, record)))
        .chain(mail.into_iter().flat_map(|(path, mailbox)| mailbox_parts(path, &mailbox)))
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
            Part::Mailbox(path, mailbox) => {
                let timer = mailbox.wake.map(|at| (at, path.clone()));
                cluster.mail_timers.extend(timer);
                cluster.mail.insert(path, Arc::new(*mailbox));
            }
            Part::Message(path, number, message) => mailbox(&mut cluster, &path)?.take_back(number, message),
            Part::DeadLetter(path, number, letter) => {
                let mailbox = mailbox(&mut cluster, &path)?;
                mailbox.ids.extend(letter.content.id.clone().map(|id| (id, number)));
                mailbox.dead.insert(number, letter);
            }
            Part::EndedId(path, (at, number), id) => {
                let mailbox = mailbox(&mut cluster, &path)?;
                mailbox.ids.entry(id.clone()).or_insert(number); // One that was sent anew since stands there already.
                mailbox.ended_ids.insert((at, number), id);
            }
            Part::Reply(path, (at, number), reply) => {
                let mailbox = mailbox(&mut cluster, &path)?;
                mailbox.replied.insert(number, at); // The newest comes last.
                mailbox.replies.insert((at, number), reply);
            }
            Part::Ended(path, entry) => member(&mut cluster, &path)?.history.push(entry),
            Part::Crash(path, crash) => window(member(&mut cluster, &path)?).crashes.push_back(crash),
            Part::Assigned(node, id, path) => _ = session(&mut cluster, &node, id)?.assigned.insert(path),
            Part::RoomKept(node, id, path) => _ = session(&mut cluster, &node, id)?.kept.insert(path),
            Part::Hand(node, id, number, held) => _ = session(&mut cluster, &node, id)?.hands.insert(number, held),
            Part::Worker(path, name, worker) => _ = mailbox(&mut cluster, &path)?.workers.insert(name, worker),
            Part::Accusation(path, number, accusation) => {
                mailbox(&mut cluster, &path)?.accusations.insert(number, accusation);
            }
            Part::Risky(path, number, node) => _ = mailbox(&mut cluster, &path)?.risky.insert(number, node),
        }
    }
    give_workers_what_they_hold(&mut cluster)?;
    let paths: Vec<Path> = cluster.mail.keys().cloned().collect();
    for path in paths {
        let mailbox = mailbox(&mut cluster, &path)?;
        let streaks = mailbox.workers.iter().filter(|(_, worker)| !worker.streak.is_empty());
        mailbox.streaks = streaks.map(|(path, _)| path.clone()).collect();
        mailbox.well = mailbox.workers.values().filter(|worker| worker.is_well()).count() as u64;
        mailbox.recount_free(); // Last: it goes by the streaks.
    }
    Ok(cluster)
}

/// What a worker holds is what its session has for it.
fn give_workers_what_they_hold(cluster: &mut Cluster) -> Result<(), String> {
    let nodes = cluster.nodes.clone();
    let sessions = nodes.values().flat_map(|node| node.sessions.values());
    for (number, Held { mailbox: at, message, worker, incarnation, .. }) in sessions.flat_map(|known| &known.hands) {
        let workers = &mut mailbox(cluster, at)?.workers;
        let known = workers.get_mut(worker).and_then(|known| Arc::make_mut(known).run.as_mut());
        match known.filter(|run| run.incarnation == *incarnation) {
            Some(run) => _ = run.held.insert(*number, *message),
            None => {
                return Err(format!("hand {number} is for run {incarnation} of {worker}, which {at} does not know"));
            }
        }
    }
    Ok(())
}

/// A member in pieces.
fn member_parts(path: Path, member: &Member) -> impl Iterator<Item = Part> + use<> {
    let mut rest = member.clone();
    let history = std::mem::take(&mut rest.history);
    let Window { crashes } = std::mem::take(window(&mut rest));
    let [of_entry, of_crash] = [path.clone(), path.clone()];
    std::iter::once(Part::Member(path, Arc::new(rest)))
        .chain(history.into_iter().map(move |entry| Part::Ended(of_entry.clone(), entry)))
        .chain(crashes.into_iter().map(move |crash| Part::Crash(of_crash.clone(), crash)))
}

fn window(member: &mut Member) -> &mut Window {
    match &mut member.body {
        Body::Process(process) => &mut process.window,
        Body::Supervisor(supervisor) => &mut supervisor.window,
    }
}

/// A node in pieces.
fn node_parts(name: NodeName, node: &Node) -> impl Iterator<Item = Part> + use<> {
    let mut rest = node.clone();
    let sessions: Vec<_> = rest.sessions.iter_mut().map(|(id, session)| session_parts(&name, *id, session)).collect();
    std::iter::once(Part::Node(name, Arc::new(rest))).chain(sessions.into_iter().flatten())
}

/// Takes what has parts of its own out of a session.
fn session_parts(node: &NodeName, id: SessionId, session: &mut Session) -> impl Iterator<Item = Part> + use<> {
    let (assigned, kept) = (std::mem::take(&mut session.assigned), std::mem::take(&mut session.kept));
    let hands = std::mem::take(&mut session.hands);
    let [of_run, of_room, of_hand] = [(); 3].map(|()| node.clone());
    let assigned = assigned.into_iter().map(move |path| Part::Assigned(of_run.clone(), id, path));
    assigned
        .chain(kept.into_iter().map(move |path| Part::RoomKept(of_room.clone(), id, path)))
        .chain(hands.into_iter().map(move |(number, held)| Part::Hand(of_hand.clone(), id, number, held)))
}

/// A mailbox in pieces. What follows from them is not written.
fn mailbox_parts(path: Path, mailbox: &Mailbox) -> impl Iterator<Item = Part> + use<> {
    let mut rest = mailbox.clone();
    (rest.queues, rest.free, rest.ids, rest.streaks, rest.well, rest.replied) = Default::default();
    let workers = std::mem::take(&mut rest.workers);
    let accusations = std::mem::take(&mut rest.accusations);
    let risky = std::mem::take(&mut rest.risky);
    let messages = std::mem::take(&mut rest.messages);
    let dead = std::mem::take(&mut rest.dead);
    let ended_ids = std::mem::take(&mut rest.ended_ids);
    let replies = std::mem::take(&mut rest.replies);
    let [of_message, of_letter, of_id, of_reply] = [(); 4].map(|()| path.clone());
    let [of_worker, of_accusation, of_risky] = [(); 3].map(|()| path.clone());
    std::iter::once(Part::Mailbox(path, Box::new(rest)))
        .chain(workers.into_iter().map(move |(name, worker)| worker_part(of_worker.clone(), name, worker)))
        .chain(accusations.into_iter().map(move |(key, one)| Part::Accusation(of_accusation.clone(), key, one)))
        .chain(risky.into_iter().map(move |(number, node)| Part::Risky(of_risky.clone(), number, node)))
        .chain(messages.into_iter().map(move |(number, message)| Part::Message(of_message.clone(), number, message)))
        .chain(dead.into_iter().map(move |(number, letter)| Part::DeadLetter(of_letter.clone(), number, letter)))
        .chain(ended_ids.into_iter().map(move |(key, id)| Part::EndedId(of_id.clone(), key, id)))
        .chain(replies.into_iter().map(move |(key, reply)| Part::Reply(of_reply.clone(), key, reply)))
}

fn worker_part(mailbox: Path, name: Path, mut worker: Arc<Worker>) -> Part {
    if worker.held() > 0
        && let Some(run) = &mut Arc::make_mut(&mut worker).run
    {
        run.held.clear();
    }
    Part::Worker(mailbox, name, worker)
}

fn member<'c>(cluster: &'c mut Cluster, path: &Path) -> Result<&'c mut Member, String> {
    let member = cluster.members.get_mut(path).ok_or_else(|| format!("an ending comes before its member {path}"))?;
    Ok(Arc::make_mut(member))
}

fn session<'c>(cluster: &'c mut Cluster, node: &NodeName, id: SessionId) -> Result<&'c mut Session, String> {
    let known = cluster.nodes.get_mut(node).map(Arc::make_mut).and_then(|node| node.sessions.get_mut(&id));
    known.ok_or_else(|| format!("what is under session {id} of {node} comes before it"))
}

fn mailbox<'c>(cluster: &'c mut Cluster, path: &Path) -> Result<&'c mut Mailbox, String> {
    let mailbox = cluster.mail.get_mut(path).ok_or_else(|| format!("a message comes before its mailbox {path}"))?;
    Ok(Arc::make_mut(mailbox))
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
        Part::Mailbox(..) => "a mailbox",
        Part::Message(..) => "a message",
        Part::DeadLetter(..) => "a dead letter",
        Part::EndedId(..) => "the id of a message",
        Part::Reply(..) => "a reply",
        Part::Ended(..) => "an ending",
        Part::Crash(..) => "a crash",
        Part::Assigned(..) => "an assigned run",
        Part::RoomKept(..) => "kept room",
        Part::Hand(..) => "a message that is held",
        Part::Worker(..) => "a worker",
        Part::Accusation(..) => "an accusation",
        Part::Risky(..) => "a message accused of a loss",
    }
}

#[cfg(test)]
mod tests;

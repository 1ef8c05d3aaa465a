//! Who may open which channel, and who may ask what: the one place that decides it, for every stream and every request.
//!
//! | role | may |
//! | --- | --- |
//! | `node` | once it has joined, everything; it alone may open what is between nodes |
//! | `admin` | ask for everything |
//! | `viewer` | read: trees, nodes, reasons, history, events, logs, mailboxes, dead letters |
//! | `producer` | put messages into mailboxes, and wait for the reply to one |
//!
//! The node that a client is connected to decides; whoever it passes the request on to is asked by a *node* and does not decide
//! again. Nothing is gained by telling it the client's role: it would have that word from the same node, and a node may write
//! into the log whatever it likes. A viewer cannot get round its node, because it may open no other channel than a client's.

use pando_protocol::client::identity::Role;
use pando_protocol::ids::NodeName;
use pando_protocol::message::{Call, Change, Channel, Query};
use pando_protocol::rejection::Rejection;

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    /// It looks at something, and leaves it as it is.
    Look,
    /// It puts messages into a mailbox, or asks what became of one.
    Produce,
    /// It changes what runs, or where it runs, or who leads, or who votes, or what becomes of messages.
    Operate,
}

/// Whether a peer with this role may open this channel.
pub fn may_open(role: Role, channel: Channel) -> bool {
    match channel {
        Channel::Client => true,
        Channel::Session | Channel::RaftAppend | Channel::RaftCall | Channel::Peer | Channel::Lease | Channel::Mail => {
            role == Role::Node
        }
    }
}

/// Whether a client with this role may ask this.
///
/// # Errors
/// [`Rejection::Forbidden`], which says what is needed instead.
pub(super) fn may_ask(role: Role, call: &Call) -> Result<(), Rejection> {
    let deed = deed(call);
    let is_allowed = match role {
        // A node passes on what a client asked it, after it decided here itself.
        Role::Node | Role::Admin => true,
        Role::Viewer => deed == Deed::Look,
        Role::Producer => deed == Deed::Produce,
    };
    if is_allowed {
        return Ok(());
    }
    let needed = match deed {
        Deed::Look => "viewer or admin",
        Deed::Produce => "producer or admin",
        Deed::Operate => "admin",
    };
    Err(Rejection::Forbidden { needed: needed.to_owned(), yours: role.as_str().to_owned() })
}

/// What a node is told whose certificate is good, and of which the cluster knows nothing: it never had a session, or was removed.
pub(super) fn stranger(node: &NodeName) -> Rejection {
    let needed = format!("admin, or node once that node has joined ({node} has not, as far as is known here)");
    Rejection::Forbidden { needed, yours: Role::Node.as_str().to_owned() }
}

// Exhaustive to the last level: whoever adds a request decides here who may ask it, before it builds again.
fn deed(call: &Call) -> Deed {
    match call {
        Call::Read { query, freshness: _ } => match query {
            Query::Tree(_)
            | Query::Explain(_)
            | Query::History(_)
            | Query::Nodes
            | Query::Cluster
            | Query::Members
            | Query::Diff(_)
            | Query::Settled(_)
            | Query::Mailboxes(_)
            | Query::DeadLetters { .. }
            | Query::DeadLetter { .. } => Deed::Look,
            Query::Asked { .. } => Deed::Produce,
        },
        Call::Events { .. } | Call::Logs { .. } => Deed::Look,
        Call::Write(write) => match write.change {
            Change::Apply(_)
            | Change::Delete(_)
            | Change::Start(_)
            | Change::Stop(_)
            | Change::Restart(_)
            | Change::Drain(_)
            | Change::Undrain(_)
            | Change::RemoveNode(_)
            | Change::RemoveDeadNode(_)
            | Change::Quarantine(_)
            | Change::ApplyLeaving(..)
            | Change::DeleteLeaving(..)
            | Change::Scale { .. }
            | Change::Pause(_)
            | Change::Resume(_)
            | Change::Redrive { .. }
            | Change::PurgeDead { .. }
            | Change::PurgeWaiting(_) => Deed::Operate,
            Change::Send { .. } => Deed::Produce,
        },
        Call::Kill { .. } | Call::Transfer { .. } | Call::Members(_) => Deed::Operate,
    }
}

#[cfg(test)]
mod tests {
    use pando_protocol::ids::ClientId;
    use pando_protocol::message::{Freshness, MemberChange, Write};
    use pando_protocol::spec::Signal;

    use super::*;

    fn look() -> Call {
        Call::Read { query: Query::Members, freshness: Freshness::Stale }
    }

    /// One request of each kind that changes something.
    fn operations() -> [Call; 4] {
        let path: pando_protocol::ids::Path = "/shop/web".parse().unwrap();
        let change = Change::Stop(path.clone());
        let write = Write { client: ClientId(1), sequence: 1, lowest_unanswered: 1, change };
        let signal = Signal::named("SIGTERM").unwrap();
        let members = MemberChange::Remove("n1".parse().unwrap());
        [Call::Write(write), Call::Kill { path, signal }, Call::Transfer { to: None }, Call::Members(members)]
    }

    #[test]
    fn a_viewer_looks_and_never_operates() {
        let streams = [
            Call::Events { after: 0, follow: true },
            Call::Logs { path: "/shop/web".parse().unwrap(), tail: 10, follow: true },
        ];
        for call in streams.iter().chain([&look()]) {
            assert_eq!(may_ask(Role::Viewer, call), Ok(()), "{call:?}");
        }
        for call in operations() {
            let refused = Rejection::Forbidden { needed: "admin".into(), yours: "viewer".into() };
            assert_eq!(may_ask(Role::Viewer, &call), Err(refused), "{call:?}");
        }
    }

    #[test]
    fn a_producer_is_told_what_it_may_and_what_is_needed_instead() {
        let text = may_ask(Role::Producer, &look()).unwrap_err().to_string();
        assert!(text.contains("role viewer or admin, yours has the role producer"), "{text}");
        assert!(text.contains("only put messages into mailboxes") && text.contains("--identity"), "{text}");
        for call in operations() {
            assert!(may_ask(Role::Producer, &call).is_err(), "{call:?}");
        }
    }

    #[test]
    fn admins_and_nodes_ask_everything_and_only_nodes_open_what_is_between_nodes() {
        for call in operations().iter().chain([&look()]) {
            assert_eq!((may_ask(Role::Admin, call), may_ask(Role::Node, call)), (Ok(()), Ok(())));
        }
        let between_nodes =
            [Channel::Session, Channel::RaftAppend, Channel::RaftCall, Channel::Peer, Channel::Lease, Channel::Mail];
        for channel in between_nodes {
            let who: Vec<Role> = Role::ALL.into_iter().filter(|role| may_open(*role, channel)).collect();
            assert_eq!(who, [Role::Node], "{channel:?}");
        }
    }
}

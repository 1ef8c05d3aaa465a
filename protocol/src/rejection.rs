//! Why a request was refused: part of the protocol, for people to read and for programs to act on.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{NodeName, Path, TreeName};
use crate::role::Role;
use crate::spec::SpecMistake;

/// Why a request was refused. The text says what, why, and what to do. Variants are only ever appended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Rejection {
    /// No supervisor or child has this path.
    #[error("there is no {path}{}: `pando tree` shows what there is", did_you_mean(.nearest))]
    NoSuchPath {
        /// The path that was asked for.
        path: Path,
        /// The known path that looks most like it.
        nearest: Option<Path>,
    },
    /// No tree has this name.
    #[error("there is no tree {0}: `pando tree` shows what there is")]
    NoSuchTree(TreeName),
    /// No node has this name.
    #[error("there is no node {0}: `pando node ls` shows what there is")]
    NoSuchNode(NodeName),
    /// The spec has mistakes.
    #[error("the spec of tree {tree} is refused: {}", list(.mistakes))]
    BadSpec {
        /// The tree.
        tree: TreeName,
        /// Every mistake; at least one.
        mistakes: Vec<SpecMistake>,
    },
    /// A process would become a supervisor, or the other way round.
    #[error(
        "{path} would turn from a {from} into a {to}: give the new child another name, or apply the spec without {path} \
         first"
    )]
    KindChanged {
        /// The member.
        path: Path,
        /// What it is: `process` or `supervisor`.
        from: String,
        /// What it would become.
        to: String,
    },
    /// The tree is being deleted.
    #[error("tree {0} is being deleted, and its last processes are stopping: wait until it is gone, then apply again")]
    BeingDeleted(TreeName),
    /// A bound of the cluster is reached.
    #[error("{what}: at most {limit} are allowed")]
    TooMany {
        /// What there would be too many of, with the number.
        what: String,
        /// The bound.
        limit: u64,
    },
    /// The request does not fit the state of its subject.
    #[error("{path} {why}")]
    WrongState {
        /// The subject.
        path: Path,
        /// Why, and what to do.
        why: String,
    },
    /// The caller's certificate does not allow this.
    #[error(
        "this needs a certificate with the role {needed}, yours has the role {yours}{}: name another one with --context or \
         --identity; `pando certs` makes them where the CA is kept",
        permission(.yours)
    )]
    Forbidden {
        /// The role that is needed; several with *or* between them.
        needed: String,
        /// The role in the caller's certificate, as its word.
        yours: String,
    },
    /// A retry came so late that the cluster no longer knows whether it was applied.
    #[error(
        "too late to tell whether this was applied: replies are kept for 10 minutes; look at the state before you send it again"
    )]
    TooLateToTell,
    /// No leader could be reached in time; nothing is known to have been applied.
    #[error("no leader was reached within {waited:.1?}: {why}")]
    NoLeader {
        /// How long it was tried.
        waited: Duration,
        /// What was seen, and what to do.
        why: String,
    },
    /// The reply was lost: it may or may not have been applied.
    #[error("the reply was lost: it may or may not have been applied; look at the state before you send it again")]
    Unknown,
    /// A rule of ours panicked; the state is as it was before.
    #[error("internal error, nothing was changed: {0}; please report this with the logs of the leader")]
    Internal(String),
    /// The observation or session does not belong to a session that is alive.
    #[error("session {0} of this node is over")]
    SessionOver(crate::ids::SessionId),
    /// An observation came out of order.
    #[error("observation {got} came where {expected} was expected")]
    OutOfOrder {
        /// The number that came.
        got: u64,
        /// The number that was expected.
        expected: u64,
    },
    /// The request is malformed or of a kind that this node does not know.
    #[error("bad request: {0}")]
    BadRequest(String),
    /// Leadership cannot be moved there.
    #[error("leadership was not moved to {to}: {why}")]
    NotTransferred {
        /// The node that should lead.
        to: NodeName,
        /// Why, and what to do.
        why: String,
    },
    /// The request does not fit the state of a node.
    #[error("node {node} {why}")]
    WrongNodeState {
        /// The node.
        node: NodeName,
        /// Why, and what to do.
        why: String,
    },
    /// Who takes part in Raft was not changed.
    #[error("{name} was not {what}: {why}")]
    MembersNotChanged {
        /// The node that it was about.
        name: NodeName,
        /// What was asked for: `added`, `promoted` or `removed`.
        what: String,
        /// Why not, and what to do.
        why: String,
    },
    /// The member has no mailbox.
    #[error("{path} has no mailbox{}: only workers with the key mailbox have one, `pando mailbox` lists them", did_you_mean(.nearest))]
    NoMailbox {
        /// The path that was asked for.
        path: Path,
        /// The mailbox that may be meant: of the pool of a worker, or one whose path looks alike.
        nearest: Option<Path>,
    },
    /// A mailbox, or all of them together, has no room.
    #[error(
        "{path} is full: {why}; nothing was taken in. Send again once workers have caught up, purge dead letters, or raise the bound"
    )]
    MailboxFull {
        /// The mailbox.
        path: Path,
        /// Which bound, and how it stands.
        why: String,
    },
    /// A message that nobody could take.
    #[error("message {index} of the request is refused: {why}; none of them was taken in")]
    BadMessage {
        /// Its place in the request, from 0.
        index: u64,
        /// Why.
        why: String,
    },
    /// The rules that the cluster goes by do not have this yet.
    #[error(
        "{what} needs the rules of version {needed}, and the cluster goes by version {current}: it switches by itself once every \
         voter runs a newer pando; `pando cluster members` shows the voters"
    )]
    RulesTooOld {
        /// What was asked for.
        what: String,
        /// The version that has it.
        needed: u32,
        /// The version that holds.
        current: u32,
    },
}

fn did_you_mean(path: &Option<Path>) -> String {
    path.as_ref().map(|path| format!(" (did you mean {path}?)")).unwrap_or_default()
}

fn permission(role: &str) -> String {
    Role::from_word(role).map(|role| format!(", which may {}", role.permission())).unwrap_or_default()
}

fn list(mistakes: &[SpecMistake]) -> String {
    mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

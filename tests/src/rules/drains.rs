//! What a drain says, checked against what may run on its node from then on.

use pando_protocol::ids::Path;
use pando_protocol::message::Change;
use pando_supervision::{Applied, Command, Done};

use super::payers::Step;

/// A drain names everything that runs on its node, and everything for which room is kept there: it may start there again. Where an
/// operator stopped that, nobody waits for it.
///
/// # Errors
/// What it does not name.
pub fn check(step: Step<'_>, applied: &Applied) -> Result<(), String> {
    let Command::Write(write) = step.command else { return Ok(()) };
    let (Change::Drain(name), Ok(Done::Changed(changed))) = (&write.change, &applied.outcome) else { return Ok(()) };
    let is_retry = |client: &pando_supervision::cluster::ClientRecord| client.replies.contains_key(&write.sequence);
    if step.before.clients.get(&write.client).is_some_and(|client| is_retry(client)) {
        return Ok(()); // It is answered what was true then.
    }
    let Some(node) = step.before.nodes.get(name) else { return Ok(()) };
    let is_named = |path: &Path| changed.differences.iter().any(|difference| difference.path == *path);
    let is_wanted = |path: &&Path| {
        let mut all = std::iter::successors(Some((*path).clone()), Path::parent);
        all.all(|at| step.before.member(&at).is_some_and(|member| !member.held && !member.removed))
    };
    let sessions = || node.sessions.values();
    let runs = sessions().flat_map(|session| session.assigned.iter());
    let mut there = runs.chain(sessions().flat_map(|session| session.kept.iter().filter(is_wanted)));
    match there.find(|path| !is_named(path)) {
        Some(path) => Err(format!("a drain names what may run on its node: that of {name} does not name {path}")),
        None => Ok(()),
    }
}

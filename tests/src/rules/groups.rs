//! What a group restart takes down, checked against the words of the design.

use pando_protocol::spec::{Restart, Strategy};
use pando_supervision::cluster::{Body, DownReason, Group, Member, ProcessPhase, Stage, StopReason};
use pando_supervision::{Applied, EventKind};

use super::payers::Step;

/// Checks what a step did to groups.
///
/// # Errors
/// What does not hold.
pub fn check(step: Step<'_>, applied: &Applied) -> Result<(), String> {
    one_for_all_takes_all(step, applied)?;
    temporary_members_that_are_taken_down_are_gone(step)
}

/// Where a member of a `one_for_all` ended, the first of all children goes down, and so all do.
fn one_for_all_takes_all(step: Step<'_>, applied: &Applied) -> Result<(), String> {
    for event in applied.events.iter().filter(|event| event.kind == EventKind::GroupRestarts) {
        let Some((path, supervisor)) = event.path.as_ref().and_then(|path| Some((path, step.after.supervisor(path)?)))
        else {
            continue;
        };
        let Some(Group::TakingDown { from, .. }) = supervisor.group() else { continue };
        if supervisor.strategy == Strategy::OneForAll && supervisor.children.first() != Some(from) {
            return Err(format!("one_for_all takes all down: {path} begins at {from}"));
        }
    }
    Ok(())
}

/// A temporary child that was stopped for the sake of its group does not come back.
fn temporary_members_that_are_taken_down_are_gone(step: Step<'_>) -> Result<(), String> {
    for (path, member) in &step.after.members {
        let above = path.parent().and_then(|parent| step.before.supervisor(&parent));
        let was_taken_down = above.is_some_and(|above| above.taken_down().iter().any(|id| id.as_str() == path.name()))
            && step.before.run(path).is_some_and(|run| {
                // What was never started is run with the next generation.
                run.stopping == Some(StopReason::Group) && run.stage != Stage::Assigned
            });
        let is_free = |member: &Member| !member.held && !member.removed && member.restart == Restart::Temporary;
        let was_free = step.before.member(path).is_some_and(is_free);
        let Body::Process(process) = &member.body else { continue };
        if was_taken_down && was_free && is_free(member) && process.phase == ProcessPhase::Down(DownReason::Supervisor)
        {
            let is_group_up =
                path.parent().and_then(|parent| step.after.supervisor(&parent)?.group().cloned()).is_some();
            if is_group_up {
                return Err(format!("temporary members that are taken down are gone: {path} is to start again"));
            }
        }
    }
    Ok(())
}

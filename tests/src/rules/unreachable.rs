//! What is kept while its node is silent: kept a second time from what runners say, and compared with the state after each step.

use pando_protocol::session::Observation;
use pando_supervision::cluster::Run;
use pando_supervision::{Command, EndProof};

use super::payers::Step;

/// What must hold of runs that outlive their lease.
///
/// # Errors
/// What does not hold.
pub fn check(step: Step<'_>) -> Result<(), String> {
    what_a_runner_names_goes_on_under_its_session(step)?;
    the_end_of_a_lease_ends_nothing_that_is_kept(step)
}

fn what_a_runner_names_goes_on_under_its_session(step: Step<'_>) -> Result<(), String> {
    let Command::Observe { node, session, .. } = step.command else { return Ok(()) };
    let Some(Observation::Kept { sessions, runs }) = step.word() else { return Ok(()) };
    for named in runs {
        let Some(old) = step.before.run(&named.path).filter(|old| old.incarnation == named.incarnation) else {
            continue;
        };
        let is_theirs = old.keep && old.node == *node && old.session < *session && sessions.contains(&old.session);
        let goes_on = step
            .after
            .run(&named.path)
            .is_some_and(|run| (run.incarnation, run.session, run.stage) == (old.incarnation, *session, old.stage));
        if is_theirs && !goes_on {
            return Err(format!("what a runner names goes on under its session: {named:?} does not"));
        }
    }
    Ok(())
}

fn the_end_of_a_lease_ends_nothing_that_is_kept(step: Step<'_>) -> Result<(), String> {
    let Command::EndSession { node, session, proof: EndProof::Lease } = step.command else { return Ok(()) };
    let Some(known) = step.before.session(node, *session).filter(|known| known.observed > 0) else { return Ok(()) };
    for path in &known.assigned {
        let Some(old) = step.before.run(path).filter(|old| old.keep) else { continue };
        // It may be asked to end, for the sake of those that are lost.
        let same = |run: &Run| (run.incarnation, run.session) == (old.incarnation, old.session);
        if !step.after.run(path).is_some_and(|run| same(run) && step.after.is_unreachable(run)) {
            return Err(format!(
                "the end of a lease ends nothing that is kept: {path} of {node} {session} is not unreachable"
            ));
        }
    }
    Ok(())
}

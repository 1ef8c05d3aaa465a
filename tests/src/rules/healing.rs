//! The end of a run: everything works again, and then everything that should run does, or waits for an operator by name.

use std::time::Duration;

use pando_protocol::ids::NodeName;
use pando_protocol::message::Change;
use pando_protocol::view::{State, Verdict};
use pando_supervision::{Command, report};

use super::sim::Sim;
use super::trees::{LABELS, LONGEST_DELAY};

/// After healing, within this and the largest configured delay, everything that should run is ready.
const WITHIN: Duration = Duration::from_secs(10);

/// Every machine comes back with room for all and every label; runners and children behave from here on.
///
/// # Errors
/// What does not hold, or what is not whole in time.
pub fn heal(sim: &mut Sim) -> Result<(), String> {
    let nodes: Vec<NodeName> = sim.runners.keys().cloned().collect();
    for node in &nodes {
        sim.end_ghosts(node)?;
        sim.bury_ghosts(node)?;
        // What is kept on one that is silent goes on.
        if sim.runners.get(node).is_some_and(|runner| runner.session.is_some()) {
            sim.lose(node, pando_supervision::EndProof::Obituary("healed".into()))?;
        }
        if let Some(runner) = sim.runners.get_mut(node) {
            runner.slots = 1_000;
            runner.labels = LABELS.iter().map(|label| label.parse().expect("a label")).collect();
        }
        sim.join(node, Vec::new())?;
        let undrain = sim.write(u128::MAX, Change::Undrain(node.clone()));
        sim.step(Command::Write(undrain))?;
    }
    sim.advance_to(sim.now + WITHIN + LONGEST_DELAY)?;
    everything_runs_or_waits_for_an_operator(sim)
}

fn everything_runs_or_waits_for_an_operator(sim: &Sim) -> Result<(), String> {
    for row in report::tree(&sim.cluster, None) {
        let explained = report::explain(&sim.cluster, &row.path);
        let next = explained.map(|explained| explained.next).unwrap_or_default();
        let is_whole = match row.state {
            State::Running => true,
            State::Stopped | State::Finished | State::Failed => next.contains("`pando "),
            State::Waiting
            | State::BackingOff
            | State::Starting
            | State::Started
            | State::Stopping
            | State::Unreachable => false,
        };
        if row.verdict == Verdict::Looping {
            return Err(format!("after healing no child is looping: {row:?}"));
        }
        if !is_whole {
            return Err(format!("after healing everything runs or waits for an operator: {row:?}, next: {next}"));
        }
        let root = row.path.depth() == 1;
        let settled = report::settled(&sim.cluster, &row.path);
        if root && settled.as_ref().is_some_and(|settled| !settled.whole && settled.failed.is_none()) {
            return Err(format!("after healing every tree is whole or failed: {settled:?}"));
        }
    }
    Ok(())
}

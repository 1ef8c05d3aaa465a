//! What each kind of command is called in tables. Without a catch-all, so that whoever adds a variant is sent here, and to the tables.

use pando_protocol::message::Change;
use pando_protocol::session::Observation;

/// The name of a change.
pub fn change_name(change: &Change) -> &'static str {
    match change {
        Change::Apply(_) => "apply",
        Change::Delete(_) => "delete",
        Change::Start(_) => "start",
        Change::Stop(_) => "stop",
        Change::Restart(_) => "restart",
        Change::Drain(_) => "drain",
        Change::Undrain(_) => "undrain",
        Change::RemoveNode(_) => "remove_node",
        Change::Quarantine(_) => "quarantine",
        Change::RemoveDeadNode(_) => "remove_dead_node",
        Change::ApplyLeaving(..) => "apply_leaving",
        Change::DeleteLeaving(..) => "delete_leaving",
        Change::Scale { .. } => "scale",
        Change::Send { .. } => "send",
        Change::Pause(_) => "pause",
        Change::Resume(_) => "resume",
        Change::Redrive { .. } => "redrive",
        Change::PurgeDead { .. } => "purge_dead",
        Change::PurgeWaiting(_) => "purge_waiting",
    }
}

/// The name of an observation.
pub fn observation_name(observation: &Observation) -> &'static str {
    match observation {
        Observation::Started { .. } => "started",
        Observation::Ready { .. } => "ready",
        Observation::Exited { .. } => "exited",
        Observation::NeverStarted { .. } => "never_started",
        Observation::Leaving => "leaving",
        Observation::Left => "left",
        Observation::Kept { .. } => "kept",
        Observation::WorkerReady { .. } => "worker_ready",
        Observation::Settled(_) => "settled",
        Observation::Stopping { .. } => "stopping",
    }
}

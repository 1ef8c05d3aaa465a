//! What an ending was: its class and the evidence for it. Design section 5.2.

use pando_protocol::cause::{Cause, CauseClass, Exit, ExitHow, MAX_STDERR, MAX_STDERR_LINES, OutOfMemory};
use pando_protocol::ids::{NodeName, Path};
use pando_protocol::spec::{ExitAction, ExitMatch, ProcessSpec};

use crate::change::{clipped, human};
use crate::cluster::{Cluster, Run, StopReason};
use crate::endings::Over;
use crate::mutation::{Mutation, broken};

/// Most bytes that are kept of why something could not be started or how a node was lost.
pub(crate) const MAX_WHY: usize = 512;

/// Why a run is over.
pub(crate) fn cause_of(cluster: &Cluster, path: &Path, run: &Run, over: &Over, spec: &ProcessSpec) -> Cause {
    let (class, message) = classify(run, over, spec);
    let (code, signal, stderr) = match over {
        Over::NeverStarted | Over::Lost { .. } => (None, None, String::new()),
        Over::Exited { exit, .. } => {
            let stderr = match &exit.stderr {
                Some(text) => evidence(text).to_owned(),
                None => last_stderr(cluster, path, &run.node),
            };
            match exit.how {
                ExitHow::Code(code) => (Some(code), None, stderr),
                ExitHow::Signal(signal) => (None, Some(signal), stderr),
                ExitHow::StartFailed(_)
                | ExitHow::Unready(_)
                | ExitHow::ReaperLost
                | ExitHow::Hung(_)
                | ExitHow::Idle(_)
                | ExitHow::Misbehaved(_) => (None, None, stderr),
            }
        }
    };
    let (incarnation, node) = (Some(run.incarnation), Some(run.node.clone()));
    Cause { path: path.clone(), class, message, code, signal, incarnation, node, stderr }
}

/// The standard error of the last process of this child that ended on `node`, which its runner does not send twice.
fn last_stderr(cluster: &Cluster, path: &Path, node: &NodeName) -> String {
    let Some(member) = cluster.member(path) else { return String::new() };
    let causes = member.history.iter().rev().filter_map(|entry| entry.cause.innermost());
    let mut ended_there = causes.filter(|cause| cause.node.as_ref() == Some(node) && had_process(cause));
    ended_there.next().map(|cause| cause.stderr.clone()).unwrap_or_default()
}

/// Whether a runner reported an exit, with its standard error. The other endings have none and say nothing about it.
fn had_process(cause: &Cause) -> bool {
    match cause.class {
        CauseClass::NodeLost | CauseClass::Escalated | CauseClass::AutoShutdown => false,
        CauseClass::Stopped => cause.code.is_some() || cause.signal.is_some(),
        CauseClass::Normal
        | CauseClass::Crash
        | CauseClass::Unhealthy
        | CauseClass::StartFailed
        | CauseClass::ReaperLost => true,
    }
}

/// The last lines of a standard error, within the bounds of what is kept.
fn evidence(text: &str) -> &str {
    let text = clipped(text, MAX_STDERR);
    let ends = text.trim_end_matches('\n').rmatch_indices('\n').map(|(at, _)| at + 1);
    ends.take(MAX_STDERR_LINES).nth(MAX_STDERR_LINES - 1).map_or(text, |from| &text[from..])
}

fn classify(run: &Run, over: &Over, spec: &ProcessSpec) -> (CauseClass, String) {
    let exit = match over {
        Over::Lost { how, .. } => return (CauseClass::NodeLost, format!("node {} lost: {how}", run.node)),
        Over::NeverStarted => {
            let why = run.stopping.map_or("stopped", StopReason::as_str);
            return (CauseClass::Stopped, format!("{why} before it started"));
        }
        Over::Exited { exit, .. } => exit,
    };
    let after = human(exit.ran);
    if let Some(reason) = run.stopping {
        return (CauseClass::Stopped, format!("{} ({})", reason.as_str(), how(exit)));
    }
    let rule = rule_for(&exit.how, spec);
    match &exit.how {
        ExitHow::Code(code)
            if rule == Some(ExitAction::Ignore) || (rule.is_none() && spec.normal_exit.contains(code)) =>
        {
            (CauseClass::Normal, format!("exit code {code} after {after}"))
        }
        ExitHow::Signal(signal) if rule == Some(ExitAction::Ignore) => {
            (CauseClass::Normal, format!("{signal} after {after}"))
        }
        ExitHow::Code(_) | ExitHow::Signal(_) => (CauseClass::Crash, format!("{} after {after}", how(exit))),
        ExitHow::StartFailed(why) => {
            (CauseClass::StartFailed, format!("could not be started: {}", clipped(why, MAX_WHY)))
        }
        ExitHow::Unready(within) => (CauseClass::Unhealthy, format!("not ready within {}", human(*within))),
        ExitHow::ReaperLost => (CauseClass::ReaperLost, format!("its reaper was killed after {after}")),
        ExitHow::Hung(_) | ExitHow::Idle(_) | ExitHow::Misbehaved(_) => (CauseClass::Unhealthy, how(exit)),
    }
}

fn how(exit: &Exit) -> String {
    let memory = match exit.out_of_memory {
        OutOfMemory::No => "",
        OutOfMemory::Likely => " (likely out of memory)",
        OutOfMemory::Yes => " (out of memory)",
    };
    match &exit.how {
        ExitHow::Code(code) => format!("exit code {code}"),
        ExitHow::Signal(signal) => format!("{signal}{memory}"),
        ExitHow::StartFailed(why) => clipped(why, MAX_WHY).to_owned(),
        ExitHow::Unready(within) => format!("not ready within {}", human(*within)),
        ExitHow::ReaperLost => "its reaper was killed".into(),
        ExitHow::Hung(limit) => format!("hung: no progress with a message within {}", human(*limit)),
        ExitHow::Idle(limit) => format!("held messages and started none within {}", human(*limit)),
        ExitHow::Misbehaved(why) => format!("broke the worker protocol: {}", clipped(why, MAX_WHY)),
    }
}

fn rule_for(how: &ExitHow, spec: &ProcessSpec) -> Option<ExitAction> {
    if broken(Mutation::ExitRulesIgnored) {
        return None;
    }
    let ended = match how {
        ExitHow::Code(code) => ExitMatch::Code(*code),
        ExitHow::Signal(signal) => ExitMatch::Signal(*signal),
        ExitHow::StartFailed(_)
        | ExitHow::Unready(_)
        | ExitHow::ReaperLost
        | ExitHow::Hung(_)
        | ExitHow::Idle(_)
        | ExitHow::Misbehaved(_) => return None,
    };
    spec.on_exit.iter().find(|rule| rule.when == ended).map(|rule| rule.action)
}

/// What a rule of `on_exit` says about an ending; `None` where no rule does, or where it only makes the ending normal.
pub(crate) fn action_for(cause: &Cause, spec: &ProcessSpec) -> Option<ExitAction> {
    let how = match (cause.code, cause.signal) {
        (Some(code), _) => ExitHow::Code(code),
        (None, Some(signal)) => ExitHow::Signal(signal),
        (None, None) => return None,
    };
    rule_for(&how, spec).filter(|action| *action != ExitAction::Ignore)
}

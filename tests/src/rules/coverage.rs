//! What a run of the generator reached: every command, observation, change and kind of event, and how often.

use std::collections::BTreeMap;
use std::fmt;

use pando_protocol::session::Observation;
use pando_supervision::{Applied, Command, EndProof, EventKind};

use super::names::{change_name, observation_name};
use super::payers::Step;

/// Everything that can be asked or observed, as the table names it.
const ACCEPTED: [&str; 25] = [
    "command tick",
    "command write",
    "command grant_session",
    "command end_session obituary",
    "command end_session lease",
    "command observe",
    "command raise_rules",
    "change apply",
    "change delete",
    "change start",
    "change stop",
    "change restart",
    "change drain",
    "change undrain",
    "change remove_node",
    "change quarantine",
    "change remove_dead_node",
    "observation started",
    "observation ready",
    "observation exited",
    "observation never_started",
    "observation leaving",
    "observation left",
    "observation kept",
    "observation stopping",
];

/// How often each was accepted and made a difference, and how often each kind of event happened.
#[derive(Debug, Clone, Default)]
pub struct Coverage {
    counts: BTreeMap<String, u64>,
}

impl Coverage {
    /// Counts a step.
    pub fn note(&mut self, step: Step<'_>, applied: &Applied) {
        for event in &applied.events {
            self.count(format!("event {}", event.kind.as_str()));
        }
        if applied.outcome.is_err() {
            return;
        }
        // A repeated command is accepted too, but it proves nothing.
        let makes_a_difference = step.before != step.after || matches!(step.command, Command::Tick);
        if !makes_a_difference {
            return;
        }
        match step.command {
            Command::Tick => self.count("command tick".into()),
            Command::Write(write) => {
                self.count("command write".into());
                if (&step.before.members, &step.before.nodes) != (&step.after.members, &step.after.nodes) {
                    self.count(format!("change {}", change_name(&write.change)));
                }
            }
            Command::GrantSession(_) => self.count("command grant_session".into()),
            Command::EndSession { proof: EndProof::Obituary(_), .. } => {
                self.count("command end_session obituary".into());
            }
            Command::EndSession { proof: EndProof::Lease, .. } => self.count("command end_session lease".into()),
            Command::Observe { observation, .. } => {
                self.count("command observe".into());
                let is_about_all = matches!(observation, Observation::Leaving | Observation::Left);
                if is_about_all || step.before.members != step.after.members {
                    self.count(format!("observation {}", observation_name(observation)));
                }
            }
            Command::RaiseRules(_) => self.count("command raise_rules".into()),
        }
    }

    fn count(&mut self, name: String) {
        *self.counts.entry(name).or_default() += 1;
    }

    /// Adds what another run reached.
    pub fn add(&mut self, other: &Self) {
        for (name, count) in &other.counts {
            *self.counts.entry(name.clone()).or_default() += count;
        }
    }

    /// Everything that should be reached and was reached less often than `least`.
    pub fn short_of(&self, least: u64) -> Vec<String> {
        let accepted = ACCEPTED.iter().map(ToString::to_string);
        // A panic in a rule ends the sequence as a finding.
        let kinds = EventKind::ALL.iter().filter(|kind| **kind != EventKind::RulePanicked && !is_of_mail(**kind));
        let events = kinds.map(|kind| format!("event {}", kind.as_str()));
        let reached = |name: &String| self.counts.get(name).copied().unwrap_or(0);
        accepted.chain(events).filter(|name| reached(name) < least).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in &self.counts {
            writeln!(f, "{name:<32} {count:>9}")?;
        }
        Ok(())
    }
}

/// Mailboxes have a simulation of their own.
fn is_of_mail(kind: EventKind) -> bool {
    use EventKind::{
        LettersRedriven, MailPurged, MailboxClosed, MailboxPaused, MailboxResumed, MessageDead, WorkerSick, WorkerWell,
    };
    matches!(
        kind,
        MessageDead
            | WorkerSick
            | WorkerWell
            | MailboxPaused
            | MailboxResumed
            | MailboxClosed
            | LettersRedriven
            | MailPurged
    )
}

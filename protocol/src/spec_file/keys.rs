//! Which keys there are, and what to say to a key that does not belong.

use super::document::Entry;
use super::mistake::Finding;

/// What the keys of a table describe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The file itself.
    Root,
    /// A child with `children`.
    Supervisor,
    /// A child with `command`.
    Process,
    /// A child with both or neither, which is a mistake of its own.
    Undecided,
}

const ROOT: &[&str] = &["name", "strategy", "intensity", "auto_shutdown", "colocate", "children"];
const SUPERVISOR: &[&str] =
    &["id", "strategy", "intensity", "auto_shutdown", "colocate", "restart", "backoff", "significant", "children"];
const PROCESS: &[&str] = &[
    "id",
    "command",
    "restart",
    "backoff",
    "intensity",
    "shutdown",
    "stop_signal",
    "significant",
    "normal_exit",
    "on_disconnect",
    "env",
    "cwd",
    "slots",
    "ready",
    "place",
    "on_exit",
    "count",
    "mailbox",
];
const UNDECIDED: &[&str] = &[
    "id",
    "command",
    "children",
    "strategy",
    "intensity",
    "auto_shutdown",
    "colocate",
    "restart",
    "backoff",
    "shutdown",
    "stop_signal",
    "significant",
    "normal_exit",
    "on_disconnect",
    "env",
    "cwd",
    "slots",
    "ready",
    "place",
    "on_exit",
    "count",
    "mailbox",
];

pub(super) const INTENSITY: &[&str] = &["max_restarts", "within"];
pub(super) const BACKOFF: &[&str] = &["base", "cap", "factor", "jitter", "reset_after"];
pub(super) const READY: &[&str] = &["exec", "notify", "within", "interval"];
pub(super) const PLACE: &[&str] = &["require", "prefer", "spread"];
pub(super) const ON_EXIT: &[&str] = &["code", "signal", "do"];
pub(super) const MAILBOX: &[&str] = &[
    "max_attempts",
    "retry_delay",
    "handling_timeout",
    "prefetch",
    "max_messages",
    "max_bytes",
    "suspect_after",
    "max_node_losses",
];

impl Role {
    /// The keys that belong to it.
    pub fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Root => ROOT,
            Self::Supervisor => SUPERVISOR,
            Self::Process => PROCESS,
            Self::Undecided => UNDECIDED,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Root => "the root",
            Self::Supervisor => "a supervisor",
            Self::Process => "a process",
            Self::Undecided => "a child",
        }
    }

    /// What is wrong with a key that does not belong here.
    pub fn stranger(self, entry: &Entry) -> Finding {
        let key = entry.key.as_str();
        let elsewhere: Vec<&str> = [Self::Root, Self::Supervisor, Self::Process]
            .into_iter()
            .filter(|role| *role != self && role.keys().contains(&key))
            .map(Self::name)
            .collect();
        if elsewhere.is_empty() {
            return unknown(entry, self.keys());
        }
        let what = format!("{key:?} is not a key of {}: only of {}", self.name(), elsewhere.join(" and "));
        let nearest = match (self, key) {
            (Self::Root, "id") => Some("name".into()),
            (_, "name") => Some("id".into()),
            _ => None,
        };
        Finding { nearest, expected: Some(one_of(self.keys())), ..Finding::new(entry.key_span.clone(), what) }
    }
}

/// What is wrong with a key that is not one of `allowed`.
pub(super) fn unknown(entry: &Entry, allowed: &[&str]) -> Finding {
    let shown = super::document::shortened(&entry.key);
    Finding {
        nearest: nearest(&entry.key, allowed.iter().copied()),
        expected: Some(one_of(allowed)),
        ..Finding::new(entry.key_span.clone(), format!("unknown key {shown:?}"))
    }
}

/// Whether one of the entries is, misspelt, the key that is missing.
pub(super) fn is_meant(entries: &[Entry], missing: &str) -> bool {
    let stranger = |entry: &&Entry| !UNDECIDED.contains(&entry.key.as_str());
    entries
        .iter()
        .filter(stranger)
        .any(|entry| nearest(&entry.key, UNDECIDED.iter().copied()).as_deref() == Some(missing))
}

/// The known word that looks most like `word`, if one does.
pub(super) fn nearest<'w>(word: &str, known: impl Iterator<Item = &'w str>) -> Option<String> {
    // A word much longer than any of ours is no slip of the finger, and the measure takes the square of its length.
    let word: String = word.chars().take(40).collect::<String>().to_lowercase();
    known
        .map(|candidate| (likeness(&word, &candidate.to_lowercase()), candidate))
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate.to_owned())
}

/// From 0 to 1. One slip always counts as alike: the measure is too strict with words of two or three letters.
fn likeness(word: &str, candidate: &str) -> f64 {
    let likeness = strsim::jaro_winkler(word, candidate);
    if strsim::damerau_levenshtein(word, candidate) <= 1 { likeness.max(ALIKE) } else { likeness }
}

/// Words less alike than this do not look alike to a person.
const ALIKE: f64 = 0.8;

fn one_of(keys: &[&str]) -> String {
    format!("one of {}", keys.join(", "))
}

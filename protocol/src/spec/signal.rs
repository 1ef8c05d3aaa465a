//! Signals by number and name.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A signal by number, 1 to 64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Signal(pub u8);

/// The signals that have a name here.
const SIGNALS: [(&str, u8); 18] = [
    ("SIGHUP", 1),
    ("SIGINT", 2),
    ("SIGQUIT", 3),
    ("SIGILL", 4),
    ("SIGTRAP", 5),
    ("SIGABRT", 6),
    ("SIGBUS", 7),
    ("SIGFPE", 8),
    ("SIGKILL", 9),
    ("SIGUSR1", 10),
    ("SIGSEGV", 11),
    ("SIGUSR2", 12),
    ("SIGPIPE", 13),
    ("SIGALRM", 14),
    ("SIGTERM", 15),
    ("SIGCONT", 18),
    ("SIGSTOP", 19),
    ("SIGWINCH", 28),
];

impl Signal {
    /// The polite request to end.
    pub const TERM: Self = Self(15);
    /// The end.
    pub const KILL: Self = Self(9);

    /// The signal of this name (`SIGTERM`, `TERM`, `term` or `15`); `None` where there is none.
    pub fn named(text: &str) -> Option<Self> {
        if let Ok(number) = text.parse::<u8>() {
            return Self::try_from(number).ok();
        }
        let upper = text.to_ascii_uppercase();
        let full = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
        SIGNALS.iter().find(|(name, _)| *name == full).map(|(_, number)| Self(*number))
    }

    /// The names that [`Signal::named`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SIGNALS.iter().map(|(name, _)| *name)
    }
}

impl TryFrom<u8> for Signal {
    type Error = String;
    /// Refuses what is no signal: number 0 asks whether a process exists, and numbers from 65 on mean nothing.
    fn try_from(number: u8) -> Result<Self, String> {
        if (1..=64).contains(&number) {
            Ok(Self(number))
        } else {
            Err(format!("{number} is not a signal: expected 1 to 64"))
        }
    }
}

impl From<Signal> for u8 {
    fn from(signal: Signal) -> Self {
        signal.0
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match SIGNALS.iter().find(|(_, number)| *number == self.0) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "signal {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{VERSION, decode};

    #[test]
    fn a_signal_goes_by_its_name_with_or_without_sig_and_by_number() {
        for text in ["SIGTERM", "TERM", "term", "15"] {
            assert_eq!(Signal::named(text), Some(Signal::TERM), "{text}");
        }
        for text in ["", "SIG", "SIGNAL", "0", "65", "-1", "256"] {
            assert_eq!(Signal::named(text), None, "{text}");
        }
    }

    #[test]
    fn a_number_from_the_wire_that_is_no_signal_is_refused() {
        assert_eq!(decode::<Signal, 64>(&[VERSION, 9]).unwrap(), Signal::KILL);
        assert!(decode::<Signal, 64>(&[VERSION, 0]).is_err());
        assert!(decode::<Signal, 64>(&[VERSION, 65]).is_err());
    }
}

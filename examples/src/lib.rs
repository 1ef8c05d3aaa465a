//! What the example programs share: small children for Pando to run, written with the standard library alone.
//!
//! ```text
//!   shop-web  ◄── HTTP ── shop-load      one answers with its run, one watches for gaps between answers
//!   shop-feed                            beats, and crashes when it is told to
//! ```
//!
//! They know of Pando only what any child is told: the variables in [`run`] and, for [`ready`], `$NOTIFY_SOCKET`.

pub mod arguments;
pub mod gaps;
pub mod http;
pub mod ready;
pub mod run;
pub mod signals;

use std::fmt::Display;
use std::io::Write;

/// Prints one line. Ends the program with code 1 when nobody can read it any more: an example without readers has no use.
pub fn say(line: impl Display) {
    if writeln!(std::io::stdout().lock(), "{line}").is_err() {
        std::process::exit(1);
    }
}

/// Prints one line to standard error, where Pando takes the evidence of a crash from.
pub fn complain(line: impl Display) {
    // Nothing is left to be done about a standard error that is gone.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

//! What the `pando-node` program does, by its first word.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::config::{Arguments, Config};
use crate::{guard, launcher, node, telemetry};

/// Whoever supervises a node starts it again when it ends with this.
const START_AGAIN: u8 = 70;
const USAGE: u8 = 2;

const HELP: &str = "\
pando-node run --help       a node: its flags
pando-node launch -- …      PID 1 of a container: passes signals on, reaps, and waits for the guard of a dead node
pando-node guard            started by the node itself
";

/// Runs the program that the command line asks for: a node, its guard, or the launcher. `rules` is the version of the rules up
/// to which a node goes: that of this build, but for tests of upgrades.
pub fn main(rules: u32) -> ExitCode {
    // Guard and launcher fork, so they begin before any thread, runtime or logger exists.
    let mut words = std::env::args_os();
    let program = words.next().unwrap_or_default();
    match words.next().as_deref().and_then(|word| word.to_str()) {
        Some("guard") => guard::main(&mut node::report_death),
        Some("launch") => launcher::main(words),
        Some("--help" | "-h" | "help") => {
            _ = io::stdout().write_all(HELP.as_bytes());
            ExitCode::SUCCESS
        }
        Some("--version" | "-V") => {
            _ = writeln!(io::stdout(), "pando-node {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Some("run") => run(Arguments::parse_from(std::iter::once(program).chain(words)), rules),
        _ => {
            _ = io::stderr().write_all(HELP.as_bytes());
            ExitCode::from(USAGE)
        }
    }
}

fn run(arguments: Arguments, rules: u32) -> ExitCode {
    let config = match arguments.check() {
        Ok(config) => Config { rules, ..config },
        Err(error) => {
            _ = writeln!(io::stderr(), "pando-node: {error}");
            return ExitCode::from(USAGE);
        }
    };
    telemetry::start_logging();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "no runtime");
            return ExitCode::from(START_AGAIN);
        }
    };
    let ended = runtime.block_on(node::run(config));
    // Blocking reads of standard input and logs must not hold up the end.
    runtime.shutdown_timeout(Duration::from_millis(200));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let why = format!("{error:#}");
            tracing::error!(why, "the node ends");
            _ = writeln!(io::stderr(), "pando-node: {why}");
            ExitCode::from(START_AGAIN)
        }
    }
}

//! Prints hashes of the state along one random sequence, so that two builds in two processes can be compared.
//!
//! `replay-rules SEED STEPS [RESTORE]`: the sequence of SEED with STEPS commands and its healing; before the command with the
//! index RESTORE the state is written as a snapshot is, and read back. One line each ten commands: how many, and the hash.

use std::process::ExitCode;

use pando_tests::rules::{generator, replay::replay};

/// Commands between two hashes.
const EACH: usize = 10;

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(lines) => {
            print!("{lines}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("replay-rules: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<String, String> {
    let number = |at: usize, what: &str| {
        let text = args.get(at).ok_or_else(|| format!("{what} is missing: replay-rules SEED STEPS [RESTORE]"))?;
        text.parse::<usize>().map_err(|error| format!("{what} {text:?}: {error}"))
    };
    let (seed, steps) = (number(0, "SEED")?, number(1, "STEPS")?);
    let restored = if args.len() > 2 { Some(number(2, "RESTORE")?) } else { None };
    let sim = generator::run(seed as u64, steps)?;
    let hashes = replay(&sim.log, EACH, restored)?;
    Ok(hashes.iter().map(|(count, hash)| format!("{count} {hash:016x}\n")).collect())
}

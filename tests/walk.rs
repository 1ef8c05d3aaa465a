//! The walk of the README, run as it is typed: what stands there is what comes out.
//!
//! ```text
//!   README.md ──► [script] the commands between the markers ──► [session] a `pando dev` of its own ──► output
//!       ▲                                                                                                │
//!       └── as it came (.ci/walk --write) ◄──────────────────────── or compared, numbers masked: [masks] ┘
//! ```

#[path = "walk/masks.rs"]
mod masks;
#[path = "walk/script.rs"]
mod script;
#[path = "walk/session.rs"]
mod session;

use std::fs;
use std::path::PathBuf;

use pando_tests::namespace;
use script::{Script, Step};
use session::Session;

/// Set by `.ci/walk --write`: the README is rewritten instead of compared.
const WRITE: &str = "PANDO_WALK_WRITE";

#[test]
fn the_walk_of_the_readme_shows_what_really_comes_out() {
    // The shop listens on a port of its own choice: in a network of its own the walk meets no other walk, and nobody's server.
    if !namespace::is_inside() {
        return namespace::run_again("the_walk_of_the_readme_shows_what_really_comes_out", &["--net"]);
    }
    namespace::raise_loopback();
    let readme = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let text = fs::read_to_string(&readme).expect("the README");
    let script = Script::parse(&text).unwrap_or_else(|mistake| panic!("README.md: {mistake}"));
    let outputs = walk(&script);
    if std::env::var_os(WRITE).is_some() {
        fs::write(&readme, script.with_outputs(&outputs)).expect("the README is written");
        return;
    }
    let mut differences = String::new();
    for ((command, expected), output) in script.commands().zip(&outputs) {
        let (expected, output) = (masks::masked(&expected), masks::masked(output));
        if expected != output {
            differences.push_str(&format!("$ {command}\n{}\n", difference(&expected, &output)));
        }
    }
    assert!(
        differences.is_empty(),
        "the walk in README.md differs from what comes out (- README, + now; numbers are masked):\n\n{differences}\
         `.ci/walk --write` writes what comes out into README.md"
    );
}

/// Runs every step in order; the output of each command.
fn walk(script: &Script) -> Vec<String> {
    let mut session = Session::new();
    let mut outputs = Vec::new();
    for step in &script.steps {
        match step {
            Step::Until(condition) => session.until(condition),
            Step::Command { text, .. } => outputs.push(session.run(text)),
        }
    }
    session.stop();
    outputs
}

/// The lines of both, those that only one has with a sign.
fn difference(expected: &str, output: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), output.lines().collect());
    let same = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let rest = old[same..].iter().rev().zip(new[same..].iter().rev()).take_while(|(old, new)| old == new).count();
    let signed = |sign, lines: &[&str]| lines.iter().map(|line| format!("{sign} {line}\n")).collect::<String>();
    [
        signed(' ', &old[..same]),
        signed('-', &old[same..old.len() - rest]),
        signed('+', &new[same..new.len() - rest]),
        signed(' ', &old[old.len() - rest..]),
    ]
    .concat()
}

//! The command line against real nodes: what goes to standard output, the names of JSON fields, and exit codes.

use std::fs;
use std::process::Output;

use pando_tests::cluster::{Cluster, Options, SOON};
use pando_tests::wait::wait_until;
use serde_json::Value;

#[path = "cli/changing.rs"]
mod changing;
#[path = "cli/dev.rs"]
mod dev;
#[path = "cli/exit_codes.rs"]
mod exit_codes;
#[path = "cli/mail.rs"]
mod mail;
#[path = "cli/reading.rs"]
mod reading;
#[path = "cli/roles.rs"]
mod roles;
#[path = "cli/top.rs"]
mod top;

/// A command that ended.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ran {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    /// Checks the exit code, and gives what stands on standard output.
    #[track_caller]
    fn with_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// Standard output as one JSON value.
    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    /// Standard output as one JSON value a line.
    #[track_caller]
    fn json_lines(&self) -> Vec<Value> {
        let value = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        self.stdout.lines().map(value).collect()
    }
}

/// Runs `pando` with the words of a line.
#[track_caller]
fn pando(cluster: &Cluster, line: &str) -> Ran {
    Ran::of(&cluster.cli(&line.split(' ').collect::<Vec<_>>()))
}

/// A cluster of one voter.
async fn one_node() -> Cluster {
    Cluster::with(Options { voters: 1, ..Options::default() }).await
}

/// Writes a spec file into the folder in which `pando` runs.
fn spec_file(cluster: &Cluster, name: &str, text: &str) {
    fs::write(cluster.folder().join(name), text).expect("a spec file");
}

/// Applies a spec file with mailboxes. Those are refused until the leader of a new cluster knows that every voter knows the rules
/// that brought them, and that goes by itself.
async fn apply_with_mailboxes(cluster: &Cluster, file: &str) -> Ran {
    let apply = async || pando(cluster, &format!("apply {file}"));
    let is_over = |ran: &Ran| ran.code != Some(4) || !ran.stderr.contains("needs the rules of version");
    wait_until("the rules to be raised", SOON, apply, is_over).await
}

/// Two children: one stays; one crashes the first time, with last words, and stays from then on.
const TREE: &str = r#"
name = "t"

[[children]]
id = "stay"
command = ["sleep", "infinity"]
env = { GREETING = "hello" }

[[children]]
id = "once"
command = ["sh", "-c", "test -e crashed && exec sleep infinity; touch crashed; echo 'last words' >&2; exit 3"]
"#;

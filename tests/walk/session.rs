//! A terminal for the walk: the repository as its folder, a home of its own, and one `pando dev`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pando_tests::programs;
use pando_tests::wait::wait_until_blocking;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Bound for each condition: all of them take a second or two on an idle machine.
const LIMIT: Duration = Duration::from_secs(90);
/// The command that goes on in a terminal of its own.
const DEV: &str = "pando dev";
/// Its last line once the cluster is up.
const UP: &str = "Ctrl-C here stops everything.";
/// What stands in the README for the home of the walk.
const HOME_IN_README: &str = "/home/you";

/// The terminal.
pub struct Session {
    home: TempDir,
    dev: Option<Child>,
}

impl Session {
    /// Nothing runs yet.
    pub fn new() -> Self {
        Self { home: tempfile::tempdir().expect("a temporary folder"), dev: None }
    }

    /// Runs a command as it is typed, to its end (`pando dev`: until the cluster is up); what it printed.
    pub fn run(&mut self, command: &str) -> String {
        let printed = if command == DEV { self.start_dev() } else { self.output(command).1 };
        printed.replace(&self.home.path().display().to_string(), HOME_IN_README)
    }

    /// Tries a command until it succeeds.
    ///
    /// # Panics
    /// After [`LIMIT`], with what it printed last.
    pub fn until(&self, command: &str) {
        wait_until_blocking(command, LIMIT, || self.output(command), |(succeeded, _)| *succeeded);
    }

    /// Ctrl-C for `pando dev`.
    ///
    /// # Panics
    /// Where it does not end well.
    pub fn stop(mut self) {
        let Some(mut dev) = self.dev.take() else { return };
        signal(&dev, Signal::INT);
        let ended = wait_until_blocking("pando dev to end", LIMIT, || dev.try_wait().ok().flatten(), Option::is_some);
        let log = self.dev_output();
        assert!(ended.is_some_and(|status| status.success()), "pando dev did not end well:\n{log}");
    }

    fn start_dev(&mut self) -> String {
        assert!(self.dev.is_none(), "the walk starts one `{DEV}` only");
        let log = File::create(self.log()).expect("a log");
        let mut command = self.shell(&format!("exec {DEV}"));
        command.stdout(log.try_clone().expect("a descriptor")).stderr(log);
        self.dev = Some(command.spawn().expect("a shell"));
        let up = |text: &String| text.lines().any(|line| line == UP);
        wait_until_blocking("the cluster to be up", LIMIT, || self.dev_output(), up)
    }

    fn output(&self, command: &str) -> (bool, String) {
        let output = self.shell(&format!("exec 2>&1; {command}")).output().expect("a shell");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn shell(&self, command: &str) -> Command {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(programs::folder()).chain(std::env::split_paths(&path));
        let home = self.home.path();
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).current_dir(repository()).stdin(Stdio::null());
        for variable in ["PANDO_ENDPOINTS", "PANDO_IDENTITY", "PANDO_CONTEXT", "XDG_CONFIG_HOME", "XDG_STATE_HOME"] {
            shell.env_remove(variable);
        }
        shell.env("PATH", std::env::join_paths(paths).expect("a PATH"));
        shell.env("HOME", home).env("PANDO_HOME", home.join("pando"));
        shell
    }

    fn log(&self) -> PathBuf {
        self.home.path().join("dev.log")
    }

    fn dev_output(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }
}

impl Drop for Session {
    /// After a failure: nothing may stay behind, and what the nodes said may tell why.
    fn drop(&mut self) {
        let Some(mut dev) = self.dev.take() else { return };
        eprintln!("--- {DEV} ---\n{}", self.dev_output());
        signal(&dev, Signal::TERM);
        // It kills what does not stop within 10 s, and waits for the rest.
        _ = dev.wait();
    }
}

fn signal(process: &Child, signal: Signal) {
    if let Some(pid) = i32::try_from(process.id()).ok().and_then(Pid::from_raw) {
        _ = kill_process(pid, signal);
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

//! The example programs as processes, without Pando: each does what the trees and the README say of it.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Far more than any of this takes, so that a slow machine does not fail it.
const LIMIT: Duration = Duration::from_secs(30);

/// A process that does not outlive its test.
struct Program {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Program {
    fn start(program: &str, arguments: &[&str], folder: &Path, incarnation: u64) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(folder).env("PANDO_NODE", "n1").env("PANDO_PATH", "/shop/child");
        command.env("PANDO_INCARNATION", incarnation.to_string()).env_remove("NOTIFY_SOCKET");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|why| panic!("{program} does not start: {why}"));
        let lines = BufReader::new(child.stdout.take().expect("its standard output is a pipe"));
        Self { child, lines }
    }

    /// Reads lines up to the first one with `text` in it. The program's end counts as the bound: each of them has one.
    fn line_with(&mut self, text: &str) -> String {
        let mut line = String::new();
        while self.lines.read_line(&mut line).expect("its output can be read") > 0 {
            if line.contains(text) {
                return line;
            }
            line.clear();
        }
        panic!("the program ended without a line with {text:?}");
    }

    fn ends_with(&mut self, code: i32) -> String {
        let deadline = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it can be waited for") {
                break status;
            }
            assert!(Instant::now() < deadline, "still running after {LIMIT:?}");
            thread::sleep(Duration::from_millis(5));
        };
        let mut complaints = String::new();
        let stderr = self.child.stderr.as_mut().expect("its standard error is a pipe");
        stderr.read_to_string(&mut complaints).expect("its standard error can be read");
        assert_eq!(status.code(), Some(code), "{status}: {complaints}");
        complaints
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder that is gone after the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pando-examples-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder can be made");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const WEB: &str = env!("CARGO_BIN_EXE_shop-web");
const LOAD: &str = env!("CARGO_BIN_EXE_shop-load");
const FEED: &str = env!("CARGO_BIN_EXE_shop-feed");

#[test]
fn web_is_found_ready_by_its_probe_and_by_no_probe_of_another_run() {
    let folder = Folder::new("probe");
    let mut early = Program::start(WEB, &["--check"], &folder.0, 7);
    assert!(early.ends_with(1).contains("no file \"port\" yet"));

    let mut web = Program::start(WEB, &["--port", "0", "--bind", "127.0.0.1"], &folder.0, 7);
    web.line_with("n1/7 answers on 127.0.0.1:");
    Program::start(WEB, &["--check"], &folder.0, 7).ends_with(0);
    let complaint = Program::start(WEB, &["--check"], &folder.0, 8).ends_with(1);
    assert!(complaint.contains("the port is taken by another run"), "{complaint}");
}

#[test]
fn load_tells_the_gap_while_web_moves_to_another_run() {
    let folder = Folder::new("gap");
    let mut first = Program::start(WEB, &["--port", "0", "--bind", "127.0.0.1"], &folder.0, 12);
    first.line_with("answers on");
    let port = fs::read_to_string(folder.0.join("port")).expect("web wrote its port");
    let url = format!("http://127.0.0.1:{port}/");

    let mut load = Program::start(LOAD, &["--silence", "20s", "--gaps", "1", "--within", "30s", &url], &folder.0, 1);
    load.line_with("first answer: n1/12");
    drop(first);
    let mut second = Program::start(WEB, &["--port", &port, "--bind", "127.0.0.1"], &folder.0, 19);
    second.line_with("answers on");
    let line = load.line_with("gap of");
    assert!(line.ends_with("ms: n1/12 -> n1/19\n"), "{line}");
    load.ends_with(0);
}

#[test]
fn feed_crashes_with_its_reasons_when_a_file_appears_and_takes_the_file_away() {
    let folder = Folder::new("file");
    let mut feed = Program::start(FEED, &["connection", "--crash-after", "30s"], &folder.0, 1);
    feed.line_with("connection: heartbeat 1");
    fs::write(folder.0.join("crash"), "").expect("the file can be made");
    let reasons = feed.ends_with(1);
    assert!(reasons.contains("the file crash appeared\n"), "{reasons}");
    assert_eq!(reasons.lines().count(), 2, "{reasons}");
    assert!(!folder.0.join("crash").exists());
}

#[test]
fn feed_crashes_with_its_reasons_on_a_signal_and_after_its_time() {
    let folder = Folder::new("signal");
    let mut feed = Program::start(FEED, &["subscription", "--crash-after", "30s"], &folder.0, 1);
    feed.line_with("subscription: heartbeat 1");
    let kill = Command::new("sh").args(["-c", &format!("kill -USR1 {}", feed.child.id())]).status();
    assert!(kill.is_ok_and(|status| status.success()));
    assert!(feed.ends_with(1).contains("SIGUSR1 came"));

    let reasons = Program::start(FEED, &["subscription", "--crash-after", "10ms"], &folder.0, 2).ends_with(1);
    assert!(reasons.contains("are over"), "{reasons}");
}

#[test]
fn a_wrong_command_line_is_refused_with_the_usage() {
    let folder = Folder::new("usage");
    for (program, arguments) in [(WEB, vec!["--prot", "80"]), (LOAD, vec![]), (FEED, vec!["a", "b"])] {
        let complaint = Program::start(program, &arguments, &folder.0, 1).ends_with(2);
        assert!(complaint.contains("usage: shop-"), "{complaint}");
    }
}

//! The launcher as PID 1 of a container would be used, with real processes.

use std::process::Command;
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_pando-node");
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn it_ends_with_the_code_of_its_program_or_70() {
    let launch = |script: &str| {
        let ended = Command::new(PROGRAM).args(["launch", "--", "sh", "-c", script]).output().unwrap();
        (ended.status.code().unwrap(), String::from_utf8(ended.stderr).unwrap())
    };
    assert_eq!(launch("exit 7"), (7, String::new()));
    let (code, said) = launch("kill -KILL $$");
    assert_eq!(code, 70);
    assert!(said.contains("signal 9 ended the node"), "{said}");
    let missing = Command::new(PROGRAM).args(["launch", "--", "no-such-program"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(127));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("cannot run no-such-program"));
}

#[test]
fn it_passes_signals_on_and_waits_for_what_outlives_its_program() {
    let folder = tempfile::tempdir().unwrap();
    let script = "trap '(sleep 0.3; echo late > late) & exit 5' TERM; echo > up; while :; do sleep 0.01; done";
    let mut launcher =
        Command::new(PROGRAM).args(["launch", "--", "sh", "-c", script]).current_dir(folder.path()).spawn().unwrap();
    let until = Instant::now() + LIMIT;
    while !folder.path().join("up").exists() {
        assert!(Instant::now() < until, "the program did not come up");
        std::thread::sleep(Duration::from_millis(5));
    }
    let sent = Command::new("kill").args(["-s", "TERM", &launcher.id().to_string()]).status().unwrap();
    assert!(sent.success());
    assert_eq!(launcher.wait().unwrap().code(), Some(5));
    assert!(folder.path().join("late").exists(), "it waited for the orphan");
}

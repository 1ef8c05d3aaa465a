//! `pando dev` and `pando certs`: clusters out of nothing.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pando_tests::cluster::{SOON, marked_processes};
use pando_tests::programs;
use pando_tests::wait::wait_until_blocking;
use rustix::process::{Pid, Signal, kill_process};

use super::Ran;

fn command(folder: &Path, line: &str) -> Command {
    let mut command = Command::new(programs::folder().join("pando"));
    command.args(line.split(' ')).current_dir(folder).stdin(Stdio::null());
    for variable in ["PANDO_ENDPOINTS", "PANDO_IDENTITY", "PANDO_CONTEXT"] {
        command.env_remove(variable);
    }
    command.env("PANDO_HOME", folder.join("home")).env("XDG_STATE_HOME", folder.join("state"));
    command
}

fn run(folder: &Path, line: &str) -> Ran {
    Ran::of(&command(folder, line).output().expect("pando runs"))
}

/// A `pando dev` that is stopped however the test ends.
struct Dev(Child);

impl Dev {
    /// Starts it; what it says goes to `dev.log`. Waits until it says that the cluster is up.
    fn start(folder: &Path, line: &str) -> Self {
        let log = folder.join("dev.log");
        let file = File::create(&log).expect("a log");
        let child = command(folder, line).stdout(file.try_clone().expect("a descriptor")).stderr(file).spawn();
        let dev = Self(child.expect("pando runs"));
        let printed = || said(folder);
        wait_until_blocking("the cluster", SOON, printed, |text| text.contains("Ctrl-C here stops everything."));
        dev
    }

    /// As Ctrl-C does; waits for its end.
    fn interrupt(&mut self, folder: &Path) {
        self.signal(Signal::INT);
        let ended = || self.0.try_wait().expect("a child to wait for");
        let status = wait_until_blocking("pando dev to end", SOON, ended, Option::is_some);
        assert!(status.is_some_and(|status| status.success()), "{}", said(folder));
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw).expect("a process id");
        _ = kill_process(pid, signal);
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.signal(Signal::TERM);
            _ = self.0.wait();
        }
    }
}

/// What `pando dev` said.
fn said(folder: &Path) -> String {
    fs::read_to_string(folder.join("dev.log")).unwrap_or_default()
}

#[test]
fn a_cluster_on_this_machine_is_known_to_the_next_command_and_leaves_no_process() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let mut dev = Dev::start(folder, "dev --nodes 1");

    assert_eq!(run(folder, "node ls --output json").with_code(0).json()[0]["name"], "n1");
    let second = run(folder, "dev").with_code(4);
    assert!(second.stderr.contains("a `pando dev` runs in"), "{second:#?}");
    let unknown = run(folder, "dev kill n7").with_code(4);
    assert!(unknown.stderr.contains("there is no node n7 in this cluster: it has n1"), "{unknown:#?}");
    assert!(run(folder, "dev start n1").with_code(4).stderr.contains("n1 runs already"));

    assert!(run(folder, "dev kill n1").with_code(0).stdout.starts_with("killed n1 (pid "));
    assert!(run(folder, "dev kill n1").with_code(4).stderr.contains("n1 does not run: `pando dev start n1`"));
    run(folder, "tree").with_code(3);
    assert!(run(folder, "dev start n1").with_code(0).stdout.starts_with("started n1 (pid "));
    let answers = || run(folder, "tree");
    wait_until_blocking("the node to answer again", SOON, answers, |ran| ran.code == Some(0));

    let mark = fs::read_to_string(folder.join("state/pando/dev/n1/data/mark")).expect("the mark of the node");
    dev.interrupt(folder);
    assert_eq!(marked_processes(mark.trim()), [0; 0]);
    run(folder, "tree").with_code(3);
}

#[test]
fn a_child_that_needs_longer_than_a_lease_to_stop_has_its_grace_when_all_nodes_go_together() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let mut dev = Dev::start(folder, "dev --nodes 3");
    let (begun, stopped) = (folder.join("begun"), folder.join("stopped"));
    let script = format!(
        "trap 'sleep 3; touch {}; exit 0' TERM; touch {}; while :; do sleep 0.1; done",
        stopped.display(),
        begun.display()
    );
    // The other two nodes run nothing, and would be gone at once.
    let spec = format!(
        "name = \"t\"\n[[children]]\nid = \"slow\"\nshutdown = \"20s\"\ncommand = [\"sh\", \"-c\", \"{script}\"]\n"
    );
    fs::write(folder.join("t.toml"), spec).expect("a spec file");
    run(folder, "apply t.toml --wait").with_code(0);
    wait_until_blocking("the trap", SOON, || begun.exists(), |there| *there);
    dev.interrupt(folder);
    assert!(stopped.exists(), "it was killed in its grace: {}", said(folder));
    assert!(!said(folder).contains("did not stop in time"), "{}", said(folder));
}

#[test]
fn a_cluster_whose_first_node_lost_its_data_comes_up_with_the_others() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let mut dev = Dev::start(folder, "dev --nodes 3");
    dev.interrupt(folder);
    fs::remove_dir_all(folder.join("state/pando/dev/n1/data")).expect("the data of n1");
    let mut dev = Dev::start(folder, "dev");
    run(folder, "tree").with_code(0);
    println!("{}", said(folder));
    dev.interrupt(folder);
}

#[test]
fn certificates_are_made_once_and_a_context_beside_them() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let line = "certs --ca ca --cluster grove --node n1 --node n2=keys/n2 --admin --endpoints 127.0.0.1:7400";
    let made = run(folder, line).with_code(0);
    assert!(made.stdout.starts_with("made       CA of cluster grove: ca\n"), "{made:#?}");
    for file in ["ca/ca.pem", "n1/cert.pem", "n1/key.pem", "keys/n2/cert.pem", "admin/cert.pem", "home/context.json"] {
        assert!(folder.join(file).is_file(), "{file}");
    }
    let again = run(folder, line).with_code(0);
    assert!(again.stdout.starts_with("was there  CA of cluster grove: ca\n"), "{again:#?}");
    let other = run(folder, "certs --ca ca --cluster forest --node n3").with_code(2);
    assert!(other.stderr.contains("grove"), "{other:#?}");
}

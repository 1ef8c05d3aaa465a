//! One node process: how it is started, known again by another `pando`, and how its end is told.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use anyhow::{Context as _, anyhow};
use pando_protocol::ids::NodeName;
use pando_protocol::spec::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use tokio::process::{Child, ChildStdin, Command};

use super::layout::{self, Layout, NodePlan};
use crate::context::replace_file;

/// A node process that runs.
#[derive(Debug)]
pub struct Process {
    /// Its process id.
    pub pid: u32,
    /// Names the process and no later one with the same number.
    handle: OwnedFd,
    /// Where its own part of the log begins.
    log_start: u64,
    /// Its standard input: the node ends when this closes, so also when we are killed.
    _stdin: Option<ChildStdin>,
}

impl Process {
    /// Starts a node, and gives its [`Child`] to be waited for.
    ///
    /// # Errors
    /// Its folder or log cannot be written, or the program cannot be started.
    pub fn start(program: &Path, folder: &Path, layout: &Layout, node: &NodePlan) -> anyhow::Result<(Self, Child)> {
        let data = layout::node_folder(folder, &node.name).join("data");
        fs::create_dir_all(&data).with_context(|| format!("cannot make the folder {}", data.display()))?;
        let log_file = layout::log_file(folder, &node.name);
        let log = File::options().create(true).append(true).open(&log_file);
        let log = log.with_context(|| format!("cannot write {}", log_file.display()))?;
        let log_start = log.metadata().with_context(|| format!("cannot read {}", log_file.display()))?.len();
        let mut command = Command::new(program);
        command.args(arguments(folder, layout, node));
        // A group of its own: Ctrl-C in the terminal reaches only us, and we stop the nodes in order.
        command.stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log).process_group(0);
        let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let pid = child.id().ok_or_else(|| anyhow!("{} ended before it had begun", node.name))?;
        let handle = open_handle(pid)?;
        let process = Self { pid, handle, log_start, _stdin: child.stdin.take() };
        Known::note(folder, &node.name, pid)?;
        Ok((process, child))
    }

    /// Whether it is dead, though nobody may have taken note of that yet.
    pub fn has_ended(&self) -> bool {
        has_ended(&self.handle)
    }

    /// The last lines that it wrote to its log, each on a line of its own below; empty where there are none.
    pub fn last_words(&self, folder: &Path, node: &NodeName) -> String {
        last_words(folder, node, self.log_start)
    }

    /// Sends a signal. That it is dead already is no error.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let _ = pidfd_send_signal(&self.handle, signal);
    }
}

fn arguments(folder: &Path, layout: &Layout, node: &NodePlan) -> Vec<String> {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let voters: Vec<String> = layout.voters().map(|voter| format!("{}={}", voter.name, voter.address())).collect();
    let mut arguments = vec!["run".to_owned()];
    for (flag, value) in [
        ("--name", node.name.to_string()),
        ("--data", text(layout::node_folder(folder, &node.name).join("data"))),
        ("--identity", text(layout::identity_folder(folder, &node.name))),
        ("--listen", node.address()),
        ("--advertise", node.address()),
        ("--voters", voters.join(",")),
        ("--label", format!("zone={}", node.zone)),
        ("--slots", SLOTS.to_string()),
        ("--network", "lan".into()),
        ("--http", node.http_address()),
    ] {
        arguments.extend([flag.to_owned(), value]);
    }
    arguments.push("--exit-with-stdin".into());
    arguments
}

/// A node process as a file names it, so that `pando dev kill` finds the right one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// Its process id.
    pub pid: u32,
    /// When it started, in clock ticks since the machine did: with it, the id names one process only.
    start_time: u64,
}

impl Known {
    /// Notes a process that was just started.
    fn note(folder: &Path, node: &NodeName, pid: u32) -> anyhow::Result<()> {
        let start_time = start_time(pid).with_context(|| format!("cannot read /proc/{pid}/stat"))?;
        replace_file(&process_file(folder, node), &serde_json::to_string(&Self { pid, start_time })?)
    }

    /// Forgets the process of a node: it is gone.
    pub fn forget(folder: &Path, node: &NodeName) {
        // A file that stays names a dead process, which is told by its start time.
        let _ = fs::remove_file(process_file(folder, node));
    }

    /// The process that runs as this node, with a handle that names no other; `None` where none does.
    pub fn running(folder: &Path, node: &NodeName) -> Option<(Self, OwnedFd)> {
        let text = fs::read_to_string(process_file(folder, node)).ok()?;
        let known: Self = serde_json::from_str(&text).ok()?;
        let handle = open_handle(known.pid).ok()?;
        // Read after the handle was opened: the process it names is the one that was noted.
        let is_same = start_time(known.pid).ok()? == known.start_time;
        (is_same && !has_ended(&handle)).then_some((known, handle))
    }
}

fn process_file(folder: &Path, node: &NodeName) -> PathBuf {
    layout::node_folder(folder, node).join("process.json")
}

fn open_handle(pid: u32) -> anyhow::Result<OwnedFd> {
    let id = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| anyhow!("{pid} is no process id"))?;
    pidfd_open(id, PidfdFlags::empty()).with_context(|| format!("cannot open process {pid}"))
}

/// Whether the process of this handle is dead.
fn has_ended(handle: &OwnedFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&at_once)), Ok(1..))
}

/// Field 22 of `/proc/<pid>/stat`.
fn start_time(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the program's name in parentheses and may hold anything; the third follows the last of them.
    let after_name = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    let field = after_name.split_whitespace().nth(22 - 3).and_then(|field| field.parse().ok());
    field.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no start time in it"))
}

/// How a process ended, in words.
pub fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal().and_then(|number| u8::try_from(number).ok())) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(number)) => format!("was ended by {}", Signal(number)),
        (None, None) => "ended".into(),
    }
}

/// The last lines from `start` on in a node's log, indented; empty where there are none.
fn last_words(folder: &Path, node: &NodeName, start: u64) -> String {
    let text = tail(&layout::log_file(folder, node), start).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let shown = &lines[lines.len().saturating_sub(LAST_LINES)..];
    shown.iter().map(|line| format!("\n  │ {line}")).collect()
}

fn tail(file: &Path, start: u64) -> io::Result<String> {
    let mut log = File::open(file)?;
    let length = log.metadata()?.len();
    log.seek(SeekFrom::Start(start.max(length.saturating_sub(TAIL_BYTES))))?;
    let mut bytes = Vec::new();
    log.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Capacity of a node: more than a walk needs.
const SLOTS: u32 = 64;
/// Lines of a log that are shown when a node died.
const LAST_LINES: usize = 5;
/// Bytes of a log in which those lines are looked for.
const TAIL_BYTES: u64 = 8 << 10;

#[cfg(test)]
mod tests {
    use super::super::layout::Wanted;
    use super::*;

    #[test]
    fn a_node_is_told_all_it_has_to_know() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::open(folder.path(), Wanted { nodes: Some(2), voters: None }).unwrap();
        let [voter, agent] = &layout.nodes[..] else { unreachable!("two were asked for") };
        let line =
            arguments(folder.path(), &layout, agent).join(" ").replace(&folder.path().display().to_string(), "DIR");
        let expected = format!(
            "run --name n2 --data DIR/n2/data --identity DIR/identities/n2 --listen {agent} --advertise {agent} \
             --voters n1={voter} --label zone=b --slots 64 --network lan --http {http} --exit-with-stdin",
            agent = agent.address(),
            voter = voter.address(),
            http = agent.http_address()
        );
        assert_eq!(line, expected);
    }

    #[test]
    fn the_last_words_are_those_of_the_last_run() {
        let folder = tempfile::tempdir().unwrap();
        let node: NodeName = "n1".parse().unwrap();
        fs::create_dir_all(layout::node_folder(folder.path(), &node)).unwrap();
        fs::write(layout::log_file(folder.path(), &node), "old\nnew\n1\n2\n3\n4\n5\n").unwrap();
        assert_eq!(last_words(folder.path(), &node, 4), "\n  │ 1\n  │ 2\n  │ 3\n  │ 4\n  │ 5");
        assert_eq!(last_words(folder.path(), &node, 16), "\n  │ 5");
    }

    #[test]
    fn a_process_is_known_by_its_start_time_and_not_by_its_number_alone() {
        let folder = tempfile::tempdir().unwrap();
        let node: NodeName = "n1".parse().unwrap();
        Known::note(folder.path(), &node, std::process::id()).unwrap();
        let (known, _) = Known::running(folder.path(), &node).unwrap();
        assert_eq!(known.pid, std::process::id());
        let later = Known { start_time: known.start_time + 1, ..known };
        fs::write(process_file(folder.path(), &node), serde_json::to_string(&later).unwrap()).unwrap();
        assert!(Known::running(folder.path(), &node).is_none());
    }
}

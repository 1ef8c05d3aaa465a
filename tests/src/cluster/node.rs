//! One node process: started, killed, stopped, paused, and looked at from outside.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use pando_protocol::ids::NodeName;
use rustix::process::{Pid, Signal, kill_process};

use super::SOON;
use crate::programs;
use crate::wait::wait_until_blocking;

/// A node process and where it keeps everything.
#[derive(Debug)]
pub struct NodeProcess {
    name: NodeName,
    home: PathBuf,
    address: String,
    listens: String,
    voters: String,
    flags: Vec<String>,
    prefix: Vec<String>,
    http: Option<String>,
    program: Option<PathBuf>,
    logs: &'static str,
    child: Option<Child>,
}

/// What a node of a test logs unless `PANDO_LOG` says otherwise.
pub(super) const LOGS: &str = "info,pando_node=debug,openraft=error";

impl NodeProcess {
    /// A node that is not started yet. Its identity lies in `home/identity`.
    pub fn new(name: NodeName, home: PathBuf, address: String, voters: &str, flags: Vec<String>) -> Self {
        let (listens, voters, prefix) = (address.clone(), voters.to_owned(), Vec::new());
        Self { name, home, address, listens, voters, flags, prefix, http: None, program: None, logs: LOGS, child: None }
    }

    /// Its name.
    pub fn name(&self) -> &NodeName {
        &self.name
    }

    /// Where it answers.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its data folder.
    pub fn data(&self) -> PathBuf {
        self.home.join("data")
    }

    /// Its log file.
    pub fn log(&self) -> PathBuf {
        self.home.join("node.log")
    }

    /// What stands before its command from now on; it must become that command.
    pub fn set_prefix(&mut self, prefix: Vec<String>) {
        self.prefix = prefix;
    }

    /// Listens here from its next start on: something between passes on what comes to its address.
    pub fn set_listens(&mut self, listens: String) {
        self.listens = listens;
    }

    /// Runs this build of `pando-node` from its next start on.
    pub fn set_program(&mut self, program: PathBuf) {
        self.program = Some(program);
    }

    /// Logs this from its next start on, unless `PANDO_LOG` says otherwise.
    pub fn set_logs(&mut self, logs: &'static str) {
        self.logs = logs;
    }

    /// Runs with this flag too from its next start on.
    pub fn set_flag(&mut self, flag: &str) {
        if !self.flags.iter().any(|known| known == flag) {
            self.flags.push(flag.to_owned());
        }
    }

    /// Serves health and metrics at this address from its next start on.
    pub fn set_http(&mut self, address: String) {
        self.http = Some(address);
    }

    /// Where it serves health and metrics; `None`: nowhere.
    pub fn http(&self) -> Option<&str> {
        self.http.as_deref()
    }

    fn command(&self) -> Vec<String> {
        let program = self.program.clone().unwrap_or_else(|| programs::folder().join("pando-node"));
        let program = program.display().to_string();
        let (data, identity) = (self.data().display().to_string(), self.home.join("identity").display().to_string());
        let fixed = [
            program.as_str(),
            "run",
            "--name",
            self.name.as_str(),
            "--data",
            &data,
            "--identity",
            &identity,
            "--listen",
            &self.listens,
            "--advertise",
            &self.address,
            "--voters",
            &self.voters,
            "--http",
            self.http().unwrap_or("off"),
        ];
        fixed.iter().map(ToString::to_string).chain(self.flags.iter().cloned()).collect()
    }

    /// Starts it. Its log is appended to.
    pub fn start(&mut self) {
        let command: Vec<String> = self.prefix.iter().cloned().chain(self.command()).collect();
        assert!(!self.is_running(), "{} runs already", self.name);
        fs::create_dir_all(&self.home).expect("the folder of a node");
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log()).expect("the log of a node");
        let child = Command::new(&command[0])
            .args(&command[1..])
            .env("PANDO_LOG", std::env::var("PANDO_LOG").unwrap_or_else(|_| self.logs.into()))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log)
            .spawn()
            .expect("pando-node starts");
        self.child = Some(child);
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        // A zombie is still to be waited for, and does not run.
        self.child.as_ref().is_some_and(|child| state_of(child.id()).is_some_and(|state| state != 'Z'))
    }

    /// Its process id.
    ///
    /// # Panics
    /// Where it was not started.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map(Child::id).unwrap_or_else(|| panic!("{} was not started", self.name))
    }

    /// The process id of its guard.
    ///
    /// # Panics
    /// Where there is none within [`SOON`].
    pub fn guard(&self) -> u32 {
        let pid = self.pid();
        let look = || children_of(pid).into_iter().find(|child| command_line(*child).contains("pando-node guard"));
        wait_until_blocking("the guard", SOON, look, Option::is_some).unwrap_or_default()
    }

    /// The process ids of its reapers: the children of its guard.
    pub fn reapers(&self) -> Vec<u32> {
        children_of(self.guard())
    }

    /// SIGKILL, and waits for the end of the process. Its guard lives on until it is done.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // A stopped process is killed all the same.
            _ = child.kill();
            _ = child.wait();
        }
    }

    /// SIGTERM; returns at once.
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
    }

    /// A signal to the node process alone.
    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Waits for the end of the process.
    ///
    /// # Panics
    /// After a minute.
    pub fn wait_for_end(&mut self) {
        self.ended(Duration::from_secs(60));
    }

    /// Waits for the end of the process, and says how it ended.
    ///
    /// # Panics
    /// After `limit`.
    pub fn ended(&mut self, limit: Duration) -> ExitStatus {
        let Some(child) = &mut self.child else { panic!("{} was not started", self.name) };
        let look = || child.try_wait().expect("a child to wait for");
        let status = wait_until_blocking("the end of a node", limit, look, Option::is_some);
        self.child = None;
        status.unwrap_or_else(|| unreachable!("waited for"))
    }

    /// Waits until its guard, its reapers and everything that ran under them are gone: the lock of its data folder is free.
    pub fn wait_for_guard(&self) {
        let Some(mark) = self.mark() else { return };
        wait_until_blocking("the children of a dead node to be gone", SOON, || marked_processes(&mark), Vec::is_empty);
    }

    /// The mark of its data folder, which every process that it started carries; `None` before its first start.
    pub fn mark(&self) -> Option<String> {
        fs::read_dir(self.data()).ok()?;
        let file = self.data().join("mark");
        fs::read_to_string(file).ok().map(|mark| mark.trim().to_owned())
    }

    /// The last lines of its log; none where a test put something else in its place, which may have no end (`/dev/full`).
    pub fn log_tail(&self, lines: usize) -> String {
        let is_file = fs::metadata(self.log()).is_ok_and(|log| log.is_file());
        let text = if is_file { fs::read_to_string(self.log()).unwrap_or_default() } else { String::new() };
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a signal to a process that may be gone.
pub fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        _ = kill_process(pid, signal);
    }
}

/// The processes whose environment carries a mark.
pub fn marked_processes(mark: &str) -> Vec<u32> {
    let wanted = format!("PANDO_MARK={mark}");
    let carries = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let is_marked = environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes());
        is_marked && state_of(*pid).is_some_and(|state| state != 'Z')
    };
    processes().into_iter().filter(carries).collect()
}

/// The children of a process.
pub fn children_of(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let children = threads.flatten().flat_map(|thread| {
        let text = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()
    });
    children.collect()
}

/// The state of a process (`R`, `S`, `T`, `Z`, …); `None` where there is none.
pub fn state_of(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// When a process began, in hundredths of a second since the machine did; `None` where there is none. Together with its number
/// this names a process for good.
pub fn started_at(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(19)?.parse().ok()
}

fn command_line(pid: u32) -> String {
    let bytes = fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("/proc");
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

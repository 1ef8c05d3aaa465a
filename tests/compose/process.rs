//! Commands with a deadline, whose output goes to a file: no pipe can fill, and none is held open by what outlives them.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

/// Between two looks at something that is waited for.
const LOOK: Duration = Duration::from_millis(100);

/// A command that ended.
#[derive(Debug)]
pub struct Ended {
    /// How.
    pub status: ExitStatus,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

/// A command that runs, in a process group of its own that is killed with it.
#[derive(Debug)]
pub struct Running {
    line: String,
    child: Child,
    stdout: File,
    stderr: File,
}

impl Running {
    /// Starts a command without input.
    pub fn start(command: &mut Command) -> Result<Self> {
        let line = line_of(command);
        let (stdout, stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
        command.stdin(Stdio::null()).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?).process_group(0);
        let child = command.spawn().with_context(|| format!("cannot start {line}"))?;
        Ok(Self { line, child, stdout, stderr })
    }

    /// What it wrote to standard output so far.
    pub fn stdout(&self) -> Result<String> {
        whole(&self.stdout)
    }

    /// Waits for its end, at most `limit`; then it is killed, and that is an error.
    pub fn end(mut self, limit: Duration) -> Result<Ended> {
        let deadline = Instant::now() + limit;
        loop {
            let status = self.child.try_wait()?;
            let (stdout, stderr) = (whole(&self.stdout)?, whole(&self.stderr)?);
            match status {
                Some(status) => return Ok(Ended { status, stdout, stderr }),
                None if Instant::now() < deadline => thread::sleep(LOOK),
                None => bail!("{}: still running after {limit:?}\n{stdout}{stderr}", self.line),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = self.child.wait();
        }
    }
}

/// Runs a command to its end; any exit code but 0 is an error that shows what it wrote.
pub fn run(command: &mut Command, limit: Duration) -> Result<Ended> {
    let line = line_of(command);
    let ended = Running::start(command)?.end(limit)?;
    if !ended.status.success() {
        bail!("{line}: {ended}");
    }
    Ok(ended)
}

/// Tries until it works, at most `limit`; the error is that of the last try.
pub fn until<T>(what: &str, limit: Duration, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        match attempt() {
            Ok(found) => return Ok(found),
            Err(last) if Instant::now() >= deadline => {
                return Err(last.context(format!("not within {limit:?}: {what}")));
            }
            Err(_) => thread::sleep(LOOK),
        }
    }
}

fn line_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// The file from its start. Read at offsets: the position is shared with the command, which goes on writing there.
fn whole(file: &File) -> Result<String> {
    let mut bytes = vec![0; usize::try_from(file.metadata()?.len())?];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}{}", self.status, self.stdout, self.stderr)
    }
}

//! From a start order to a running program: what happens between fork and exec, and what is said when it fails.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::process::{Pid, Resource, Rlimit, Signal};

use super::sys;
use super::words::StartOrder;

/// Added to the badness of a child, so that the kernel takes children before the node when memory runs out.
const OOM_SCORE: &str = "500";

/// A start order made ready for exec, so that nothing in the child can fail but the system calls.
#[derive(Debug)]
pub struct Program {
    name: String,
    candidates: Vec<CString>,
    search: Option<Search>,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    folder: CString,
    make_folder: bool,
}

/// Where a program without a slash in its name is looked for.
#[derive(Debug)]
struct Search {
    /// The child's PATH.
    path: String,
    /// Whose PATH it is.
    node: String,
}

/// What the new process begins with.
#[derive(Debug)]
pub struct Surroundings<'a> {
    /// Its parent must still be this process.
    pub parent: Pid,
    /// An empty input.
    pub null: &'a OwnedFd,
    /// `None`: to nowhere.
    pub stdout: Option<BorrowedFd<'a>>,
    /// `None`: to nowhere.
    pub stderr: Option<BorrowedFd<'a>>,
    /// The limit of open files before the guard raised its own.
    pub open_files: Option<Rlimit>,
    /// The nice value before the guard changed its own.
    pub niceness: Option<i32>,
    /// Where the failure goes; an exec closes it.
    pub failure: &'a OwnedFd,
}

/// At which step the start failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Step {
    Isolation = 1,
    Folder = 2,
    Exec = 3,
    Interpreter = 4,
}

impl Program {
    /// Prepares an order.
    ///
    /// # Errors
    /// The text for people where a part of it holds a NUL or the command is empty.
    pub fn prepare(order: &StartOrder) -> Result<Self, String> {
        let name = order.command.first().filter(|name| !name.is_empty()).ok_or("the command is empty")?;
        let search_path = (!name.contains('/')).then(|| variable(&order.environment, b"PATH="));
        let candidates = match search_path {
            None => vec![text(name.as_bytes())?],
            Some(path) => candidates(path, name)?,
        };
        let search = search_path.map(|path| Search {
            path: String::from_utf8_lossy(path).into_owned(),
            node: String::from_utf8_lossy(variable(&order.environment, b"PANDO_NODE=")).into_owned(),
        });
        Ok(Self {
            name: name.clone(),
            candidates,
            search,
            arguments: order.command.iter().map(|argument| text(argument.as_bytes())).collect::<Result<_, _>>()?,
            environment: order.environment.iter().map(|entry| text(entry)).collect::<Result<_, _>>()?,
            folder: text(&order.folder)?,
            make_folder: order.make_folder,
        })
    }

    /// Becomes the program. Called in a process that has just been forked.
    pub fn become_it(&self, surroundings: &Surroundings<'_>) -> ! {
        let (step, error) = self.try_to_become_it(surroundings);
        if step == Step::Exec && error.raw_os_error() == Some(libc::ENOENT) {
            self.leave_evidence();
        }
        let mut report = [step as u8; 5];
        report[1..].copy_from_slice(&error.raw_os_error().unwrap_or(libc::EIO).to_ne_bytes());
        let _ = rustix::io::write(surroundings.failure, &report);
        sys::exit_now(127)
    }

    fn try_to_become_it(&self, surroundings: &Surroundings<'_>) -> (Step, io::Error) {
        if let Err(error) = isolate(surroundings) {
            return (Step::Isolation, error);
        }
        if let Err(error) = self.enter_folder() {
            return (Step::Folder, error);
        }
        sys::reset_signals();
        sys::close_descriptors_on_exec();
        let mut worst = io::Error::from_raw_os_error(libc::ENOENT);
        for candidate in &self.candidates {
            let error = sys::exec(candidate, &self.arguments, &self.environment);
            match error.raw_os_error() {
                Some(libc::ENOENT) if Path::new(OsStr::from_bytes(candidate.as_bytes())).exists() => {
                    return (Step::Interpreter, error);
                }
                Some(libc::ENOENT | libc::ENOTDIR) => {}
                // A later folder of PATH may have one that may be run, as in a shell.
                Some(libc::EACCES) => worst = error,
                _ => return (Step::Exec, error),
            }
        }
        (Step::Exec, worst)
    }

    /// Says on the child's own standard error where its program was looked for. It is kept with the ending like any last words,
    /// once for equal endings; in the message itself it would stand in every line that tells of the child.
    fn leave_evidence(&self) {
        if let Some(Search { path, node }) = &self.search {
            let words = format!("the PATH of {node}: {path}\n");
            let _ = rustix::io::write(rustix::stdio::stderr(), words.as_bytes());
        }
    }

    fn enter_folder(&self) -> io::Result<()> {
        if self.make_folder {
            std::fs::create_dir_all(OsStr::from_bytes(self.folder.as_bytes()))?;
        }
        Ok(rustix::process::chdir(&self.folder)?)
    }

    /// The text for people of what [`Program::become_it`] reported; `None` where it reported nothing.
    pub fn failure(&self, report: &[u8]) -> Option<String> {
        let (step, errno) = report.split_first()?;
        let errno = i32::from_ne_bytes(errno.get(..4)?.try_into().ok()?);
        let error = io::Error::from_raw_os_error(errno);
        let name = &self.name;
        Some(if *step == Step::Folder as u8 {
            format!("cannot enter the working folder {}: {error}", self.folder.to_string_lossy())
        } else if *step == Step::Isolation as u8 {
            format!("cannot prepare the process of {name}: {error}")
        } else if *step == Step::Interpreter as u8 {
            format!("cannot run {name}: the interpreter that its first line or its format names does not exist")
        } else {
            match (errno, &self.search) {
                (libc::ENOENT, Some(search)) => format!("no program {name:?} in the PATH of {}", search.node),
                (libc::ENOENT, None) => format!("no such program: {name}"),
                (libc::ENOEXEC, _) => {
                    format!("cannot run {name}: not a program; a script begins with #! and its interpreter")
                }
                _ => format!("cannot run {name}: {error}"),
            }
        })
    }
}

/// Makes this process die with its parent, and takes away what it should not inherit.
fn isolate(surroundings: &Surroundings<'_>) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before it would have been noticed.
    if rustix::process::getppid() != Some(surroundings.parent) {
        sys::exit_now(127);
    }
    // A session of its own: a group to signal, and no terminal whose Ctrl-C would reach it.
    rustix::process::setsid()?;
    // Best effort: containers may forbid these.
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    if let Some(niceness) = surroundings.niceness {
        let _ = rustix::process::setpriority_process(None, niceness);
    }
    if let Some(limit) = surroundings.open_files {
        let _ = rustix::process::setrlimit(Resource::Nofile, limit);
    }
    rustix::stdio::dup2_stdin(surroundings.null)?;
    match surroundings.stdout {
        Some(stdout) => rustix::stdio::dup2_stdout(stdout)?,
        None => rustix::stdio::dup2_stdout(surroundings.null)?,
    }
    match surroundings.stderr {
        Some(stderr) => rustix::stdio::dup2_stderr(stderr)?,
        None => rustix::stdio::dup2_stderr(surroundings.null)?,
    }
    Ok(())
}

/// The value of the variable whose name and `=` are `prefix`; empty where it is not set.
fn variable<'e>(environment: &'e [Vec<u8>], prefix: &[u8]) -> &'e [u8] {
    environment.iter().find_map(|entry| entry.strip_prefix(prefix)).unwrap_or_default()
}

fn candidates(path: &[u8], name: &str) -> Result<Vec<CString>, String> {
    // An empty item would mean the working folder, where a child's own files could become programs.
    let folders = path.split(|byte| *byte == b':').filter(|folder| !folder.is_empty());
    folders.map(|folder| text(Path::new(OsStr::from_bytes(folder)).join(name).as_os_str().as_bytes())).collect()
}

fn text(bytes: &[u8]) -> Result<CString, String> {
    CString::new(bytes).map_err(|_| format!("{:?} holds a NUL character", String::from_utf8_lossy(bytes)))
}

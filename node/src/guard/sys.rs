//! The few system calls that have no safe wrapper: fork, exec, signals. The only unsafe code of the guard, its reapers and
//! the launcher.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::process::Pid;

/// Which side of a fork this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fork {
    /// The caller, with the new process.
    Parent(Pid),
    /// The new process.
    Child,
}

/// Forks this process.
///
/// # Errors
/// Where the machine allows no more processes, or this process has more than one thread: the others would be gone in the
/// child, with whatever locks they hold.
pub fn fork() -> io::Result<Fork> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("a process with several threads must not fork"));
    }
    // SAFETY: there is one thread (checked above), so the child has no locks that others held, and may do all that the
    // parent may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => Pid::from_raw(pid).map(Fork::Parent).ok_or_else(|| io::Error::other("fork returned no process")),
    }
}

/// Ends this process without running what the parent of a fork has registered for its own end.
pub fn exit_now(code: u8) -> ! {
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(i32::from(code)) }
}

/// Replaces this process by a program; returns only with the error. Entries end before their first NUL by type.
pub fn exec(program: &CStr, arguments: &[CString], environment: &[CString]) -> io::Error {
    let arguments = pointers(arguments);
    let environment = pointers(environment);
    // SAFETY: both arrays end with a null pointer and point to C strings that outlive the call.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Ignores these signals, in this process and in what it forks.
pub fn ignore_signals(signals: &[i32]) {
    for signal in signals {
        // SAFETY: SIG_IGN is no handler, so no code can run at a bad time; a bad number is refused.
        unsafe { libc::signal(*signal, libc::SIG_IGN) };
    }
}

/// Gives every signal its default action and unblocks all, as a program expects to find them.
pub fn reset_signals() {
    for signal in 1..=64 {
        // SAFETY: SIG_DFL is no handler; SIGKILL, SIGSTOP and the C library's own signals are refused without harm.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let nothing = signal_set(&[]);
    // SAFETY: the set is initialised; the old one is not asked for.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &nothing, std::ptr::null_mut()) };
}

/// Blocks these signals and returns a non-blocking descriptor that is readable when one of them is pending.
///
/// # Errors
/// Where the machine has no descriptors left.
pub fn signal_descriptor(signals: &[i32]) -> io::Result<OwnedFd> {
    let set = signal_set(signals);
    // SAFETY: the set is initialised; the old one is not asked for.
    if unsafe { libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the set is initialised; -1 asks for a new descriptor.
    let descriptor = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Takes the pending signals from a [`signal_descriptor`].
pub fn take_signals(descriptor: &OwnedFd) -> Vec<i32> {
    let mut taken = Vec::new();
    let mut bytes = [0u8; size_of::<libc::signalfd_siginfo>()];
    while let Ok(length) = rustix::io::read(descriptor, &mut bytes) {
        if length != bytes.len() {
            break;
        }
        // The number is the first field.
        taken.push(i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    }
    taken
}

fn signal_set(signals: &[i32]) -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initialises the set; `sigaddset` refuses bad numbers.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

/// Sends a signal to a process.
///
/// # Errors
/// Where there is no such process or signal, or it is another user's.
pub fn signal_process(pid: Pid, signal: i32) -> io::Result<()> {
    // SAFETY: `kill` touches no memory of this process.
    if unsafe { libc::kill(pid.as_raw_nonzero().get(), signal) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Sends a signal to a process group.
///
/// # Errors
/// Where there is no such group or signal.
pub fn signal_group(group: Pid, signal: i32) -> io::Result<()> {
    // SAFETY: `kill` touches no memory of this process.
    if unsafe { libc::kill(-group.as_raw_nonzero().get(), signal) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Closes every descriptor from 3 on that is not among `keep`, without the knowledge of whoever owns them: only for a process
/// that has just been forked and never returns to the code that does.
pub fn close_descriptors_except(keep: &[&OwnedFd]) {
    let mut kept: Vec<RawFd> = keep.iter().map(|descriptor| descriptor.as_raw_fd()).collect();
    kept.sort_unstable();
    let mut first = 3;
    for descriptor in kept {
        if descriptor > first {
            close_range(first, descriptor - 1, 0);
        }
        first = first.max(descriptor + 1);
    }
    close_range(first, RawFd::MAX, 0);
}

/// Lets an exec close every descriptor from 3 on.
pub fn close_descriptors_on_exec() {
    close_range(3, RawFd::MAX, libc::CLOSE_RANGE_CLOEXEC);
}

fn close_range(first: RawFd, last: RawFd, flags: libc::c_uint) {
    // SAFETY: only descriptors that the caller gave up are closed; the arguments are plain numbers.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if result == 0 {
        return;
    }
    // Before Linux 5.11.
    for descriptor in open_descriptors().into_iter().filter(|descriptor| (first..=last).contains(descriptor)) {
        if flags == 0 {
            // SAFETY: as above.
            unsafe { libc::close(descriptor) };
        } else {
            // SAFETY: sets a flag of a descriptor.
            unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
}

fn open_descriptors() -> Vec<RawFd> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

//! A program on a terminal: what it draws is read as a person would, and keys go to it.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::wait::wait_until_blocking;

/// A program, its terminal, and what stands there. Dropped, it kills the program.
#[derive(Debug)]
pub struct Terminal {
    program: Child,
    keys: File,
    /// Kept open: without it the terminal were gone with the program, and with it what it was left like.
    line: OwnedFd,
    before: LocalModes,
    screen: Arc<Mutex<Drawn>>,
    _reader: JoinHandle<()>,
}

/// What was drawn.
struct Drawn {
    parser: vt100::Parser,
}

impl std::fmt::Debug for Drawn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.parser.screen().contents())
    }
}

impl Terminal {
    /// Starts a program on a terminal of its own with so many rows and columns.
    ///
    /// # Panics
    /// Where there is no terminal to be had, or the program does not start.
    pub fn run(command: &mut Command, rows: u16, columns: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("a terminal that may be used");
        let name = ptsname(&master, Vec::new()).expect("its name");
        let line = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("its line");
        tcsetwinsize(&line, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).expect("its size");
        let before = tcgetattr(&line).expect("its modes").local_modes;
        let end = || Stdio::from(line.try_clone().expect("another end of it"));
        command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm-256color").env_remove("NO_COLOR");
        let program = command.spawn().expect("the program starts");
        let size = [rows, columns].map(|number| NonZeroU16::new(number).expect("a terminal of some size"));
        let parser = vt100::Parser::new(size[0], size[1], 0);
        let screen = Arc::new(Mutex::new(Drawn { parser }));
        let keys = File::from(master);
        let (mut drawn, seen) = (keys.try_clone().expect("another end of it"), screen.clone());
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(bytes @ 1..) = drawn.read(&mut buffer) {
                lock(&seen).parser.process(&buffer[..bytes]);
            }
        });
        Self { program, keys, line, before, screen, _reader: reader }
    }

    /// Presses keys.
    ///
    /// # Panics
    /// Where the terminal is gone.
    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the keys arrive");
    }

    /// What stands on the screen.
    pub fn text(&self) -> String {
        lock(&self.screen).parser.screen().contents()
    }

    /// Waits until the screen says it; what stands there then.
    ///
    /// # Panics
    /// After `limit`, with the last screen.
    pub fn wait_for(&self, what: &str, limit: Duration, is_there: impl Fn(&str) -> bool) -> String {
        wait_until_blocking(what, limit, || Shown(self.text()), |shown| is_there(&shown.0)).0
    }

    /// The program's process.
    pub fn pid(&self) -> u32 {
        self.program.id()
    }

    /// Waits until the program has ended, and checks that it left the terminal as it was; how it ended.
    ///
    /// # Panics
    /// Where it goes on after `limit`, or the terminal is not as before.
    pub fn ends(&mut self, limit: Duration) -> ExitStatus {
        let end = || self.program.try_wait().expect("a program that was started");
        let status = wait_until_blocking("the program to end", limit, end, Option::is_some).expect("waited for");
        assert_eq!(tcgetattr(&self.line).expect("its modes").local_modes, self.before, "the modes are as before");
        let is_restored = |drawn: &(bool, bool)| *drawn == (false, false);
        let left = || {
            let drawn = lock(&self.screen);
            (drawn.parser.screen().alternate_screen(), drawn.parser.screen().hide_cursor())
        };
        wait_until_blocking("no other screen and no hidden cursor to be left", limit, left, is_restored);
        status
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Err(error) = self.program.kill()
            && error.kind() != ErrorKind::InvalidInput
        {
            eprintln!("the program on the terminal cannot be killed: {error}");
        }
        _ = self.program.wait();
    }
}

/// A screen that is readable where a wait says what it saw last.
struct Shown(String);

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\n{}\n", self.0)
    }
}

fn lock(drawn: &Mutex<Drawn>) -> MutexGuard<'_, Drawn> {
    drawn.lock().unwrap_or_else(PoisonError::into_inner)
}

//! A terminal in front of a person: its size, one line of progress, and a picture that is redrawn in place.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use crate::exit::Failure;
use crate::output;

/// Rows and columns of standard output; `None` where it is no terminal.
pub fn size() -> Option<(usize, usize)> {
    size_of(io::stdout())
}

/// Whether standard output is a terminal whose cursor can be moved.
pub fn can_be_drawn_on() -> bool {
    io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

fn size_of(terminal: impl AsFd) -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(terminal).ok()?;
    // A serial console reports 0 by 0: it is a terminal all the same.
    let known = |number: u16, default: usize| if number == 0 { default } else { usize::from(number) };
    Some((known(size.ws_row, UNKNOWN_SIZE.0), known(size.ws_col, UNKNOWN_SIZE.1)))
}

/// Rows and columns of a terminal that does not say.
const UNKNOWN_SIZE: (usize, usize) = (24, 80);

/// One line on standard error that is written over again and again, and gone when it is dropped. Nothing where standard
/// error is no terminal.
#[derive(Debug)]
pub struct Progress {
    shown: bool,
    is_terminal: bool,
}

impl Progress {
    /// Nothing is shown yet.
    pub fn new() -> Self {
        Self { shown: false, is_terminal: io::stderr().is_terminal() }
    }

    /// Shows this line in place of the one before.
    pub fn show(&mut self, line: &str) {
        if !self.is_terminal {
            return;
        }
        let (_, columns) = size_of(io::stderr()).unwrap_or(UNKNOWN_SIZE);
        // One column is left free: a full line makes some terminals begin the next one.
        let line = clip(line, columns - 1);
        // A terminal that went away is no reason to stop.
        let _ = write!(io::stderr(), "\r\x1b[K{line}").and_then(|()| io::stderr().flush());
        self.shown = true;
    }

    /// Takes the line away.
    pub fn clear(&mut self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K").and_then(|()| io::stderr().flush());
            self.shown = false;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A picture on standard output that each new one replaces. Where standard output is no terminal, one follows the other.
#[derive(Debug, Default)]
pub struct Picture {
    lines: usize,
}

impl Picture {
    /// Draws `text`, cut to the terminal.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn draw(&mut self, text: &str) -> Result<(), Failure> {
        let Some((rows, columns)) = size() else { return output::emit(text) };
        let back = if self.lines > 0 { format!("\x1b[{}A\r", self.lines) } else { String::new() };
        let (frame, lines) = fit(text, rows, columns);
        self.lines = lines;
        // Written over line by line, and cleared only where something else stood: nothing flickers.
        output::emit(&(back + &frame.replace('\n', "\x1b[K\n") + "\x1b[J"))
    }
}

/// The text cut to `rows` and `columns`, with how many lines that gives: one row is left for the cursor, and what does not fit
/// is counted in the last line.
fn fit(text: &str, rows: usize, columns: usize) -> (String, usize) {
    let room = rows.saturating_sub(1).max(2);
    let all: Vec<&str> = text.lines().collect();
    let shown = if all.len() > room { room - 1 } else { all.len() };
    let mut frame: String = all[..shown].iter().map(|line| clip(line, columns) + "\n").collect();
    if shown < all.len() {
        frame.push_str(&format!("… {} more lines\n", all.len() - shown));
        return (frame, shown + 1);
    }
    (frame, shown)
}

/// The line cut to `columns` characters; colours take no room, and none stays open.
fn clip(line: &str, columns: usize) -> String {
    if visible(line).count() <= columns {
        return line.into();
    }
    let end = visible(line).nth(columns.saturating_sub(1)).map_or(line.len(), |(at, _)| at);
    let reset = if line.contains('\x1b') { "\x1b[0m" } else { "" };
    format!("{}…{reset}", &line[..end])
}

/// The characters that take room, with their places: all but the escape sequences of colours.
fn visible(line: &str) -> impl Iterator<Item = (usize, char)> {
    let mut in_escape = false;
    line.char_indices().filter(move |&(_, c)| {
        let hidden = in_escape || c == '\x1b';
        in_escape = hidden && c != 'm';
        !hidden
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_never_scrolls_the_terminal() {
        assert_eq!(fit("a\nb\nc\n", 4, 80), ("a\nb\nc\n".into(), 3));
        assert_eq!(fit("a\nb\nc\nd\n", 4, 80), ("a\nb\n… 2 more lines\n".into(), 3));
    }

    #[test]
    fn a_long_line_is_cut_without_counting_colours() {
        assert_eq!(clip("abc", 3), "abc");
        assert_eq!(clip("abcd", 3), "ab…");
        assert_eq!(clip("\x1b[32mabc\x1b[0m", 3), "\x1b[32mabc\x1b[0m");
        assert_eq!(clip("\x1b[32mabcd\x1b[0m", 3), "\x1b[32mab…\x1b[0m");
    }
}

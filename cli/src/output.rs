//! What a person or program reads: data to standard output, everything else to standard error.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use pando_protocol::view::Verdict;
use serde::Serialize;

use crate::exit::Failure;

/// How data is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs: field names are stable.
    Json,
}

/// Writes data to standard output as it is, and flushes.
///
/// # Errors
/// Standard output cannot be written.
pub fn emit(text: &str) -> Result<(), Failure> {
    emit_bytes(text.as_bytes())
}

/// Writes data that may be no text to standard output as it is, and flushes.
///
/// # Errors
/// Standard output cannot be written.
pub fn emit_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(Failure::from_output)
}

/// Writes one value as readable JSON.
///
/// # Errors
/// Standard output cannot be written.
pub fn emit_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(Failure::failed)?;
    emit(&(text + "\n"))
}

/// Writes one value as JSON in one line, for streams.
///
/// # Errors
/// Standard output cannot be written.
pub fn emit_json_line(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(Failure::failed)?;
    emit(&(text + "\n"))
}

/// Says something on standard error. That nobody can read it is no reason to stop.
pub fn say(what: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{what}");
}

/// A text as one word of a shell, so that a command that is shown works as it is typed.
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.into();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// How a piece of text looks on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Style {
    /// As it is.
    #[default]
    Plain,
    /// Good.
    Green,
    /// Worth a look.
    Yellow,
    /// Bad.
    Red,
    /// Waits.
    Cyan,
    /// Of less interest.
    Dim,
    /// A heading.
    Bold,
}

impl Style {
    /// The style of a verdict.
    pub fn of(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Healthy => Self::Green,
            Verdict::Churning | Verdict::Short => Self::Yellow,
            Verdict::Failed | Verdict::Looping | Verdict::Unreachable => Self::Red,
            Verdict::Waiting => Self::Cyan,
            Verdict::Stopped => Self::Dim,
        }
    }

    /// `text` in this style, or as it is where `colour` is off.
    pub fn paint(self, text: &str, colour: bool) -> String {
        let code = match self {
            Self::Plain => return text.into(),
            _ if !colour || text.is_empty() => return text.into(),
            Self::Green => "32",
            Self::Yellow => "33",
            Self::Red => "1;31",
            Self::Cyan => "36",
            Self::Dim => "2",
            Self::Bold => "1",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// Whether standard output wants colours: a terminal, and neither NO_COLOR nor TERM=dumb.
pub fn wants_colour() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && !refused && !dumb
}

/// One cell of a [`Table`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// A cell with a style.
    pub fn styled(text: impl Into<String>, style: Style) -> Self {
        Self { text: text.into(), style }
    }

    /// What stands in it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// How it looks.
    pub fn style(&self) -> Style {
        self.style
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), style: Style::Plain }
    }
}

/// Rows under headings, each column as wide as its widest cell. A row may be followed by lines that belong to it.
#[derive(Debug, Clone, Default)]
pub struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Row>,
}

#[derive(Debug, Clone)]
enum Row {
    Cells(Vec<Cell>),
    Note(String),
}

impl Table {
    /// An empty table.
    pub fn new<const N: usize>(headings: [&'static str; N]) -> Self {
        Self { headings: headings.to_vec(), rows: Vec::new() }
    }

    /// Adds a row with a cell for each heading.
    pub fn row<const N: usize>(&mut self, cells: [Cell; N]) {
        self.rows.push(Row::Cells(cells.to_vec()));
    }

    /// Adds a line below the last row, outside the columns.
    pub fn note(&mut self, line: impl Into<String>) {
        self.rows.push(Row::Note(line.into()));
    }

    /// The table as text, each line with its end and without trailing blanks. Columns in which nothing stands are left out.
    pub fn render(&self, colour: bool) -> String {
        let widths: Vec<usize> = (0..self.headings.len()).map(|column| self.width(column)).collect();
        let headings: Vec<Cell> = self.headings.iter().map(|heading| Cell::styled(*heading, Style::Dim)).collect();
        let mut text = line(&headings, &widths, colour);
        for row in &self.rows {
            match row {
                Row::Cells(cells) => text.push_str(&line(cells, &widths, colour)),
                Row::Note(note) => text.push_str(&format!("{}\n", Style::Dim.paint(note, colour))),
            }
        }
        text
    }

    /// The width of a column; 0 where nothing stands in it.
    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| match row {
            Row::Cells(cells) => cells.get(column),
            Row::Note(_) => None,
        });
        match cells.map(|cell| cell.text.chars().count()).max() {
            None | Some(0) => 0,
            Some(widest) => widest.max(self.headings[column].len()),
        }
    }
}

fn line(cells: &[Cell], widths: &[usize], colour: bool) -> String {
    let mut line = String::new();
    let mut owed = 0;
    for (cell, &width) in cells.iter().zip(widths) {
        if width == 0 {
            continue;
        }
        if !cell.text.is_empty() {
            line.extend(std::iter::repeat_n(' ', owed));
            line.push_str(&cell.style.paint(&cell.text, colour));
            owed = 0;
        }
        owed += width - cell.text.chars().count() + GAP;
    }
    line.push('\n');
    line
}

/// Blanks between two columns.
const GAP: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_for_a_shell_is_quoted_only_where_it_must_be() {
        for (text, word) in [
            ("target/release/pando", "target/release/pando"),
            ("/my grove/hello.toml", "'/my grove/hello.toml'"),
            ("it's", r"'it'\''s'"),
            ("$HOME", "'$HOME'"),
            ("", "''"),
        ] {
            assert_eq!(shell_word(text), word);
        }
    }

    #[test]
    fn columns_are_aligned_and_empty_ones_left_out() {
        let mut table = Table::new(["PATH", "NODE", "PID", "STATE"]);
        table.row(["├─ web".into(), "n1".into(), "".into(), "running".into()]);
        table.row(["└─ connection".into(), "".into(), "".into(), "waiting".into()]);
        table.note("   no node has disk=ssd");
        let expected = "\
PATH           NODE  STATE
├─ web         n1    running
└─ connection        waiting
   no node has disk=ssd
";
        assert_eq!(table.render(false), expected);
    }

    #[test]
    fn colours_do_not_move_columns() {
        let mut table = Table::new(["A", "B"]);
        table.row([Cell::styled("x", Style::Red), "y".into()]);
        assert_eq!(table.render(true), "\x1b[2mA\x1b[0m  \x1b[2mB\x1b[0m\n\x1b[1;31mx\x1b[0m  y\n");
    }
}

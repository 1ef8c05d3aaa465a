//! Reading spec files, TOML or JSON, with the place of every mistake.
//!
//! ```text
//!   text ── toml | json ──► document (every value knows its place) ── walk ──► TreeSpec ── check ──► TreeSpec
//!                │                                                     │                    │
//!                └─ syntax                              keys, types, words ─┘     budgets, bounds ─┘   ► SpecFileError
//! ```
//!
//! Mistakes are collected, not only the first one; a file whose syntax is broken is not walked, since what follows from
//! that would be guesses. Nothing here talks to a cluster.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::spec::TreeSpec;

mod document;
mod duration;
mod json;
mod keys;
mod mistake;
mod places;
mod size;
mod toml;
mod values;
mod walk;

pub use mistake::Mistake;

/// Most bytes in a spec file: a larger one is refused before it is read.
pub const MAX_FILE: u64 = 1 << 20;

/// How a spec is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// TOML 1.0.
    Toml,
    /// JSON of the same shape, without comments and trailing commas.
    Json,
}

/// Why a spec file was refused.
#[derive(Debug, thiserror::Error)]
pub enum SpecFileError {
    /// The name of the file does not say what it holds.
    #[error("{}: cannot tell the kind of this file: expected a name that ends in .toml or .json", .0.display())]
    UnknownKind(PathBuf),
    /// The file could not be read.
    #[error("{}: cannot be read", .file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is such a name, but it is a folder, a device or the like.
    #[error("{}: is not a file: give the path of a spec file", .0.display())]
    NotAFile(PathBuf),
    /// The file is too large.
    #[error("{file_name}: larger than {MAX_FILE} bytes, the most that a spec may have; split it into several trees")]
    TooLarge {
        /// The name as given.
        file_name: String,
    },
    /// The file is no text.
    #[error("{file_name}:{line}:{column}: not UTF-8: save the file as UTF-8 text")]
    NotUtf8 {
        /// The name as given.
        file_name: String,
        /// The line of the first bad byte, from 1.
        line: usize,
        /// Its column, from 1, in characters.
        column: usize,
    },
    /// The spec has mistakes.
    #[error("{}", Listed(.file_name, .mistakes))]
    Mistakes {
        /// The name as given.
        file_name: String,
        /// Every mistake, in the order of the file; at least one, and not more than 500.
        mistakes: Vec<Mistake>,
    },
}

impl SpecFileError {
    /// The mistakes in the spec, in the order of the file. Empty where the file could not even be read as text.
    pub fn mistakes(&self) -> &[Mistake] {
        match self {
            Self::Mistakes { mistakes, .. } => mistakes,
            _ => &[],
        }
    }
}

impl Format {
    /// The format that the extension of a file says: `.toml` or `.json`; `None` for any other.
    pub fn of(file: &Path) -> Option<Self> {
        match file.extension()?.to_str()? {
            "toml" => Some(Self::Toml),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// Reads the spec of a tree from a file, whose extension says its format.
///
/// # Errors
/// Every kind of [`SpecFileError`]; for a spec with mistakes, all of them.
pub fn read(path: &Path) -> Result<TreeSpec, SpecFileError> {
    let format = Format::of(path).ok_or_else(|| SpecFileError::UnknownKind(path.to_owned()))?;
    let file_name = path.display().to_string();
    let unreadable = |source| SpecFileError::Unreadable { file: path.to_owned(), source };
    // Asked before it is opened: to open a pipe would wait for its other end.
    let metadata = path.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(SpecFileError::NotAFile(path.to_owned()));
    }
    if metadata.len() > MAX_FILE {
        return Err(SpecFileError::TooLarge { file_name });
    }
    let mut bytes = Vec::new();
    // The file may grow meanwhile; the byte too many makes `parse` refuse it.
    File::open(path).map_err(unreadable)?.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    let text = match std::str::from_utf8(&bytes) {
        Ok(text) => text,
        Err(error) => return Err(not_utf8(file_name, &bytes[..error.valid_up_to()])),
    };
    parse(&file_name, format, text)
}

/// Reads the spec of a tree from a text. `file_name` is what mistakes call it: `-` or `standard input`, say.
///
/// # Errors
/// [`SpecFileError::TooLarge`] and [`SpecFileError::Mistakes`].
pub fn parse(file_name: &str, format: Format, text: &str) -> Result<TreeSpec, SpecFileError> {
    if text.len() as u64 > MAX_FILE {
        return Err(SpecFileError::TooLarge { file_name: file_name.into() });
    }
    let document = match format {
        Format::Toml => toml::parse(text),
        Format::Json => json::parse(text),
    };
    document.and_then(|document| walk::tree(text, &document)).map_err(|findings| SpecFileError::Mistakes {
        file_name: file_name.into(),
        mistakes: mistake::located(text, findings),
    })
}

fn not_utf8(file_name: String, before: &[u8]) -> SpecFileError {
    let before = String::from_utf8_lossy(before);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    SpecFileError::NotUtf8 { file_name, line, column }
}

struct Listed<'a>(&'a str, &'a [Mistake]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(file_name, mistakes) = self;
        for (index, mistake) in mistakes.iter().enumerate() {
            let end_of_former = if index == 0 { "" } else { "\n" };
            write!(f, "{end_of_former}{file_name}:{mistake}")?;
        }
        Ok(())
    }
}

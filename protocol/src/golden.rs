//! Golden files: the bytes of every type that is sent or kept, so that one build reads what another wrote. For tests.
//!
//! ```text
//!   samples ──codec──► bytes ──► must be the lines of  v1/Call.hex      one file for each type, one line for each sample
//!   lines ──codec──► values  ──► must be the samples                    what was written once is read today
//!   lines ──survey─► variants, options, containers met ──► all of them  a new variant without a sample fails
//! ```
//!
//! The folder is that of [`VERSION`]. When that is raised, the folders of older versions stay, and whoever raises it tests
//! that they are read.

mod survey;

use std::collections::BTreeSet;
use std::fmt::{Debug, Write};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use self::survey::Survey;
use crate::codec::{self, ENTRY_LIMIT, VERSION};

/// The environment variable that lets golden files be written: `append` or `rewrite`.
pub const SWITCH: &str = "PANDO_GOLDEN";

/// Compares one folder of golden files; [`Self::finish`] tells everything that differs.
#[derive(Debug)]
pub struct Golden {
    root: PathBuf,
    mode: Mode,
    names: BTreeSet<String>,
    survey: Survey,
    faults: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Compare,
    /// Adds what is new; lines that are there stay.
    Append,
    /// Makes the files anew.
    Rewrite,
}

impl Golden {
    /// The golden files below `root`, compared, or written as [`SWITCH`] says.
    ///
    /// # Panics
    /// Where [`SWITCH`] says something else.
    pub fn open(root: &Path) -> Self {
        let mode = match std::env::var(SWITCH).ok().as_deref() {
            None | Some("") => Mode::Compare,
            Some("append") => Mode::Append,
            Some("rewrite") => Mode::Rewrite,
            Some(other) => panic!("{SWITCH} is {other:?}: expected append or rewrite, or nothing to compare"),
        };
        Self::with(root, mode)
    }

    fn with(root: &Path, mode: Mode) -> Self {
        let (names, survey, faults) = (BTreeSet::new(), Survey::default(), Vec::new());
        Self { root: root.to_owned(), mode, names, survey, faults }
    }

    /// Compares values that the codec writes: the file must hold the bytes of these samples and no others, and they must be
    /// read again as these samples.
    pub fn values<T: Serialize + DeserializeOwned + PartialEq + Debug>(&mut self, name: &str, samples: &[T]) {
        let written = samples.iter().map(|sample| match codec::encode::<ENTRY_LIMIT>(sample) {
            Ok(body) => (shortened(&format!("{sample:?}")), body),
            Err(error) => panic!("a sample of {name} cannot be written: {error}"),
        });
        let written: Vec<_> = written.collect();
        for (number, body) in self.bytes(name, &written).iter().enumerate() {
            let read = codec::decode::<T, ENTRY_LIMIT>(body).map_err(|error| error.to_string());
            let surveyed = self.survey.read::<T>(name, &body[1..]);
            let fault = match (read, surveyed) {
                (Err(why), _) => format!("cannot be read any more: {why}"),
                (_, Err(why)) => format!("is not in the format that is described: {why}"),
                (Ok(read), Ok(surveyed)) if read != surveyed => format!("is read as {read:?} and as {surveyed:?}"),
                (Ok(read), _) if !samples.contains(&read) => format!("is read as what no sample is: {read:?}"),
                _ => continue,
            };
            self.faults.push(format!("{name}: value {} {fault}", number + 1));
        }
    }

    /// Compares bytes of any format, each with a word about it. Returns those of the file, for whoever reads them again.
    pub fn bytes(&mut self, name: &str, written: &[(String, Vec<u8>)]) -> Vec<Vec<u8>> {
        self.names.insert(format!("{name}.hex"));
        let path = self.folder().join(format!("{name}.hex"));
        let mut lines = if self.mode == Mode::Rewrite { Vec::new() } else { lines(&path) };
        let missing = |lines: &[(String, Vec<u8>)]| {
            let new = written.iter().filter(|(_, bytes)| !lines.iter().any(|(_, line)| line == bytes));
            new.cloned().collect::<Vec<_>>()
        };
        if self.mode != Mode::Compare {
            let mut met = BTreeSet::new();
            lines.extend(missing(&lines).into_iter().filter(|(_, bytes)| met.insert(bytes.clone())));
            write(&path, &lines);
        }
        for (what, bytes) in missing(&lines) {
            self.faults.push(format!("{name}: these bytes are not in its golden file: {} of {what}", hex(&bytes)));
        }
        for (what, line) in &lines {
            if !written.iter().any(|(_, bytes)| bytes == line) {
                self.faults.push(format!("{name}: nothing writes this golden line any more: {} of {what}", hex(line)));
            }
        }
        lines.into_iter().map(|(_, bytes)| bytes).collect()
    }

    /// Enums that have samples for all their variants in another folder of golden files, and here only some.
    pub fn surveyed_elsewhere(&mut self, enums: &[&'static str]) {
        self.survey.forget(enums);
    }

    /// Ends the comparison.
    ///
    /// # Panics
    /// Where something differs, with all of it and what to do.
    pub fn finish(mut self) {
        self.faults.extend(self.survey.gaps());
        for name in entries(&self.folder()).difference(&self.names) {
            self.faults.push(format!("{}: no test compares this file", self.folder().join(name).display()));
        }
        let known: BTreeSet<String> = (1..=VERSION).map(|version| format!("v{version}")).collect();
        for name in entries(&self.root).difference(&known) {
            self.faults.push(format!("{}: no version of the codec", self.root.join(name).display()));
        }
        assert!(
            self.faults.is_empty(),
            "{} do not hold:\n  {}\n\n{}",
            self.root.display(),
            self.faults.join("\n  "),
            ADVICE
        );
    }

    fn folder(&self) -> PathBuf {
        self.root.join(format!("v{VERSION}"))
    }
}

/// The lines of a golden file: a word about each, and the bytes.
fn lines(path: &Path) -> Vec<(String, Vec<u8>)> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = |(number, line): (usize, &str)| {
        let (bytes, what) = line.split_once(' ').unwrap_or((line, ""));
        let bytes =
            unhex(bytes).unwrap_or_else(|| panic!("{}: line {} begins with no hex", path.display(), number + 1));
        (what.to_owned(), bytes)
    };
    text.lines().enumerate().map(line).collect()
}

fn write(path: &Path, lines: &[(String, Vec<u8>)]) {
    let text: String = lines.iter().map(|(what, bytes)| format!("{} {what}\n", hex(bytes))).collect();
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).unwrap_or_else(|error| panic!("cannot create {}: {error}", folder.display()));
    }
    fs::write(path, text).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
}

fn entries(folder: &Path) -> BTreeSet<String> {
    let found = fs::read_dir(folder).into_iter().flatten().flatten();
    found.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The first characters: whoever reads the file shall know what a line is, not all of it.
fn shortened(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let pairs = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    pairs.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).ok()).collect()
}

/// Characters of a value's debug text that stand behind its bytes.
const SHOWN: usize = 160;

const ADVICE: &str = "What is sent is read by nodes of another build, and what is kept by the next one. So:
- A new variant, appended at the end of its enum: give it a sample, then PANDO_GOLDEN=append adds its line.
- Anything else (a field, an order, a type): undo it and append a variant, or a new message, instead. Where that is not
  possible, raise codec::VERSION and message::ALPN, keep the old files, and test that what is kept is still read.
- Lines of a version that was released are never edited or removed. Before that, PANDO_GOLDEN=rewrite makes them anew:
  PANDO_GOLDEN=rewrite cargo test -p pando-tests -p pando-node --test wire --lib golden";

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    enum Word {
        One(u32),
        Two { text: Option<String>, numbers: Vec<i64> },
    }

    // As a later build has it: the same name, a variant more.
    mod later {
        use super::{Deserialize, Serialize};

        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        pub enum Word {
            One(u32),
            Two { text: Option<String>, numbers: Vec<i64> },
            Three,
        }
    }

    fn whole() -> Vec<Word> {
        vec![Word::One(70_000), Word::Two { text: Some("x".into()), numbers: vec![-1, i64::MIN, 300] }]
    }

    fn compare<T: Serialize + DeserializeOwned + PartialEq + Debug>(
        root: &Path,
        mode: Mode,
        samples: &[T],
    ) -> Vec<String> {
        let mut golden = Golden::with(root, mode);
        golden.values("Word", samples);
        golden.faults.extend(golden.survey.gaps());
        golden.faults
    }

    #[test]
    fn what_was_written_is_found_again_and_every_change_is_told() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(compare(root.path(), Mode::Append, &whole()), [""; 0]);
        assert_eq!(compare(root.path(), Mode::Compare, &whole()), [""; 0]);
        let lost = compare(root.path(), Mode::Compare, &whole()[1..]);
        assert!(lost.iter().any(|fault| fault.contains("nothing writes this golden line")), "{lost:?}");
        let more = [whole(), vec![Word::One(1)]].concat();
        let new = compare(root.path(), Mode::Compare, &more);
        assert!(matches!(&new[..], [fault] if fault.contains("not in its golden file: 010001 of One(1)")), "{new:?}");
        assert_eq!(compare(root.path(), Mode::Append, &more), [""; 0]);
        assert_eq!(compare(root.path(), Mode::Compare, &more), [""; 0]);
        // The same bytes of another type are read as something else.
        let other = compare(root.path(), Mode::Compare, &[(0u32, 70_000u32)]);
        assert!(other.iter().any(|fault| fault.contains("cannot be read any more")), "{other:?}");
    }

    #[test]
    fn a_variant_an_option_and_a_container_without_a_sample_are_told() {
        let root = tempfile::tempdir().unwrap();
        let gaps = compare(root.path(), Mode::Rewrite, &[Word::Two { text: None, numbers: vec![] }]);
        let told = [
            "no sample holds the variant Word::One",
            "Word::Two.numbers is empty in every sample",
            "Word::Two.text is empty in every sample",
        ];
        assert_eq!(gaps, told);
        compare(root.path(), Mode::Rewrite, &whole());
        let [one, two] = &whole()[..] else { unreachable!("two samples") };
        let (Word::One(number), Word::Two { text, numbers }) = (one.clone(), two.clone()) else {
            unreachable!("these")
        };
        let samples = [later::Word::One(number), later::Word::Two { text, numbers }];
        assert_eq!(compare(root.path(), Mode::Compare, &samples), ["no sample holds the variant Word::Three"]);
        assert_ne!(format!("{:?}", later::Word::Three), "", "it can be made");
    }
}

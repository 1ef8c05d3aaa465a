//! A mistake with its place, as people see it.

use std::fmt;

use super::document::{Span, shortened};

/// A mistake in a spec, with its place.
///
/// It displays as `12:1: unknown key "comand"; did you mean "command"? expected one of ...`, then the line of the file and
/// a caret under the word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1, in characters.
    pub column: usize,
    /// The word in the file that is wrong, without quotes; shortened where it is long, empty at the end of the file.
    pub word: String,
    /// What is wrong with it, and what to do.
    pub what: String,
    /// The known word that looks most like it; `None` where none does.
    pub nearest: Option<String>,
    /// What could stand there instead; `None` where `what` says it.
    pub expected: Option<String>,
    excerpt: Excerpt,
}

/// The part of a line that is shown, and what of it is marked.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Excerpt {
    shown: String,
    before_caret: usize,
    carets: usize,
}

/// A mistake as the reader finds it: its place is still counted in bytes.
#[derive(Debug)]
pub(super) struct Finding {
    pub span: Span,
    pub what: String,
    pub nearest: Option<String>,
    pub expected: Option<String>,
}

impl Finding {
    pub fn new(span: Span, what: impl Into<String>) -> Self {
        Self { span, what: what.into(), nearest: None, expected: None }
    }
}

/// Most mistakes that are listed. A person reads the first few; a file that is all mistakes must not take minutes.
const MAX_MISTAKES: usize = 500;

/// The findings as mistakes in the order of the text, each once.
pub(super) fn located(text: &str, mut findings: Vec<Finding>) -> Vec<Mistake> {
    findings.sort_by(|a, b| (a.span.start, &a.what).cmp(&(b.span.start, &b.what)));
    findings.dedup_by(|a, b| a.span == b.span && a.what == b.what);
    findings.truncate(MAX_MISTAKES);
    // A byte order mark takes no column: no editor shows it.
    let first = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let line_starts: Vec<usize> = std::iter::once(first)
        .chain(text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(at, _)| at + 1))
        .collect();
    findings.into_iter().map(|finding| locate(text, &line_starts, finding)).collect()
}

fn locate(text: &str, line_starts: &[usize], finding: Finding) -> Mistake {
    let Finding { span, what, nearest, expected } = finding;
    let start = floor(text, span.start).max(line_starts.first().copied().unwrap_or_default());
    let line = line_starts.partition_point(|at| *at <= start);
    let line_start = line_starts.get(line - 1).copied().unwrap_or_default();
    let line_text = text[line_start..].lines().next().unwrap_or_default();
    let column = text[line_start..start].chars().count() + 1;
    let raw = &text[start..floor(text, span.end).max(start)];
    let marked = raw.lines().next().unwrap_or_default().chars().count();
    let word = shortened(raw.trim()).trim_matches(['"', '\'']).to_owned();
    Mistake { line, column, word, what, nearest, expected, excerpt: Excerpt::of(line_text, column - 1, marked) }
}

/// The nearest boundary of a character at or before `at`.
fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default()
}

impl Excerpt {
    /// The part of a line around its character `at` (from 0), of which `marked` characters are wrong.
    fn of(line: &str, at: usize, marked: usize) -> Self {
        const BEFORE: usize = 60;
        const MOST: usize = 120;
        let skipped = at.saturating_sub(BEFORE);
        // A tab takes one column here, so that the caret stands below its word whatever the terminal does with tabs.
        let printable = |c: char| if c.is_control() { ' ' } else { c };
        let mut shown: String = line.chars().skip(skipped).take(MOST).map(printable).collect();
        let length = shown.chars().count();
        let mut before_caret = at - skipped;
        let carets = marked.clamp(1, length.saturating_sub(before_caret).max(1));
        if line.chars().nth(skipped + MOST).is_some() {
            shown.push('…');
        }
        if skipped > 0 {
            shown.insert(0, '…');
            before_caret += 1;
        }
        Self { shown, before_caret, carets }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column, word: _, what, nearest, expected, excerpt } = self;
        write!(f, "{line}:{column}: {what}")?;
        if let Some(nearest) = nearest {
            write!(f, "; did you mean {nearest:?}?")?;
        }
        if let Some(expected) = expected {
            write!(f, "{} expected {expected}", if nearest.is_some() { "" } else { ";" })?;
        }
        let Excerpt { shown, before_caret, carets } = excerpt;
        write!(f, "\n{line:>5} | {shown}\n      | {:before_caret$}{}", "", "^".repeat(*carets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(text: &str, span: Span) -> Mistake {
        located(text, vec![Finding::new(span, "wrong")]).remove(0)
    }

    #[test]
    fn a_mistake_shows_its_line_with_a_caret_under_the_word() {
        let text = "a = 1\n\tä = \"bee\"\n";
        let start = text.find("\"bee").unwrap();
        let mistake = only(text, start..start + 5);
        assert_eq!((mistake.line, mistake.column, mistake.word.as_str()), (2, 6, "bee"));
        assert_eq!(mistake.to_string(), "2:6: wrong\n    2 |  ä = \"bee\"\n      |      ^^^^^");
    }

    #[test]
    fn the_nearest_word_and_what_was_expected_follow() {
        let finding = |nearest: Option<&str>| Finding {
            nearest: nearest.map(Into::into),
            expected: Some("a or b".into()),
            ..Finding::new(0..1, "unknown key \"c\"")
        };
        let first_line =
            |nearest| located("c", vec![finding(nearest)])[0].to_string().lines().next().unwrap().to_owned();
        assert_eq!(first_line(Some("a")), "1:1: unknown key \"c\"; did you mean \"a\"? expected a or b");
        assert_eq!(first_line(None), "1:1: unknown key \"c\"; expected a or b");
    }

    #[test]
    fn of_a_long_line_only_the_surroundings_are_shown() {
        let text = format!("{}WORD{}", "x".repeat(1_000), "y".repeat(1_000));
        let shown = only(&text, 1_000..1_004).to_string();
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[1], format!("    1 | …{}WORD{}…", "x".repeat(60), "y".repeat(56)));
        assert_eq!(lines[2], format!("      | {}^^^^", " ".repeat(61)));
    }

    #[test]
    fn a_place_at_the_end_or_inside_a_character_is_a_place() {
        assert_eq!((only("a\nb", 3..3).line, only("a\nb", 3..3).column), (2, 2));
        assert_eq!((only("", 0..0).line, only("", 0..0).column), (1, 1));
        assert_eq!(only("ää", 1..3).column, 1);
        assert_eq!(only("ab", 7..9).column, 3);
    }
}

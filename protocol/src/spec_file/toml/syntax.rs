//! What is said of TOML that is none: what was expected, what was found.

use std::collections::BTreeSet;

use ::toml::de::Error;

use super::super::document::{MAX_NESTING, Span, found};
use super::super::mistake::Finding;

/// Most syntax errors that are listed: where a bracket is missing, each line that follows is one.
const MOST: usize = 10;

const VALUE: &str = "a value (a text in quotes, a number, true, false, [ or {)";
const KEY: &str = "a key of letters, digits, _ and -";
const ASSIGNMENT: &str = "`=` and a value after the key";

/// The first error of each line: the rest of a line is mostly what the parser makes of the first.
pub(super) fn findings(text: &str, errors: &[Error]) -> Vec<Finding> {
    let mut lines = BTreeSet::new();
    let mut findings = Vec::new();
    for error in errors {
        let span = error.span().unwrap_or(text.len()..text.len());
        let line_end = text.get(span.start..).and_then(|rest| rest.find('\n')).map(|length| span.start + length);
        if !lines.insert(line_end) {
            continue;
        }
        let what = what(text, &span, error.message());
        findings.push(Finding::new(span, what));
        if findings.len() == MOST {
            break;
        }
    }
    findings
}

/// The parser tells its kinds of errors apart by their texts only. One that is not known here is passed on, with what was
/// found.
fn what(text: &str, span: &Span, message: &str) -> String {
    let (kind, expected) = message.split_once(", expected ").unwrap_or((message, ""));
    let found = found(text, span.start);
    let instead = |expected: &str| format!("expected {expected}, found {found}");
    match kind {
        "duplicate key" => {
            let key = text.get(span.clone()).unwrap_or_default();
            format!("duplicate key {:?}: give it once", key.trim_matches(['"', '\'']))
        }
        "extra `=`" => format!("expected {VALUE}, found another `=`"),
        "missing value" | "missing array opening" | "missing inline table opening" => instead(VALUE),
        "string values must be quoted" => unquoted(text, span, &found),
        "key with no value" | "missing value for key" | "missing assignment between key-value pairs" => {
            instead(ASSIGNMENT)
        }
        "unquoted keys cannot be empty"
        | "invalid unquoted key"
        | "invalid key-value pair"
        | "extra comma in inline table"
        | "missing key for inline table element" => instead(KEY),
        "unclosed table" => instead("] after the name of the table"),
        "unclosed array table" => instead("]] after the name of the table"),
        "unexpected key or value" | "unexpected content" => {
            format!("expected the end of the line, found {found}: each key begins a line of its own")
        }
        "unclosed array" | "missing comma between array elements" => instead("a comma or ]"),
        "extra comma in array" | "unexpected `=` in array" => instead(&format!("{VALUE}, or ]")),
        "unclosed inline table" | "missing comma between key-value pairs" => instead("a comma or }"),
        "extra assignment between key-value pairs" => "expected a comma between two keys, found another `=`".into(),
        "invalid basic string" | "invalid multi-line basic string" if expected == "`\"`" => {
            instead("a double quote that closes this text")
        }
        "invalid literal string" | "invalid multi-line literal string" if expected == "`'`" => {
            unclosed_or_missing(text, span, &found)
        }
        "missing escaped value" => instead("one of b e f n r t \\ \" x u U after \\"),
        "unexpected leading zero" => "expected a number without leading zeros, found one with them".into(),
        "redundant numeric sign" => format!("expected one sign at most, found another: {found}"),
        "`_` may only go between digits" => format!("expected _ only between digits, found {found}"),
        "invalid boolean" => instead("true or false"),
        "cannot recurse further; max recursion depth met" | "recursion limit" => {
            format!("nested too deep: expected at most {MAX_NESTING} levels")
        }
        _ if expected.is_empty() || expected == "nothing" => format!("{kind}: found {found}"),
        _ => format!("{kind}: expected {expected}, found {found}"),
    }
}

fn unquoted(text: &str, span: &Span, found: &str) -> String {
    match text.get(span.clone()).map(str::trim) {
        None | Some("") => format!("expected {VALUE}, found {found}"),
        Some(word) => {
            let word = super::super::document::shortened(word);
            format!("expected {VALUE}, found `{word}`; a text stands in quotes, and of several values each is in [ ]")
        }
    }
}

/// The parser takes a value that is missing in an inline table for a text without end.
fn unclosed_or_missing(text: &str, span: &Span, found: &str) -> String {
    let before = text.get(..span.start).unwrap_or_default();
    let line = before.rsplit('\n').next().unwrap_or_default();
    let expected = if line.trim_end().ends_with('=') {
        VALUE
    } else if line.contains('\'') {
        "a single quote that closes this text"
    } else {
        ASSIGNMENT
    };
    format!("expected {expected}, found {found}")
}

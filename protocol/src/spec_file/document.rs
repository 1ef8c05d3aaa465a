//! A document whose every key and value knows its place in the text: what TOML and JSON have in common.

use std::ops::Range;

/// Bytes of the text, from inclusive to exclusive.
pub(super) type Span = Range<usize>;

/// Deepest nesting of tables and arrays that is read. A tree of the deepest kind needs some forty levels; past this the
/// place of the mistake is all that matters, and no walk may overflow the stack.
pub(super) const MAX_NESTING: usize = 64;

/// A value and its place.
#[derive(Debug)]
pub(super) struct Node {
    /// Where it stands; for tables that are not written inline, where they begin.
    pub span: Span,
    /// It.
    pub value: Value,
}

/// A value.
#[derive(Debug)]
pub(super) enum Value {
    Text(String),
    /// One that is too large for this type stands as its largest or smallest value: out of any range that a spec allows.
    Integer(i128),
    /// With a fraction or an exponent; the spec has none of these.
    Decimal,
    Boolean(bool),
    /// TOML only.
    Date,
    /// JSON only.
    Null,
    Array(Vec<Node>),
    /// In the order of the text; no key occurs twice.
    Table(Vec<Entry>),
}

/// A key with its value.
#[derive(Debug)]
pub(super) struct Entry {
    pub key: String,
    pub key_span: Span,
    pub node: Node,
}

impl Node {
    /// What it is, for the words "found ..." of a mistake.
    pub fn describe(&self, text: &str) -> String {
        let source = || shortened(text.get(self.span.clone()).unwrap_or_default());
        match &self.value {
            Value::Text(value) => format!("text {:?}", shortened(value)),
            Value::Integer(_) => format!("integer {}", source()),
            Value::Decimal => format!("number {}", source()),
            Value::Boolean(value) => format!("boolean {value}"),
            Value::Date => format!("date {}", source()),
            Value::Null => "null".into(),
            Value::Array(_) => "an array".into(),
            Value::Table(_) => "a table".into(),
        }
    }
}

/// What stands at a place of the text, for the words "found ..." of a mistake in its syntax: a word, a sign, or an end.
pub(super) fn found(text: &str, at: usize) -> String {
    let rest = text.get(at..).unwrap_or_default().trim_start_matches([' ', '\t', '\r']);
    if rest.trim_start().is_empty() {
        return "the end of the file".into();
    }
    if rest.starts_with('\n') {
        return "the end of the line".into();
    }
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    let length = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
    let sign = rest.chars().next().map_or(0, char::len_utf8);
    let word = &rest[..length.max(sign)];
    if word.chars().any(char::is_control) {
        return format!("the control character {word:?}");
    }
    format!("`{}`", shortened(word))
}

/// The first line of a text, at most forty characters of it.
pub(super) fn shortened(text: &str) -> String {
    const MOST: usize = 40;
    let line = text.lines().next().unwrap_or_default();
    let mut short: String = line.chars().take(MOST).collect();
    if short.len() < text.trim_end().len() {
        short.push('…');
    }
    short
}

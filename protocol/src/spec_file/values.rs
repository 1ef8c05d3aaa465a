//! Reading single values: each asks for one type, and says what was expected and what came.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::document::{Entry, Node, Span, Value, shortened};
use super::mistake::Finding;
use super::places::Places;
use super::{duration, keys};
use crate::ids::Path;

/// What is found while a document is read. Its methods answer `None` after they have noted a mistake.
pub(super) struct Reader<'t> {
    text: &'t str,
    pub findings: Vec<Finding>,
    pub places: Places,
}

/// The entries of a table.
#[derive(Clone, Copy)]
pub(super) struct Fields<'n>(&'n [Entry]);

impl<'n> Fields<'n> {
    /// The value of a key.
    pub fn get(self, key: &str) -> Option<&'n Node> {
        self.entry(key).map(|entry| &entry.node)
    }

    /// A key with its value.
    pub fn entry(self, key: &str) -> Option<&'n Entry> {
        self.0.iter().find(|entry| entry.key == key)
    }

    /// All of them, in the order of the text.
    pub fn entries(self) -> &'n [Entry] {
        self.0
    }
}

impl<'t> Reader<'t> {
    pub fn new(text: &'t str) -> Self {
        Self { text, findings: Vec::new(), places: Places::default() }
    }

    /// Notes a mistake.
    pub fn refuse(&mut self, span: &Span, what: impl Into<String>) {
        self.findings.push(Finding::new(span.clone(), what));
    }

    /// Notes a value of the wrong type, or out of range.
    pub fn wrong(&mut self, node: &Node, expected: &str) {
        let found = node.describe(self.text);
        self.refuse(&node.span, format!("expected {expected}, found {found}"));
    }

    pub fn text<'n>(&mut self, node: &'n Node, expected: &str) -> Option<&'n str> {
        let Value::Text(text) = &node.value else {
            self.wrong(node, expected);
            return None;
        };
        Some(text)
    }

    pub fn boolean(&mut self, node: &Node) -> Option<bool> {
        let Value::Boolean(value) = node.value else {
            self.wrong(node, "true or false");
            return None;
        };
        Some(value)
    }

    /// An integer within `range`, which must fit into `T`.
    pub fn integer<T: TryFrom<i128>>(&mut self, node: &Node, range: RangeInclusive<i128>) -> Option<T> {
        let value = match node.value {
            Value::Integer(value) if range.contains(&value) => T::try_from(value).ok(),
            _ => None,
        };
        if value.is_none() {
            self.wrong(node, &format!("an integer from {} to {}", range.start(), range.end()));
        }
        value
    }

    /// `example` is a duration that would be usual here.
    pub fn duration(&mut self, node: &Node, example: &str) -> Option<Duration> {
        let text = self.text(node, &format!("a text such as {example:?}"))?;
        match duration::parse(text) {
            Ok(duration) => Some(duration),
            Err(error) => {
                self.refuse(&node.span, error.to_string());
                None
            }
        }
    }

    /// One of the words of an enum.
    pub fn choice<T: Copy>(&mut self, node: &Node, choices: &[(&str, T)]) -> Option<T> {
        let quoted: Vec<String> = choices.iter().map(|(word, _)| format!("{word:?}")).collect();
        let expected = format!("one of {}", quoted.join(", "));
        let text = self.text(node, &expected)?;
        let known = choices.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        if known.is_none() {
            self.unknown_word(node, text, choices.iter().map(|(word, _)| *word), &expected);
        }
        known
    }

    /// Notes a word that is none of the `known` ones.
    pub fn unknown_word<'w>(&mut self, node: &Node, word: &str, known: impl Iterator<Item = &'w str>, expected: &str) {
        self.findings.push(Finding {
            nearest: keys::nearest(word, known),
            expected: Some(expected.to_owned()),
            ..Finding::new(node.span.clone(), format!("unknown value {:?}", shortened(word)))
        });
    }

    pub fn array<'n>(&mut self, node: &'n Node, expected: &str) -> Option<&'n [Node]> {
        let Value::Array(items) = &node.value else {
            self.wrong(node, expected);
            return None;
        };
        Some(items)
    }

    /// An array of texts.
    pub fn texts<'n>(&mut self, node: &'n Node, expected: &str) -> Option<Vec<&'n str>> {
        let items = self.array(node, expected)?;
        let texts: Vec<&str> = items.iter().filter_map(|item| self.text(item, "a text")).collect();
        (texts.len() == items.len()).then_some(texts)
    }

    /// A table with whatever keys.
    pub fn table<'n>(&mut self, node: &'n Node, expected: &str) -> Option<Fields<'n>> {
        let Value::Table(entries) = &node.value else {
            self.wrong(node, expected);
            return None;
        };
        Some(Fields(entries))
    }

    /// A table below the key `key` of a member: unknown keys in it are refused, the places of all are noted.
    pub fn fields<'n>(
        &mut self,
        node: &'n Node,
        at: &Path,
        key: &str,
        allowed: &[&str],
        expected: &str,
    ) -> Option<Fields<'n>> {
        let fields = self.table(node, expected)?;
        for entry in fields.entries() {
            if allowed.contains(&entry.key.as_str()) {
                self.places.key(at, format!("{key}.{}", entry.key), entry);
            } else {
                self.findings.push(keys::unknown(entry, allowed));
            }
        }
        Some(fields)
    }
}

//! JSON to a document.

use std::borrow::Cow;
use std::collections::BTreeSet;

use jsonc_parser::ast::{Object, ObjectPropName, Value as Json};
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};

use super::document::{Entry, MAX_NESTING, Node, Span, Value};
use super::mistake::Finding;

mod syntax;

/// The document that `text` is, or the first mistake in its syntax, or all keys that occur twice.
pub(super) fn parse(text: &str) -> Result<Node, Vec<Finding>> {
    let text = &*without_mark(text);
    let parsed = parse_to_ast(text, &CollectOptions::default(), &strict())
        .map_err(|error| vec![syntax::finding(text, &error)])?;
    let Some(value) = parsed.value else {
        return Err(vec![Finding::new(text.len()..text.len(), "there is nothing here: expected an object")]);
    };
    let mut findings = Vec::new();
    let node = convert(value, 0, &mut findings);
    if findings.is_empty() { Ok(node) } else { Err(findings) }
}

/// JSON as RFC 8259 has it: the parser knows many relaxed forms, and other readers of the file would not.
fn strict() -> ParseOptions {
    ParseOptions {
        allow_comments: false,
        allow_loose_object_property_names: false,
        allow_trailing_commas: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    }
}

fn convert(json: Json<'_>, depth: usize, findings: &mut Vec<Finding>) -> Node {
    let span = span(&json);
    let value = match json {
        Json::Array(_) | Json::Object(_) if depth >= MAX_NESTING => {
            findings.push(Finding::new(span.clone(), format!("nested more than {MAX_NESTING} levels deep")));
            Value::Null
        }
        Json::StringLit(text) => Value::Text(text.value.into_owned()),
        Json::NumberLit(number) => number_value(number.value),
        Json::BooleanLit(boolean) => Value::Boolean(boolean.value),
        Json::NullKeyword(_) => Value::Null,
        Json::Array(array) => {
            Value::Array(array.elements.into_iter().map(|element| convert(element, depth + 1, findings)).collect())
        }
        Json::Object(object) => Value::Table(entries(object, depth, findings)),
    };
    Node { span, value }
}

fn entries(object: Object<'_>, depth: usize, findings: &mut Vec<Finding>) -> Vec<Entry> {
    let mut keys = BTreeSet::new();
    let mut entries = Vec::new();
    for property in object.properties {
        let key_span = span(&property.name);
        let key = match property.name {
            ObjectPropName::String(text) => text.value.into_owned(),
            ObjectPropName::Word(word) => word.value.to_owned(),
        };
        if !keys.insert(key.clone()) {
            findings.push(Finding::new(key_span.clone(), format!("duplicate key {key:?}: give it once")));
        }
        entries.push(Entry { key, key_span, node: convert(property.value, depth + 1, findings) });
    }
    entries
}

fn number_value(text: &str) -> Value {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Value::Decimal;
    }
    Value::Integer(text.parse().unwrap_or(if text.starts_with('-') { i128::MIN } else { i128::MAX }))
}

fn span(ranged: &impl Ranged) -> Span {
    ranged.start()..ranged.end()
}

/// The text without the byte order mark that some editors put before it; the places of all else stay what they were.
fn without_mark(text: &str) -> Cow<'_, str> {
    match text.strip_prefix('\u{feff}') {
        Some(rest) => Cow::Owned(format!("{}{rest}", " ".repeat('\u{feff}'.len_utf8()))),
        None => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what(text: &str) -> String {
        parse(text).unwrap_err().remove(0).what
    }

    #[test]
    fn only_strict_json_is_read() {
        assert!(what("{\"a\": 1, // one\n}").contains("comment"), "{}", what("{\"a\": 1, // one\n}"));
        assert!(what("{\"a\": 1,}").contains("trailing comma"));
        assert!(what("{\"a\": 1, \"b\": 2, \"a\": 3}").contains("duplicate key \"a\""));
        for text in
            ["", "{", "{a: 1}", "{'a': 1}", "{\"a\": 0x10}", "{\"a\": +1}", "{\"a\": .5}", "{\"a\": NaN}", "{} {}"]
        {
            assert!(!what(text).is_empty(), "{text:?}");
        }
        assert!(parse("{\"a\": [1, -2, 3.5, true, null, \"\\u00e4\"]}").is_ok());
    }

    #[test]
    fn nesting_without_end_is_refused_and_overflows_no_stack() {
        for text in ["[".repeat(500_000), "{\"a\":".repeat(200_000), format!("{}{}", "[".repeat(300), "]".repeat(300))]
        {
            assert!(!parse(&text).unwrap_err().is_empty());
        }
    }
}

//! TOML to a document.

use ::toml::Spanned;
use ::toml::de::{DeInteger, DeTable, DeValue};

use super::document::{Entry, MAX_NESTING, Node, Value};
use super::mistake::Finding;

mod syntax;

/// The document that `text` is, or every mistake in its syntax.
pub(super) fn parse(text: &str) -> Result<Node, Vec<Finding>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        return Err(syntax::findings(text, &errors));
    }
    let span = table.span();
    let document = Spanned::new(span, DeValue::Table(table.into_inner()));
    let mut findings = Vec::new();
    let node = convert(document, 0, &mut findings);
    if findings.is_empty() { Ok(node) } else { Err(findings) }
}

fn convert(value: Spanned<DeValue<'_>>, depth: usize, findings: &mut Vec<Finding>) -> Node {
    let span = value.span();
    let value = match value.into_inner() {
        DeValue::Array(_) | DeValue::Table(_) if depth >= MAX_NESTING => {
            findings.push(Finding::new(span.clone(), format!("nested more than {MAX_NESTING} levels deep")));
            Value::Null
        }
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Integer(integer) => Value::Integer(saturated(&integer)),
        DeValue::Float(_) => Value::Decimal,
        DeValue::Boolean(value) => Value::Boolean(value),
        DeValue::Datetime(_) => Value::Date,
        DeValue::Array(items) => {
            Value::Array(items.into_iter().map(|item| convert(item, depth + 1, findings)).collect())
        }
        DeValue::Table(table) => Value::Table(entries(table, depth, findings)),
    };
    Node { span, value }
}

fn entries(table: DeTable<'_>, depth: usize, findings: &mut Vec<Finding>) -> Vec<Entry> {
    let mut entries: Vec<Entry> = table
        .into_iter()
        .map(|(key, value)| {
            let key_span = key.span();
            Entry { key: key.into_inner().into_owned(), key_span, node: convert(value, depth + 1, findings) }
        })
        .collect();
    entries.sort_by_key(|entry| entry.key_span.start);
    entries
}

fn saturated(integer: &DeInteger<'_>) -> i128 {
    let text = integer.as_str();
    let largest = if text.starts_with('-') { i128::MIN } else { i128::MAX };
    i128::from_str_radix(text, integer.radix()).unwrap_or(largest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_nested_without_end_are_refused_and_overflow_no_stack() {
        let endless = "a.".repeat(200_000);
        for text in [
            format!("{endless}a = 1"),
            format!("[{endless}a]"),
            format!("[[{endless}a]]"),
            format!("a = {}", "[".repeat(500_000)),
        ] {
            assert!(!parse(&text).unwrap_err().is_empty(), "{}", &text[..20]);
        }
        // What the parser bounds one by one can still add up.
        let (header, keys) = ("h.".repeat(70), "k.".repeat(70));
        let findings = parse(&format!("[{header}h]\n{keys}k = {}1{}", "[".repeat(70), "]".repeat(70))).unwrap_err();
        assert_eq!(findings[0].what, "nested more than 64 levels deep");
    }

    #[test]
    fn each_line_has_its_first_syntax_error() {
        let findings = parse("a = \nb = 1\nc = \"x\nb = 2\n").unwrap_err();
        let whats: Vec<&str> = findings.iter().map(|finding| finding.what.as_str()).collect();
        assert_eq!(findings.len(), 3, "{whats:?}");
        assert!(whats.contains(&"duplicate key \"b\": give it once"), "{whats:?}");
    }
}

//! What is said of JSON that is none: what was expected, what was found.

use jsonc_parser::ParseStringErrorKind;
use jsonc_parser::errors::{ParseError, ParseErrorKind};

use super::super::document::{MAX_NESTING, found};
use super::super::mistake::Finding;

const VALUE: &str = "a value (a text in double quotes, a number, true, false, null, [ or {)";
const KEY: &str = "a key in double quotes";
const ESCAPE: &str = "one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t, or \\u with four hexadecimal digits";

/// The parser's error in words of ours, at its place.
pub(super) fn finding(text: &str, error: &ParseError) -> Finding {
    let range = error.range();
    Finding::new(range.start..range.end, what(text, range.start, error.kind()))
}

fn what(text: &str, at: usize, kind: &ParseErrorKind) -> String {
    use ParseErrorKind as Kind;
    let instead = |expected: &str| format!("expected {expected}, found {}", found(text, at));
    let never_closed =
        |open: &str, close: &str| format!("this {open} is never closed: expected {close}, found the end of the file");
    match kind {
        Kind::UnexpectedToken
        | Kind::UnexpectedWord
        | Kind::UnexpectedCloseBrace
        | Kind::UnexpectedCloseBracket
        | Kind::UnexpectedColon
        | Kind::UnexpectedComma
        | Kind::ExpectedComma
        | Kind::ExpectedObjectValue => misplaced(text, at),
        Kind::UnexpectedTokenInObject | Kind::ExpectedStringObjectProperty => instead(KEY),
        Kind::ExpectedColonAfterObjectKey => instead("`:` and a value after the key"),
        Kind::ExpectedDigit | Kind::ExpectedDigitFollowingNegativeSign => instead("a digit"),
        Kind::ExpectedPlusMinusOrDigitInNumberLiteral => instead("a digit, or a sign and digits, for the exponent"),
        Kind::BareDecimalPointNumbersNotAllowed => instead("a number with digits on both sides of its point"),
        Kind::HexadecimalNumbersNotAllowed => "expected a decimal number, found a hexadecimal one".into(),
        Kind::NonFiniteNumbersNotAllowed => instead("a number that is finite"),
        Kind::UnaryPlusNumbersNotAllowed => "expected a number without +, found one with it".into(),
        Kind::SingleQuotedStringsNotAllowed => "expected a text in double quotes, found one in single quotes".into(),
        Kind::MultipleRootJsonValues => instead("nothing more after the object"),
        Kind::TrailingCommasNotAllowed => {
            "trailing commas are not allowed: expected another item after this one, or no comma".into()
        }
        Kind::CommentsNotAllowed => "comments are not allowed in JSON: remove it, or write the spec in TOML".into(),
        Kind::UnterminatedArray => never_closed("[", "]"),
        Kind::UnterminatedObject => never_closed("{", "}"),
        Kind::UnterminatedCommentBlock => never_closed("/*", "*/"),
        Kind::NestingDepthExceeded => format!("nested too deep: expected at most {MAX_NESTING} levels"),
        Kind::String(kind) => in_text(text, at, kind),
    }
}

fn in_text(text: &str, at: usize, kind: &ParseStringErrorKind) -> String {
    use ParseStringErrorKind as Kind;
    match kind {
        Kind::InvalidEscape | Kind::InvalidEscapeInSingleQuoteString | Kind::InvalidEscapeInDoubleQuoteString => {
            let escape: String = text.get(at..).unwrap_or_default().chars().take(2).collect();
            format!("expected {ESCAPE}, found `{escape}`")
        }
        Kind::ExpectedFourHexDigits | Kind::ExpectedTwoHexDigits => {
            "expected \\u with four hexadecimal digits, found fewer".into()
        }
        Kind::InvalidUnicodeEscapeSequence(sequence) => {
            format!("expected the number of a character after \\u, found {sequence}")
        }
        Kind::UnterminatedStringLiteral => {
            "this text is never closed: expected a double quote, found the end of the file".into()
        }
    }
}

/// Of something where it does not belong: what would, by what stands before it.
fn misplaced(text: &str, at: usize) -> String {
    let before = text.get(..at).and_then(|before| before.trim_end().chars().next_back());
    let expected = match before {
        None | Some(':' | ',') => VALUE.to_owned(),
        Some('[') => format!("{VALUE}, or ]"),
        Some('{') => format!("{KEY}, or }}"),
        Some(_) => ", or the closing bracket".into(),
    };
    let word = found(text, at);
    let is_word = word.starts_with('`') && word.chars().nth(1).is_some_and(char::is_alphabetic);
    let quotes = if is_word { "; a text stands in double quotes" } else { "" };
    format!("expected {expected}, found {word}{quotes}")
}

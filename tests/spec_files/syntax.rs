//! Files that are no TOML or JSON: what was expected, what was found, and where.

use pando_protocol::spec_file::{self, Format};

use super::CHILD;
use super::mistakes::case;

#[test]
fn broken_syntax_and_keys_given_twice_have_their_place() {
    case(
        (CHILD, ""),
        "restart = \"permanent",
        (5, 21),
        "",
        "a double quote that closes this text, found the end",
        None,
    );
    case((CHILD, ""), "command = [\"b\"]", (5, 1), "command", "duplicate key \"command\"", None);
    let json = |text: &str| spec_file::parse("shop.json", Format::Json, text).unwrap_err().mistakes()[0].clone();
    for (text, column, what) in [
        ("{\"name\": \"shop\",}", 16, "trailing commas are not allowed"),
        ("{\"name\": \"shop\" /* x */}", 17, "comments are not allowed"),
        ("{\"name\": \"shop\", \"name\": \"shop\"}", 18, "duplicate key \"name\""),
        ("{\"name\": \"ä\", \"children\": 1, \"x\"}", 33, "expected `:` and a value after the key, found `}`"),
    ] {
        let mistake = json(text);
        assert_eq!((mistake.line, mistake.column), (1, column), "{mistake}");
        assert!(mistake.what.contains(what), "{mistake}");
    }
}

#[test]
fn broken_syntax_says_what_was_expected_and_what_was_found() {
    let first = |format, text: &str| spec_file::parse("-", format, text).unwrap_err().mistakes()[0].what.clone();
    for (text, expected, found) in [
        ("{\"name\": shop}", "a value", "found `shop`; a text stands in double quotes"),
        ("{\"name\": @}", "a value", "found `@`"),
        ("{\"name\": tru}", "a value", "found `tru`"),
        ("{\"name\": }", "a value", "found `}`"),
        ("{\"name\":: 1}", "a value", "found `:`"),
        ("{\"name\":", "a value", "found the end of the file"),
        ("[1 2]", ", or the closing bracket", "found `2`"),
        ("{\"a\": 1; \"b\": 2}", ", or the closing bracket", "found `;`"),
        ("{\"a\": [1}", ", or the closing bracket", "found `}`"),
        ("[,1]", "a value", "found `,`"),
        ("{name: 1}", "a key in double quotes", "found `name`"),
        ("{,}", "a key in double quotes", "found `,`"),
        ("{\"a\" 1}", "`:` and a value", "found `1`"),
        ("{\"a\": \"\\q\"}", "one of \\\"", "found `\\q`"),
        ("{\"a\": \"\\u12\"}", "four hexadecimal digits", "found fewer"),
        ("{\"a\": \"\\ud800\"}", "the number of a character", "found d800"),
        ("{\"a\": \"x", "a double quote", "found the end of the file"),
        ("{\"a\": 'x'}", "double quotes", "found one in single quotes"),
        ("{\"a\": -}", "a digit", "found `}`"),
        ("{\"a\": 1e}", "a digit", "found `}`"),
        ("{\"a\": 5.}", "digits on both sides", "found `5.`"),
        ("{\"a\": 1}}", "nothing more after the object", "found `}`"),
        ("{\"a\": 1", "expected }", "found the end of the file"),
    ] {
        let what = first(Format::Json, text);
        assert!(what.contains("expected ") && what.contains(expected) && what.contains(found), "{text}: {what}");
    }
    let deep = first(Format::Json, &"[".repeat(600));
    assert_eq!(deep, "nested too deep: expected at most 64 levels");
    for (text, expected, found) in [
        ("a = = 2", "a value", "found another `=`"),
        ("a =", "a value", "found the end of the file"),
        ("a = \nb = 1", "a value", "found the end of the line"),
        ("a = shop", "a value", "found `shop`; a text stands in quotes"),
        ("a = 5s", "a value", "found `5s`"),
        ("a = ]", "a value", "found `]`"),
        ("a = { b = }", "a value", "found `}`"),
        ("a = { b.c }", "`=` and a value", "found `}`"),
        ("a = 'x", "a single quote", "found the end of the file"),
        ("a", "`=` and a value", "found the end of the file"),
        ("a b", "`=` and a value", "found `b`"),
        ("= 1", "a key", "found `=`"),
        ("a..b = 1", "a key", "found `.b`"),
        ("[children", "] after the name", "found the end of the file"),
        ("[[children]", "]] after the name", "found"),
        ("a = 1, b = 2", "the end of the line", "found `,`"),
        ("a = [1, 2", "a comma or ]", "found the end of the file"),
        ("a = [1,,2]", "a value", "found `,`"),
        ("a = { b = 1 c = 2 }", "a comma between two keys", "found another `=`"),
        ("a = \"\\q\"", "after \\", "found `q`"),
        ("a = 01", "without leading zeros", "found one with them"),
        ("a = tru", "true or false", "found `tru`"),
        ("a = \"\u{1}\"", "visible characters", "found the control character"),
    ] {
        let what = first(Format::Toml, text);
        assert!(what.contains("expected ") && what.contains(expected) && what.contains(found), "{text}: {what}");
        assert!(!what.contains("expected nothing"), "{text}: {what}");
    }
}

#[test]
fn a_byte_order_mark_is_skipped_and_takes_no_column() {
    let marked = |text: &str| format!("\u{feff}{text}");
    let json = "{\"name\": \"shop\", \"children\": [{\"id\": \"web\", \"command\": [\"web\"]}]}";
    for (format, text) in [(Format::Json, json), (Format::Toml, CHILD)] {
        let plain = spec_file::parse("-", format, text).unwrap();
        assert_eq!(spec_file::parse("-", format, &marked(text)).unwrap(), plain);
        let broken = text.replacen("shop", "Shop", 1);
        let mistake = |text: &str| spec_file::parse("-", format, text).unwrap_err().mistakes()[0].clone();
        assert_eq!(mistake(&marked(&broken)), mistake(&broken));
        let (missing, start) = (marked(&text.replacen("name", "nome", 1)), mistake(&text.replacen("name", "nome", 1)));
        assert_eq!(mistake(&missing), start);
    }
}

#[test]
fn a_json_mistake_is_placed_in_characters_at_its_word() {
    let text =
        "{\"name\": \"shop\", \"children\": [\n  {\"id\": \"web\", \"command\": [\"ä\"], \"restrat\": \"permanent\"}]}";
    let error = spec_file::parse("-", Format::Json, text).unwrap_err();
    assert_eq!(
        error.to_string(),
        "-:2:35: unknown key \"restrat\"; did you mean \"restart\"? expected one of id, command, restart, backoff, intensity, \
         shutdown, stop_signal, significant, normal_exit, on_disconnect, env, cwd, slots, ready, place, on_exit, count, mailbox\n\
         \u{20}   2 |   {\"id\": \"web\", \"command\": [\"ä\"], \"restrat\": \"permanent\"}]}\n\
         \u{20}     |                                   ^^^^^^^^^"
    );
}

//! The whole file: all its mistakes, its bounds, and damage to it.

use std::fs;
use std::path::Path;

use pando_protocol::spec_file::{self, Format, MAX_FILE, SpecFileError};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{fixture, toml};

#[test]
fn all_mistakes_come_at_once_and_none_follows_from_another() {
    let text = "name = \"Shop\"\n[[children]]\nid = \"web\"\ncommand = []\nrestart = \"permament\"\nsignificant = true\n\
                backoff = { base = \"x\", cap = \"10ms\", jitter = 99 }\n[[children]]\nid = \"web\"\nchildren = 3\n";
    let error = toml(text).unwrap_err();
    let found: Vec<(usize, &str)> = error.mistakes().iter().map(|m| (m.line, m.word.as_str())).collect();
    // Not among them: that `significant` does not fit, that the cap is below the default base, that a supervisor has no
    // children. Nobody knows yet.
    let expected = [(1, "Shop"), (4, "[]"), (5, "permament"), (7, "x"), (7, "99"), (9, "web"), (10, "3")];
    assert_eq!(found, expected, "{error}");
}

#[test]
fn a_tree_may_be_sixteen_levels_deep_and_no_deeper() {
    let tree = |levels: usize| {
        let below = (2..levels).fold("{\"id\": \"x\", \"command\": [\"x\"]}".to_owned(), |below, _| {
            format!("{{\"id\": \"s\", \"children\": [\n{below}]}}")
        });
        format!("{{\"name\": \"t\", \"children\": [\n{below}]}}")
    };
    assert!(spec_file::parse("t.json", Format::Json, &tree(16)).is_ok());
    let error = spec_file::parse("t.json", Format::Json, &tree(17)).unwrap_err();
    let [mistake] = error.mistakes() else { panic!("{error}") };
    assert_eq!((mistake.line, mistake.word.as_str()), (17, "x"), "{error}");
    assert!(mistake.what.contains("17 levels deep: at most 16"), "{error}");
    for levels in [100, 10_000] {
        let error = spec_file::parse("t.json", Format::Json, &tree(levels)).unwrap_err();
        assert!(!error.mistakes().is_empty(), "{levels} levels");
    }
    let headers: String =
        (1..=300).map(|level| format!("[[{}]]\nid = \"x\"\n", vec!["children"; level].join("."))).collect();
    assert!(toml(&format!("name = \"t\"\n{headers}")).is_err());
}

#[test]
fn ten_thousand_members_are_allowed_and_one_more_is_not() {
    let tree = |children: usize| {
        let children: Vec<String> =
            (0..children).map(|n| format!("{{\"id\": \"c{n}\", \"command\": [\"x\"]}}")).collect();
        format!("{{\"name\": \"t\", \"children\": [{}]}}", children.join(",\n"))
    };
    // The root is a member.
    assert!(spec_file::parse("t.json", Format::Json, &tree(9_999)).is_ok());
    let error = spec_file::parse("t.json", Format::Json, &tree(10_000)).unwrap_err();
    let [mistake] = error.mistakes() else { panic!("{error}") };
    assert_eq!((mistake.line, mistake.column), (1, 27), "{error}");
    assert!(mistake.what.contains("10001 members in one tree"), "{error}");
}

#[test]
fn a_file_of_the_wrong_kind_size_or_encoding_is_refused_before_it_is_parsed() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let refused = |path: &Path| spec_file::read(path).unwrap_err();
    assert!(matches!(refused(&file("shop.yaml", b"name: shop")), SpecFileError::UnknownKind(_)));
    assert!(matches!(refused(&folder.path().join("none.toml")), SpecFileError::Unreadable { .. }));
    fs::create_dir(folder.path().join("folder.toml")).unwrap();
    assert!(matches!(refused(&folder.path().join("folder.toml")), SpecFileError::NotAFile(_)));
    let large = vec![b'#'; usize::try_from(MAX_FILE).unwrap() + 1];
    assert!(matches!(refused(&file("large.toml", &large)), SpecFileError::TooLarge { .. }));
    let text = String::from_utf8(large).unwrap();
    assert!(matches!(toml(&text).unwrap_err(), SpecFileError::TooLarge { .. }));
    let latin1 = refused(&file("latin1.toml", b"name = \"shop\"\n# caf\xe9\n"));
    assert!(latin1.to_string().ends_with("latin1.toml:2:6: not UTF-8: save the file as UTF-8 text"), "{latin1}");
}

#[test]
fn a_file_of_nothing_but_mistakes_is_answered_in_bounds() {
    let megabyte = usize::try_from(MAX_FILE).unwrap();
    let children = "{\"id\":\"x\"},".repeat(megabyte / 12);
    let text = format!("{{\"name\":\"t\",\"children\":[{children}3]}}");
    let error = spec_file::parse("t.json", Format::Json, &text).unwrap_err();
    assert_eq!(error.mistakes().len(), 500);
    let keys: String = (0..50_000).map(|n| format!("key{n} = 1\n")).collect();
    assert_eq!(toml(&keys).unwrap_err().mistakes().len(), 500);
    assert!(toml(&"[".repeat(megabyte)).unwrap_err().mistakes().len() <= 10);
}

#[test]
fn no_damage_to_a_file_makes_its_reader_panic() {
    let seed = std::env::var("PANDO_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x0070_616e_646f);
    println!("PANDO_SEED={seed}");
    let mut dice = StdRng::seed_from_u64(seed);
    let pieces = [
        "\"", "'", "[", "]", "{", "}", ",", "=", ":", ".", "\n", "\\", "\\u12", "#", "//", "é", "\u{feff}", "-", "9",
        "e",
    ];
    for (name, format) in [("shop-every-key.toml", Format::Toml), ("shop-every-key.json", Format::Json)] {
        let text = fs::read_to_string(fixture(name)).unwrap();
        for _ in 0..5_000 {
            let mut damaged: Vec<char> = text.chars().collect();
            for _ in 0..dice.random_range(1..4) {
                let at = dice.random_range(0..damaged.len());
                let end = (at + dice.random_range(0..12)).min(damaged.len());
                let piece = pieces[dice.random_range(0..pieces.len())];
                damaged.splice(at..end, piece.chars());
            }
            let damaged: String = damaged.into_iter().collect();
            if let Err(error) = spec_file::parse(name, format, &damaged) {
                assert!(!error.mistakes().is_empty() && !error.to_string().is_empty(), "{damaged}");
            }
        }
    }
}

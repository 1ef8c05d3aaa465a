//! The codec is positional: serde attributes that leave fields out, or ask the bytes what they are, would write what cannot
//! be read. Types that are sent or kept must not have them.

use std::fs;
use std::path::{Path, PathBuf};

/// Attributes that a positional format cannot carry.
const FORBIDDEN: [&str; 4] = ["flatten", "tag", "untagged", "default"];

#[test]
fn types_that_are_sent_or_kept_have_no_attribute_that_the_codec_cannot_carry() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are a folder of the workspace");
    let mut files = 0;
    for folder in ["protocol/src", "node/supervision/src"] {
        for file in sources(&root.join(folder)) {
            let text = fs::read_to_string(&file).unwrap();
            assert_eq!(forbidden(&text), [""; 0], "{}", file.display());
            files += 1;
        }
    }
    assert!(files > 10, "only {files} files were looked at");
}

#[test]
fn the_forbidden_attributes_would_be_found() {
    for attribute in [
        "#[serde(default)]",
        "#[serde(rename = \"x\", skip_serializing_if = \"Option::is_none\")]",
        "#[serde(\n    flatten\n)]",
        "#[cfg_attr(feature = \"x\", serde(tag = \"kind\"))]",
        "#[serde(untagged)]",
        "#[serde( default = \"f()\" )]",
    ] {
        assert_eq!(forbidden(attribute).len(), 1, "{attribute}");
    }
    assert_eq!(forbidden("#[serde(rename_all = \"snake_case\", try_from = \"Default\")] default tag"), [""; 0]);
}

/// The forbidden attributes in a source text.
fn forbidden(text: &str) -> Vec<String> {
    text.split("serde(")
        .skip(1)
        .flat_map(|rest| arguments(rest).into_iter().filter(|name| is_forbidden(name)))
        .collect()
}

fn is_forbidden(name: &str) -> bool {
    name.starts_with("skip") || FORBIDDEN.contains(&name)
}

/// The names of the arguments up to the bracket that ends them.
fn arguments(text: &str) -> Vec<String> {
    let (mut depth, mut in_text) = (0, false);
    let end = text.find(|c| {
        match c {
            '"' => in_text = !in_text,
            '(' if !in_text => depth += 1,
            ')' if !in_text => depth -= 1,
            _ => {}
        }
        depth < 0
    });
    let arguments = &text[..end.unwrap_or(text.len())];
    arguments
        .split(',')
        .map(|argument| argument.split(['=', '(']).next().unwrap_or_default().trim().to_owned())
        .collect()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

//! Spec files: what is read from them, and where each mistake is found.

#[path = "spec_files/mistakes.rs"]
mod mistakes;
#[path = "spec_files/reading.rs"]
mod reading;
#[path = "spec_files/syntax.rs"]
mod syntax;
#[path = "spec_files/whole.rs"]
mod whole;

use std::path::{Path, PathBuf};

use pando_protocol::spec::TreeSpec;
use pando_protocol::spec_file::{self, Format, Mistake, SpecFileError};

/// Lines 1 to 4: a tree of one process, to which the text adds.
const CHILD: &str = "name = \"shop\"\n[[children]]\nid = \"web\"\ncommand = [\"web\"]\n";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

fn toml(text: &str) -> Result<TreeSpec, SpecFileError> {
    spec_file::parse("shop.toml", Format::Toml, text)
}

/// Every mistake as `line:column word: what`.
fn places(error: &SpecFileError) -> Vec<String> {
    error.mistakes().iter().map(|m| format!("{}:{} {}: {}", m.line, m.column, m.word, m.what)).collect()
}

fn only_mistake(text: &str) -> Mistake {
    let error = toml(text).expect_err(text);
    assert_eq!(error.mistakes().len(), 1, "{text}\n{error}");
    error.mistakes()[0].clone()
}

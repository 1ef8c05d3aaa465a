//! Trees in TOML whose children sleep until they are stopped: what most tests want to run.

/// A tree with these children. `head` is what the spec says of the tree: `name = 't'`, and what else it needs.
pub fn sleepers(head: &str, ids: &[&str]) -> String {
    format!("{head}\n{}", ids.iter().copied().map(sleeper).collect::<String>())
}

/// One such child. Further keys of it may be appended, a line each.
pub fn sleeper(id: &str) -> String {
    format!("[[children]]\nid = \"{id}\"\ncommand = [\"sleep\", \"1000\"]\n")
}

//! The `pando` program.
fn main() {}

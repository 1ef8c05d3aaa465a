//! The `pando-node` program.
fn main() {}

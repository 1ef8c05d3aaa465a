//! Raft: everything that names openraft.

pub mod types;
pub mod wire;

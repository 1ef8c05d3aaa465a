//! Raft: everything that names openraft.

pub mod config;
pub mod types;

//! Raft: everything that names openraft.

pub mod config;
pub mod state_machine;
pub mod types;
pub mod wire;

#[cfg(test)]
mod group;
#[cfg(test)]
mod memory;

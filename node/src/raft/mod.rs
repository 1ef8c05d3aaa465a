//! Raft: everything that names openraft.

pub mod bootstrap;
pub mod campaign;
pub mod network;
pub mod service;
pub mod types;
pub mod wire;

#[cfg(test)]
mod group;
#[cfg(test)]
mod memory;

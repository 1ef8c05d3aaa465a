//! Raft: everything that names openraft.

pub mod bootstrap;
pub mod campaign;
pub mod config;
pub mod fatal;
pub mod leadership;
pub mod members;
pub mod neighbours;
pub mod network;
pub mod proposer;
pub mod questions;
pub mod raising;
pub mod sealed;
pub mod service;
pub mod state_machine;
pub mod transfer;
pub mod types;
pub mod wire;

#[cfg(test)]
mod group;
#[cfg(test)]
mod memory;

/// Raft on the runtime `R`.
pub type Raft<R> = openraft::Raft<types::Types<R>, state_machine::StateMachine<R>>;

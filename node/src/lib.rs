//! The node of a Pando cluster.

pub mod api;
pub mod config;
pub mod guard;
pub mod launcher;
pub mod raft;
pub mod runner;
pub mod storage;
pub mod telemetry;
pub mod transport;

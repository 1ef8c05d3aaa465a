//! The verbs, one file each: what they are told, and what they do.

pub mod apply;
pub mod certs;
pub mod cluster;
pub mod completions;
pub mod delete;
pub mod dev;
pub mod diff;
pub mod events;
pub mod explain;
pub mod history;
pub mod kill;
pub mod logs;
pub mod man;
pub mod node;
pub mod quarantine;
pub mod restart;
pub mod start;
pub mod status;
pub mod stop;
pub mod tree;
pub mod wait;

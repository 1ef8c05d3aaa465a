//! Starts and stops children on this node.

mod capture;
pub mod children;
mod environment;
mod link;
mod log_writer;
pub mod logs;
mod loss;
mod memory;
mod ready;
mod run;
mod run_table;
mod runs;
mod start;

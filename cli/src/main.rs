//! The `pando` program: the command line of a cluster.
//!
//! ```text
//!   arguments ──► commands/<verb>.rs ──► connection ──QUIC, mTLS──► a node
//!                     │        └──────── context: which cluster, as whom
//!                     ▼
//!                  output: data to standard output, the rest to standard error; exit: 0 to 4
//! ```
//!
//! It decides nothing about trees: rules live in the cluster, and what is shown here was computed there.

mod arguments;
mod commands;
mod connection;
mod context;
mod differences;
mod exit;
mod following;
mod human;
mod output;
#[cfg(test)]
mod scripted_node;
mod terminal;
mod waiting;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::Arguments;
use crate::exit::Failure;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Failure::failed(anyhow::Error::new(error).context("cannot start")).report(),
    };
    match runtime.block_on(arguments.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

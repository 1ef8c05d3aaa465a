//! The command line.

use std::path::PathBuf;

use clap::Parser;

use super::rows::Row;

/// Pando beside its peers, on this machine.
#[derive(Debug, Parser)]
#[command(name = "bench")]
pub struct Arguments {
    /// What to measure; all where nothing is named. Rows that are measured together take as long as one of them.
    #[arg(value_enum, value_name = "ROW")]
    pub rows: Vec<Row>,
    /// How often.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// The folder with `cluster.sh` and the clients of the peers, built in release. Without it the peers are skipped.
    #[arg(long, env = "PANDO_PEERS", value_name = "DIR")]
    pub peers: Option<PathBuf>,
}

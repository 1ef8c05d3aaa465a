//! `pando tree`: the face of the program.

mod rows;
mod watch;

use clap::Args;
use pando_protocol::ids::Path;

use crate::connection::{Reading, with};
use crate::context::Target;
use crate::exit::Failure;
use crate::output::Format;
use crate::{arguments, output};

#[cfg(test)]
pub use rows::tests;
pub use rows::{HEADINGS, cells, mailbox_depth, render, state_name, stems, verdict_name};

/// Shows the trees: what runs, where, since when, and how that is judged
#[derive(Debug, Args)]
pub struct Tree {
    /// Only what lies at and below this path
    #[arg(value_parser = arguments::path)]
    path: Option<Path>,
    /// Redraw in place as things happen, until Ctrl-C
    #[arg(long, short)]
    watch: bool,
    #[command(flatten)]
    reading: Reading,
}

impl Tree {
    /// Shows it.
    ///
    /// # Errors
    /// There is no such path, or the cluster cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        let Self { path, watch, reading } = self;
        with(target, async |connection| {
            if watch {
                return watch::run(connection, path, reading).await;
            }
            let read = connection.tree(path, reading.freshness()).await?;
            match reading.output {
                Format::Table => output::emit(&render(&read.value, output::wants_colour()))?,
                Format::Json => output::emit_json(&read.value)?,
            }
            reading.judge(&read.view)
        })
        .await
    }
}

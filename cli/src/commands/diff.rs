//! `pando diff`: what applying a spec file would change.

use std::path::PathBuf;

use clap::Args;
use pando_protocol::ids::Path;

use crate::commands::apply::read_spec;
use crate::connection::{Reading, with};
use crate::context::Target;
use crate::exit::Failure;
use crate::output::Format;
use crate::{differences, output};

/// Shows what applying a spec file would change
#[derive(Debug, Args)]
pub struct Diff {
    /// Spec file, TOML or JSON; `-` reads standard input
    file: PathBuf,
    #[command(flatten)]
    reading: Reading,
}

impl Diff {
    /// Shows the differences; exits with 0 whether or not there are any.
    ///
    /// # Errors
    /// The file is wrong, or the cluster cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        let spec = read_spec(&self.file)?;
        let same = format!("{} is so already: apply would change nothing", Path::root(&spec.name));
        let read = with(target, async |connection| connection.diff(spec, self.reading.freshness()).await).await?;
        match self.reading.output {
            Format::Table => output::emit(&differences::render(&read.value, &same, output::wants_colour()))?,
            Format::Json => output::emit_json(&read.value)?,
        }
        self.reading.judge(&read.view)
    }
}

//! `pando apply`: makes a tree what its spec file says.

use std::io::Read;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use pando_protocol::ids::Path;
use pando_protocol::mail::Leftover;
use pando_protocol::message::{Change, Freshness};
use pando_protocol::spec::{SpecMistake, TreeSpec};
use pando_protocol::spec_file::{self, Format, MAX_FILE, SpecFileError};
use tokio::time::Instant;

use crate::arguments::Leaving;
use crate::connection::{Connection, Reading, with};
use crate::context::Target;
use crate::exit::{Code, Failure};
use crate::{differences, human, output, waiting};

/// Makes a tree what a spec file says: starts, stops, adds and removes what differs
#[derive(Debug, Args)]
pub struct Apply {
    /// Spec file, TOML or JSON; `-` reads standard input
    file: PathBuf,
    /// Print what would change, and change nothing
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,
    #[command(flatten)]
    leaving: Leaving,
    /// Return when everything that should run is ready; fails when the tree fails
    #[arg(long)]
    wait: bool,
    /// How long --wait waits, from the start of the command
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = human::parse_duration)]
    timeout: Duration,
}

impl Apply {
    /// Applies the file.
    ///
    /// # Errors
    /// The file is wrong, or the cluster refuses it, cannot be reached, or does not become whole.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        let spec = read_spec(&self.file)?;
        warn(&spec);
        with(target, async |connection| {
            if self.dry_run { show_difference(connection, spec).await } else { self.apply(connection, spec).await }
        })
        .await
    }

    async fn apply(&self, connection: &Connection, spec: TreeSpec) -> Result<(), Failure> {
        let root = Path::root(&spec.name);
        let begun = Instant::now();
        let change = match self.leaving.leftover() {
            Leftover::Refuse => Change::Apply(spec),
            leftover => Change::ApplyLeaving(spec, leftover),
        };
        let changed = match self.wait {
            true => connection.change_within(change, self.timeout).await?,
            false => connection.change(change).await?,
        };
        let same = format!("{root} is so already: nothing was changed");
        output::emit(&differences::render(&changed.differences, &same, output::wants_colour()))?;
        if !self.wait {
            return Ok(());
        }
        let settled = waiting::until_whole(connection, &root, begun, self.timeout).await?;
        output::emit(&waiting::whole(&root, &settled))
    }
}

/// Says what is allowed and may surprise.
fn warn(spec: &TreeSpec) {
    for SpecMistake { at, key, what } in spec.warnings() {
        output::say(format_args!("pando: warning: {at}: {key} {what}"));
    }
}

async fn show_difference(connection: &Connection, spec: TreeSpec) -> Result<(), Failure> {
    let same = format!("{} is so already: apply would change nothing", Path::root(&spec.name));
    let read = connection.diff(spec, Freshness::Linearizable).await?;
    output::emit(&differences::render(&read.value, &same, output::wants_colour()))?;
    Reading::default().judge(&read.view)
}

/// Reads a spec file; `-` is standard input, JSON where it begins with a brace.
///
/// # Errors
/// It cannot be read or has mistakes; the message names the place of each.
pub fn read_spec(file: &FilePath) -> Result<TreeSpec, Failure> {
    if file != FilePath::new("-") {
        return spec_file::read(file).map_err(refuse);
    }
    let mut text = String::new();
    std::io::stdin()
        // One byte more than allowed lets the reader see that it is too long.
        .take(MAX_FILE + 1)
        .read_to_string(&mut text)
        .map_err(|error| Failure::usage(anyhow!("standard input cannot be read as a spec: {error}")))?;
    let format = if text.trim_start().starts_with('{') { Format::Json } else { Format::Toml };
    spec_file::parse("standard input", format, &text).map_err(refuse)
}

/// Says the mistakes as they are: each line begins with its place, which editors understand.
fn refuse(error: SpecFileError) -> Failure {
    output::say(format_args!("{:#}", anyhow::Error::new(error)));
    Failure::said(Code::Usage)
}

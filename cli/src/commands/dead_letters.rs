//! `pando dead-letters`: messages that were set aside, with the evidence of each attempt.

mod moves;
mod rows;

use std::time::Duration;

use clap::{Args, Subcommand};
use pando_protocol::ids::Path;
use pando_protocol::mail::{DeadLetterRow, DeathKind, Letters};
use pando_protocol::message::{Freshness, ViewAge};

use crate::connection::{Connection, Read, Reading, with};
use crate::context::Target;
use crate::exit::Failure;
use crate::output::{self, Format};
use crate::{arguments, human};

/// Messages that were set aside: looks at them, gives them a new life, or forgets them
#[derive(Debug, Args)]
pub struct DeadLetters {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Lists dead letters; JSON holds their payloads and attempts too
    Ls {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        reading: Reading,
    },
    /// Shows a dead letter with its payload and every attempt at it
    Show {
        /// The worker or pool
        #[arg(value_parser = arguments::path)]
        path: Path,
        /// The id of the message, as `ls` shows it
        id: String,
        #[command(flatten)]
        reading: Reading,
    },
    Redrive(moves::Redrive),
    Purge(moves::Purge),
}

/// Which dead letters are meant: those of a mailbox of which all that is said is true.
#[derive(Debug, Clone, Args)]
struct Which {
    /// The worker or pool
    #[arg(value_parser = arguments::path)]
    path: Path,
    /// Only the message with this id; repeatable
    #[arg(long = "id", value_name = "ID")]
    ids: Vec<String>,
    /// Only those that died so: attempts, node_losses, rejected or closed
    #[arg(long, value_parser = cause)]
    cause: Option<DeathKind>,
    /// Only those whose last attempt was by this worker
    #[arg(long, value_name = "PATH", value_parser = arguments::path)]
    worker: Option<Path>,
    /// Only those that have been dead for so long
    #[arg(long, value_name = "DURATION", value_parser = human::parse_duration)]
    older_than: Option<Duration>,
    /// Only those with this text in why they died, in an error, or in what a worker wrote last
    #[arg(long)]
    text: Option<String>,
}

impl Which {
    fn letters(&self) -> Letters {
        let Self { path: _, ids, cause, worker, older_than, text } = self.clone();
        Letters { ids, cause, worker, older_than, text }
    }
}

impl DeadLetters {
    /// Looks at dead letters, or does something with them.
    ///
    /// # Errors
    /// There is no such mailbox or letter, the cluster refuses it or cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        match self.verb {
            Verb::Ls { which, reading } => {
                with(target, async |connection| list(connection, &which, reading).await).await
            }
            Verb::Show { path, id, reading } => show(target, path, id, reading).await,
            Verb::Redrive(redrive) => redrive.run(target).await,
            Verb::Purge(purge) => purge.run(target).await,
        }
    }
}

async fn list(connection: &Connection, which: &Which, reading: Reading) -> Result<(), Failure> {
    let is_json = reading.output == Format::Json;
    let Read { value: letters, view } = all(connection, which, is_json, reading.freshness()).await?;
    match reading.output {
        Format::Table => output::emit(&rows::list(&which.path, &letters, human::now(), output::wants_colour()))?,
        Format::Json => output::emit_json(&letters)?,
    }
    reading.judge(&view)
}

async fn show(target: &Target, path: Path, id: String, reading: Reading) -> Result<(), Failure> {
    let read = with(target, async |connection| connection.dead_letter(path, id, reading.freshness()).await).await?;
    match reading.output {
        Format::Table => output::emit(&rows::one(&read.value, human::now(), output::wants_colour()))?,
        Format::Json => output::emit_json(&read.value)?,
    }
    reading.judge(&read.view)
}

/// All that are meant, in the order in which they were sent.
async fn all(
    connection: &Connection,
    which: &Which,
    whole: bool,
    freshness: Freshness,
) -> Result<Read<Vec<DeadLetterRow>>, Failure> {
    let asked = which.letters();
    let (mut letters, mut view): (Vec<DeadLetterRow>, Option<ViewAge>) = (Vec::new(), None);
    loop {
        let after = letters.last().map_or(0, |last| last.number);
        let page = connection.dead_letters(&which.path, &asked, after, whole, freshness).await?;
        let is_last =
            page.value.letters.is_empty() || letters.len() + page.value.letters.len() == page.value.total as usize;
        letters.extend(page.value.letters);
        // One part that nobody confirmed makes the whole unconfirmed.
        let view = view.get_or_insert(page.view.clone());
        if !page.view.confirmed {
            *view = page.view;
        }
        if is_last {
            return Ok(Read { value: letters, view: view.clone() });
        }
    }
}

fn cause(text: &str) -> Result<DeathKind, String> {
    DeathKind::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or_else(|| {
        let words = DeathKind::ALL.map(DeathKind::as_str).join(", ");
        format!("expected one of {words}")
    })
}

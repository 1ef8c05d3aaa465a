//! `pando send`: puts messages into a mailbox.
//!
//! ```text
//!   TEXT, --file   what ──► one request
//!   --lines        lines ──► bulk: batches, several under way ──► taken: what to say of it
//! ```

mod bulk;
mod lines;
mod taken;
pub mod what;

use std::path::PathBuf;

use clap::Args;
use pando_protocol::ids::Path;
use pando_protocol::mail::{NewMessage, Sent};
use serde::Serialize;

use self::lines::Lines;
use self::what::Labels;
use crate::connection::{CALL_LIMIT, with};
use crate::context::Target;
use crate::exit::Failure;
use crate::output::{self, Format};
use crate::{arguments, human};

/// Sends messages to a worker or pool; a majority has each on disk when this returns
///
/// Full means refused, and never dropped. A message with --id is taken in once, however often it is sent: as long as it is known, and
/// ten minutes after it is done or purged.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub struct Send {
    /// The worker or pool, whichever has the mailbox
    #[arg(value_parser = arguments::path)]
    path: Path,
    /// The message
    #[arg(group = "what")]
    text: Option<String>,
    /// Send what is in this file as one message; `-` is standard input
    #[arg(long, group = "what")]
    file: Option<PathBuf>,
    /// Send each line of this file as a message, many at a time; `-` is standard input
    #[arg(long, group = "what", value_name = "FILE")]
    lines: Option<PathBuf>,
    /// With --lines: leave out the first N lines, which were sent before
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with_all = ["text", "file"], value_parser = line_count)]
    skip: u64,
    /// With --lines: one batch after the other, so that the mailbox has the lines in their order
    #[arg(long, conflicts_with_all = ["text", "file"])]
    in_order: bool,
    #[command(flatten)]
    labels: Labels,
    /// How the outcome is shown
    #[arg(long, value_enum, default_value_t)]
    output: Format,
}

/// What was sent, for programs.
#[derive(Debug, Serialize)]
struct Outcome<'a> {
    path: &'a Path,
    /// The id of the message; `null` for lines.
    id: Option<String>,
    /// How many are new.
    accepted: u64,
    /// How many were known by their ids already, and were not sent again.
    known: u64,
}

impl Send {
    /// Sends.
    ///
    /// # Errors
    /// The input cannot be read, the cluster refuses it or cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        let Self { path, text, file, lines, skip, in_order, labels, output } = self;
        let Some(file_of_lines) = lines else {
            return send_one(target, &path, labels.message(what::payload(text, file.as_deref())?)?, output).await;
        };
        let lines = Lines::open(&file_of_lines, skip, labels)?;
        let taken = with(target, async |connection| bulk::send(connection, &path, lines, in_order).await).await?;
        let (accepted, known) = (taken.accepted, taken.known);
        match output {
            Format::Table => output::emit(&taken.in_words(&path)),
            Format::Json => output::emit_json(&Outcome { path: &path, id: None, accepted, known }),
        }
    }
}

async fn send_one(target: &Target, path: &Path, message: NewMessage, format: Format) -> Result<(), Failure> {
    let given = message.id.clone();
    let sent = with(target, async |connection| connection.send(path, vec![message], false, CALL_LIMIT).await).await?;
    let Sent { first, accepted, known } = sent;
    let id = given.map_or_else(|| format!("#{first}"), |id| id.to_string());
    match format {
        Format::Table if accepted == 0 => {
            output::emit(&format!("message {id} of {path} is known already: nothing was sent\n"))
        }
        Format::Table => output::emit(&format!("message {id} is in the mailbox of {path}\n")),
        Format::Json => output::emit_json(&Outcome { path, id: Some(id), accepted, known: known.len() as u64 }),
    }
}

fn line_count(text: &str) -> Result<u64, String> {
    arguments::number(text, "how many lines")
}

/// `count` messages.
fn messages(count: u64) -> String {
    human::count(count, "message")
}

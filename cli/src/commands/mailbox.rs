//! `pando mailbox`: what stands in mailboxes, what became of it, and who works on it.

pub mod rows;

use anyhow::anyhow;
use clap::{Args, Subcommand};
use pando_protocol::ids::Path;
use pando_protocol::message::{Change, Freshness};

use crate::connection::{Connection, Reading, with};
use crate::context::Target;
use crate::exit::Failure;
use crate::output::{self, Format};
use crate::{arguments, human};

/// Shows mailboxes: what waits, what is worked on and by whom, and what became of the rest
///
/// `pando mailbox` lists all of them; with the path of a worker or pool it shows one, with any other path those below it.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Mailbox {
    #[command(subcommand)]
    verb: Option<MailboxVerb>,
    #[command(flatten)]
    look: Look,
}

#[derive(Debug, Args)]
struct Look {
    /// A worker or pool, or what it lies below
    #[arg(value_parser = arguments::path)]
    path: Option<Path>,
    #[command(flatten)]
    reading: Reading,
}

#[derive(Debug, Args)]
struct One {
    /// The worker or pool
    #[arg(value_parser = arguments::path)]
    path: Path,
}

#[derive(Debug, Subcommand)]
enum MailboxVerb {
    /// Lists the mailboxes at and below a path, or all
    Ls(Look),
    /// Shows one mailbox with its ledger and its workers
    Show {
        #[command(flatten)]
        one: One,
        #[command(flatten)]
        reading: Reading,
    },
    /// Hands nothing out any more, until it is resumed; what workers hold they may finish
    Pause(One),
    /// Hands out of a paused mailbox again
    Resume(One),
    /// Forgets the messages that wait for workers; dead letters and what workers hold stay
    Purge {
        #[command(flatten)]
        one: One,
        /// Do it: what is forgotten is gone
        #[arg(long)]
        yes: bool,
    },
}

impl Mailbox {
    /// Shows or changes mailboxes.
    ///
    /// # Errors
    /// There is no such mailbox, the cluster refuses it or cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        match self.verb {
            None => look(target, self.look).await,
            Some(MailboxVerb::Ls(Look { path, reading })) => list(target, path, reading).await,
            Some(MailboxVerb::Show { one, reading }) => show(target, one.path, reading).await,
            Some(MailboxVerb::Pause(One { path })) => {
                let (done, same) = (format!("{path} is paused\n"), format!("{path} is paused already\n"));
                change(target, Change::Pause(path), done, same).await
            }
            Some(MailboxVerb::Resume(One { path })) => {
                let (done, same) = (format!("{path} is resumed\n"), format!("{path} is not paused\n"));
                change(target, Change::Resume(path), done, same).await
            }
            Some(MailboxVerb::Purge { one, yes }) => {
                with(target, async |connection| purge(connection, one.path, yes).await).await
            }
        }
    }
}

/// Shows the mailbox at the path, or lists those below it.
async fn look(target: &Target, look: Look) -> Result<(), Failure> {
    let Look { path, reading } = look;
    let Some(path) = path else { return list(target, None, reading).await };
    let read =
        with(target, async |connection| connection.mailboxes(Some(path.clone()), reading.freshness()).await).await?;
    match (read.value.iter().find(|row| row.path == path), reading.output) {
        (Some(row), Format::Table) => output::emit(&rows::one(row, output::wants_colour()))?,
        (Some(row), Format::Json) => output::emit_json(row)?,
        (None, Format::Table) => output::emit(&rows::list(&read.value, output::wants_colour()))?,
        (None, Format::Json) => output::emit_json(&read.value)?,
    }
    reading.judge(&read.view)
}

async fn list(target: &Target, path: Option<Path>, reading: Reading) -> Result<(), Failure> {
    let read = with(target, async |connection| connection.mailboxes(path, reading.freshness()).await).await?;
    match reading.output {
        Format::Table => output::emit(&rows::list(&read.value, output::wants_colour()))?,
        Format::Json => output::emit_json(&read.value)?,
    }
    reading.judge(&read.view)
}

async fn show(target: &Target, path: Path, reading: Reading) -> Result<(), Failure> {
    let read =
        with(target, async |connection| connection.mailboxes(Some(path.clone()), reading.freshness()).await).await?;
    let Some(row) = read.value.iter().find(|row| row.path == path) else {
        return Err(Failure::refused(anyhow!(
            "{path} has no mailbox of its own: `pando mailbox ls {path}` lists those below it"
        )));
    };
    match reading.output {
        Format::Table => output::emit(&rows::one(row, output::wants_colour()))?,
        Format::Json => output::emit_json(row)?,
    }
    reading.judge(&read.view)
}

async fn change(target: &Target, change: Change, done: String, same: String) -> Result<(), Failure> {
    let changed = with(target, async |connection| connection.change(change).await).await?;
    output::emit(if changed.differences.is_empty() { &same } else { &done })
}

async fn purge(connection: &Connection, path: Path, is_sure: bool) -> Result<(), Failure> {
    if is_sure {
        let purged = connection.move_messages(Change::PurgeWaiting(path.clone())).await?;
        return output::emit(&format!("{} of {path} purged\n", human::count(purged, "waiting message")));
    }
    let read = connection.mailboxes(Some(path.clone()), Freshness::Linearizable).await?;
    let waiting = read.value.iter().filter(|row| row.path == path).map(|row| row.waiting).sum();
    let what = human::count(waiting, "waiting message");
    Err(Failure::usage(anyhow!("this forgets {what} of {path} for good: say --yes to do it; nothing was changed")))
}

//! `pando dead-letters redrive` and `purge`: what is done with dead letters.

use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use pando_protocol::ids::Path;
use pando_protocol::mail::Letters;
use pando_protocol::message::{Change, Freshness};
use tokio::time::sleep;

use super::{Which, all, rows};
use crate::connection::{Connection, SomeLetters, with};
use crate::context::Target;
use crate::exit::Failure;
use crate::terminal::Progress;
use crate::{arguments, human, output};

/// Gives dead letters a new life: the same ids, attempts from zero, what happened before is kept
///
/// Without a filter all dead letters of the mailbox are meant.
#[derive(Debug, Args)]
pub struct Redrive {
    #[command(flatten)]
    which: Which,
    /// So many a second; default: all at once
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<u32>,
    /// Show which are meant, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Forgets dead letters for good
///
/// Without a filter all dead letters of the mailbox are meant.
#[derive(Debug, Args)]
pub struct Purge {
    #[command(flatten)]
    which: Which,
    /// Show which are meant, and change nothing
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    /// Do it: what is forgotten is gone
    #[arg(long)]
    yes: bool,
}

impl Redrive {
    /// Redrives.
    ///
    /// # Errors
    /// There is no such mailbox, the cluster refuses it or cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        let Self { which, rate, dry_run } = self;
        with(target, async |connection| {
            if dry_run {
                return show(connection, &which, "redriven").await;
            }
            let path = &which.path;
            let redrive = |letters| Change::Redrive { from: path.clone(), letters, rate };
            let moved = Moving { connection, which: &which, rate, word: "redriven" }.all(redrive).await?;
            let pace = rate.filter(|_| moved > 1).map_or_else(String::new, |rate| format!(", {rate} a second"));
            let what = human::count(moved, "dead letter");
            output::emit(&match moved {
                0 => nothing(path),
                1 => format!("{what} of {path} waits for a worker again\n"),
                _ => format!("{what} of {path} wait for workers again{pace}\n"),
            })
        })
        .await
    }
}

impl Purge {
    /// Purges.
    ///
    /// # Errors
    /// It was not said to be meant; there is no such mailbox, the cluster refuses it or cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        let Self { which, dry_run, yes } = self;
        with(target, async |connection| {
            if dry_run {
                return show(connection, &which, "purged").await;
            }
            let path = &which.path;
            if !yes {
                let some = connection.dead_letters(path, &which.letters(), 0, false, Freshness::Linearizable).await?;
                let what = human::count(some.value.total, "dead letter");
                return Err(Failure::usage(anyhow!(
                    "this forgets {what} of {path} for good: look with --dry-run, say --yes to do it; nothing was changed"
                )));
            }
            let purge = |letters| Change::PurgeDead { from: path.clone(), letters };
            let moved = Moving { connection, which: &which, rate: None, word: "purged" }.all(purge).await?;
            let what = human::count(moved, "dead letter");
            output::emit(&if moved == 0 { nothing(path) } else { format!("{what} of {path} purged\n") })
        })
        .await
    }
}

async fn show(connection: &Connection, which: &Which, word: &str) -> Result<(), Failure> {
    let letters = all(connection, which, false, Freshness::Linearizable).await?.value;
    let count = human::count(letters.len() as u64, "dead letter");
    let table = rows::list(&which.path, &letters, human::now(), output::wants_colour());
    output::emit(&format!("{table}\n{count} would be {word}: nothing was changed\n"))
}

fn nothing(path: &Path) -> String {
    format!("no dead letter of {path} is meant: nothing was changed\n")
}

/// Dead letters, as many at a time as one answer names: no entry of the log takes long, however many there are.
struct Moving<'c> {
    connection: &'c Connection,
    which: &'c Which,
    rate: Option<u32>,
    word: &'static str,
}

impl Moving<'_> {
    /// Moves all that are meant, and gives how many. A rate holds over all of them, so that more than one answer names takes its time.
    async fn all(self, change: impl Fn(Letters) -> Change) -> Result<u64, Failure> {
        let (path, asked) = (&self.which.path, self.which.letters());
        let (mut moved, mut after, mut turn) = (0, 0, Duration::ZERO);
        let mut progress = Progress::new();
        loop {
            let read = self.connection.dead_letters(path, &asked, after, false, Freshness::Linearizable).await?;
            if !read.view.confirmed {
                return Err(Failure::unreached(anyhow!(crate::connection::unconfirmed(&read.view))));
            }
            let SomeLetters { letters, .. } = read.value;
            let Some(last) = letters.last() else {
                // Whoever may not do it is refused also where nothing is to be done.
                return if after == 0 { self.connection.move_messages(change(asked)).await } else { Ok(moved) };
            };
            after = last.number;
            sleep(turn).await;
            let ids = letters.into_iter().map(|letter| letter.id).collect();
            let count = self.connection.move_messages(change(Letters { ids, ..asked.clone() })).await?;
            moved += count;
            turn = self.rate.map_or(Duration::ZERO, |rate| Duration::from_secs(count) / rate);
            progress.show(&format!("{} of {path} {}", human::count(moved, "dead letter"), self.word));
        }
    }
}

fn rate(text: &str) -> Result<u32, String> {
    match arguments::number(text, "how many a second")? {
        0 => Err("expected 1 or more a second".into()),
        rate => Ok(rate),
    }
}

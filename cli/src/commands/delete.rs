//! `pando delete`: stops a tree and forgets it.

use std::time::Duration;

use clap::Args;
use pando_protocol::ids::{Path, TreeName};
use pando_protocol::mail::Leftover;
use pando_protocol::message::{Change, Freshness};
use pando_protocol::rejection::Rejection;
use tokio::time::Instant;

use crate::arguments::{Leaving, tree_name};
use crate::connection::{Connection, unconfirmed, with};
use crate::context::Target;
use crate::exit::Failure;
use crate::waiting::{self, Look};
use crate::{human, output};

/// Stops everything in a tree, then forgets it
#[derive(Debug, Args)]
pub struct Delete {
    /// Name of the tree
    #[arg(value_parser = tree_name)]
    tree: TreeName,
    #[command(flatten)]
    leaving: Leaving,
    /// Return when its last process is gone
    #[arg(long)]
    wait: bool,
    /// How long --wait waits, from the start of the command
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = human::parse_duration)]
    timeout: Duration,
}

impl Delete {
    /// Deletes the tree.
    ///
    /// # Errors
    /// There is none, the cluster cannot be reached, or it is not gone in time.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        with(target, async |connection| {
            let root = Path::root(&self.tree);
            let change = match self.leaving.leftover() {
                Leftover::Refuse => Change::Delete(self.tree.clone()),
                leftover => Change::DeleteLeaving(self.tree.clone(), leftover),
            };
            let begun = Instant::now();
            if !self.wait {
                connection.change(change).await?;
                return output::emit(&format!("{root} is being deleted\n"));
            }
            connection.change_within(change, self.timeout).await?;
            until_gone(connection, &root, begun, self.timeout).await?;
            output::emit(&format!("{root} is gone\n"))
        })
        .await
    }
}

async fn until_gone(connection: &Connection, root: &Path, begun: Instant, limit: Duration) -> Result<(), Failure> {
    waiting::until(&format!("{root} to be gone"), begun, limit, async || {
        let read = match connection.tree(Some(root.clone()), Freshness::Linearizable).await {
            Ok(read) => read,
            Err(failure) if says_gone(&failure) => return Ok(Look::There(())),
            Err(failure) => return Err(failure),
        };
        if !read.view.confirmed {
            return Ok(Look::Unsure(unconfirmed(&read.view)));
        }
        if read.value.is_empty() {
            return Ok(Look::There(()));
        }
        let running: Vec<&str> =
            read.value.iter().filter(|row| row.incarnation.is_some()).map(|row| row.path.as_str()).collect();
        let first = running.iter().take(3).copied().collect::<Vec<_>>().join(", ");
        Ok(Look::NotYet(format!("{} still stopping: {first}", running.len())))
    })
    .await
}

fn says_gone(failure: &Failure) -> bool {
    matches!(failure.rejection(), Some(Rejection::NoSuchPath { .. } | Rejection::NoSuchTree(_)))
}

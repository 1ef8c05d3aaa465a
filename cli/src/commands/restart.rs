//! `pando restart`: stops and starts a member afresh.

use clap::Args;
use pando_protocol::ids::Path;
use pando_protocol::message::Change;

use crate::context::Target;
use crate::exit::Failure;
use crate::{arguments, differences};

/// Stops and starts a member, with an empty budget and base backoff; clears a failed tree
#[derive(Debug, Args)]
pub struct Restart {
    /// Tree, supervisor or child
    #[arg(value_parser = arguments::path)]
    path: Path,
}

impl Restart {
    /// Asks for it, and shows what that changes.
    ///
    /// # Errors
    /// The cluster refuses it or cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        let same = format!("{} is restarting", self.path);
        differences::make(target, Change::Restart(self.path), &same).await
    }
}

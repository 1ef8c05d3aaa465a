//! `pando start`: lets a stopped member run again.

use clap::Args;
use pando_protocol::ids::Path;
use pando_protocol::message::Change;

use crate::context::Target;
use crate::exit::Failure;
use crate::{arguments, differences};

/// Lets a stopped member run again
#[derive(Debug, Args)]
pub struct Start {
    /// Tree, supervisor or child
    #[arg(value_parser = arguments::path)]
    path: Path,
}

impl Start {
    /// Asks for it, and shows what that changes.
    ///
    /// # Errors
    /// The cluster refuses it or cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        let same = format!("{} is not stopped: nothing was changed", self.path);
        differences::make(target, Change::Start(self.path), &same).await
    }
}

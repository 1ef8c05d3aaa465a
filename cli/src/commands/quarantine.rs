//! `pando quarantine`: stops a member that is dangerous to start.

use clap::Args;
use pando_protocol::ids::Path;
use pando_protocol::message::Change;

use crate::context::Target;
use crate::exit::Failure;
use crate::{arguments, differences};

/// Stops a member that is dangerous to start, such as one that takes its nodes down, and says so wherever it is shown
///
/// `pando explain` shows how many nodes were lost under it. `pando start` ends it.
#[derive(Debug, Args)]
pub struct Quarantine {
    /// Tree, supervisor or child
    #[arg(value_parser = arguments::path)]
    path: Path,
}

impl Quarantine {
    /// Asks for it, and shows what that changes.
    ///
    /// # Errors
    /// The cluster refuses it or cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        let same = format!("{} was stopped already, and is quarantined now", self.path);
        differences::make(target, Change::Quarantine(self.path), &same).await
    }
}

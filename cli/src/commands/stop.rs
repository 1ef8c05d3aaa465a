//! `pando stop`: stops a member until it is started again.

use clap::Args;
use pando_protocol::ids::Path;
use pando_protocol::message::Change;

use crate::context::Target;
use crate::exit::Failure;
use crate::{arguments, differences};

/// Stops a member until it is started again, whatever restarts meanwhile
#[derive(Debug, Args)]
pub struct Stop {
    /// Tree, supervisor or child
    #[arg(value_parser = arguments::path)]
    path: Path,
}

impl Stop {
    /// Asks for it, and shows what that changes.
    ///
    /// # Errors
    /// The cluster refuses it or cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        let same = format!("{} is stopped already: nothing was changed", self.path);
        differences::make(target, Change::Stop(self.path), &same).await
    }
}

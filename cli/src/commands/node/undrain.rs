//! `pando node undrain`: gives a drained node work again.

use clap::Args;
use pando_protocol::ids::NodeName;
use pando_protocol::message::Change;

use crate::connection::with;
use crate::context::Target;
use crate::exit::Failure;
use crate::output;

/// Gives a drained node work again; what has not left it yet stays, and nothing moves back
#[derive(Debug, Args)]
pub struct Undrain {
    /// The node
    node: NodeName,
}

impl Undrain {
    /// Asks for it.
    ///
    /// # Errors
    /// There is no such node, or the cluster cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        with(target, async |connection| connection.change(Change::Undrain(self.node.clone())).await).await?;
        output::emit(&format!("{} takes work again\n", self.node))
    }
}

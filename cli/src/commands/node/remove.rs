//! `pando node remove`: forgets a node that is gone for good.

use clap::Args;
use pando_protocol::ids::NodeName;
use pando_protocol::message::Change;

use crate::connection::with;
use crate::context::Target;
use crate::exit::Failure;
use crate::output;

/// Forgets a node that is gone for good
///
/// Refused while its session is not known to be over. A voter is also taken out of the voters, with `pando cluster members remove`. A
/// node that comes back is listed again.
#[derive(Debug, Args)]
pub struct Remove {
    /// The node
    node: NodeName,
}

impl Remove {
    /// Asks for it.
    ///
    /// # Errors
    /// It is not known to be gone, there is no such node, or the cluster cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        with(target, async |connection| connection.change(Change::RemoveNode(self.node.clone())).await).await?;
        output::emit(&format!("{} is forgotten\n", self.node))
    }
}

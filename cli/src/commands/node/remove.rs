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
    /// The machine is known to be gone: what is kept there (`on_disconnect = "keep"`) counts as ended, and starts elsewhere.
    /// Refused while a lease of it may run. Said of a machine that runs, two copies run
    #[arg(long)]
    dead: bool,
}

impl Remove {
    /// Asks for it.
    ///
    /// # Errors
    /// It is not known to be gone, there is no such node, or the cluster cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        let change = match self.dead {
            true => Change::RemoveDeadNode(self.node.clone()),
            false => Change::RemoveNode(self.node.clone()),
        };
        with(target, async |connection| connection.change(change.clone()).await).await?;
        output::emit(&format!("{} is forgotten\n", self.node))
    }
}

//! `pando dev`: a whole cluster on this machine, and the way to hurt it.
//!
//! ```text
//!   pando dev ──spawns──► pando-node n1, n2, n3 …       each with its own folder, log and certificate
//!      │  ▲                    │ stdin: a pipe that closes when `pando dev` dies
//!      │  └── dev.sock ◄── pando dev start n2
//!      └── orphans: guards of killed nodes fall to it, and none outlives it
//! ```
//!
//! It supervises nothing on purpose: a node that dies stays dead until it is started by hand.

mod control;
mod grove;
mod kill;
mod layout;
pub mod orphans;
mod process;
mod run;
mod start;
mod walk;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use pando_protocol::ids::NodeName;

use crate::context::{self, Environment, Target};
use crate::exit::Failure;

/// Runs a whole cluster on this machine until Ctrl-C
///
/// Up to 2 nodes one votes, from 3 on three do (--voters 5: five); all others are agents, which run children only. Ports,
/// certificates and data are kept in one folder and used again by the next run.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Dev {
    #[command(subcommand)]
    verb: Option<DevVerb>,
    /// How many nodes; default: 3, or as many as the folder has
    #[arg(long, value_name = "N", value_parser = nodes)]
    nodes: Option<u8>,
    /// How many of them vote: 1, 3 or 5
    #[arg(long, value_name = "N", value_parser = voters)]
    voters: Option<u8>,
    #[command(flatten)]
    folder: Folder,
}

/// Where the cluster is kept.
#[derive(Debug, Clone, Default, Args)]
struct Folder {
    /// Folder of the cluster; default: pando/dev in the user's state folder
    #[arg(long = "data", value_name = "DIR")]
    data: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum DevVerb {
    /// Kills a node process with SIGKILL; it stays dead
    Kill {
        /// The node
        name: NodeName,
        #[command(flatten)]
        folder: Folder,
    },
    /// Starts a dead node again
    Start {
        /// The node
        name: NodeName,
        #[command(flatten)]
        folder: Folder,
    },
}

impl Dev {
    /// Runs a cluster, or kills or starts a node of the one that runs.
    ///
    /// # Errors
    /// A node cannot be started, no leader is elected, or there is no such node.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        match self.verb {
            None => {
                let wanted =
                    layout::Wanted { nodes: self.nodes.map(usize::from), voters: self.voters.map(usize::from) };
                let environment = Environment::of_process();
                let folder = match self.folder.data {
                    Some(folder) => folder,
                    None => environment.dev_folder()?,
                };
                let name = target.context.clone().unwrap_or_else(|| CONTEXT.into());
                run::run(&std::path::absolute(folder).map_err(Failure::failed)?, wanted, &name, &environment).await
            }
            Some(DevVerb::Kill { name, folder }) => kill::run(&folder.of_running(target)?, &name),
            Some(DevVerb::Start { name, folder }) => start::run(&folder.of_running(target)?, &name).await,
        }
    }
}

impl Folder {
    /// The folder of the cluster that runs: as named, as the context says, or the default.
    fn of_running(self, target: &Target) -> Result<PathBuf, Failure> {
        if let Some(folder) = self.data {
            return Ok(folder);
        }
        let environment = Environment::of_process();
        match context::resolve(target, &environment).ok().and_then(|context| context.data) {
            Some(folder) => Ok(folder),
            None => environment.dev_folder(),
        }
    }
}

/// The context that `pando dev` writes, unless `--context` names another.
const CONTEXT: &str = "dev";

fn nodes(text: &str) -> Result<u8, String> {
    match crate::arguments::number::<u64>(text, "how many nodes")? {
        count @ 1..=MOST_NODES => Ok(count as u8),
        _ => Err(format!("expected 1 to {MOST_NODES} nodes")),
    }
}

/// A machine of today runs so many without being asked twice.
const MOST_NODES: u64 = 32;

fn voters(text: &str) -> Result<u8, String> {
    match text.parse() {
        Ok(voters @ (1 | 3 | 5)) => Ok(voters),
        _ => Err(format!("{text:?}: expected 1, 3 or 5, so that a majority is never half")),
    }
}

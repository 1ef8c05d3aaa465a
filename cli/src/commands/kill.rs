//! `pando kill`: sends a signal to the process that runs at a path, to see what the tree does about it.

use clap::Args;
use pando_protocol::ids::Path;
use pando_protocol::spec::Signal;

use crate::connection::with;
use crate::context::Target;
use crate::exit::Failure;
use crate::{arguments, output};

/// Sends a signal to the process that runs at a path; what it does then counts as its own doing
#[derive(Debug, Args)]
pub struct Kill {
    /// The child
    #[arg(value_parser = arguments::path)]
    path: Path,
    /// Name or number of the signal
    #[arg(default_value = "SIGKILL", value_parser = signal)]
    signal: Signal,
}

impl Kill {
    /// Sends it.
    ///
    /// # Errors
    /// Nothing runs there, or the cluster cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        let Self { path, signal } = self;
        let killed = with(target, async |connection| connection.kill(path.clone(), signal).await).await?;
        output::emit(&format!(
            "sent {signal} to {path}: incarnation {} on {}, pid {}\n",
            killed.incarnation, killed.node, killed.pid
        ))
    }
}

fn signal(text: &str) -> Result<Signal, String> {
    Signal::named(text).ok_or_else(|| {
        let names: Vec<&str> = Signal::names().collect();
        format!("{text:?} is no signal: expected a number from 1 to 64 or one of {}", names.join(", "))
    })
}

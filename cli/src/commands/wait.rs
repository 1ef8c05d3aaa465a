//! `pando wait`: returns when everything at and below a path is ready.

use std::time::Duration;

use clap::Args;
use pando_protocol::ids::Path;
use tokio::time::Instant;

use crate::connection::with;
use crate::context::Target;
use crate::exit::Failure;
use crate::{arguments, human, output, waiting};

/// Waits until everything at and below a path that should run is ready
///
/// Exits with 0 when it is, and with 1 when the tree fails (the causes are printed) or the time is over.
#[derive(Debug, Args)]
pub struct Wait {
    /// Tree, supervisor or child
    #[arg(value_parser = arguments::path)]
    path: Path,
    /// How long to wait
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = human::parse_duration)]
    timeout: Duration,
}

impl Wait {
    /// Waits.
    ///
    /// # Errors
    /// The tree fails, the time is over, or the cluster cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        let Self { path, timeout } = self;
        let begun = Instant::now();
        let settled =
            with(target, async |connection| waiting::until_whole(connection, &path, begun, timeout).await).await?;
        output::emit(&format!("{path} is whole: {} of {} ready\n", settled.ready, settled.configured))
    }
}

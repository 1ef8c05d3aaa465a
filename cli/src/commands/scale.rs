//! `pando scale`: gives a pool another number of workers.

use clap::Args;
use pando_protocol::ids::Path;
use pando_protocol::message::Change;

use crate::context::Target;
use crate::exit::Failure;
use crate::{arguments, differences};

/// Gives a pool another number of workers, until its spec is applied again
#[derive(Debug, Args)]
pub struct Scale {
    /// A child with the key count
    #[arg(value_parser = arguments::path)]
    pool: Path,
    /// How many workers
    #[arg(value_name = "N", value_parser = workers)]
    count: u32,
}

impl Scale {
    /// Asks for it, and shows what that changes.
    ///
    /// # Errors
    /// The cluster refuses it or cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        let Self { pool, count } = self;
        let same = format!("{pool} is of that size already: nothing was changed");
        differences::make(target, Change::Scale { pool, count }, &same).await
    }
}

fn workers(text: &str) -> Result<u32, String> {
    match arguments::number(text, "how many workers")? {
        0 => Err("expected 1 or more workers: `pando stop` stops a pool".into()),
        count => Ok(count),
    }
}

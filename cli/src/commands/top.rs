//! `pando top`: the cluster live on a terminal, and keys for what an operator does most.
//!
//! ```text
//!   terminal ── keys ──► model ◄── news ── asking ──QUIC──► cluster
//!            ◄── view ────┘ └── what is open, what to do ──►┘
//! ```
//!
//! The model decides, the view draws, both without a clock and without IO; `screen` feeds them. It shows what the other verbs show,
//! in their words.

mod asking;
mod deed;
mod keys;
mod layout;
mod list;
mod model;
mod overlay;
mod screen;
#[cfg(test)]
mod tests;
mod text;
mod view;

use anyhow::anyhow;
use clap::Args;
use pando_protocol::ids::Path;
use pando_protocol::message::Freshness;

use crate::connection::with;
use crate::context::Target;
use crate::exit::Failure;
use crate::{arguments, terminal};

/// Shows the cluster live, in the whole terminal: trees, mailboxes, nodes and events, with keys to look closer and to act
///
/// `?` shows the keys; `q` quits, and everything runs on. Needs a terminal: elsewhere `pando tree --watch` shows the trees.
#[derive(Debug, Args)]
pub struct Top {
    /// Only the trees and mailboxes at and below this path
    #[arg(value_parser = arguments::path)]
    path: Option<Path>,
    /// Whatever the asked node knows, without asking for the leader
    #[arg(long)]
    stale: bool,
}

impl Top {
    /// Shows it until it is told to quit.
    ///
    /// # Errors
    /// Standard output is no terminal that can be drawn on, there is no such path, or no identity can be used.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        let Self { path, stale } = self;
        if !terminal::can_be_drawn_on() {
            return Err(Failure::usage(anyhow!(
                "pando top draws on a terminal, and standard output is none (or TERM is dumb): use `pando tree --watch`, `pando \
                 events --follow` or `--output json` of the other verbs instead"
            )));
        }
        let freshness = if stale { Freshness::Stale } else { Freshness::Linearizable };
        with(target, async |connection| screen::run(connection, path, freshness).await).await
    }
}

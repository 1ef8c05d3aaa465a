//! `pando dev start`: asks the running `pando dev` to start a dead node, so that its Ctrl-C still stops it.

use std::path::Path;

use anyhow::anyhow;
use pando_protocol::ids::NodeName;

use super::control::{self, Request, Response};
use super::layout::Layout;
use crate::exit::Failure;
use crate::output;

/// Starts a node.
///
/// # Errors
/// There is no such node, it runs, or no `pando dev` does.
pub async fn run(folder: &Path, name: &NodeName) -> Result<(), Failure> {
    Layout::read(folder)?.node(name)?;
    match control::ask(folder, &Request::Start(name.clone())).await? {
        Response::Done(what) => output::emit(&format!("{what}\n")),
        Response::Refused(why) => Err(Failure::refused(anyhow!(why))),
        Response::Failed(why) => Err(Failure::failed(anyhow!(why))),
    }
}

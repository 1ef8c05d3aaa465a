//! Honest values of every type that is sent or kept: each variant at least once.

use pando_protocol::ids::{NodeName, Path};

#[path = "samples/elements.rs"]
mod elements;
#[path = "samples/entries.rs"]
mod entries;
#[path = "samples/mail.rs"]
mod mail;
#[path = "samples/messages.rs"]
mod messages;
#[path = "samples/rows.rs"]
mod rows;
#[path = "samples/sessions.rs"]
mod sessions;
#[path = "samples/specs.rs"]
mod specs;
#[path = "samples/state.rs"]
pub mod state;

pub use elements::{Elements, variables};
pub use entries::{batches, outcomes};
pub use messages::{answers, calls, items};
pub use sessions::{leader_words, obituaries, runner_words};
pub use specs::trees;

fn path() -> Path {
    "/shop/web".parse().unwrap()
}

fn node() -> NodeName {
    "n1".parse().unwrap()
}

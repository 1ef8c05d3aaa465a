//! Why Raft has ended, in our own words.

use std::error::Error;

use openraft::errors::Fatal;
use openraft::{AnyError, AsyncRuntime};

use super::types::Types;

/// The reason. Where storage gave it, its words say which file, why, and what to do; openraft's own, before them, say neither.
pub fn reason<R: AsyncRuntime>(fatal: &Fatal<Types<R>>) -> String {
    match fatal.source().and_then(|source| source.downcast_ref::<AnyError>()) {
        Some(cause) => cause.clone().with_type(None::<&str>).to_string().replace("; source: ", ": "),
        None => fatal.to_string(),
    }
}

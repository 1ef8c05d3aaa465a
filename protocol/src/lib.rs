//! What Pando's processes say to each other: names, specs, causes, messages, and the one codec for wire and disk.
//!
//! ```text
//!   pando (CLI) ── message ──► node        node ── session ──► leader's node
//!        │                                   │
//!        └── spec files ► TreeSpec ◄─────────┘        every byte of it through `codec`
//! ```
//!
//! No rules live here (see `pando-supervision`) and nothing here starts a process. The feature `client` adds identities
//! and QUIC with mutual TLS, the feature `spec-files` the reader of TOML and JSON specs, the feature `worker` what
//! workers and nodes say to each other and the worker's side of it; `golden` is for tests.

pub mod cause;
#[cfg(feature = "client")]
pub mod client;
pub mod codec;
#[cfg(any(test, feature = "golden"))]
pub mod golden;
pub mod ids;
pub mod mail;
pub mod message;
pub mod rejection;
pub mod role;
pub mod session;
pub mod spec;
#[cfg(feature = "spec-files")]
pub mod spec_file;
pub mod view;
#[cfg(feature = "worker")]
pub mod worker;

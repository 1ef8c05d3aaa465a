//! What goes over the network between nodes, and how nodes meet clients.
//!
//! ```text
//!   UDP  server    accepts QUIC ──► IncomingStream { peer, channel, reader, writer } ──► whoever serves that channel
//!        peers     one connection for each (lane, node), dialled once for all who want it
//!   TCP  liveness  held connections whose closing says that a process died; obituaries
//!        obituary  the blocking other end of those, for the guard
//!   both credentials  the certificate that is shown, renewed while the node runs
//! ```
//!
//! Every connection is mutual TLS; what a peer may do is decided by whoever serves the channel.

pub mod credentials;
pub mod liveness;
pub mod obituary;
pub mod peers;
pub mod server;

pub use credentials::Credentials;
pub use peers::{Lane, Peers};
pub use server::IncomingStream;

#[cfg(test)]
pub(crate) mod fixture;

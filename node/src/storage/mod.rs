//! What a node keeps on disk: who it is, the Raft log, and snapshots of the state.
//!
//! ```text
//!   data folder
//!   ├── node.id        identity   who this folder belongs to
//!   ├── log/           log        votes, entries, how far they are committed; every record checked
//!   ├── snapshot       snapshot   the state at one position of the log, verified whole before it replaces another
//!   └── *.tmp                     unfinished; removed at the next start
//! ```
//!
//! Nothing here decides what the state is. A torn end of the log is cut, any other damage stops the node with the place
//! named (see [`log`] for the exact rule). [`retention`] bounds both in bytes.

mod damage;
mod error;
mod folder;
pub mod format;
pub mod identity;
pub mod log;
pub mod retention;
pub mod snapshot;
mod wal;

pub use error::StorageError;

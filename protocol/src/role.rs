//! The roles that stand in certificates. What each may ask is decided by the node that is asked.

use std::fmt;

/// What the holder of a certificate is to the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A node of the cluster.
    Node,
    /// A person or program that may ask for everything.
    Admin,
    /// A person or program that reads and changes nothing.
    Viewer,
    /// A program that feeds mailboxes.
    Producer,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 4] = [Self::Node, Self::Admin, Self::Viewer, Self::Producer];

    /// The role as it stands in certificates.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Admin => "admin",
            Self::Viewer => "viewer",
            Self::Producer => "producer",
        }
    }

    /// The role with this word; `None` for a word that this version does not know.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == word)
    }

    /// What it may do, for people: goes on after *which may*.
    pub fn permission(self) -> &'static str {
        match self {
            Self::Node => "do everything that a node has to do",
            Self::Admin => "do everything",
            Self::Viewer => "read everything and change nothing",
            Self::Producer => "only put messages into mailboxes and ask for replies",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

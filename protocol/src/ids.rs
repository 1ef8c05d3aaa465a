//! Names and numbers: what people call things, and what the cluster counts.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Most bytes in one name.
pub const MAX_NAME: usize = 63;
/// Most names in a path: the tree, its supervisors, and the child.
pub const MAX_DEPTH: usize = 16;

/// Why a text is no name or path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// The text holds something else than 1 to 63 of `a-z`, `0-9` and `-`.
    #[error("{0:?} is not a name: a name is 1 to {MAX_NAME} characters of a-z, 0-9 and -")]
    Name(String),
    /// The text does not begin with `/`, or ends with it.
    #[error("{0:?} is not a path: a path looks like /tree/supervisor/child")]
    Path(String),
    /// More than [`MAX_DEPTH`] names.
    #[error("{0:?} has {1} levels: at most {MAX_DEPTH} are allowed")]
    TooDeep(String, usize),
}

fn check_name(text: &str) -> Result<(), BadName> {
    let fits = (1..=MAX_NAME).contains(&text.len());
    if fits && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
        Ok(())
    } else {
        Err(BadName::Name(text.chars().take(80).collect()))
    }
}

macro_rules! name {
    ($type:ident, $what:literal) => {
        #[doc = $what]
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $type(Arc<str>);

        impl $type {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl FromStr for $type {
            type Err = BadName;
            fn from_str(text: &str) -> Result<Self, BadName> {
                check_name(text)?;
                Ok(Self(text.into()))
            }
        }
        impl TryFrom<String> for $type {
            type Error = BadName;
            fn try_from(text: String) -> Result<Self, BadName> {
                text.parse()
            }
        }
        impl From<$type> for String {
            fn from(name: $type) -> String {
                name.0.as_ref().to_owned()
            }
        }
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

name!(NodeName, "The configured name of a node: `n1`. It stands in the node's certificate.");
name!(TreeName, "The name of a tree: `shop`. Its root supervisor is `/shop`.");
name!(ChildId, "The name of a child under its supervisor: `web`.");

impl ChildId {
    /// The name of a worker of a pool: its index.
    pub fn index(index: u32) -> Self {
        Self(index.to_string().into())
    }
}

/// The place of a supervisor or child in a tree: `/shop/ingest/connection`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Path(Arc<str>);

impl Path {
    /// The root supervisor of a tree.
    pub fn root(tree: &TreeName) -> Self {
        Self(format!("/{tree}").into())
    }

    /// The path of `id` below this one. Depth is not checked here: specs and texts are, when they are parsed.
    pub fn child(&self, id: &ChildId) -> Self {
        Self(format!("{}/{id}", self.0).into())
    }

    /// The supervisor above; `None` for a root.
    pub fn parent(&self) -> Option<Self> {
        let cut = self.0.rfind('/')?;
        (cut > 0).then(|| Self(self.0[..cut].into()))
    }

    /// The tree it belongs to.
    pub fn tree(&self) -> TreeName {
        let name = self.0[1..].split('/').next().unwrap_or_default();
        TreeName(name.into())
    }

    /// The last name in it.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// The number of names in it: 1 for a root.
    pub fn depth(&self) -> usize {
        self.0.matches('/').count()
    }

    /// Whether this is `ancestor` or lies below it.
    pub fn is_within(&self, ancestor: &Path) -> bool {
        self.0.strip_prefix(&*ancestor.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Path {
    type Err = BadName;
    fn from_str(text: &str) -> Result<Self, BadName> {
        let Some(names) = text.strip_prefix('/').filter(|names| !names.is_empty()) else {
            return Err(BadName::Path(text.chars().take(80).collect()));
        };
        let depth = names.split('/').count();
        if depth > MAX_DEPTH {
            return Err(BadName::TooDeep(text.chars().take(80).collect(), depth));
        }
        for name in names.split('/') {
            check_name(name)?;
        }
        Ok(Self(text.into()))
    }
}
impl TryFrom<String> for Path {
    type Error = BadName;
    fn try_from(text: String) -> Result<Self, BadName> {
        text.parse()
    }
}
impl From<Path> for String {
    fn from(path: Path) -> String {
        path.0.as_ref().to_owned()
    }
}
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

macro_rules! number {
    ($type:ident, $prefix:literal, $what:literal) => {
        #[doc = $what]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
        pub struct $type(pub u64);

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

number!(Incarnation, "", "One run of a child, from one counter of the whole cluster: later runs have higher numbers.");
number!(SessionId, "s", "A runner's standing with the cluster, from one counter of the whole cluster.");

/// Who sends writes, told apart for ten minutes so that a retry applies once. Drawn at random by each client process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClientId(pub u128);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_know_their_parent_tree_and_depth() {
        let path: Path = "/shop/ingest/connection".parse().unwrap();
        assert_eq!(path.parent().unwrap().as_str(), "/shop/ingest");
        assert_eq!((path.tree().as_str(), path.name(), path.depth()), ("shop", "connection", 3));
        assert_eq!("/shop".parse::<Path>().unwrap().parent(), None);
    }

    #[test]
    fn a_sibling_whose_name_begins_alike_is_not_within() {
        let shop: Path = "/shop".parse().unwrap();
        assert!("/shop/web".parse::<Path>().unwrap().is_within(&shop));
        assert!(!"/shop2/web".parse::<Path>().unwrap().is_within(&shop));
    }

    #[test]
    fn bad_names_and_paths_are_refused() {
        for bad in
            ["", "shop", "/", "//", "/a//b", "/A", "/a/", "/ä", &"/a".repeat(17), &format!("/{}", "x".repeat(64))]
        {
            assert!(bad.parse::<Path>().is_err(), "{bad:?}");
        }
    }
}

//! A tree as a list, for wire and disk: depth is a number here, so that no bytes can make a reader recurse.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    AutoShutdown, Backoff, ChildSpec, Intensity, MAX_MEMBERS, Pool, ProcessSpec, Restart, Strategy, SupervisorSpec,
    TreeSpec, Work,
};
use crate::ids::{ChildId, MAX_DEPTH, TreeName};

/// A [`TreeSpec`] in preorder.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct FlatTree {
    name: TreeName,
    root: FlatSupervisor,
    members: Vec<FlatMember>,
}

#[derive(Clone, Serialize, Deserialize)]
struct FlatSupervisor {
    strategy: Strategy,
    intensity: Intensity,
    auto_shutdown: AutoShutdown,
    colocate: bool,
}

#[derive(Clone, Serialize, Deserialize)]
struct FlatMember {
    /// 0 directly below the root.
    depth: u8,
    id: ChildId,
    restart: Restart,
    backoff: Backoff,
    significant: bool,
    work: FlatWork,
}

#[derive(Clone, Serialize, Deserialize)]
enum FlatWork {
    Process(Arc<ProcessSpec>),
    Supervisor(FlatSupervisor),
    Pool(Pool),
}

impl From<TreeSpec> for FlatTree {
    fn from(tree: TreeSpec) -> Self {
        let mut members = Vec::new();
        let root = flatten(tree.root, 0, &mut members);
        Self { name: tree.name, root, members }
    }
}

fn flatten(supervisor: SupervisorSpec, depth: u8, members: &mut Vec<FlatMember>) -> FlatSupervisor {
    let SupervisorSpec { strategy, intensity, auto_shutdown, colocate, children } = supervisor;
    for ChildSpec { id, restart, backoff, significant, work } in children {
        let at = members.len();
        let placeholder = FlatWork::Supervisor(FlatSupervisor { strategy, intensity, auto_shutdown, colocate });
        members.push(FlatMember { depth, id, restart, backoff, significant, work: placeholder });
        members[at].work = match work {
            Work::Process(spec) => FlatWork::Process(spec),
            Work::Pool(pool) => FlatWork::Pool(pool),
            // A spec deeper than MAX_DEPTH was never valid; its depth stops counting and the reader refuses it.
            Work::Supervisor(spec) => FlatWork::Supervisor(flatten(spec, depth.saturating_add(1), members)),
        };
    }
    FlatSupervisor { strategy, intensity, auto_shutdown, colocate }
}

impl TryFrom<FlatTree> for TreeSpec {
    type Error = String;
    fn try_from(flat: FlatTree) -> Result<Self, String> {
        if flat.members.len() > MAX_MEMBERS {
            return Err(format!("{} members in one tree: at most {MAX_MEMBERS} are allowed", flat.members.len()));
        }
        let mut members = flat.members.into_iter().peekable();
        let root = nest(flat.root, 0, &mut members)?;
        match members.next() {
            None => Ok(Self { name: flat.name, root }),
            Some(stray) => Err(format!("member {} at depth {} has no supervisor", stray.id, stray.depth)),
        }
    }
}

type Members = std::iter::Peekable<std::vec::IntoIter<FlatMember>>;

/// Takes the members that stand at `depth`, and what lies below each. Recurses at most [`MAX_DEPTH`] deep.
fn nest(supervisor: FlatSupervisor, depth: u8, members: &mut Members) -> Result<SupervisorSpec, String> {
    if usize::from(depth) > MAX_DEPTH {
        return Err(format!("a tree deeper than {MAX_DEPTH} levels"));
    }
    let FlatSupervisor { strategy, intensity, auto_shutdown, colocate } = supervisor;
    let mut children = Vec::new();
    while let Some(member) = members.next_if(|member| member.depth == depth) {
        let FlatMember { depth: _, id, restart, backoff, significant, work } = member;
        let work = match work {
            FlatWork::Process(spec) => Work::Process(spec),
            FlatWork::Pool(pool) => Work::Pool(pool),
            FlatWork::Supervisor(below) => Work::Supervisor(nest(below, depth + 1, members)?),
        };
        children.push(ChildSpec { id, restart, backoff, significant, work });
    }
    Ok(SupervisorSpec { strategy, intensity, auto_shutdown, colocate, children })
}

#[cfg(test)]
mod tests {
    use super::super::Command;
    use super::*;
    use crate::codec::{FRAME_LIMIT, decode, encode};

    fn leaf(id: &str) -> ChildSpec {
        let command = Command { program: "true".into(), args: vec![] };
        child(id, Work::Process(Arc::new(ProcessSpec::new(command))))
    }

    fn child(id: &str, work: Work) -> ChildSpec {
        let id = id.parse().unwrap();
        ChildSpec { id, restart: Restart::Permanent, backoff: Backoff::default(), significant: false, work }
    }

    fn supervisor(children: Vec<ChildSpec>) -> SupervisorSpec {
        let (strategy, intensity) = (Strategy::OneForOne, Intensity::default());
        SupervisorSpec { strategy, intensity, auto_shutdown: AutoShutdown::Never, colocate: false, children }
    }

    #[test]
    fn a_nested_tree_comes_back_equal() {
        let inner = supervisor(vec![leaf("x"), leaf("y")]);
        let root = supervisor(vec![leaf("a"), child("b", Work::Supervisor(inner)), leaf("c")]);
        let tree = TreeSpec { name: "t".parse().unwrap(), root };
        let bytes = encode::<FRAME_LIMIT>(&tree).unwrap();
        assert_eq!(decode::<TreeSpec, FRAME_LIMIT>(&bytes).unwrap(), tree);
    }

    #[test]
    fn a_tree_too_deep_is_refused_by_the_reader() {
        let mut root = supervisor(vec![leaf("x")]);
        for _ in 0..100 {
            root = supervisor(vec![child("s", Work::Supervisor(root))]);
        }
        let bytes = encode::<FRAME_LIMIT>(&TreeSpec { name: "t".parse().unwrap(), root }).unwrap();
        let error = decode::<TreeSpec, FRAME_LIMIT>(&bytes).unwrap_err().to_string();
        assert!(error.contains("deeper than 16 levels"), "{error}");
    }

    #[test]
    fn a_tree_of_too_many_members_is_refused_by_the_reader() {
        let root = supervisor(vec![leaf("x"); MAX_MEMBERS + 1]);
        let bytes = encode::<FRAME_LIMIT>(&TreeSpec { name: "t".parse().unwrap(), root }).unwrap();
        let error = decode::<TreeSpec, FRAME_LIMIT>(&bytes).unwrap_err().to_string();
        assert!(error.contains("10001 members"), "{error}");
    }
}

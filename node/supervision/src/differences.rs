//! What differs between a spec and what there is: for `diff`, `--dry-run`, and to see that nothing does.

use pando_protocol::ids::{ChildId, Path};
use pando_protocol::message::{Difference, DifferenceKind};
use pando_protocol::rejection::Rejection;
use pando_protocol::spec::{ChildSpec, ProcessSpec, SupervisorSpec, TreeSpec, Work};

use crate::cluster::{Body, Cluster, Member, Supervisor};

/// What applying a spec would do, in tree order. Empty: everything is so already.
///
/// # Errors
/// A tree that is being deleted, and a process that would become a supervisor or the other way round.
pub fn differences(cluster: &Cluster, spec: &TreeSpec) -> Result<Vec<Difference>, Rejection> {
    let root = Path::root(&spec.name);
    if cluster.member(&root).is_some_and(|member| member.removed) {
        return Err(Rejection::BeingDeleted(spec.name.clone()));
    }
    let mut found = Vec::new();
    compare_supervisor(cluster, &root, &spec.root, None, &mut found)?;
    Ok(found)
}

fn compare_supervisor(
    cluster: &Cluster,
    path: &Path,
    spec: &SupervisorSpec,
    child: Option<&ChildSpec>,
    found: &mut Vec<Difference>,
) -> Result<(), Rejection> {
    match cluster.member(path) {
        None => found.push(difference(path, DifferenceKind::Added)),
        Some(member) => {
            let Body::Supervisor(known) = &member.body else {
                return Err(kind_changed(path, member, "process", "supervisor"));
            };
            let mut keys = own_keys(member, child);
            supervisor_keys(known, spec, &mut keys);
            if member.removed {
                found.push(difference(path, DifferenceKind::Added));
            } else if !keys.is_empty() {
                found.push(Difference { path: path.clone(), what: DifferenceKind::Changed, keys });
            }
            for gone in known.children.iter().filter(|id| !names(spec, id)).map(|id| path.child(id)) {
                if cluster.member(&gone).is_some_and(|member| !member.removed) {
                    found.push(difference(&gone, DifferenceKind::Removed));
                }
            }
        }
    }
    for child in &spec.children {
        let below = path.child(&child.id);
        match &child.work {
            Work::Supervisor(spec) => compare_supervisor(cluster, &below, spec, Some(child), found)?,
            Work::Process(spec) => compare_process(cluster, &below, child, spec, found)?,
            Work::Pool(_) => {
                let pool = child.as_supervisor().unwrap_or_else(|| unreachable!("a pool"));
                compare_supervisor(cluster, &below, &pool, Some(child), found)?;
            }
        }
    }
    Ok(())
}

fn compare_process(
    cluster: &Cluster,
    path: &Path,
    child: &ChildSpec,
    spec: &ProcessSpec,
    found: &mut Vec<Difference>,
) -> Result<(), Rejection> {
    let Some(member) = cluster.member(path) else {
        found.push(difference(path, DifferenceKind::Added));
        return Ok(());
    };
    let Body::Process(process) = &member.body else {
        return Err(kind_changed(path, member, "supervisor", "process"));
    };
    let mut keys = own_keys(member, Some(child));
    process_keys(&process.spec, spec, &mut keys);
    if member.removed {
        found.push(difference(path, DifferenceKind::Added));
    } else if !keys.is_empty() {
        let what = if keys == ["mailbox"] && restarts_not(&process.spec, spec) {
            DifferenceKind::Changed
        } else {
            DifferenceKind::Restarted
        };
        found.push(Difference { path: path.clone(), what, keys });
    }
    Ok(())
}

fn names(spec: &SupervisorSpec, id: &ChildId) -> bool {
    spec.children.iter().any(|child| child.id == *id)
}

fn own_keys(member: &Member, child: Option<&ChildSpec>) -> Vec<String> {
    let mut keys = Vec::new();
    if let Some(ChildSpec { id: _, restart, backoff, significant, work: _ }) = child {
        push_if(&mut keys, member.restart != *restart, "restart");
        push_if(&mut keys, member.backoff != *backoff, "backoff");
        push_if(&mut keys, member.significant != *significant, "significant");
    }
    keys
}

fn supervisor_keys(known: &Supervisor, spec: &SupervisorSpec, keys: &mut Vec<String>) {
    let SupervisorSpec { strategy, intensity, auto_shutdown, colocate, children } = spec;
    push_if(keys, known.strategy != *strategy, "strategy");
    push_if(keys, known.intensity != *intensity, "intensity");
    push_if(keys, known.auto_shutdown != *auto_shutdown, "auto_shutdown");
    push_if(keys, known.colocate != *colocate, "colocate");
    // Their order only: what is added and removed has lines of its own.
    let staying = known.children.iter().filter(|id| names(spec, id));
    let known_too = children.iter().map(|child| &child.id).filter(|id| known.children.contains(id));
    push_if(keys, !staying.eq(known_too), "children");
}

fn process_keys(known: &ProcessSpec, spec: &ProcessSpec, keys: &mut Vec<String>) {
    let ProcessSpec {
        command,
        env,
        cwd,
        shutdown,
        stop_signal,
        normal_exit,
        intensity,
        slots,
        ready,
        place,
        on_exit,
        on_disconnect,
        mailbox,
    } = spec;
    push_if(keys, known.command != *command, "command");
    push_if(keys, known.env != *env, "env");
    push_if(keys, known.cwd != *cwd, "cwd");
    push_if(keys, known.shutdown != *shutdown, "shutdown");
    push_if(keys, known.stop_signal != *stop_signal, "stop_signal");
    push_if(keys, known.normal_exit != *normal_exit, "normal_exit");
    push_if(keys, known.intensity != *intensity, "intensity");
    push_if(keys, known.slots != *slots, "slots");
    push_if(keys, known.ready != *ready, "ready");
    push_if(keys, known.place != *place, "place");
    push_if(keys, known.on_exit != *on_exit, "on_exit");
    push_if(keys, known.on_disconnect != *on_disconnect, "on_disconnect");
    push_if(keys, known.mailbox != *mailbox, "mailbox");
}

/// Whether a process need not be restarted for another spec: they differ at most in a mailbox that both have.
pub(crate) fn restarts_not(known: &ProcessSpec, spec: &ProcessSpec) -> bool {
    known.mailbox.is_some() == spec.mailbox.is_some()
        && ProcessSpec { mailbox: spec.mailbox.clone(), ..known.clone() } == *spec
}

fn push_if(keys: &mut Vec<String>, differs: bool, key: &str) {
    if differs {
        keys.push(key.to_owned());
    }
}

fn difference(path: &Path, what: DifferenceKind) -> Difference {
    Difference { path: path.clone(), what, keys: Vec::new() }
}

fn kind_changed(path: &Path, member: &Member, from: &str, to: &str) -> Rejection {
    if member.removed {
        let why = format!("is still being removed as a {from}: wait until it is gone, then apply again");
        return Rejection::WrongState { path: path.clone(), why };
    }
    Rejection::KindChanged { path: path.clone(), from: from.into(), to: to.into() }
}

/// The known path that somebody who typed `path` may have meant: one of the same last name elsewhere, or a sibling whose name is
/// a slip of the finger away. `None` where nothing looks alike.
pub fn nearest(cluster: &Cluster, path: &Path) -> Option<Path> {
    let (above, name) = split(path);
    let common = |known: &Path| known.as_str().bytes().zip(path.as_str().bytes()).take_while(|(a, b)| a == b).count();
    let distance = |known: &Path| match split(known) {
        (_, other) if other == name => Some(0),
        (other_above, other) if other_above == above => {
            Some(slips(name, other)).filter(|slips| *slips <= allowed(name))
        }
        _ => None,
    };
    let alike = cluster.members.keys().filter_map(|known| Some((distance(known)?, known)));
    alike.min_by_key(|(distance, known)| (*distance, std::cmp::Reverse(common(known)))).map(|(_, known)| known.clone())
}

fn split(path: &Path) -> (&str, &str) {
    path.as_str().rsplit_once('/').unwrap_or(("", path.as_str()))
}

/// In a short word two slips make another word.
fn allowed(name: &str) -> usize {
    if name.len() < 5 { 1 } else { 2 }
}

/// How many letters are wrong, missing, too many or exchanged with their neighbour. Names have at most 63.
fn slips(one: &str, other: &str) -> usize {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut rows = vec![(0..=other.len()).collect::<Vec<_>>()];
    for i in 1..=one.len() {
        let mut row = vec![i];
        for j in 1..=other.len() {
            let changed = rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
            let mut least = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

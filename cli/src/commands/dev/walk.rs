//! What `pando dev` shows when it is up: where everything is, and a walk to try, with real names.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use pando_protocol::ids::{self, NodeName};
use pando_protocol::session::NodeRole;
use pando_protocol::spec::{SupervisorSpec, TreeSpec, Work};
use pando_protocol::spec_file;

use super::layout::{self, Layout};
use crate::exit::Failure;
use crate::output::shell_word;

/// The text.
///
/// # Errors
/// The tree to try cannot be written.
pub fn text(folder: &Path, layout: &Layout, leader: &NodeName) -> Result<String, Failure> {
    let (file, spec) = tree_to_try(folder)?;
    let pando = std::env::args().next().unwrap_or_else(|| "pando".into());
    Ok(compose(folder, layout, leader, &file, &spec, &shell_word(&pando)))
}

fn compose(folder: &Path, layout: &Layout, leader: &NodeName, file: &Path, spec: &TreeSpec, pando: &str) -> String {
    let tree = ids::Path::root(&spec.name);
    let child = first_process(&tree, &spec.root).unwrap_or_else(|| tree.clone());
    // A lost follower first, then the leader: each shows something of its own.
    let follower = layout.nodes.iter().map(|node| &node.name).find(|name| *name != leader).unwrap_or(leader);
    let mut steps = vec![
        (format!("apply {} --wait", shell_word(&file.display().to_string())), "start a tree".to_owned()),
        ("tree --watch".to_owned(), "look at it, in a terminal of its own".to_owned()),
        (format!("kill {child}"), "crash a child".to_owned()),
        (format!("explain {child}"), "ask why, and what happens next".to_owned()),
        (format!("dev kill {follower}"), "kill a node: its children start elsewhere".to_owned()),
        (format!("dev start {follower}"), "bring it back".to_owned()),
        (format!("dev kill {leader}"), "kill the leader: another takes over, the tree lives on".to_owned()),
        ("events --after 0".to_owned(), "read the whole story".to_owned()),
    ];
    if layout.voters().count() == 1 {
        // Without its only voter nobody can answer.
        steps.retain(|(step, _)| *step != format!("dev kill {leader}"));
    }
    if layout.nodes.len() == 1 {
        steps.retain(|(step, _)| !step.starts_with("dev "));
    }
    let width = steps.iter().map(|(step, _)| step.chars().count()).max().unwrap_or_default();
    let mut text = format!("{}\n\n{}\n", headline(layout, leader), nodes(folder, layout));
    text.push_str("Try, in another terminal:\n\n");
    for (step, why) in steps {
        text.push_str(&format!("  {pando} {step:width$}   {why}\n"));
    }
    text.push_str("\nCtrl-C here stops everything.\n");
    text
}

fn headline(layout: &Layout, leader: &NodeName) -> String {
    let (nodes, voters) = (layout.nodes.len(), layout.voters().count());
    let agents = match nodes - voters {
        0 => String::new(),
        1 => " and 1 agent".into(),
        agents => format!(" and {agents} agents"),
    };
    let voters = if voters == 1 { "1 voter".into() } else { format!("{voters} voters") };
    format!("The cluster is up: {voters}{agents}, leader {leader}.")
}

fn nodes(folder: &Path, layout: &Layout) -> String {
    let line = |node: &layout::NodePlan| {
        let role = if node.role == NodeRole::Voter { "voter" } else { "agent" };
        let log = layout::log_file(folder, &node.name);
        format!(
            "  {}  {role}  {}  http://{}/metrics  {}\n",
            node.name,
            node.address(),
            node.http_address(),
            log.display()
        )
    };
    layout.nodes.iter().map(line).collect()
}

/// The shop where it is at hand, else a small tree that needs nothing but a shell.
fn tree_to_try(folder: &Path) -> Result<(PathBuf, TreeSpec), Failure> {
    let shop = PathBuf::from("examples/shop.toml");
    if let Ok(spec) = spec_file::read(&shop) {
        return Ok((shop, spec));
    }
    let file = folder.join("hello.toml");
    fs::write(&file, HELLO).with_context(|| format!("cannot write {}", file.display())).map_err(Failure::failed)?;
    let spec = spec_file::read(&file).map_err(Failure::failed)?;
    Ok((file, spec))
}

fn first_process(at: &ids::Path, supervisor: &SupervisorSpec) -> Option<ids::Path> {
    supervisor.children.iter().find_map(|child| match &child.work {
        Work::Process(_) => Some(at.child(&child.id)),
        Work::Pool(_) => Some(at.child(&child.id).child(&ids::ChildId::index(0))),
        Work::Supervisor(below) => first_process(&at.child(&child.id), below),
    })
}

const HELLO: &str = r#"# A tree to try: a clock that runs until it is killed, and a child that gives up now and then.
name = "hello"

[[children]]
id = "clock"
command = ["sh", "-c", "while :; do date; sleep 1; done"]

[[children]]
id = "moody"
command = ["sh", "-c", "echo working; sleep 20; echo 'enough for now' >&2; exit 1"]
"#;

#[cfg(test)]
mod tests {
    use super::super::layout::NodePlan;
    use super::*;

    fn node(name: &str, role: NodeRole, port: u16) -> NodePlan {
        NodePlan { name: name.parse().unwrap(), role, port, http: port + 1, zone: "a".into() }
    }

    #[test]
    fn the_walk_names_what_is_really_there() {
        let (voter, agent) = (NodeRole::Voter, NodeRole::Agent);
        let nodes =
            vec![node("n1", voter, 7000), node("n2", voter, 7010), node("n3", voter, 7020), node("n4", agent, 7030)];
        let spec = spec_file::parse("hello.toml", spec_file::Format::Toml, HELLO).unwrap();
        let layout = Layout { nodes };
        let leader = "n1".parse().unwrap();
        let text = compose(Path::new("/grove"), &layout, &leader, Path::new("/grove/hello.toml"), &spec, "pando");
        let expected = "\
The cluster is up: 3 voters and 1 agent, leader n1.

  n1  voter  127.0.0.1:7000  http://127.0.0.1:7001/metrics  /grove/n1/node.log
  n2  voter  127.0.0.1:7010  http://127.0.0.1:7011/metrics  /grove/n2/node.log
  n3  voter  127.0.0.1:7020  http://127.0.0.1:7021/metrics  /grove/n3/node.log
  n4  agent  127.0.0.1:7030  http://127.0.0.1:7031/metrics  /grove/n4/node.log

Try, in another terminal:

  pando apply /grove/hello.toml --wait   start a tree
  pando tree --watch                     look at it, in a terminal of its own
  pando kill /hello/clock                crash a child
  pando explain /hello/clock             ask why, and what happens next
  pando dev kill n2                      kill a node: its children start elsewhere
  pando dev start n2                     bring it back
  pando dev kill n1                      kill the leader: another takes over, the tree lives on
  pando events --after 0                 read the whole story

Ctrl-C here stops everything.
";
        assert_eq!(text, expected);
        let spaced = compose(
            Path::new("/my grove"),
            &layout,
            &leader,
            Path::new("/my grove/hello.toml"),
            &spec,
            &shell_word("/my bin/pando"),
        );
        assert!(spaced.contains("  '/my bin/pando' apply '/my grove/hello.toml' --wait "), "{spaced}");
    }
}

//! `pando top` on a terminal, before real nodes.

use std::process::Stdio;

use pando_protocol::client::identity::Role;
use pando_tests::cluster::{Cluster, Options, SOON, send};
use pando_tests::terminal::Terminal;
use pando_tests::wait::wait_until;
use rustix::process::Signal;

use super::{Ran, pando, spec_file};

/// Two children that stay, and say so.
const TREE: &str = r#"
name = "t"

[[children]]
id = "stay"
command = ["sh", "-c", "echo here I am; exec sleep infinity"]

[[children]]
id = "other"
command = ["sleep", "infinity"]
"#;

async fn with_tree(voters: usize) -> Cluster {
    let cluster = Cluster::with(Options { voters, ..Options::default() }).await;
    spec_file(&cluster, "t.toml", TREE);
    pando(&cluster, "apply t.toml --wait").with_code(0);
    cluster
}

/// `pando` on a terminal.
fn on_terminal(cluster: &Cluster, words: &[&str]) -> Terminal {
    Terminal::run(&mut cluster.cli_command(words), 34, 110)
}

/// The line of the screen in which this stands.
fn line<'a>(screen: &'a str, what: &str) -> &'a str {
    screen.lines().find(|line| line.contains(what)).unwrap_or("")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_a_crash_asks_why_and_restarts() {
    let cluster = with_tree(3).await;
    let mut top = on_terminal(&cluster, &["top"]);
    let screen = top.wait_for("the tree and the nodes", SOON, |screen| {
        line(screen, "─ stay").contains("running") && screen.contains("leader  up") && screen.contains("held, s")
    });
    assert!(screen.contains("3 of 3 nodes up, 1 tree, 2 of 2 ready"), "{screen}");

    pando(&cluster, "kill t/stay").with_code(0);
    top.wait_for("the restart", SOON, |screen| line(screen, "─ stay").contains(" 1 (1/min)"));
    top.wait_for("the story of it", SOON, |screen| screen.contains("SIGKILL"));

    top.press("je");
    top.wait_for("why", SOON, |screen| screen.contains("Explain /t/stay") && screen.contains("what ended last"));
    top.press("\x1b");
    top.wait_for("the tree again", SOON, |screen| !screen.contains("Explain /t/stay"));
    top.press("l");
    top.wait_for("what it wrote", SOON, |screen| screen.contains("| here I am"));
    top.press("q");

    let before = cluster.row("/t/stay").await.incarnation;
    top.wait_for("the tree again", SOON, |screen| !screen.contains("Logs /t/stay"));
    top.press("r");
    top.wait_for("the question", SOON, |screen| screen.contains("pando restart /t/stay?") && screen.contains("Do it?"));
    assert_eq!(cluster.row("/t/stay").await.incarnation, before, "nothing is done before the answer");
    top.press("y");
    top.wait_for("what was done", SOON, |screen| screen.contains("/t/stay is restarting"));
    wait_until("the restart", SOON, async || cluster.row("/t/stay").await, |row| row.incarnation > before).await;

    top.press("q");
    assert_eq!(top.ends(SOON).code(), Some(0));
    cluster.whole("/t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_drained_and_undrained_from_its_line() {
    let cluster = with_tree(3).await;
    let mut top = on_terminal(&cluster, &["top"]);
    top.wait_for("the nodes", SOON, |screen| line(screen, " n3 ").contains("up"));
    top.press("\t\tGd");
    top.wait_for("the question", SOON, |screen| screen.contains("pando node drain n3?"));
    top.press("y");
    top.wait_for("the drain", SOON, |screen| line(screen, " n3 ").contains("drained"));
    top.press("u");
    top.wait_for("the end of it", SOON, |screen| line(screen, " n3 ").contains(" up "));
    top.press("\x03");
    assert_eq!(top.ends(SOON).code(), Some(0), "Ctrl-C quits");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_reads_why_it_may_not() {
    let cluster = with_tree(1).await;
    let identity = cluster.issue("eve", Role::Viewer).display().to_string();
    let mut top = on_terminal(&cluster, &["top", "--identity", &identity]);
    top.wait_for("the tree", SOON, |screen| screen.contains("─ stay"));
    top.press("jry");
    top.wait_for("the refusal", SOON, |screen| {
        screen.contains("pando restart /t/stay was not done") && screen.contains("yours has the role viewer")
    });
    top.press("\x1bq");
    assert_eq!(top.ends(SOON).code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_is_restored_after_a_signal_and_where_there_is_nothing_to_show() {
    let cluster = with_tree(1).await;
    let mut top = on_terminal(&cluster, &["top", "t"]);
    top.wait_for("the tree", SOON, |screen| screen.contains("─ stay"));
    send(top.pid(), Signal::TERM);
    assert_eq!(top.ends(SOON).code(), Some(0));

    let mut none = on_terminal(&cluster, &["top", "t/nope"]);
    assert_eq!(none.ends(SOON).code(), Some(4));
    none.wait_for("why", SOON, |screen| screen.contains("/t/nope"));
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nothing_can_be_drawn_it_says_what_to_use_instead() {
    let cluster = Cluster::prepare(&Options { voters: 1, ..Options::default() });
    let refused = pando(&cluster, "top").with_code(2);
    assert!(refused.stderr.contains("use `pando tree --watch`") && refused.stdout.is_empty(), "{refused:#?}");
    let mut dumb = cluster.cli_command(&["top"]);
    let ran = Ran::of(&dumb.env("TERM", "dumb").stdin(Stdio::null()).output().expect("pando runs")).with_code(2);
    assert!(ran.stderr.contains("TERM is dumb"), "{ran:#?}");
}

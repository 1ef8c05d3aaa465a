//! `pando top` over a slow link, and over one that is cut.

use std::time::Duration;

use pando_tests::cluster::{Cluster, SOON, path, sleepers};
use pando_tests::terminal::Terminal;
use pando_tests::wait::wait_until;

use super::relay::Relay;

/// `pando top` on a terminal, with these endpoints.
fn top(cluster: &Cluster, endpoints: &[&Relay]) -> Terminal {
    let endpoints: Vec<String> = endpoints.iter().map(|relay| relay.address()).collect();
    Terminal::run(&mut cluster.cli_command(&["top", "--endpoints", &endpoints.join(",")]), 34, 110)
}

#[tokio::test(flavor = "multi_thread")]
async fn over_a_slow_link_it_shows_and_acts_later_and_keys_work_meanwhile() {
    let cluster = Cluster::running(&sleepers("name = 't'", &["a", "b"])).await;
    let relay = Relay::to(cluster.address("n1")).await;
    relay.trouble(30, Duration::from_millis(400));
    let mut top = top(&cluster, &[&relay]);
    top.wait_for("the tree", SOON, |screen| screen.contains("2 of 2 ready") && screen.contains("─ b"));

    // What needs no answer of the cluster.
    for _ in 0..5 {
        top.press("?");
        top.wait_for("the keys", SOON, |screen| screen.contains("Quitting ends nothing"));
        top.press("q");
        top.wait_for("no keys", SOON, |screen| !screen.contains("Quitting ends nothing"));
    }
    let before = cluster.row("/t/a").await;
    top.press("jry");
    top.wait_for("what was done", SOON, |screen| screen.contains("/t/a is restarting"));
    cluster.runs_anew("/t/a", &before).await;
    let kill = pando_protocol::message::Call::Kill { path: path("/t/b"), signal: pando_protocol::spec::Signal::KILL };
    cluster.client().call(kill, SOON).await.expect("a kill");
    top.wait_for("the crash", SOON, |screen| {
        screen.lines().any(|line| line.contains("─ b") && line.contains(" 1 (1/min)"))
    });
    top.press("q");
    assert_eq!(top.ends(SOON).code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_falls_silent_is_named_over_the_last_picture_until_another_answers() {
    let cluster = Cluster::running(&sleepers("name = 't'", &["a"])).await;
    let (near, far) = (Relay::to(cluster.address("n1")).await, Relay::to(cluster.address("n2")).await);
    // Whoever answers first is asked.
    far.cut(true);
    let mut top = top(&cluster, &[&near, &far]);
    top.wait_for("the tree", SOON, |screen| screen.contains("1 of 1 ready"));
    near.cut(true);
    let silence = format!("from {}, ", near.address());
    top.wait_for("the silence", SOON, |screen| {
        screen.starts_with("no answer for ") && screen.contains(&silence) && screen.contains("─ a")
    });
    let instead = format!("trying {}", far.address());
    top.wait_for("the other", SOON, |screen| screen.contains(&instead));
    far.cut(false);
    top.wait_for("an answer", SOON, |screen| screen.starts_with("pando top: leader "));
    let before = cluster.row("/t/a").await;
    top.press("jry");
    wait_until("the restart", SOON, async || cluster.row("/t/a").await, |row| row.incarnation > before.incarnation)
        .await;
    top.press("q");
    assert_eq!(top.ends(SOON).code(), Some(0));
}

//! The real compose file with real containers: a grove survives its node processes, its containers and its leader.
//!
//! ```text
//!   certs ─► n1..n5 ─► apply examples/shop.toml ─► kill a node process ─► kill web's container ─► kill the leader's
//!                          shop-load, run inside a container that lives, measures the gaps between web's answers
//! ```
//!
//! It needs a Docker engine and builds the image, so it is ignored unless asked for:
//! `cargo test -p pando-tests --test compose -- --ignored --nocapture`.

#[path = "compose/grove.rs"]
mod grove;
#[path = "compose/process.rs"]
mod process;

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use grove::{Gap, Grove, Row};

/// For anything that the cluster does by itself once it can: far more than it takes, so that a slow machine passes.
const SOON: Duration = Duration::from_secs(120);
/// The lease under `network = lan`, which the compose file sets.
const LEASE: Duration = Duration::from_secs(2);
/// The margin that the leader adds to a lease.
const MARGIN: Duration = Duration::from_millis(150);
/// By how much the last answered beat may be older than the kill: one pace of beats (200 ms), the round of heartbeats that an
/// answer waits for (50 ms), and as much again for a busy machine.
const LAST_BEAT: Duration = Duration::from_millis(500);

#[test]
#[ignore = "needs a Docker engine and builds the image; `.ci/run` always runs it"]
fn a_grove_in_containers_survives_its_node_processes_its_containers_and_its_leader() -> Result<()> {
    let mut grove = Grove::start()?;
    grove.until("n1 knows a confirmed leader", SOON, |grove| grove.pando("n1", &["cluster", "status"]).map(drop))?;
    grove.until("every container is healthy", SOON, Grove::all_are_healthy)?;
    grove.pando("n1", &["apply", "examples/shop.toml", "--wait"])?;
    grove.until("the shop is whole", SOON, |grove| grove.is_whole("n1", 5))?;

    a_killed_node_process_is_failed_over_before_its_lease_is_over(&grove).context("killing a node process")?;
    a_killed_container_is_failed_over_only_after_its_lease(&grove).context("killing web's container")?;
    a_killed_leader_is_replaced_and_restarts_nothing_elsewhere(&grove).context("killing the leader's container")?;
    grove.remove()
}

/// The guard outlives the node process and reports that everything is gone, so nobody waits for a lease.
fn a_killed_node_process_is_failed_over_before_its_lease_is_over(grove: &Grove) -> Result<()> {
    let web = grove.member("n1", "/shop/web")?;
    let victim = node_of(&web)?;
    let watcher = grove::other_than(&[victim]);
    let watch = grove.watch_web(watcher, SOON)?;
    grove.exec(victim, &["examples/kill-node.sh"])?;
    let gap = watch.gap(SOON)?;
    println!("node process of {victim} killed: {gap}");
    check_move(&web, &gap)?;
    ensure!(gap.lasted < LEASE, "the guard's report should make failover faster than the lease of {LEASE:?}: {gap}");
    grove.until("the grove is whole, with the killed node back", SOON, |grove| grove.is_whole(watcher, 5))?;
    let now = grove.member(watcher, "/shop/web")?;
    ensure!(now.restarts == web.restarts, "losing a node is free, but a restart was charged: {web:?}, now {now:?}");
    Ok(())
}

/// Nobody is left to report, and only the lease proves that the children are gone.
fn a_killed_container_is_failed_over_only_after_its_lease(grove: &Grove) -> Result<()> {
    let web = grove.member("n1", "/shop/web")?;
    let victim = node_of(&web)?;
    let watcher = grove::other_than(&[victim]);
    let watch = grove.watch_web(watcher, SOON)?;
    grove.kill_container(victim)?;
    let gap = watch.gap(SOON)?;
    println!("container of {victim} killed: {gap}");
    check_move(&web, &gap)?;
    let least = LEASE + MARGIN - LAST_BEAT;
    ensure!(gap.lasted >= least, "started elsewhere before the lease and its margin were over ({least:?}): {gap}");
    grove.start_container(victim)?;
    grove.until("the grove is whole, with the killed container back", SOON, |grove| grove.is_whole(watcher, 5))
}

/// An election alone restarts nothing: only what ran in the leader's own container moves.
fn a_killed_leader_is_replaced_and_restarts_nothing_elsewhere(grove: &Grove) -> Result<()> {
    let leader = grove.leader("n4")?;
    let before = grove.tree("n4")?;
    grove.kill_container(&leader)?;
    let witness = grove::other_than(&[&leader]);
    let next = grove.until("another node leads", SOON, |grove| {
        let next = grove.leader(witness)?;
        ensure!(next != leader, "{next} still counts as the leader");
        Ok(next)
    })?;
    println!("container of the leader {leader} killed: {next} leads");
    grove.until("the shop is whole without the killed leader", SOON, |grove| grove.is_whole(witness, 4))?;
    let after = grove.tree(witness)?;
    for row in before.iter().filter(|row| row.node.as_ref().is_some_and(|node| *node != leader)) {
        let now = after.iter().find(|now| now.path == row.path).with_context(|| format!("{} is gone", row.path))?;
        ensure!(now.incarnation == row.incarnation, "restarted by an election: {row:?}, now {now:?}");
    }
    grove.start_container(&leader)?;
    grove.until("the grove is whole, with the killed leader back", SOON, |grove| grove.is_whole(witness, 5))
}

/// Web runs as a later incarnation on another node.
fn check_move(before: &Row, gap: &Gap) -> Result<()> {
    let incarnation = before.incarnation.context("web had no incarnation")?;
    ensure!(gap.before == (node_of(before)?.to_owned(), incarnation), "another run than {before:?} answered: {gap}");
    ensure!(gap.after.0 != gap.before.0, "web was to move to another node: {gap}");
    ensure!(gap.after.1 > incarnation, "a later run has a higher incarnation: {gap}");
    Ok(())
}

fn node_of(row: &Row) -> Result<&str> {
    row.node.as_deref().with_context(|| format!("{} runs nowhere", row.path))
}

//! The real compose file with real containers: a grove survives its node processes, its containers and its leader.
//!
//! ```text
//!   certs ─► n1..n5 ─► apply examples/shop.toml ─► kill a node process ─► kill web's container ─► kill the leader's
//!                          │                       ─► stop a container ─► down, and up again with the same volumes
//!                          shop-load, run inside a container that lives, measures the gaps between web's answers
//! ```
//!
//! What is asserted are causes, not times: a busy machine is slow, but it may not make the cluster act on another proof.
//! The times are printed.
//!
//! It needs a Docker engine and builds the image, so it is ignored unless asked for:
//! `cargo test -p pando-tests --test compose -- --ignored --nocapture`.

#[path = "compose/grove.rs"]
mod grove;
#[path = "compose/process.rs"]
mod process;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use grove::{Gap, Grove, NODES, Row};

/// For anything that the cluster does by itself once it can: far more than it takes, so that a slow machine passes.
const SOON: Duration = Duration::from_secs(120);
/// How often each kind of failover is measured.
const MEASUREMENTS: usize = 5;

#[test]
#[ignore = "needs a Docker engine and builds the image; `.ci/run` always runs it"]
fn a_grove_in_containers_survives_its_node_processes_its_containers_and_its_leader() -> Result<()> {
    let _alone = alone();
    let mut grove = shop_in_containers()?;
    a_killed_node_process_is_failed_over_by_its_guards_word(&grove).context("killing a node process")?;
    a_killed_container_is_failed_over_by_the_end_of_its_lease(&grove).context("killing web's container")?;
    a_killed_leader_is_replaced_and_restarts_nothing_elsewhere(&grove).context("killing the leader's container")?;
    a_stopped_container_leaves_by_word_and_its_children_are_not_lost(&grove).context("stopping web's container")?;
    a_grove_that_was_taken_down_comes_back_with_its_history(&grove).context("down and up again")?;
    for node in NODES {
        grove.until("nothing dead is left in a container", SOON, |grove| grove.has_no_zombies(node))?;
    }
    grove.remove()
}

#[test]
#[ignore = "needs a Docker engine and a quiet machine; prints a table"]
fn failover_in_containers_is_measured() -> Result<()> {
    let _alone = alone();
    let mut grove = shop_in_containers()?;
    let process = measure(&grove, a_killed_node_process_is_failed_over_by_its_guards_word)?;
    let container = measure(&grove, a_killed_container_is_failed_over_by_the_end_of_its_lease)?;
    println!("\nfailover of /shop/web to another container, while its node does not lead");
    println!("between the last answer of one run and the first of the next, in ms, asked every 20 ms");
    println!("{:<24} {:>6} {:>6} {:>6}  all", "killed", "min", "median", "max");
    for (what, mut gaps) in [("node process, kill -9", process), ("container, docker kill", container)] {
        let all = gaps.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        gaps.sort_unstable();
        println!("{what:<24} {:>6} {:>6} {:>6}  {all}", gaps[0], gaps[gaps.len() / 2], gaps[gaps.len() - 1]);
    }
    grove.remove()
}

/// One grove at a time: two would measure each other, and build one image twice.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn shop_in_containers() -> Result<Grove> {
    let grove = Grove::start()?;
    grove.until("n1 knows a confirmed leader", SOON, |grove| grove.pando("n1", &["cluster", "status"]).map(drop))?;
    grove.until("every container is healthy", SOON, Grove::all_are_healthy)?;
    grove.pando("n1", &["apply", "examples/shop.toml", "--wait"])?;
    grove.until("the shop is whole", SOON, |grove| grove.is_whole("n1", NODES.len()))?;
    Ok(grove)
}

/// The gaps of some failovers, in milliseconds, in the order of the runs.
fn measure(grove: &Grove, fail_over: impl Fn(&Grove) -> Result<Gap>) -> Result<Vec<u128>> {
    let one = |_| {
        let host = node_of(&grove.member("n1", "/shop/web")?)?.to_owned();
        if grove.leader("n1")? == host {
            grove.pando("n1", &["cluster", "transfer"])?;
            grove.until("another node leads", SOON, |grove| {
                let leader = grove.leader("n1")?;
                ensure!(leader != host, "{leader} still leads");
                Ok(())
            })?;
        }
        Ok(fail_over(grove)?.lasted.as_millis())
    };
    (0..MEASUREMENTS).map(one).collect()
}

/// The guard outlives the node process and reports that everything is gone, so nobody waits for a lease.
fn a_killed_node_process_is_failed_over_by_its_guards_word(grove: &Grove) -> Result<Gap> {
    let web = grove.member("n1", "/shop/web")?;
    let victim = node_of(&web)?;
    let watcher = grove::other_than(&[victim]);
    let restarts = grove.restarts_of_container(victim)?;
    let watch = grove.watch_web(watcher, SOON)?;
    grove.exec(victim, &["examples/kill-node.sh"])?;
    let gap = watch.gap(SOON)?;
    println!("node process of {victim} killed: {gap}");
    check_move(&web, &gap)?;
    check_loss(grove, watcher, &web, "its process died (obituary)")?;
    grove.until("the grove is whole, with the killed node back", SOON, |grove| grove.is_whole(watcher, NODES.len()))?;
    let now = grove.restarts_of_container(victim)?;
    ensure!(now == restarts + 1, "the restart policy starts a dead node once: {restarts} starts became {now}");
    Ok(gap)
}

/// Nobody is left to report, and only the end of the lease proves that the children are gone.
fn a_killed_container_is_failed_over_by_the_end_of_its_lease(grove: &Grove) -> Result<Gap> {
    let web = grove.member("n1", "/shop/web")?;
    let victim = node_of(&web)?;
    let watcher = grove::other_than(&[victim]);
    let watch = grove.watch_web(watcher, SOON)?;
    grove.kill_container(victim)?;
    let gap = watch.gap(SOON)?;
    println!("container of {victim} killed: {gap}");
    check_move(&web, &gap)?;
    check_loss(grove, watcher, &web, "silent beyond its lease")?;
    grove.start_container(victim)?;
    let whole = |grove: &Grove| grove.is_whole(watcher, NODES.len());
    grove.until("the grove is whole, with the killed container back", SOON, whole)?;
    Ok(gap)
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

/// A node that is told to go stops its children with their grace and ends its session itself: nothing of it is lost.
fn a_stopped_container_leaves_by_word_and_its_children_are_not_lost(grove: &Grove) -> Result<()> {
    let web = grove.member("n1", "/shop/web")?;
    let victim = node_of(&web)?;
    let watcher = grove::other_than(&[victim]);
    let before = grove.node(watcher, victim)?;
    let watch = grove.watch_web(watcher, SOON)?;
    let code = grove.stop_container(victim)?;
    let gap = watch.gap(SOON)?;
    println!("container of {victim} stopped: {gap}");
    check_move(&web, &gap)?;
    ensure!(code == 0, "a node that leaves in order ends with 0, and its container ended with {code}");
    let ending = ending_of(grove, watcher, &web)?;
    ensure!(ending.cause.class == "stopped", "nobody lost a child that was stopped: {ending:?}");
    let now = grove.node(watcher, victim)?;
    ensure!(
        now.state == "down" && now.losses == before.losses,
        "{victim} left, and was not lost: {before:?}, now {now:?}"
    );
    grove.start_container(victim)?;
    let whole = |grove: &Grove| grove.is_whole(watcher, NODES.len());
    grove.until("the grove is whole, with the stopped container back", SOON, whole)
}

/// The volumes hold all that the cluster knows, also when no node runs for a while.
fn a_grove_that_was_taken_down_comes_back_with_its_history(grove: &Grove) -> Result<()> {
    let web = grove.member("n1", "/shop/web")?;
    let before = grove.history("n1", "/shop/web")?;
    grove.down()?;
    grove.up()?;
    grove.until("the shop is whole again", SOON, |grove| grove.is_whole("n1", NODES.len()))?;
    let after = grove.history("n1", "/shop/web")?;
    // The last line may have grown: equal endings in a row share one.
    let settled = &before[..before.len().saturating_sub(1)];
    let is_kept = !settled.is_empty() && after.starts_with(settled) && after.len() >= before.len();
    ensure!(is_kept, "the history begins as it did: {before:#?}\nand now: {after:#?}");
    let now = grove.member("n1", "/shop/web")?;
    ensure!(now.incarnation > web.incarnation, "it runs as a later incarnation: {web:?}, now {now:?}");
    ensure!(
        now.restarts == web.restarts,
        "taking a grove down is free, but a restart was charged: {web:?}, now {now:?}"
    );
    Ok(())
}

/// Web runs as a later incarnation on another node.
fn check_move(before: &Row, gap: &Gap) -> Result<()> {
    let incarnation = before.incarnation.context("web had no incarnation")?;
    ensure!(gap.before == (node_of(before)?.to_owned(), incarnation), "another run than {before:?} answered: {gap}");
    ensure!(gap.after.0 != gap.before.0, "web was to move to another node: {gap}");
    ensure!(gap.after.1 > incarnation, "a later run has a higher incarnation: {gap}");
    Ok(())
}

/// The run of web ended with its node, for this reason, at nobody's charge.
fn check_loss(grove: &Grove, watcher: &str, web: &Row, how: &str) -> Result<()> {
    let ending = ending_of(grove, watcher, web)?;
    let is_loss = ending.cause.class == "node_lost" && ending.cause.message.ends_with(how) && !ending.charged;
    ensure!(is_loss, "{} should have ended unpaid, because its node was lost: {how}; but: {ending:?}", web.path);
    Ok(())
}

fn ending_of(grove: &Grove, watcher: &str, web: &Row) -> Result<grove::Ending> {
    let incarnation = web.incarnation.context("web had no incarnation")?;
    let ended = |grove: &Grove| grove.ending(watcher, &web.path, incarnation);
    grove.until("the ending stands in the history", SOON, ended)
}

fn node_of(row: &Row) -> Result<&str> {
    row.node.as_deref().with_context(|| format!("{} runs nowhere", row.path))
}

//! The cases that describe the main job: T1, T2, T5, T7, T11.

use std::time::Duration;

use pando_protocol::cause::CauseClass;
use pando_protocol::spec::Intensity;
use pando_protocol::view::{State, Verdict};
use pando_supervision::{EventKind, report};
use pando_tests::rules::specs::{budget, ms, nested, path, permanent, process, tree};
use pando_tests::rules::world::World;

#[test]
fn t1_restarts_are_paced_and_equal_errors_fold_into_one_line() {
    let mut world = World::new(&["n1", "n2", "n3"]);
    world.apply(&tree("t", |root| root.intensity = Intensity::Unlimited, vec![permanent("a")]));
    let mut starts = vec![world.sim.now];
    while world.sim.now < Duration::from_secs(10) {
        world.crash("/t/a", 1);
        world.advance_to_run("/t/a");
        starts.push(world.sim.now);
    }
    let first = starts.iter().filter(|at| **at < Duration::from_secs(3)).count();
    assert!((6..=12).contains(&first), "{first} starts in the first 3 s: {starts:?}");
    let later = starts.windows(2).filter(|pair| pair[0] >= Duration::from_secs(3));
    assert!(later.clone().count() > 3);
    for pair in later {
        assert!((ms(500)..=ms(1_000)).contains(&(pair[1] - pair[0])), "{pair:?}");
    }
    let history = world.history("/t/a");
    assert_eq!((history.len(), history[0].count), (1, starts.len() as u64 - 1));
    assert_eq!(world.row("/t/a").verdict, Verdict::Looping);
}

#[test]
fn t2_a_budget_of_five_makes_six_starts_and_the_sixth_crash_escalates() {
    let mut world = World::new(&["n1", "n2", "n3"]);
    world.apply(&tree(
        "t",
        |root| root.intensity = Intensity::Unlimited,
        vec![nested("pool", |_, pool| pool.intensity = budget(5, 10), vec![permanent("a")])],
    ));
    world.crash_times("/t/pool/a", 5);
    assert_eq!(world.count(EventKind::Escalated, "/t/pool"), 0);
    world.crash_times("/t/pool/a", 1);
    assert_eq!(world.count(EventKind::ChildStarted, "/t/pool/a"), 6);
    assert_eq!(world.count(EventKind::Escalated, "/t/pool"), 1);
    let record = world.last("/t/pool");
    assert_eq!(record.cause.message, "6 crashes in 10 s");
    assert_eq!((record.chain.len(), record.chain[0].code), (1, Some(1)));
    assert_eq!(record.chain[0].stderr, "it went wrong\n");
    assert_eq!(record.earlier.len(), 5);
    assert!(record.earlier.iter().all(|earlier| earlier.code == Some(1)));
    assert!(record.charged, "the parent's policy ran: {record:?}");
    assert_eq!(record.payer, "budget of /t: unlimited");
    assert_eq!(world.row("/t/pool").state, State::BackingOff);
    world.advance_to_run("/t/pool/a");
    assert_eq!(world.row("/t/pool/a").restarts, 5);
}

#[test]
fn t5_losing_a_node_is_free() {
    let mut world = World::new(&["n1", "n2"]);
    world.apply(&tree("t", |root| root.intensity = budget(2, 300), vec![permanent("a")]));
    for loss in 1..=5 {
        let node = world.node_of("/t/a").expect("it runs");
        world.lose(&node);
        let elsewhere = world.node_of("/t/a").expect("it is placed at once");
        assert_ne!(elsewhere, node);
        assert!(world.run("/t/a").expect("it runs").delay.is_zero(), "no backoff after a loss");
        world.settle();
        assert!(world.is_ready("/t/a"));
        let ended: u64 = world.history("/t/a").iter().map(|entry| entry.count).sum();
        assert_eq!(ended, loss);
        assert_eq!((world.last("/t/a").cause.class, world.last("/t/a").charged), (CauseClass::NodeLost, false));
        world.rejoin(&node);
    }
    assert_eq!((world.row("/t/a").restarts, world.count(EventKind::Escalated, "/t")), (0, 0));
    let losses = report::explain(&world.sim.cluster, &path("/t/a")).expect("it exists").node_losses;
    assert_eq!(losses.iter().map(|(_, count)| count).sum::<u64>(), 5);
}

#[test]
fn t7_a_healthy_run_brings_the_delay_back_to_its_base_and_a_shorter_one_does_not() {
    let mut world = World::new(&["n1"]);
    let slow = process("a", |child, _| {
        child.backoff.cap = Duration::from_secs(10);
        child.backoff.jitter = 0;
    });
    world.apply(&tree("t", |root| root.intensity = Intensity::Unlimited, vec![slow]));
    world.crash_times("/t/a", 10);
    assert_eq!(world.run("/t/a").expect("assigned").delay, Duration::from_secs(10));
    world.advance_to_run("/t/a");
    world.advance(Duration::from_secs(6));
    world.crash("/t/a", 1);
    assert_eq!(world.run("/t/a").expect("assigned").delay, ms(50));
    world.advance_to_run("/t/a");
    world.advance(Duration::from_secs(4));
    world.crash("/t/a", 1);
    assert_eq!(world.run("/t/a").expect("assigned").delay, ms(100));
}

#[test]
fn t11_a_ladder_of_three_levels_makes_nine_starts_and_the_root_tells_the_workers_own_exit() {
    let mut world = World::new(&["n1", "n2", "n3"]);
    let pool = nested("pool", |_, pool| pool.intensity = budget(2, 30), vec![permanent("worker")]);
    world.apply(&tree("ladder", |root| root.intensity = budget(2, 30), vec![pool]));
    for pool in 1..=3 {
        world.crash_times("/ladder/pool/worker", 3);
        assert_eq!(world.count(EventKind::ChildStarted, "/ladder/pool/worker"), 3 * pool);
        assert_eq!(world.count(EventKind::Escalated, "/ladder/pool"), pool);
    }
    assert_eq!(world.row("/ladder").state, State::Failed);
    assert_eq!(world.count(EventKind::TreeFailed, "/ladder"), 1);
    let record = world.last("/ladder");
    assert_eq!(record.cause.message, "3 crashes in 30 s");
    let levels: Vec<_> = record.chain.iter().map(|cause| cause.path.as_str()).collect();
    assert_eq!(levels, ["/ladder/pool", "/ladder/pool/worker"]);
    assert_eq!((record.chain[1].code, record.chain[1].stderr.as_str()), (Some(1), "it went wrong\n"));
    let settled = report::settled(&world.sim.cluster, &path("/ladder")).expect("it exists");
    assert!(!settled.whole && settled.failed.expect("it failed").contains("exit code 1"));
    world.advance(Duration::from_secs(600));
    assert_eq!(world.count(EventKind::ChildStarted, "/ladder/pool/worker"), 9, "nothing runs until an operator acts");
    world.restart("/ladder");
    assert!(world.is_ready("/ladder/pool/worker"));
    assert_eq!(world.count(EventKind::TreeCleared, "/ladder"), 1);
}

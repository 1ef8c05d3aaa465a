//! Stop, start and restart, on processes and supervisors, in every state.

use std::time::Duration;

use pando_protocol::message::Change;
use pando_protocol::rejection::Rejection;
use pando_protocol::spec::Restart;
use pando_protocol::view::State;
use pando_supervision::EventKind;
use pando_tests::rules::specs::{budget, ms, nested, path, permanent, tree, with_restart};
use pando_tests::rules::world::World;

fn world() -> World {
    let mut world = World::new(&["n1"]);
    let pool = nested("pool", |_, pool| pool.intensity = budget(1, 60), vec![permanent("x"), permanent("y")]);
    world.apply(&tree("t", |_| {}, vec![permanent("a"), with_restart("b", Restart::Transient), pool]));
    world
}

fn refused(world: &mut World, change: Change) -> String {
    world.change(change).expect_err("it is refused").to_string()
}

#[test]
fn a_stopped_process_stays_down_through_restarts_of_its_parent_and_its_node_until_it_is_started() {
    let mut world = world();
    world.stop("/t/a");
    assert_eq!(world.row("/t/a").state, State::Stopped);
    world.restart("/t");
    world.lose("n1");
    world.rejoin("n1");
    world.settle();
    assert_eq!(world.row("/t/a").state, State::Stopped);
    assert!(world.is_ready("/t/b"));
    world.start("/t/a");
    assert!(world.is_ready("/t/a"));
    assert_eq!(world.row("/t/a").restarts, 0);
}

#[test]
fn stopping_and_starting_twice_changes_nothing() {
    let mut world = world();
    for (change, count) in [
        (Change::Stop(path("/t/a")), 1),
        (Change::Stop(path("/t/a")), 0),
        (Change::Start(path("/t/a")), 1),
        (Change::Start(path("/t/a")), 0),
    ] {
        assert_eq!(world.change(change.clone()).unwrap().differences.len(), count, "{change:?}");
        world.settle();
    }
}

#[test]
fn a_process_in_its_backoff_stops_at_once_and_starts_without_the_old_delay() {
    let mut world = world();
    world.crash("/t/a", 1);
    world.change(Change::Stop(path("/t/a"))).unwrap();
    assert_eq!(world.row("/t/a").state, State::Stopping);
    world.settle();
    assert_eq!(world.last("/t/a").cause.message, "stopped by operator before it started");
    world.start("/t/a");
    assert!(world.is_ready("/t/a"));
}

#[test]
fn a_process_that_waits_for_room_stops_and_starts() {
    let mut world = World::new(&[]);
    world.apply(&tree("t", |_| {}, vec![permanent("a")]));
    assert_eq!(world.row("/t/a").state, State::Waiting);
    world.stop("/t/a");
    assert_eq!(world.row("/t/a").state, State::Stopped);
    world.join("n1", 1, &[]);
    assert!(world.run("/t/a").is_none());
    world.start("/t/a");
    assert!(world.is_ready("/t/a"));
}

#[test]
fn a_process_that_is_started_while_it_still_stops_runs_again_once_it_is_down() {
    let mut world = world();
    world.change(Change::Stop(path("/t/a"))).unwrap();
    world.change(Change::Start(path("/t/a"))).unwrap();
    assert_eq!(world.row("/t/a").state, State::Stopping);
    world.settle();
    assert!(world.is_ready("/t/a"));
    assert_eq!(world.count(EventKind::ChildStarted, "/t/a"), 2);
}

#[test]
fn a_process_that_finished_can_be_started_and_restarted() {
    let mut world = world();
    world.crash("/t/b", 0);
    world.start("/t/b");
    assert!(world.is_ready("/t/b"));
    world.crash("/t/b", 0);
    world.restart("/t/b");
    assert!(world.is_ready("/t/b"));
}

#[test]
fn a_restart_forgives_the_budget_and_the_backoff_and_ends_a_stop() {
    let mut world = world();
    world.crash_times("/t/a", 5);
    world.restart("/t/a");
    assert_eq!(world.member("/t/a").delays, 0);
    world.crash_times("/t/a", 5);
    assert_eq!(world.count(EventKind::Escalated, "/t"), 0);
    world.stop("/t/a");
    world.restart("/t/a");
    assert!(world.is_ready("/t/a"));
}

#[test]
fn a_restart_of_a_process_that_waits_ends_its_delay() {
    let mut world = world();
    world.crash_times("/t/a", 5);
    world.restart("/t/a");
    assert!(world.is_ready("/t/a"));
}

#[test]
fn a_supervisor_stops_with_all_below_it_and_starts_with_all_below_it() {
    let mut world = world();
    world.stop("/t/pool");
    assert_eq!(["/t/pool", "/t/pool/x", "/t/pool/y"].map(|at| world.row(at).state), [State::Stopped; 3]);
    assert!(refused(&mut world, Change::Start(path("/t/pool/x"))).contains("its supervisor /t/pool is not up"));
    assert!(refused(&mut world, Change::Restart(path("/t/pool/x"))).contains("its supervisor /t/pool is not up"));
    world.start("/t/pool");
    assert!(world.is_ready("/t/pool/x") && world.is_ready("/t/pool/y"));
}

#[test]
fn a_supervisor_that_is_started_while_it_still_stops_is_up_again_once_all_is_down() {
    let mut world = world();
    world.change(Change::Stop(path("/t/pool"))).unwrap();
    world.change(Change::Start(path("/t/pool"))).unwrap();
    world.settle();
    assert!(world.is_ready("/t/pool/x") && world.is_ready("/t/pool/y"));
}

#[test]
fn a_supervisor_in_its_backoff_stops_starts_and_restarts() {
    let mut world = world();
    world.crash_times("/t/pool/x", 2);
    world.settle();
    assert_eq!(world.row("/t/pool").state, State::BackingOff);
    world.stop("/t/pool");
    world.advance(Duration::from_secs(5));
    assert_eq!(world.row("/t/pool").state, State::Stopped);
    world.start("/t/pool");
    assert!(world.is_ready("/t/pool/x"));
    world.crash_times("/t/pool/x", 2);
    world.settle();
    world.restart("/t/pool");
    assert!(world.is_ready("/t/pool/x"), "an operator's restart does not wait");
}

#[test]
fn stopping_a_supervisor_that_fails_wins_over_its_failure() {
    let mut world = world();
    world.crash_times("/t/pool/x", 2);
    assert_eq!(world.row("/t/pool").state, State::Stopping);
    world.stop("/t/pool");
    assert_eq!(world.row("/t/pool").state, State::Stopped);
    assert_eq!(world.row("/t").restart_rate, 1, "only the first crash was restarted");
}

#[test]
fn a_child_stopped_below_a_stopped_supervisor_stays_down_when_that_starts() {
    let mut world = world();
    world.stop("/t/pool");
    world.stop("/t/pool/x");
    world.start("/t/pool");
    assert_eq!((world.row("/t/pool/x").state, world.is_ready("/t/pool/y")), (State::Stopped, true));
    world.stop("/t/pool");
    world.start("/t/pool/x");
    world.start("/t/pool");
    assert!(world.is_ready("/t/pool/x"));
}

#[test]
fn a_failed_tree_refuses_stop_and_start_says_what_to_do_and_is_cleared_by_a_restart() {
    let mut world = world();
    world.crash_times("/t/a", 6);
    world.settle();
    assert_eq!(world.row("/t").state, State::Failed);
    assert!(refused(&mut world, Change::Start(path("/t"))).contains("`pando restart /t` clears it"));
    assert!(refused(&mut world, Change::Stop(path("/t"))).contains("`pando delete /t` removes it"));
    assert!(refused(&mut world, Change::Restart(path("/t/a"))).contains("its supervisor /t is not up"));
    world.restart("/t");
    assert!(world.is_ready("/t/a"));
    world.crash_times("/t/a", 5);
    assert_eq!(world.count(EventKind::Escalated, "/t"), 1, "the budget began anew");
}

#[test]
fn restarting_a_supervisor_that_is_failing_clears_it_before_it_has_failed() {
    let mut world = world();
    world.crash_times("/t/a", 6);
    assert_eq!(world.row("/t").state, State::Stopping);
    world.restart("/t");
    assert!(world.is_ready("/t/a"));
    assert_eq!(world.count(EventKind::TreeFailed, "/t"), 0);
}

#[test]
fn paths_that_are_not_there_are_refused_with_the_nearest_that_is() {
    let mut world = world();
    for change in [Change::Start(path("/t/pol/x")), Change::Stop(path("/t/pol/x")), Change::Restart(path("/t/pol/x"))] {
        let refusal = world.change(change).expect_err("it is not there");
        let Rejection::NoSuchPath { nearest, .. } = refusal else { panic!("{refusal:?}") };
        assert_eq!(nearest, Some(path("/t/pool/x")));
    }
    assert!(matches!(world.change(Change::Delete("u".parse().unwrap())), Err(Rejection::NoSuchTree(_))));
}

#[test]
fn only_a_slip_of_the_finger_is_taken_for_another_path() {
    let world = world();
    let nearest = |text: &str| pando_supervision::trees::nearest(&world.sim.cluster, &path(text));
    for (typed, meant) in
        [("/t/pol", "/t/pool"), ("/t/pool/y2", "/t/pool/y"), ("/t/opol", "/t/pool"), ("/t/x", "/t/pool/x")]
    {
        assert_eq!(nearest(typed), Some(path(meant)), "{typed}");
    }
    for strange in ["/t/nope", "/t/web", "/shop", "/t/pool/nope", "/t/nothing/such"] {
        assert_eq!(nearest(strange), None, "{strange}");
    }
}

#[test]
fn what_is_being_deleted_takes_no_orders() {
    let mut world = world();
    world.change(Change::Delete("t".parse().unwrap())).unwrap();
    assert!(refused(&mut world, Change::Start(path("/t/a"))).contains("is being removed"));
    assert!(world.change(Change::Delete("t".parse().unwrap())).unwrap().differences.is_empty());
    world.settle();
    assert!(world.sim.cluster.members.is_empty() && world.sim.cluster.trees.is_empty());
    world.advance(ms(10));
}

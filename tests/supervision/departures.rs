//! Nodes that are emptied: told to go, drained, removed; and members that are quarantined.

use std::time::Duration;

use pando_protocol::cause::{CauseClass, ExitHow};
use pando_protocol::message::{Change, DifferenceKind};
use pando_protocol::rejection::Rejection;
use pando_protocol::session::Observation;
use pando_protocol::spec::{Restart, Strategy};
use pando_protocol::view::{NodeState, State};
use pando_supervision::desired::Local;
use pando_supervision::{Command, EventKind, report};
use pando_tests::rules::specs::{budget, nested, path, permanent, process, tree, with_restart};
use pando_tests::rules::world::World;

fn node_state(world: &World, name: &str) -> NodeState {
    let rows = report::nodes(&world.sim.cluster);
    rows.into_iter().find(|row| row.name.as_str() == name).map(|row| row.state).expect("a known node")
}

fn drain(world: &mut World, name: &str) -> Vec<String> {
    let changed = world.change(Change::Drain(name.parse().unwrap())).expect("it can be drained");
    assert!(changed.differences.iter().all(|difference| difference.what == DifferenceKind::Moved));
    changed.differences.iter().map(|difference| difference.path.to_string()).collect()
}

fn undrain(world: &mut World, name: &str) {
    world.change(Change::Undrain(name.parse().unwrap())).expect("it can be undrained");
    world.settle();
}

fn ended(world: &World, after: usize) -> Vec<String> {
    let exits = world.sim.events[after..].iter().filter(|event| event.kind == EventKind::ChildExited);
    exits.map(|event| event.path.as_ref().expect("a child").to_string()).collect()
}

#[test]
fn a_node_that_goes_stops_the_last_started_of_each_tree_first() {
    let mut world = World::new(&["n1", "n2"]);
    let inner = nested("in", |_, _| {}, vec![permanent("x"), permanent("y")]);
    world.apply(&tree("t", |root| root.colocate = true, vec![permanent("z"), inner, permanent("a")]));
    let told = world.sim.events.len();
    world.leave("n1");
    assert_eq!(ended(&world, told), ["/t/a", "/t/in/y", "/t/in/x", "/t/z"]);
    assert!(["/t/a", "/t/in/y", "/t/in/x", "/t/z"].iter().all(|path| world.node_of(path).as_deref() == Some("n2")));
}

#[test]
fn a_drain_moves_what_runs_there_and_costs_nothing() {
    let mut world = World::new(&["n1", "n2"]);
    world.apply(&tree("t", |_| {}, vec![permanent("a"), permanent("b"), permanent("c")]));
    assert_eq!(world.node_of("/t/a").as_deref(), Some("n1"));
    assert_eq!(drain(&mut world, "n1"), ["/t/a", "/t/c"]);
    assert_eq!(node_state(&world, "n1"), NodeState::Draining);
    world.settle();
    assert_eq!(node_state(&world, "n1"), NodeState::Drained);
    assert!(["/t/a", "/t/b", "/t/c"].iter().all(|path| world.node_of(path).as_deref() == Some("n2")));
    let last = world.last("/t/a");
    assert_eq!((last.cause.class, last.charged), (CauseClass::Stopped, false));
    assert_eq!(last.cause.message, "stopped for the drain of its node (SIGTERM)");
    assert_eq!(world.row("/t").restart_rate, 0);
    assert_eq!(drain(&mut world, "n1"), [""; 0], "said twice, nothing more is to do");
}

#[test]
fn a_drained_node_gets_no_work_until_it_is_undrained_and_nothing_moves_back() {
    let mut world = World::new(&["n1", "n2"]);
    drain(&mut world, "n1");
    world.apply(&tree("t", |_| {}, vec![permanent("a"), permanent("b")]));
    assert!(["/t/a", "/t/b"].iter().all(|path| world.node_of(path).as_deref() == Some("n2")));
    world.lose("n1");
    world.rejoin("n1");
    assert_eq!(node_state(&world, "n1"), NodeState::Drained, "a drain outlives the node's sessions");
    undrain(&mut world, "n1");
    assert!(["/t/a", "/t/b"].iter().all(|path| world.node_of(path).as_deref() == Some("n2")));
    world.apply(&tree("u", |_| {}, vec![permanent("x")]));
    assert_eq!(world.node_of("/u/x").as_deref(), Some("n1"));
}

#[test]
fn a_drain_without_room_elsewhere_waits_and_says_for_what() {
    let mut world = World::default();
    world.join("n1", 2, &[]);
    world.join("n2", 1, &[]);
    world.apply(&tree("t", |_| {}, vec![permanent("a"), permanent("b"), permanent("c")]));
    drain(&mut world, "n1");
    world.advance(Duration::from_secs(5));
    let there: Vec<&str> =
        ["/t/a", "/t/b", "/t/c"].into_iter().filter(|path| world.node_of(path).as_deref() == Some("n1")).collect();
    assert_eq!(there.len(), 2, "nothing is stopped that has no place to go");
    assert!(there.iter().all(|path| world.is_ready(path)));
    let waiting = world.row(there[0]).waiting.expect("it says what it waits for");
    assert_eq!(
        waiting,
        "room to leave n1, which is drained: no node can take it: n1 is drained, n2 has 0 of 1 slots free, 1 needed"
    );
    world.join("n3", 5, &[]);
    world.settle();
    assert_eq!(node_state(&world, "n1"), NodeState::Drained);
}

#[test]
fn a_drain_that_is_given_up_leaves_one_copy_of_everything() {
    let mut world = World::new(&["n1", "n2"]);
    world.apply(&tree("t", |root| root.colocate = false, vec![permanent("a"), permanent("b"), permanent("c")]));
    drain(&mut world, "n1"); // The runs are asked to end and have not yet.
    undrain(&mut world, "n1");
    let all = ["/t/a", "/t/b", "/t/c"];
    assert!(all.iter().all(|path| world.is_ready(path)));
    assert_eq!(world.sim.runners.values().map(|runner| runner.in_state(Local::Running).len()).sum::<usize>(), 3);
}

#[test]
fn a_child_that_crashes_while_it_waits_to_leave_restarts_where_it_is() {
    let mut world = World::default();
    world.join("n1", 1, &[]);
    world.apply(&tree("t", |_| {}, vec![permanent("a")]));
    drain(&mut world, "n1");
    world.crash("/t/a", 1);
    world.advance(Duration::from_secs(1));
    assert!(world.is_ready("/t/a"), "no other node could take it, and a drain must not cost it its life");
    assert_eq!(world.node_of("/t/a").as_deref(), Some("n1"));
}

#[test]
fn a_child_goes_back_to_its_drained_node_where_the_one_that_it_moves_to_is_lost_meanwhile() {
    let mut world = World::default();
    world.join("n1", 1, &[]);
    world.join("n2", 1, &[]);
    world.apply(&tree("t", |_| {}, vec![permanent("a")]));
    drain(&mut world, "n1"); // It is asked to end, and has not yet.
    world.lose("n2");
    world.settle();
    assert!(world.is_ready("/t/a"), "the room that it was to move to is gone, that of before is not");
    assert_eq!(world.node_of("/t/a").as_deref(), Some("n1"));
    world.join("n3", 1, &[]);
    world.settle();
    assert_eq!(world.node_of("/t/a").as_deref(), Some("n3"), "it went on waiting for room to leave");
}

/// A group of a, b and c, all on n1, which is drained and has room for no more; and no room elsewhere.
fn group_that_cannot_leave(strategy: Strategy, colocate: bool) -> World {
    let mut world = World::default();
    world.join("n1", 3, &[]);
    let children = vec![permanent("a"), permanent("b"), permanent("c")];
    world.apply(&tree("g", |root| (root.strategy, root.colocate) = (strategy, colocate), children));
    drain(&mut world, "n1");
    world.settle();
    world
}

const GROUP: [&str; 3] = ["/g/a", "/g/b", "/g/c"];

fn nodes_of(world: &World, paths: &[&str]) -> Vec<String> {
    paths.iter().map(|path| world.node_of(path).unwrap_or_else(|| "nowhere".into())).collect()
}

#[test]
fn a_group_whose_member_crashes_while_it_waits_to_leave_restarts_where_it_is_and_goes_on_waiting() {
    for (strategy, colocate) in [
        (Strategy::OneForAll, true),
        (Strategy::OneForAll, false),
        (Strategy::RestForOne, true),
        (Strategy::RestForOne, false),
    ] {
        let mut world = group_that_cannot_leave(strategy, colocate);
        for member in GROUP {
            world.crash(member, 1);
            world.advance(Duration::from_secs(3));
            assert!(GROUP.iter().all(|path| world.is_ready(path)), "{strategy:?} after a crash of {member}");
        }
        assert_eq!(nodes_of(&world, &GROUP), ["n1"; 3]);
        assert!(world.row("/g/a").waiting.is_some_and(|waiting| waiting.contains("room to leave n1")));
        world.join("n2", 3, &[]);
        world.advance(Duration::from_secs(1));
        assert_eq!(nodes_of(&world, &GROUP), ["n2"; 3], "{strategy:?}, colocate {colocate}");
        assert!(GROUP.iter().all(|path| world.is_ready(path)));
    }
}

#[test]
fn a_group_that_crashes_while_it_waits_to_leave_goes_elsewhere_where_there_is_room_by_then() {
    let mut world = group_that_cannot_leave(Strategy::OneForAll, true);
    world.crash("/g/a", 1); // b and c are asked to stop.
    world.join("n2", 3, &[]);
    world.advance(Duration::from_secs(3));
    assert_eq!(nodes_of(&world, &GROUP), ["n2"; 3]);
    assert_eq!(node_state(&world, "n1"), NodeState::Drained);
}

#[test]
fn a_group_that_one_of_it_cannot_be_started_in_goes_back_to_its_drained_node() {
    let mut world = group_that_cannot_leave(Strategy::OneForAll, true);
    world.crash("/g/a", 1);
    world.settle();
    world.sim.now += Duration::from_secs(1); // Its delay is over, and its runner has not heard of it.
    world.command(Command::Tick);
    world.exit("/g/a", ExitHow::StartFailed("text file busy".into()), Some(""));
    world.advance(Duration::from_secs(5));
    assert!(GROUP.iter().all(|path| world.is_ready(path)), "{:?}", world.row("/g"));
}

#[test]
fn a_member_that_had_ended_starts_again_beside_its_group_on_a_drained_node() {
    for colocate in [true, false] {
        let mut world = World::default();
        world.join("n1", 3, &[]);
        let children = vec![permanent("a"), with_restart("b", Restart::Transient), permanent("c")];
        world.apply(&tree("g", |root| (root.strategy, root.colocate) = (Strategy::OneForAll, colocate), children));
        world.crash("/g/b", 0);
        drain(&mut world, "n1");
        world.crash("/g/c", 1);
        world.advance(Duration::from_secs(3));
        assert!(GROUP.iter().all(|path| world.is_ready(path)), "colocate {colocate}: {:?}", world.row("/g"));
    }
}

#[test]
fn a_member_that_is_new_starts_with_its_group_where_that_goes_back_to() {
    for colocate in [true, false] {
        let mut world = World::default();
        world.join("n1", 2, &[]);
        world.join("n2", 2, &[]);
        let group =
            |children| tree("g", |root| (root.strategy, root.colocate) = (Strategy::OneForAll, colocate), children);
        world.apply(&group(vec![permanent("a")]));
        assert_eq!(world.node_of("/g/a").as_deref(), Some("n1"));
        drain(&mut world, "n2");
        drain(&mut world, "n1");
        world.apply(&group(vec![permanent("a"), permanent("b")]));
        let waiting = world.row("/g/b").waiting.expect("it is new work");
        assert!(waiting.contains("n1 is drained"), "{waiting}");
        world.crash("/g/a", 1);
        world.advance(Duration::from_secs(3));
        assert_eq!(nodes_of(&world, &["/g/a", "/g/b"]), ["n1"; 2], "colocate {colocate}: {:?}", world.row("/g"));
    }
}

#[test]
fn a_new_member_starts_beside_one_that_crashed_and_would_wait_for_it() {
    for colocate in [true, false] {
        let mut world = World::default();
        world.join("n1", 3, &[]);
        let group =
            |children| tree("g", |root| (root.strategy, root.colocate) = (Strategy::RestForOne, colocate), children);
        world.apply(&group(vec![permanent("a"), permanent("c")]));
        drain(&mut world, "n1");
        world.apply(&group(vec![permanent("a"), permanent("b"), permanent("c")]));
        assert!(world.is_ready("/g/c") && world.row("/g/b").waiting.is_some(), "{:?}", world.row("/g/b"));
        world.crash("/g/c", 1); // It starts after b.
        world.advance(Duration::from_secs(3));
        assert_eq!(nodes_of(&world, &GROUP), ["n1"; 3], "colocate {colocate}: {:?}", world.row("/g/b"));
        assert!(GROUP.iter().all(|path| world.is_ready(path)));
    }
}

#[test]
fn a_group_that_becomes_single_children_while_it_waits_goes_back_to_its_drained_node() {
    for strategy in [Strategy::OneForAll, Strategy::RestForOne] {
        let mut world = group_that_cannot_leave(strategy, false);
        world.crash("/g/a", 1);
        while !GROUP.iter().all(|path| world.run(path).is_none()) {
            world.advance(Duration::from_millis(1)); // The others stop, and its delay goes on.
        }
        let children = vec![permanent("a"), permanent("b"), permanent("c")];
        world.apply(&tree("g", |root| root.strategy = Strategy::OneForOne, children));
        world.advance(Duration::from_secs(3));
        assert!(GROUP.iter().all(|path| world.is_ready(path)), "{strategy:?}: {:?}", world.row("/g/a"));
    }
}

#[test]
fn a_way_back_outlives_a_spec_that_puts_it_out_of_use_for_a_while() {
    let mut world = World::default();
    world.join("n1", 1, &[]);
    world.join("n2", 1, &[]);
    let spec = |colocate| tree("t", |root| root.colocate = colocate, vec![permanent("a"), permanent("b")]);
    world.apply(&spec(false));
    assert_eq!(nodes_of(&world, &["/t/a", "/t/b"]), ["n1", "n2"]);
    drain(&mut world, "n1");
    world.crash("/t/a", 1);
    world.settle();
    world.sim.now += Duration::from_secs(1); // Its delay is over, and its runner has not heard of it.
    world.command(Command::Tick);
    world.exit("/t/a", ExitHow::StartFailed("text file busy".into()), Some(""));
    world.apply(&spec(true)); // From here on it is to be where b is.
    world.advance(Duration::from_secs(3));
    let waiting = world.row("/t/a").waiting.expect("n2 is full");
    assert!(waiting.contains("n2"), "{waiting}");
    world.apply(&spec(false));
    world.advance(Duration::from_secs(3));
    assert_eq!(nodes_of(&world, &["/t/a", "/t/b"]), ["n1", "n2"]);
    assert!(world.is_ready("/t/a") && world.is_ready("/t/b"));
}

#[test]
fn what_a_supervisor_starts_afresh_goes_back_to_a_drained_node_too() {
    let mut world = World::default();
    world.join("n1", 2, &[]);
    let pool = nested("pool", |_, pool| pool.intensity = budget(0, 10), vec![permanent("x"), permanent("y")]);
    world.apply(&tree("t", |_| {}, vec![pool]));
    drain(&mut world, "n1");
    let all = ["/t/pool/x", "/t/pool/y"];
    world.crash("/t/pool/x", 1); // Its budget is spent: all of the pool stops, and starts again.
    world.advance(Duration::from_secs(3));
    assert_eq!(world.count(EventKind::Escalated, "/t/pool"), 1);
    assert!(all.iter().all(|path| world.is_ready(path)), "{:?}", world.row("/t/pool"));
    world.restart("/t/pool");
    world.advance(Duration::from_secs(3));
    assert!(all.iter().all(|path| world.is_ready(path)), "{:?}", world.row("/t/pool"));
    world.stop("/t/pool/x");
    world.start("/t/pool/x");
    let waiting = world.row("/t/pool/x").waiting.expect("it says what it waits for");
    assert!(waiting.contains("n1 is drained"), "what was stopped is new work: {waiting}");
}

#[test]
fn a_child_that_stays_together_with_others_restarts_beside_them_on_a_full_drained_node() {
    let mut world = World::default();
    world.join("n1", 2, &[]);
    world.apply(&tree("t", |root| root.colocate = true, vec![permanent("a"), permanent("b")]));
    drain(&mut world, "n1");
    world.crash("/t/a", 1);
    world.advance(Duration::from_secs(2));
    assert!(world.is_ready("/t/a"), "what the others take there is not needed again: {:?}", world.row("/t/a"));
}

#[test]
fn what_waits_has_its_place_too_before_those_that_it_stays_with_leave() {
    let mut world = World::default();
    world.join("n1", 2, &[]);
    world.apply(&tree("t", |root| root.colocate = true, vec![permanent("a"), permanent("b")]));
    drain(&mut world, "n1");
    world.crash("/t/b", 1);
    world.settle();
    world.sim.now += Duration::from_secs(1);
    world.command(Command::Tick);
    world.exit("/t/b", ExitHow::StartFailed("text file busy".into()), Some("")); // It waits out its delay without a run.
    world.join("n2", 2, &[]);
    world.change(Change::Apply(tree("u", |_| {}, vec![permanent("x")]))).expect("it is a spec");
    world.advance(Duration::from_secs(3));
    assert_eq!(nodes_of(&world, &["/t/a", "/t/b"]), ["n2"; 2], "{:?}", world.row("/t/b"));
    assert!(world.row("/u/x").waiting.is_some(), "no room is left for it");
}

#[test]
fn a_group_leaves_two_drained_nodes_once_all_of_it_has_places() {
    for strategy in [Strategy::OneForAll, Strategy::RestForOne] {
        let mut world = World::default();
        for name in ["n1", "n2"] {
            world.join(name, 1, &[]);
        }
        world.apply(&tree("g", |root| root.strategy = strategy, vec![permanent("a"), permanent("b")]));
        drain(&mut world, "n1");
        drain(&mut world, "n2");
        world.join("n3", 1, &[]);
        world.advance(Duration::from_secs(2));
        assert!(world.is_ready("/g/a") && world.is_ready("/g/b"), "{strategy:?}: {:?}", world.row("/g"));
        world.join("n4", 1, &[]);
        world.advance(Duration::from_secs(2));
        let mut nodes = nodes_of(&world, &["/g/a", "/g/b"]);
        nodes.sort();
        assert_eq!(nodes, ["n3", "n4"], "{strategy:?}");
        assert!(world.is_ready("/g/a") && world.is_ready("/g/b"));
        assert_eq!(world.row("/g").restart_rate, 0, "nobody pays for a move");
    }
}

#[test]
fn a_group_of_two_drained_nodes_with_room_for_one_elsewhere_stays_up_and_says_what_is_missing() {
    let mut world = World::default();
    for name in ["n1", "n2"] {
        world.join(name, 1, &[]);
    }
    let children = || vec![permanent("a"), permanent("b")];
    world.apply(&tree("g", |root| root.strategy = Strategy::OneForAll, children()));
    let before = nodes_of(&world, &["/g/a", "/g/b"]);
    drain(&mut world, "n1");
    drain(&mut world, "n2");
    let told = world.sim.events.len();
    world.join("n3", 1, &[]);
    world.advance(Duration::from_secs(5));
    assert_eq!(nodes_of(&world, &["/g/a", "/g/b"]), before);
    assert_eq!(ended(&world, told), [""; 0]);
    let waiting = world.row("/g/a").waiting.expect("it says what it waits for");
    assert_eq!(waiting, "room to leave n1, which is drained: no room for all 2 that have to move together");
    world.crash("/g/b", 1);
    world.advance(Duration::from_secs(3));
    assert!(world.is_ready("/g/a") && world.is_ready("/g/b"), "a crash takes it down and not for good");
}

#[test]
fn a_member_that_had_ended_has_a_place_too_before_its_group_moves() {
    let mut world = World::default();
    world.join("n1", 2, &[]);
    let children = vec![permanent("a"), with_restart("b", Restart::Transient)];
    world.apply(&tree("g", |root| root.strategy = Strategy::OneForAll, children));
    world.crash("/g/b", 0);
    world.join("n2", 1, &[]);
    drain(&mut world, "n1");
    world.advance(Duration::from_secs(2));
    assert!(world.is_ready("/g/a"), "n2 cannot take b, which starts again with its group: {:?}", world.row("/g"));
    world.join("n3", 1, &[]);
    world.advance(Duration::from_secs(2));
    assert!(world.is_ready("/g/a") && world.is_ready("/g/b"));
    assert_eq!(node_state(&world, "n1"), NodeState::Drained);
}

#[test]
fn a_drain_of_a_group_that_is_given_up_half_way_leaves_one_copy_of_everything() {
    for strategy in [Strategy::OneForAll, Strategy::RestForOne] {
        let mut world = World::new(&["n1", "n2", "n3", "n4"]);
        let children = vec![permanent("a"), permanent("b"), permanent("c")];
        world.apply(&tree("g", |root| root.strategy = strategy, children));
        drain(&mut world, "n1");
        drain(&mut world, "n2"); // Its members are asked to end, and have not yet.
        undrain(&mut world, "n1");
        undrain(&mut world, "n2");
        world.advance(Duration::from_secs(2));
        assert!(GROUP.iter().all(|path| world.is_ready(path)));
        assert_eq!(world.sim.runners.values().map(|runner| runner.in_state(Local::Running).len()).sum::<usize>(), 3);
        assert_eq!(world.row("/g").restart_rate, 0);
    }
}

#[test]
fn a_group_on_its_way_to_a_node_that_is_drained_meanwhile_comes_up_all_the_same() {
    let mut world = World::default();
    world.join("n1", 3, &[]);
    let children = vec![permanent("a"), permanent("b"), permanent("c")];
    world.apply(&tree("g", |root| root.strategy = Strategy::OneForAll, children));
    world.join("n2", 3, &[]);
    drain(&mut world, "n1"); // All of it has places on n2.
    drain(&mut world, "n2");
    world.advance(Duration::from_secs(3));
    assert!(GROUP.iter().all(|path| world.is_ready(path)), "{:?}", world.row("/g"));
    undrain(&mut world, "n1");
    world.advance(Duration::from_secs(3));
    assert_eq!(nodes_of(&world, &GROUP), ["n1"; 3]);
    assert_eq!(node_state(&world, "n2"), NodeState::Drained);
}

#[test]
fn the_drain_of_a_members_node_triggers_its_strategy_uncharged() {
    let mut world = World::new(&["n1", "n2", "n3"]);
    world.apply(&tree(
        "g",
        |root| root.strategy = Strategy::RestForOne,
        vec![permanent("a"), permanent("b"), permanent("c")],
    ));
    let nodes = ["/g/a", "/g/b", "/g/c"].map(|path| world.node_of(path).unwrap());
    assert_eq!(nodes, ["n1", "n2", "n3"]);
    let told = world.sim.events.len();
    drain(&mut world, "n2");
    world.advance(Duration::from_secs(1));
    assert_eq!(ended(&world, told), ["/g/c", "/g/b"]);
    let after = ["/g/a", "/g/b", "/g/c"].map(|path| world.node_of(path).unwrap());
    assert_eq!((after[0].as_str(), after[2].as_str()), ("n1", "n3"), "the others keep their nodes");
    assert_ne!(after[1], "n2");
    assert_eq!(world.row("/g").restart_rate, 0);
}

#[test]
fn a_group_that_stays_together_leaves_a_drained_node_as_one() {
    let mut world = World::default();
    world.join("n1", 3, &[]);
    world.join("n2", 2, &[]);
    let children = || vec![permanent("a"), permanent("b"), permanent("c")];
    let group = tree("g", |root| (root.strategy, root.colocate) = (Strategy::OneForAll, true), children());
    world.apply(&group);
    drain(&mut world, "n1");
    world.advance(Duration::from_secs(1));
    let all = ["/g/a", "/g/b", "/g/c"];
    assert!(all.iter().all(|path| world.node_of(path).as_deref() == Some("n1")), "n2 cannot take all of it");
    world.join("n3", 3, &[]);
    world.advance(Duration::from_secs(1));
    assert!(all.iter().all(|path| world.node_of(path).as_deref() == Some("n3")));
    assert_eq!(node_state(&world, "n1"), NodeState::Drained);
}

#[test]
fn a_drain_that_is_said_again_names_what_has_left_and_is_not_ready_yet() {
    let mut world = World::new(&["n1", "n2"]);
    world.apply(&tree("t", |_| {}, vec![permanent("a"), permanent("b"), permanent("c")]));
    assert_eq!(drain(&mut world, "n1"), ["/t/a", "/t/c"]);
    world.silence("n2"); // What moves there is not started.
    world.settle();
    assert_eq!((world.node_of("/t/a").as_deref(), node_state(&world, "n1")), (Some("n2"), NodeState::Drained));
    assert_eq!(drain(&mut world, "n1"), ["/t/a", "/t/c"]);
    world.stop("/t/c");
    assert_eq!(drain(&mut world, "n1"), ["/t/a"], "nobody waits for what an operator stopped");
    world.sim.silent.clear();
    world.settle();
    assert_eq!(drain(&mut world, "n1"), [""; 0]);
}

#[test]
fn a_temporary_child_ends_with_the_drain_of_its_node() {
    let mut world = World::new(&["n1", "n2"]);
    world.apply(&tree("t", |_| {}, vec![with_restart("a", Restart::Temporary), permanent("b")]));
    drain(&mut world, "n1");
    world.settle();
    assert_eq!(world.row("/t/a").state, State::Finished);
}

#[test]
fn a_temporary_child_that_never_ran_is_run_elsewhere_where_its_node_is_drained_or_goes() {
    for goes in [true, false] {
        let mut world = World::new(&["n1", "n2"]);
        world
            .change(Change::Apply(tree("t", |_| {}, vec![with_restart("a", Restart::Temporary)])))
            .expect("it is accepted");
        let was = world.node_of("/t/a").expect("it is assigned");
        if goes {
            world.say(&was, Observation::Leaving);
        } else {
            drain(&mut world, &was);
        }
        world.settle();
        assert!(world.is_ready("/t/a"), "{goes}: {:?}", world.row("/t/a"));
        assert_ne!(world.node_of("/t/a"), Some(was));
    }
}

/// `web` is told to stop first, and takes its time; `job` was told nothing yet.
#[test]
fn what_ends_by_itself_on_a_node_that_goes_is_not_taken_for_stopped() {
    let going = || {
        let mut world = World::new(&["n1"]);
        world.apply(&tree("t", |_| {}, vec![with_restart("job", Restart::Transient), permanent("web")]));
        world.say("n1", Observation::Leaving);
        world.join("n2", 100, &[]);
        world
    };
    let mut world = going();
    world.exit("/t/job", ExitHow::Code(0), None);
    assert_eq!(world.row("/t/job").state, State::Finished, "its work is done, and not done again");

    let mut world = going();
    world.exit("/t/job", ExitHow::Code(1), None);
    assert_eq!(world.row("/t/job").restarts, 1, "a crash is a crash");

    // Its node is short of time, and stops it.
    let mut world = going();
    let incarnation = world.run("/t/job").expect("it runs").incarnation;
    world.say("n1", Observation::Stopping { path: path("/t/job"), incarnation });
    world.exit("/t/job", ExitHow::Code(0), None);
    world.settle();
    assert_eq!((world.node_of("/t/job").as_deref(), world.row("/t/job").restarts), (Some("n2"), 0));
    assert_eq!(world.last("/t/job").cause.message, "stopped by the shutdown of its node (exit code 0)");
}

#[test]
fn a_node_is_removed_only_once_it_is_known_to_be_gone() {
    let mut world = World::new(&["n1", "n2"]);
    world.apply(&tree("t", |_| {}, vec![permanent("a")]));
    let remove = |world: &mut World, name: &str| world.change(Change::RemoveNode(name.parse().unwrap()));
    let refused = remove(&mut world, "n1").unwrap_err().to_string();
    assert!(refused.contains("`pando node drain n1`"), "{refused}");
    let refused = remove(&mut world, "n2").unwrap_err().to_string();
    assert!(refused.contains("is up: stop its process first"), "{refused}");
    assert!(matches!(remove(&mut world, "n9"), Err(Rejection::NoSuchNode(_))));
    world.lose("n1");
    remove(&mut world, "n1").expect("it is gone");
    assert!(report::nodes(&world.sim.cluster).iter().all(|row| row.name.as_str() != "n1"));
}

#[test]
fn a_quarantined_child_stays_down_and_says_why() {
    let mut world = World::new(&["n1", "n2"]);
    world.apply(&tree("t", |_| {}, vec![process("a", |_, _| {}), permanent("b")]));
    world.lose("n1");
    world.settle();
    world.change(Change::Quarantine("/t/a".parse().unwrap())).expect("it can be quarantined");
    world.settle();
    let explained = report::explain(&world.sim.cluster, &"/t/a".parse().unwrap()).unwrap();
    assert_eq!(explained.now, "is quarantined by an operator, as dangerous to start");
    assert_eq!(explained.next, "nothing, until `pando start /t/a`");
    assert_eq!(explained.node_losses.len(), 1);
    world.restart("/t");
    assert_eq!(world.row("/t/a").state, State::Stopped);
    world.start("/t/a");
    assert!(world.is_ready("/t/a"));
    let explained = report::explain(&world.sim.cluster, &"/t/a".parse().unwrap()).unwrap();
    assert!(!explained.now.contains("quarantined"), "{}", explained.now);
}

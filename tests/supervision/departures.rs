//! Nodes that are emptied: told to go, drained, removed; and members that are quarantined.

use std::time::Duration;

use pando_protocol::cause::CauseClass;
use pando_protocol::message::{Change, DifferenceKind};
use pando_protocol::rejection::Rejection;
use pando_protocol::spec::{Restart, Strategy};
use pando_protocol::view::{NodeState, State};
use pando_supervision::desired::Local;
use pando_supervision::{EventKind, report};
use pando_tests::rules::specs::{nested, permanent, process, tree, with_restart};
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
fn a_temporary_child_ends_with_the_drain_of_its_node() {
    let mut world = World::new(&["n1", "n2"]);
    world.apply(&tree("t", |_| {}, vec![with_restart("a", Restart::Temporary), permanent("b")]));
    drain(&mut world, "n1");
    world.settle();
    assert_eq!(world.row("/t/a").state, State::Finished);
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

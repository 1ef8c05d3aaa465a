//! What a drain names.

use std::time::Duration;

use pando_protocol::cause::CauseClass;
use pando_protocol::message::Change;
use pando_protocol::spec::Strategy;
use pando_protocol::view::State;
use pando_tests::rules::specs::{budget, nested, permanent, process, tree};
use pando_tests::rules::world::World;

fn drain(world: &mut World, name: &str) -> Vec<String> {
    let changed = world.change(Change::Drain(name.parse().unwrap())).expect("it can be drained");
    changed.differences.iter().map(|difference| difference.path.to_string()).collect()
}

fn nodes_of(world: &World, paths: &[&str]) -> Vec<String> {
    paths.iter().map(|path| world.node_of(path).unwrap_or_else(|| "nowhere".into())).collect()
}

/// A cluster of n1 alone, with so many slots.
fn only_n1(slots: u32) -> World {
    let mut world = World::default();
    world.join("n1", slots, &[]);
    world
}

#[test]
fn a_drain_names_a_group_that_waits_out_its_delay_there() {
    for strategy in [Strategy::OneForAll, Strategy::RestForOne] {
        let mut world = only_n1(3);
        let inner = nested("in", |_, _| {}, vec![permanent("x")]);
        world.apply(&tree("g", |root| root.strategy = strategy, vec![permanent("a"), permanent("b"), inner]));
        world.crash("/g/a", 1);
        world.settle();
        let all = ["/g/a", "/g/b", "/g/in/x"];
        assert!(all.iter().all(|path| world.run(path).is_none()), "all of it is down, and its delay goes on");
        assert_eq!(drain(&mut world, "n1"), all, "{strategy:?}: they have no other place");
        assert_eq!(drain(&mut world, "n1"), all, "{strategy:?}: said again");
        world.advance(Duration::from_secs(2));
        assert_eq!(nodes_of(&world, &all), ["n1"; 3], "and so they went back");
    }
}

#[test]
fn a_drain_names_what_a_supervisor_will_start_afresh_there() {
    let mut world = only_n1(2);
    let pool = nested("pool", |_, pool| pool.intensity = budget(0, 10), vec![permanent("x"), permanent("y")]);
    world.apply(&tree("t", |_| {}, vec![pool]));
    let all = ["/t/pool/x", "/t/pool/y"];
    assert_eq!(drain(&mut world, "n1"), all);
    world.crash("/t/pool/x", 1); // Its budget is spent: all of the pool stops, and starts again after a delay.
    world.settle();
    assert_eq!(world.row("/t/pool").state, State::BackingOff);
    assert_eq!(drain(&mut world, "n1"), all);
    world.stop("/t/pool/y");
    assert_eq!(drain(&mut world, "n1"), ["/t/pool/x"], "nobody waits for what an operator stopped");
}

#[test]
fn a_drain_names_what_is_on_its_way_to_the_node() {
    let mut world = only_n1(1);
    world.apply(&tree("t", |_| {}, vec![permanent("a")]));
    world.join("n2", 1, &[]);
    drain(&mut world, "n1"); // It is asked to end, and its place is on n2.
    assert_eq!(drain(&mut world, "n2"), ["/t/a"], "it goes there where no other node has room by then");
    world.settle();
    assert!(world.is_ready("/t/a"));
}

#[test]
fn a_drain_names_what_spent_its_own_budget_there_and_is_not_ready_elsewhere() {
    let mut world = only_n1(2);
    let children = vec![process("a", |_, spec| spec.intensity = Some(budget(0, 10))), permanent("b")];
    world.apply(&tree("g", |root| root.strategy = Strategy::OneForAll, children));
    drain(&mut world, "n1");
    world.crash("/g/a", 1);
    world.settle();
    assert_eq!(world.last("/g/a").cause.class, CauseClass::Escalated);
    world.join("n2", 2, &[]);
    world.silence("n2"); // What goes there is not started.
    world.advance(Duration::from_secs(2));
    assert_eq!(nodes_of(&world, &["/g/a", "/g/b"]), ["n2", "nowhere"]);
    assert_eq!(drain(&mut world, "n1"), ["/g/a", "/g/b"]);
}

#[test]
fn a_drain_does_not_wait_for_what_left_before_and_could_not_run_there() {
    let mut world = only_n1(1);
    world.apply(&tree("t", |_| {}, vec![permanent("a")]));
    let elsewhere = |key: &str| {
        let label = key.parse().expect("a label");
        tree("t", |_| {}, vec![process("a", |_, spec| _ = spec.place.require.insert(label))])
    };
    world.apply(&elsewhere("disk=ssd"));
    assert!(world.row("/t/a").waiting.is_some_and(|waiting| waiting.contains("n1 lacks the label disk=ssd")));
    assert_eq!(drain(&mut world, "n1"), [""; 0], "no drain is in its way");
    assert_eq!(drain(&mut world, "n1"), [""; 0], "said again");
}

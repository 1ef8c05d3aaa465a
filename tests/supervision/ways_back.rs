//! What a drain names, and what goes back to a drained node, or starts there beside what does.

use std::time::Duration;

use pando_protocol::cause::{CauseClass, ExitHow};
use pando_protocol::message::Change;
use pando_protocol::spec::{ChildSpec, Restart, Strategy, TreeSpec};
use pando_protocol::view::State;
use pando_supervision::Command;
use pando_supervision::cluster::StopReason;
use pando_tests::rules::specs::{budget, nested, permanent, process, tree, with_restart};
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

/// The start of a run fails that its runner may not have heard of yet, once its delay is over.
fn refuse(world: &mut World, path: &str) {
    world.settle();
    world.sim.now += Duration::from_secs(1);
    world.command(Command::Tick);
    world.exit(path, ExitHow::StartFailed("text file busy".into()), Some(""));
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

/// a and what comes between it and c, where c starts after all of that.
fn rest_for_one(colocate: bool, between: Vec<ChildSpec>) -> TreeSpec {
    let children = [vec![permanent("a")], between, vec![permanent("c")]].concat();
    tree("g", |root| (root.strategy, root.colocate) = (Strategy::RestForOne, colocate), children)
}

fn under(strategy: Strategy, colocate: bool, ids: &[&str]) -> ChildSpec {
    let children = ids.iter().map(|id| permanent(id)).collect();
    nested("in", |_, spec| (spec.strategy, spec.colocate) = (strategy, colocate), children)
}

#[test]
fn what_is_new_deeper_in_a_group_starts_beside_one_that_crashed_and_would_wait_for_it() {
    let inner = [
        (Strategy::OneForOne, false),
        (Strategy::OneForOne, true),
        (Strategy::RestForOne, false),
        (Strategy::OneForAll, false),
        (Strategy::OneForAll, true),
    ];
    let all = ["/g/a", "/g/in/x", "/g/in/y", "/g/c"];
    for (strategy, together) in inner {
        for colocate in [true, false] {
            for before in [&[][..], &["x"], &["y"]] {
                let mut world = only_n1(4);
                let between = |ids: &[&str]| match ids {
                    [] => Vec::new(),
                    ids => vec![under(strategy, together, ids)],
                };
                world.apply(&rest_for_one(colocate, between(before)));
                drain(&mut world, "n1");
                world.apply(&rest_for_one(colocate, between(&["x", "y"])));
                let case = format!("{strategy:?}, {together}, in a group with colocate {colocate}, {before:?} before");
                assert!(world.is_ready("/g/c"), "{case}");
                assert!(all.iter().any(|path| world.run(path).is_none()), "what is new waits: {case}");
                world.crash("/g/c", 1);
                world.advance(Duration::from_secs(3));
                assert_eq!(nodes_of(&world, &all), ["n1"; 4], "{case}: {:?}", world.row("/g/c").waiting);
                assert!(all.iter().all(|path| world.is_ready(path)), "{case}");
                world.join("n2", 4, &[]);
                world.advance(Duration::from_secs(3));
                assert_eq!(nodes_of(&world, &all), ["n2"; 4], "{case}: they went on waiting for room to leave");
            }
        }
    }
}

#[test]
fn what_is_new_and_stands_behind_who_goes_back_is_given_no_drained_node() {
    let mut world = only_n1(4);
    let group = |children| tree("g", |root| (root.strategy, root.colocate) = (Strategy::RestForOne, false), children);
    world.apply(&group(vec![permanent("a"), permanent("b")]));
    drain(&mut world, "n1");
    world.crash("/g/b", 1);
    let inner = nested("in", |_, _| {}, vec![permanent("x")]);
    world.apply(&group(vec![permanent("a"), permanent("b"), inner]));
    world.advance(Duration::from_secs(3));
    assert!(world.is_ready("/g/a") && world.is_ready("/g/b"));
    let waiting = world.row("/g/in/x").waiting.expect("it is new work, and nobody waits for it");
    assert!(waiting.contains("n1 is drained"), "{waiting}");
}

#[test]
fn a_temporary_child_that_is_new_runs_beside_its_group_that_goes_back_until_that_leaves() {
    for strategy in [Strategy::OneForAll, Strategy::RestForOne] {
        for colocate in [true, false] {
            let mut world = only_n1(3);
            let group = |children| tree("g", |root| (root.strategy, root.colocate) = (strategy, colocate), children);
            world.apply(&group(vec![permanent("a"), permanent("c")]));
            drain(&mut world, "n1");
            let children = vec![permanent("a"), with_restart("once", Restart::Temporary), permanent("c")];
            world.apply(&group(children));
            assert!(world.row("/g/once").waiting.is_some(), "it is new work");
            world.crash("/g/c", 1);
            world.advance(Duration::from_secs(3));
            let all = ["/g/a", "/g/once", "/g/c"];
            let case = format!("{strategy:?}, colocate {colocate}");
            assert_eq!(nodes_of(&world, &all), ["n1"; 3], "{case}: {:?}", world.row("/g/once"));
            assert!(all.iter().all(|path| world.is_ready(path)), "{case}");
            world.join("n2", 2, &[]);
            world.advance(Duration::from_secs(3));
            assert_eq!(nodes_of(&world, &all), ["n2", "nowhere", "n2"], "{case}");
            assert_eq!(world.row("/g/once").state, State::Finished, "{case}: it is never started again");
            assert!(world.is_ready("/g/a") && world.is_ready("/g/c"), "{case}");
        }
    }
}

#[test]
fn a_temporary_child_that_stands_before_those_that_leave_ends_with_them() {
    let mut world = only_n1(2);
    let children = vec![with_restart("once", Restart::Temporary), permanent("c")];
    world.apply(&tree("g", |root| root.strategy = Strategy::RestForOne, children));
    drain(&mut world, "n1");
    world.advance(Duration::from_secs(1));
    assert!(world.is_ready("/g/once"), "its group has no other place, so nothing is won by its end");
    world.join("n2", 2, &[]);
    world.advance(Duration::from_secs(1));
    assert_eq!((world.row("/g/once").state, nodes_of(&world, &["/g/c"])), (State::Finished, vec!["n2".into()]));
}

#[test]
fn a_temporary_child_whose_group_is_elsewhere_or_stopped_ends_at_once() {
    let mut world = only_n1(1);
    world.join("n2", 1, &[]);
    let children = vec![permanent("a"), with_restart("once", Restart::Temporary)];
    world.apply(&tree("g", |root| root.strategy = Strategy::RestForOne, children));
    assert_eq!(nodes_of(&world, &["/g/a", "/g/once"]), ["n1", "n2"]);
    drain(&mut world, "n2");
    world.settle();
    assert_eq!(world.row("/g/once").state, State::Finished);

    let mut world = only_n1(2);
    let children = vec![with_restart("once", Restart::Temporary), permanent("c")];
    world.apply(&tree("g", |root| root.strategy = Strategy::RestForOne, children));
    drain(&mut world, "n1");
    world.settle();
    assert!(world.is_ready("/g/once"));
    world.stop("/g/c");
    assert_eq!(world.row("/g/once").state, State::Finished, "nothing else of its group is to go on there");
}

#[test]
fn what_stays_together_needs_no_room_for_a_temporary_child_that_ends() {
    for strategy in [Strategy::OneForOne, Strategy::RestForOne] {
        let mut world = only_n1(2);
        let children = vec![with_restart("once", Restart::Temporary), permanent("a")];
        world.apply(&tree("t", |root| (root.strategy, root.colocate) = (strategy, true), children));
        world.join("n2", 1, &[]);
        drain(&mut world, "n1");
        let stopping = world.run("/t/a").and_then(|run| run.stopping);
        assert_eq!(stopping, Some(StopReason::Drain), "{strategy:?}: n2 has room for it");
        world.advance(Duration::from_secs(1));
        assert_eq!((world.row("/t/once").state, nodes_of(&world, &["/t/a"])), (State::Finished, vec!["n2".into()]));
    }
}

#[test]
fn a_way_back_outlives_a_changed_spec_while_others_are_elsewhere() {
    let mut world = only_n1(1);
    world.join("n2", 1, &[]);
    let spec = |colocate, version: &str| {
        let a = process("a", |_, spec| spec.command.args = vec![version.into()]);
        tree("t", |root| root.colocate = colocate, vec![a, permanent("b")])
    };
    world.apply(&spec(false, "1"));
    assert_eq!(nodes_of(&world, &["/t/a", "/t/b"]), ["n1", "n2"]);
    drain(&mut world, "n1");
    world.crash("/t/a", 1);
    refuse(&mut world, "/t/a");
    world.apply(&spec(true, "1")); // From here on it is to be where b is.
    world.apply(&spec(true, "2"));
    world.advance(Duration::from_secs(3));
    assert!(world.row("/t/a").waiting.is_some_and(|waiting| waiting.contains("n2")));
    world.apply(&spec(false, "2"));
    world.advance(Duration::from_secs(3));
    assert_eq!(nodes_of(&world, &["/t/a", "/t/b"]), ["n1", "n2"]);
}

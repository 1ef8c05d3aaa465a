//! Where children run, and what those that run nowhere wait for.

use pando_protocol::cause::ExitHow;
use pando_protocol::ids::NodeName;
use pando_protocol::message::Change;
use pando_protocol::spec::{ChildSpec, Strategy, SupervisorSpec};
use pando_protocol::view::State;
use pando_supervision::EventKind;
use pando_tests::rules::specs::{permanent, process, tree};
use pando_tests::rules::world::World;

fn placed(id: &str, edit: impl FnOnce(&mut pando_protocol::spec::ProcessSpec)) -> ChildSpec {
    process(id, |_, spec| edit(spec))
}

fn zones() -> World {
    let mut world = World::new(&[]);
    world.join("n1", 4, &["zone=a"]);
    world.join("n2", 4, &["zone=b", "disk=ssd"]);
    world.join("n3", 4, &["zone=b"]);
    world
}

fn nodes(world: &World, children: &[&str]) -> Vec<String> {
    children.iter().map(|child| world.node_of(&format!("/t/{child}")).unwrap_or_default()).collect()
}

#[test]
fn children_go_to_the_node_with_the_fewest_and_then_by_name() {
    let mut world = zones();
    world.apply(&tree("t", |_| {}, ["a", "b", "c", "d"].map(permanent).into()));
    assert_eq!(nodes(&world, &["a", "b", "c", "d"]), ["n1", "n2", "n3", "n1"]);
}

#[test]
fn required_labels_decide_and_preferred_ones_order() {
    let mut world = zones();
    let only = placed("a", |spec| _ = spec.place.require.insert("zone=b".parse().unwrap()));
    let rather = placed("b", |spec| _ = spec.place.prefer.insert("disk=ssd".parse().unwrap()));
    let also = placed("c", |spec| _ = spec.place.prefer.insert("zone=z".parse().unwrap()));
    world.apply(&tree("t", |_| {}, vec![only, rather, also]));
    assert_eq!(nodes(&world, &["a", "b", "c"]), ["n2", "n2", "n1"]);
}

#[test]
fn siblings_with_the_same_spread_key_go_to_different_values_of_the_label() {
    let mut world = World::new(&[]);
    for (name, zone) in [("n1", "zone=a"), ("n2", "zone=a"), ("n3", "zone=b"), ("n4", "zone=c")] {
        world.join(name, 9, &[zone]);
    }
    world.apply(&tree("t", |_| {}, ["a", "b", "c", "d"].map(spread).into()));
    assert_eq!(nodes(&world, &["a", "b", "c", "d"]), ["n1", "n3", "n4", "n2"]);
}

fn spread(id: &str) -> ChildSpec {
    placed(id, |spec| spec.place.spread = Some("zone".into()))
}

/// The zones in which these run.
fn zones_of(world: &World, children: &[&str]) -> Vec<String> {
    let labels = |node: String| world.sim.cluster.nodes[&node.parse::<NodeName>().unwrap()].labels.clone();
    nodes(world, children).into_iter().map(|node| labels(node).first().unwrap().value.clone()).collect()
}

#[test]
fn members_of_a_group_that_get_their_places_together_are_spread() {
    let mut world = World::new(&[]);
    for (name, zone) in [("n1", "zone=a"), ("n2", "zone=a"), ("n3", "zone=b"), ("n4", "zone=c")] {
        world.join(name, 9, &[zone]);
    }
    let all = ["a", "b", "c"];
    let group = |root: &mut SupervisorSpec| (root.strategy, root.colocate) = (Strategy::OneForAll, false);
    world.apply(&tree("t", group, all.map(spread).into()));
    assert_eq!(zones_of(&world, &all), ["a", "b", "c"]);
    assert_eq!(nodes(&world, &all), ["n1", "n3", "n4"], "a place that is kept counts like a run");
}

#[test]
fn siblings_that_leave_a_drained_node_together_are_spread() {
    let mut world = World::new(&[]);
    world.join("n1", 9, &["zone=a"]);
    let all = ["a", "b", "c"];
    world.apply(&tree("t", |_| {}, all.map(spread).into()));
    for (name, zone) in [("n2", "zone=b"), ("n3", "zone=b"), ("n4", "zone=b"), ("n5", "zone=c"), ("n6", "zone=d")] {
        world.join(name, 9, &[zone]);
    }
    world.change(Change::Drain("n1".parse().unwrap())).expect("it is drained");
    world.settle();
    assert_eq!(zones_of(&world, &all), ["b", "c", "d"]);
}

#[test]
fn slots_are_counted_and_what_finds_no_room_says_why_and_is_placed_when_some_is_freed() {
    let mut world = World::new(&[]);
    world.join("n1", 3, &[]);
    let big = placed("b", |spec| spec.slots = 2);
    world.apply(&tree("t", |_| {}, vec![placed("a", |spec| spec.slots = 2), big]));
    let row = world.row("/t/b");
    assert_eq!(row.state, State::Waiting);
    assert_eq!(row.waiting.as_deref(), Some("no node can take it: n1 has 1 of 3 slots free, 2 needed"));
    assert_eq!(world.count(EventKind::ChildWaiting, "/t/b"), 1);
    world.stop("/t/a");
    assert!(world.is_ready("/t/b"));
}

#[test]
fn every_reason_to_wait_names_the_nodes_and_what_each_lacks() {
    let mut world = World::new(&[]);
    let picky = placed("a", |spec| {
        spec.place.require.insert("zone=b".parse().unwrap());
        spec.slots = 2;
    });
    world.apply(&tree("t", |_| {}, vec![picky]));
    assert_eq!(world.row("/t/a").waiting.as_deref(), Some("no node has joined yet"));
    world.join("n1", 4, &["zone=a"]);
    world.join("n2", 1, &["zone=b"]);
    world.join("n3", 4, &["zone=b"]);
    world.lose("n3");
    world.settle();
    let expected = "no node can take it: n1 lacks the label zone=b, n2 has 1 of 1 slots free, 2 needed, n3 is down";
    assert_eq!(world.row("/t/a").waiting.as_deref(), Some(expected));
    world.rejoin("n3");
    world.settle();
    assert!(world.is_ready("/t/a"));
}

#[test]
fn children_that_wait_are_placed_in_the_order_in_which_they_began() {
    let mut world = World::new(&[]);
    world.apply(&tree("t", |_| {}, ["z", "y", "x"].map(permanent).into()));
    world.join("n1", 2, &[]);
    world.settle();
    assert_eq!(nodes(&world, &["z", "y", "x"]), ["n1", "n1", ""]);
}

#[test]
fn a_crash_restart_stays_on_its_node_and_keeps_its_room() {
    let mut world = World::new(&[]);
    world.join("n1", 1, &[]);
    world.apply(&tree("t", |_| {}, vec![permanent("a"), permanent("b")]));
    world.crash("/t/a", 1);
    assert_eq!((world.node_of("/t/a").as_deref(), world.row("/t/b").state), (Some("n1"), State::Waiting));
    world.join("n2", 9, &[]);
    world.settle();
    world.advance_to_run("/t/a");
    world.crash("/t/a", 1);
    assert_eq!(world.node_of("/t/a").as_deref(), Some("n1"));
}

#[test]
fn nothing_moves_back_by_itself() {
    let mut world = zones();
    world.apply(&tree("t", |_| {}, vec![permanent("a")]));
    world.lose("n1");
    world.settle();
    world.rejoin("n1");
    world.settle();
    assert_eq!(world.node_of("/t/a").as_deref(), Some("n2"));
}

#[test]
fn a_node_that_refused_a_child_gets_it_again_rather_than_nobody() {
    let mut world = World::new(&[]);
    world.join("n1", 2, &[]);
    world.join("n2", 1, &[]);
    world.apply(&tree("t", |_| {}, vec![permanent("a")]));
    world.exit("/t/a", ExitHow::StartFailed("no".into()), None);
    assert_eq!(world.node_of("/t/a").as_deref(), Some("n2"));
    world.lose("n2");
    world.settle();
    assert_eq!(world.node_of("/t/a").as_deref(), Some("n1"));
}

#[test]
fn a_child_that_needs_more_slots_than_numbers_go_waits_like_any_other() {
    let mut world = World::new(&[]);
    world.join("n1", u32::MAX, &[]);
    world.apply(&tree("t", |_| {}, vec![permanent("a"), placed("b", |spec| spec.slots = u32::MAX)]));
    assert_eq!(world.row("/t/b").state, State::Waiting);
}

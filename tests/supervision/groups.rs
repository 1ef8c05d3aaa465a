//! Groups: `one_for_all` and `rest_for_one`, on one node and across nodes.

use std::time::Duration;

use pando_protocol::cause::{CauseClass, ExitHow};
use pando_protocol::message::Change;
use pando_protocol::spec::{ChildSpec, Restart, Strategy, TreeSpec};
use pando_protocol::view::State;
use pando_supervision::EventKind;
use pando_tests::rules::specs::{budget, nested, permanent, process, tree, with_restart};
use pando_tests::rules::world::World;

fn group(strategy: Strategy, children: Vec<ChildSpec>) -> TreeSpec {
    tree("g", |root| (root.strategy, root.colocate) = (strategy, strategy.is_group()), children)
}

/// The same with members that need not stay together.
fn spread_group(strategy: Strategy, children: Vec<ChildSpec>) -> TreeSpec {
    tree("g", |root| root.strategy = strategy, children)
}

/// A child that must run on this node.
fn on(id: &str, node: &str) -> ChildSpec {
    let label = format!("at={node}").parse().expect("a label");
    process(id, |_, spec| spec.place.require = [label].into())
}

/// Three nodes, and a group with one member on each: a on n1, b on n2, c on n3.
fn across_nodes(strategy: Strategy) -> World {
    let mut world = World::default();
    for name in ["n1", "n2", "n3"] {
        world.join(name, 10, &[&format!("at={name}")]);
    }
    world.apply(&spread_group(strategy, vec![on("a", "n1"), on("b", "n2"), on("c", "n3")]));
    world
}

/// The order in which things happened to children since event `after`, as `a ended`, `a started`, `a ready`.
fn story(world: &World, after: usize) -> Vec<String> {
    let word = |kind| match kind {
        EventKind::ChildExited => Some("ended"),
        EventKind::ChildStarted => Some("started"),
        EventKind::ChildReady => Some("ready"),
        _ => None,
    };
    let told = world.sim.events[after..].iter();
    told.filter_map(|event| Some(format!("{} {}", event.path.as_ref()?.name(), word(event.kind)?))).collect()
}

fn numbers(world: &World, paths: &[&str]) -> Vec<u64> {
    paths.iter().map(|path| world.run(path).expect("it runs").incarnation.0).collect()
}

const ALL: [&str; 3] = ["/g/a", "/g/b", "/g/c"];

/// A member crashes, the others are told to stop, and before they have, a new spec takes out the crashed one or puts it last.
#[test]
fn what_a_group_takes_down_goes_down_also_where_a_new_spec_moves_it() {
    for list in [&["b", "c"][..], &["b", "c", "a"], &["n", "c", "b"]] {
        let mut world = World::new(&["n1"]);
        let of = |list: &[&str]| group(Strategy::OneForAll, list.iter().map(|id| permanent(id)).collect());
        world.apply(&of(&["a", "b", "c"]));
        let before = numbers(&world, &["/g/b", "/g/c"]);
        world.crash("/g/a", 1);
        world.change(Change::Apply(of(list))).expect("it is accepted");
        for _ in 0..20 {
            world.settle();
            world.advance(Duration::from_millis(500));
        }
        for (path, before) in ["/g/b", "/g/c"].into_iter().zip(before) {
            assert!(
                world.is_ready(path) && world.run(path).expect("it runs").incarnation.0 > before,
                "{path}, {list:?}"
            );
        }
    }
}

#[test]
fn a_group_starts_in_order_each_after_the_one_before_is_ready() {
    let mut world = World::new(&["n1"]);
    world
        .change(Change::Apply(group(Strategy::OneForAll, vec![permanent("a"), permanent("b"), permanent("c")])))
        .unwrap();
    assert_eq!(world.row("/g/a").state, State::Starting);
    assert_eq!(world.row("/g/b").state, State::Waiting);
    assert_eq!(world.row("/g/c").waiting.as_deref(), Some("/g/a is ready, which starts before it"));
    world.settle();
    assert_eq!(story(&world, 0), ["a started", "a ready", "b started", "b ready", "c started", "c ready"]);
    assert_eq!(world.count(EventKind::GroupStarted, "/g"), 1);
}

#[test]
fn one_for_all_takes_all_down_in_reverse_and_starts_all_in_order() {
    let mut world = across_nodes(Strategy::OneForAll);
    let told = world.sim.events.len();
    world.crash("/g/b", 1);
    world.advance(Duration::from_secs(1));
    assert_eq!(
        story(&world, told),
        ["b ended", "c ended", "a ended", "a started", "a ready", "b started", "b ready", "c started", "c ready"]
    );
    let charged: Vec<bool> = ALL.iter().map(|path| world.last(path).charged).collect();
    assert_eq!(charged, [false, true, false]);
    assert_eq!(world.last("/g/a").cause.message, "stopped because its group restarts (SIGTERM)");
}

#[test]
fn rest_for_one_restarts_the_failed_child_and_all_after_it() {
    let mut world = across_nodes(Strategy::RestForOne);
    let (told, before) = (world.sim.events.len(), numbers(&world, &ALL));
    world.crash("/g/b", 1);
    world.advance(Duration::from_secs(1));
    assert_eq!(story(&world, told), ["b ended", "c ended", "b started", "b ready", "c started", "c ready"]);
    assert_eq!(numbers(&world, &["/g/a"]), before[..1], "what starts before it is not touched");

    let told = world.sim.events.len();
    world.crash("/g/a", 1);
    world.advance(Duration::from_secs(1));
    assert_eq!(
        story(&world, told),
        ["a ended", "c ended", "b ended", "a started", "a ready", "b started", "b ready", "c started", "c ready"]
    );
}

#[test]
fn the_next_generation_waits_until_the_former_is_known_to_have_ended() {
    let mut world = across_nodes(Strategy::OneForAll);
    world.silence("n3"); // Its runner hears nothing and says nothing; c runs on.
    world.crash("/g/a", 1);
    world.advance(Duration::from_secs(5));
    assert_eq!(world.row("/g/a").state, State::Waiting);
    assert_eq!(world.row("/g/a").waiting.as_deref(), Some("/g/c stops"));
    assert!(world.run("/g/b").is_some(), "b is stopped after c");
    world.lose("n3");
    world.sim.silent.clear();
    world.advance(Duration::from_secs(5));
    assert!(world.run("/g/a").is_none(), "c has no node that it can run on");
    assert!(world.row("/g").waiting.is_some_and(|waiting| waiting.contains("/g/c has no place")));
    world.join("n3", 10, &["at=n3"]);
    world.advance(Duration::from_secs(1));
    assert!(ALL.iter().all(|path| world.is_ready(path)));
}

#[test]
fn a_group_restart_is_charged_once_whatever_else_ends_meanwhile() {
    let mut world = across_nodes(Strategy::OneForAll);
    world.crash("/g/b", 1);
    world.crash("/g/a", 1);
    world.crash("/g/c", 1);
    world.advance(Duration::from_secs(1));
    assert_eq!(world.row("/g").restart_rate, 1);
    assert_eq!(world.last("/g/a").payer, "nobody: its group restarts");
    assert!(ALL.iter().all(|path| world.is_ready(path)));
}

#[test]
fn an_earlier_member_that_fails_widens_a_running_restart_at_no_further_charge() {
    let mut world = across_nodes(Strategy::RestForOne);
    let told = world.sim.events.len();
    world.crash("/g/b", 1); // c is asked to stop and has not ended.
    world.crash("/g/a", 1);
    assert_eq!(world.last("/g/a").payer, "nobody: its group restarts already, and that is paid for");
    world.advance(Duration::from_secs(1));
    assert_eq!(
        story(&world, told),
        ["b ended", "a ended", "c ended", "a started", "a ready", "b started", "b ready", "c started", "c ready"]
    );
    assert_eq!(world.row("/g").restart_rate, 1);
}

#[test]
fn an_earlier_member_that_fails_while_its_group_waits_out_its_delay_costs_nothing_more() {
    let mut world = across_nodes(Strategy::RestForOne);
    world.crash("/g/b", 1);
    world.settle(); // c has stopped.
    assert!(world.run("/g/c").is_none() && world.is_ready("/g/a"));
    world.crash("/g/a", 1);
    assert_eq!(world.last("/g/a").payer, "nobody: its group restarts already, and that is paid for");
    world.advance(Duration::from_secs(1));
    assert!(ALL.iter().all(|path| world.is_ready(path)));
    assert_eq!(world.row("/g").restart_rate, 1);
    world.crash("/g/a", 1);
    assert!(world.last("/g/a").charged, "the new generation had begun");
}

#[test]
fn a_crash_that_costs_nothing_is_followed_by_a_delay_all_the_same() {
    let mut world = across_nodes(Strategy::RestForOne);
    world.crash("/g/b", 1);
    world.lose("n3");
    world.advance(Duration::from_secs(5));
    assert_eq!(world.row("/g").state, State::Waiting, "c has no node that it can run on");
    world.crash("/g/a", 1);
    world.join("n3", 10, &["at=n3"]);
    world.settle();
    assert!(world.run("/g/a").is_none());
    assert_eq!(world.last("/g/a").decision.split(" after ").next(), Some("/g restarts with it"));
    world.advance(Duration::from_secs(1));
    assert!(ALL.iter().all(|path| world.is_ready(path)));
    assert_eq!(world.row("/g").restart_rate, 1);
}

#[test]
fn the_budget_of_a_group_counts_restarts_and_not_members() {
    let mut world = World::new(&["n1"]);
    let children = vec![permanent("a"), permanent("b")];
    world.apply(&tree("g", |root| (root.strategy, root.intensity) = (Strategy::OneForAll, budget(2, 60)), children));
    for _ in 0..2 {
        world.crash("/g/a", 1);
        world.advance(Duration::from_secs(2));
        assert!(world.is_ready("/g/b"));
    }
    world.crash("/g/b", 1);
    world.advance(Duration::from_secs(2));
    assert_eq!(world.row("/g").state, State::Failed);
}

#[test]
fn the_loss_of_a_members_node_triggers_the_strategy_and_costs_nothing() {
    let mut world = World::new(&["n1", "n2", "n3"]);
    world.apply(&spread_group(Strategy::OneForAll, vec![permanent("a"), permanent("b"), permanent("c")]));
    let before = numbers(&world, &ALL);
    let lost = world.row("/g/b").node.expect("it runs");
    world.lose(lost.as_str());
    world.advance(Duration::from_secs(1));
    let after = numbers(&world, &ALL);
    assert!(before.iter().zip(&after).all(|(before, after)| after > before), "{before:?} {after:?}");
    assert_eq!(world.row("/g").restart_rate, 0);
    assert_eq!(world.last("/g/b").cause.class, CauseClass::NodeLost);
    assert!(!world.last("/g/b").charged);
}

#[test]
fn an_operators_stop_of_a_member_leaves_the_others_alone_and_its_start_too() {
    let mut world = across_nodes(Strategy::OneForAll);
    let before = numbers(&world, &["/g/a", "/g/c"]);
    world.stop("/g/b");
    world.start("/g/b");
    assert!(world.is_ready("/g/b"));
    world.restart("/g/b");
    assert!(world.is_ready("/g/b"));
    assert_eq!(numbers(&world, &["/g/a", "/g/c"]), before);
}

#[test]
fn a_member_that_an_operator_stopped_stays_down_when_its_group_restarts() {
    let mut world = across_nodes(Strategy::OneForAll);
    world.stop("/g/b");
    world.crash("/g/a", 1);
    world.advance(Duration::from_secs(1));
    assert!(world.is_ready("/g/a") && world.is_ready("/g/c"));
    assert_eq!(world.row("/g/b").state, State::Stopped);
}

#[test]
fn temporary_children_that_their_group_takes_down_are_gone_and_others_return() {
    let mut world = World::new(&["n1"]);
    let children = vec![permanent("a"), with_restart("b", Restart::Temporary), with_restart("c", Restart::Transient)];
    world.apply(&group(Strategy::OneForAll, children));
    world.crash("/g/c", 0);
    world.settle();
    assert_eq!(world.row("/g/c").state, State::Finished, "a normal ending of a transient child restarts nothing");
    assert!(world.is_ready("/g/a") && world.is_ready("/g/b"));
    world.crash("/g/a", 1);
    world.advance(Duration::from_secs(1));
    assert_eq!(world.row("/g/b").state, State::Finished);
    assert!(world.is_ready("/g/a") && world.is_ready("/g/c"), "the next generation is a fresh one");
}

#[test]
fn a_temporary_member_that_crashes_restarts_nothing() {
    let mut world = World::new(&["n1"]);
    world.apply(&group(Strategy::OneForAll, vec![permanent("a"), with_restart("b", Restart::Temporary)]));
    let before = numbers(&world, &["/g/a"]);
    world.crash("/g/b", 1);
    world.advance(Duration::from_secs(1));
    assert_eq!(numbers(&world, &["/g/a"]), before);
}

#[test]
fn a_group_that_stays_together_moves_as_one() {
    let mut world = World::new(&["n1", "n2"]);
    world.apply(&group(Strategy::OneForAll, vec![permanent("a"), permanent("b"), permanent("c")]));
    let nodes = |world: &World| ALL.map(|path| world.row(path).node.expect("it runs").to_string());
    assert_eq!(nodes(&world), ["n1"; 3]);
    world.lose("n1");
    world.advance(Duration::from_secs(1));
    assert_eq!(nodes(&world), ["n2"; 3]);
}

#[test]
fn a_group_that_stays_together_waits_for_a_node_that_can_take_all_of_it_and_says_so() {
    let mut world = World::default();
    world.join("n1", 2, &[]);
    world.join("n2", 2, &[]);
    let children = || vec![permanent("a"), permanent("b"), permanent("c")];
    world.apply(&group(Strategy::OneForAll, children()));
    assert_eq!(world.row("/g").state, State::Waiting);
    let waiting = world.row("/g").waiting.expect("it waits");
    assert!(waiting.contains("n1 has 2 of 2 slots free, /g needs 3 as a whole"), "{waiting}");
    assert!(ALL.iter().all(|path| world.run(path).is_none()), "no member starts without the others");
    world.join("n3", 3, &[]);
    world.settle();
    assert!(ALL.iter().all(|path| world.is_ready(path)));
}

#[test]
fn places_are_kept_for_members_whose_turn_has_not_come() {
    let mut world = World::default();
    world.join("n1", 2, &[]);
    world.change(Change::Apply(group(Strategy::OneForAll, vec![permanent("a"), permanent("b")]))).unwrap();
    world.change(Change::Apply(tree("t", |_| {}, vec![permanent("x")]))).unwrap();
    assert_eq!(world.row("/t/x").state, State::Waiting, "the second slot is kept for /g/b");
    world.settle();
    assert!(world.is_ready("/g/b"));
}

#[test]
fn a_restarted_group_keeps_its_nodes() {
    let mut world = across_nodes(Strategy::OneForAll);
    world.apply(&tree("t", |_| {}, vec![permanent("x")]));
    let nodes = |world: &World| ALL.map(|path| world.row(path).node.expect("it runs").to_string());
    let before = nodes(&world);
    world.crash("/g/c", 1);
    world.advance(Duration::from_secs(1));
    assert_eq!(nodes(&world), before);
}

#[test]
fn a_supervisor_in_a_group_is_ready_when_all_below_it_is() {
    let mut world = World::new(&["n1"]);
    let pool = nested("pool", |_, _| {}, vec![permanent("x"), permanent("y")]);
    world.apply(&group(Strategy::RestForOne, vec![permanent("a"), pool, permanent("c")]));
    assert_eq!(
        story(&world, 0),
        ["a started", "a ready", "x started", "y started", "x ready", "y ready", "c started", "c ready"]
    );
    let told = world.sim.events.len();
    world.crash("/g/pool/x", 1);
    world.advance(Duration::from_secs(1));
    assert_eq!(story(&world, told), ["x ended", "x started", "x ready"], "what is below a member is its own affair");
}

#[test]
fn a_supervisor_that_fails_takes_its_group_along() {
    let mut world = World::new(&["n1"]);
    let pool = nested("pool", |_, spec| spec.intensity = budget(0, 10), vec![permanent("x")]);
    world.apply(&group(Strategy::RestForOne, vec![permanent("a"), pool, permanent("c")]));
    let (told, before) = (world.sim.events.len(), numbers(&world, &["/g/a"]));
    world.crash("/g/pool/x", 1);
    world.advance(Duration::from_secs(1));
    assert_eq!(story(&world, told), ["x ended", "c ended", "x started", "x ready", "c started", "c ready"]);
    assert_eq!(numbers(&world, &["/g/a"]), before);
    assert_eq!(world.row("/g").restart_rate, 1);
}

#[test]
fn a_node_that_goes_stops_its_group_in_reverse_order_and_it_starts_elsewhere() {
    let mut world = World::new(&["n1", "n2"]);
    world.apply(&group(Strategy::OneForAll, vec![permanent("a"), permanent("b"), permanent("c")]));
    let told = world.sim.events.len();
    world.leave("n1");
    world.advance(Duration::from_secs(1));
    assert_eq!(
        story(&world, told),
        ["c ended", "b ended", "a ended", "a started", "a ready", "b started", "b ready", "c started", "c ready"]
    );
    assert_eq!(world.last("/g/b").cause.message, "stopped by the shutdown of its node (SIGTERM)");
    assert_eq!(world.row("/g/a").node.map(|node| node.to_string()).as_deref(), Some("n2"));
    assert_eq!(world.row("/g").restart_rate, 0);
}

#[test]
fn a_group_moves_to_another_node_where_one_of_it_cannot_be_started() {
    let mut world = World::new(&["n1", "n2"]);
    world.change(Change::Apply(group(Strategy::OneForAll, vec![permanent("a"), permanent("b")]))).unwrap();
    world.advance_to_assigned("/g/b");
    world.exit("/g/b", ExitHow::StartFailed("no such program".into()), Some(""));
    world.advance(Duration::from_secs(1));
    let nodes = ["/g/a", "/g/b"].map(|path| world.row(path).node.expect("it runs").to_string());
    assert_eq!(nodes, ["n2", "n2"]);
    assert_eq!(world.row("/g").restart_rate, 0, "the node paid");
}

#[test]
fn a_strategy_that_changes_lets_what_waited_for_its_turn_start() {
    let mut world = World::new(&["n1"]);
    let children = || vec![permanent("a"), permanent("b"), permanent("c")];
    world.change(Change::Apply(group(Strategy::OneForAll, children()))).unwrap();
    assert!(world.run("/g/b").is_none());
    world.change(Change::Apply(group(Strategy::OneForOne, children()))).unwrap();
    assert!(ALL.iter().all(|path| world.run(path).is_some()));
}

//! Trees that change.

use std::time::Duration;

use pando_protocol::codec::{FRAME_LIMIT, encode};
use pando_protocol::ids::{ClientId, MAX_DEPTH, MAX_NAME};
use pando_protocol::message::{Change, DifferenceKind, Write};
use pando_protocol::rejection::Rejection;
use pando_protocol::spec::{AutoShutdown, ChildSpec, MAX_MEMBERS, Restart, Shutdown, TreeSpec};
use pando_protocol::view::State;
use pando_supervision::trees::differences;
use pando_supervision::{Cluster, Command, Done, EventKind, Stamp, apply};
use pando_tests::rules::specs::{budget, nested, path, permanent, process, tree, with_restart};
use pando_tests::rules::world::World;

fn plain(children: Vec<ChildSpec>) -> TreeSpec {
    tree("t", |_| {}, children)
}

fn changed(id: &str) -> ChildSpec {
    process(id, |_, spec| spec.shutdown = Shutdown::BrutalKill)
}

fn kinds(world: &mut World, spec: &TreeSpec) -> Vec<(String, DifferenceKind)> {
    world.apply(spec).into_iter().map(|difference| (difference.path.to_string(), difference.what)).collect()
}

#[test]
fn applying_a_spec_again_changes_nothing() {
    let mut world = World::new(&["n1"]);
    let spec = plain(vec![permanent("a"), nested("s", |_, _| {}, vec![permanent("x")])]);
    assert_eq!(world.apply(&spec).len(), 4);
    let before = world.sim.cluster.members.clone();
    assert!(world.apply(&spec).is_empty());
    assert_eq!(world.sim.cluster.members, before);
}

#[test]
fn only_children_whose_own_spec_changed_are_restarted() {
    let mut world = World::new(&["n1"]);
    world.apply(&plain(vec![permanent("a"), permanent("b"), nested("s", |_, _| {}, vec![permanent("x")])]));
    let runs = |world: &World| ["/t/a", "/t/b", "/t/s/x"].map(|at| world.run(at).expect("it runs").incarnation);
    let before = runs(&world);
    let spec = tree(
        "t",
        |root| root.intensity = budget(9, 60),
        vec![
            permanent("a"),
            changed("b"),
            nested("s", |child, _| child.restart = Restart::Transient, vec![permanent("x")]),
        ],
    );
    let found = world.apply(&spec);
    let keys: Vec<_> = found.iter().map(|found| (found.path.as_str(), found.what, found.keys.join(","))).collect();
    assert_eq!(
        keys,
        [
            ("/t", DifferenceKind::Changed, "intensity".into()),
            ("/t/b", DifferenceKind::Restarted, "shutdown".into()),
            ("/t/s", DifferenceKind::Changed, "restart".into()),
        ]
    );
    let after = runs(&world);
    assert_eq!((after[0], after[2]), (before[0], before[2]));
    assert!(after[1] > before[1]);
    assert_eq!(world.last("/t/b").payer, "nobody: we asked for it");
}

#[test]
fn children_are_added_and_removed_and_incarnations_grow_when_one_comes_back() {
    let mut world = World::new(&["n1"]);
    world.apply(&plain(vec![permanent("a"), permanent("b")]));
    let first = world.run("/t/b").expect("it runs").incarnation;
    let without = plain(vec![permanent("a"), permanent("c")]);
    assert_eq!(
        kinds(&mut world, &without),
        [("/t/b".into(), DifferenceKind::Removed), ("/t/c".into(), DifferenceKind::Added),]
    );
    assert!(world.sim.cluster.member(&path("/t/b")).is_none() && world.is_ready("/t/c"));
    world.apply(&plain(vec![permanent("a"), permanent("b")]));
    assert!(world.run("/t/b").expect("it runs").incarnation > first);
}

#[test]
fn a_tree_that_is_deleted_and_applied_again_counts_its_incarnations_on() {
    let mut world = World::new(&["n1"]);
    let spec = plain(vec![permanent("a")]);
    world.apply(&spec);
    let first = world.run("/t/a").expect("it runs").incarnation;
    world.change(Change::Delete("t".parse().unwrap())).unwrap();
    assert!(matches!(world.change(Change::Apply(spec.clone())), Err(Rejection::BeingDeleted(_))));
    world.settle();
    assert_eq!(world.count(EventKind::TreeDeleted, "/t"), 1);
    world.apply(&spec);
    assert!(world.run("/t/a").expect("it runs").incarnation > first);
}

#[test]
fn what_waits_in_a_deleted_tree_waits_no_longer_while_the_rest_still_stops() {
    let mut world = World::new(&["n1"]);
    let pool = nested("pool", |_, pool| pool.intensity = budget(0, 10), vec![permanent("x")]);
    let group = nested("group", |_, _| {}, vec![pool]);
    world.apply(&plain(vec![group, permanent("last")]));
    world.crash("/t/group/pool/x", 1);
    assert_eq!(world.row("/t/group/pool").state, State::BackingOff);
    world.change(Change::Delete("t".parse().unwrap())).unwrap();
    assert_eq!(world.row("/t/group/pool").state, State::Stopped);
    world.advance(Duration::from_secs(1));
    assert!(world.sim.cluster.members.is_empty());
}

#[test]
fn a_child_that_comes_back_while_it_is_being_removed_starts_once_the_old_run_is_down() {
    let mut world = World::new(&["n1"]);
    let both = plain(vec![permanent("a"), permanent("b")]);
    world.apply(&both);
    world.change(Change::Apply(plain(vec![permanent("a")]))).unwrap();
    assert_eq!(kinds(&mut world, &both), [("/t/b".into(), DifferenceKind::Added)]);
    assert!(world.is_ready("/t/b"));
    assert_eq!(world.count(EventKind::ChildStarted, "/t/b"), 2);
}

#[test]
fn a_supervisor_that_comes_back_while_it_is_being_removed_is_up_again_once_all_is_down() {
    let mut world = World::new(&["n1"]);
    let deep = nested("u", |_, _| {}, vec![permanent("y")]);
    let with = plain(vec![permanent("a"), nested("s", |_, _| {}, vec![permanent("x"), deep])]);
    world.apply(&with);
    world.change(Change::Apply(plain(vec![permanent("a")]))).unwrap();
    assert_eq!(world.row("/t/s").state, State::Stopping);
    world.apply(&with);
    assert!(world.is_ready("/t/s/x") && world.is_ready("/t/s/u/y"));
    assert!(world.apply(&with).is_empty());
}

#[test]
fn a_stopped_child_that_is_removed_and_comes_back_is_as_good_as_new() {
    let mut world = World::new(&["n1"]);
    let with = plain(vec![permanent("a"), nested("s", |_, _| {}, vec![permanent("x"), permanent("y")])]);
    world.apply(&with);
    world.stop("/t/s/x");
    world.change(Change::Apply(plain(vec![permanent("a")]))).unwrap();
    world.apply(&with);
    assert!(world.is_ready("/t/s/x") && world.is_ready("/t/s/y"));
}

#[test]
fn a_child_can_be_added_and_removed_in_one_step_while_its_supervisor_stops() {
    let mut world = World::new(&["n1"]);
    world.apply(&plain(vec![with_restart("a", Restart::Transient), permanent("b")]));
    world.crash("/t/a", 0);
    world.change(Change::Restart(path("/t"))).unwrap();
    world.apply(&plain(vec![permanent("b"), permanent("c")]));
    assert!(world.is_ready("/t/b") && world.is_ready("/t/c"));
    assert!(world.sim.cluster.member(&path("/t/a")).is_none());
}

#[test]
fn the_kind_of_a_member_cannot_change() {
    let mut world = World::new(&["n1"]);
    world.apply(&plain(vec![permanent("a")]));
    let turned = plain(vec![nested("a", |_, _| {}, vec![permanent("x")])]);
    let refusal = world.change(Change::Apply(turned.clone())).expect_err("it is refused");
    assert!(matches!(refusal, Rejection::KindChanged { .. }), "{refusal:?}");
    world.change(Change::Apply(plain(vec![permanent("b")]))).unwrap();
    let refusal = world.change(Change::Apply(turned.clone())).expect_err("it is still there");
    assert!(refusal.to_string().contains("wait until it is gone, then apply again"), "{refusal}");
    world.settle();
    world.apply(&turned);
    assert!(world.is_ready("/t/a/x"));
}

#[test]
fn a_new_spec_clears_a_failed_tree_also_while_it_is_failing() {
    for settled in [true, false] {
        let mut world = World::new(&["n1"]);
        world.apply(&tree("t", |root| root.intensity = budget(0, 10), vec![permanent("a"), permanent("b")]));
        world.crash("/t/a", 1);
        if settled {
            world.settle();
            assert_eq!(world.row("/t").state, State::Failed);
        }
        world.apply(&tree("t", |root| root.intensity = budget(0, 10), vec![changed("a"), permanent("b")]));
        assert!(world.is_ready("/t/a") && world.is_ready("/t/b"));
        assert_eq!(world.count(EventKind::TreeCleared, "/t"), 1);
    }
}

#[test]
fn the_same_spec_does_not_clear_a_failed_tree() {
    let mut world = World::new(&["n1"]);
    let spec = tree("t", |root| root.intensity = budget(0, 10), vec![permanent("a")]);
    world.apply(&spec);
    world.crash("/t/a", 1);
    assert!(world.apply(&spec).is_empty());
    assert_eq!(world.row("/t").state, State::Failed);
}

#[test]
fn a_changed_spec_forgives_the_child_and_a_changed_budget_begins_empty() {
    let mut world = World::new(&["n1"]);
    world.apply(&tree("t", |root| root.intensity = budget(3, 60), vec![permanent("a")]));
    world.crash_times("/t/a", 3);
    world.apply(&tree("t", |root| root.intensity = budget(3, 60), vec![changed("a")]));
    assert_eq!(world.member("/t/a").delays, 0);
    world.crash_times("/t/a", 3);
    assert_eq!(world.row("/t").state, State::Running);
    world.apply(&tree("t", |root| root.intensity = budget(1, 60), vec![changed("a")]));
    assert_eq!(world.row("/t").state, State::Running, "what was allowed before does not break the new budget");
    world.crash_times("/t/a", 2);
    assert_eq!(world.row("/t").state, State::Failed);
}

#[test]
fn a_changed_spec_gives_what_has_ended_another_try() {
    let mut world = World::new(&["n1"]);
    let ends = |restart| {
        tree(
            "t",
            |root| root.auto_shutdown = AutoShutdown::AnySignificant,
            vec![process("a", |child, _| {
                child.restart = restart;
                child.significant = true;
            })],
        )
    };
    world.apply(&ends(Restart::Transient));
    world.crash("/t/a", 0);
    assert_eq!(world.row("/t").state, State::Finished);
    world.apply(&ends(Restart::Temporary));
    assert!(world.is_ready("/t/a"));
}

#[test]
fn a_held_child_stays_down_when_its_spec_changes() {
    let mut world = World::new(&["n1"]);
    world.apply(&plain(vec![permanent("a")]));
    world.stop("/t/a");
    world.apply(&plain(vec![changed("a")]));
    assert_eq!(world.row("/t/a").state, State::Stopped);
}

#[test]
fn a_child_that_waits_is_placed_by_its_new_spec() {
    let mut world = World::new(&[]);
    world.join("n1", 1, &["zone=a"]);
    let far = process("a", |_, spec| _ = spec.place.require.insert("zone=b".parse().unwrap()));
    world.apply(&plain(vec![far]));
    assert_eq!(world.row("/t/a").state, State::Waiting);
    world.apply(&plain(vec![permanent("a")]));
    assert!(world.is_ready("/t/a"));
}

#[test]
fn a_bad_spec_is_refused_with_every_mistake_and_changes_nothing() {
    let mut world = World::new(&["n1"]);
    let bad = plain(vec![permanent("a"), permanent("a")]);
    let Err(Rejection::BadSpec { mistakes, .. }) = world.change(Change::Apply(bad)) else { panic!("it is refused") };
    assert_eq!(mistakes.len(), 1);
    assert!(world.sim.cluster.members.is_empty());
}

#[test]
fn a_dry_run_tells_the_difference_and_a_new_order_is_one() {
    let mut world = World::new(&["n1"]);
    world.apply(&plain(vec![permanent("a"), permanent("b")]));
    let turned = plain(vec![permanent("b"), permanent("a")]);
    let found = differences(&world.sim.cluster, &turned).unwrap();
    assert_eq!((found.len(), found[0].keys.clone()), (1, vec!["children".to_owned()]));
    world.apply(&turned);
    assert!(differences(&world.sim.cluster, &turned).unwrap().is_empty());
    world.change(Change::Stop(path("/t"))).unwrap();
    world.sim.now += Duration::from_millis(1);
    assert_eq!((world.row("/t/a").state, world.row("/t/b").state), (State::Stopping, State::Running));
}

#[test]
fn what_an_apply_changed_fits_into_a_frame_however_long_its_paths_are() {
    let mut cluster = Cluster::default();
    let mut apply_anew = |sequence, spec: &TreeSpec| {
        let (client, lowest_unanswered, change) = (ClientId(1), sequence, Change::Apply(spec.clone()));
        let write = Write { client, sequence, lowest_unanswered, change };
        match apply(&mut cluster, Stamp { at: Duration::ZERO, wall: 0 }, Command::Write(write)).outcome {
            Ok(Done::Changed(changed)) => changed,
            other => panic!("{other:?}"),
        }
    };
    let id = |number: usize| format!("{number:0MAX_NAME$}");
    let depth = MAX_DEPTH - 2;
    let children = (0..MAX_MEMBERS - depth - 1).map(|number| permanent(&id(number))).collect();
    let lowest = nested(&id(0), |_, _| {}, children);
    let below = (1..depth).fold(lowest, |below, _| nested(&id(0), |_, _| {}, vec![below]));
    let spec = tree(&id(0), |_| {}, vec![below]);
    let changed = apply_anew(1, &spec);
    let bytes = encode::<FRAME_LIMIT>(&changed).expect("it fits").len();
    assert!(bytes > FRAME_LIMIT / 4 && changed.differences.len() < MAX_MEMBERS, "{bytes} bytes");
    assert_eq!(apply_anew(2, &spec).differences, [], "all of it was applied");
}

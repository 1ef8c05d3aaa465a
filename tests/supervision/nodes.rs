//! Sessions: granted, ended, left; what a loss moves, and how fast.

use std::collections::BTreeSet;
use std::time::Duration;

use pando_protocol::cause::CauseClass;
use pando_protocol::ids::NodeName;
use pando_protocol::session::Observation;
use pando_protocol::spec::{Intensity, Restart, Strategy, SupervisorSpec};
use pando_protocol::view::{NodeState, State};
use pando_supervision::{Command, Done, EndProof, EventKind, report};
use pando_tests::rules::specs::{ms, nested, path, permanent, process, tree, with_restart};
use pando_tests::rules::world::World;

fn world() -> World {
    let mut world = World::new(&["n1", "n2"]);
    world.apply(&tree("t", |_| {}, vec![permanent("a")]));
    world
}

fn node(name: &str) -> NodeName {
    name.parse().unwrap()
}

fn events(world: &World, kind: EventKind) -> usize {
    world.sim.events.iter().filter(|event| event.kind == kind).count()
}

#[test]
fn a_repeated_request_is_granted_the_same_session_also_when_a_newer_one_came_between() {
    let mut world = world();
    let old = world.sim.runners[&node("n1")].request(vec![]);
    let Ok(Done::Granted(first)) = world.command(Command::GrantSession(old.clone())).outcome else { panic!() };
    let newer = world.sim.request(&node("n1"), vec![]).expect("a known node");
    let Ok(Done::Granted(second)) = world.command(Command::GrantSession(newer)).outcome else { panic!() };
    assert!(second > first);
    assert_eq!(world.command(Command::GrantSession(old)).outcome, Ok(Done::Granted(first)));
    assert_eq!(world.sim.cluster.nodes[&node("n1")].current, Some(second));
}

#[test]
fn a_new_session_does_not_end_the_old_one_and_a_proof_does() {
    let mut world = world();
    let run = world.run("/t/a").expect("it runs").clone();
    let again = world.sim.request(&node("n1"), vec![]).expect("a known node");
    world.command(Command::GrantSession(again));
    assert_eq!(world.run("/t/a"), Some(&run), "its process may still run");
    let proof = world.sim.request(&node("n1"), vec![run.session]).expect("a known node");
    world.command(Command::GrantSession(proof));
    assert_eq!(world.last("/t/a").cause.message, "node n1 lost: its processes are proven gone");
    assert_ne!(world.run("/t/a").expect("placed again").session, run.session);
}

#[test]
fn requests_that_are_granted_late_leave_no_sessions_behind_and_are_no_losses() {
    let mut world = world();
    let run = world.run("/t/a").expect("it runs").clone();
    for _ in 0..30 {
        let again = world.sim.request(&node("n1"), vec![]).expect("a known node");
        world.command(Command::GrantSession(again));
    }
    let known = &world.sim.cluster.nodes[&node("n1")];
    assert_eq!(known.sessions.keys().copied().collect::<Vec<_>>(), [run.session, known.current.expect("it is up")]);
    assert_eq!(known.losses, 0);
}

#[test]
fn a_session_that_its_runner_never_began_is_no_loss_and_what_was_assigned_under_it_is_placed_again() {
    let mut world = world();
    let before = world.run("/t/a").expect("it runs").clone();
    world.lose("n2");
    world.lose("n1");
    let granted_late = world.sim.request(&node("n1"), vec![]).expect("a known node");
    let Ok(Done::Granted(session)) = world.command(Command::GrantSession(granted_late)).outcome else { panic!() };
    let unborn = world.run("/t/a").expect("assigned at once").clone();
    assert_eq!((unborn.session, unborn.incarnation > before.incarnation), (session, true));
    let (losses, lost) = (world.sim.cluster.nodes[&node("n1")].losses, world.member("/t/a").node_losses.clone());
    let left = Command::Observe { node: node("n1"), session, number: 1, observation: Observation::Left };
    assert_eq!(world.command(left).outcome, Ok(Done::Observed(1)));
    let n1 = &world.sim.cluster.nodes[&node("n1")];
    assert_eq!((n1.losses, n1.sessions.len(), n1.current), (losses, 0, None));
    assert_eq!(world.member("/t/a").node_losses, lost);
    assert_eq!(world.last("/t/a").cause.message, "stopped before it started");
    assert_eq!(world.row("/t/a").state, State::Waiting);
    world.rejoin("n1");
    world.settle();
    assert!(world.is_ready("/t/a"));
}

#[test]
fn a_session_ends_once_by_obituary_or_lease() {
    for (proof, text) in [
        (EndProof::Obituary("process died".into()), "n1 lost: process died (obituary) · /t/a"),
        (EndProof::Lease, "n1 lost: silent beyond its lease · /t/a"),
    ] {
        let mut world = world();
        let session = world.run("/t/a").expect("it runs").session;
        let end = Command::EndSession { node: node("n1"), session, proof };
        assert_eq!(world.command(end.clone()).outcome, Ok(Done::Ended));
        assert_eq!(world.command(end).outcome, Ok(Done::Ended));
        let told: Vec<_> =
            world.sim.events.iter().filter(|event| event.kind == EventKind::NodeLost).map(|e| &e.text).collect();
        assert_eq!(told, [text]);
        assert_eq!(world.node_of("/t/a").as_deref(), Some("n2"));
    }
}

#[test]
fn a_node_that_goes_stops_its_children_they_start_elsewhere_and_nothing_is_lost() {
    let mut world = world();
    world.say("n1", Observation::Leaving);
    assert_eq!(world.row("/t/a").state, State::Stopping);
    world.settle();
    assert_eq!(world.node_of("/t/a").as_deref(), Some("n2"));
    let last = world.last("/t/a");
    assert_eq!((last.cause.class, last.charged), (CauseClass::Stopped, false));
    assert_eq!(last.cause.message, "stopped by the shutdown of its node (SIGTERM)");
    assert_eq!(report::nodes(&world.sim.cluster)[0].state, NodeState::Leaving);
    world.say("n1", Observation::Left);
    assert_eq!((events(&world, EventKind::NodeLeft), events(&world, EventKind::NodeLost)), (1, 0));
    assert_eq!(report::nodes(&world.sim.cluster)[0].losses, 0);
}

#[test]
fn a_node_that_leaves_with_children_that_had_not_ended_counts_as_lost() {
    let mut world = world();
    world.say("n1", Observation::Left);
    assert_eq!((events(&world, EventKind::NodeLeft), events(&world, EventKind::NodeLost)), (1, 1));
    assert_eq!(world.last("/t/a").cause.class, CauseClass::NodeLost);
}

#[test]
fn a_delay_that_has_begun_is_not_shortened_by_the_loss_or_the_shutdown_of_the_node() {
    for leaves in [true, false] {
        let mut world = World::new(&["n1", "n2"]);
        let slow = process("a", |child, _| {
            (child.backoff.base, child.backoff.cap) = (Duration::from_secs(1), Duration::from_secs(1));
            child.backoff.jitter = 0;
        });
        world.apply(&tree("t", |root| root.intensity = Intensity::Unlimited, vec![slow]));
        world.crash("/t/a", 1);
        world.advance(ms(400));
        if leaves {
            world.say("n1", Observation::Leaving);
            world.settle();
        } else {
            world.lose("n1");
        }
        world.advance(ms(599));
        assert_eq!(world.row("/t/a").state, State::BackingOff, "leaves: {leaves}");
        world.advance(ms(1));
        assert!(world.is_ready("/t/a"), "leaves: {leaves}");
    }
}

#[test]
fn a_temporary_child_is_not_moved_and_a_transient_one_is() {
    for leaves in [true, false] {
        let mut world = World::new(&["n1"]);
        let children = vec![with_restart("a", Restart::Temporary), with_restart("b", Restart::Transient)];
        world.apply(&tree("t", |_| {}, children));
        world.join("n2", 10, &[]);
        match leaves {
            true => world.say("n1", Observation::Leaving),
            false => world.lose("n1"),
        }
        world.settle();
        assert_eq!((world.row("/t/a").state, world.is_ready("/t/b")), (State::Finished, true));
    }
}

#[test]
fn a_temporary_child_that_an_operator_restarts_runs_again_although_its_node_is_lost_meanwhile() {
    let mut world = World::new(&["n1", "n2"]);
    world.apply(&tree("t", |_| {}, vec![with_restart("a", Restart::Temporary)]));
    world.change(pando_protocol::message::Change::Restart(path("/t/a"))).unwrap();
    world.lose("n1");
    world.settle();
    assert!(world.is_ready("/t/a"));
}

#[test]
fn a_loss_while_a_supervisor_stops_moves_nothing_and_the_stop_goes_on() {
    let mut world = World::new(&["n1", "n2"]);
    world.apply(&tree("t", |_| {}, vec![permanent("a"), permanent("b"), permanent("c")]));
    world.change(pando_protocol::message::Change::Stop(path("/t"))).unwrap();
    world.lose("n1");
    assert_eq!(world.last("/t/c").payer, "nobody: its supervisor stops");
    world.lose("n2");
    assert_eq!(world.row("/t").state, State::Stopped);
    assert_eq!(world.member("/t/b").node_losses.values().sum::<u64>(), 1);
}

#[test]
fn of_sixty_children_of_a_lost_node_fifty_start_at_once_and_the_rest_one_by_one() {
    let mut world = World::new(&["n1"]);
    let names: Vec<String> = (0..60).map(|n| format!("c{n}")).collect();
    world.apply(&tree("t", |_| {}, names.iter().map(|name| permanent(name)).collect()));
    world.join("n2", 100, &[]);
    world.lose("n1");
    world.settle();
    let ready = |world: &World| names.iter().filter(|name| world.is_ready(&format!("/t/{name}"))).count();
    assert_eq!(ready(&world), 50);
    let lost = world.sim.now;
    let mut starts = Vec::new();
    while ready(&world) < 60 {
        let next = world.sim.next_time().expect("more is to come");
        let before = ready(&world);
        world.advance(next - world.sim.now);
        assert_eq!(ready(&world), before + 1, "one by one");
        starts.push(world.sim.now);
    }
    assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= ms(20)), "{starts:?}");
    assert!(*starts.last().expect("ten") - lost <= ms(1_000 + 10 * 20), "jitter is at most a second");
}

#[test]
fn a_group_of_sixty_on_a_lost_node_starts_once_the_last_of_it_may() {
    for strategy in [Strategy::OneForAll, Strategy::RestForOne] {
        let mut world = World::new(&["n1"]);
        let names: Vec<String> = (0..60).map(|n| format!("c{n:02}")).collect();
        let children = || names.iter().map(|name| permanent(name)).collect();
        world.apply(&tree("t", |root| root.strategy = strategy, children()));
        world.join("n2", 100, &[]);
        world.lose("n1");
        world.settle();
        let (lost, until) = (world.sim.now, world.sim.cluster.head.brake);
        assert!(until >= lost + ms(10 * 20), "ten are held back");
        world.advance(until - lost - ms(1));
        assert!(names.iter().all(|name| world.run(&format!("/t/{name}")).is_none()), "{strategy:?}");
        world.advance(ms(1));
        assert!(names.iter().all(|name| world.is_ready(&format!("/t/{name}"))), "{strategy:?}");
    }
}

#[test]
fn a_pool_of_sixty_that_its_group_takes_down_with_a_lost_node_waits_as_long_as_on_its_own() {
    for (inner, colocate) in [(Strategy::OneForOne, false), (Strategy::OneForAll, false), (Strategy::OneForOne, true)] {
        let mut world = World::new(&["n1"]);
        let names: Vec<String> = (0..60).map(|n| format!("c{n:02}")).collect();
        let workers = names.iter().map(|name| permanent(name)).collect();
        let pool = nested("pool", |_, pool| pool.strategy = inner, workers);
        let group = |root: &mut SupervisorSpec| (root.strategy, root.colocate) = (Strategy::OneForAll, colocate);
        world.apply(&tree("t", group, vec![permanent("a"), pool]));
        world.join("n2", 100, &[]);
        world.lose("n1");
        world.settle();
        let (lost, until) = (world.sim.now, world.sim.cluster.head.brake);
        world.advance(until - lost - ms(1));
        let is_down = |name: &String| world.run(&format!("/t/pool/{name}")).is_none();
        assert!(names.iter().all(is_down), "{inner:?}: none starts before the last of them may");
        world.advance(ms(1));
        assert!(names.iter().all(|name| world.is_ready(&format!("/t/pool/{name}"))), "{inner:?}");
    }
}

#[test]
fn what_an_operator_restarts_while_a_loss_is_braked_does_not_start_all_at_once() {
    let mut world = World::new(&[]);
    world.join("n1", 300, &[]);
    let names: Vec<String> = (0..200).map(|n| format!("c{n}")).collect();
    let pool = nested("pool", |_, _| {}, names.iter().map(|name| permanent(name)).collect());
    world.apply(&tree("t", |_| {}, vec![pool]));
    world.join("n2", 300, &[]);
    world.lose("n1");
    world.settle();
    let ready = |world: &World| names.iter().filter(|name| world.is_ready(&format!("/t/pool/{name}"))).count();
    assert_eq!(ready(&world), 50);
    let lost = world.sim.now;
    world.restart("/t/pool");
    assert_eq!(ready(&world), 50, "the rest is held back as before");
    while ready(&world) < names.len() {
        let (next, before) = (world.sim.next_time().expect("more is to come"), ready(&world));
        world.advance(next - world.sim.now);
        assert!(ready(&world) <= before + 1, "one by one");
    }
    assert!(world.sim.now - lost <= ms(1_000 + 2 * 150 * 20), "they wait behind those of the loss");
    world.advance(ms(20));
    world.restart("/t/pool");
    assert_eq!(ready(&world), names.len(), "the loss is over");
}

#[test]
fn losses_one_after_the_other_share_one_queue() {
    let mut world = World::new(&["n1"]);
    let names: Vec<String> = (0..60).map(|n| format!("c{n}")).collect();
    let trees = ["t", "u"].map(|tree_name| tree(tree_name, |_| {}, names.iter().map(|name| permanent(name)).collect()));
    world.apply(&trees[0]);
    world.join("n2", 60, &[]);
    world.sim.cluster.head.brake = Duration::ZERO;
    world.apply(&trees[1]);
    world.lose("n1");
    world.lose("n2");
    let held: BTreeSet<_> = world.sim.cluster.timers.iter().map(|(at, _)| *at).collect();
    let held: Vec<_> = held.into_iter().collect();
    assert_eq!(held.len(), world.sim.cluster.timers.len(), "no two at the same time");
    assert!(held.windows(2).all(|pair| pair[1] - pair[0] >= ms(20)));
}

#[test]
fn a_stranger_has_no_session_to_end() {
    let mut world = world();
    let end =
        Command::EndSession { node: node("n9"), session: pando_protocol::ids::SessionId(9), proof: EndProof::Lease };
    assert_eq!(world.command(end).outcome, Ok(Done::Ended));
}

//! `on_disconnect = keep`: not replaced while its node is silent.

use std::time::Duration;

use pando_protocol::cause::CauseClass;
use pando_protocol::ids::NodeName;
use pando_protocol::message::Change;
use pando_protocol::session::{Ending, Observation};
use pando_protocol::spec::{ChildSpec, OnDisconnect};
use pando_protocol::view::{NodeState, State, Verdict};
use pando_supervision::{Command, Done, EndProof, EventKind, report};
use pando_tests::rules::specs::{path, permanent, process, tree};
use pando_tests::rules::world::World;

fn node(name: &str) -> NodeName {
    name.parse().unwrap()
}

fn kept(id: &str) -> ChildSpec {
    process(id, |_, spec| spec.on_disconnect = OnDisconnect::Keep)
}

/// `/t/a` is kept, `/t/b` is not; both run on n1, and n2 has room.
fn world() -> World {
    let mut world = World::new(&["n1"]);
    world.apply(&tree("t", |_| {}, vec![kept("a"), permanent("b")]));
    assert!(world.is_ready("/t/a") && world.is_ready("/t/b"));
    world.join("n2", 100, &[]);
    world
}

/// The lease of n1 ends, as its own clock and the leader see it.
fn fall_silent(world: &mut World) {
    world.sim.lose(&node("n1"), EndProof::Lease).unwrap();
    world.settle();
}

fn state_of(world: &World, name: &str) -> NodeState {
    report::nodes(&world.sim.cluster).into_iter().find(|row| row.name == node(name)).expect("a known node").state
}

fn remove(world: &mut World, dead: bool) -> Result<(), String> {
    let change = if dead { Change::RemoveDeadNode(node("n1")) } else { Change::RemoveNode(node("n1")) };
    world.change(change).map(|_| ()).map_err(|refused| refused.to_string())
}

#[test]
fn what_is_kept_is_unreachable_while_its_node_is_silent_and_the_rest_is_lost() {
    let mut world = world();
    let before = world.run("/t/a").expect("it runs").clone();
    fall_silent(&mut world);
    assert_eq!(world.run("/t/a"), Some(&before), "what may run is state");
    assert_eq!((world.node_of("/t/b").as_deref(), world.is_ready("/t/b")), (Some("n2"), true));
    let (row, root) = (world.row("/t/a"), world.row("/t"));
    assert_eq!((row.state, row.verdict, row.alive), (State::Unreachable, Verdict::Unreachable, 0));
    assert_eq!((root.verdict, root.alive, root.configured), (Verdict::Unreachable, 1, 2));
    let waiting = row.waiting.expect("it waits");
    assert_eq!(
        waiting,
        "n1 is back, which is silent; or an operator who knows that its machine is gone says `pando node remove n1 --dead`"
    );
    assert_eq!(state_of(&world, "n1"), NodeState::Unreachable);
    assert_eq!(world.sim.cluster.nodes[&node("n1")].losses, 1);
    let explained = report::explain(&world.sim.cluster, &path("/t/a")).expect("a known member");
    assert_eq!(explained.now, "may run on on n1 as incarnation 1: n1 is silent, and nothing is started in its place");
    assert_eq!(world.count(EventKind::ChildUnreachable, "/t/a"), 1);
    world.advance(Duration::from_secs(86_400));
    assert_eq!(world.run("/t/a"), Some(&before), "for ever");
}

#[test]
fn the_same_incarnation_goes_on_under_the_next_session_of_its_node() {
    let mut world = world();
    let before = world.run("/t/a").expect("it runs").clone();
    fall_silent(&mut world);
    world.rejoin("n1");
    world.settle();
    let after = world.run("/t/a").expect("it runs").clone();
    assert_eq!((after.incarnation, after.stage), (before.incarnation, before.stage));
    assert!(after.session > before.session);
    assert_eq!((world.row("/t/a").verdict, state_of(&world, "n1")), (Verdict::Healthy, NodeState::Up));
    assert_eq!(world.history("/t/a"), []);
    assert_eq!(world.count(EventKind::ChildReachable, "/t/a"), 1);
    assert_eq!(world.sim.cluster.nodes[&node("n1")].sessions.len(), 1, "the old one is over");
    // And it is a child like any other again.
    world.crash("/t/a", 1);
    world.advance_to_run("/t/a");
    assert_eq!(world.node_of("/t/a").as_deref(), Some("n1"));
}

#[test]
fn what_a_node_kept_that_lost_its_data_waits_for_an_operator_and_holds_no_lease() {
    let mut world = world();
    let before = world.run("/t/a").expect("it runs").clone();
    fall_silent(&mut world);
    assert_eq!(world.sim.cluster.nodes[&node("n1")].leases(), 0);
    // Another disk: what comes back has no record of what it ran, and proves nothing.
    let former = world.sim.runners[&node("n1")].clone();
    world.sim.ghosts.push(former);
    world.join("n1", 100, &[]);
    world.settle();
    world.advance(Duration::from_secs(600));
    assert_eq!(world.run("/t/a"), Some(&before), "two copies are never risked");
    assert_eq!(world.sim.cluster.nodes[&node("n1")].leases(), 1, "its own, and none of before");
    let explained = report::explain(&world.sim.cluster, &path("/t/a")).expect("a known member");
    let expected = "n1 is back and knows nothing of it, and nothing is started in its place";
    assert!(explained.now.ends_with(expected), "{}", explained.now);
    let waiting = world.row("/t/a").waiting.expect("it waits");
    assert!(waiting.contains("stops n1, says `pando node remove n1 --dead`, and starts n1 again"), "{waiting}");
}

#[test]
fn an_ending_while_silent_is_reported_and_charged_once_its_node_is_back() {
    let mut world = world();
    fall_silent(&mut world);
    let incarnation = world.run("/t/a").expect("it may run").incarnation;
    let now = world.sim.now;
    let runner = world.sim.runners.get_mut(&node("n1")).expect("a known node");
    runner.exit(incarnation, pando_protocol::cause::ExitHow::Code(7), Some(""), now, &mut world.sim.copies);
    world.rejoin("n1");
    world.settle();
    let last = world.last("/t/a");
    assert_eq!((last.cause.code, last.charged, last.incarnation), (Some(7), true, Some(incarnation)));
    world.advance_to_run("/t/a");
}

#[test]
fn an_obituary_or_a_proof_of_its_node_ends_it_and_it_starts_elsewhere() {
    for by_obituary in [true, false] {
        let mut world = world();
        let session = world.run("/t/a").expect("it runs").session;
        fall_silent(&mut world);
        if by_obituary {
            world.sim.lose(&node("n1"), EndProof::Obituary("process died".into())).unwrap();
        } else {
            world.sim.come_back_with_proof(&node("n1"), session).unwrap();
        }
        world.settle();
        assert_eq!(world.last("/t/a").cause.class, CauseClass::NodeLost);
        assert!(world.is_ready("/t/a"));
        assert_eq!(world.sim.cluster.nodes[&node("n1")].losses, 1, "one loss, however it ends");
    }
}

#[test]
fn what_its_node_does_not_name_is_over() {
    let mut world = world();
    fall_silent(&mut world);
    // It never came to be started: the cluster could not know.
    world.sim.runners.get_mut(&node("n1")).expect("a known node").die(&mut world.sim.copies);
    world.sim.runners.get_mut(&node("n1")).expect("a known node").over.clear();
    world.rejoin("n1");
    let session = world.run("/t/a").expect("it may run").session;
    world.say("n1", Observation::Kept { sessions: vec![session], runs: vec![] });
    world.settle();
    assert_eq!(world.last("/t/a").cause.message, "node n1 lost: its node says that this is gone");
    assert!(world.is_ready("/t/a"));
}

#[test]
fn a_runner_takes_over_only_older_sessions_of_its_own_node_and_only_what_is_kept() {
    let mut world = world();
    let (a, b) = (world.run("/t/a").expect("it runs").clone(), world.run("/t/b").expect("it runs").clone());
    let named =
        |run: &pando_supervision::cluster::Run, at: &str| Ending { path: path(at), incarnation: run.incarnation };
    let runs = vec![named(&a, "/t/a"), named(&b, "/t/b")];
    world.say("n2", Observation::Kept { sessions: vec![a.session], runs: runs.clone() });
    assert_eq!((world.run("/t/a"), world.run("/t/b")), (Some(&a), Some(&b)), "another node's");
    world.say("n1", Observation::Kept { sessions: vec![a.session], runs: runs.clone() });
    assert_eq!((world.run("/t/a"), world.run("/t/b")), (Some(&a), Some(&b)), "its own session is not an older one");
    fall_silent(&mut world);
    world.rejoin("n1");
    world.say("n1", Observation::Kept { sessions: vec![a.session], runs });
    let session = world.sim.runners[&node("n1")].session;
    assert_eq!(world.run("/t/a").map(|run| run.session), session);
    assert_eq!(world.node_of("/t/b").as_deref(), Some("n2"));
}

#[test]
fn a_stop_is_written_down_while_unreachable_and_done_when_the_node_is_back() {
    let mut world = world();
    fall_silent(&mut world);
    world.stop("/t/a");
    let row = world.row("/t/a");
    assert_eq!(row.state, State::Unreachable);
    assert!(row.waiting.expect("it waits").starts_with("n1 is back, which is silent, and then stops; or an operator"));
    world.rejoin("n1");
    world.settle();
    assert_eq!(world.row("/t/a").state, State::Stopped);
    assert_eq!(world.last("/t/a").cause.class, CauseClass::Stopped);
}

#[test]
fn a_drain_moves_it_once_its_node_is_back() {
    let mut world = world();
    fall_silent(&mut world);
    world.change(Change::Drain(node("n1"))).unwrap();
    world.settle();
    assert_eq!((world.row("/t/a").state, world.node_of("/t/a").as_deref()), (State::Unreachable, Some("n1")));
    assert!(world.sim.cluster.nodes[&node("n2")].sessions.values().all(|session| session.kept.is_empty()));
    world.rejoin("n1");
    world.settle();
    assert_eq!((world.node_of("/t/a").as_deref(), world.is_ready("/t/a")), (Some("n2"), true));
}

#[test]
fn an_operators_oath_ends_what_is_kept_and_is_refused_while_a_lease_may_run() {
    let mut world = world();
    let up = remove(&mut world, true).unwrap_err();
    assert_eq!(up, "node n1 is up: stop its process first, and then remove n1");
    fall_silent(&mut world);
    let alive = remove(&mut world, false).unwrap_err();
    assert!(alive.contains("`pando node remove n1 --dead` starts them elsewhere"), "{alive}");
    assert_eq!(world.row("/t/a").state, State::Unreachable);
    // The oath is true.
    world.sim.runners.get_mut(&node("n1")).expect("a known node").die(&mut world.sim.copies);
    assert_eq!(remove(&mut world, true), Ok(()));
    world.settle();
    assert_eq!((world.node_of("/t/a").as_deref(), world.is_ready("/t/a")), (Some("n2"), true));
    assert_eq!(world.last("/t/a").cause.message, "node n1 lost: an operator says that its machine is gone");
    assert!(!world.sim.cluster.nodes.contains_key(&node("n1")));
}

#[test]
fn a_node_that_goes_and_is_not_heard_to_the_end_may_hold_a_lease() {
    let mut world = world();
    world.say("n1", Observation::Leaving);
    let refused = remove(&mut world, true).unwrap_err();
    assert!(refused.contains("may hold a lease that has not run out"), "{refused}");
}

#[test]
fn what_is_kept_under_a_session_that_nobody_began_is_lost_like_the_rest() {
    let mut world = World::new(&["n1"]);
    let request = world.sim.request(&node("n1"), vec![]).expect("a known node");
    let Ok(Done::Granted(session)) = world.command(Command::GrantSession(request)).outcome else { panic!() };
    world.apply(&tree("t", |_| {}, vec![kept("a")]));
    assert_eq!(world.run("/t/a").map(|run| run.session), Some(session), "assigned to nobody");
    world.command(Command::EndSession { node: node("n1"), session, proof: EndProof::Lease });
    assert_eq!(world.row("/t/a").state, State::Waiting);
}

#[test]
fn a_lease_that_is_told_over_again_changes_nothing_and_the_last_report_ends_the_session() {
    let mut world = world();
    let run = world.run("/t/a").expect("it runs").clone();
    fall_silent(&mut world);
    let before = world.sim.cluster.clone();
    world.command(Command::EndSession { node: node("n1"), session: run.session, proof: EndProof::Lease });
    assert_eq!(before, world.sim.cluster);
    // A word that was long under way.
    let number = world.sim.cluster.session(&node("n1"), run.session).expect("it is silent").observed + 1;
    world.sim.runners.get_mut(&node("n1")).expect("a known node").die(&mut world.sim.copies);
    let exit = pando_protocol::cause::Exit {
        how: pando_protocol::cause::ExitHow::Code(7),
        ran: Duration::from_secs(1),
        healthy: None,
        out_of_memory: pando_protocol::cause::OutOfMemory::No,
        stderr: None,
    };
    let observation =
        Observation::Exited { path: path("/t/a"), incarnation: run.incarnation, exit, started: Vec::new() };
    world.command(Command::Observe { node: node("n1"), session: run.session, number, observation });
    assert_eq!(world.last("/t/a").cause.code, Some(7));
    assert_eq!((state_of(&world, "n1"), world.sim.cluster.nodes[&node("n1")].sessions.len()), (NodeState::Down, 0));
}

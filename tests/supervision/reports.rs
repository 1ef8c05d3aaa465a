//! What people see, what runners are told, and when a tick is due.

use std::time::Duration;

use pando_protocol::message::Change;
use pando_protocol::spec::{AutoShutdown, Restart};
use pando_protocol::view::{State, Verdict};
use pando_supervision::desired::desired;
use pando_supervision::parts::{from_parts, parts};
use pando_supervision::{next_deadline, report};
use pando_tests::rules::specs::{budget, nested, path, permanent, process, tree, with_restart};
use pando_tests::rules::world::World;

fn world() -> World {
    let mut world = World::new(&["n1"]);
    let pool = nested("pool", |_, _| {}, vec![permanent("x"), permanent("y")]);
    world.apply(&tree("t", |_| {}, vec![permanent("a"), pool]));
    world
}

fn whole(world: &World, text: &str) -> bool {
    report::settled(&world.sim.cluster, &path(text)).expect("it exists").whole
}

#[test]
fn a_tree_is_whole_when_everything_that_should_run_is_ready() {
    let mut world = world();
    assert!(whole(&world, "/t"));
    world.crash("/t/pool/x", 1);
    let settled = report::settled(&world.sim.cluster, &path("/t")).expect("it exists");
    assert!(!settled.whole);
    assert_eq!((settled.ready, settled.configured), (2, 3));
    assert!(settled.missing[0].starts_with("/t/pool/x waits: n1 starts it"), "{:?}", settled.missing);
    assert!(whole(&world, "/t/a"));
}

#[test]
fn what_is_stopped_on_purpose_is_not_missed_with_all_below_it() {
    let mut world = world();
    world.stop("/t/pool");
    assert!(whole(&world, "/t"));
    let row = world.row("/t");
    assert_eq!((row.alive, row.configured, row.verdict), (1, 1, Verdict::Healthy));
    assert_eq!(world.row("/t/pool").verdict, Verdict::Stopped);
}

#[test]
fn what_finished_is_not_missed_with_all_below_it() {
    let mut world = World::new(&["n1"]);
    let done = process("x", |child, _| {
        child.restart = Restart::Transient;
        child.significant = true;
    });
    let job = nested(
        "job",
        |child, job| {
            child.restart = Restart::Transient;
            job.auto_shutdown = AutoShutdown::AnySignificant;
        },
        vec![permanent("helper"), done],
    );
    world.apply(&tree("t", |_| {}, vec![permanent("a"), job]));
    world.crash("/t/job/x", 0);
    world.settle();
    assert!(whole(&world, "/t"));
}

#[test]
fn a_stopped_child_does_not_hide_that_its_sibling_waits_or_loops() {
    let mut world = World::new(&[]);
    world.join("n1", 1, &[]);
    let children = vec![permanent("a"), with_restart("b", Restart::Temporary), permanent("c")];
    world.apply(&tree("t", |_| {}, children));
    world.stop("/t/a");
    assert_eq!(world.row("/t").verdict, Verdict::Waiting);
}

#[test]
fn verdicts_go_from_healthy_over_churning_to_looping_and_failed() {
    let mut world = World::new(&["n1"]);
    world.apply(&tree("t", |root| root.intensity = budget(9, 600), vec![permanent("a")]));
    assert_eq!(world.row("/t").verdict, Verdict::Healthy);
    world.crash_times("/t/a", 1);
    assert_eq!((world.row("/t/a").verdict, world.row("/t").verdict), (Verdict::Churning, Verdict::Churning));
    world.crash_times("/t/a", 7);
    assert_eq!((world.row("/t/a").verdict, world.row("/t").verdict), (Verdict::Looping, Verdict::Looping));
    world.crash_times("/t/a", 2);
    assert_eq!((world.row("/t").verdict, whole(&world, "/t")), (Verdict::Failed, false));
    world.restart("/t");
    world.advance(Duration::from_secs(61));
    assert_eq!(world.row("/t").verdict, Verdict::Healthy);
}

#[test]
fn an_explanation_tells_what_is_what_follows_and_when_it_gives_up() {
    let mut world = world();
    let explain = |world: &World, text| report::explain(&world.sim.cluster, &path(text)).expect("it exists");
    world.crash_times("/t/pool/x", 2);
    let told = explain(&world, "/t/pool/x");
    assert!(told.next.starts_with("waits: n1 starts it"), "{}", told.next);
    assert_eq!(told.gives_up, "the budget of /t/pool has 2 of 5 in 10 s spent; 4 crashes more, and /t/pool escalates");
    assert_eq!(told.window.len(), 2);
    world.stop("/t/pool");
    assert_eq!(explain(&world, "/t/pool/y").now, "is down because its supervisor /t/pool is down");
    assert_eq!(explain(&world, "/t/pool").next, "nothing, until `pando start /t/pool`");
}

#[test]
fn below_a_failed_tree_an_explanation_tells_of_the_tree_and_what_clears_it() {
    let mut world = World::new(&["n1"]);
    let pool = nested("pool", |_, pool| pool.intensity = budget(1, 600), vec![permanent("x"), permanent("y")]);
    world.apply(&tree("t", |root| root.intensity = budget(0, 600), vec![pool]));
    world.crash_times("/t/pool/x", 2);
    world.settle();
    assert_eq!(world.row("/t").state, State::Failed);
    let explain = |text| report::explain(&world.sim.cluster, &path(text)).expect("it exists");
    for below in ["/t/pool", "/t/pool/x", "/t/pool/y"] {
        let told = explain(below);
        assert_eq!(told.now, "is down because the tree /t has failed", "{below}");
        assert_eq!(told.next, "nothing, until an operator acts: `pando restart /t`, or apply a new spec", "{below}");
        assert_eq!((told.gives_up.as_str(), told.window.len()), ("", 0), "{below}");
    }
    // What it advises is taken.
    world.restart("/t");
    assert!(world.is_ready("/t/pool/x"));
}

#[test]
fn below_a_stopped_supervisor_an_explanation_names_the_commands_that_start_it() {
    let mut world = world();
    let next = |world: &World, text| report::explain(&world.sim.cluster, &path(text)).expect("it exists").next;
    world.stop("/t/pool");
    world.settle();
    assert_eq!(next(&world, "/t/pool/x"), "nothing, until `pando start /t/pool`");
    world.stop("/t/pool/x");
    assert_eq!(next(&world, "/t/pool/x"), "nothing, until `pando start /t/pool` and `pando start /t/pool/x`");
    assert!(report::explain(&world.sim.cluster, &path("/t/pool/x")).expect("it exists").gives_up.is_empty());
}

#[test]
fn a_supervisor_is_explained_by_the_newest_ending_below_it() {
    let mut world = world();
    let last = |world: &World, text| report::explain(&world.sim.cluster, &path(text)).expect("it exists").last;
    assert_eq!(last(&world, "/t/pool"), None);
    world.crash("/t/pool/x", 3);
    for above in ["/t", "/t/pool", "/t/pool/x"] {
        let chain = last(&world, above).expect("an ending below");
        let cause = chain.innermost().expect("a cause");
        assert_eq!((cause.path.as_str(), cause.code), ("/t/pool/x", Some(3)), "{above}");
    }
    assert_eq!(last(&world, "/t/pool/y"), None);
}

#[test]
fn what_should_run_and_what_should_end_is_told_to_the_session_that_owns_it() {
    let mut world = world();
    let run = world.run("/t/a").expect("it runs").clone();
    world.change(Change::Stop(path("/t/pool/y"))).unwrap();
    let told = desired(&world.sim.cluster, &run.node, run.session, 7).expect("it has a session");
    let paths: Vec<_> = told.run.iter().map(|wanted| wanted.path.as_str()).collect();
    assert_eq!((paths, told.end[0].path.as_str(), told.index), (vec!["/t/a", "/t/pool/x"], "/t/pool/y", 7));
    assert!(desired(&world.sim.cluster, &run.node, pando_protocol::ids::SessionId(99), 7).is_none());
}

#[test]
fn a_restart_on_the_same_node_names_the_run_before_it_so_that_its_delay_counts_from_that_exit() {
    let mut world = world();
    let before = world.run("/t/a").expect("it runs").incarnation;
    world.crash("/t/a", 1);
    let run = world.run("/t/a").expect("assigned").clone();
    let told = desired(&world.sim.cluster, &run.node, run.session, 1).expect("it has a session");
    assert_eq!((told.run[0].after, told.run[0].delay), (Some(before), run.delay));
}

#[test]
fn a_tick_is_due_exactly_when_a_delay_ends() {
    let mut world = World::new(&["n1"]);
    let pool = nested(
        "s",
        |child, s| {
            child.backoff.jitter = 0;
            s.intensity = budget(0, 10);
        },
        vec![permanent("x")],
    );
    world.apply(&tree("t", |_| {}, vec![pool]));
    assert_eq!(next_deadline(&world.sim.cluster), None);
    world.crash("/t/s/x", 1);
    assert_eq!(next_deadline(&world.sim.cluster), Some(world.sim.now + Duration::from_millis(50)));
    world.advance(Duration::from_millis(50));
    assert!(world.is_ready("/t/s/x"));
    assert_eq!(next_deadline(&world.sim.cluster), None);
}

#[test]
fn the_state_comes_back_equal_from_its_parts() {
    let mut world = world();
    world.crash_times("/t/a", 3);
    world.stop("/t/pool");
    world.lose("n1");
    let back = from_parts(parts(&world.sim.cluster)).expect("it is whole");
    assert_eq!(back, world.sim.cluster);
    assert!(from_parts(std::iter::empty()).is_err());
    assert!(from_parts(parts(&world.sim.cluster).skip(1)).is_err());
}

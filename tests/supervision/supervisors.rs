//! Supervisors: significant children, escalation over levels, stopping in order, fresh budgets.

use std::time::Duration;

use pando_protocol::cause::CauseClass;
use pando_protocol::message::Change;
use pando_protocol::spec::{AutoShutdown, ChildSpec, Intensity, Restart};
use pando_protocol::view::State;
use pando_supervision::EventKind;
use pando_tests::rules::specs::{budget, ms, nested, path, permanent, process, tree};
use pando_tests::rules::world::World;

fn significant(id: &str, restart: Restart) -> ChildSpec {
    process(id, |child, _| {
        child.restart = restart;
        child.significant = true;
    })
}

fn with_auto_shutdown(auto: AutoShutdown) -> World {
    let mut world = World::new(&["n1"]);
    let children = vec![permanent("a"), significant("b", Restart::Transient), significant("c", Restart::Temporary)];
    world.apply(&tree("t", |root| root.auto_shutdown = auto, children));
    world
}

#[test]
fn any_significant_child_that_ends_for_good_ends_its_supervisor() {
    let mut world = with_auto_shutdown(AutoShutdown::AnySignificant);
    world.crash("/t/b", 1);
    assert_eq!(world.row("/t").state, State::Running, "a transient child that crashed is restarted");
    world.advance_to_run("/t/b");
    world.crash("/t/b", 0);
    assert_eq!(world.row("/t").state, State::Stopping);
    world.settle();
    assert_eq!((world.row("/t").state, world.row("/t/a").state), (State::Finished, State::Stopped));
    assert_eq!(world.last("/t").cause.message, "significant children ended: /t/b");
    assert_eq!(world.count(EventKind::SupervisorEnded, "/t"), 1);
}

#[test]
fn all_significant_children_must_have_ended_where_the_supervisor_waits_for_all() {
    let mut world = with_auto_shutdown(AutoShutdown::AllSignificant);
    world.crash("/t/c", 1);
    world.settle();
    assert_eq!(world.row("/t").state, State::Running);
    world.crash("/t/b", 0);
    world.settle();
    assert_eq!(world.row("/t").state, State::Finished);
}

#[test]
fn an_operators_stop_of_a_significant_child_ends_nothing() {
    let mut world = with_auto_shutdown(AutoShutdown::AnySignificant);
    world.stop("/t/b");
    assert_eq!(world.row("/t").state, State::Running);
}

#[test]
fn a_child_that_is_not_significant_ends_nothing() {
    let mut world = World::new(&["n1"]);
    let temporary = nested(
        "s",
        |child, s| {
            child.restart = Restart::Temporary;
            s.intensity = budget(0, 10);
        },
        vec![permanent("x")],
    );
    let spec = tree(
        "t",
        |root| root.auto_shutdown = AutoShutdown::AnySignificant,
        vec![temporary, significant("b", Restart::Transient)],
    );
    world.apply(&spec);
    world.crash("/t/s/x", 1);
    assert_eq!((world.row("/t/s").state, world.row("/t").state), (State::Finished, State::Running));
}

#[test]
fn a_nested_supervisor_that_ends_is_restarted_and_charged_only_where_it_is_permanent() {
    for (restart, state) in [(Restart::Permanent, State::BackingOff), (Restart::Transient, State::Finished)] {
        let mut world = World::new(&["n1"]);
        let below = nested(
            "s",
            |child, s| {
                child.restart = restart;
                s.auto_shutdown = AutoShutdown::AnySignificant;
            },
            vec![significant("x", Restart::Transient)],
        );
        world.apply(&tree("t", |_| {}, vec![below]));
        world.crash("/t/s/x", 0);
        assert_eq!(world.row("/t/s").state, state, "{restart:?}");
        let last = world.last("/t/s");
        assert_eq!((last.cause.class, last.charged), (CauseClass::AutoShutdown, restart == Restart::Permanent));
    }
}

#[test]
fn a_transient_supervisor_that_spent_its_budget_is_restarted_by_its_parent() {
    let mut world = World::new(&["n1"]);
    let below = nested(
        "s",
        |child, s| {
            child.restart = Restart::Transient;
            s.intensity = budget(0, 10);
        },
        vec![permanent("x")],
    );
    world.apply(&tree("t", |_| {}, vec![below]));
    world.crash("/t/s/x", 1);
    assert_eq!(world.row("/t/s").state, State::BackingOff);
    world.advance_to_run("/t/s/x");
}

#[test]
fn an_escalation_stops_the_children_in_reverse_order_before_the_parent_decides() {
    let mut world = World::new(&["n1"]);
    world.apply(&tree(
        "t",
        |root| root.intensity = budget(0, 10),
        vec![permanent("a"), permanent("b"), permanent("c")],
    ));
    world.crash("/t/b", 1);
    let stopping = |world: &World| ["/t/a", "/t/b", "/t/c"].map(|child| world.row(child).state == State::Stopping);
    assert_eq!((world.row("/t").state, stopping(&world)), (State::Stopping, [false, false, true]));
    world.crash("/t/c", 143);
    assert_eq!((world.row("/t").state, stopping(&world)), (State::Stopping, [true, false, false]));
    world.crash("/t/a", 143);
    assert_eq!(world.row("/t").state, State::Failed);
    assert_eq!(world.last("/t/a").cause.class, CauseClass::Stopped);
}

#[test]
fn a_supervisor_that_stops_starts_nothing_that_waited_below_it() {
    let mut world = World::new(&[]);
    world.join("n1", 1, &[]);
    let delayed = nested("s", |_, s| s.intensity = budget(0, 10), vec![permanent("x")]);
    world.apply(&tree("t", |_| {}, vec![permanent("a"), permanent("b"), delayed]));
    assert_eq!(world.row("/t/b").state, State::Waiting);
    world.change(Change::Restart(path("/t"))).unwrap();
    world.join("n2", 10, &[]);
    assert!(world.run("/t/b").is_none(), "there is room now, and its supervisor stops");
    world.advance(Duration::from_secs(1));
    assert!(world.is_ready("/t/a") && world.is_ready("/t/b") && world.is_ready("/t/s/x"));
}

#[test]
fn a_delayed_supervisor_does_not_start_while_its_parent_stops() {
    let mut world = World::new(&["n1"]);
    let delayed = nested("s", |_, s| s.intensity = budget(0, 10), vec![permanent("x")]);
    world.apply(&tree("t", |_| {}, vec![permanent("a"), delayed]));
    world.crash("/t/s/x", 1);
    assert_eq!(world.row("/t/s").state, State::BackingOff);
    world.change(Change::Stop(path("/t"))).unwrap();
    world.sim.now += ms(5_000);
    world.command(pando_supervision::Command::Tick);
    assert_eq!(world.row("/t/s").state, State::Stopped);
}

#[test]
fn a_supervisor_restarted_by_its_parent_begins_with_an_empty_window_and_children_at_base_backoff() {
    let mut world = World::new(&["n1"]);
    let pool = nested(
        "pool",
        |_, pool| pool.intensity = budget(2, 60),
        vec![process("a", |child, _| {
            child.backoff.jitter = 0;
        })],
    );
    world.apply(&tree("t", |root| root.intensity = Intensity::Unlimited, vec![pool]));
    world.crash_times("/t/pool/a", 3);
    world.advance_to_run("/t/pool/a");
    world.crash("/t/pool/a", 1);
    assert_eq!(world.run("/t/pool/a").expect("assigned").delay, ms(50));
    world.crash_times("/t/pool/a", 1);
    assert_eq!(world.count(EventKind::Escalated, "/t/pool"), 1);
}

#[test]
fn time_spent_stopping_is_no_time_up() {
    let mut world = World::new(&["n1"]);
    let pool = nested(
        "pool",
        |child, pool| {
            child.backoff.jitter = 0;
            pool.intensity = budget(0, 60);
        },
        vec![permanent("a"), permanent("b")],
    );
    world.apply(&tree("t", |root| root.intensity = Intensity::Unlimited, vec![pool]));
    for expected in [ms(50), ms(100)] {
        world.advance_to_run("/t/pool/b");
        world.crash("/t/pool/a", 1);
        world.sim.now += Duration::from_secs(30);
        world.crash("/t/pool/b", 143);
        let before = world.sim.now;
        world.advance_to_run("/t/pool/a");
        assert_eq!(world.sim.now - before, expected);
    }
}

#[test]
fn charged_restarts_are_counted_by_what_ended_the_member() {
    let mut world = World::new(&["n1", "n2"]);
    let own = process("a", |_, process| process.intensity = Some(budget(2, 60)));
    world.apply(&tree(
        "t",
        |root| root.intensity = budget(9, 60),
        vec![nested("pool", |_, pool| pool.intensity = budget(2, 60), vec![own])],
    ));
    world.crash("/t/pool/a", 0);
    world.advance_to_run("/t/pool/a");
    world.crash_times("/t/pool/a", 2);
    // Its own account is spent by then: that is told in the cause, and is not what ended it.
    let counted = |world: &World, path: &str| {
        world.member(path).restarts.iter().map(|(class, count)| (*class, *count)).collect::<Vec<_>>()
    };
    assert_eq!(counted(&world, "/t/pool/a"), [(CauseClass::Normal, 1), (CauseClass::Crash, 2)]);
    assert_eq!((world.row("/t/pool/a").restarts, counted(&world, "/t/pool")), (3, vec![]));
    world.lose("n1");
    assert_eq!(world.row("/t/pool/a").restarts, 3, "a loss is no charged restart");
    world.crash_times("/t/pool/a", 6);
    assert_eq!(counted(&world, "/t/pool"), [(CauseClass::Escalated, 1)]);
}

#[test]
fn a_significant_child_that_a_new_spec_took_out_is_not_waited_for() {
    let mut world = World::new(&["n1"]);
    let spec = |children| tree("t", |root| root.auto_shutdown = AutoShutdown::AllSignificant, children);
    let (b, c) = (|| significant("b", Restart::Transient), || significant("c", Restart::Transient));
    world.apply(&spec(vec![permanent("a"), b(), c()]));
    world.change(Change::Apply(spec(vec![permanent("a"), b()]))).expect("the spec is accepted"); // c still stops.
    world.crash("/t/b", 0);
    assert_eq!(world.row("/t").state, State::Stopping, "all that count have ended");
}

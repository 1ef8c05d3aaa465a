//! Words that come late, twice or from nobody; retries of writes.

use std::time::Duration;

use pando_protocol::cause::{Exit, ExitHow, OutOfMemory};
use pando_protocol::ids::{Incarnation, SessionId};
use pando_protocol::message::Change;
use pando_protocol::rejection::Rejection;
use pando_protocol::session::Observation;
use pando_supervision::cluster::Stage;
use pando_supervision::{Command, Done, EndProof, Stamp};
use pando_tests::rules::specs::{path, permanent, tree};
use pando_tests::rules::world::World;

fn world() -> World {
    let mut world = World::new(&["n1", "n2"]);
    world.apply(&tree("t", |_| {}, vec![permanent("a")]));
    world
}

fn exited(incarnation: Incarnation) -> Observation {
    let exit = Exit {
        how: ExitHow::Code(1),
        ran: Duration::ZERO,
        healthy: None,
        out_of_memory: OutOfMemory::No,
        stderr: None,
    };
    Observation::Exited { path: path("/t/a"), incarnation, exit, started: Vec::new() }
}

fn observe(node: &str, session: SessionId, number: u64, observation: Observation) -> Command {
    Command::Observe { node: node.parse().unwrap(), session, number, observation }
}

#[test]
fn an_observation_that_comes_again_changes_nothing_and_is_acknowledged() {
    let mut world = world();
    world.crash("/t/a", 1);
    let told = world.sim.runners.values().flat_map(|runner| runner.told.clone()).collect::<Vec<_>>();
    let before = world.sim.cluster.clone();
    for (session, number, observation) in told {
        let applied = world.command(observe("n1", session, number, observation));
        assert_eq!(applied.outcome, Ok(Done::Observed(3)));
        assert!(applied.events.is_empty());
    }
    assert_eq!(world.sim.cluster, before);
}

#[test]
fn an_observation_out_of_order_is_refused_with_the_number_that_is_expected() {
    let mut world = world();
    let run = world.run("/t/a").expect("it runs").clone();
    let refusal = world.command(observe("n1", run.session, 9, exited(run.incarnation))).outcome;
    assert_eq!(refusal, Err(Rejection::OutOfOrder { got: 9, expected: 3 }));
    assert!(world.is_ready("/t/a"));
}

#[test]
fn words_about_a_run_that_is_over_change_nothing_but_the_count() {
    let mut world = world();
    let old = world.run("/t/a").expect("it runs").incarnation;
    world.restart("/t/a");
    let before = world.sim.cluster.members.clone();
    for observation in [
        exited(old),
        Observation::Started { path: path("/t/a"), incarnation: old, pid: 1 },
        Observation::Ready { path: path("/t/a"), incarnation: old },
        Observation::NeverStarted { path: path("/t/a"), incarnation: old },
        exited(Incarnation(999)),
        Observation::Ready { path: path("/u/never"), incarnation: old },
    ] {
        world.say("n1", observation);
    }
    assert_eq!(world.sim.cluster.members, before);
}

#[test]
fn words_of_another_node_or_an_older_session_do_not_touch_the_run() {
    let mut world = world();
    let run = world.run("/t/a").expect("it runs").clone();
    let other = world.sim.runners[&"n2".parse().unwrap()].session.expect("it has one");
    world.command(observe("n2", other, 1, exited(run.incarnation)));
    assert!(world.is_ready("/t/a"));
    world.lose("n1");
    let late = world.command(observe("n1", run.session, 3, exited(run.incarnation))).outcome;
    assert_eq!(late, Err(Rejection::SessionOver(run.session)));
    let nobody = world.command(observe("n9", SessionId(77), 1, Observation::Left)).outcome;
    assert_eq!(nobody, Err(Rejection::SessionOver(SessionId(77))));
}

#[test]
fn a_promise_counts_only_for_a_run_that_should_end() {
    let mut world = World::new(&["n1"]);
    world.change(Change::Apply(tree("t", |_| {}, vec![permanent("a")]))).unwrap();
    let run = world.run("/t/a").expect("assigned").clone();
    world.say("n1", Observation::NeverStarted { path: path("/t/a"), incarnation: run.incarnation });
    assert_eq!(world.run("/t/a"), Some(&run));
}

#[test]
fn ready_before_started_is_no_word_at_all() {
    let mut world = World::new(&["n1"]);
    world.change(Change::Apply(tree("t", |_| {}, vec![permanent("a")]))).unwrap();
    let incarnation = world.run("/t/a").expect("assigned").incarnation;
    world.say("n1", Observation::Ready { path: path("/t/a"), incarnation });
    assert_eq!(world.run("/t/a").expect("assigned").stage, Stage::Assigned);
}

#[test]
fn a_retried_write_applies_once_and_gets_the_same_reply() {
    let mut world = world();
    let write = world.sim.write(500, Change::Restart(path("/t/a")));
    let first = world.command(Command::Write(write.clone())).outcome;
    world.settle();
    let before = world.sim.cluster.clone();
    assert_eq!(world.command(Command::Write(write)).outcome, first);
    assert_eq!(world.sim.cluster, before);
}

#[test]
fn a_refused_write_is_refused_the_same_when_it_is_retried() {
    let mut world = world();
    let write = world.sim.write(500, Change::Start(path("/t/nobody")));
    let first = world.command(Command::Write(write.clone())).outcome;
    assert!(first.is_err());
    world.apply(&tree("t", |_| {}, vec![permanent("a"), permanent("nobody")]));
    assert_eq!(world.command(Command::Write(write)).outcome, first);
}

#[test]
fn a_retry_of_what_was_answered_or_of_a_client_long_silent_comes_too_late() {
    let mut world = world();
    let first = world.sim.write(500, Change::Stop(path("/t/a")));
    let second = world.sim.write(500, Change::Start(path("/t/a")));
    for write in [&first, &second] {
        world.command(Command::Write(write.clone())).outcome.unwrap();
    }
    assert_eq!(world.command(Command::Write(first)).outcome, Err(Rejection::TooLateToTell));
    world.advance(Duration::from_secs(600));
    assert_eq!(world.command(Command::Write(second)).outcome, Err(Rejection::TooLateToTell));
}

#[test]
fn a_stamp_of_a_clock_that_lags_never_turns_time_back() {
    let mut world = world();
    world.advance(Duration::from_secs(5));
    world.sim.now = Duration::from_secs(1);
    world.command(Command::Tick);
    assert_eq!(world.sim.cluster.head.now, Duration::from_secs(5));
}

#[test]
fn the_largest_numbers_are_taken_like_any_other() {
    let mut world = World::new(&["n1", "n2"]);
    world.apply(&tree("t", |_| {}, vec![permanent("a"), permanent("b")]));
    let mut cluster = world.sim.cluster.clone();
    let run = world.run("/t/a").expect("it runs").clone();
    let huge = |how| Exit {
        how,
        ran: Duration::MAX,
        healthy: Some(Duration::MAX),
        out_of_memory: OutOfMemory::Yes,
        stderr: Some("\n".repeat(9_999)),
    };
    let exited = |incarnation, exit| Observation::Exited { path: path("/t/a"), incarnation, exit, started: Vec::new() };
    let last = Stamp { at: Duration::MAX, wall: u64::MAX };
    let commands = [
        observe("n1", run.session, 3, exited(run.incarnation, huge(ExitHow::Unready(Duration::MAX)))),
        observe("n1", run.session, u64::MAX, exited(run.incarnation, huge(ExitHow::ReaperLost))),
        observe("n1", run.session, 4, exited(Incarnation(u64::MAX), huge(ExitHow::ReaperLost))),
        Command::EndSession { node: "n2".parse().unwrap(), session: SessionId(2), proof: EndProof::Lease },
        observe("n1", run.session, 4, Observation::Leaving),
        observe("n1", run.session, 5, Observation::Left),
        Command::RaiseRules(u32::MAX),
        Command::Tick,
    ];
    for command in commands {
        pando_supervision::apply(&mut cluster, last, command);
        pando_supervision::report::tree(&cluster, None);
    }
    assert_eq!((cluster.head.now, cluster.head.rules), (Duration::MAX, u32::MAX));
}

#[test]
fn rules_are_raised_and_never_lowered() {
    let mut world = world();
    assert_eq!(world.command(Command::RaiseRules(3)).outcome, Ok(Done::Rules(3)));
    assert_eq!(world.command(Command::RaiseRules(2)).outcome, Ok(Done::Rules(3)));
}

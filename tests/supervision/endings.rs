//! The table of endings and payers, row by row; restart types; the rules of `on_exit`.

use std::time::Duration;

use pando_protocol::cause::{CauseClass, ExitHow};
use pando_protocol::message::Change;
use pando_protocol::spec::{ExitAction, ExitMatch, ExitRule, Restart, Signal, Strategy, SupervisorSpec};
use pando_protocol::view::State;
use pando_supervision::EventKind;
use pando_tests::rules::specs::{budget, ms, permanent, process, tree, with_restart};
use pando_tests::rules::world::World;

/// A world in which `/t/a` runs with this restart type.
fn with(restart: Restart) -> World {
    let mut world = World::new(&["n1", "n2"]);
    world.apply(&tree("t", |_| {}, vec![with_restart("a", restart)]));
    world
}

/// A world in which `/t/a` has this rule for exit code 7.
fn with_rule(restart: Restart, action: ExitAction) -> World {
    let mut world = World::new(&["n1"]);
    let rule = ExitRule { when: ExitMatch::Code(7), action };
    let child = process("a", |child, spec| {
        child.restart = restart;
        spec.on_exit = vec![rule];
    });
    world.apply(&tree("t", |_| {}, vec![child]));
    world
}

/// Class, who was charged, and what the child does then.
fn after(world: &World) -> (CauseClass, bool, State) {
    let last = world.last("/t/a");
    (last.cause.class, last.charged, world.row("/t/a").state)
}

#[test]
fn a_normal_ending_is_paid_by_nobody_where_it_leads_to_no_restart_and_as_a_crash_where_it_does() {
    for (restart, expected) in [
        (Restart::Permanent, (CauseClass::Normal, true, State::BackingOff)),
        (Restart::Transient, (CauseClass::Normal, false, State::Finished)),
        (Restart::Temporary, (CauseClass::Normal, false, State::Finished)),
    ] {
        let mut world = with(restart);
        world.crash("/t/a", 0);
        assert_eq!(after(&world), expected, "{restart:?}");
    }
}

#[test]
fn a_crash_is_paid_by_the_budget_and_ends_a_temporary_child() {
    for how in [ExitHow::Code(1), ExitHow::Signal(Signal(11)), ExitHow::Signal(Signal::KILL)] {
        for (restart, expected) in [
            (Restart::Permanent, (CauseClass::Crash, true, State::BackingOff)),
            (Restart::Transient, (CauseClass::Crash, true, State::BackingOff)),
            (Restart::Temporary, (CauseClass::Crash, false, State::Finished)),
        ] {
            let mut world = with(restart);
            world.exit("/t/a", how.clone(), None);
            assert_eq!(after(&world), expected, "{restart:?} {how:?}");
        }
    }
}

#[test]
fn an_exit_code_that_is_listed_as_normal_is_normal_and_zero_is_not_when_it_is_not_listed() {
    let mut world = World::new(&["n1"]);
    let child = process("a", |child, spec| {
        child.restart = Restart::Transient;
        spec.normal_exit = [3].into();
    });
    world.apply(&tree("t", |_| {}, vec![child]));
    world.crash("/t/a", 0);
    assert_eq!(after(&world).0, CauseClass::Crash);
    world.advance_to_run("/t/a");
    world.crash("/t/a", 3);
    assert_eq!(after(&world), (CauseClass::Normal, false, State::Finished));
}

#[test]
fn a_child_that_is_not_ready_in_time_pays_and_its_backoff_grows() {
    let mut world = with(Restart::Transient);
    world.exit("/t/a", ExitHow::Unready(Duration::from_secs(10)), None);
    assert_eq!(after(&world), (CauseClass::Unhealthy, true, State::BackingOff));
    assert_eq!(world.member("/t/a").delays, 1);
}

#[test]
fn a_start_that_fails_is_tried_elsewhere_at_once_and_the_second_node_makes_the_budget_pay() {
    let mut world = with(Restart::Permanent);
    let why = ExitHow::StartFailed("no such program".into());
    let first = world.node_of("/t/a").expect("assigned");
    world.exit("/t/a", why.clone(), None);
    assert_eq!((world.last("/t/a").cause.class, world.last("/t/a").charged), (CauseClass::StartFailed, false));
    let second = world.node_of("/t/a").expect("tried elsewhere");
    assert_ne!(first, second);
    assert!(world.run("/t/a").expect("assigned").delay.is_zero());
    world.exit("/t/a", why, None);
    assert!(world.last("/t/a").charged);
    assert_eq!(world.member("/t/a").delays, 1);
}

#[test]
fn a_start_that_fails_on_the_only_node_is_charged() {
    let mut world = World::new(&["n1"]);
    world.apply(&tree("t", |_| {}, vec![permanent("a")]));
    world.exit("/t/a", ExitHow::StartFailed("permission denied".into()), None);
    assert!(world.last("/t/a").charged);
}

#[test]
fn the_node_that_refused_a_child_is_asked_last_and_its_penalty_halves_every_minute() {
    let mut world = World::new(&["n1", "n2", "n3"]);
    world.apply(&tree("t", |_| {}, vec![permanent("a")]));
    assert_eq!(world.node_of("/t/a").as_deref(), Some("n1"));
    world.exit("/t/a", ExitHow::StartFailed("no".into()), None);
    assert_eq!(world.node_of("/t/a").as_deref(), Some("n2"));
    world.settle();
    world.lose("n2");
    assert_eq!(world.node_of("/t/a").as_deref(), Some("n3"), "n1 still has its penalty");
    world.rejoin("n2");
    world.settle();
    world.advance(Duration::from_secs(60));
    world.lose("n3");
    assert_eq!(world.node_of("/t/a").as_deref(), Some("n1"), "one failure, halved once, no longer counts");
}

#[test]
fn a_lost_reaper_goes_unpaid_three_times_in_a_row_and_is_charged_the_fourth_time() {
    let mut world = with(Restart::Permanent);
    for nth in 1..=4 {
        world.advance_to_run("/t/a");
        world.exit("/t/a", ExitHow::ReaperLost, None);
        assert_eq!(world.last("/t/a").charged, nth == 4, "loss {nth}");
        world.advance(ms(20));
        assert!(!world.is_ready("/t/a"), "it waits a delay, paid or not");
    }
}

#[test]
fn unpaid_endings_of_different_kinds_count_together() {
    let mut world = World::new(&["n1", "n2", "n3"]);
    world.apply(&tree("t", |_| {}, vec![permanent("a")]));
    for _ in 0..3 {
        world.advance_to_run("/t/a");
        world.exit("/t/a", ExitHow::ReaperLost, None);
    }
    world.advance(ms(100));
    world.exit("/t/a", ExitHow::StartFailed("no".into()), None);
    assert!(world.last("/t/a").charged, "a fourth unpaid ending in a row would be one too many");
}

#[test]
fn a_stop_that_we_asked_for_is_never_a_crash_whatever_the_exit_code() {
    let mut world = with(Restart::Permanent);
    world.change(Change::Stop("/t/a".parse().unwrap())).unwrap();
    world.crash("/t/a", 99);
    assert_eq!(after(&world), (CauseClass::Stopped, false, State::Stopped));
    assert!(world.last("/t/a").cause.message.starts_with("stopped by operator"));
}

fn refused(world: &mut World, path: &str) {
    world.exit(path, ExitHow::StartFailed("no such program".into()), None);
}

#[test]
fn a_temporary_child_that_a_node_cannot_start_is_tried_on_another_one_since_nothing_has_run() {
    let mut world = World::new(&["n1", "n2"]);
    world.change(Change::Apply(tree("t", |_| {}, vec![with_restart("a", Restart::Temporary)]))).unwrap();
    refused(&mut world, "/t/a");
    let row = world.last("/t/a");
    assert_eq!(
        (row.payer.as_str(), row.decision.as_str()),
        ("node n1: other nodes are tried first", "tried on another node at once")
    );
    world.settle();
    assert_eq!((world.node_of("/t/a").as_deref(), world.is_ready("/t/a")), (Some("n2"), true));
    world.crash("/t/a", 1);
    assert_eq!(world.row("/t/a").state, State::Finished, "it has run");
}

#[test]
fn a_temporary_child_that_no_node_can_start_ends() {
    for nodes in [&["n1"][..], &["n1", "n2"], &["n1", "n2", "n3"]] {
        let mut world = World::new(nodes);
        world.change(Change::Apply(tree("t", |_| {}, vec![with_restart("a", Restart::Temporary)]))).unwrap();
        for _ in nodes.iter().take(2) {
            assert_ne!(world.row("/t/a").state, State::Finished);
            refused(&mut world, "/t/a");
        }
        assert_eq!(world.row("/t/a").state, State::Finished, "{nodes:?}");
        assert_eq!(world.row("/t").restart_rate, 0, "it is never restarted, so nobody pays");
    }
}

#[test]
fn a_temporary_member_that_its_node_cannot_start_goes_elsewhere_without_its_group() {
    let members = || vec![permanent("a"), with_restart("b", Restart::Temporary), permanent("c")];
    for (colocate, expected) in [(false, State::Running), (true, State::Finished)] {
        let mut world = World::new(&["n1", "n2"]);
        let group = |root: &mut SupervisorSpec| (root.strategy, root.colocate) = (Strategy::OneForAll, colocate);
        world.change(Change::Apply(tree("t", group, members()))).unwrap();
        world.advance_to_assigned("/t/b");
        let before = world.run("/t/a").unwrap().incarnation;
        refused(&mut world, "/t/b");
        world.settle();
        assert_eq!(world.row("/t/b").state, expected, "colocate = {colocate}");
        assert_eq!(world.run("/t/a").unwrap().incarnation, before, "it restarts nobody");
        assert!(world.is_ready("/t/c"));
    }
}

#[test]
fn on_exit_ignore_makes_an_ending_normal() {
    let mut world = with_rule(Restart::Transient, ExitAction::Ignore);
    world.crash("/t/a", 7);
    assert_eq!(after(&world), (CauseClass::Normal, false, State::Finished));
    let mut world = with_rule(Restart::Permanent, ExitAction::Ignore);
    world.crash("/t/a", 7);
    assert_eq!(after(&world), (CauseClass::Normal, true, State::BackingOff));
}

#[test]
fn on_exit_restart_restarts_whatever_the_restart_type_and_is_charged() {
    for restart in [Restart::Permanent, Restart::Transient, Restart::Temporary] {
        let mut world = with_rule(restart, ExitAction::Restart);
        world.crash("/t/a", 7);
        assert_eq!(after(&world), (CauseClass::Crash, true, State::BackingOff), "{restart:?}");
    }
}

#[test]
fn on_exit_stop_leaves_the_child_down_until_it_is_started() {
    let mut world = with_rule(Restart::Permanent, ExitAction::Stop);
    world.crash("/t/a", 7);
    assert_eq!(after(&world), (CauseClass::Crash, false, State::Stopped));
    world.advance(Duration::from_secs(600));
    assert_eq!(world.row("/t/a").state, State::Stopped);
    world.start("/t/a");
    assert!(world.is_ready("/t/a"));
}

#[test]
fn on_exit_stop_ends_when_the_supervisor_restarts() {
    let mut world = with_rule(Restart::Permanent, ExitAction::Stop);
    world.crash("/t/a", 7);
    world.restart("/t");
    assert!(world.is_ready("/t/a"));
}

#[test]
fn on_exit_escalate_escalates_at_once() {
    let mut world = with_rule(Restart::Permanent, ExitAction::Escalate);
    world.crash("/t/a", 7);
    assert_eq!(world.row("/t").state, State::Failed);
    assert_eq!(world.last("/t").cause.message, "a rule of on_exit");
    assert_eq!(world.last("/t").chain[0].code, Some(7));
}

#[test]
fn other_endings_of_a_child_with_rules_are_treated_as_usual_and_signals_can_have_rules_too() {
    let mut world = with_rule(Restart::Permanent, ExitAction::Escalate);
    world.crash("/t/a", 8);
    assert_eq!(after(&world), (CauseClass::Crash, true, State::BackingOff));
    let mut world = World::new(&["n1"]);
    let rule = ExitRule { when: ExitMatch::Signal(Signal(10)), action: ExitAction::Stop };
    world.apply(&tree("t", |_| {}, vec![process("a", |_, spec| spec.on_exit = vec![rule])]));
    world.exit("/t/a", ExitHow::Signal(Signal(10)), None);
    assert_eq!(world.row("/t/a").state, State::Stopped);
}

#[test]
fn a_child_with_an_account_of_its_own_counts_as_one_crash_of_its_supervisor_when_that_is_spent() {
    let mut world = World::new(&["n1"]);
    let own = process("a", |_, spec| spec.intensity = Some(budget(2, 60)));
    world.apply(&tree("t", |root| root.intensity = budget(1, 60), vec![own]));
    world.crash_times("/t/a", 2);
    assert_eq!(world.last("/t/a").payer, "its own budget: 2 of 2 in 1 m spent");
    world.crash_times("/t/a", 1);
    assert_eq!(world.last("/t/a").payer, "its own budget, which is spent; budget of /t: 1 of 1 in 1 m spent");
    assert_eq!(world.last("/t/a").cause.message, "3 crashes in 1 m");
    world.crash_times("/t/a", 2);
    assert_eq!(world.row("/t").state, State::Running, "its own account began anew");
    world.crash_times("/t/a", 1);
    assert_eq!(world.row("/t").state, State::Failed);
}

#[test]
fn a_crash_counts_until_exactly_the_end_of_its_window() {
    for (gap, escalated) in [(ms(9_999), 1), (ms(10_000), 0)] {
        let mut world = World::new(&["n1"]);
        world.apply(&tree("t", |root| root.intensity = budget(1, 10), vec![permanent("a")]));
        world.crash("/t/a", 1);
        world.advance(gap);
        world.crash("/t/a", 1);
        assert_eq!(world.count(EventKind::Escalated, "/t"), escalated, "{gap:?}");
    }
}

#[test]
fn what_the_world_says_about_an_ending_is_kept_within_bounds() {
    let mut world = with(Restart::Permanent);
    let flood: String = (0..10_000).map(|line| format!("line {line}\n")).collect();
    world.exit("/t/a", ExitHow::Code(1), Some(&flood));
    let kept = world.last("/t/a").cause.stderr;
    assert_eq!((kept.lines().count(), kept.lines().last()), (20, Some("line 9999")));
    world.advance_to_run("/t/a");
    world.exit("/t/a", ExitHow::Code(1), Some(&"ä".repeat(100_000)));
    assert!(world.last("/t/a").cause.stderr.len() <= 4 << 10);
    world.exit("/t/a", ExitHow::StartFailed("x".repeat(100_000)), None);
    assert!(world.last("/t/a").cause.message.len() < 1_000);
}

#[test]
fn standard_error_that_is_not_sent_again_is_that_of_the_last_process_on_that_node() {
    let mut world = with(Restart::Permanent);
    world.crash("/t/a", 1);
    world.advance_to_run("/t/a");
    let node = world.node_of("/t/a").expect("it runs");
    world.lose(&node);
    world.settle();
    world.exit("/t/a", ExitHow::Code(2), Some("on the other node\n"));
    world.rejoin(&node);
    world.advance_to_run("/t/a");
    world.exit("/t/a", ExitHow::Code(3), None);
    assert_eq!(world.last("/t/a").cause.stderr, "on the other node\n");
}

#[test]
fn endings_of_different_kinds_do_not_fold() {
    let mut world = with(Restart::Permanent);
    world.exit("/t/a", ExitHow::StartFailed("no such program".into()), None);
    world.exit("/t/a", ExitHow::StartFailed("permission denied".into()), None);
    world.restart("/t/a");
    world.stop("/t/a");
    world.start("/t/a");
    world.restart("/t/a");
    let messages: Vec<_> = world.history("/t/a").into_iter().map(|row| row.cause.message).collect();
    assert_eq!(
        messages,
        [
            "could not be started: no such program",
            "could not be started: permission denied",
            "stopped by operator (SIGTERM)",
            "stopped for a restart by operator (SIGTERM)",
        ]
    );
}

//! What a node does whose guard hangs, forgets or dies.

use super::*;

#[test]
fn a_guard_that_confirms_no_kill_time_is_killed_and_the_node_ends_once_all_is_gone() {
    play(Guard::Ignores, async |world| {
        world.grant(FIRST).await;
        assert_eq!(world.pass(LEASE / 2 + BEAT).await, []);
        assert_eq!(world.orders(), [Order::KillGuard]);
        let beats = SimRuntime::timeout(LEASE, world.words.recv()).await;
        assert!(beats.is_err(), "nothing is said any more: {beats:?}");
        world.happens(exited(1)).await;
        assert!(matches!(world.ends_without_guard().await, Silence::Unanswered(_)));
    });
}

#[test]
fn a_node_that_is_cut_off_finds_its_hung_guard_and_kills_everything_before_its_lease_ends() {
    play(Guard::Works, async |world| {
        world.runs(&[1]).await;
        world.answers = false;
        world.guard_does(Guard::Hangs);
        world.pass(LEASE - BEAT * 2).await;
        assert_eq!(world.orders(), [Order::KillGuard]);
        assert!(matches!(world.ends_without_guard().await, Silence::Unanswered(_)));
    });
}

#[test]
fn a_guard_that_is_slow_with_many_starts_is_waited_for() {
    play(Guard::Works, async |world| {
        world.runs(&[1, 2, 3, 4, 5, 6]).await;
        world.guard_does(Guard::Hangs);
        for number in 1..=6 {
            world.pass(LEASE / 2 - BEAT * 2).await;
            world.happens(started(number)).await;
        }
        assert_eq!(world.orders(), []);
        world.pass(LEASE).await;
        assert_eq!(world.orders(), [Order::KillGuard], "it did nothing for half a lease");
    });
}

#[test]
fn a_lease_that_ends_without_the_guards_word_that_it_killed_ends_the_node() {
    play(Guard::Forgets, async |world| {
        world.grant(FIRST).await;
        world.answers = false;
        assert_eq!(world.pass(LEASE + BEAT).await, [], "no session is asked for");
        assert_eq!(world.orders(), [Order::KillGuard]);
        assert_eq!(world.ends_without_guard().await, Silence::Unfenced);
    });
}

#[test]
fn a_node_whose_guard_is_lost_names_the_sessions_that_are_over_and_none_where_that_is_not_known() {
    for nothing_left in [true, false] {
        play(Guard::Works, async |world| {
            world.grant(FIRST).await;
            world.over(FIRST).await;
            world.pass(LINGER_LIMIT - BEAT).await;
            world.grant(SECOND).await;
            world.pass(BEAT).await;
            world.happens(ChildEvent::GuardLost { nothing_left }).await;
            let error = world.ended().await.unwrap_err();
            let expected: &[SessionId] = if nothing_left { &[FIRST, SECOND] } else { &[] };
            assert_eq!(error.known_over(), expected, "{error}");
        });
    }
}

#[test]
fn no_session_is_asked_for_while_the_guard_may_not_have_ended_the_last_one() {
    play(Guard::Works, async |world| {
        world.grant(FIRST).await;
        world.pass(BEAT).await;
        world.guard_does(Guard::Hangs);
        world.over(FIRST).await;
        assert_eq!(world.pass(LINGER_LIMIT * 2).await, []);
        assert_eq!(world.orders(), [Order::EndSession(FIRST), Order::KillGuard]);
        world.happens(ChildEvent::GuardLost { nothing_left: false }).await;
        assert!(matches!(world.ended().await, Err(RunnerError::NotCleanedUp(_))));
    });
}

#[test]
fn a_node_whose_silent_guard_cannot_be_cleaned_up_says_so() {
    play(Guard::Hangs, async |world| {
        world.grant(FIRST).await;
        assert!(matches!(world.ended().await, Err(RunnerError::NotCleanedUp(_))));
    });
}

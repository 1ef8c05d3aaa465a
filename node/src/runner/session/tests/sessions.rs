//! How a session is got, held and lost.

use super::*;

#[test]
fn a_fenced_session_is_over_at_once_and_the_next_request_proves_it() {
    play(Guard::Works, async |world| {
        world.grant(FIRST).await;
        world.pass(BEAT * 3).await;
        world.happens(ChildEvent::Fenced { session: FIRST }).await;
        world.happens(gone(FIRST)).await;
        let request = world.grant(SECOND).await;
        assert_eq!(request.proven_over, [FIRST]);
        assert_eq!(world.orders(), [Order::EndSession(FIRST)]);
        // The answers to the second session's beats are confirmed by the guard: it goes on.
        world.pass(LEASE * 3).await;
        world.desire(SECOND, 9, vec![wanted(5)], vec![]).await;
        world.pass(BEAT).await;
        assert_eq!(world.orders(), [Order::Start(5)]);
    });
}

#[test]
fn nothing_is_done_or_said_under_a_session_after_its_lease() {
    play(Guard::Works, async |world| {
        world.grant(FIRST).await;
        world.desire(FIRST, 5, vec![wanted(1)], vec![]).await;
        world.answers = false;
        let words = world.pass(LEASE + BEAT).await;
        assert!(only_asks(&words), "{words:?}");
        assert_eq!(world.orders(), [Order::Start(1), Order::EndSession(FIRST)]);
        world.desire(FIRST, 6, vec![wanted(2)], vec![]).await;
        world.happens(exited(1)).await;
        let words = world.pass(LEASE * 2).await;
        assert!(only_asks(&words), "{words:?}");
        assert_eq!(world.orders(), []);
    });
}

#[test]
fn a_new_session_is_asked_for_without_proof_where_the_old_ones_processes_do_not_go() {
    play(Guard::Works, async |world| {
        world.grant(FIRST).await;
        world.over(FIRST).await;
        assert_eq!(world.pass(LINGER_LIMIT - BEAT).await, []);
        assert_eq!(world.grant(SECOND).await.proven_over, []);
    });
}

#[test]
fn a_session_that_is_granted_too_late_is_left_at_once_and_one_that_was_begun_never_is() {
    play(Guard::Works, async |world| {
        let first = world.asked().await;
        let asked = world.pass(LEASE * 3).await;
        let is_newer = |word: &RunnerWord| matches!(word, RunnerWord::Ask(later) if later.nonce != first.nonce);
        assert!(asked.iter().any(is_newer), "{asked:?}");
        world.granted(&first, FIRST).await;
        let words = world.pass(BEAT).await;
        let left = RunnerWord::Observe { session: FIRST, number: 1, observation: Observation::Left };
        assert_eq!(words.iter().filter(|word| **word == left).count(), 1, "{words:?}");
        // Not begun, whatever it is told to run.
        world.desire(FIRST, 5, vec![wanted(1)], vec![]).await;
        let request = world.grant(SECOND).await;
        assert_eq!(request.proven_over, []);
        world.granted(&request, SECOND).await;
        assert_eq!(world.pass(BEAT).await, []);
        world.over(SECOND).await;
        world.granted(&request, SECOND).await;
        let words = world.pass(LINGER_LIMIT + BEAT * 2).await;
        assert!(only_asks(&words), "its processes may be there: {words:?}");
        assert_eq!(world.orders(), [Order::EndSession(SECOND)]);
    });
}

#[test]
fn an_observation_is_said_again_until_it_is_applied() {
    play(Guard::Works, async |world| {
        world.runs(&[1]).await;
        world.happens(exited(1)).await;
        for _ in 0..3 {
            let (session, number, observation) = world.observed().await;
            assert!(session == FIRST && number == 1 && matches!(observation, Observation::Exited { .. }));
        }
        world.applied(FIRST, 1).await;
        assert_eq!(world.pass(LEASE).await, []);
    });
}

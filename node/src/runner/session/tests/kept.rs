//! What is kept from one session to the next.

use super::*;

impl World {
    /// A kept run and another one are started under [`FIRST`], whose lease then ends.
    async fn keep_one(&mut self) {
        self.grant(FIRST).await;
        self.desire(FIRST, 5, vec![kept(1), wanted(2)], vec![]).await;
        let begun = Observation::Kept { sessions: vec![], runs: vec![] };
        assert_eq!(self.observed().await, (FIRST, 1, begun));
        self.pass(BEAT / 2).await;
        assert_eq!(self.orders(), [Order::Start(2)], "nothing that is kept starts before that is applied");
        self.applied(FIRST, 1).await;
        self.pass(BEAT / 2).await;
        assert_eq!(self.orders(), [Order::Start(1)]);
        self.answers = false;
        self.pass(LEASE).await;
        assert_eq!(self.orders(), [Order::EndSession(FIRST)]);
    }
}

#[test]
fn what_is_kept_goes_on_under_the_next_session_once_nothing_else_of_the_old_one_is_left() {
    play(Guard::Works, async |world| {
        world.keep_one().await;
        world.happens(started(1)).await;
        world.answers = true;
        world.pass(LINGER_LIMIT).await;
        let request = world.grant(SECOND).await;
        assert_eq!(request.proven_over, [], "what is kept is not over");
        assert_eq!(world.pass(BEAT * 2).await, [], "run 2 may be there still");
        world.happens(exited(2)).await;
        world.happens(gone(FIRST)).await;
        let told = Observation::Kept { sessions: vec![FIRST], runs: vec![ending(1)] };
        assert_eq!(world.observed().await, (SECOND, 1, told));
        let told = Observation::Started { path: path(), incarnation: Incarnation(1), pid: 9 };
        assert_eq!(world.observed().await, (SECOND, 2, told), "what happened meanwhile is told after it");
        // It is named nowhere until the cluster has applied that, and is neither stopped nor started for it.
        world.desire(SECOND, 8, vec![], vec![]).await;
        world.pass(BEAT / 2).await;
        world.desire(SECOND, 9, vec![kept(1)], vec![]).await;
        world.applied(SECOND, 2).await;
        assert_eq!(world.pass(LEASE).await, []);
        assert_eq!(world.orders(), []);
        world.desire(SECOND, 10, vec![], vec![1]).await;
        world.pass(BEAT).await;
        assert_eq!(world.orders(), [Order::Stop(1)]);
    });
}

#[test]
fn what_is_kept_and_not_wanted_any_more_is_stopped_once_the_cluster_knows_of_it() {
    play(Guard::Works, async |world| {
        world.keep_one().await;
        world.happens(gone(FIRST)).await;
        world.answers = true;
        world.grant(SECOND).await;
        assert_eq!(world.observed().await.1, 1);
        world.desire(SECOND, 9, vec![], vec![]).await;
        world.pass(BEAT / 2).await;
        assert_eq!(world.orders(), []);
        world.applied(SECOND, 1).await;
        world.pass(BEAT / 2).await;
        assert_eq!(world.orders(), [Order::Stop(1)]);
    });
}

#[test]
fn what_is_kept_and_ends_while_no_session_is_held_is_reported_under_the_next() {
    play(Guard::Works, async |world| {
        world.keep_one().await;
        world.happens(gone(FIRST)).await;
        world.happens(exited(1)).await;
        world.answers = true;
        world.pass(BEAT).await;
        world.grant(SECOND).await;
        let told = Observation::Kept { sessions: vec![FIRST], runs: vec![ending(1)] };
        assert_eq!(world.observed().await, (SECOND, 1, told));
        let (session, number, observation) = world.observed().await;
        assert!(matches!(observation, Observation::Exited { .. }), "{observation:?}");
        assert_eq!((session, number), (SECOND, 2));
        // Between the two, the cluster counts it as running: it must not be taken for one that never started.
        world.desire(SECOND, 9, vec![kept(1)], vec![]).await;
        world.applied(SECOND, 1).await;
        world.pass(BEAT).await;
        assert_eq!(world.orders(), []);
    });
}

#[test]
fn what_is_kept_is_named_with_every_session_it_may_count_under() {
    play(Guard::Works, async |world| {
        world.keep_one().await;
        world.happens(gone(FIRST)).await;
        world.answers = true;
        world.grant(SECOND).await;
        assert_eq!(world.observed().await.1, 1);
        // Nobody knows whether that was applied.
        world.answers = false;
        world.pass(LEASE + BEAT).await;
        world.happens(gone(SECOND)).await;
        world.answers = true;
        let third = SessionId(3);
        assert_eq!(world.grant(third).await.proven_over, []);
        let both = Observation::Kept { sessions: vec![FIRST, SECOND], runs: vec![ending(1)] };
        let words = world.pass(BEAT / 2).await;
        assert!(words.contains(&RunnerWord::Observe { session: third, number: 1, observation: both }), "{words:?}");
    });
}

#[test]
fn a_node_that_is_told_to_go_while_it_holds_no_session_stops_what_is_kept_with_its_grace() {
    play(Guard::Works, async |world| {
        world.keep_one().await;
        world.happens(gone(FIRST)).await;
        world.pass(BEAT).await;
        world.stop.cancel();
        world.pass(BEAT * 2).await;
        assert_eq!(world.orders(), [Order::Stop(1)]);
        world.happens(exited(1)).await;
        world.ended().await.unwrap();
    });
}

#[test]
fn a_node_that_goes_begins_no_session_that_is_granted_while_what_is_kept_stops() {
    play(Guard::Works, async |world| {
        world.keep_one().await;
        world.happens(gone(FIRST)).await;
        world.answers = true;
        let request = world.asked().await;
        world.stop.cancel();
        world.pass(BEAT).await;
        world.granted(&request, SECOND).await;
        let words = world.pass(BEAT * 2).await;
        let left = RunnerWord::Observe { session: SECOND, number: 1, observation: Observation::Left };
        assert_eq!(words.iter().filter(|word| **word == left).count(), 1, "{words:?}");
        world.happens(exited(1)).await;
        world.ended().await.unwrap();
    });
}

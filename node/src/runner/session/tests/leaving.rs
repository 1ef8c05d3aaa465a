//! How a node goes that was told to.

use super::*;

#[test]
fn a_node_that_goes_promises_what_was_assigned_meanwhile_and_then_says_that_it_left() {
    play(Guard::Works, async |world| {
        world.runs(&[1]).await;
        world.tell_to_go().await;
        // Assigned before the cluster knew, and to be ended since it knows.
        world.desire(FIRST, 6, vec![wanted(1), wanted(2)], vec![]).await;
        world.pass(BEAT / 2).await;
        assert_eq!(world.orders(), [], "nothing more is started, and nothing stopped unasked");
        world.desire(FIRST, 7, vec![], vec![1, 2]).await;
        let promise = Observation::NeverStarted { path: path(), incarnation: Incarnation(2) };
        assert_eq!(world.observed().await, (FIRST, 2, promise));
        assert_eq!(world.orders(), [Order::Stop(1)]);
        world.happens(exited(1)).await;
        assert_eq!(world.observed().await.1, 3);
        world.applied(FIRST, 3).await;
        assert_eq!(world.observed().await, (FIRST, 4, Observation::Left));
        world.applied(FIRST, 4).await;
        world.ended().await.unwrap();
        assert_eq!(world.orders(), []);
    });
}

#[test]
fn a_node_that_goes_stops_one_child_after_the_other_where_the_cluster_says_so() {
    play(Guard::Works, async |world| {
        world.runs(&[1, 2, 3]).await;
        world.tell_to_go().await;
        world.applied(FIRST, 1).await;
        for (count, last) in [3, 2, 1].into_iter().enumerate() {
            let run = (1..last).map(wanted).collect();
            world.desire(FIRST, 6 + count as u64, run, vec![last]).await;
            // Longer than a lease: who is heard need not hurry.
            assert_eq!(world.pass(LEASE * 2).await, []);
            assert_eq!(world.orders(), [Order::Stop(last)]);
            world.happens(exited(last)).await;
            let (_, through, _) = world.observed().await;
            world.applied(FIRST, through).await;
        }
        assert_eq!(world.observed().await.2, Observation::Left);
    });
}

#[test]
fn a_node_that_goes_and_is_not_heard_stops_all_itself_while_its_lease_lasts() {
    for is_answered in [true, false] {
        play(Guard::Works, async |world| {
            world.runs(&[1, 2]).await;
            world.tell_to_go().await;
            if !is_answered {
                // It was heard, and then the majority went.
                world.applied(FIRST, 1).await;
                world.answers = false;
            }
            world.pass(LEASE / 2 - BEAT * 2).await;
            assert_eq!(world.orders(), []);
            world.pass(BEAT * 4).await;
            assert_eq!(world.orders(), [Order::Stop(2), Order::Stop(1)], "{is_answered}");
        });
    }
}

#[test]
fn a_node_whose_time_to_go_is_nearly_up_stops_the_rest_at_once() {
    play(Guard::Works, async |world| {
        world.runs(&[1, 2, 3]).await;
        world.tell_to_go().await;
        world.applied(FIRST, 1).await;
        world.desire(FIRST, 6, vec![wanted(1), wanted(2)], vec![3]).await;
        world.pass(LEAVE_LIMIT - STOP_TOGETHER - BEAT * 2).await;
        assert_eq!(world.orders(), [Order::Stop(3)]);
        world.pass(BEAT * 4).await;
        assert_eq!(world.orders(), [Order::Stop(2), Order::Stop(1)]);
    });
}

#[test]
fn a_node_that_goes_does_not_ask_for_another_session_when_its_own_ends_meanwhile() {
    for over in [true, false] {
        play(Guard::Works, async |world| {
            world.runs(&[1]).await;
            world.tell_to_go().await;
            world.answers = false;
            if over {
                world.over(FIRST).await;
            }
            world.ended().await.unwrap();
            assert_eq!(world.orders().last(), Some(&Order::EndSession(FIRST)));
        });
    }
}

#[test]
fn a_node_that_goes_kills_what_does_not_stop_in_time() {
    play(Guard::Works, async |world| {
        world.runs(&[1]).await;
        world.tell_to_go().await;
        world.applied(FIRST, 1).await;
        world.desire(FIRST, 6, vec![], vec![1]).await;
        world.pass(LEAVE_LIMIT - BEAT * 2).await;
        assert_eq!(world.orders(), [Order::Stop(1)]);
        world.pass(BEAT * 4).await;
        assert_eq!(world.orders(), [Order::Kill(1)]);
        world.happens(exited(1)).await;
        assert!(matches!(world.observed().await.2, Observation::Exited { .. }));
        world.applied(FIRST, 2).await;
        assert_eq!(world.observed().await.2, Observation::Left);
        world.applied(FIRST, 3).await;
        world.ended().await.unwrap();
    });
}

//! Messages between a leader and workers.

use pando_protocol::mail::{Headers, Payload};

use super::*;

fn hands(numbers: &[u64]) -> Vec<Hand> {
    let hand = |number: &u64| Hand {
        number: *number,
        worker: path(),
        incarnation: Incarnation(1),
        id: format!("#{number}"),
        attempt: 1,
        life: 1,
        asks: true,
        headers: Headers::new(),
        payload: Payload::default(),
    };
    numbers.iter().map(hand).collect()
}

fn done(hand: u64) -> Settlement {
    Settlement { hand, word: Word::Done { reply: None } }
}

fn settles(run: u64, hands: &[u64]) -> ChildEvent {
    ChildEvent::Settled { incarnation: Incarnation(run), settlements: hands.iter().copied().map(done).collect() }
}

fn settled(hands: &[u64]) -> Observation {
    Observation::Settled(hands.iter().copied().map(done).collect())
}

fn with_reply(hand: u64, bytes: usize) -> ChildEvent {
    let word = Word::Done { reply: Some(vec![b'x'; bytes].into()) };
    ChildEvent::Settled { incarnation: Incarnation(1), settlements: vec![Settlement { hand, word }] }
}

#[test]
fn hands_are_passed_on_once_also_where_a_new_leader_tells_them_again() {
    play(Guard::Works, async |world| {
        world.runs(&[1]).await;
        for numbers in [&[1, 2][..], &[1, 2, 3], &[2], &[5]] {
            world.tell(LeaderWord::Hands { session: FIRST, hands: hands(numbers) }).await;
        }
        world.tell(LeaderWord::Hands { session: SECOND, hands: hands(&[9]) }).await;
        world.pass(BEAT).await;
        assert_eq!(world.orders(), [Order::Hand(vec![1, 2]), Order::Hand(vec![3]), Order::Hand(vec![5])]);
    });
}

#[test]
fn a_new_session_counts_its_hands_from_one() {
    play(Guard::Works, async |world| {
        world.grant(FIRST).await;
        world.tell(LeaderWord::Hands { session: FIRST, hands: hands(&[7]) }).await;
        world.over(FIRST).await;
        world.happens(gone(FIRST)).await;
        world.grant(SECOND).await;
        world.tell(LeaderWord::Hands { session: SECOND, hands: hands(&[1]) }).await;
        world.pass(BEAT).await;
        let handed: Vec<_> = world.orders().into_iter().filter(|order| matches!(order, Order::Hand(_))).collect();
        assert_eq!(handed, [Order::Hand(vec![7]), Order::Hand(vec![1])]);
    });
}

#[test]
fn what_is_settled_while_a_batch_is_on_its_way_goes_together_after_it() {
    play(Guard::Works, async |world| {
        world.runs(&[1, 2]).await;
        let readiness = Readiness { starts: true, prefetch: 9 };
        world.happens(ChildEvent::WorkerReady { path: path(), incarnation: Incarnation(1), readiness }).await;
        let ready = Observation::WorkerReady { path: path(), incarnation: Incarnation(1), readiness };
        assert_eq!(world.observed().await, (FIRST, 1, ready));
        world.happens(settles(1, &[1])).await;
        assert_eq!(world.observed().await, (FIRST, 2, settled(&[1])));
        world.happens(settles(1, &[2, 3])).await;
        world.happens(settles(2, &[4])).await;
        assert_eq!(world.pass(BEAT / 2).await, []);
        world.applied(FIRST, 2).await;
        assert_eq!(world.observed().await, (FIRST, 3, settled(&[2, 3, 4])));
    });
}

#[test]
fn all_that_a_run_settled_is_told_before_its_end() {
    play(Guard::Works, async |world| {
        world.runs(&[1]).await;
        world.happens(settles(1, &[1])).await;
        world.happens(settles(1, &[2])).await;
        let ChildEvent::Exited { path, incarnation, exit, at, .. } = exited(1) else { unreachable!() };
        let (started, end) = (vec![3], exit.clone());
        world.happens(ChildEvent::Exited { path, incarnation, exit, started: started.clone(), at }).await;
        world.happens(settles(1, &[4])).await;
        assert_eq!(world.observed().await, (FIRST, 1, settled(&[1])));
        assert_eq!(world.observed().await, (FIRST, 2, settled(&[2])));
        let (path, incarnation) = (super::path(), Incarnation(1));
        assert_eq!(world.observed().await, (FIRST, 3, Observation::Exited { path, incarnation, exit: end, started }));
        world.applied(FIRST, 3).await;
        assert_eq!(world.pass(BEAT).await, [], "what comes after the end is late");
    });
}

#[test]
fn a_batch_has_its_bounds_and_a_full_one_does_not_wait() {
    play(Guard::Works, async |world| {
        world.runs(&[1]).await;
        let many: Vec<u64> = (1..=2_500).collect();
        world.happens(settles(1, &many)).await;
        for part in [&many[..1_000], &many[1_000..2_000]] {
            assert_eq!(world.observed().await.2, settled(part));
        }
        assert_eq!(world.pass(BEAT / 2).await, [], "the rest is not enough to go before that");
        world.applied(FIRST, 2).await;
        assert_eq!(world.observed().await.2, settled(&many[2_000..]));
        world.applied(FIRST, 3).await;
        world.pass(BEAT / 4).await;
        for hand in 3_000..3_004 {
            world.happens(with_reply(hand, 400 << 10)).await;
        }
        // The first is said at once, and three more are too much to wait, and too much for one.
        for expected in [1, 2] {
            let Observation::Settled(batch) = world.observed().await.2 else { panic!("no settlements") };
            assert_eq!(batch.len(), expected);
        }
        world.applied(FIRST, 5).await;
        assert!(matches!(world.observed().await.2, Observation::Settled(batch) if batch.len() == 1));
    });
}

#[test]
fn what_was_settled_under_a_session_that_is_over_is_not_told_under_the_next() {
    play(Guard::Works, async |world| {
        world.runs(&[1]).await;
        world.over(FIRST).await;
        world.pass(BEAT / 2).await;
        world.happens(settles(1, &[1])).await;
        world.happens(gone(FIRST)).await;
        world.grant(SECOND).await;
        world.happens(settles(1, &[2])).await;
        assert_eq!(world.pass(BEAT * 2).await, []);
    });
}

fn holds_of(orders: Vec<Order>) -> Vec<bool> {
    let holds = |order| if let Order::HoldWorkers(holds) = order { Some(holds) } else { None };
    orders.into_iter().filter_map(holds).collect()
}

#[test]
fn workers_are_held_up_while_too_much_of_what_they_settled_is_not_confirmed() {
    play(Guard::Works, async |world| {
        world.runs(&[1]).await;
        for hand in 1..=5 {
            world.happens(with_reply(hand, 1 << 20)).await;
        }
        world.pass(BEAT).await;
        assert_eq!(holds_of(world.orders()), [true]);
        world.applied(FIRST, 2).await;
        world.pass(BEAT / 4).await;
        assert!(holds_of(world.orders()).is_empty(), "three are still too many");
        world.applied(FIRST, 4).await;
        world.pass(BEAT / 4).await;
        assert_eq!(holds_of(world.orders()), [false]);
    });
}

#[test]
fn nobody_is_held_up_for_what_a_session_that_is_over_did_not_tell() {
    play(Guard::Works, async |world| {
        world.runs(&[1]).await;
        for hand in 1..=5 {
            world.happens(with_reply(hand, 1 << 20)).await;
        }
        world.over(FIRST).await;
        world.pass(BEAT).await;
        assert_eq!(holds_of(world.orders()), [true, false]);
    });
}

#[test]
fn settlements_are_said_to_the_leader_alone_where_it_is_known_and_all_else_to_everybody() {
    play(Guard::Works, async |world| {
        world.runs(&[1]).await;
        while world.beside.try_recv().is_ok() {}
        world.happens(settles(1, &[1])).await;
        let ended = world.events.send(exited(1)).await;
        ended.unwrap();
        let said = world.pass(BEAT * 3).await;
        let numbers = |words: Vec<RunnerWord>| {
            let number = |word| if let RunnerWord::Observe { number, .. } = word { Some(number) } else { None };
            words.into_iter().filter_map(number).collect::<BTreeSet<u64>>()
        };
        assert_eq!(numbers(said), BTreeSet::from([1, 2]), "again and again, since nothing is confirmed");
        let mut beside = Vec::new();
        while let Ok(word) = world.beside.try_recv() {
            beside.push(word);
        }
        assert_eq!(numbers(beside), BTreeSet::from([2]), "the exit");
        let connected = Heard::Word("n8".parse().unwrap(), LeaderWord::Answer { session: FIRST, number: 1 });
        world.heard.send(connected).await.unwrap();
        world.pass(BEAT / 4).await;
        let mut beside = Vec::new();
        while let Ok(word) = world.beside.try_recv() {
            beside.push(word);
        }
        assert_eq!(numbers(beside), BTreeSet::from([1, 2]), "the next leader is told all at its first word");
    });
}

#[test]
fn what_still_waits_for_a_voter_is_not_said_again_behind_it() {
    play(Guard::Works, async |world| {
        world.runs(&[1]).await;
        world.happens(settles(1, &[1])).await;
        SimRuntime::sleep(BEAT * 5).await;
        let mut said = 0;
        while let Ok(word) = world.words.try_recv() {
            said += usize::from(matches!(word, RunnerWord::Observe { .. }));
        }
        assert_eq!(said, 1, "nothing was taken from its queue meanwhile");
    });
}

//! What a mailbox takes in, keeps and hands out; what operators do with it.

use std::time::Duration;

use pando_protocol::codec::{SECTION_LIMIT, encode};
use pando_protocol::ids::ClientId;
use pando_protocol::mail::{Leftover, MAX_BATCH, MAX_PAYLOAD, NewMessage, Payload, Word};
use pando_protocol::message::{Asked, Change, MailChanged, Write};
use pando_protocol::rejection::Rejection;
use pando_protocol::spec::Attempts;
use pando_supervision::invariants::check;
use pando_supervision::mail::report;
use pando_supervision::mutation::with_sweeps_of;
use pando_supervision::parts::Part;
use pando_supervision::{Cluster, Command, EventKind, Stamp, apply};
use pando_tests::mail::machines::Kind;
use pando_tests::mail::sim::at;
use pando_tests::mail::story::Story;
use pando_tests::rules::specs::{ms, path};

fn of(payload: Vec<u8>) -> Change {
    Change::Send { to: at(), messages: vec![NewMessage::of(payload)], asks: false }
}

#[test]
fn below_their_rules_mailboxes_and_pools_are_refused() {
    let story = Story::new(&["n1"], 1, |_| {});
    let mut old = Cluster::default();
    let write =
        Write { client: ClientId(1), sequence: 1, lowest_unanswered: 1, change: Change::Apply(story.sim.spec()) };
    let applied = apply(&mut old, Stamp { at: Duration::ZERO, wall: 0 }, Command::Write(write));
    assert!(matches!(applied.outcome, Err(Rejection::RulesTooOld { needed: 2, current: 1, .. })), "{applied:?}");
}

#[test]
fn a_full_mailbox_refuses_and_drops_nothing() {
    let mut story = Story::new(&["n1"], 1, |mailbox| {
        mailbox.max_messages = 3;
        mailbox.max_bytes = 10_000;
    });
    assert!(matches!(story.change(of(vec![0; 20_000])), Err(Rejection::MailboxFull { .. })), "too many bytes");
    assert!(matches!(story.change(of(vec![0; MAX_PAYLOAD + 1])), Err(Rejection::BadMessage { .. })));
    story.send(2);
    let two = Change::Send { to: at(), messages: vec![NewMessage::of("a"), NewMessage::of("b")], asks: false };
    assert!(matches!(story.change(two), Err(Rejection::MailboxFull { .. })), "all of a request or none of it");
    story.send(1);
    story.say(1, Word::Rejected { error: "no".into() });
    assert!(matches!(story.change(of(vec![1])), Err(Rejection::MailboxFull { .. })), "dead letters count");
    story.done(2);
    story.change(of(vec![1])).expect("there is room again");
    assert_eq!((story.row().enqueued, story.row().done, story.row().dead), (4, 1, 1));
}

#[test]
fn an_id_is_known_while_its_message_is_and_ten_minutes_after() {
    let mut story = Story::new(&["n1"], 1, |_| {});
    assert_eq!(story.send_named("order-7").accepted, 1);
    assert_eq!(story.send_named("order-7").accepted, 0);
    story.settle();
    story.done(1);
    story.advance(Duration::from_secs(599));
    let again = story.send_named("order-7");
    assert_eq!((again.accepted, again.known[0].number), (0, 1));
    story.advance(Duration::from_secs(20));
    assert_eq!(story.send_named("order-7").accepted, 1);
    story.settle();
    story.done(2);
    assert_eq!(story.row().done, 2);
}

#[test]
fn the_id_of_a_dead_letter_is_known_until_ten_minutes_after_it_is_purged_with_its_mailbox() {
    let mut story = Story::new(&["n1"], 1, |mailbox| mailbox.prefetch = 2);
    story.send_named("a");
    story.send_named("b");
    story.settle();
    story.say(1, Word::Rejected { error: "no".into() });
    // The worker holds the other one, so the mailbox stays until that is settled.
    story.sim.machines.values_mut().for_each(|machine| machine.runner.outbox.clear());
    story
        .sim
        .change(Change::DeleteLeaving("w".parse().expect("a name"), Leftover::Purge))
        .expect("it holds")
        .expect("it goes");
    story.sim.replay(story.sim.log.len() - 1).expect("a snapshot knows the same ids");
    assert_eq!((story.dead().len(), story.row().purged), (0, 1));
}

#[test]
fn a_retry_delay_never_blocks_later_messages() {
    let mut story = Story::new(&["n1"], 1, |mailbox| {
        mailbox.prefetch = 1;
        mailbox.retry_delay = Duration::from_secs(10);
    });
    story.send(2);
    story.say(1, Word::Failed { error: "not yet".into() });
    assert_eq!(story.holds(0), [2]);
    story.done(2);
    story.advance(Duration::from_secs(9));
    assert_eq!((story.holds(0).len(), story.row().delayed), (0, 1));
    assert!(story.row().blocked.is_some_and(|why| why.contains("delay")));
    story.advance(Duration::from_secs(4));
    assert_eq!(story.holds(0), [1]);
    story.say(1, Word::Failed { error: "not yet".into() });
    story.advance(Duration::from_secs(19));
    assert_eq!(story.holds(0).len(), 0, "the second delay is twice as long");
}

#[test]
fn a_message_goes_to_another_worker_than_its_last_where_one_is_free() {
    let mut story = Story::new(&["n1"], 2, |mailbox| mailbox.prefetch = 1);
    story.send(1);
    for _ in 0..4 {
        let last = story.holder(1).expect("it is held");
        story.say(1, Word::Returned);
        assert_eq!(story.holder(1), Some(1 - last));
    }
    // Where none is, it goes to the same.
    story.send(1);
    let last = story.holder(1);
    story.say(1, Word::Returned);
    assert_eq!(story.holder(1), last);
}

#[test]
fn a_paused_mailbox_hands_nothing_out_and_takes_everything_in() {
    let mut story = Story::new(&["n1"], 1, |_| {});
    story.send(1);
    story.change(Change::Pause(at())).expect("it is paused");
    story.send(2);
    story.done(1);
    assert_eq!((story.holds(0).len(), story.row().waiting, story.row().paused), (0, 2, true));
    assert!(story.row().blocked.is_some_and(|why| why.contains("pando mailbox resume /w/p")));
    story.change(Change::Resume(at())).expect("it is resumed");
    story.all_done();
    assert_eq!(story.row().done, 3);
}

#[test]
fn a_mailbox_that_holds_something_is_taken_away_only_where_it_is_said_what_becomes_of_it() {
    let delete = |leftover| Change::DeleteLeaving("w".parse().expect("a name"), leftover);
    let mut story = Story::new(&["n1"], 1, |mailbox| mailbox.prefetch = 1);
    story.send(3);
    assert!(matches!(story.change(Change::Delete("w".parse().expect("a name"))), Err(Rejection::WrongState { .. })));
    assert!(story.change(delete(Leftover::Refuse)).is_err());
    assert_eq!((story.row().waiting, story.row().in_flight), (2, 1), "nothing was changed");
    let mut other = story.clone();
    story.change(delete(Leftover::DeadLetter)).expect("it goes");
    assert_eq!(
        (story.dead().len(), story.row().closed),
        (3, true),
        "the one in flight was given back, and is kept too"
    );
    assert!(story.change(of(vec![1])).is_err(), "it takes nothing more");
    story.set(|_| {});
    assert_eq!((story.dead().len(), story.row().closed), (3, false), "with its spec it is open again");
    other.change(delete(Leftover::Purge)).expect("it goes");
    assert!(other.sim.mailbox().is_none(), "nothing is left");
}

#[test]
fn the_workers_of_a_pool_share_one_mailbox_and_scaling_gives_back_what_a_leaving_one_holds() {
    let mut story = Story::new(&["n1"], 3, |mailbox| mailbox.prefetch = 2);
    story.send(6);
    assert_eq!((0..3).map(|index| story.holds(index).len()).collect::<Vec<_>>(), [2, 2, 2]);
    story.change(Change::Scale { pool: at(), count: 1 }).expect("it shrinks");
    assert_eq!((story.row().workers.len(), story.row().waiting, story.row().in_flight), (1, 4, 2));
    story.change(Change::Scale { pool: at(), count: 4 }).expect("it grows");
    for index in 0..4 {
        story.until_ready(index);
    }
    assert_eq!((story.row().workers.len(), story.row().waiting, story.row().in_flight), (4, 0, 6));
    assert!(story.change(Change::Scale { pool: path("/w"), count: 2 }).is_err(), "/w is no pool");
    story.all_done();
    assert_eq!((story.row().done, story.row().charged), (6, 0));
}

#[test]
fn whoever_asks_gets_the_reply_of_the_attempt_that_succeeds_or_hears_that_there_will_be_none() {
    let mut story = Story::new(&["n1"], 1, |_| {});
    let ask =
        |story: &mut Story| story.sim.send(&[(Kind::Good, None)], true).expect("it holds").expect("taken in").first;
    let number = ask(&mut story);
    story.settle();
    let asked = |story: &Story, number| report::asked(&story.sim.cluster, &at(), number).expect("it is there");
    assert_eq!(asked(&story, number), Asked::Open { attempts: 0, last: None });
    story.crash(0, &[number]);
    story.until_ready(0);
    assert!(matches!(asked(&story, number), Asked::Open { attempts: 1, last: Some(_) }));
    story.say(number, Word::Done { reply: Some(Payload::from("42")) });
    assert_eq!(asked(&story, number), Asked::Done { reply: Some(Payload::from("42")) });
    let other = ask(&mut story);
    story.settle();
    story.say(other, Word::Rejected { error: "no".into() });
    assert!(matches!(asked(&story, other), Asked::Dead { .. }));
    story.advance(Duration::from_secs(120));
    assert_eq!(asked(&story, number), Asked::Unknown, "replies are kept for a while");
}

#[test]
fn replies_that_nobody_fetches_stay_within_the_bound_of_the_mailbox() {
    let mut story = Story::new(&["n1"], 1, |mailbox| mailbox.max_bytes = 4 << 20);
    for _ in 0..8 {
        let first = story.sim.send(&[(Kind::Good, None)], true).expect("it holds").expect("taken in").first;
        story.settle();
        story.say(first, Word::Done { reply: Some(Payload::from(vec![7; MAX_PAYLOAD])) });
        assert!(story.row().bytes <= 4 << 20, "{:?}", story.row());
        let asked = report::asked(&story.sim.cluster, &at(), first).expect("it is there");
        assert!(matches!(asked, Asked::Done { reply: Some(_) }), "the newest is there");
    }
}

#[test]
fn purging_forgets_what_waits_and_nothing_that_is_held() {
    let mut story = Story::new(&["n1"], 1, |mailbox| mailbox.prefetch = 1);
    story.send(5);
    assert_eq!(story.change(Change::PurgeWaiting(at())), Ok(Some(MailChanged::Moved(4))));
    story.done(1);
    let row = story.row();
    assert_eq!((row.enqueued, row.done, row.purged, row.waiting, row.bytes), (5, 1, 4, 0, 0));
}

#[test]
fn late_words_of_a_former_run_are_refused_and_a_snapshot_is_the_state() {
    let mut story = Story::new(&["n1"], 1, |mailbox| mailbox.prefetch = 3);
    story.send(3);
    let told = story.sim.told.clone();
    story.crash(0, &[2]);
    story.until_ready(0);
    story.say(1, Word::Failed { error: "x".into() });
    for command in told.into_iter().filter(|command| matches!(command, Command::Observe { .. })) {
        story.sim.again(command).expect("it changes nothing");
    }
    story.sim.advance(ms(1)).expect("it holds");
    story.sim.replay(story.sim.log.len() - 1).expect("it is the state");
}

#[test]
fn a_letter_that_dies_twice_at_one_time_is_weighed_once_and_its_newest_reply_counts() {
    let mut story = Story::new(&["n1"], 1, |_| {});
    let number = story.sim.send(&[(Kind::Good, None)], true).expect("it holds").expect("taken in").first;
    story.settle();
    let redrive = Change::Redrive { from: at(), letters: Default::default(), rate: None };
    story.say(number, Word::Rejected { error: "no".into() });
    story.change(redrive.clone()).expect("it lives again");
    story.say(number, Word::Rejected { error: "no".into() });
    story.change(redrive).expect("it lives again");
    story.advance(ms(1));
    story.done(number);
    let asked = report::asked(&story.sim.cluster, &at(), number).expect("it is there");
    assert_eq!(asked, Asked::Done { reply: None });
}

#[test]
fn a_tree_that_is_being_deleted_can_still_be_told_to_purge_what_is_left() {
    let delete = |leftover| Change::DeleteLeaving("w".parse().expect("a name"), leftover);
    let mut story = Story::new(&["n1"], 1, |mailbox| mailbox.prefetch = 1);
    story.send(3);
    story.sim.change(delete(Leftover::DeadLetter)).expect("it holds").expect("it goes");
    assert_eq!(story.dead().len(), 2);
    story.sim.change(delete(Leftover::Purge)).expect("it holds").expect("it goes");
    assert_eq!((story.dead().len(), story.row().purged), (0, 2));
    story.settle();
    assert!(story.sim.mailbox().is_none(), "nothing is left");
}

/// The steps in which what was said of all messages is done, each with its books; how many messages are left after each.
fn left_by_step(story: &mut Story) -> Vec<usize> {
    let mut left = vec![story.mailbox().messages.len()];
    while story.sim.mailbox().is_some_and(|mailbox| !mailbox.sweeps.is_empty()) {
        story.sim.advance(ms(1)).expect("it holds");
        left.push(story.sim.mailbox().map_or(0, |mailbox| mailbox.messages.len()));
    }
    left
}

fn of_kind(story: &Story, kind: EventKind) -> usize {
    story.sim.cluster.events.values().filter(|event| event.kind == kind).count()
}

#[test]
fn thousands_of_messages_are_purged_a_thousand_in_each_entry_of_the_log() {
    let mut story = Story::new(&["n1"], 1, |mailbox| mailbox.prefetch = 1);
    story.send(3_501);
    assert_eq!(story.sim.change(Change::PurgeWaiting(at())), Ok(Ok(Some(MailChanged::Moved(3_500)))));
    assert_eq!((story.row().purged, story.row().in_flight), (999, 1));
    assert!(story.row().blocked.is_some_and(|why| why.contains("purged")), "{:?}", story.row());
    story.send_named("later");
    assert_eq!(left_by_step(&mut story), [2_503, 1_503, 503, 2]);
    assert_eq!((story.row().purged, of_kind(&story, EventKind::MailPurged)), (3_500, 1), "one event for all");
    story.settle();
    story.all_done();
    assert_eq!(story.row().done, 2, "what came later was not meant");
}

#[test]
fn a_mailbox_with_thousands_of_messages_is_closed_in_steps_and_keeps_all_of_them() {
    let mut story = Story::new(&["n1"], 1, |_| {});
    story.change(Change::Pause(at())).expect("it is paused");
    story.send(2_500);
    let delete = |leftover| Change::DeleteLeaving("w".parse().expect("a name"), leftover);
    story.sim.change(delete(Leftover::DeadLetter)).expect("it holds").expect("it goes");
    assert_eq!(left_by_step(&mut story), [1_500, 500, 0]);
    assert_eq!((story.dead().len(), of_kind(&story, EventKind::MessageDead)), (2_500, 1));
    story.settle();
    story.set(|_| {});
    let redrive = Change::Redrive { from: at(), letters: Default::default(), rate: None };
    assert!(
        matches!(story.change(redrive), Err(Rejection::TooMany { .. })),
        "so many are redriven in several requests"
    );
    story.sim.change(delete(Leftover::Purge)).expect("it holds").expect("it goes");
    while story.sim.mailbox().is_some() {
        story.sim.advance(ms(1)).expect("it holds");
        story.settle();
    }
}

#[test]
fn a_lower_limit_reaches_thousands_of_messages_in_steps_and_none_of_them_is_handed_out_before() {
    let mut story = Story::new(&["n1"], 1, |mailbox| {
        mailbox.prefetch = 2_000;
        mailbox.max_attempts = Attempts::Limited(5);
    });
    story.sim.health.prefetch = 2_000;
    story.change(Change::Restart(path("/w/p/0"))).expect("it restarts");
    story.until_ready(0);
    story.send(2_000);
    let fails = story.holds(0);
    assert_eq!(fails.len(), 2_000);
    story.sim.checks = false; // Each word is checked by other stories.
    story.sim.change(Change::Pause(at())).expect("it holds").expect("it is paused");
    fails.iter().for_each(|number| story.say(*number, Word::Failed { error: "no".into() }));
    story.sim.wanted.mailbox.max_attempts = Attempts::Limited(1);
    story.sim.apply_wanted().expect("it holds");
    story.sim.change(Change::Resume(at())).expect("it holds").expect("it is resumed");
    assert_eq!((story.dead().len(), story.row().in_flight), (1_000, 0));
    check(&story.sim.cluster).expect("every invariant holds");
    story.sim.advance(ms(1)).expect("it holds");
    story.sim.advance(ms(1)).expect("it holds");
    assert_eq!((story.dead().len(), of_kind(&story, EventKind::MessageDead)), (2_000, 1));
    check(&story.sim.cluster).expect("every invariant holds");
}

#[test]
fn what_is_done_with_all_messages_goes_on_though_entries_come_faster_than_its_steps() {
    with_sweeps_of(1, || {
        let mut story = Story::new(&["n1"], 1, |_| {});
        story.change(Change::Pause(at())).expect("it is paused");
        story.send(20);
        story.sim.change(Change::PurgeWaiting(at())).expect("it holds").expect("they are purged");
        for _ in 0..40 {
            story.sim.now += Duration::from_micros(500);
            story.sim.send(&[(Kind::Good, None)], false).expect("it holds");
        }
        assert_eq!((story.row().purged, story.row().waiting), (20, 40));
    });
}

#[test]
fn a_mailbox_that_is_opened_again_while_it_is_closed_keeps_what_is_left_in_it() {
    for (leftover, dead, purged) in [(Leftover::DeadLetter, 2, 0), (Leftover::Purge, 1, 1)] {
        with_sweeps_of(1, || {
            let mut story = Story::new(&["n1"], 1, |_| {});
            story.send(1);
            story.say(1, Word::Rejected { error: "no".into() });
            story.change(Change::Pause(at())).expect("it is paused");
            story.send(4);
            let delete = Change::DeleteLeaving("w".parse().expect("a name"), leftover);
            story.change(delete).expect("it goes");
            story.sim.apply_wanted().expect("it holds");
            story.send(1);
            while !story.mailbox().sweeps.is_empty() {
                story.advance(ms(1));
            }
            let row = story.row();
            assert_eq!((row.waiting, row.dead, row.purged), (4, dead, purged), "{leftover:?}");
            story.change(Change::Resume(at())).expect("it is resumed");
            story.until_ready(0);
            story.all_done();
            assert_eq!(story.row().done, 4);
        });
    }
}

#[test]
fn what_was_not_looked_at_for_a_lower_limit_when_its_mailbox_was_closed_is_when_it_is_open_again() {
    with_sweeps_of(1, || {
        let mut story = Story::new(&["n1"], 1, |mailbox| mailbox.max_attempts = Attempts::Limited(5));
        story.send(4);
        story.change(Change::Pause(at())).expect("it is paused");
        (1..=4).for_each(|number| story.say(number, Word::Failed { error: "no".into() }));
        story.set(|wanted| wanted.mailbox.max_attempts = Attempts::Limited(1));
        let delete = Change::DeleteLeaving("w".parse().expect("a name"), Leftover::DeadLetter);
        story.change(delete).expect("it goes");
        story.sim.apply_wanted().expect("it holds");
        while !story.mailbox().sweeps.is_empty() {
            story.advance(ms(1));
        }
        assert_eq!((story.dead(), of_kind(&story, EventKind::MessageDead)), (vec![1, 2, 3, 4], 1));
    });
}

#[test]
fn of_very_many_attempts_the_first_and_the_newest_are_kept_and_the_others_counted() {
    let mut story = Story::new(&["n1"], 1, |mailbox| {
        mailbox.max_attempts = Attempts::Limited(200);
        mailbox.max_bytes = 20_000;
    });
    story.send(1);
    for attempt in 1..=100 {
        story.say(1, Word::Failed { error: format!("failure {attempt}: {}", "x".repeat(3_000)) });
    }
    let kept: Vec<String> = story.attempts(1).iter().map(|one| one.why.chars().take(11).collect()).collect();
    assert_eq!(
        (kept.len(), &kept[..4]),
        (20, &["failure 1: ", "failure 2: ", "failure 3: ", "failure 84:"].map(String::from)[..])
    );
    assert_eq!(story.mailbox().messages[&1].trouble.as_ref().map(|trouble| trouble.left_out), Some(80));
    assert!(story.row().bytes < 30_000, "what is kept in a full mailbox is short: {}", story.row().bytes);
    story.say(1, Word::Rejected { error: "no".into() });
    for _ in 0..10 {
        story.change(Change::Redrive { from: at(), letters: Default::default(), rate: None }).expect("it lives again");
        (0..9).for_each(|_| story.say(1, Word::Failed { error: "no".into() }));
        story.say(1, Word::Rejected { error: "no".into() });
    }
    assert_eq!(story.attempts(1).len(), 50, "of all lives together, too");
    let letter = report::dead_letter(&story.sim.cluster, &at(), "#1").expect("it is dead");
    assert_eq!((letter.attempts[0].life, letter.attempts_left_out), (1, 201 - 50));
}

#[test]
fn whoever_asks_hears_of_attempts_that_failed_and_not_of_those_that_were_given_back() {
    let mut story = Story::new(&["n1"], 2, |_| {});
    let number = story.sim.send(&[(Kind::Good, None)], true).expect("it holds").expect("taken in").first;
    story.settle();
    story.say(number, Word::Returned);
    let asked = |story: &Story| report::asked(&story.sim.cluster, &at(), number).expect("it is there");
    assert_eq!(asked(&story), Asked::Open { attempts: 0, last: None });
    story.say(number, Word::Failed { error: "not today".into() });
    assert!(matches!(asked(&story), Asked::Open { attempts: 1, last: Some(_) }));
}

#[test]
fn what_one_client_was_answered_stays_small_however_many_messages_were_known() {
    let mut cluster = Story::new(&["n1"], 1, |_| {}).sim.cluster;
    let named = |number| NewMessage { id: Some(format!("m{number}").into()), ..NewMessage::of("x") };
    let messages: Vec<NewMessage> = (0..MAX_BATCH).map(named).collect();
    let stamp = Stamp { at: cluster.head.now, wall: 0 };
    let mut send = |sequence| {
        let change = Change::Send { to: at(), messages: messages.clone(), asks: false };
        let (client, lowest_unanswered) = (ClientId(77), 1);
        let write = Write { client, sequence, lowest_unanswered, change };
        apply(&mut cluster, stamp, Command::Write(write)).outcome
    };
    send(1).expect("they are new");
    let replies: Vec<_> = (2..=30).map(&mut send).collect();
    assert_eq!(send(30).as_ref(), replies.last().unwrap().as_ref(), "the newest is kept");
    assert_eq!(send(3), Err(Rejection::TooLateToTell), "the oldest are not");
    check(&cluster).expect("all holds");
    let record = cluster.clients[&ClientId(77)].clone();
    let part = encode::<SECTION_LIMIT>(&Part::Client(ClientId(77), record)).expect("it fits");
    assert!(part.len() < 2 << 20, "{} bytes", part.len());
}

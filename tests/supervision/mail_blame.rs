//! Who pays for a crash: a message, one of several, the worker's budget, or nobody.

use std::time::Duration;

use pando_protocol::mail::{DeathKind, Word};
use pando_protocol::message::Change;
use pando_protocol::spec::{Attempts, Intensity};
use pando_supervision::EventKind;
use pando_supervision::mail::Payer;
use pando_supervision::mutation::looks;
use pando_tests::mail::sim::{Wanted, at};
use pando_tests::mail::story::Story;
use pando_tests::rules::specs::{budget, path};

/// One worker that says what it starts, and these many messages in its hands.
fn one_worker(messages: usize) -> Story {
    let mut story = Story::new(&["n1"], 1, |mailbox| mailbox.max_attempts = Attempts::Limited(1));
    story.send(messages);
    story
}

#[test]
fn of_several_started_messages_the_one_that_kills_alone_pays() {
    let mut story = one_worker(3);
    story.crash(0, &[1, 2]);
    story.until_ready(0);
    assert_eq!(story.holds(0), [1], "a suspect is handed out alone");
    story.done(1);
    assert_eq!(story.holds(0), [2]);
    story.crash(0, &[2]);
    story.until_ready(0);
    story.all_done();
    assert_eq!((story.dead(), story.row().done, story.paid(0)), (vec![2], 2, 0));
}

#[test]
fn where_no_suspect_did_it_the_budget_of_the_worker_pays_late() {
    let mut story = one_worker(2);
    story.crash(0, &[1, 2]);
    assert_eq!(story.paid(0), 0, "nobody yet");
    story.until_ready(0);
    story.done(1);
    assert_eq!(story.paid(0), 0);
    story.done(2);
    assert_eq!((story.paid(0), story.dead().len(), story.row().done), (1, 0, 2));
}

#[test]
fn a_worker_that_crashes_with_nothing_started_pays_itself() {
    let mut story = one_worker(3);
    story.crash(0, &[]);
    assert_eq!((story.paid(0), story.row().charged, story.row().waiting), (1, 0, 3));
}

#[test]
fn a_bad_deploy_leaves_every_message_and_spends_the_budget_and_the_fix_charges_nobody() {
    let wanted = Wanted { intensity: budget(5, 60), ..Wanted::default() };
    let mut story = Story::with(&["n1"], 1, wanted, |mailbox| {
        mailbox.max_attempts = Attempts::Limited(1);
        mailbox.prefetch = 1;
    });
    story.send(100);
    for _ in 0..11 {
        story.until_ready(0);
        let number = story.holds(0)[0];
        story.crash(0, &[number]);
    }
    let row = story.row();
    assert_eq!((row.dead, row.charged, row.waiting + row.in_flight), (0, 0, 100), "{row:?}");
    let worker = &row.workers[0];
    assert!(worker.sick && worker.streak == 5, "{worker:?}");
    let escalated = story.sim.cluster.events.values().any(|event| event.kind == EventKind::Escalated);
    assert!(escalated, "five probes were paid by the budget, and the sixth crash spent it");
    story.set(|wanted| wanted.version = 2);
    story.until_ready(0);
    story.all_done();
    assert_eq!((story.row().done, story.row().dead, story.row().charged), (100, 0, 0));
}

/// Two workers with a prefetch of 100, of which the first is quick and holds messages ahead of it.
fn one_is_quick() -> Story {
    let mut story = Story::new(&["n1"], 2, |mailbox| mailbox.prefetch = 100);
    story.send(600);
    for _ in 0..60 {
        story.done(story.holds(0)[0]);
        story.advance(Duration::from_millis(1));
    }
    assert!((110..=140).contains(&story.holds(0).len()), "{:?}", story.holds(0));
    assert_eq!(story.holds(1).len(), 100);
    story
}

#[test]
fn a_quick_worker_leaves_the_queue_to_one_that_crashed() {
    let mut story = one_is_quick();
    let (quick, number) = (story.holds(0), story.holds(1)[0]);
    story.crash(1, &[number]);
    story.done(quick[0]);
    assert_eq!(story.holds(0), quick[1..], "nothing more is handed ahead while that is unexplained");
    story.until_ready(1);
    story.done(story.holds(1)[1]);
    assert_eq!(story.charged(number), 1, "it is well, so the message did it");
    story.done(quick[1]);
    assert!(story.holds(0).len() > quick.len() - 2, "and the quick one goes on: {:?}", story.holds(0));
}

#[test]
fn a_quick_worker_that_gets_stuck_or_may_hold_less_from_now_on_gets_nothing_more_ahead() {
    let mut stuck = one_is_quick();
    for number in stuck.holds(0).into_iter().take(5) {
        stuck.say(number, Word::Returned);
    }
    let held = stuck.holds(0).len();
    assert!(held > 110, "others came in their place");
    let mut lowered = stuck.clone();

    stuck.change(Change::Pause(at())).expect("it is paused");
    stuck.done(stuck.holds(0)[0]);
    stuck.advance(Duration::from_millis(200));
    stuck.change(Change::Resume(at())).expect("it goes on");
    assert_eq!(stuck.holds(0).len(), held - 1, "it has settled nothing for a while");

    lowered.set(|wanted| wanted.mailbox.prefetch = 50);
    for number in lowered.holds(0) {
        lowered.done(number);
        lowered.advance(Duration::from_millis(1));
    }
    assert_eq!(lowered.holds(0).len(), 50);
}

#[test]
fn a_sick_worker_gets_one_new_message_from_the_far_end_and_its_success_makes_the_messages_pay() {
    let mut story = Story::new(&["n1"], 1, |mailbox| {
        mailbox.max_attempts = Attempts::Limited(1);
        mailbox.suspect_after = 2;
    });
    story.send(10);
    story.crash(0, &[1]);
    story.until_ready(0);
    assert_eq!(story.charged(1), 0, "its charge is undecided");
    story.crash(0, &[2]);
    story.until_ready(0);
    assert_eq!(story.holds(0), [10]);
    story.crash(0, &[10]);
    assert_eq!(story.attempts(10)[0].payer, Payer::Worker);
    story.until_ready(0);
    assert_eq!((story.holds(0), story.paid(0), story.charged(10)), (vec![9], 1, 0));
    story.done(9);
    assert_eq!(story.dead(), [1, 2], "it is well, so they did it");
    story.all_done();
    assert_eq!((story.row().done, story.dead().len()), (8, 2));
}

#[test]
fn one_broken_worker_among_healthy_peers_empties_nothing() {
    let mut story = Story::new(&["n1"], 3, |mailbox| {
        mailbox.max_attempts = Attempts::Limited(2);
        mailbox.prefetch = 1;
    });
    for _ in 0..30 {
        story.send(6);
        story.until_ready(0);
        if let Some(number) = story.holds(0).first().copied() {
            story.crash(0, &[number]);
        }
        for peer in [1, 2, 1, 2, 1, 2, 1, 2] {
            if let Some(number) = story.holds(peer).first().copied() {
                story.done(number);
            }
        }
    }
    assert_eq!((story.row().dead, story.row().enqueued), (0, 180));
}

#[test]
fn a_message_in_the_hands_of_two_lost_nodes_is_set_aside_where_it_alone_was_under_suspicion() {
    let mut story = Story::new(&["n1", "n2", "n3"], 1, |mailbox| mailbox.prefetch = 2);
    story.send(2);
    let first = story.node_of(0);
    story.lose(&first);
    story.until_ready(0);
    assert_eq!(story.holds(0), [1], "those that are accused of a loss are kept on different nodes");
    let second = story.node_of(0);
    story.lose(&second);
    story.until_ready(0);
    assert_eq!((story.dead(), story.mailbox().dead[&1].kind), (vec![1], DeathKind::NodeLosses));
    assert_eq!((story.holds(0), story.charged(2)), (vec![2], 0));
    story.done(2);
}

#[test]
fn losses_of_nodes_never_count_as_attempts() {
    let mut story = Story::new(&["n1"], 1, |mailbox| {
        mailbox.max_attempts = Attempts::Limited(1);
        mailbox.max_node_losses = 9;
    });
    story.send(3);
    let node = story.node_of(0);
    for _ in 0..4 {
        story.lose(&node);
        story.join(&node);
        story.until_ready(0);
    }
    assert_eq!((story.row().charged, story.row().dead), (0, 0));
    story.all_done();
    assert_eq!(story.row().done, 3);
}

#[test]
fn failed_charges_and_leaves_the_worker_running_and_rejected_sets_aside_at_once() {
    let mut story = one_worker(2);
    let run = story.sim.cluster.run(&path("/w/p/0")).expect("it runs").incarnation;
    story.say(1, Word::Rejected { error: "no such thing".into() });
    story.say(2, Word::Failed { error: "not today".into() });
    assert_eq!(story.dead(), [1, 2]);
    assert_eq!((story.mailbox().dead[&1].kind, story.charged(1)), (DeathKind::Rejected, 0));
    assert_eq!((story.mailbox().dead[&2].kind, story.charged(2)), (DeathKind::Attempts, 1));
    assert_eq!((story.mailbox().ledger.unpaid, story.mailbox().ledger.charged), (1, 1));
    assert_eq!(story.sim.cluster.run(&path("/w/p/0")).expect("it runs").incarnation, run);
}

#[test]
fn a_crash_charged_to_a_message_leaves_the_budget_of_the_pool_whole() {
    let wanted = Wanted {
        intensity: Intensity::Limited { max_restarts: 1, within: Duration::from_secs(600) },
        ..Wanted::default()
    };
    let mut story = Story::with(&["n1"], 1, wanted, |mailbox| mailbox.max_attempts = Attempts::Limited(9));
    story.send(2);
    for _ in 0..8 {
        story.until_ready(0);
        let number = story.holds(0)[0];
        story.crash(0, &[number]);
    }
    story.until_ready(0);
    assert_eq!(
        (story.paid(0), story.sim.cluster.events.values().any(|event| event.kind == EventKind::Escalated)),
        (0, false)
    );
}

#[test]
fn what_was_accused_is_kept_from_a_worker_in_doubt_while_another_one_is_well() {
    let mut story = Story::new(&["n1"], 2, |mailbox| mailbox.prefetch = 2);
    story.send(4);
    let (first, second) = (story.holds(0), story.holds(1));
    story.crash(0, &first[..1]);
    story.until_ready(0);
    // Its neighbour and nothing else: the accused one waits for the other worker.
    assert_eq!((story.holds(0), story.holds(1)), (vec![first[1]], second.clone()));
    story.done(second[0]);
    assert_eq!(story.holds(1), [first[0], second[1]]);
    story.all_done();
    assert_eq!((story.row().done, story.row().dead), (4, 0));
}

#[test]
fn where_no_worker_is_well_the_one_in_doubt_gets_what_was_accused() {
    let mut story = Story::new(&["n1"], 1, |mailbox| mailbox.prefetch = 2);
    story.send(3);
    story.crash(0, &[1]);
    story.until_ready(0);
    assert_eq!(story.holds(0), [2, 3], "what is accused of nothing tells more of it");
    story.crash(0, &[2]);
    story.until_ready(0);
    assert_eq!(story.holds(0).len(), 2);
    story.all_done();
    assert_eq!(story.row().done, 3);
}

/// How many looks it takes to choose what is handed out beside so many suspects, where every worker holds something.
fn looks_beside(suspects: usize) -> u64 {
    let mut story = Story::new(&["n1"], 2, |mailbox| mailbox.prefetch = 10_000);
    story.sim.health.prefetch = 10_000;
    story.sim.checks = false; // Each step looks at every message otherwise.
    story.until_ready(1);
    story.send(2 * suspects);
    let holds = story.holds(0);
    story.crash(0, &holds);
    story.until_ready(0);
    assert!(story.row().suspects as usize >= holds.len() - 1, "{:?}", story.row());
    let before = looks();
    story.send(1);
    looks() - before
}

#[test]
fn a_hand_out_costs_as_much_beside_thousands_of_suspects_as_beside_ten() {
    let (few, many) = (looks_beside(10), looks_beside(5_000));
    assert!(many <= few + 4, "{few} looks beside ten suspects, {many} beside five thousand");
}

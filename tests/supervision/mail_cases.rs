//! The cases of mailboxes: T12, T15, T16, T18, T19, T20, by the rules alone.

use std::collections::BTreeMap;
use std::time::Duration;

use pando_protocol::mail::{AttemptEnd, DeathKind, Letters, Word};
use pando_protocol::message::{Change, MailChanged};
use pando_protocol::spec::Attempts;
use pando_supervision::invariants;
use pando_supervision::mail::report;
use pando_tests::mail::machines::{Health, Kind};
use pando_tests::mail::sim::{MailSim, Wanted, at};
use pando_tests::mail::story::Story;
use pando_tests::rules::dice::Dice;
use pando_tests::rules::specs::ms;

/// More dead letters than any story has.
const PAGE: report::Page = report::Page { after: 0, limit: 100, whole: false };

/// T12: 10,000 messages, ten of them kill whoever works on them, three workers.
fn wide_poison_run(max_attempts: u32) -> MailSim {
    const MESSAGES: usize = 10_000;
    let mut wanted = Wanted::default();
    wanted.mailbox.max_attempts = Attempts::Limited(max_attempts);
    let health = Health { starts: true, at_once: 1, prefetch: 16, ..Health::default() };
    let mut sim = MailSim::new(&["n1", "n2", "n3"], wanted, health).expect("it begins");
    sim.checks = false; // Each step looks at every message otherwise.
    let kind = |number: usize| if number % 1_000 == 500 { Kind::Poison } else { Kind::Good };
    let kinds: Vec<_> = (0..MESSAGES).map(|number| (kind(number), None)).collect();
    sim.send(&kinds, false).expect("it holds").expect("they are taken in");
    let nodes: Vec<_> = sim.machines.keys().cloned().collect();
    let mut dice = Dice::new(12);
    for round in 0..20_000 {
        for node in &nodes {
            sim.poll(node, true).expect("it holds");
            for _ in 0..16 {
                sim.work(node, &mut dice).expect("it holds");
            }
            while sim.deliver(node).expect("it holds") {}
        }
        sim.advance(ms(5)).expect("it holds");
        if round % 100 == 0 {
            invariants::check(&sim.cluster).expect("every invariant holds");
        }
        if sim.mailbox().is_some_and(|mailbox| mailbox.messages.is_empty()) {
            return sim;
        }
    }
    panic!("it is never done: {:?}", report::mailboxes(&sim.cluster, None));
}

fn is_a_full_account(sim: &MailSim, max_attempts: u32) {
    let mailbox = sim.mailbox().expect("it is there");
    let ledger = &mailbox.ledger;
    assert_eq!((ledger.enqueued, ledger.done, mailbox.dead.len(), ledger.purged), (10_000, 9_990, 10, 0));
    assert_eq!(ledger.charged, u64::from(10 * max_attempts));
    for letter in mailbox.dead.values() {
        assert_eq!(letter.content.payload, Kind::Poison.payload());
        assert_eq!((letter.kind, letter.trouble.charged), (DeathKind::Attempts, max_attempts));
        let crashed = letter.trouble.attempts.iter().filter(|attempt| attempt.how == AttemptEnd::Crashed).count();
        assert_eq!(crashed, max_attempts as usize, "{:?}", letter.trouble.attempts);
    }
    assert_eq!(sim.books.open(), 0);
}

#[test]
fn t12_ten_poisons_among_ten_thousand_are_charged_three_times_each_and_nothing_else_is() {
    is_a_full_account(&wide_poison_run(3), 3);
}

#[test]
fn t12_with_one_attempt_each_poison_is_charged_once() {
    is_a_full_account(&wide_poison_run(1), 1);
}

#[test]
fn t12_without_a_limit_there_must_be_a_retry_delay() {
    let mut story = Story::new(&["n1"], 1, |_| {});
    story.sim.wanted.mailbox.max_attempts = Attempts::Unlimited;
    let spec = story.sim.spec();
    assert!(story.change(Change::Apply(spec)).is_err(), "it is refused without one");
    story.set(|wanted| wanted.mailbox.retry_delay = ms(100));
    assert_eq!(story.mailbox().spec.max_attempts, Attempts::Unlimited);
}

#[test]
fn t15_only_the_started_message_is_charged_and_its_neighbours_are_done() {
    let mut story = Story::new(&["n1"], 1, |mailbox| {
        mailbox.max_attempts = Attempts::Limited(2);
        mailbox.prefetch = 10;
    });
    story.send(10);
    assert_eq!(story.holds(0), (1..=10).collect::<Vec<_>>());
    (1..=3).for_each(|number| story.done(number));
    for crash in 1..=2 {
        story.crash(0, &[4]);
        story.until_ready(0);
        if crash == 1 {
            (5..=9).for_each(|number| story.done(number));
        }
    }
    story.all_done();
    assert_eq!((story.dead(), story.charged(4), story.row().done), (vec![4], 2, 9));
    assert_eq!(story.paid(0), 0, "no budget pays for what a message did");
}

#[test]
fn t16_what_is_given_back_by_a_drain_is_never_charged() {
    let mut story = Story::new(&["n1", "n2"], 1, |_| {});
    story.send(1);
    for _ in 0..20 {
        let node = story.node_of(0);
        assert_eq!(story.holds(0), [1]);
        let machine = story.sim.machines.get_mut(&node).expect("it is known");
        machine.workers.values_mut().flat_map(|worker| worker.holds.values_mut()).for_each(|held| held.1 = true);
        story.change(Change::Drain(node.clone())).expect("it is drained");
        story.until_ready(0);
        assert_ne!(story.node_of(0), node);
        story.change(Change::Undrain(node)).expect("it takes work again");
    }
    assert_eq!((story.charged(1), story.dead().len()), (0, 0));
    let attempts = story.attempts(1);
    assert_eq!(attempts.iter().filter(|attempt| attempt.how == AttemptEnd::Returned).count(), 20);
    story.done(1);
}

#[test]
fn t18_a_lower_limit_sets_aside_at_once_and_a_higher_one_revives_nothing() {
    let mut story = Story::new(&["n1"], 1, |mailbox| {
        mailbox.max_attempts = Attempts::Limited(10);
        mailbox.retry_delay = Duration::from_secs(60);
    });
    story.send(1);
    for _ in 0..4 {
        story.say(1, Word::Failed { error: "not today".into() });
        story.advance(Duration::from_secs(60 * 20));
    }
    story.say(1, Word::Returned);
    story.change(Change::Pause(at())).expect("it is paused");
    story.say(1, Word::Returned);
    let handed = story.mailbox().ledger.handed;
    story.set(|wanted| wanted.mailbox.max_attempts = Attempts::Limited(3));
    assert_eq!((story.dead(), story.charged(1), story.mailbox().ledger.handed), (vec![1], 4, handed));
    story.set(|wanted| wanted.mailbox.max_attempts = Attempts::Limited(10));
    story.change(Change::Resume(at())).expect("it is resumed");
    assert_eq!(story.dead(), [1]);
}

#[test]
fn t19_what_is_set_aside_is_kept_and_looking_changes_nothing() {
    let mut story = Story::new(&["n1", "n2", "n3"], 3, |mailbox| mailbox.max_attempts = Attempts::Limited(2));
    let kind = |number: usize| if number.is_multiple_of(10) { Kind::Fails } else { Kind::Good };
    let kinds: Vec<_> = (1..=200).map(|number| (kind(number), Some(format!("m{number}")))).collect();
    story.sim.send(&kinds, false).expect("it holds");
    let nodes: Vec<_> = story.sim.machines.keys().cloned().collect();
    let mut dice = Dice::new(19);
    for round in 0..2_000 {
        for node in &nodes {
            story.sim.poll(node, true).expect("it holds");
            story.sim.work(node, &mut dice).expect("it holds");
            while story.sim.deliver(node).expect("it holds") {}
        }
        if round % 20 == 0 {
            let before = story.sim.cluster.clone();
            report::dead_letters(&story.sim.cluster, &at(), &Letters::default(), PAGE).expect("they are listed");
            assert!(story.sim.cluster == before, "looking changes nothing");
        }
    }
    let (letters, all) = report::dead_letters(&story.sim.cluster, &at(), &Letters::default(), PAGE).expect("a list");
    assert_eq!((letters.len(), all, story.row().done), (20, 20, 180));
    for letter in &letters {
        assert_eq!((letter.cause, letter.attempts.len()), (DeathKind::Attempts, 2), "{letter:?}");
        let whole = report::dead_letter(&story.sim.cluster, &at(), &letter.id).expect("it is shown");
        assert_eq!((whole.payload.as_str(), whole.attempts[0].why.as_str()), ("Fails", "it went wrong"));
    }
    story.sim.replay(story.sim.log.len() / 2).expect("every voter has the same");
}

#[test]
fn t20_redriven_letters_begin_a_new_life_at_their_pace_and_the_others_stay() {
    let mut story = Story::new(&["n1"], 1, |mailbox| {
        mailbox.max_attempts = Attempts::Limited(2);
        mailbox.prefetch = 1;
    });
    story.send(10);
    for _ in 0..20 {
        let number = story.holds(0)[0];
        story.say(number, Word::Failed { error: "broken".into() });
    }
    assert_eq!(story.dead().len(), 10);
    let letters = Letters { ids: ["#2", "#5", "#7"].map(String::from).to_vec(), ..Letters::default() };
    let redrive = Change::Redrive { from: at(), letters, rate: Some(1) };
    assert_eq!(story.change(redrive.clone()), Ok(Some(MailChanged::Moved(3))));
    assert_eq!(story.change(redrive), Ok(Some(MailChanged::Moved(0))), "the same again finds none of them");
    let mut handled = BTreeMap::new();
    for second in 0..5 {
        while let Some(number) = story.holds(0).first().copied() {
            assert_eq!(
                (story.charged(number), story.attempts(number).len()),
                (0, 2),
                "attempts from zero, evidence kept"
            );
            assert!(handled.insert(number, second).is_none(), "once each");
            if number == 7 {
                story.say(7, Word::Failed { error: "still broken".into() });
                assert_eq!((story.charged(7), story.dead().contains(&7)), (1, false), "not at the first failure");
                story.say(7, Word::Failed { error: "still broken".into() });
            } else {
                story.done(number);
            }
        }
        story.advance(Duration::from_secs(1));
    }
    assert_eq!(handled, BTreeMap::from([(2, 0), (5, 1), (7, 2)]));
    assert_eq!(story.dead(), [1, 3, 4, 6, 7, 8, 9, 10]);
    let again = report::dead_letter(&story.sim.cluster, &at(), "#7").expect("it is dead");
    assert_eq!((again.life, again.attempts.len()), (2, 4));
}

//! Conversations at a desk, on time that the test tells.

use pando_protocol::ids::Incarnation;
use pando_protocol::mail::{Headers, MAX_PAYLOAD, Payload};

use super::*;

const LIMIT: Duration = Duration::from_secs(30);
const TERMS: Terms = Terms { handling_timeout: LIMIT, prefetch: 16, makes_ready: true };

/// A desk, and the time there.
struct Scene {
    desk: Desk,
    now: Instant,
}

/// A worker that has begun, and said nothing.
fn silent() -> Scene {
    let (mut desk, now) = (Desk::new(TERMS), Instant::now());
    desk.begun(now);
    Scene { desk, now }
}

/// A worker that said this first, and holds these hands.
fn ready(line: &str, hands: &[u64]) -> Scene {
    let mut scene = silent();
    assert!(scene.say(line).ready.is_some());
    scene.hand(hands);
    scene
}

fn starting(hands: &[u64]) -> Scene {
    ready(r#"{"type":"ready","starts":true}"#, hands)
}

fn hand(number: u64) -> Hand {
    Hand {
        number,
        worker: "/t/a".parse().unwrap(),
        incarnation: Incarnation(1),
        id: format!("m{number}"),
        attempt: 1,
        life: 1,
        asks: true,
        headers: Headers::new(),
        payload: "x".into(),
    }
}

fn done(number: u64) -> Settlement {
    Settlement { hand: number, word: Word::Done { reply: None } }
}

impl Scene {
    fn hand(&mut self, numbers: &[u64]) {
        self.desk.hand(numbers.iter().copied().map(hand).collect(), self.now);
    }

    fn hear(&mut self, line: Line<'_>) -> Told {
        let mut told = Told::default();
        self.desk.hear(line, self.now, &mut told);
        told
    }

    fn say(&mut self, line: &str) -> Told {
        self.hear(Line::Whole(line.as_bytes()))
    }

    /// Says `word` of one message.
    fn of(&mut self, word: &str, number: u64) -> Told {
        self.say(&format!(r#"{{"type":"{word}","id":"m{number}"}}"#))
    }

    /// All lines that are to be written, by kind and id; the worker gets them.
    fn lines(&mut self) -> Vec<String> {
        let mut bytes = Vec::new();
        self.desk.write(&mut bytes);
        self.desk.written(self.now);
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines
            .map(|line| match ToWorker::parse(line).unwrap() {
                ToWorker::Message(message) => message.id,
                ToWorker::Stop => "stop".into(),
                ToWorker::Error { error } => format!("error: {error}"),
            })
            .collect()
    }

    /// The verdict after this time, if there is one.
    fn after(&mut self, time: Duration) -> Option<Verdict> {
        self.now += time;
        let mut told = Told::default();
        self.desk.judge(self.now, &mut told);
        told.verdict
    }
}

#[test]
fn a_worker_that_says_what_it_starts_gets_all_and_is_accused_of_what_it_started() {
    let mut scene = starting(&[1, 2, 3, 4]);
    assert_eq!(scene.lines(), ["m1", "m2", "m3", "m4"]);
    scene.of("started", 2);
    scene.of("started", 3);
    assert_eq!(scene.of("done", 2).settlements, [done(2)]);
    assert_eq!(scene.desk.remains(), Remains { started: vec![3], blamed: vec![] });
}

#[test]
fn what_is_handed_ahead_waits_until_the_worker_holds_less_than_its_prefetch() {
    let mut scene = ready(r#"{"type":"ready","starts":true,"prefetch":2}"#, &[1, 2, 3, 4]);
    assert_eq!(scene.lines(), ["m1", "m2"]);
    scene.of("started", 1);
    assert_eq!(scene.lines(), [""; 0]);
    assert_eq!(scene.of("done", 1).settlements, [done(1)]);
    assert_eq!(scene.lines(), ["m3"]);
}

#[test]
fn any_other_worker_gets_one_at_a_time_and_getting_it_is_starting_it() {
    let mut scene = ready(r#"{"type":"ready","prefetch":50}"#, &[1, 2]);
    assert_eq!(scene.desk.remains().started, [0; 0], "nothing is written yet");
    assert_eq!(scene.lines(), ["m1"]);
    assert_eq!(scene.desk.remains().started, [1]);
    assert_eq!(scene.lines(), [""; 0]);
    assert_eq!(scene.of("done", 1).settlements, [done(1)]);
    assert_eq!(scene.lines(), ["m2"]);
    scene.of("returned", 2);
    assert_eq!(scene.desk.remains(), Remains::default());
}

#[test]
fn what_was_not_wholly_written_when_the_worker_closed_is_not_started() {
    let mut scene = ready(r#"{"type":"ready"}"#, &[1]);
    scene.desk.write(&mut Vec::new());
    scene.desk.closed(scene.now);
    scene.desk.written(scene.now);
    assert_eq!(scene.desk.remains(), Remains::default());
}

#[test]
fn readiness_has_the_mailboxes_bound_and_is_said_once_and_first() {
    for (line, starts, prefetch) in [
        (r#"{"type":"ready","starts":true}"#, true, 16),
        (r#"{"type":"ready","starts":true,"prefetch":100}"#, true, 16),
        (r#"{"type":"ready","starts":true,"prefetch":3}"#, true, 3),
        (r#"{"type":"ready","prefetch":3}"#, false, 1),
    ] {
        assert_eq!(silent().say(line).ready, Some(Readiness { starts, prefetch }), "{line}");
    }
    let mut scene = silent();
    scene.of("started", 1);
    assert_eq!(scene.lines(), [r#"error: the first line must be "ready""#]);
    scene.say(r#"{"type":"ready"}"#);
    assert_eq!(scene.say(r#"{"type":"ready"}"#), Told::default());
    assert_eq!(scene.lines(), [r#"error: "ready" was said already"#]);
}

#[test]
fn settlements_come_out_in_order_with_what_was_said() {
    let mut scene = starting(&[1, 2, 3, 4, 5, 6]);
    scene.lines();
    let mut told = Told::default();
    let long = "é".repeat(MAX_FAILURE);
    for line in [
        r#"{"type":"done","id":"m4","reply":"yes"}"#.to_owned(),
        r#"{"type":"done","ids":["m1","m2"]}"#.to_owned(),
        format!(r#"{{"type":"failed","id":"m3","error":"{long}"}}"#),
        r#"{"type":"failed","id":"m5","error":"never","retry":false}"#.to_owned(),
        r#"{"type":"returned","id":"m6"}"#.to_owned(),
    ] {
        scene.desk.hear(Line::Whole(line.as_bytes()), scene.now, &mut told);
    }
    let word = |hand, word| Settlement { hand, word };
    assert_eq!(
        told.settlements,
        [
            word(4, Word::Done { reply: Some("yes".into()) }),
            done(1),
            done(2),
            word(3, Word::Failed { error: "é".repeat(MAX_FAILURE / 2) }),
            word(5, Word::Rejected { error: "never".into() }),
            word(6, Word::Returned),
        ]
    );
    assert_eq!((scene.lines(), scene.desk.remains()), (vec![], Remains::default()));
}

#[test]
fn a_reply_that_nobody_waits_for_goes_no_further() {
    let mut scene = starting(&[1]);
    let unasked = [2, 3].map(|number| Hand { asks: false, ..hand(number) }).to_vec();
    scene.desk.hand(unasked, scene.now);
    scene.lines();
    let of = |number: u64| format!(r#"{{"type":"done","id":"m{number}","reply":"yes"}}"#);
    let yes = Settlement { hand: 1, word: Word::Done { reply: Some("yes".into()) } };
    assert_eq!(scene.say(&of(2)).settlements, [done(2)]);
    assert_eq!(scene.say(&of(1)).settlements, [yes]);
    assert_eq!(scene.say(&of(3)).settlements, [done(3)]);
}

#[test]
fn late_hands_are_ignored() {
    let mut scene = starting(&[1, 2]);
    scene.lines();
    scene.of("done", 1);
    scene.hand(&[1, 2, 3]);
    assert_eq!(scene.lines(), ["m3"]);
}

#[test]
fn a_started_message_without_progress_is_hung_and_no_other_is_blamed() {
    let mut scene = starting(&[1, 2, 3]);
    scene.lines();
    scene.of("started", 1);
    scene.of("started", 2);
    assert_eq!(scene.after(LIMIT - Duration::from_secs(1)), None);
    scene.of("progress", 2);
    let hung = Verdict::Hung { limit: LIMIT, hands: [1].into() };
    assert_eq!(scene.after(Duration::from_secs(1)), Some(hung));
    assert_eq!(scene.after(LIMIT), None, "said once");
    assert_eq!(scene.desk.remains(), Remains { started: vec![1, 2], blamed: vec![1] });
    assert_eq!(scene.of("done", 1).settlements, [done(1)], "what it settles before its end counts");
    assert_eq!(scene.desk.remains(), Remains { started: vec![2], blamed: vec![] });
}

#[test]
fn one_that_gets_one_at_a_time_hangs_from_when_it_got_it() {
    let mut scene = ready(r#"{"type":"ready"}"#, &[1]);
    scene.lines();
    scene.now += LIMIT / 2;
    scene.lines();
    assert!(matches!(scene.after(LIMIT / 2), Some(Verdict::Hung { .. })));
}

#[test]
fn one_that_holds_messages_and_starts_none_is_idle_and_none_is_blamed() {
    for reads in [true, false] {
        let mut scene = starting(&[1, 2]);
        if reads {
            scene.lines();
        }
        assert_eq!(scene.after(LIMIT - Duration::from_secs(1)), None);
        assert_eq!(scene.after(Duration::from_secs(1)), Some(Verdict::Idle(LIMIT)));
        assert_eq!(scene.desk.remains(), Remains::default());
    }
}

#[test]
fn it_is_idle_from_when_it_had_nothing_more_to_do_and_not_while_it_holds_nothing() {
    let mut scene = starting(&[1, 2, 3]);
    scene.lines();
    scene.of("started", 1);
    scene.now += LIMIT / 2;
    scene.of("done", 1);
    assert_eq!(scene.after(LIMIT - Duration::from_secs(1)), None);
    scene.of("done", 2); // Without a word before; it lives.
    assert_eq!(scene.after(LIMIT - Duration::from_secs(1)), None);
    scene.of("done", 3);
    assert_eq!((scene.after(LIMIT * 9), scene.desk.deadline()), (None, None));
}

#[test]
fn one_that_is_not_ready_in_time_is_told_of_where_that_makes_its_run_ready() {
    let mut scene = silent();
    assert_eq!(scene.desk.deadline(), Some(scene.now + READY_WITHIN));
    assert_eq!(scene.after(READY_WITHIN), Some(Verdict::Unready(READY_WITHIN)));
    let mut otherwise = Desk::new(Terms { makes_ready: false, ..TERMS });
    otherwise.begun(scene.now);
    assert_eq!(otherwise.deadline(), None);
    assert_eq!(Desk::new(TERMS).deadline(), None, "not before its process begins");
}

#[test]
fn one_that_closed_its_socket_and_lives_on_is_told_of_and_what_it_started_is_blamed() {
    let mut scene = starting(&[1, 2]);
    scene.lines();
    scene.of("started", 1);
    scene.desk.closed(scene.now);
    scene.hand(&[3]);
    assert_eq!(scene.lines(), [""; 0]);
    assert_eq!(scene.after(CLOSED_PATIENCE / 2), None, "its death may be on its way");
    assert_eq!(scene.after(CLOSED_PATIENCE / 2), Some(Verdict::Closed));
    assert_eq!(scene.desk.remains(), Remains { started: vec![1], blamed: vec![1] });
}

#[test]
fn nonsense_is_answered_and_changes_nothing() {
    let mut scene = starting(&[1]);
    scene.lines();
    let (nonsense, not_held) = ("error: this is no JSON object", r#"error: "m9" is not held by this worker"#);
    assert_eq!((scene.say("hello"), scene.lines()), (Told::default(), vec![nonsense.to_owned()]));
    assert_eq!((scene.of("done", 9), scene.lines()), (Told::default(), vec![not_held.to_owned()]));
    assert_eq!(scene.of("progress", 1), Told::default());
    assert_eq!(scene.lines(), [r#"error: "m1" was not started"#]);
    scene.hear(Line::TooLong);
    assert!(scene.lines()[0].contains("a line of more than"));
    let told = scene.say(r#"{"type":"done","ids":["m9","m1","m8"]}"#);
    assert_eq!(told.settlements, [done(1)], "those that it holds are settled");
    assert_eq!(scene.lines(), [not_held]);
    assert_eq!(scene.of("done", 1), Told::default(), "settled already");
}

#[test]
fn a_reply_that_is_too_large_leaves_the_message_held() {
    let mut scene = starting(&[1]);
    scene.lines();
    let line = format!(r#"{{"type":"done","id":"m1","reply":"{}"}}"#, "x".repeat(MAX_PAYLOAD + 1));
    assert_eq!(scene.say(&line), Told::default());
    assert!(scene.lines()[0].contains("expected at most"));
    assert_eq!(scene.of("done", 1).settlements, [done(1)]);
}

#[test]
fn nonsense_in_a_row_is_too_much_and_blames_no_message() {
    let mut scene = starting(&[1]);
    scene.lines();
    scene.of("started", 1);
    for _ in 1..NONSENSE_IN_A_ROW {
        assert_eq!(scene.say("hello"), Told::default());
    }
    let verdict = scene.say("hello").verdict;
    assert_eq!(verdict, Some(Verdict::Nonsense("this is no JSON object".into())));
    assert_eq!(scene.desk.remains(), Remains { started: vec![1], blamed: vec![] });
    for _ in 0..100_000 {
        assert_eq!(scene.say("hello"), Told::default(), "said once");
    }
    assert_eq!(scene.lines().len(), NONSENSE_IN_A_ROW as usize, "who does not read is not answered for ever");
}

#[test]
fn nonsense_between_good_words_adds_up() {
    let mut scene = starting(&[1]);
    scene.lines();
    for count in 1..=NONSENSE_IN_A_RUN {
        scene.of("started", 1);
        let is_too_much = scene.say("{}").verdict.is_some();
        assert_eq!(is_too_much, count == NONSENSE_IN_A_RUN, "{count}");
    }
}

#[test]
fn one_that_is_stopped_is_told_once_gets_nothing_more_and_is_not_judged() {
    let mut scene = starting(&[1, 2]);
    scene.lines();
    scene.of("started", 1);
    scene.desk.stop();
    scene.desk.stop();
    scene.hand(&[3]);
    assert_eq!(scene.lines(), ["stop"]);
    for _ in 0..=NONSENSE_IN_A_RUN {
        scene.say("hello");
    }
    scene.desk.closed(scene.now);
    assert_eq!(scene.after(LIMIT * 9), None);
    assert_eq!(scene.of("done", 1).settlements, [done(1)]);
    assert_eq!(scene.of("returned", 2).settlements, [Settlement { hand: 2, word: Word::Returned }]);
}

#[test]
fn a_worker_that_does_not_read_gets_a_few_lines_at_a_time_and_the_rest_stays_as_it_came() {
    let mut scene = starting(&[]);
    let payload: Payload = vec![b'x'; 10_000].into();
    let hands = (1..=100).map(|number| Hand { payload: payload.clone(), ..hand(number) }).collect();
    scene.desk.hand(hands, scene.now);
    let mut bytes = Vec::new();
    scene.desk.write(&mut bytes);
    assert!((WRITE_BYTES..WRITE_BYTES + 20_000).contains(&bytes.len()), "{}", bytes.len());
    scene.desk.write(&mut bytes);
    assert!(bytes.len() < WRITE_BYTES + 20_000, "nothing more before that is written");
}

#[test]
fn the_time_for_which_a_worker_is_held_up_does_not_count_and_what_had_passed_before_does() {
    let mut scene = starting(&[1, 2]);
    scene.lines();
    scene.of("started", 1);
    assert_eq!(scene.after(LIMIT / 2), None);
    scene.desk.hold_up(true, scene.now);
    assert_eq!(scene.desk.deadline(), None);
    assert_eq!(scene.after(LIMIT * 3), None);
    scene.desk.hold_up(false, scene.now);
    assert_eq!(scene.desk.deadline(), Some(scene.now + LIMIT / 2));
    assert_eq!(scene.after(LIMIT / 4), None);
    assert_eq!(scene.after(LIMIT / 4), Some(Verdict::Hung { limit: LIMIT, hands: [1].into() }));
}

#[test]
fn a_hold_that_comes_and_goes_saves_neither_one_that_hangs_nor_one_that_is_idle_or_never_ready() {
    let mut hung = starting(&[1]);
    hung.lines();
    hung.of("started", 1);
    for (mut scene, limit) in [(hung, LIMIT), (starting(&[1]), LIMIT), (silent(), READY_WITHIN)] {
        let mut counted = Duration::ZERO;
        let verdict = loop {
            scene.desk.hold_up(true, scene.now);
            scene.now += LIMIT;
            scene.desk.hold_up(false, scene.now);
            counted += Duration::from_secs(1);
            if let Some(verdict) = scene.after(Duration::from_secs(1)) {
                break verdict;
            }
            assert!(counted < limit, "it is never told of");
        };
        assert_eq!(counted, limit, "{verdict:?}");
    }
}

#[test]
fn what_begins_while_a_worker_is_held_up_counts_from_the_end_of_that() {
    let mut scene = starting(&[]);
    scene.desk.hold_up(true, scene.now);
    scene.now += LIMIT;
    scene.hand(&[1]);
    scene.now += LIMIT;
    scene.desk.hold_up(false, scene.now);
    assert_eq!(scene.desk.deadline(), Some(scene.now + LIMIT));
}

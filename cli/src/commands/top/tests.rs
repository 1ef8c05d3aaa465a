//! The model and the drawing, without a terminal and without a cluster.

use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use pando_protocol::ids::{Path, SessionId};
use pando_protocol::mail::MailboxRow;
use pando_protocol::message::ViewAge;
use pando_protocol::session::NodeRole;
use pando_protocol::view::{EventRow, Explanation, Kind, NodeRow, NodeState, State, TreeRow, Verdict};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use tokio::time::Instant;

use super::deed::Deed;
use super::keys::Wish;
use super::model::{Answer, Model, News, Pane, Watched};
use super::view::{self, Look};
use crate::commands::tree::tests::{process, row};
use crate::connection::Read;

/// A model, and the time that passes for it.
struct Story {
    model: Model,
    now: Instant,
}

impl Story {
    fn new() -> Self {
        let now = Instant::now();
        Self { model: Model::new(None, false, now), now }
    }

    /// The shop on three nodes, with a mailbox and some events.
    fn of_shop() -> Self {
        let mut story = Self::new();
        story.tree(shop());
        story.hear(News::Nodes(story.answer(["n1", "n2", "n3"].map(node).to_vec())));
        story.hear(News::Mailboxes(story.answer(vec![orders()])));
        (1..=3).for_each(|number| story.hear(News::Event(event(number))));
        story
    }

    fn hear(&mut self, news: News) {
        self.model.hear(news, self.now);
    }

    fn answer<T>(&self, rows: Vec<T>) -> Answer<T> {
        let view = ViewAge { answered_by: name("n1"), leader: Some(name("n1")), confirmed: true, age_ms: 0 };
        Answer { asked: self.now, endpoint: "10.0.0.1:7400".into(), told: Ok(Read { value: rows, view }) }
    }

    fn silent<T>(&self) -> Answer<T> {
        Answer { asked: self.now, endpoint: "10.0.0.2:7400".into(), told: Err("no node was reached".into()) }
    }

    fn tree(&mut self, rows: Vec<TreeRow>) {
        self.hear(News::Tree(self.answer(rows)));
    }

    fn passes(&mut self, time: Duration) {
        self.now += time;
        self.model.pass("10.0.0.1:7400");
    }

    fn code(&mut self, code: KeyCode) -> Option<Wish> {
        self.model.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    /// Presses letters one after the other; what the last one asked for.
    fn keys(&mut self, letters: &str) -> Option<Wish> {
        letters.chars().map(|letter| self.code(KeyCode::Char(letter))).last().flatten()
    }

    /// The screen as text, without blanks at the ends of lines.
    fn screen(&mut self, columns: u16, rows: u16) -> String {
        self.model.resize(columns, rows);
        let mut buffer = Buffer::empty(Rect::new(0, 0, columns, rows));
        view::draw(&self.model, Look { colour: true, now: self.now }, &mut buffer);
        let line =
            |y: u16| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned() + "\n";
        (0..rows).map(line).collect()
    }

    fn chosen(&self) -> &str {
        self.model.tree.chosen().expect("a member").path.as_str()
    }
}

fn name(text: &str) -> pando_protocol::ids::NodeName {
    text.parse().unwrap()
}

fn path(text: &str) -> Path {
    text.parse().unwrap()
}

fn shop() -> Vec<TreeRow> {
    let supervisor = |path: &str, ready| TreeRow { alive: ready, configured: ready, ..row(path, Kind::Supervisor) };
    let feed = TreeRow {
        verdict: Verdict::Churning,
        restarts: 5,
        restart_rate: 2,
        ..process("/shop/ingest/feed", "n2", 9, 3_400)
    };
    vec![
        supervisor("/shop", 4),
        process("/shop/web", "n1", 1, 125_000),
        supervisor("/shop/ingest", 2),
        process("/shop/ingest/connection", "n1", 3, 125_000),
        feed,
        process("/shop/orders", "n3", 4, 61_000),
    ]
}

fn node(text: &str) -> NodeRow {
    NodeRow {
        name: name(text),
        role: NodeRole::Voter,
        state: NodeState::Up,
        session: Some(SessionId(4)),
        pid: Some(4711),
        children: 2,
        used: 3,
        slots: 64,
        labels: Vec::new(),
        losses: 0,
        address: "127.0.0.1:7601".into(),
    }
}

fn orders() -> MailboxRow {
    MailboxRow {
        path: path("/shop/orders"),
        enqueued: 1_000,
        done: 984,
        dead: 1,
        waiting: 12,
        in_flight: 3,
        purged: 0,
        delayed: 0,
        undecided: 0,
        suspects: 0,
        charged: 4,
        redelivered: 6,
        bytes: 12_700,
        max_messages: 100_000,
        max_bytes: 64 << 20,
        oldest_ms: Some(3_400),
        enqueued_per_minute: 120,
        done_per_minute: 118,
        paused: false,
        closed: false,
        blocked: None,
        workers: Vec::new(),
    }
}

fn event(number: u64) -> EventRow {
    EventRow {
        number,
        cluster_time_ms: 0,
        at: 1_796_040_184_120,
        kind: "child_exited".into(),
        path: Some(path("/shop/ingest/feed")),
        node: None,
        text: format!("/shop/ingest/feed: exit code {number}"),
    }
}

#[test]
fn everything_is_on_a_large_screen() {
    let expected = "\
pando top: leader n1, 3 of 3 nodes up, 1 tree, 4 of 4 ready                                under 1 s old
━━ Tree ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 1 of 6 ━━
  TREE              STATE    NODE  INCARNATION  UPTIME  RESTARTS   VERDICT
> /shop             running                             0          healthy 4/4
  ├─ web            running  n1    1            2 m     0          healthy
  ├─ ingest         running                             0          healthy 2/2
  │  ├─ connection  running  n1    3            2 m     0          healthy
  │  └─ feed        running  n2    9            3.4 s   5 (2/min)  churning
  └─ orders         running  n3    4            1 m     0          healthy
── Mailboxes ────────────────────────────────────────────────────────────────────────────────────── 1 ──
  MAILBOX       WAITING  IN FLIGHT  DEAD  DONE  OLDEST  IN/MIN  DONE/MIN  WORKERS
  /shop/orders  12       3          1     984   3.4 s   120     118       0 of 0
── Nodes ────────────────────────────────────────────────────────────────────────────────────────── 3 ──
  NODE  ROLE    STATE  CHILDREN  SLOTS    LEASE     PID   ADDRESS
  n1    leader  up     2         3 of 64  held, s4  4711  127.0.0.1:7601
  n2    voter   up     2         3 of 64  held, s4  4711  127.0.0.1:7601
  n3    voter   up     2         3 of 64  held, s4  4711  127.0.0.1:7601
── Events ───────────────────────────────────────────────────────────────────────────────────────── 3 ──
  12:03:04.120  /shop/ingest/feed: exit code 1
  12:03:04.120  /shop/ingest/feed: exit code 2
  12:03:04.120  /shop/ingest/feed: exit code 3








Tab pane  ↑↓ choose  Enter explain  l logs  r restart  d drain  / filter  ? help  q quit
";
    assert_eq!(Story::of_shop().screen(104, 30), expected);
}

#[test]
fn a_small_screen_shows_one_pane_and_the_last_events() {
    let mut story = Story::of_shop();
    let screen = story.screen(60, 16);
    let expected = "\
pando top: leader n1, 3 of 3 nodes up, 1 tre…  under 1 s old
━━ Tree ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 1 of 6 ━━
  TREE              STATE    NODE  RESTARTS   VERDICT
> /shop             running        0          healthy 4/4
  ├─ web            running  n1    0          healthy
  ├─ ingest         running        0          healthy 2/2
  │  ├─ connection  running  n1    0          healthy
  │  └─ feed        running  n2    5 (2/min)  churning
  └─ orders         running  n3    0          healthy

── Events ───────────────────────────────────────────── 3 ──
  12:03:04.120  /shop/ingest/feed: exit code 1
  12:03:04.120  /shop/ingest/feed: exit code 2
  12:03:04.120  /shop/ingest/feed: exit code 3

Tab pane  ↑↓ choose  Enter explain  l logs  r restart  d dr…
";
    assert_eq!(screen, expected);
    story.code(KeyCode::Tab);
    assert!(story.screen(60, 16).contains("> /shop/orders"), "the next pane takes its place");
    story.code(KeyCode::BackTab);
    story.code(KeyCode::BackTab);
    assert!(story.screen(60, 16).contains("━━ Events"));
}

#[test]
fn no_size_of_a_terminal_and_nothing_that_is_open_breaks_the_drawing() {
    let explanation = Explanation {
        row: process("/shop/web", "n1", 7, 125_000),
        now: "ready for 2 m, in a sentence that is longer than the screen is wide".into(),
        next: String::new(),
        gives_up: String::new(),
        last: None,
        window: Vec::new(),
        node_losses: Vec::new(),
        start_failures: Vec::new(),
    };
    let mut stories = vec![Story::new(), Story::of_shop()];
    for keys in ["?", "e", "l", "r", "/web"] {
        for turns in 0..4 {
            let mut story = Story::of_shop();
            (0..turns).for_each(|_| _ = story.code(KeyCode::Tab));
            story.keys(keys);
            story.hear(News::Explained(path("/shop"), Ok(Box::new(explanation.clone()))));
            stories.push(story);
        }
    }
    for story in &mut stories {
        for (columns, rows) in
            (0..30).step_by(3).flat_map(|columns| (0..34).step_by(3).map(move |rows| (columns, rows)))
        {
            story.screen(columns, rows);
            story.code(KeyCode::PageDown);
        }
        for (columns, rows) in [(80, 24), (80, 1), (80, 2), (1, 24), (2, 2), (4, 5), (8, 30), (300, 100)] {
            story.screen(columns, rows);
        }
    }
}

#[test]
fn of_ten_thousand_children_only_those_on_the_screen_are_drawn_and_every_one_is_reached() {
    let mut story = Story::new();
    let mut rows = vec![row("/t", Kind::Supervisor)];
    rows.extend((0..10_000).map(|number| process(&format!("/t/c{number}"), "n1", 1, 0)));
    story.tree(rows);
    story.screen(80, 24);
    story.code(KeyCode::PageDown);
    assert!(story.screen(80, 24).contains("16 of 10001"), "{}", story.screen(80, 24));
    story.keys("G");
    let screen = story.screen(80, 24);
    assert!(screen.contains("> └─ c9999") && !screen.contains("c9900"), "{screen}");
    story.keys("kkg");
    assert!(story.screen(80, 24).contains("> /t "));
}

#[test]
fn the_chosen_member_stays_chosen_while_others_come_and_go() {
    let mut story = Story::of_shop();
    story.keys("jjj");
    assert_eq!(story.chosen(), "/shop/ingest/connection");
    story.tree(shop().into_iter().filter(|row| row.path != path("/shop/web")).collect());
    assert_eq!(story.chosen(), "/shop/ingest/connection");
    story.tree(shop()[..2].to_vec());
    assert_eq!(story.chosen(), "/shop/web", "the last one, where it is gone");
    story.tree(Vec::new());
    assert!(story.model.tree.chosen().is_none() && story.keys("e").is_none());
    assert!(story.screen(80, 24).contains("there is nothing to choose here yet"));
}

#[test]
fn what_lies_below_a_supervisor_is_folded_and_unfolded() {
    let mut story = Story::of_shop();
    story.keys("jj");
    story.code(KeyCode::Left);
    let screen = story.screen(80, 24);
    assert!(screen.contains("> ├─ ingest […]") && !screen.contains("connection "), "{screen}");
    story.tree(shop());
    assert!(!story.screen(80, 24).contains("connection "), "also of the next answer");
    story.code(KeyCode::Left);
    assert_eq!(story.chosen(), "/shop", "what is folded leads to the supervisor above");
    story.keys("jj");
    story.code(KeyCode::Right);
    story.keys("j");
    assert_eq!(story.chosen(), "/shop/ingest/connection");
}

#[test]
fn a_filter_shows_what_mentions_it_with_what_lies_above() {
    let mut story = Story::of_shop();
    story.keys("/feed");
    let screen = story.screen(80, 24);
    let only = "\
  TREE        STATE    NODE  INCARNATION  UPTIME  RESTARTS   VERDICT
> /shop       running                             0          healthy 4/4
  └─ ingest   running                             0          healthy 2/2
     └─ feed  running  n2    9            3.4 s   5 (2/min)  churning
";
    assert!(screen.contains(only), "{screen}");
    assert!(!screen.contains("web") && screen.contains("show only what mentions: feed_"), "{screen}");
    story.code(KeyCode::Enter);
    assert!(story.screen(80, 24).contains("Tree, only \"feed\""));
    assert!(story.code(KeyCode::Esc).is_none(), "the first Esc takes the filter away");
    assert!(story.screen(80, 24).contains("web"));
    assert_eq!(story.code(KeyCode::Esc), Some(Wish::Quit));
}

#[test]
fn a_restart_is_asked_for_only_after_a_yes_and_one_at_a_time() {
    let mut story = Story::of_shop();
    assert_eq!(story.keys("jr"), None);
    let screen = story.screen(80, 24);
    assert!(
        screen.contains("pando restart /shop/web?") && screen.contains("The process of /shop/web on n1 is"),
        "{screen}"
    );
    assert_eq!(story.keys("x"), None, "any other key answers nothing");
    assert_eq!(story.keys("n"), None);
    assert!(story.screen(80, 24).contains("nothing was changed"));
    let restart = Deed::Restart(path("/shop/web"));
    assert_eq!(story.keys("ry"), Some(Wish::Do(restart.clone())));
    assert!(story.screen(80, 24).contains("pando restart /shop/web: no answer yet"));
    assert_eq!(story.keys("ry"), None, "the first has no answer yet");
    story.hear(News::Done(restart.clone(), Ok(1)));
    assert!(story.screen(80, 24).contains("/shop/web is restarting"));
    assert_eq!(story.keys("ry"), Some(Wish::Do(restart)));
}

#[test]
fn the_question_names_what_is_at_stake() {
    let mut story = Story::of_shop();
    story.keys("r");
    assert!(story.screen(120, 24).contains("/shop and all below it (4 children that should run) are stopped"));
    story.keys("n");
    let mut failed = shop();
    (failed[0].state, failed[0].verdict) = (State::Failed, Verdict::Failed);
    story.tree(failed);
    story.keys("r");
    assert!(story.screen(120, 24).contains("The tree /shop has failed: this clears it"));
    story.keys("n");
    story.keys("d");
    assert!(story.screen(120, 24).contains("choose a node first"), "a drain is asked for where nodes are");
    story.model.pane = Pane::Nodes;
    story.keys("jd");
    let screen = story.screen(120, 24);
    assert!(
        screen.contains("pando node drain n2?") && screen.contains("2 children of n2 move to other nodes"),
        "{screen}"
    );
    assert_eq!(story.keys("y"), Some(Wish::Do(Deed::Drain(name("n2")))));
    story.hear(News::Done(Deed::Drain(name("n2")), Ok(1)));
    assert!(story.screen(120, 24).contains("n2 is being drained: 1 child to leave it"));
    assert_eq!(story.keys("u"), Some(Wish::Do(Deed::Undrain(name("n2")))));
}

#[test]
fn a_refusal_is_shown_whole_over_what_was_open() {
    let mut story = Story::of_shop();
    story.keys("jry");
    story.keys("e");
    let why = "a restart needs a certificate with the role admin, and yours has the role viewer: ask whoever holds the CA of \
               this cluster for one, then name its folder with --identity";
    story.hear(News::Done(Deed::Restart(path("/shop/web")), Err(why.into())));
    let screen = story.screen(60, 24);
    let words = screen.replace(['│', '\n'], " ").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(why) && screen.contains("pando restart /shop/web was not done"), "{screen}");
    assert_eq!(story.model.watched(), Watched::Explain(path("/shop/web")));
    story.code(KeyCode::Esc);
    assert!(story.screen(60, 24).contains("Explain /shop/web"));
}

#[test]
fn what_is_open_is_asked_for_and_answers_that_come_too_late_are_not_shown() {
    let mut story = Story::of_shop();
    assert_eq!(story.model.watched(), Watched::Nothing);
    story.keys("e");
    assert_eq!(story.model.watched(), Watched::Explain(path("/shop")));
    story.hear(News::Explained(path("/shop/web"), Err("of another".into())));
    assert!(story.screen(80, 24).contains("asking …"));
    story.code(KeyCode::Esc);
    story.keys("jl");
    assert_eq!(story.model.watched(), Watched::Logs(path("/shop/web")));
    story.hear(News::Log(path("/shop"), "of another\n".into()));
    (1..=50).for_each(|number| story.hear(News::Log(path("/shop/web"), format!("n1 1 | line {number}\n"))));
    let screen = story.screen(80, 24);
    assert!(screen.contains("line 50") && !screen.contains("line 9 ") && !screen.contains("another"), "{screen}");
    story.keys("k");
    story.hear(News::Log(path("/shop/web"), "n1 1 | line 51\n".into()));
    assert!(!story.screen(80, 24).contains("line 51"), "it stays where it was scrolled to");
    story.keys("G");
    story.hear(News::Log(path("/shop/web"), "n1 1 | line 52\n".into()));
    assert!(story.screen(80, 24).contains("line 52"), "at its end it goes on");
}

#[test]
fn text_that_came_from_programs_moves_no_cursor() {
    let mut story = Story::of_shop();
    story.keys("jl");
    story.hear(News::Log(path("/shop/web"), "n1 1 | \x1b[2J\x07a\tb\r\n".into()));
    let screen = story.screen(80, 24);
    assert!(!screen.contains(['\x1b', '\x07', '\t', '\r']) && screen.contains("a    b"), "{screen:?}");
}

#[test]
fn silence_is_said_over_the_last_picture_with_whom_is_asked_instead() {
    let mut story = Story::of_shop();
    story.passes(Duration::from_millis(2_900));
    assert!(story.screen(80, 24).starts_with("pando top: leader n1"), "answers come every second or so");
    story.hear(News::Nodes(story.silent()));
    story.now += Duration::from_millis(1_200);
    story.model.pass("10.0.0.2:7400");
    let screen = story.screen(100, 24);
    let said = "no answer for 4.1 s from 10.0.0.1:7400, trying 10.0.0.2:7400: no node was reached";
    assert!(screen.starts_with(said) && screen.contains("4.1 s old"), "{screen}");
    assert!(screen.contains("connection"), "what was seen last stays");
    story.tree(shop());
    assert!(story.screen(100, 24).starts_with("pando top: leader n1"));
}

#[test]
fn before_the_first_answer_the_screen_says_who_is_asked() {
    let mut story = Story::new();
    story.model.pass("10.0.0.1:7400");
    let screen = story.screen(80, 24);
    assert!(screen.contains("nothing seen yet") && screen.contains("no answer yet"), "{screen}");
    story.hear(News::Tree(story.silent()));
    story.passes(Duration::from_secs(5));
    let said = "no answer for 5.0 s from 10.0.0.1:7400, which is asked still: no node was reached";
    assert!(story.screen(120, 24).starts_with(said), "{}", story.screen(120, 24));
}

#[test]
fn a_view_that_no_leader_confirmed_says_so_unless_it_was_asked_for() {
    for is_stale_fine in [false, true] {
        let mut story = Story::new();
        story.model = Model::new(None, is_stale_fine, story.now);
        let mut answer = story.answer(shop());
        if let Ok(read) = &mut answer.told {
            (read.view.confirmed, read.view.age_ms) = (false, 4_200);
        }
        story.hear(News::Tree(answer));
        let screen = story.screen(80, 24);
        assert_eq!(screen.starts_with("no leader; view of n1, 4.2 s old"), !is_stale_fine, "{screen}");
        assert!(screen.lines().next().unwrap().ends_with("4.2 s old"), "its age stands there either way");
    }
}

#[test]
fn only_the_last_events_are_kept_and_the_chosen_one_stays() {
    let mut story = Story::of_shop();
    story.model.pane = Pane::Events;
    (4..=5_000).for_each(|number| story.hear(News::Event(event(number))));
    assert!(story.model.events.rows().len() <= 1_000);
    assert!(story.screen(80, 24).contains("exit code 5000"));
    story.keys("kkk");
    assert_eq!(story.model.events.chosen().map(|event| event.number), Some(4_997));
    (5_001..=5_400).for_each(|number| story.hear(News::Event(event(number))));
    assert_eq!(story.model.events.chosen().map(|event| event.number), Some(4_997));
    story.keys("Gk");
    story.keys("e");
    assert!(story.screen(80, 24).contains("Event 5399: child_exited"));
}

#[test]
fn it_is_drawn_only_when_something_changed() {
    let mut story = Story::of_shop();
    assert!(story.model.is_to_be_drawn() && !story.model.is_to_be_drawn());
    story.keys("j");
    assert!(story.model.is_to_be_drawn() && !story.model.is_to_be_drawn());
}

//! What a guard does at each event, without processes.

use pando_protocol::ids::Incarnation;

use super::*;

const SESSION: SessionId = SessionId(3);

fn at(milliseconds: u64) -> BootTime {
    BootTime::after_boot(Duration::from_millis(milliseconds))
}

fn run(number: u64) -> RunId {
    RunId { incarnation: Incarnation(number), probe: 0 }
}

fn order(number: u64, session: SessionId) -> StartOrder {
    StartOrder {
        run: run(number),
        session,
        command: vec!["true".into()],
        environment: Vec::new(),
        folder: b"/".to_vec(),
        make_folder: false,
        keep: false,
    }
}

fn start(number: u64, session: SessionId) -> Event {
    Event::Node(ToGuard::Start(order(number, session)))
}

fn renew(session: SessionId, kill_at: u64) -> Event {
    Event::Node(ToGuard::Renew { session, kill_at: at(kill_at) })
}

fn ended(number: u64, how: EndedHow, killed: bool) -> FromGuard {
    FromGuard::Ended { run: run(number), ending: Ending { how, ran: Duration::ZERO, killed } }
}

fn last_word(number: u64) -> Event {
    let ending = Ending { how: EndedHow::Code(0), ran: Duration::ZERO, killed: false };
    Event::Reaper(run(number), Word::Ended(ending))
}

/// Run 1 works under [`SESSION`], whose kill time is 1000.
fn guarded() -> Rules {
    let mut rules = Rules::default();
    rules.step(at(0), renew(SESSION, 1000));
    assert_eq!(rules.step(at(0), start(1, SESSION)), [Action::Fork(order(1, SESSION))]);
    rules
}

fn refused(number: u64) -> [Action; 2] {
    [Action::Refuse(run(number)), Action::Tell(FromGuard::NotStarted { run: run(number) })]
}

#[test]
fn nothing_starts_without_a_session_or_for_one_that_is_not_the_newest() {
    let mut rules = Rules::default();
    assert_eq!(rules.step(at(0), start(1, SESSION)), refused(1));
    rules.step(at(0), renew(SESSION, 1000));
    rules.step(at(0), renew(SessionId(4), 1000));
    assert_eq!(rules.step(at(0), start(2, SESSION)), refused(2));
    assert_eq!(rules.step(at(0), start(3, SessionId(4))), [Action::Fork(order(3, SessionId(4)))]);
    assert_eq!(rules.step(at(0), start(3, SessionId(4))), refused(3), "a run starts once");
}

#[test]
fn a_renewal_that_comes_at_the_kill_time_is_too_late() {
    let mut rules = guarded();
    let actions = rules.step(at(1000), renew(SESSION, 9000));
    assert_eq!(actions, [Action::Tell(FromGuard::Fenced { session: SESSION }), Action::Order(run(1), Order::Kill)]);
    assert_eq!(rules.step(at(1000), start(2, SESSION)), refused(2));
    let told = rules.step(at(1001), last_word(1));
    assert_eq!(
        told,
        [Action::Tell(ended(1, EndedHow::Code(0), false)), Action::Tell(FromGuard::Gone { session: SESSION })]
    );
    assert_eq!(rules.step(at(1002), renew(SESSION, 9000)), [], "what is over stays over");
    assert_eq!(rules.step(at(1002), start(2, SESSION)), refused(2));
}

#[test]
fn a_renewal_that_was_overtaken_takes_nothing_back() {
    let mut rules = guarded();
    let kept = FromGuard::Renewed { session: SESSION, kill_at: at(1000) };
    assert_eq!(rules.step(at(1), renew(SESSION, 500)), [Action::Tell(kept)]);
    assert_eq!(rules.next_deadline(), Some(at(1000)));
    assert_eq!(rules.step(at(999), Event::Tick), []);
}

#[test]
fn a_reaper_that_does_not_obey_is_killed_and_its_run_counts_as_killed() {
    let mut rules = guarded();
    let kill = Event::Node(ToGuard::Kill { run: run(1) });
    assert_eq!(rules.step(at(10), kill), [Action::Order(run(1), Order::Kill)]);
    let patience = at(10).plus(REAPER_PATIENCE);
    assert_eq!(rules.next_deadline(), Some(patience));
    assert_eq!(rules.step(patience, Event::Tick), [Action::KillReaper(run(1))]);
    assert_eq!(rules.step(patience, Event::ReaperGone(run(1))), [Action::EndOrphans]);
    let told = rules.step(patience, Event::OrphansGone);
    assert_eq!(told, [Action::Tell(ended(1, EndedHow::Signal(Signal::KILL), true))]);
}

#[test]
fn a_reaper_that_is_gone_without_a_last_word_is_lost_once_its_orphans_are_gone() {
    let mut rules = guarded();
    assert_eq!(rules.step(at(10), Event::ReaperGone(run(1))), [Action::EndOrphans]);
    let told = rules.step(at(11), Event::OrphansGone);
    assert_eq!(told, [Action::Tell(ended(1, EndedHow::ReaperLost, false))]);
    let mut rules = guarded();
    rules.step(at(10), last_word(1));
    assert_eq!(rules.step(at(10), Event::ReaperGone(run(1))), [], "after its last word it may go");
}

#[test]
fn the_death_of_the_node_is_reported_when_the_last_run_is_gone() {
    let mut rules = guarded();
    assert_eq!(rules.step(at(10), Event::NodeGone), [Action::Order(run(1), Order::Kill)]);
    let actions = rules.step(at(11), last_word(1));
    assert_eq!(actions.last(), Some(&Action::End(vec![SESSION])));
    assert_eq!(rules.step(at(12), Event::Tick), [], "once");
}

#[test]
fn a_node_that_left_or_ended_its_session_gets_no_obituary() {
    let mut rules = guarded();
    rules.step(at(10), Event::Node(ToGuard::Leave));
    assert_eq!(rules.step(at(10), start(2, SESSION)), refused(2));
    rules.step(at(11), Event::NodeGone);
    assert_eq!(rules.step(at(12), last_word(1)).last(), Some(&Action::End(vec![])));

    let mut rules = guarded();
    let over = Event::Node(ToGuard::EndSession { session: SESSION });
    assert_eq!(rules.step(at(10), over), [Action::Order(run(1), Order::Kill)]);
    rules.step(at(11), last_word(1));
    assert_eq!(rules.step(at(12), Event::NodeGone), [Action::End(vec![])]);
}

#[test]
fn a_fenced_session_is_still_named_since_the_cluster_may_wait_for_its_lease() {
    let mut rules = guarded();
    rules.step(at(1000), Event::Tick);
    rules.step(at(1001), last_word(1));
    assert_eq!(rules.step(at(1002), Event::NodeGone), [Action::End(vec![SESSION])]);
}

/// Run 1 works under [`SESSION`], whose kill time is 1000, and run 2 is kept there.
fn keeping() -> Rules {
    let mut rules = guarded();
    let order = kept(2);
    assert_eq!(rules.step(at(0), Event::Node(ToGuard::Start(order.clone()))), [Action::Fork(order)]);
    rules
}

fn kept(number: u64) -> StartOrder {
    StartOrder { keep: true, ..order(number, SESSION) }
}

#[test]
fn what_is_kept_outlives_its_session_and_ends_by_an_order_of_its_own() {
    for by_word in [false, true] {
        let mut rules = keeping();
        let (now, event) =
            if by_word { (10, Event::Node(ToGuard::EndSession { session: SESSION })) } else { (1000, Event::Tick) };
        let actions = rules.step(at(now), event);
        assert_eq!(actions.last(), Some(&Action::Order(run(1), Order::Kill)));
        assert!(!actions.contains(&Action::Order(run(2), Order::Kill)), "{actions:?}");
        let gone = Action::Tell(FromGuard::Gone { session: SESSION });
        assert_eq!(rules.step(at(now), last_word(1)).last(), Some(&gone), "nothing else is left");
        assert_eq!(rules.step(at(now), start(3, SESSION)), refused(3), "what is over stays over");
        let stop = ToGuard::Stop { run: run(2), signal: Signal::TERM, grace: None };
        let ordered = Action::Order(run(2), Order::Stop { signal: Signal::TERM, grace: None });
        assert_eq!(rules.step(at(60_000), Event::Node(stop)), [ordered]);
        let ended = Action::Tell(ended(2, EndedHow::Code(0), false));
        assert_eq!(rules.step(at(60_001), last_word(2)), [ended]);
    }
}

#[test]
fn a_probe_of_what_is_kept_starts_after_its_session_while_the_child_runs() {
    let mut rules = keeping();
    rules.step(at(1000), Event::Tick);
    let probe = |number, probe| StartOrder { run: RunId { probe, ..run(number) }, ..kept(number) };
    let starts = |rules: &mut Rules, order: StartOrder| {
        rules.step(at(1010), Event::Node(ToGuard::Start(order.clone()))).contains(&Action::Fork(order))
    };
    assert!(starts(&mut rules, probe(2, 1)));
    assert!(!starts(&mut rules, probe(1, 1)), "run 1 is not kept");
    rules.step(at(1010), last_word(2));
    assert!(!starts(&mut rules, probe(2, 2)), "nothing is there to be probed");
}

#[test]
fn the_death_of_the_node_kills_what_is_kept_and_names_every_session_it_may_count_under() {
    let mut rules = keeping();
    rules.step(at(1000), Event::Tick);
    rules.step(at(1001), last_word(1));
    rules.step(at(1002), renew(SessionId(5), 3000));
    rules.step(at(1003), Event::Node(ToGuard::EndSession { session: SessionId(5) }));
    assert_eq!(rules.step(at(2000), Event::NodeGone), [Action::Order(run(2), Order::Kill)]);
    let end = Action::End(vec![SessionId(5), SESSION]);
    assert_eq!(rules.step(at(2001), last_word(2)).last(), Some(&end), "the newest first");
}

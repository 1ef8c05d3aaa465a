//! Desks behind real sockets, with workers that the test plays.

use pando_protocol::mail::{Headers, Word};
use pando_protocol::worker::{FromWorker, Line, MAX_LINE_TO_WORKER, ToWorker};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;

use super::desk::Remains;
use super::socket::SocketFolder;
use super::*;

const SOON: Duration = Duration::from_secs(20);
const RUN: Incarnation = Incarnation(1);

struct Played {
    desk: DeskHandle,
    reports: mpsc::UnboundedReceiver<Report>,
    held_up: watch::Sender<bool>,
    stream: UnixStream,
    lines: Lines,
    path: std::path::PathBuf,
    _data: TempDir,
}

impl Played {
    /// A worker that is connected and said this.
    async fn with(terms: Terms, said: &str) -> Self {
        let data = tempfile::tempdir().unwrap();
        let socket = SocketFolder::open(data.path(), "mark").unwrap().listen().unwrap();
        let (path, (report, reports)) = (socket.path().to_owned(), mpsc::unbounded_channel());
        let held_up = watch::Sender::new(false);
        let desk = DeskHandle::open(socket, terms, RUN, report, held_up.subscribe());
        desk.begun();
        let stream = UnixStream::connect(&path).await.unwrap();
        let lines = Lines::of(MAX_LINE_TO_WORKER);
        let mut played = Self { desk, reports, held_up, stream, lines, path, _data: data };
        played.say(said).await;
        played
    }

    async fn ready() -> Self {
        let mut played = Self::with(terms(SOON * 9), r#"{"type":"ready","starts":true}"#).await;
        assert!(matches!(played.told().await, DeskWord::Ready(_)));
        played
    }

    async fn say(&mut self, line: &str) {
        self.stream.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    async fn told(&mut self) -> DeskWord {
        match timeout(SOON, self.reports.recv()).await {
            Ok(Some(Report::Desk(RUN, word))) => word,
            other => panic!("{other:?} instead of a word of the desk"),
        }
    }

    async fn heard(&mut self) -> ToWorker {
        loop {
            match self.lines.next_line() {
                Some(Line::Whole(line)) => return ToWorker::parse(line).unwrap(),
                Some(Line::TooLong) => panic!("a line that is too long"),
                None => {}
            }
            timeout(SOON, self.stream.readable()).await.expect("a line").unwrap();
            let mut bytes = vec![0; READ_BYTES];
            match self.stream.try_read(&mut bytes) {
                Ok(0) => panic!("the node closed the socket"),
                Ok(count) => self.lines.push(&bytes[..count]),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
    }
}

fn terms(handling_timeout: Duration) -> Terms {
    Terms { handling_timeout, prefetch: 10_000, makes_ready: true }
}

fn hand(number: u64, bytes: usize) -> Hand {
    Hand {
        number,
        worker: "/t/a".parse().unwrap(),
        incarnation: RUN,
        id: format!("m{number}"),
        attempt: 1,
        life: 1,
        asks: true,
        headers: Headers::new(),
        payload: vec![b'x'; bytes].into(),
    }
}

#[tokio::test]
async fn many_messages_go_to_a_worker_and_their_settlements_come_back_in_order() {
    let mut played = Played::ready().await;
    played.desk.hand((1..=5_000).map(|number| hand(number, 100)).collect());
    let mut said = Vec::new();
    for number in 1..=5_000 {
        let ToWorker::Message(message) = played.heard().await else { panic!("no message") };
        assert_eq!(message.id, format!("m{number}"));
        FromWorker::Done { ids: vec![message.id], reply: None }.write(&mut said);
    }
    played.stream.write_all(&said).await.unwrap();
    let (mut settled, mut words) = (Vec::new(), 0);
    while settled.len() < 5_000 {
        let DeskWord::Settled(batch) = played.told().await else { panic!("no settlements") };
        settled.extend(batch.into_iter().map(|settlement| settlement.hand));
        words += 1;
    }
    assert_eq!(settled, (1..=5_000).collect::<Vec<_>>());
    assert!(words <= 100, "{words} words for 5,000 settlements");
}

#[tokio::test]
async fn a_hundred_megabytes_without_an_end_of_line_are_dropped_and_end_in_a_verdict() {
    let mut played = Played::ready().await;
    let (megabyte, mut sent) = (vec![b'x'; 1 << 20], 0);
    // Whoever is killed for it need not be read to the end, but the node reads on until then.
    while sent < 100 {
        played.stream.write_all(&megabyte).await.unwrap();
        sent += 1;
    }
    let DeskWord::Verdict(Verdict::Nonsense(why)) = played.told().await else { panic!("no verdict") };
    assert!(why.contains("a line of more than"), "{why}");
    let ToWorker::Error { error } = played.heard().await else { panic!("no error") };
    assert_eq!(error, why);
}

#[tokio::test]
async fn nonsense_and_what_is_not_held_are_answered() {
    let mut played = Played::ready().await;
    for (line, expected) in [
        ("good morning", "no JSON object"),
        (r#"{"type":"dance"}"#, "unknown type"),
        (r#"{"type":"done","id":"m1"}"#, "not held"),
    ] {
        played.say(line).await;
        let ToWorker::Error { error } = played.heard().await else { panic!("no error") };
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn a_worker_that_hangs_and_one_that_idles_are_told_of_in_time() {
    for (started, expected) in [(true, "Hung"), (false, "Idle")] {
        let limit = Duration::from_millis(50);
        let mut played = Played::with(terms(limit), r#"{"type":"ready","starts":true}"#).await;
        assert!(matches!(played.told().await, DeskWord::Ready(_)));
        played.desk.hand(vec![hand(1, 1), hand(2, 1)]);
        if started {
            played.heard().await;
            played.say(r#"{"type":"started","id":"m1"}"#).await;
        }
        let DeskWord::Verdict(verdict) = played.told().await else { panic!("no verdict") };
        assert!(format!("{verdict:?}").starts_with(expected), "{verdict:?}");
        played.desk.ended();
        let DeskWord::Closed(remains) = played.told().await else { panic!("not closed") };
        assert_eq!(remains.blamed, if started { vec![1] } else { vec![] });
    }
}

#[tokio::test]
async fn a_worker_that_closes_its_socket_is_told_of_and_its_end_names_what_it_started() {
    let mut played = Played::ready().await;
    played.desk.hand(vec![hand(1, 1), hand(2, 1)]);
    played.heard().await;
    played.say(r#"{"type":"started","id":"m1"}"#).await;
    played.stream.shutdown().await.unwrap();
    assert!(matches!(played.told().await, DeskWord::Verdict(Verdict::Closed)));
    played.desk.ended();
    let DeskWord::Closed(remains) = played.told().await else { panic!("not closed") };
    assert_eq!(remains, Remains { started: vec![1], blamed: vec![1] });
}

#[tokio::test]
async fn stop_is_said_before_the_desk_says_so_and_what_is_settled_until_the_end_counts() {
    let mut played = Played::ready().await;
    played.desk.hand(vec![hand(1, 1), hand(2, 1)]);
    let ToWorker::Message(_) = played.heard().await else { panic!("no message") };
    let ToWorker::Message(_) = played.heard().await else { panic!("no message") };
    let grace = Some(SOON);
    played.desk.stop(grace);
    assert!(matches!(played.told().await, DeskWord::StopSaid(most) if most == grace));
    assert_eq!(played.heard().await, ToWorker::Stop);
    played.say(r#"{"type":"done","id":"m1"}"#).await;
    played.say(r#"{"type":"returned","id":"m2"}"#).await;
    // Its tree is gone before the node has looked.
    let Played { desk, mut reports, stream, .. } = played;
    drop(stream);
    desk.ended();
    let mut settled = Vec::new();
    loop {
        match timeout(SOON, reports.recv()).await.expect("the end") {
            Some(Report::Desk(_, DeskWord::Settled(batch))) => settled.extend(batch),
            Some(Report::Desk(_, DeskWord::Closed(remains))) => {
                assert_eq!(remains, Remains::default());
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    let words: Vec<_> = settled.into_iter().map(|settlement| (settlement.hand, settlement.word)).collect();
    assert_eq!(words, [(1, Word::Done { reply: None }), (2, Word::Returned)]);
}

#[tokio::test]
async fn a_worker_that_does_not_read_holds_up_neither_its_stop_nor_its_end() {
    let mut played = Played::ready().await;
    played.desk.hand((1..=100).map(|number| hand(number, 1 << 20)).collect());
    played.desk.stop(None);
    assert!(matches!(played.told().await, DeskWord::StopSaid(None)));
    played.desk.ended();
    let DeskWord::Closed(remains) = played.told().await else { panic!("not closed") };
    assert_eq!(remains, Remains::default(), "it started nothing");
}

#[tokio::test]
async fn there_is_one_connection_and_the_socket_is_gone_with_it() {
    let played = Played::ready().await;
    assert!(!played.path.exists());
    assert!(UnixStream::connect(&played.path).await.is_err());
}

#[tokio::test]
async fn a_worker_that_never_came_leaves_no_socket() {
    let data = tempfile::tempdir().unwrap();
    let socket = SocketFolder::open(data.path(), "mark").unwrap().listen().unwrap();
    let (path, (report, mut reports)) = (socket.path().to_owned(), mpsc::unbounded_channel());
    let desk = DeskHandle::open(socket, terms(SOON), RUN, report, watch::channel(false).1);
    desk.ended();
    let closed = timeout(SOON, reports.recv()).await.expect("the end");
    assert!(matches!(closed, Some(Report::Desk(RUN, DeskWord::Closed(_)))));
    timeout(SOON, reports.recv()).await.expect("the end of the task");
    assert!(!path.exists());
}

#[tokio::test]
async fn the_rust_client_works_through_what_it_is_given() {
    use pando_protocol::worker::{Failure, Worker};
    let data = tempfile::tempdir().unwrap();
    let socket = SocketFolder::open(data.path(), "mark").unwrap().listen().unwrap();
    let (path, (report, mut reports)) = (socket.path().to_owned(), mpsc::unbounded_channel());
    let desk = DeskHandle::open(socket, terms(SOON), RUN, report, watch::channel(false).1);
    desk.begun();
    let worker = Worker::connect_to(&path).await.unwrap().starts(true).prefetch(50).concurrency(4);
    let working = tokio::spawn(worker.run(async |message| match message.id.as_str() {
        "m3" => Err(Failure::retry("three")),
        "m4" => Err(Failure::reject("four")),
        "m5" => Err("five".parse::<i32>().unwrap_err().into()),
        id => Ok(format!("did {id}")),
    }));
    let mut told = async || timeout(SOON, reports.recv()).await.expect("a word").expect("the task");
    assert!(matches!(told().await, Report::Desk(RUN, DeskWord::Ready(Readiness { starts: true, prefetch: 50 }))));
    desk.hand((1..=1_000).map(|number| hand(number, 10)).collect());
    let mut settled = std::collections::BTreeMap::new();
    while settled.len() < 1_000 {
        let Report::Desk(_, DeskWord::Settled(batch)) = told().await else { panic!("no settlements") };
        settled.extend(batch.into_iter().map(|settlement| (settlement.hand, settlement.word)));
    }
    assert_eq!(settled[&1], Word::Done { reply: Some("did m1".into()) });
    assert_eq!(settled[&3], Word::Failed { error: "three".into() });
    assert_eq!(settled[&4], Word::Rejected { error: "four".into() });
    assert!(matches!(&settled[&5], Word::Failed { error } if error.contains("invalid digit")));
    desk.stop(None);
    timeout(SOON, working).await.expect("it ends when it is told to").unwrap().unwrap();
}

/// A worker that was given these messages, as many as are written at once.
async fn holding(messages: u64) -> Played {
    let mut played = Played::ready().await;
    played.desk.hand((1..=messages).map(|number| hand(number, 1)).collect());
    for _ in 0..messages {
        assert!(matches!(played.heard().await, ToWorker::Message(_)));
    }
    played
}

fn settled_of(word: DeskWord) -> Vec<u64> {
    match word {
        DeskWord::Settled(settlements) => settlements.into_iter().map(|settlement| settlement.hand).collect(),
        other => panic!("{other:?} instead of settlements"),
    }
}

#[tokio::test]
async fn a_worker_that_is_held_up_is_not_read_until_it_may_go_on() {
    let mut played = holding(2).await;
    played.held_up.send_replace(true);
    played.say(r#"{"type":"done","id":"m1"}"#).await;
    // What the desk is told after that it hears after that.
    played.desk.hand(vec![hand(3, 1)]);
    assert!(matches!(played.heard().await, ToWorker::Message(_)), "it is still given what there is");
    assert!(played.reports.try_recv().is_err());
    played.held_up.send_replace(false);
    assert_eq!(settled_of(played.told().await), [1]);
}

#[tokio::test]
async fn what_a_worker_said_while_it_was_held_up_counts_though_it_ends() {
    let mut played = holding(2).await;
    played.held_up.send_replace(true);
    played.say(r#"{"type":"done","id":"m2"}"#).await;
    played.desk.ended();
    drop(played.stream);
    let next = async |reports: &mut mpsc::UnboundedReceiver<Report>| match timeout(SOON, reports.recv()).await {
        Ok(Some(Report::Desk(RUN, word))) => word,
        other => panic!("{other:?} instead of a word of the desk"),
    };
    assert_eq!(settled_of(next(&mut played.reports).await), [2]);
    assert!(matches!(next(&mut played.reports).await, DeskWord::Closed(_)));
}

#[tokio::test]
async fn a_worker_that_stops_is_read_though_all_are_held_up() {
    let mut played = holding(1).await;
    played.held_up.send_replace(true);
    played.desk.stop(None);
    assert!(matches!(played.told().await, DeskWord::StopSaid(None)));
    played.say(r#"{"type":"done","id":"m1"}"#).await;
    assert_eq!(settled_of(played.told().await), [1]);
}

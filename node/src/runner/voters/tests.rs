//! Streams to a voter that the test plays, over QUIC.

use pando_protocol::ids::SessionId;
use pando_protocol::mail::{Settlement, Word};
use pando_protocol::session::Observation;
use tokio::time::timeout;

use super::*;
use crate::transport::IncomingStream;
use crate::transport::fixture::{Cluster, LIMIT};

const SESSION: SessionId = SessionId(1);

fn beat() -> RunnerWord {
    RunnerWord::Beat { session: SESSION, number: 7, answered: 6, answered_age: Duration::ZERO }
}

/// Large enough that a few of them are more than a stream takes before it is read.
fn settled(number: u64) -> RunnerWord {
    let word = Word::Done { reply: Some(vec![0; 2 << 20].into()) };
    let observation = Observation::Settled(vec![Settlement { hand: number, word }]);
    RunnerWord::Observe { session: SESSION, number, observation }
}

#[tokio::test]
async fn neither_words_that_nobody_takes_nor_a_flood_of_others_holds_up_a_beat_or_its_answer() {
    let cluster = Cluster::new("grove");
    let (near, mut far) = (cluster.node("n1"), cluster.node("n2"));
    let voter: NodeName = "n2".parse().unwrap();
    let directory = Directory::new(BTreeMap::from([(voter.clone(), far.address.clone())]));
    let stop = CancellationToken::new();
    let (voters, mut heard, _tasks) = connect(&near.peers, &directory, LIMIT, &stop);
    let mut streams: Vec<IncomingStream> = Vec::new();
    while streams.len() < 3 {
        streams.push(timeout(LIMIT, far.streams.recv()).await.expect("three streams").unwrap());
    }
    streams.sort_by_key(|stream| stream.channel as u8);
    let [session, lease, mail] = &mut streams[..] else { unreachable!() };
    assert_eq!([session.channel, lease.channel, mail.channel], [Channel::Session, Channel::Lease, Channel::Mail]);
    assert!(matches!(timeout(LIMIT, heard.recv()).await, Ok(Some(Heard::Connected(_)))));

    // More than a stream's window, and the test reads nothing of it.
    (1..=16).for_each(|number| voters.say(&settled(number)));
    let blocked = async {
        while !voters.idle().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, blocked).await.expect("words wait");
    voters.say(&beat());
    assert_eq!(timeout(LIMIT, lease.reader.expect::<RunnerWord>()).await.expect("a beat").unwrap(), beat());

    // The stream that is full one way is read the other way, and what another one is full of leaves answers alone.
    let flood = LeaderWord::Applied { session: SESSION, through: 1 };
    session.writer.send(&LeaderWord::Over { session: SESSION }).await.unwrap();
    let next = timeout(LIMIT, heard.recv()).await.expect("a word on a stream that is blocked the other way");
    assert!(matches!(next, Some(Heard::Word(_, LeaderWord::Over { .. }))), "{next:?}");
    let answer = LeaderWord::Answer { session: SESSION, number: 7 };
    for _ in 0..HEARD_WAITING / 2 {
        mail.writer.send(&flood).await.unwrap();
    }
    lease.writer.send(&answer).await.unwrap();
    let answered = async { while !matches!(heard.recv().await, Some(Heard::Word(_, LeaderWord::Answer { .. }))) {} };
    timeout(LIMIT, answered).await.expect("an answer");
    stop.cancel();
}

#[tokio::test]
async fn a_stream_that_ends_alone_is_made_again_and_the_one_of_beats_stays() {
    let cluster = Cluster::new("grove");
    let (near, mut far) = (cluster.node("n1"), cluster.node("n2"));
    let voter: NodeName = "n2".parse().unwrap();
    let directory = Directory::new(BTreeMap::from([(voter, far.address.clone())]));
    let stop = CancellationToken::new();
    let (voters, mut heard, _tasks) = connect(&near.peers, &directory, LIMIT, &stop);
    let mut streams: BTreeMap<u8, IncomingStream> = BTreeMap::new();
    while streams.len() < 3 {
        let stream = timeout(LIMIT, far.streams.recv()).await.expect("three streams").unwrap();
        streams.insert(stream.channel as u8, stream);
    }
    let mut connected = async || {
        assert!(matches!(timeout(LIMIT, heard.recv()).await, Ok(Some(Heard::Connected(_)))), "not told");
    };
    connected().await;
    for channel in [Channel::Mail, Channel::Session] {
        drop(streams.remove(&(channel as u8)));
        let again = timeout(LIMIT, far.streams.recv()).await.expect("another stream").unwrap();
        assert_eq!(again.channel, channel);
        streams.insert(channel as u8, again);
        if channel == Channel::Session {
            connected().await;
        }
        voters.say(&beat());
        let lease = streams.get_mut(&(Channel::Lease as u8)).unwrap();
        assert_eq!(timeout(LIMIT, lease.reader.expect::<RunnerWord>()).await.expect("a beat").unwrap(), beat());
    }
    let holds = RunnerWord::Holds { session: SESSION, hand: 3 };
    voters.say(&holds);
    for channel in [Channel::Mail, Channel::Session] {
        let stream = streams.get_mut(&(channel as u8)).unwrap();
        assert_eq!(timeout(LIMIT, stream.reader.expect::<RunnerWord>()).await.expect("a word").unwrap(), holds);
    }
    stop.cancel();
}

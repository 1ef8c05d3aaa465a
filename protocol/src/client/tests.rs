use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use quinn::crypto::rustls::QuicServerConfig;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::certs::Authority;
use super::frames::FrameWriter;
use super::identity::{PeerName, Role};
use super::*;
use crate::codec::{self, CodecError, FRAME_LIMIT};
use crate::ids::NodeName;
use crate::message::{ALPN, Found, Freshness, Item, Query, ViewAge, Write, versions_to_answer};

const LIMIT: Duration = Duration::from_secs(10);

fn identity(folder: &Path, name: &str, role: Role) -> Identity {
    let own = folder.join(format!("{name}-{role}"));
    Authority::create_or_load(folder, "grove").unwrap().issue(&name.parse().unwrap(), role, &own).unwrap();
    Identity::load(&own).unwrap()
}

fn leader(name: &str) -> Answer {
    Ok(Reply::Transferred { leader: name.parse().unwrap() })
}

fn read() -> Call {
    Call::Read { query: Query::Nodes, freshness: Freshness::Stale }
}

/// What a node does with one request: answers, or (`None`) drops the connection.
type Rule = dyn Fn(Call) -> Option<Vec<Vec<u8>>> + Send + Sync;

/// A node that knows nothing but one rule.
struct FakeNode {
    address: String,
    accepting: JoinHandle<()>,
}

impl FakeNode {
    fn start(endpoint: Endpoint, rule: impl Fn(Call) -> Option<Vec<Vec<u8>>> + Send + Sync + 'static) -> Self {
        let rule: Arc<Rule> = Arc::new(rule);
        let address = endpoint.local_addr().unwrap().to_string();
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Some(incoming) = endpoint.accept().await {
                connections.spawn(serve(incoming, rule.clone()));
            }
        });
        Self { address, accepting }
    }

    fn answering(folder: &Path, name: &str, answer: Answer) -> Self {
        Self::start(bound(folder, name), move |_| Some(vec![codec::frame(&answer).unwrap()]))
    }
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn bound(folder: &Path, name: &str) -> Endpoint {
    let identity = identity(folder, name, Role::Node);
    quic::bind(&identity, "127.0.0.1:0".parse().unwrap(), &Tuning::lan()).unwrap().endpoint
}

async fn serve(incoming: quinn::Incoming, rule: Arc<Rule>) {
    let Ok(connection) = incoming.await else { return };
    while let Ok((send, receive)) = connection.accept_bi().await {
        let (mut writer, mut reader) = (FrameWriter::new(send), FrameReader::new(receive));
        assert_eq!(reader.channel().await.unwrap(), Channel::Client);
        let Some(frames) = rule(reader.expect::<Call>().await.unwrap()) else {
            quic::close(&connection, CloseCode::Stopping, "told to");
            return;
        };
        for frame in frames {
            writer.send_frames(&frame).await.unwrap();
        }
        writer.finish();
    }
}

fn client(folder: &Path, endpoints: &[&str]) -> Client {
    let identity = identity(folder, "ann", Role::Admin);
    Client::new(identity, endpoints.iter().map(|e| (*e).to_owned()).collect()).unwrap()
}

/// An address at which nobody answers, held so that nobody will.
fn silent() -> (std::net::UdpSocket, String) {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    (socket, address)
}

#[tokio::test]
async fn a_silent_endpoint_is_passed_over_and_the_working_one_is_kept() {
    let folder = TempDir::new().unwrap();
    let node = FakeNode::answering(folder.path(), "n1", leader("n1"));
    let (_held, dead) = silent();
    let client = client(folder.path(), &[&dead, &node.address]);
    assert_eq!(client.call(read(), LIMIT).await.unwrap(), leader("n1").unwrap());
    assert_eq!(client.endpoint(), Some(node.address.clone()));
    client.close().await;
}

#[tokio::test]
async fn when_nobody_answers_each_endpoint_is_named_with_its_reason() {
    let folder = TempDir::new().unwrap();
    let (_held, dead) = silent();
    let client = client(folder.path(), &[&dead, "no-such-host.invalid:1"]).with_dial_limit(Duration::from_millis(400));
    let error = client.call(read(), LIMIT).await.unwrap_err();
    let ClientError::Unreachable { tried } = &error else { panic!("{error}") };
    assert_eq!(tried.len(), 2);
    let text = error.to_string();
    assert!(
        text.contains(&dead) && text.contains("no-such-host.invalid") && text.contains("PANDO_ENDPOINTS"),
        "{text}"
    );
}

#[tokio::test]
async fn a_lost_reply_repeats_the_same_write_elsewhere() {
    let folder = TempDir::new().unwrap();
    let seen: Arc<Mutex<Vec<Write>>> = Arc::default();
    let note = |seen: &Arc<Mutex<Vec<Write>>>, call: Call| match call {
        Call::Write(write) => lock(seen).push(write),
        other => panic!("{other:?}"),
    };
    let (at_first, at_second) = (seen.clone(), seen.clone());
    let first = FakeNode::start(bound(folder.path(), "n1"), move |call| {
        note(&at_first, call);
        None
    });
    let second = FakeNode::start(bound(folder.path(), "n2"), move |call| {
        note(&at_second, call);
        let no_leader = Rejection::NoLeader { waited: Duration::ZERO, why: "election".into() };
        let answer = if lock(&at_second).len() < 4 { Err(no_leader) } else { leader("n2") };
        Some(vec![codec::frame(&answer).unwrap()])
    });
    let client = client(folder.path(), &[&first.address, &second.address]);
    let change = Change::Stop("/shop".parse().unwrap());
    assert_eq!(client.change(change, LIMIT).await.unwrap(), leader("n2").unwrap());
    let writes = lock(&seen).clone();
    assert!(writes.len() >= 4 && writes.iter().all(|write| *write == writes[0]), "{writes:?}");
    assert_eq!((writes[0].sequence, writes[0].lowest_unanswered), (1, 1));
    client.close().await;
}

fn found(node: &str, confirmed: bool, age_ms: u64) -> Answer {
    let answered_by: NodeName = node.parse().unwrap();
    let view = ViewAge { leader: confirmed.then(|| answered_by.clone()), answered_by, confirmed, age_ms };
    Ok(Reply::Found { found: Found::Nodes(vec![]), view })
}

fn no_leader() -> Answer {
    Err(Rejection::NoLeader { waited: Duration::ZERO, why: "it is cut off".into() })
}

#[tokio::test]
async fn a_node_that_finds_no_leader_does_not_have_the_last_word() {
    let folder = TempDir::new().unwrap();
    let confirmed = Call::Read { query: Query::Nodes, freshness: Freshness::Linearizable };
    let signal = Call::Kill { path: "/t/a".parse().unwrap(), signal: crate::spec::Signal::TERM };
    let cases = [
        (&confirmed, vec![found("n1", false, 9), no_leader(), found("n3", true, 0)], found("n3", true, 0)),
        (&confirmed, vec![no_leader(), found("n2", false, 9), found("n3", false, 5)], found("n3", false, 5)),
        (&confirmed, vec![found("n1", false, 9), no_leader()], found("n1", false, 9)),
        (&read(), vec![found("n1", false, 9), found("n2", true, 0)], found("n1", false, 9)),
        (&signal, vec![no_leader(), leader("n2")], leader("n2")),
        (&signal, vec![no_leader(), no_leader()], no_leader()),
    ];
    let (_held, dead) = silent();
    for (call, answers, expected) in cases {
        let nodes: Vec<_> =
            answers.into_iter().map(|answer| FakeNode::answering(folder.path(), "n1", answer)).collect();
        let mut endpoints: Vec<&str> = nodes.iter().map(|node| node.address.as_str()).collect();
        endpoints.push(&dead);
        let client = client(folder.path(), &endpoints);
        let answer = match client.call(call.clone(), LIMIT).await {
            Ok(reply) => Ok(reply),
            Err(ClientError::Refused(why)) => Err(why),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(answer, expected);
        client.close().await;
    }
}

#[tokio::test]
async fn a_change_without_a_leader_ends_within_its_limit_and_states_all_the_time_waited() {
    let folder = TempDir::new().unwrap();
    let (_held, dead) = silent();
    let node = FakeNode::answering(folder.path(), "n1", no_leader());
    let client = client(folder.path(), &[&node.address, &dead]);
    let limit = Duration::from_millis(1_500);
    let begun = Instant::now();
    let error = client.change(Change::Stop("/shop".parse().unwrap()), limit).await.unwrap_err();
    let took = begun.elapsed();
    let ClientError::Refused(Rejection::NoLeader { waited, .. }) = error else { panic!("{error}") };
    assert!(waited <= took && waited >= limit / 2, "{waited:?} of {took:?}");
    assert!(took < limit + Duration::from_secs(1), "{took:?}");
}

#[tokio::test]
async fn a_signal_whose_reply_is_lost_is_not_sent_again() {
    let folder = TempDir::new().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let node = FakeNode::start(bound(folder.path(), "n1"), move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        None
    });
    let client = client(folder.path(), &[&node.address, &node.address]);
    let error = client.call(Call::Transfer { to: None }, LIMIT).await.unwrap_err();
    assert!(matches!(error, ClientError::Refused(Rejection::Unknown)), "{error}");
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_change_whose_time_is_over_says_that_it_may_be_applied() {
    let folder = TempDir::new().unwrap();
    let node = FakeNode::start(bound(folder.path(), "n1"), |_| None);
    let client = client(folder.path(), &[&node.address]);
    let change = Change::Stop("/shop".parse().unwrap());
    let error = client.change(change, Duration::from_millis(300)).await.unwrap_err();
    assert!(matches!(error, ClientError::Refused(Rejection::Unknown)), "{error}");
}

#[tokio::test]
async fn items_come_until_the_stream_ends_or_fails() {
    let folder = TempDir::new().unwrap();
    let failing = AtomicUsize::new(0);
    let node = FakeNode::start(bound(folder.path(), "n1"), move |_| {
        let mut frames = vec![codec::frame(&Item::Note("one".into())).unwrap()];
        if failing.fetch_add(1, Ordering::SeqCst) > 0 {
            frames.push(codec::frame(&Item::Failed(Rejection::Unknown)).unwrap());
        }
        Some(frames)
    });
    let client = client(folder.path(), &[&node.address]);
    let follow = Call::Events { after: 0, follow: false };
    let mut whole = client.stream(follow.clone()).await.unwrap();
    assert_eq!(whole.next().await.unwrap(), Some(Item::Note("one".into())));
    assert_eq!(whole.next().await.unwrap(), None);
    let mut failed = client.stream(follow).await.unwrap();
    assert!(failed.next().await.unwrap().is_some());
    assert!(matches!(failed.next().await, Err(ClientError::Refused(Rejection::Unknown))));
    assert_eq!(failed.next().await.unwrap(), None);
}

#[tokio::test]
async fn a_foreign_ca_is_refused_by_both_sides_with_what_to_do() {
    let (folder, foreign) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let node = FakeNode::answering(folder.path(), "n1", leader("n1"));
    let client = client(foreign.path(), &[&node.address]);
    let text = client.call(read(), LIMIT).await.unwrap_err().to_string();
    assert!(text.contains("its certificate was made by another CA than ours"), "{text}");
    assert!(text.contains("check --identity") && !text.contains("check that it runs"), "{text}");
    assert!(!text.contains("BadSignature") && !text.contains("UnknownIssuer"), "{text}");
}

#[tokio::test]
async fn another_version_of_the_protocol_is_refused_in_words() {
    let folder = TempDir::new().unwrap();
    let endpoint = bound(folder.path(), "n1");
    let mut tls = (*tls::server(&identity(folder.path(), "n1", Role::Node))).clone();
    tls.alpn_protocols = vec![b"pando/999".to_vec()];
    let crypto = Arc::new(QuicServerConfig::try_from(tls).unwrap());
    endpoint.set_server_config(Some(quinn::ServerConfig::with_crypto(crypto)));
    let address = endpoint.local_addr().unwrap().to_string();
    let accepting = tokio::spawn(async move { endpoint.accept().await.unwrap().await.map(drop) });
    let text = client(folder.path(), &[&address]).call(read(), LIMIT).await.unwrap_err().to_string();
    assert!(text.contains("another version of the protocol than pando/1: run the same version"), "{text}");
    let theirs = describe_error(accepting.await.unwrap().unwrap_err());
    assert!(theirs.contains("another version of the protocol"), "{theirs}");
}

#[tokio::test]
async fn a_node_that_answers_other_versions_in_words_is_quoted_to_whoever_asked() {
    let folder = TempDir::new().unwrap();
    let endpoint = bound(folder.path(), "n1");
    let address = endpoint.local_addr().unwrap().to_string();
    let refusing = tokio::spawn(async move {
        let connection = endpoint.accept().await.unwrap().await.unwrap();
        assert_eq!(quic::other_version(&connection), None, "both are this build");
        quic::close(&connection, CloseCode::Unwelcome, &tls::versions_meet("pando/7"));
        endpoint.wait_idle().await;
    });
    let text = client(folder.path(), &[&address]).call(read(), LIMIT).await.unwrap_err().to_string();
    assert!(text.contains("who connects speaks pando/7, who accepts pando/1; run the same version"), "{text}");
    refusing.await.unwrap();
}

#[test]
fn our_own_version_is_the_first_that_is_answered_and_named_once() {
    let versions = versions_to_answer();
    assert_eq!(versions[0], ALPN);
    assert_eq!(versions.iter().filter(|version| *version == ALPN).count(), 1);
    assert!(versions.contains(&b"pando/2".to_vec()));
}

fn describe_error(lost: quinn::ConnectionError) -> String {
    quic::describe(&lost)
}

#[tokio::test]
async fn an_admin_cannot_stand_in_for_a_node() {
    let folder = TempDir::new().unwrap();
    let impostor = identity(folder.path(), "bob", Role::Admin);
    let endpoint = quic::bind(&impostor, "127.0.0.1:0".parse().unwrap(), &Tuning::lan()).unwrap().endpoint;
    let address = endpoint.local_addr().unwrap().to_string();
    let accepting = tokio::spawn(async move { endpoint.accept().await.unwrap().await.map(drop) });
    let text = client(folder.path(), &[&address]).call(read(), LIMIT).await.unwrap_err().to_string();
    assert!(text.contains("not valid"), "{text}");
    accepting.abort();
}

/// Both ends of one stream between two nodes, the far one's name, and what keeps it open.
async fn stream_pair(
    folder: &Path,
) -> (FrameWriter, FrameReader, PeerName, (Endpoint, Endpoint, Connection, Connection)) {
    let (near, far) = (bound(folder, "n1"), bound(folder, "n2"));
    let accepting = tokio::spawn({
        let far = far.clone();
        async move { far.accept().await.unwrap().await.unwrap() }
    });
    let server_name = identity(folder, "n1", Role::Node).server_name(&"n2".parse::<NodeName>().unwrap());
    let ours = quic::dial(&near, &far.local_addr().unwrap().to_string(), &server_name, LIMIT).await.unwrap();
    let theirs = accepting.await.unwrap();
    let (writer, _) = frames::open(&ours, Channel::Peer).await.unwrap();
    let (_, receive) = theirs.accept_bi().await.unwrap();
    let mut reader = FrameReader::new(receive);
    assert_eq!(reader.channel().await.unwrap(), Channel::Peer);
    let name = PeerName::of(&theirs).unwrap();
    (writer, reader, name, (near, far, ours, theirs))
}

#[tokio::test]
async fn a_reader_that_was_given_up_goes_on_where_it_was() {
    let folder = TempDir::new().unwrap();
    let (mut writer, mut reader, name, _open) = stream_pair(folder.path()).await;
    assert_eq!(name.dns_name(), "n1.node.grove.pando");
    let frame = codec::frame(&"whole".to_owned()).unwrap();
    let (half, rest) = frame.split_at(6);
    writer.send_frames(half).await.unwrap();
    assert!(timeout(Duration::from_millis(50), reader.next::<String>()).await.is_err());
    writer.send_frames(rest).await.unwrap();
    assert_eq!(timeout(LIMIT, reader.next::<String>()).await.unwrap().unwrap().unwrap(), "whole");
    writer.send_frames(half).await.unwrap();
    writer.finish();
    assert!(matches!(timeout(LIMIT, reader.next::<String>()).await.unwrap(), Err(FrameError::Ended)));
}

#[tokio::test]
async fn an_oversized_frame_is_refused_by_its_length() {
    let folder = TempDir::new().unwrap();
    let (mut writer, mut reader, _, _open) = stream_pair(folder.path()).await;
    writer.send_frames(&u32::try_from(FRAME_LIMIT + 1).unwrap().to_le_bytes()).await.unwrap();
    let refused = timeout(LIMIT, reader.next::<String>()).await.unwrap();
    assert!(matches!(refused, Err(FrameError::Codec(CodecError::TooLarge { .. }))));
}

#[tokio::test]
async fn endpoints_without_a_port_are_refused() {
    let folder = TempDir::new().unwrap();
    let identity = identity(folder.path(), "ann", Role::Admin);
    for bad in [vec![], vec!["n1".to_owned()], vec![":7070".to_owned()]] {
        assert!(matches!(Client::new(identity.clone(), bad), Err(ClientError::Unusable(_))));
    }
}

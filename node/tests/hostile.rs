//! Hostile bytes for what nodes and guards say to each other: whatever comes is a value or an error, never a panic.
//!
//! Honest bodies are bred, not written down: random bytes that decode are encoded again and wounded from then on, so that a new
//! variant is reached without a sample of it. `PANDO_SEED` sets the seed.

use std::fmt::Debug;

use pando_node::guard::words::{FromGuard, Order, ToGuard, Word};
use pando_node::peer::{PeerAnswer, PeerCall, PeerItem};
use pando_node::raft::wire;
use pando_node::transport::liveness::FirstWord;
use pando_protocol::client::frames::FrameBuffer;
use pando_protocol::codec::{FRAME_LIMIT, LENGTH_BYTES, VERSION, decode, encode, frame};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bodies for each type.
const BODIES: usize = 10_000;
/// Honest bodies that are kept for wounding.
const KEPT: usize = 200;

fn dice(name: &str) -> StdRng {
    let seed = std::env::var("PANDO_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x0070_616e_646f);
    println!("{name}: PANDO_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

/// Bytes as often small as not: variants, lengths and flags are small numbers.
fn random(dice: &mut StdRng) -> Vec<u8> {
    let mut body = vec![VERSION];
    for _ in 0..dice.random_range(0..40) {
        match dice.random_range(0..10) {
            0..6 => body.push(dice.random_range(0..4)),
            6 => body.push(dice.random()),
            // Names and paths, which no dice would make.
            7..9 => body.extend(*b"\x02n1"),
            _ => body.extend(*b"\x02/t"),
        }
    }
    body
}

fn wound(body: &mut Vec<u8>, dice: &mut StdRng) {
    let at = dice.random_range(0..body.len());
    match dice.random_range(0..5) {
        0 => body[at] ^= 1 << dice.random_range(0..8),
        1 => body[at] = dice.random(),
        2 => body.insert(at, dice.random_range(0..8)),
        // A number of eight bytes where none was, often taken for a length.
        3 => _ = body.splice(at..at + 1, [253, 255, 255, 255, 255, 255, 255, 255, 255]),
        _ => body.truncate(at.max(1)),
    }
}

fn no_bytes_make_it_panic<T: Serialize + DeserializeOwned + Debug>(name: &str) {
    let mut dice = dice(name);
    let mut honest: Vec<Vec<u8>> = Vec::new();
    let (mut read, mut refused) = (0u32, 0u32);
    for _ in 0..BODIES {
        let mut body = random(&mut dice);
        if !honest.is_empty() && dice.random_bool(0.7) {
            body = honest[dice.random_range(0..honest.len())].clone();
            (0..dice.random_range(1..4)).for_each(|_| wound(&mut body, &mut dice));
        }
        let Ok(value) = decode::<T, FRAME_LIMIT>(&body) else {
            refused += 1;
            continue;
        };
        read += 1;
        let again = encode::<FRAME_LIMIT>(&value).unwrap_or_else(|error| panic!("{name}: {value:?}: {error}"));
        // Byte for byte: floats and maps, which could differ, are not among these types.
        let back = decode::<T, FRAME_LIMIT>(&again).unwrap_or_else(|error| panic!("{name}: {value:?}: {error}"));
        assert_eq!(format!("{back:?}"), format!("{value:?}"), "{name}");
        if honest.len() < KEPT {
            honest.push(again);
        } else {
            let at = dice.random_range(0..KEPT);
            honest[at] = again;
        }
    }
    assert!(read >= 5 && refused >= 20, "{name}: {read} read, {refused} refused: the bytes say nothing");
}

#[test]
fn what_voters_say_to_each_other_is_a_value_or_an_error() {
    no_bytes_make_it_panic::<wire::AppendHeader>("append header");
    no_bytes_make_it_panic::<wire::Entry>("entry");
    no_bytes_make_it_panic::<wire::AppendAnswer>("append answer");
    no_bytes_make_it_panic::<wire::Envelope>("envelope");
    no_bytes_make_it_panic::<wire::Request>("request");
    no_bytes_make_it_panic::<wire::SnapshotHeader>("snapshot header");
    no_bytes_make_it_panic::<wire::Chunk>("chunk");
    no_bytes_make_it_panic::<wire::Progress>("progress");
    no_bytes_make_it_panic::<wire::Answer>("answer");
    no_bytes_make_it_panic::<wire::Introduction>("introduction");
    no_bytes_make_it_panic::<FirstWord>("first word");
}

#[test]
fn what_peers_ask_each_other_is_a_value_or_an_error() {
    no_bytes_make_it_panic::<PeerCall>("peer call");
    no_bytes_make_it_panic::<PeerAnswer>("peer answer");
    no_bytes_make_it_panic::<PeerItem>("peer item");
}

#[test]
fn what_node_guard_and_reapers_say_is_a_value_or_an_error() {
    no_bytes_make_it_panic::<ToGuard>("to guard");
    no_bytes_make_it_panic::<FromGuard>("from guard");
    no_bytes_make_it_panic::<Order>("order");
    no_bytes_make_it_panic::<Word>("word");
}

#[test]
fn a_stream_of_wounded_frames_gives_bodies_or_an_error_and_keeps_no_more_than_came() {
    let mut dice = dice("stream");
    let honest = [frame(&"one").unwrap(), frame(&vec![7u8; 3_000]).unwrap(), frame(&"three").unwrap()].concat();
    let (mut whole, mut refused, mut waiting) = (0, 0, 0);
    for _ in 0..BODIES {
        let mut stream = honest.clone();
        if dice.random_bool(0.5) {
            // Into a length: of the first frame, or of the second.
            let at = if dice.random_bool(0.5) { 0 } else { frame(&"one").unwrap().len() };
            stream[at + dice.random_range(0..LENGTH_BYTES)] = dice.random();
        }
        (0..dice.random_range(0..3)).for_each(|_| wound(&mut stream, &mut dice));
        let mut buffer = FrameBuffer::default();
        let (mut given, mut pieces) = (0, stream.as_slice());
        let outcome = loop {
            match buffer.take() {
                Ok(Some(body)) => {
                    given += LENGTH_BYTES + body.len();
                    _ = decode::<String, FRAME_LIMIT>(&body);
                }
                Ok(None) if pieces.is_empty() => break Ok(buffer.is_empty()),
                Ok(None) => {
                    let (piece, rest) = pieces.split_at(dice.random_range(1..=pieces.len().min(1_000)));
                    buffer.push(piece);
                    pieces = rest;
                }
                Err(error) => break Err(error),
            }
        };
        assert!(given <= stream.len(), "{given} bytes of frames out of {}", stream.len());
        match outcome {
            Ok(true) => whole += 1,
            Ok(false) => waiting += 1,
            Err(_) => refused += 1,
        }
    }
    assert!(whole > 100 && refused > 100 && waiting > 100, "{whole} whole, {refused} refused, {waiting} waiting");
}

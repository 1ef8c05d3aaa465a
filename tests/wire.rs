//! Golden bytes: what is sent and kept stays as it was. Hostile bytes: whatever arrives, decoding neither panics nor takes more
//! memory than its class allows.
//!
//! The seed of a hostile run is printed; `PANDO_SEED=<number>` repeats it.

#[path = "wire/attributes.rs"]
mod attributes;
#[path = "wire/counting.rs"]
mod counting;
#[path = "wire/frames.rs"]
mod frames;
#[path = "wire/golden.rs"]
mod golden;
#[path = "wire/samples.rs"]
mod samples;

use std::fmt::Debug;

use counting::peak_while;
use frames::{Frames, swollen};
use pando_protocol::codec::{ENTRY_LIMIT, FRAME_LIMIT, MEMORY_FACTOR, decode, encode};
use pando_protocol::message::{Answer, Call, Item};
use pando_protocol::session::{LeaderWord, Obituary, ObituaryReply, RunnerWord};
use pando_protocol::spec::TreeSpec;
use pando_supervision::{Batch, Outcome};
use samples::Elements;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Random and mutated frames of each type.
const FRAMES: usize = 100_000;
/// Of eight frames, so many are mutated; the rest is random from its first byte on.
const MUTATED_OF_EIGHT: usize = 7;

#[test]
fn calls_survive_hostile_bytes() {
    survive::<Call, FRAME_LIMIT>("Call", &samples::calls(), |_| {});
}

#[test]
fn answers_survive_hostile_bytes() {
    survive::<Answer, FRAME_LIMIT>("Answer", &samples::answers(), |_| {});
}

#[test]
fn items_survive_hostile_bytes() {
    survive::<Item, FRAME_LIMIT>("Item", &samples::items(), |_| {});
}

#[test]
fn words_of_runners_survive_hostile_bytes() {
    survive::<RunnerWord, FRAME_LIMIT>("RunnerWord", &samples::runner_words(), |_| {});
}

#[test]
fn words_of_leaders_survive_hostile_bytes() {
    survive::<LeaderWord, FRAME_LIMIT>("LeaderWord", &samples::leader_words(), |_| {});
}

#[test]
fn obituaries_and_their_replies_survive_hostile_bytes() {
    survive::<Obituary, FRAME_LIMIT>("Obituary", &samples::obituaries(), |_| {});
    let replies = [ObituaryReply::Recorded, ObituaryReply::NotLeader, ObituaryReply::Refused];
    survive::<ObituaryReply, FRAME_LIMIT>("ObituaryReply", &replies, |_| {});
}

#[test]
fn trees_survive_hostile_bytes_and_what_is_left_of_them_can_be_checked() {
    survive::<TreeSpec, FRAME_LIMIT>("TreeSpec", &samples::trees(), |tree| {
        // What it says matters not; that it says something does.
        let _ = tree.check();
    });
}

#[test]
fn batches_and_outcomes_survive_hostile_bytes() {
    survive::<Batch, ENTRY_LIMIT>("Batch", &samples::batches(), |_| {});
    survive::<Vec<Outcome>, ENTRY_LIMIT>("Outcomes", &[samples::outcomes()], |_| {});
}

#[test]
fn vectors_of_the_smallest_elements_take_no_more_memory_than_their_class_allows() {
    println!("{:>28}  {:>8}  {:>12}  {:>6}  ", "full frame of", "bytes", "peak", "times");
    let (one, two) = (Elements(1), Elements(2));
    swell::<TreeSpec, FRAME_LIMIT>("arguments", &one.arguments(), &two.arguments());
    swell::<TreeSpec, FRAME_LIMIT>("members", &one.members(), &two.members());
    swell::<TreeSpec, FRAME_LIMIT>("rules", &one.rules(), &two.rules());
    swell::<Call, FRAME_LIMIT>("members of a call", &one.call(), &two.call());
    swell::<LeaderWord, FRAME_LIMIT>("bare wanted runs", &one.bare_runs(), &two.bare_runs());
    swell::<LeaderWord, FRAME_LIMIT>("rich wanted runs", &one.rich_runs(), &two.rich_runs());
    swell::<LeaderWord, FRAME_LIMIT>("endings", &one.endings(), &two.endings());
    swell::<RunnerWord, FRAME_LIMIT>("labels", &one.labels(), &two.labels());
    swell::<RunnerWord, FRAME_LIMIT>("sessions", &one.sessions(), &two.sessions());
    swell::<Answer, FRAME_LIMIT>("rows of a tree", &one.tree_rows(), &two.tree_rows());
    swell::<Answer, FRAME_LIMIT>("rows of a history", &one.history_rows(), &two.history_rows());
    swell::<Answer, FRAME_LIMIT>("differences", &one.differences(), &two.differences());
    swell::<Answer, FRAME_LIMIT>("causes", &one.causes(), &two.causes());
    swell::<Call, FRAME_LIMIT>("messages that are sent", &one.messages(), &two.messages());
    swell::<Answer, FRAME_LIMIT>("dead letters", &one.dead_letters(), &two.dead_letters());
    swell::<LeaderWord, FRAME_LIMIT>("hands", &one.hands(), &two.hands());
    swell::<RunnerWord, FRAME_LIMIT>("settlements", &one.settlements(), &two.settlements());
    swell::<Item, FRAME_LIMIT>("mistakes", &one.mistakes(), &two.mistakes());
    swell::<Batch, ENTRY_LIMIT>("ticks", &one.ticks(), &two.ticks());
    swell::<Batch, ENTRY_LIMIT>("observations", &one.observations(), &two.observations());
}

/// Decodes [`FRAMES`] random and mutated frames. What decodes must be encoded to bytes that decode to the same.
fn survive<T, const LIMIT: usize>(name: &str, samples: &[T], also: impl Fn(&T))
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let bodies: Vec<Vec<u8>> = samples.iter().map(|sample| encode::<LIMIT>(sample).unwrap()).collect();
    for (body, sample) in bodies.iter().zip(samples) {
        assert_eq!(&decode::<T, LIMIT>(body).unwrap(), sample);
    }
    let seed = frames::seed();
    let mut frames = Frames::new(seed, name);
    let (mut decoded, mut peak) = (0usize, 0usize);
    for number in 0..FRAMES {
        let body = if number % 8 < MUTATED_OF_EIGHT { frames.mutated(&bodies) } else { frames.random() };
        let (result, used) = peak_while(|| decode::<T, LIMIT>(&body));
        peak = peak.max(used);
        assert!(used <= bound(LIMIT), "frame {number} of {name} took {used} bytes: PANDO_SEED={seed} repeats it");
        if let Ok(value) = result {
            decoded += 1;
            also(&value);
            let again = encode::<LIMIT>(&value).unwrap();
            assert_eq!(decode::<T, LIMIT>(&again).unwrap(), value, "frame {number} of {name}: PANDO_SEED={seed}");
        }
    }
    println!("{name}: {FRAMES} frames, {decoded} decoded, at most {peak} bytes for one; PANDO_SEED={seed}");
    assert!(decoded > 0, "no mutation of {name} decoded: the mutations are too coarse to tell anything");
}

#[test]
fn maps_of_the_smallest_entries_take_no_more_memory_than_their_class_allows() {
    for count in [1_000, 50_000, 200_000, 280_000, 400_000] {
        let body = encode::<FRAME_LIMIT>(&samples::variables(count)).unwrap();
        let (tree, used) = peak_while(|| decode::<TreeSpec, FRAME_LIMIT>(&body).is_ok());
        println!("{count} variables in {} bytes: {used} bytes, {}", body.len(), if tree { "read" } else { "refused" });
        assert!(used <= bound(FRAME_LIMIT), "{used} bytes for {count} variables");
    }
}

/// Decodes frames full of the element by which `two` differs from `one`, also when more elements are claimed than follow.
fn swell<T, const LIMIT: usize>(name: &str, one: &T, two: &T)
where
    T: Serialize + DeserializeOwned,
{
    let (one, two) = (encode::<LIMIT>(one).unwrap(), encode::<LIMIT>(two).unwrap());
    assert_eq!(swollen(&one, &two, two.len()), two, "{name}: two elements are swollen from one");
    let mut worst = (0, 0);
    // Some are accepted, others refused half-way; none may take more on the way.
    for part in [1, 8, 64] {
        let body = swollen(&one, &two, LIMIT / part);
        for length in [body.len(), body.len() - 1] {
            let (_, used) = peak_while(|| decode::<T, LIMIT>(&body[..length]).is_ok());
            assert!(used <= bound(LIMIT), "{name}: {used} bytes for a frame of {length}");
            worst = worst.max((used, length));
        }
    }
    let (peak, bytes) = worst;
    println!("{name:>28}  {bytes:>8}  {peak:>12}  {:>6.1}", peak as f64 / LIMIT as f64);
}

/// The most that decoding one body may take at any moment: [`MEMORY_FACTOR`] times the limit of its class.
fn bound(limit: usize) -> usize {
    limit * MEMORY_FACTOR
}

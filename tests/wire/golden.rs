//! What is sent between processes and kept in the log and in snapshots keeps its bytes: `tests/fixtures/golden`.
//!
//! `PANDO_GOLDEN=append` adds the lines of new variants, `PANDO_GOLDEN=rewrite` makes all of it anew; what may be done when is
//! said by the failure, and in the README.

use std::path::Path;

use pando_protocol::golden::Golden;
use pando_protocol::message::{Answer, Call, Channel, Item};
use pando_protocol::session::{LeaderWord, Obituary, ObituaryReply, RunnerWord};
use pando_protocol::spec::TreeSpec;
use pando_supervision::cluster::{Member, Node};
use pando_supervision::mail::Mailbox;
use pando_supervision::parts::{Part, from_parts, parts};
use pando_supervision::{Batch, Outcome};

use super::samples;

#[test]
fn golden_bytes_of_what_is_sent_and_of_the_replicated_state_are_written_and_read_as_they_were() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/golden");
    let mut golden = Golden::open(&root);
    golden.values::<Call>("Call", &samples::calls());
    golden.values::<Answer>("Answer", &samples::answers());
    golden.values::<Item>("Item", &samples::items());
    golden.values::<RunnerWord>("RunnerWord", &samples::runner_words());
    golden.values::<LeaderWord>("LeaderWord", &samples::leader_words());
    golden.values::<Obituary>("Obituary", &samples::obituaries());
    golden.values("ObituaryReply", &[ObituaryReply::Recorded, ObituaryReply::NotLeader, ObituaryReply::Refused]);
    golden.values::<TreeSpec>("TreeSpec", &samples::trees());
    golden.values::<Batch>("Batch", &samples::batches());
    golden.values::<Vec<Outcome>>("Outcomes", &[samples::outcomes()]);
    golden.values::<Part>("Part", &samples::state::parts());
    golden.values::<Mailbox>("Mailbox", &[samples::state::whole_mailbox()]);
    golden.values::<Member>("Member", &samples::state::whole_members());
    golden.values::<Node>("Node", &[samples::state::whole_node()]);
    golden.bytes("channel", &channels());
    golden.finish();
}

/// The first byte of each kind of stream.
fn channels() -> Vec<(String, Vec<u8>)> {
    let channels = (0..=u8::MAX).filter_map(Channel::from_byte);
    channels.map(|channel| (format!("{channel:?}"), vec![channel as u8])).collect()
}

#[test]
fn the_parts_of_the_samples_make_a_state_that_comes_apart_into_them() {
    let samples = samples::state::parts();
    let state = from_parts(samples.clone()).unwrap();
    assert_eq!(parts(&state).collect::<Vec<_>>(), samples, "parts that replace one another would hide a change");
}

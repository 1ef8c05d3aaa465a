//! The same log gives the same bytes: in two processes, one a debug and one a release build, one restored from a snapshot.

use std::path::{Path, PathBuf};
use std::process::Command;

use pando_tests::rules::dice::Dice;
use pando_tests::rules::{generator, replay::replay};

/// Commands of each sequence, before its healing.
const STEPS: usize = 300;
/// Sequences that are compared.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=8;

/// Builds the release twin, in a folder of its own below the debug build's, so that the second time costs nothing.
fn release_twin(debug: &Path) -> PathBuf {
    let target = debug.parent().expect("it lies in a folder").join("replay-rules-release");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--release", "--no-default-features", "--bin", "replay-rules", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .output()
        .expect("cargo runs");
    assert!(built.status.success(), "the release build failed: {}", String::from_utf8_lossy(&built.stderr));
    target.join("release/replay-rules")
}

fn hashes(program: &Path, args: &[u64]) -> String {
    let run = Command::new(program).args(args.iter().map(ToString::to_string)).output().expect("it runs");
    assert!(run.status.success(), "{} {args:?}: {}", program.display(), String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).expect("it prints text")
}

#[test]
fn a_debug_and_a_release_build_agree_to_the_byte_also_across_a_snapshot() {
    let debug = Path::new(env!("CARGO_BIN_EXE_replay-rules"));
    let release = release_twin(debug);
    for seed in SEEDS {
        let restored = Dice::new(seed).below(STEPS) as u64;
        let expected = hashes(debug, &[seed, STEPS as u64]);
        let found = hashes(&release, &[seed, STEPS as u64, restored]);
        assert!(expected.lines().count() > STEPS / 10, "hashes along the whole sequence: {expected}");
        assert_eq!(expected, found, "seed {seed}, restored before command {restored}");
    }
}

#[test]
fn a_snapshot_at_any_index_makes_no_difference() {
    let sim = generator::run(3, 60).unwrap_or_else(|broken| panic!("{broken}"));
    let straight = replay(&sim.log, 1, None).expect("it can be written");
    assert_eq!(straight.len(), sim.log.len());
    for index in 0..sim.log.len() {
        let last = replay(&sim.log, sim.log.len(), Some(index)).expect("it can be written");
        assert_eq!(last.last(), straight.last(), "restored before command {index}");
    }
}

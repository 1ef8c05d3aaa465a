//! Case T26: a wall clock jumps and nothing happens; a node process that stands still for longer than its lease wakes up without
//! any claim.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use pando_protocol::cause::CauseClass;
use pando_tests::beats::{lives, now, overlap};
use pando_tests::cluster::{Cluster, LEASE, Options, SOON, sleepers, started_at};
use pando_tests::wait::{pass, wait_until};
use rustix::process::Signal;

const YEAR_MS: u64 = 365 * 24 * 3600 * 1000;

/// The library that moves the wall clock of a process and leaves all others alone.
fn faketime() -> PathBuf {
    let folders = fs::read_dir("/usr/lib").expect("/usr/lib").flatten().map(|entry| entry.path());
    let mut libraries = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1"));
    libraries.find(|library| library.exists()).expect("libfaketime; Debian: apt install faketime")
}

#[tokio::test(flavor = "multi_thread")]
async fn t26_a_wall_clock_may_jump_and_a_paused_node_wakes_up_without_its_children() {
    // A certificate is over when the wall clock says so, and a node whose clock is two years ahead would trust no other one
    // any more. That is not what this is about, so they are valid for longer.
    let validity = Duration::from_secs(5 * 365 * 24 * 3600);
    let own_flags = |name: &str| vec!["--label".into(), format!("host={name}")];
    let mut cluster = Cluster::with(Options { own_flags, validity, ..Options::default() }).await;
    let clock = cluster.folder().join("clock-of-n2");
    let set_clock = |offset: &str| {
        // Renamed into place, so that nobody reads half of it.
        let next = clock.with_extension("next");
        fs::write(&next, offset).and_then(|()| fs::rename(&next, &clock)).expect("the file of the clock");
    };
    set_clock("+0");
    cluster.node("n2").kill();
    cluster.node("n2").wait_for_guard();
    cluster.node("n2").set_prefix(vec![
        "env".into(),
        format!("LD_PRELOAD={}", faketime().display()),
        format!("FAKETIME_TIMESTAMP_FILE={}", clock.display()),
        "FAKETIME_NO_CACHE=1".into(),
        "FAKETIME_DONT_FAKE_MONOTONIC=1".into(),
    ]);
    cluster.node("n2").start();
    cluster.all_up().await;
    let beats = |id: &str| cluster.folder().join(format!("beats-{id}"));
    let (of_n2, of_n3) = (beats("two"), beats("three"));
    let witness = env!("CARGO_BIN_EXE_witness");
    let child = |id: &str, file: &PathBuf, place: &str| {
        format!(
            "[[children]]\nid = \"{id}\"\ncommand = [\"{witness}\", \"{}\"]\nplace = {{ {place} }}\n",
            file.display()
        )
    };
    let (two, three) =
        (child("two", &of_n2, "require = [\"host=n2\"]"), child("three", &of_n3, "prefer = [\"host=n3\"]"));
    cluster.bring_up(&format!("name = \"t\"\n{two}{three}")).await;
    let before = (cluster.row("/t/two").await, session_of(&cluster, "n2").await);
    let began = started_at(before.0.pid.expect("it runs"));
    let before_jumps = before.0.incarnation;
    // n2 leads while its clock jumps: what it stamps as wall-clock time decides nothing.
    cluster.done(&["cluster", "transfer", "n2"]);

    for (offset, tree) in [("+2y", "ahead"), ("-1h", "behind")] {
        set_clock(offset);
        pass(LEASE * 2).await;
        let asked = now();
        assert_eq!(cluster.leader().await, "n2");
        cluster.bring_up(&sleepers(&format!("name = '{tree}'"), &["x"])).await;
        let events = cluster.events().await;
        let stamped = events.last().expect("an event").at;
        let jumped = if tree == "ahead" { stamped > asked + YEAR_MS } else { stamped + 3_000_000 < asked };
        assert!(jumped, "the clock of n2 has jumped: {stamped}, asked at {asked}");
        let after = (cluster.row("/t/two").await, session_of(&cluster, "n2").await);
        assert_eq!(
            (after.0.pid, after.0.incarnation, after.1),
            (before.0.pid, before.0.incarnation, before.1.clone()),
            "{offset}"
        );
        assert_eq!(started_at(before.0.pid.expect("it runs")), began);
        assert_eq!(lives(&of_n2).len(), 1);
    }
    for path in ["/t/two", "/t/three"] {
        let history = cluster.history(path).await;
        assert!(history.is_empty(), "{path}: {history:#?}");
    }

    // The case has 60 s; what matters is longer than the lease, and some more.
    let (old, session) = (cluster.row("/t/three").await, session_of(&cluster, "n3").await);
    assert_eq!(old.node.as_ref().map(ToString::to_string), Some("n3".into()));
    let stopped = now();
    cluster.node("n3").signal(Signal::STOP);
    let new = cluster.runs_anew("/t/three", &old).await;
    assert_ne!(new.node, old.node);
    pass(LEASE * 2).await;
    cluster.node("n3").signal(Signal::CONT);
    let is_new = |now: &Option<String>| now.is_some() && *now != session;
    wait_until("another session of n3", SOON, async || session_of(&cluster, "n3").await, is_new).await;
    pass(LEASE).await; // Time for whatever it would still do under the old one.
    cluster.whole("/t").await;

    let lives = lives(&of_n3);
    assert_eq!((overlap(&lives), lives.len()), (None, 2), "{lives:#?}");
    let (before, after) = (lives[&old.incarnation.expect("it ran").0], lives[&new.incarnation.expect("it runs").0]);
    assert!(
        before.last <= stopped + LEASE.as_millis() as u64,
        "the guard stopped it at the lease's end: {lives:#?}, {stopped}"
    );
    assert!(after.first > before.last, "{lives:#?}");
    assert!(cluster.children("n3").is_empty(), "nothing moves back by itself");
    let history = cluster.history("/t/three").await;
    let [lost] = &history[..] else { panic!("{history:#?}") };
    assert!(
        lost.cause.class == CauseClass::NodeLost && !lost.charged && lost.cause.message.contains("lease"),
        "{lost:?}"
    );
    assert_eq!(cluster.row("/t/two").await.incarnation, before_jumps);
}

async fn session_of(cluster: &Cluster, node: &str) -> Option<String> {
    let rows = cluster.node_rows().await;
    rows.into_iter().find(|row| row.name.as_str() == node)?.session.map(|session| session.to_string())
}

//! Case T25: two of three nodes are gone. What the survivor runs ends with its lease, but for what is to be kept; what it says is
//! honest, and when one comes back nothing runs twice and nothing is forgotten.

use std::path::PathBuf;

use pando_protocol::view::TreeRow;
use pando_tests::beats::{lives, now, overlap};
use pando_tests::cluster::{Cluster, LEASE, Options, SOON, said, sleepers};
use pando_tests::wait::wait_until;

const CHILDREN: [&str; 3] = ["a", "b", "c"];
/// One on each node, so that the survivor has one, whoever that is.
const KEPT: [&str; 3] = ["kept-n1", "kept-n2", "kept-n3"];

fn beats(cluster: &Cluster, child: &str) -> PathBuf {
    cluster.folder().join(format!("beats-{child}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn t25_without_a_quorum_the_survivor_stops_its_children_says_so_and_takes_no_orders() {
    let own_flags = |name: &str| vec!["--label".into(), format!("host={name}")];
    let mut cluster = Cluster::with(Options { own_flags, ..Options::default() }).await;
    let child = |id: &&str| {
        let (witness, beats) = (env!("CARGO_BIN_EXE_witness"), beats(&cluster, id));
        format!("[[children]]\nid = \"{id}\"\ncommand = [\"{witness}\", \"{}\", \"--helper\"]\n", beats.display())
    };
    let kept = |id: &&str| {
        let place = format!("place = {{ prefer = [\"host={}\"] }}", id.replace("kept-", ""));
        format!("{}{place}\non_disconnect = \"keep\"\n", child(id))
    };
    let children = CHILDREN.iter().map(child).chain(KEPT.iter().map(kept)).collect::<String>();
    let spec = format!("name = \"t\"\n{children}");
    cluster.bring_up(&spec).await;
    // Something that the log must still know afterwards.
    let before = cluster.row("/t/a").await;
    assert!(cluster.cli(&["kill", "/t/a"]).status.success());
    let again = |row: &TreeRow| row.pid.is_some() && row.incarnation > before.incarnation;
    wait_until("the crash in the books", SOON, async || cluster.row("/t/a").await, again).await;
    cluster.whole("/t").await;
    let known = cluster.history("/t/a").await;
    assert_eq!(known.len(), 1, "{known:#?}");

    let survivor = cluster.leader().await;
    let gone = cluster.others(&survivor);
    cluster.done(&["status", "--endpoints", cluster.address(&survivor)]);
    let there: Vec<_> = cluster
        .tree()
        .await
        .into_iter()
        .filter(|row| row.node.as_ref().is_some_and(|node| node.as_str() == survivor))
        .collect();
    let (kept, there): (Vec<_>, Vec<_>) = there.into_iter().partition(|row| row.path.name().starts_with("kept"));
    let [kept] = &kept[..] else { panic!("one is kept there: {kept:#?}") };
    assert!(!there.is_empty(), "something runs on {survivor}");
    gone.iter().for_each(|name| cluster.node(name).kill());
    let alone = now();

    // With its helper, each goes on or ends.
    let left = async || cluster.children(&survivor);
    let left = wait_until("its children to end", SOON, left, |left: &Vec<u32>| left.len() <= 2).await;
    assert!(left.contains(&kept.pid.expect("it runs")), "{kept:?} goes on, and these do: {left:?}");
    for row in &there {
        let incarnation = row.incarnation.expect("it ran").0;
        let life = lives(&beats(&cluster, row.path.name()))[&incarnation];
        assert!(life.last <= alone + LEASE.as_millis() as u64, "{}: {life:?}, alone since {alone}", row.path);
    }
    let status = cluster.cli(&["status", "--endpoints", cluster.address(&survivor)]);
    let (table, words) = (String::from_utf8_lossy(&status.stdout), String::from_utf8_lossy(&status.stderr));
    assert_eq!(status.status.code(), Some(3), "{table}{words}");
    let head = table.lines().next().unwrap_or_default();
    assert!(
        head.contains("no leader") && head.contains(&format!("view of {survivor}, ")) && head.ends_with(" s old"),
        "{table}"
    );
    assert!(words.contains(&format!("no leader; view of {survivor}, ")), "{words}");
    let file = cluster.folder().join("more.toml");
    std::fs::write(&file, sleepers("name = 'more'", &["x"])).expect("a file");
    let submit = ["apply", &file.display().to_string(), "--endpoints", cluster.address(&survivor)];
    let (code, words) = said(&cluster.cli(&submit));
    assert_eq!(code, Some(3), "{words}");
    assert!(words.contains("no leader"), "the reason: {words}");

    cluster.node(&gone[0]).start();
    cluster.whole("/t").await;
    let after = cluster.row(kept.path.as_str()).await;
    assert_eq!((after.incarnation, after.pid), (kept.incarnation, kept.pid), "what was kept is what it was");
    cluster.done(&["status", "--endpoints", cluster.address(&survivor)]);
    let after = cluster.history("/t/a").await;
    assert_eq!(after.first(), known.first(), "the log is intact");
    assert!(after.iter().skip(1).all(|entry| !entry.charged), "nobody pays for it: {after:#?}");
    assert!(cluster.tree().await.iter().all(|row| row.path.tree().as_str() == "t"), "what was refused never happens");
    cluster.node(&gone[1]).start();
    cluster.all_up().await;
    cluster.whole("/t").await;
    let lags = async || cluster.status().await.voters.into_iter().map(|voter| voter.lag).collect::<Vec<_>>();
    wait_until("all logs to be level", SOON, lags, |lags| lags.iter().all(|lag| *lag == Some(0))).await;
    for child in CHILDREN.iter().chain(&KEPT) {
        let lives = lives(&beats(&cluster, child));
        assert_eq!(overlap(&lives), None, "/t/{child}: {lives:#?}");
    }
    assert_eq!(cluster.all_children().len(), 2 * (CHILDREN.len() + KEPT.len()), "one copy of each, with its helper");
}

//! A node with hundreds of children dies: they start elsewhere at the pace of the brake, and the leader answers meanwhile.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use pando_protocol::client::Client;
use pando_protocol::message::Change;
use pando_protocol::view::NodeRow;
use pando_tests::beats::now;
use pando_tests::cluster::{Cluster, Options, SOON, path, sleepers};
use pando_tests::wait::wait_until;
use tokio::sync::watch;

const CHILDREN: usize = 300;
/// How many starts of a loss are free, and how many a second follow: design, section 6, "brake on mass failover".
const FREE: usize = 50;
const PER_SECOND: usize = 50;
/// Writes that tell how quickly the leader answers before the loss, on this machine as busy as it is.
const CALM_WRITES: usize = 40;
/// The leader answers meanwhile as before, to this factor: hundreds of processes start beside it.
const SLOWER: u32 = 10;
/// Below these nobody calls a leader slow, however quick it was before: so much a busy machine does to any write, and to the usual one.
const LONGEST_FLOOR: Duration = Duration::from_secs(2);
const MEDIAN_FLOOR: Duration = Duration::from_millis(200);

/// Children that prefer n1, and write down when they started.
fn spec(starts: &Path) -> String {
    let command = format!("date +%s%3N >> {}; exec sleep 1000", starts.display());
    let child = |n| {
        format!(
            "[[children]]\nid = \"c{n}\"\nplace = {{ prefer = [\"host=n1\"] }}\ncommand = [\"sh\", \"-c\", \"{command}\"]\n"
        )
    };
    format!("name = \"t\"\n{}", (0..CHILDREN).map(child).collect::<String>())
}

/// Stops and starts a child of another tree for as long as `more` says so of the writes that were answered, and says how long each
/// took.
async fn write(writer: &Client, mut more: impl FnMut(usize) -> bool) -> Vec<Duration> {
    let mut took = Vec::new();
    while more(took.len()) {
        for change in [Change::Stop(path("/other/x")), Change::Start(path("/other/x"))] {
            let asked = Instant::now();
            let answer = writer.change(change, SOON).await;
            answer.unwrap_or_else(|error| panic!("write {} of them: {error}", took.len() + 1));
            took.push(asked.elapsed());
        }
    }
    took.sort_unstable();
    took
}

/// How long the usual write took, and the slowest.
fn median_and_longest(took: &[Duration]) -> (Duration, Duration) {
    (took[took.len() / 2], took[took.len() - 1])
}

/// When they started, the earliest first.
fn starts(file: &Path) -> Vec<u64> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let mut starts: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    starts.sort_unstable();
    starts
}

#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_children_of_a_lost_node_start_elsewhere_at_the_pace_of_the_brake_while_the_leader_answers() {
    let own_flags = |name: &str| vec!["--label".into(), format!("host={name}"), "--slots".into(), "400".into()];
    let mut cluster = Cluster::with(Options { own_flags, ..Options::default() }).await;
    let file = cluster.folder().join("starts");
    cluster.bring_up(&spec(&file)).await;
    cluster.bring_up(&sleepers("name = 'other'", &["x"])).await;
    if cluster.leader().await == "n1" {
        cluster.done(&["cluster", "transfer", "n2"]);
    }
    let there = cluster.children("n1").len();
    assert!(there >= CHILDREN, "all are where they prefer to be: {there}");
    let (before, terms) = (starts(&file).len(), cluster.status().await.term);

    // Through nodes that live on: what is measured is the leader, not how a client leaves a dead node.
    let (writer, (go_on, going)) = (cluster.client_of_some(&cluster.others("n1")), watch::channel(true));
    let calm = write(&writer, |answered| answered < CALM_WRITES).await;
    let lost = |rows: &[NodeRow]| rows.iter().map(|row| row.losses).sum::<u64>();
    let lost_before = lost(&cluster.node_rows().await); // A busy machine may have lost some while it started them all.
    let lost_at = now();
    cluster.node("n1").kill();
    let answers = tokio::spawn(async move { write(&writer, |answered| *going.borrow() || answered == 0).await });
    let is_back = |starts: &Vec<u64>| starts.len() >= before + CHILDREN;
    let all = wait_until("all of them elsewhere", SOON * 2, async || starts(&file), is_back).await;
    go_on.send_replace(false);
    let took = answers.await.expect("every write is answered");
    let (usual, usual_longest) = median_and_longest(&calm);
    let (median, longest) = median_and_longest(&took);
    println!("{} writes before: median {usual:?}, slowest {usual_longest:?}", calm.len());
    println!("{} writes meanwhile: median {median:?}, slowest {longest:?}", took.len());
    assert!(
        median <= MEDIAN_FLOOR.max(usual * SLOWER),
        "the leader answers: usually after {median:?}, before {usual:?}"
    );
    assert!(
        longest <= LONGEST_FLOOR.max(usual_longest * SLOWER),
        "the slowest took {longest:?}, before {usual_longest:?}"
    );
    let again: Vec<u64> = all[before..].iter().map(|at| at - lost_at).collect();
    println!("the first after {} ms, the last after {} ms", again[0], again[CHILDREN - 1]);
    for (started, after) in again.iter().enumerate() {
        let most = FREE + PER_SECOND * (usize::try_from(*after).expect("milliseconds") / 1_000 + 1);
        assert!(started < most, "{started} had started {after} ms after the loss, and {most} may have: {again:?}");
    }
    cluster.whole("/t").await;
    let rows = cluster.node_rows().await;
    assert_eq!(lost(&rows), lost_before + 1, "nobody else was lost by it: {rows:#?}");
    assert_eq!(cluster.status().await.term, terms, "and the leader led on");
}

//! Certificates that are renewed under running nodes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pando_protocol::client::identity::Identity;
use pando_tests::cluster::{Cluster, Options, SOON, sleepers};
use pando_tests::programs;
use pando_tests::wait::wait_until_blocking;

/// Long enough for a cluster to come up on a busy machine, short enough to wait for its end.
const SHORT: Duration = Duration::from_secs(40);

fn copied(from: &Path, to: PathBuf) -> PathBuf {
    fs::create_dir_all(&to).expect("a folder");
    for file in ["ca.pem", "cert.pem", "key.pem"] {
        fs::copy(from.join(file), to.join(file)).expect("a copy");
    }
    to
}

/// The certificates with which the nodes began expire in this test, so that every connection that is made at its end was made
/// with renewed ones: by clients, between nodes in both directions over QUIC and TCP, and by a guard.
#[tokio::test(flavor = "multi_thread")]
async fn renewed_certificates_are_taken_over_without_a_restart() {
    // Built before, so that the time of the certificates is not spent on that.
    programs::folder();
    let mut cluster = Cluster::with(Options { validity: SHORT, ..Options::default() }).await;
    cluster.bring_up(&sleepers("name = 't'", &["a"])).await;
    let pids: Vec<u32> = cluster.nodes().map(|node| node.pid()).collect();
    let folders: Vec<String> =
        ["n1", "n2", "n3"].map(|node| cluster.folder().join(node).join("identity").display().to_string()).into();
    let former = copied(Path::new(&folders[0]), cluster.folder().join("former"));
    let ca = cluster.folder().join("ca").display().to_string();
    let mut words = vec!["certs", "renew", "--ca", &ca];
    words.extend(folders.iter().map(String::as_str));
    cluster.done(&words);
    for node in cluster.nodes() {
        let took_over = |text: &String| text.contains("the certificate of this node was renewed");
        let what = format!("{} to take its certificate over", node.name());
        wait_until_blocking(&what, SOON, || fs::read_to_string(node.log()).unwrap_or_default(), took_over);
    }
    let expired = |text: &String| text.contains("has expired");
    let look = || Identity::load(&former).map_or_else(|error| error.to_string(), |_| "valid".to_owned());
    wait_until_blocking("the former certificates to expire", SOON + SHORT, look, expired);

    for node in ["n1", "n2", "n3"] {
        cluster.done(&["node", "ls", "--endpoints", cluster.address(node)]);
    }
    assert_eq!(cluster.nodes().map(|node| node.pid()).collect::<Vec<_>>(), pids, "nobody was restarted");
    // The leader dies: the others dial each other, a guard reports, and the node that comes back is dialled by both.
    let before = cluster.row("/t/a").await;
    let leader = cluster.leader().await;
    let home = cluster.home("/t/a").await;
    cluster.node(&leader).kill();
    cluster.leader().await;
    cluster.node(&leader).start();
    cluster.all_up().await;
    if home != leader {
        cluster.node(&home).kill();
    }
    cluster.runs_anew("/t/a", &before).await;
    let losses: Vec<String> =
        cluster.events().await.into_iter().filter(|event| event.kind == "node_lost").map(|event| event.text).collect();
    assert!(!losses.is_empty() && losses.iter().all(|text| text.contains("obituary")), "{losses:#?}");
}

//! What each role may ask, on a voter and on an agent that passes requests on.

use pando_protocol::client::identity::Role;
use pando_tests::cluster::{Cluster, Options};

use super::{Ran, TREE, apply_with_mailboxes, pando, spec_file};

/// Every verb that reads.
const READING: [&str; 14] = [
    "tree",
    "status",
    "explain /t/stay",
    "history /t/stay",
    "events --after 0",
    "logs /t/stay",
    "wait /t",
    "node ls",
    "cluster status",
    "cluster members",
    "diff t.toml",
    "apply t.toml --dry-run",
    "mailbox",
    "dead-letters ls /t/fed",
];
/// Every verb that changes something.
const CHANGING: [&str; 13] = [
    "apply t.toml",
    "delete t",
    "start /t/stay",
    "stop /t/stay",
    "restart /t/stay",
    "kill /t/stay",
    "cluster transfer",
    "cluster members promote n2",
    "scale /t/fed 2",
    "mailbox pause /t/fed",
    "mailbox purge /t/fed --yes",
    "dead-letters redrive /t/fed --id x",
    "delete t --purge",
];
/// Every verb that puts messages into mailboxes.
const PRODUCING: [&str; 3] = ["send /t/fed hello", "send /t/fed --lines t.toml", "ask /t/fed hello --timeout 0s"];
/// A worker, to be added to [`TREE`].
const FED: &str = r#"
[[children]]
id = "fed"
command = ["sleep", "infinity"]
ready = { exec = ["true"] }
mailbox = {}
"#;

/// Runs `pando` as whoever `issue` made, against one node.
#[track_caller]
fn pando_as(cluster: &Cluster, holder: &str, node: &str, line: &str) -> Ran {
    let identity = cluster.folder().join(holder).display().to_string();
    let mut words = vec!["--identity", &identity, "--endpoints", cluster.address(node)];
    words.extend(line.split(' '));
    Ran::of(&cluster.cli(&words))
}

#[tokio::test]
async fn a_viewer_reads_everything_and_changes_nothing_whichever_node_it_asks() {
    let cluster = Cluster::with(Options { voters: 1, agents: 1, ..Options::default() }).await;
    spec_file(&cluster, "t.toml", &format!("{TREE}{FED}"));
    apply_with_mailboxes(&cluster, "t.toml").await.with_code(0);
    pando(&cluster, "wait t").with_code(0);
    cluster.issue("eve", Role::Viewer);
    for node in ["n1", "n2"] {
        for line in READING {
            pando_as(&cluster, "eve", node, line).with_code(0);
        }
        let before = cluster.row("/t/stay").await;
        for line in CHANGING {
            let ran = pando_as(&cluster, "eve", node, line).with_code(4);
            assert!(ran.stderr.contains("needs a certificate with the role admin"), "{line} on {node}: {ran:#?}");
            assert!(ran.stderr.contains("yours has the role viewer"), "{line} on {node}: {ran:#?}");
        }
        for line in PRODUCING {
            let ran = pando_as(&cluster, "eve", node, line).with_code(4);
            assert!(ran.stderr.contains("needs a certificate with the role producer or admin"), "{line}: {ran:#?}");
        }
        let after = cluster.row("/t/stay").await;
        assert_eq!((after.incarnation, after.state), (before.incarnation, before.state), "nothing was changed");
    }
}

#[tokio::test]
async fn a_producer_is_refused_with_what_it_may_do_also_where_it_asks_for_a_stream() {
    let cluster = Cluster::with(Options { voters: 1, agents: 1, ..Options::default() }).await;
    cluster.issue("till", Role::Producer);
    for node in ["n1", "n2"] {
        for line in ["tree", "events --follow", "logs /t/stay", "stop /t/stay"] {
            let ran = pando_as(&cluster, "till", node, line).with_code(4);
            assert!(
                ran.stderr.contains("yours has the role producer, which may only put messages"),
                "{line}: {ran:#?}"
            );
        }
    }
}

#[tokio::test]
async fn a_producer_sends_and_asks_and_does_nothing_else() {
    let cluster = Cluster::with(Options { voters: 1, agents: 1, ..Options::default() }).await;
    spec_file(&cluster, "t.toml", &format!("{TREE}{FED}"));
    apply_with_mailboxes(&cluster, "t.toml").await.with_code(0);
    pando(&cluster, "wait t").with_code(0);
    cluster.issue("till", Role::Producer);
    for node in ["n1", "n2"] {
        pando_as(&cluster, "till", node, "send /t/fed hello").with_code(0);
        pando_as(&cluster, "till", node, "send /t/fed --lines t.toml").with_code(0);
        // Nobody answers, and that is all that is wrong.
        let asked = pando_as(&cluster, "till", node, "ask /t/fed hello --timeout 0s").with_code(5);
        assert!(asked.stderr.contains("it stays in the mailbox"), "{asked:#?}");
        let before = pando(&cluster, "mailbox /t/fed --output json").with_code(0).json();
        for line in READING.iter().chain(&CHANGING) {
            let ran = pando_as(&cluster, "till", node, line).with_code(4);
            assert!(ran.stderr.contains("yours has the role producer"), "{line} on {node}: {ran:#?}");
        }
        let after = pando(&cluster, "mailbox /t/fed --output json").with_code(0).json();
        assert_eq!((&after["waiting"], &after["paused"]), (&before["waiting"], &before["paused"]));
    }
}

#[tokio::test]
async fn the_certificate_of_a_node_asks_nothing_before_that_node_has_joined() {
    let cluster = Cluster::with(Options { voters: 1, ..Options::default() }).await;
    cluster.issue("n9", Role::Node);
    for line in ["tree", "events --after 0", "logs /t/stay", "stop /t/stay", "cluster members remove n1"] {
        let ran = pando_as(&cluster, "n9", "n1", line).with_code(4);
        assert!(ran.stderr.contains("n9 has not, as far as is known here"), "{line}: {ran:#?}");
    }
    pando_as(&cluster, "n1/identity", "n1", "tree").with_code(0);
}

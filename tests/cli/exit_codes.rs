//! Exit codes, each with a message that says what, why, and what to do.

use std::process::Command;

use pando_tests::cluster::Cluster;
use pando_tests::programs;

use super::{Ran, one_node, pando, spec_file};

/// Runs each line; the exit code must be `code`, standard output empty, and the message must contain the text.
#[track_caller]
fn all_end_with(cluster: &Cluster, code: i32, cases: &[(&str, &str)]) {
    for (line, message) in cases {
        let ran = pando(cluster, line);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), ""), "{line}: {}", ran.stderr);
        assert!(ran.stderr.contains(message), "{line}: {}", ran.stderr);
    }
}

/// `pando` without any cluster, in an empty home.
fn alone(line: &str) -> Ran {
    let home = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(programs::folder().join("pando"));
    command.args(line.split(' ')).current_dir(home.path());
    for variable in ["PANDO_ENDPOINTS", "PANDO_IDENTITY", "PANDO_CONTEXT"] {
        command.env_remove(variable);
    }
    command.env("PANDO_HOME", home.path().join("home")).env("XDG_STATE_HOME", home.path());
    Ran::of(&command.output().expect("pando runs"))
}

#[tokio::test]
async fn what_the_cluster_refuses_ends_with_4_and_what_is_wrong_in_itself_with_2() {
    let cluster = one_node().await;
    spec_file(&cluster, "t.toml", "name = \"t\"\n[[children]]\nid = \"web\"\ncommand = [\"sleep\", \"infinity\"]\n");
    pando(&cluster, "apply t.toml --wait").with_code(0);
    all_end_with(
        &cluster,
        4,
        &[
            ("tree /nope", "there is no /nope: `pando tree` shows what there is"),
            ("explain /t/wep", "did you mean /t/web?"),
            ("history /nope", "there is no /nope"),
            ("logs /t/wep", "there is no /t/wep"),
            ("wait /nope", "there is no /nope"),
            ("stop /nope", "there is no /nope"),
            ("start /nope", "there is no /nope"),
            ("restart /nope", "there is no /nope"),
            ("kill /nope", "there is no /nope"),
            ("kill /t", "a supervisor has no process"),
            ("delete nope", "there is no tree nope"),
            ("cluster transfer n9", "there is no other voter"),
        ],
    );
    spec_file(
        &cluster,
        "bad.toml",
        "name = \"t\"\nintensty = \"unlimited\"\n[[children]]\nid = \"a\"\ncommand = [\"x\"]\n",
    );
    let endless =
        "name = \"t\"\n[[children]]\nid = \"a\"\ncommand = [\"x\"]\nmailbox = { max_attempts = \"unlimited\" }\n";
    spec_file(&cluster, "endless.toml", endless);
    all_end_with(
        &cluster,
        2,
        &[
            ("apply bad.toml", "bad.toml:2:1: unknown key \"intensty\"; did you mean \"intensity\"?"),
            ("diff bad.toml", "bad.toml:2:1"),
            ("apply endless.toml", "endless.toml:5:28: \"unlimited\" without a retry_delay"),
            ("apply nowhere.toml", "nowhere.toml: cannot be read"),
            ("apply t.text", "expected a name that ends in .toml or .json"),
            ("tree --output yaml", "possible values: table, json"),
            ("tree --outptu json", "'--output'"),
            ("frobnicate", "unrecognized subcommand"),
            ("kill /t/web SIGFOO", "is no signal"),
            ("delete t/web", "expected the name of a whole tree, like t"),
            ("wait /t --timeout soon", "is not a duration"),
            ("dev --voters 2", "expected 1, 3 or 5"),
            ("--context nowhere tree", "there is no context \"nowhere\""),
        ],
    );
}

#[tokio::test]
async fn what_was_tried_and_failed_ends_with_1_and_names_the_causes() {
    let cluster = one_node().await;
    // Never ready, because it never says so: it crashes first.
    let crashes = "name = \"down\"\nintensity = { max_restarts = 1, within = \"1m\" }\n[[children]]\nid = \"a\"\n\
                   command = [\"sh\", \"-c\", \"echo 'no configuration' >&2; exit 7\"]\nready = { notify = true }\n";
    spec_file(&cluster, "down.toml", crashes);
    for line in ["apply down.toml --wait", "wait /down", "apply down.toml --wait"] {
        let ran = pando(&cluster, line).with_code(1);
        for part in ["tree /down has failed", "exit code 7", "`pando explain /down` tells more", "`pando restart down`"]
        {
            assert!(ran.stderr.contains(part), "{line}: {ran:#?}");
        }
    }
    // Waits for ever, and for as long as anybody waits for it.
    let waits = "name = \"slow\"\n[[children]]\nid = \"a\"\ncommand = [\"sleep\", \"infinity\"]\n\
                 place = { require = [\"disk=ssd\"] }\n";
    spec_file(&cluster, "slow.toml", waits);
    pando(&cluster, "apply slow.toml").with_code(0);
    let ran = pando(&cluster, "wait /slow --timeout 0s").with_code(1);
    assert!(ran.stderr.contains("gave up waiting for /slow to be whole"), "{ran:#?}");
    assert!(ran.stderr.contains("0 of 1 ready") && ran.stderr.contains("disk=ssd"), "{ran:#?}");
}

#[tokio::test]
async fn without_a_leader_reads_show_what_is_known_and_end_with_3() {
    let mut cluster = Cluster::start().await;
    spec_file(&cluster, "t.toml", "name = \"t\"\n[[children]]\nid = \"a\"\ncommand = [\"sleep\", \"infinity\"]\n");
    pando(&cluster, "apply t.toml --wait").with_code(0);
    let leader = cluster.leader().await;
    // The one that is left knows no leader: it was none itself.
    let left = ["n1", "n2", "n3"].into_iter().find(|name| *name != leader).expect("a follower");
    for name in ["n1", "n2", "n3"].into_iter().filter(|name| *name != left) {
        cluster.node(name).kill();
    }
    let ran = pando(&cluster, "tree").with_code(3);
    assert!(ran.stdout.contains("/t") && ran.stderr.contains(&format!("no leader; view of {left}")), "{ran:#?}");
    let stale = pando(&cluster, "tree --stale --output json").with_code(0);
    assert_eq!(stale.json()[0]["path"].as_str(), Some("/t"));
    assert!(stale.stderr.starts_with(&format!("view of {left}, ")), "{stale:#?}");
    let status = pando(&cluster, "cluster status --output json").with_code(3).json();
    assert_eq!(status["view"]["confirmed"], serde_json::json!(false));
    let write = pando(&cluster, "stop t/a").with_code(3);
    assert!(write.stderr.contains("a majority of the voters must be up"), "{write:#?}");
}

#[test]
fn without_a_cluster_every_command_ends_with_3_and_says_how_to_name_one() {
    for line in ["tree", "status", "events", "wait shop", "kill shop/web", "node ls", "cluster status"] {
        let ran = alone(line).with_code(3);
        assert!(ran.stderr.contains("no cluster is known") && ran.stderr.contains("`pando dev` starts"), "{ran:#?}");
    }
    for line in ["dev kill n1", "dev start n1"] {
        let ran = alone(line).with_code(3);
        assert!(ran.stderr.contains("there is no cluster of `pando dev`"), "{ran:#?}");
    }
}

#[tokio::test]
async fn a_cluster_that_does_not_answer_ends_with_3() {
    let mut cluster = one_node().await;
    cluster.node("n1").kill();
    let ran = pando(&cluster, "tree").with_code(3);
    assert!(ran.stderr.contains("no node of the cluster was reached"), "{ran:#?}");
}

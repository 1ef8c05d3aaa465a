//! What probes and Prometheus are told, from a whole cluster to one without a majority and back.

use std::collections::{BTreeMap, BTreeSet};

use pando_tests::cluster::{Answer, Cluster, LEASE, Options, SOON, path, repository};
use pando_tests::wait::wait_until;

const SHOP: &str = r#"
name = "shop"
intensity = { max_restarts = 5, within = "300s" }
[[children]]
id = "web"
command = ["sleep", "1000"]
[[children]]
id = "pool"
[[children.children]]
id = "worker"
command = ["sleep", "1000"]
"#;

const BROKEN: &str = r#"
name = "broken"
intensity = { max_restarts = 1, within = "300s" }
[[children]]
id = "always"
command = ["sh", "-c", "exit 3"]
"#;

/// Something with a mailbox, which nobody sends to.
const MAIL: &str = r#"
name = "mail"
[[children]]
id = "worker"
command = ["sleep", "1000"]
ready = { exec = ["true"] }
mailbox = {}
"#;

/// Every metric of a voter: its type, and its unit where it has one.
const FAMILIES: [(&str, &str, &str); 24] = [
    ("pando_restarts", "counter", ""),
    ("pando_endings", "counter", ""),
    ("pando_children_alive", "gauge", ""),
    ("pando_children_configured", "gauge", ""),
    ("pando_tree_failed", "gauge", ""),
    ("pando_node_losses", "counter", ""),
    ("pando_cluster_time_seconds", "gauge", "seconds"),
    ("pando_rule_panics", "counter", ""),
    ("pando_leads", "gauge", ""),
    ("pando_view_age_seconds", "gauge", "seconds"),
    ("pando_session_held", "gauge", ""),
    ("pando_lease_age_seconds", "gauge", "seconds"),
    ("pando_children_looping", "gauge", ""),
    ("pando_children_unreachable", "gauge", ""),
    ("pando_raft_term", "gauge", ""),
    ("pando_commit_seconds", "histogram", "seconds"),
    ("pando_log_sync_seconds", "histogram", "seconds"),
    ("pando_apply_seconds", "histogram", "seconds"),
    ("pando_snapshot_seconds", "histogram", "seconds"),
    ("pando_proposals_waiting", "gauge", ""),
    ("pando_mail_on_its_way_bytes", "gauge", "bytes"),
    ("pando_log_bytes", "gauge", "bytes"),
    ("pando_last_snapshot_bytes", "gauge", "bytes"),
    ("pando_disk_free_bytes", "gauge", "bytes"),
];

async fn until(cluster: &Cluster, node: &str, path: &str, status: u16, body: &str) -> Answer {
    let fits = |answer: &std::io::Result<Answer>| {
        answer.as_ref().is_ok_and(|answer| answer.status == status && answer.body.contains(body))
    };
    let what = format!("{path} of {node} to say {status} and {body:?}");
    wait_until(&what, SOON, async || cluster.get(node, path).await, fits).await.expect("waited for")
}

async fn sample(cluster: &Cluster, node: &str, series: &str, is_there: impl Fn(Option<f64>) -> bool) {
    let look = async || cluster.get(node, "/metrics").await;
    let fits = |answer: &std::io::Result<Answer>| answer.as_ref().is_ok_and(|answer| is_there(answer.sample(series)));
    _ = wait_until(&format!("{series} on {node}"), SOON, look, fits).await;
}

fn has_every_family_with_its_help(metrics: &Answer) {
    let told = |kind: &str| -> BTreeMap<String, String> {
        let lines = metrics.body.lines().filter_map(|line| line.strip_prefix(&format!("# {kind} ")));
        lines.filter_map(|line| line.split_once(' ')).map(|(name, text)| (name.into(), text.into())).collect()
    };
    let (helps, kinds, units) = (told("HELP"), told("TYPE"), told("UNIT"));
    for (name, kind, unit) in FAMILIES {
        assert_eq!(kinds.get(name).map(String::as_str), Some(kind), "{}", metrics.body);
        assert_eq!(units.get(name).map_or("", String::as_str), unit, "{name}");
        assert!(helps.get(name).is_some_and(|help| help.len() > 10), "{name}: {helps:#?}");
    }
}

/// What alert rules and the dashboard ask for is told, under that name.
fn has_all_that_alerts_and_dashboard_ask_for(metrics: &Answer) {
    let kinds = metrics.body.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let told: BTreeSet<&str> = kinds.filter_map(|line| line.split(' ').next()).collect();
    for file in ["cluster.yml", "mail.yml", "dashboard.json"] {
        let file = repository().join("examples/prometheus").join(file);
        let text = std::fs::read_to_string(&file).expect("a file of the examples");
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let asked: BTreeSet<&str> = words.filter(|word| word.starts_with("pando_")).collect();
        assert!(asked.len() > 3, "{file:?}: {asked:?}");
        for name in asked {
            let family = ["_total", "_bucket"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            assert!(told.contains(family), "{file:?} asks for {name}: {told:#?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_metrics_tell_a_crash_a_loss_a_failed_tree_its_clearing_and_the_loss_of_the_majority() {
    let mut cluster = Cluster::with(Options { agents: 1, http: true, ..Options::default() }).await;
    let voters = ["n1", "n2", "n3"];
    cluster.bring_up(SHOP).await;
    cluster.bring_up(MAIL).await;
    let leader = cluster.leader().await;
    let others: Vec<&str> = voters.into_iter().filter(|voter| *voter != leader).collect();

    // Whole.
    for voter in voters {
        until(&cluster, voter, "/healthz", 200, "ok").await;
        until(&cluster, voter, "/readyz", 200, &format!("ok: {leader} leads")).await;
        until(&cluster, voter, "/readyz/shop", 200, "ok").await;
        until(&cluster, voter, "/readyz/nothing", 503, "there is no tree nothing").await;
        sample(&cluster, voter, r#"pando_children_alive{path="/shop"}"#, |alive| alive == Some(2.0)).await;
        sample(&cluster, voter, r#"pando_children_configured{path="/shop/pool"}"#, |there| there == Some(1.0)).await;
        sample(&cluster, voter, "pando_leads", |leads| leads == Some(if voter == leader { 1.0 } else { 0.0 })).await;
        sample(&cluster, voter, "pando_view_age_seconds", |age| age == Some(0.0)).await;
        // What it did so far took its time; a lease is never older than its length, while it lasts.
        for counted in ["pando_log_sync_seconds_count", "pando_apply_seconds_count"] {
            sample(&cluster, voter, counted, |count| count > Some(3.0)).await;
        }
        let commits = |count| voter != leader || count > Some(1.0);
        sample(&cluster, voter, "pando_commit_seconds_count", commits).await;
        sample(&cluster, voter, "pando_raft_term", |term| term >= Some(1.0)).await;
        sample(&cluster, voter, "pando_log_bytes", |bytes| bytes > Some(100.0)).await;
        let age = |age: Option<f64>| age.is_some_and(|age| age < LEASE.as_secs_f64());
        sample(&cluster, voter, "pando_lease_age_seconds", age).await;
        let metrics = cluster.get(voter, "/metrics").await.expect("metrics");
        has_every_family_with_its_help(&metrics);
        has_all_that_alerts_and_dashboard_ask_for(&metrics);
    }
    until(&cluster, "n4", "/readyz", 200, "ok: n4 holds session").await;
    until(&cluster, "n4", "/readyz/shop", 404, "n4 is no voter and holds no state: ask a voter").await;
    let agent = cluster.get("n4", "/metrics").await.expect("metrics");
    assert_eq!((agent.sample("pando_session_held"), agent.body.contains("pando_tree_failed")), (Some(1.0), false));

    // A crash, in the books of every voter, by its class; a restart by an operator ends a run too, and is no charged restart.
    assert!(cluster.cli(&["kill", "/shop/web"]).status.success());
    assert!(cluster.cli(&["restart", "/shop/pool/worker"]).status.success());
    for voter in voters {
        sample(&cluster, voter, r#"pando_restarts_total{path="/shop/web",cause="crash"}"#, |n| n == Some(1.0)).await;
        sample(&cluster, voter, r#"pando_endings_total{path="/shop/web",cause="crash"}"#, |n| n == Some(1.0)).await;
        let stopped = r#"pando_endings_total{path="/shop/pool/worker",cause="stopped"}"#;
        sample(&cluster, voter, stopped, |n| n == Some(1.0)).await;
        let charged = r#"pando_restarts_total{path="/shop/pool/worker",cause="stopped"}"#;
        assert_eq!(cluster.get(voter, "/metrics").await.expect("metrics").sample(charged), None);
    }

    // A failed tree: the cluster is not ready and says why, the other tree is, and so are the agents.
    cluster.apply(BROKEN).await;
    for voter in voters {
        until(&cluster, voter, "/readyz", 503, "tree broken has failed: /broken: 2 crashes").await;
        until(&cluster, voter, "/readyz/broken", 503, "failed: /broken: 2 crashes").await;
        until(&cluster, voter, "/readyz/shop", 200, "ok").await;
        sample(&cluster, voter, r#"pando_tree_failed{tree="broken"}"#, |failed| failed == Some(1.0)).await;
        sample(&cluster, voter, r#"pando_tree_failed{tree="shop"}"#, |failed| failed == Some(0.0)).await;
    }
    until(&cluster, "n4", "/readyz", 200, "ok").await;
    // Cleared: it is deleted, and its metrics with it.
    assert!(cluster.cli(&["delete", "broken", "--wait"]).status.success());
    for voter in voters {
        until(&cluster, voter, "/readyz", 200, "ok").await;
        sample(&cluster, voter, r#"pando_tree_failed{tree="broken"}"#, |failed| failed.is_none()).await;
    }

    // A lost node.
    cluster.node(others[0]).kill();
    for voter in [leader.as_str(), others[1]] {
        let losses = format!(r#"pando_node_losses_total{{node="{}"}}"#, others[0]);
        sample(&cluster, voter, &losses, |losses| losses == Some(1.0)).await;
        until(&cluster, voter, "/readyz/shop", 200, "ok").await;
    }
    assert_eq!(cluster.row("/shop/web").await.restarts, 1);

    // No majority: nobody is ready, whoever takes itself for the leader; everything says how old it is; the node itself lives.
    cluster.node(others[1]).kill();
    let old = format!("no leader; view of {leader}, ");
    until(&cluster, &leader, "/readyz", 503, &old).await;
    until(&cluster, &leader, "/readyz/shop", 503, &old).await;
    until(&cluster, &leader, "/healthz", 200, "ok").await;
    until(&cluster, "n4", "/readyz", 503, "n4 holds no session").await;
    sample(&cluster, "n4", "pando_session_held", |held| held == Some(0.0)).await;
    sample(&cluster, &leader, "pando_view_age_seconds", |age| age > Some(3.0)).await;
    sample(&cluster, &leader, "pando_leads", |leads| leads == Some(0.0)).await;
    let stale = cluster.client_of(&leader).call(stale_tree(), SOON).await;
    let Ok(pando_protocol::message::Reply::Found { view, .. }) = stale else { panic!("{stale:?}") };
    assert!(view.age_ms > 3_000 && view.leader.is_none() && !view.confirmed, "a stale read says the same: {view:?}");
    // Back.
    cluster.node(others[1]).start();
    for voter in [leader.as_str(), others[1]] {
        until(&cluster, voter, "/readyz/shop", 200, "ok").await;
        sample(&cluster, voter, "pando_view_age_seconds", |age| age == Some(0.0)).await;
    }
    until(&cluster, "n4", "/readyz", 200, "ok: n4 holds session").await;

    // The same where a follower is left alone, which knows of no leader.
    let leads_now = cluster.leader().await;
    let follower = if leads_now == leader { others[1] } else { &leader };
    cluster.node(&leads_now).kill();
    for path in ["/readyz", "/readyz/shop"] {
        until(&cluster, follower, path, 503, &format!("no leader; view of {follower}, ")).await;
    }
}

fn stale_tree() -> pando_protocol::message::Call {
    let query = pando_protocol::message::Query::Tree(Some(path("/shop")));
    pando_protocol::message::Call::Read { query, freshness: pando_protocol::message::Freshness::Stale }
}

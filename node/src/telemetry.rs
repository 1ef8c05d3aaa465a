//! Logs and metrics. Metrics are read off the replicated state when they are asked for, so that every voter tells the same.

mod mail;
mod work;

use std::fmt::Write as _;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use openraft::AsyncRuntime;
use pando_protocol::cause::CauseClass;
use pando_protocol::ids::{Path, TreeName};
use pando_protocol::view::{Kind, State, Verdict};
use pando_supervision::cluster::SupervisorPhase;
use pando_supervision::{Cluster, report};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::control::Control;
use crate::disk::Room;
use crate::freshness::View;
use crate::guard::BootTime;
use crate::local::Presence;

/// What is logged unless `PANDO_LOG` says otherwise. openraft warns of each heartbeat that a voter misses, twenty a second for
/// as long as it is down; that it is down is told once, with its name, when its session ends.
const USUAL_LOG: &str = "info,openraft=error,chunked_wal=warn,raft_log=warn,quinn=warn";

/// Starts writing logs to standard error: `info` and above, or what `PANDO_LOG` says.
pub fn start_logging() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("PANDO_LOG").unwrap_or_else(|_| USUAL_LOG.into());
    let logging = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    // Else a line that cannot be written (a full disk, a reader that is gone) is told of by `eprintln!`, which panics for the
    // same reason, in whichever task had something to say.
    logging.log_internal_errors(false).init();
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPath {
    path: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCause {
    path: String,
    cause: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfTree {
    tree: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfNode {
    node: String,
}

/// What every node knows of itself.
#[derive(Debug)]
pub struct Here {
    /// Its standing with the cluster.
    pub presence: Presence,
    /// The room on the disk of its data folder, where that is known.
    pub room: Option<Room>,
    /// When its certificate expires.
    pub certificate_end: SystemTime,
}

/// The metrics of the cluster as this voter knows it, where it is one, and of this node, in the text format of OpenMetrics.
pub fn metrics<R: AsyncRuntime>(state: Option<(&Control<R>, &View<R>)>, here: &Here) -> String {
    let mut registry = Registry::with_prefix("pando");
    if let Some((control, view)) = state {
        let (panics, cluster) = {
            let published = control.published.borrow();
            (published.panics, published.cluster.clone())
        };
        of_members(&mut registry, &cluster);
        of_cluster(&mut registry, &cluster);
        mail::of_mailboxes(&mut registry, &cluster);
        of_voter(&mut registry, panics, control.leads(), view);
        work::of_work(&mut registry, control);
    }
    of_node(&mut registry, here);
    let mut text = String::new();
    if encode(&mut text, &registry).is_err() {
        _ = writeln!(text, "# the metrics could not be written");
    }
    text
}

fn of_members(registry: &mut Registry, cluster: &Cluster) {
    let (restarts, endings) = (Family::<OfCause, Counter>::default(), Family::<OfCause, Counter>::default());
    let (alive, configured) = (Family::<OfPath, Gauge>::default(), Family::<OfPath, Gauge>::default());
    let failed = Family::<OfTree, Gauge>::default();
    let unreachable = Family::<OfTree, Gauge>::default();
    let looping = Family::<OfTree, Gauge>::default();
    registry.register(
        "restarts",
        "Restarts that a budget paid for, by member and class of the ending that led to them",
        restarts.clone(),
    );
    registry.register("endings", "Endings of runs, restarted or not, by member and class of cause", endings.clone());
    registry.register("children_alive", "Ready children at and below a supervisor", alive.clone());
    registry.register("children_configured", "Children at and below a supervisor that should run", configured.clone());
    registry.register(
        "tree_failed",
        "1 for a tree that has failed and waits for an operator: alert on it",
        failed.clone(),
    );
    registry.register(
        "children_unreachable",
        "Children of a tree that are kept on silent nodes: each waits for its node, or for an operator",
        unreachable.clone(),
    );
    registry.register(
        "children_looping",
        "Children of a tree that ended three times in a row at the longest delay of their backoff",
        looping.clone(),
    );
    for row in report::tree(cluster, None) {
        let of_tree = || OfTree { tree: row.path.tree().to_string() };
        unreachable
            .get_or_create(&of_tree())
            .inc_by(i64::from(row.kind == Kind::Process && row.state == State::Unreachable));
        looping
            .get_or_create(&of_tree())
            .inc_by(i64::from(row.kind == Kind::Process && row.verdict == Verdict::Looping));
        let path = row.path.to_string();
        if row.kind == Kind::Supervisor {
            alive.get_or_create(&OfPath { path: path.clone() }).set(i64::from(row.alive));
            configured.get_or_create(&OfPath { path: path.clone() }).set(i64::from(row.configured));
        }
        if row.path.depth() == 1 {
            failed.get_or_create(&of_tree()).set(i64::from(row.state == State::Failed));
        }
        let Some(member) = cluster.member(&row.path) else { continue };
        let of = |class: CauseClass| OfCause { path: path.clone(), cause: class.as_str().to_owned() };
        // The usual ones from the beginning: whoever looks for a rise does not see the one from nothing to 1.
        if row.kind == Kind::Process {
            _ = (restarts.get_or_create(&of(CauseClass::Crash)), endings.get_or_create(&of(CauseClass::Crash)));
        } else {
            _ = restarts.get_or_create(&of(CauseClass::Escalated));
        }
        for (family, counts) in [(&restarts, &member.restarts), (&endings, &member.endings)] {
            for (class, count) in counts {
                family.get_or_create(&of(*class)).inc_by(*count);
            }
        }
    }
}

fn of_cluster(registry: &mut Registry, cluster: &Cluster) {
    let losses = Family::<OfNode, Counter>::default();
    registry.register("node_losses", "Sessions of a node that ended without its word", losses.clone());
    for row in report::nodes(cluster) {
        losses.get_or_create(&OfNode { node: row.name.to_string() }).inc_by(row.losses);
    }
    let time: Gauge = Gauge::default();
    time.set(i64::try_from(cluster.head.now.as_secs()).unwrap_or(i64::MAX));
    registry.register_with_unit("cluster_time", "Time in which the cluster ran", Unit::Seconds, time);
}

fn of_voter<R: AsyncRuntime>(registry: &mut Registry, panics: u64, leads: bool, view: &View<R>) {
    let rules = Counter::<u64>::default();
    rules.inc_by(panics);
    registry.register(
        "rule_panics",
        "Commands left out because a rule panicked on them, on this node since it started: a bug",
        rules,
    );
    let leading: Gauge = Gauge::default();
    leading.set(i64::from(leads && view.leader.is_some()));
    registry.register("leads", "1 on the node that leads and has a majority", leading);
    let age = Gauge::<f64, AtomicU64>::default();
    age.set(view.age().as_secs_f64());
    registry.register_with_unit(
        "view_age",
        "Time for which no leader with a majority has confirmed what this node tells of the cluster; 0 while one does",
        Unit::Seconds,
        age,
    );
}

fn of_node(registry: &mut Registry, Here { presence, room, certificate_end }: &Here) {
    let expires: Gauge = Gauge::default();
    let end = certificate_end.duration_since(UNIX_EPOCH).unwrap_or_default();
    expires.set(i64::try_from(end.as_secs()).unwrap_or(i64::MAX));
    registry.register_with_unit(
        "certificate_expires",
        "When the certificate of this node expires, in Unix time: renew it in the last 30 days",
        Unit::Seconds,
        expires,
    );
    if let Some(Room { free, size }) = room {
        for (name, help, bytes) in [
            (
                "disk_free",
                "Free on the disk of the data folder of this node: full, its log takes nothing and it ends",
                free,
            ),
            ("disk_size", "Size of that disk", size),
        ] {
            let gauge: Gauge = Gauge::default();
            gauge.set(i64::try_from(*bytes).unwrap_or(i64::MAX));
            registry.register_with_unit(name, help, Unit::Bytes, gauge);
        }
    }
    if let Some(renewed) = presence.renewed {
        let age = Gauge::<f64, AtomicU64>::default();
        age.set(BootTime::now().since(renewed).as_secs_f64());
        registry.register_with_unit(
            "lease_age",
            "Time since the beat was sent that a leader answered last: at the length of the lease all that is not kept is killed",
            Unit::Seconds,
            age,
        );
    }
    let (held, running): (Gauge, Gauge) = (Gauge::default(), Gauge::default());
    held.set(i64::from(presence.session.is_some()));
    running.set(i64::try_from(presence.children).unwrap_or(i64::MAX));
    registry.register("session_held", "1 while this node holds a session; without one nothing runs here", held);
    registry.register("node_children", "Children that have a process on this node", running);
}

/// A sentence for each tree that has failed.
pub fn failed_trees<R: AsyncRuntime>(control: &Control<R>) -> Vec<String> {
    let cluster = control.cluster();
    let failure = |tree: &TreeName| match &cluster.supervisor(&Path::root(tree))?.phase {
        SupervisorPhase::Failed(cause) => Some(format!("tree {tree} has failed: {cause}")),
        SupervisorPhase::Down(_)
        | SupervisorPhase::Delayed { .. }
        | SupervisorPhase::Up { .. }
        | SupervisorPhase::Stopping { .. } => None,
    };
    cluster.trees.keys().filter_map(failure).collect()
}

/// Whether a tree is ready: not failed, and everything that should run is ready. `Err` says why not.
///
/// # Errors
/// The sentence for the answer's body.
pub fn tree_ready<R: AsyncRuntime>(control: &Control<R>, tree: &str) -> Result<(), String> {
    let path = format!("/{tree}").parse().map_err(|error| format!("{error}"))?;
    let cluster = control.cluster();
    if let Some(SupervisorPhase::Failed(cause)) = cluster.supervisor(&path).map(|root| &root.phase) {
        return Err(format!("failed: {cause}"));
    }
    match report::settled(&cluster, &path) {
        None => Err(format!("there is no tree {tree}")),
        Some(settled) if settled.whole => Ok(()),
        Some(settled) => {
            Err(format!("{} of {} ready; {}", settled.ready, settled.configured, settled.missing.join("; ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_node_without_state_tells_when_its_certificate_expires() {
        let certificate_end = UNIX_EPOCH + Duration::from_secs(1_900_000_000);
        let here = Here { presence: Presence::default(), room: None, certificate_end };
        let text = metrics::<openraft::impls::TokioRuntime>(None, &here);
        assert!(text.contains("\npando_certificate_expires_seconds 1900000000\n"), "{text}");
    }

    #[test]
    fn a_voter_that_is_down_does_not_fill_the_log_with_its_missed_heartbeats() {
        let written = Written::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(USUAL_LOG)
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(target: "openraft::core::heartbeat::worker", "failed to send a heartbeat");
            tracing::info!(target: "chunked_wal::file_lock", "lock acquired");
            tracing::error!(target: "openraft::core::raft_core", "raft stops");
            tracing::info!(target: "pando_node::node", "the node starts");
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<_> = text.lines().map(|line| line.rsplit(": ").next().unwrap()).collect();
        assert_eq!(lines, ["raft stops", "the node starts"]);
    }
}

//! The control plane of a voter: storage, Raft and its tasks, and the handle to them.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use openraft::impls::TokioRuntime;
use pando_supervision::Command;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::control::{CHANGES_WAITING, Control, MailLane, PROOFS_WAITING, PROPOSALS_WAITING};
use crate::directory::Directory;
use crate::instruments::Instruments;
use crate::raft::config::{Times, raft_config};
use crate::raft::fatal::reason;
use crate::raft::network::{Deadlines, Network};
use crate::raft::proposer::Proposer;
use crate::raft::service::{Evidence, Service};
use crate::raft::state_machine::{Rules, StateMachine};
use crate::raft::{Raft, bootstrap, campaign, leadership, members, questions, raising};
use crate::sessions::MARGIN;
use crate::storage::identity::DataFolder;
use crate::storage::log::{Cut, LogOptions, LogStore};
use crate::storage::retention::{Limits, OnDisk, Retention};
use crate::storage::snapshot::{Snapshot, SnapshotStore};
use crate::transport::{Credentials, Peers};

/// Raft with the node's storage.
pub type NodeRaft = Raft<TokioRuntime>;
/// What serves the Raft streams of other voters.
pub type NodeService = Service<StateMachine<TokioRuntime>, SnapshotStore>;

/// The running control plane.
pub struct Voter {
    /// The handle to the replicated state.
    pub control: Control<TokioRuntime>,
    /// Serves the Raft streams of other voters.
    pub service: NodeService,
    /// Raft itself, for the end.
    pub raft: NodeRaft,
    failed: watch::Receiver<Option<String>>,
    tasks: JoinSet<()>,
}

impl Voter {
    /// Opens what the node kept and starts Raft on it.
    ///
    /// # Errors
    /// Damage on disk, with the place; another process with the folder open; a configuration that Raft refuses.
    pub async fn start(
        config: &Config,
        folder: &DataFolder,
        credentials: &Credentials,
        peers: &Peers,
        directory: &Directory,
        stop: &CancellationToken,
    ) -> Result<Self> {
        let rules = Rules { known: config.rules, ..RULES };
        let snapshots = SnapshotStore::open(folder.path()).context("cannot open the snapshot")?;
        let instruments = Instruments::default();
        let (machine, published, events) =
            StateMachine::open(snapshots.clone(), rules).context("cannot load the snapshot")?;
        let log =
            LogStore::open(&folder.log(), &LogOptions::for_size(config.log_bytes)).context("cannot open the log")?;
        for Cut { path, offset, bytes } in log.cuts() {
            tracing::warn!(
                file = %path.display(), offset, bytes,
                "the log ended inside a record, as a crash or a full disk leaves it: that end was cut; nobody counts on what was \
                 there, and the leader sends what is missing, so there is nothing to do"
            );
        }
        let log = log.noting(instruments.sync.clone());
        let snapshot = published.borrow().applied.map(|applied| applied.index);
        log.ensure_follows(snapshot).context("cannot use the log")?;
        log.ensure_known_rules(snapshot, rules.known).context("cannot use the log")?;
        let times = config.times;
        let raft_times =
            Times { heartbeat: times.heartbeat, election_min: times.election_min, election_max: times.election_max };
        let raft_config = raft_config(credentials.now().cluster(), &raft_times)
            .validate()
            .context("the times of raft do not fit together")?;
        let network = Network::<Snapshot>::new(peers.clone(), Deadlines::for_heartbeat(times.heartbeat));
        let raft = NodeRaft::new(
            folder.raft_id(),
            Arc::new(raft_config),
            network,
            log.clone(),
            machine.noting(instruments.clone()),
        )
        .await
        .map_err(|fatal| anyhow!("raft does not start: {}", reason(&fatal)))?;

        let (proposals, proposed) = mpsc::channel(PROPOSALS_WAITING);
        let (mail, mailed) = MailLane::new();
        let (proofs, asked) = mpsc::channel(PROOFS_WAITING);
        let (asking, about_raft) = mpsc::channel(64);
        let (changes, wanted) = mpsc::channel(CHANGES_WAITING);
        let (led, leadership) = watch::channel(leadership::unknown());
        let (keeps, kept) = watch::channel(OnDisk::default());
        let control = Control {
            own: config.name.clone(),
            proposals,
            mail,
            proofs,
            questions: asking,
            changes,
            published: published.clone(),
            leadership: leadership.clone(),
            events,
            instruments: instruments.clone(),
            kept: kept.clone(),
        };
        let (fail, failed) = watch::channel(None);
        let own = folder.raft_id();
        let mut tasks = JoinSet::new();
        let proposer = Proposer {
            raft: raft.clone(),
            published: published.clone(),
            leadership,
            proposals: proposed,
            mail: mailed,
            wall,
            took: instruments.commit.clone(),
            stop: stop.clone(),
        };
        tasks.spawn(proposer.run());
        // Between two heartbeats of a quiet leader nobody answers anything.
        let of_late = times.heartbeat * 2;
        tasks.spawn(leadership::prove(raft.clone(), asked, times.election_max, of_late, stop.clone()));
        tasks.spawn(questions::answer(raft.clone(), own, about_raft, TRANSFER_LIMIT, stop.clone()));
        let (state, ruled) = (published.clone(), published.clone());
        let keeper = members::Keeper {
            raft: raft.clone(),
            neighbours: peers.clone(),
            configured: config.voters.clone(),
            session_is_over: times.lease + MARGIN,
            // What is kept may run on after a lease, and knows nothing of Raft.
            leases: Box::new(move |name| state.borrow().cluster.nodes.get(name).map_or(0, |node| node.leases())),
            rules: Box::new(move || ruled.borrow().cluster.head.rules),
            changes: wanted,
            stop: stop.clone(),
        };
        tasks.spawn(keeper.run());
        let (held, _) = watch::channel(None);
        tasks.spawn(campaign::watch_leader(raft.clone(), credentials.clone(), times.heartbeat, held, stop.clone()));
        let retention =
            Retention { log, snapshots: snapshots.clone(), limits: Limits::for_size(config.log_bytes), kept: keeps };
        let evidence = Evidence::default();
        let beginning = bootstrap::Beginning {
            own: config.name.clone(),
            configured: config.voters.clone(),
            joins: config.joins,
            advertise: config.advertise.clone(),
            evidence: evidence.clone(),
            listens: LISTENS.max(times.heartbeat * 4),
        };
        let follow = leadership::follow(
            raft.clone(),
            own,
            !config.joins,
            directory.watch(),
            published,
            led,
            // After this the others have elected another one, where they could.
            times.election_max * 2,
            stop.clone(),
        );
        tasks.spawn(watch_over(raft.clone(), peers.clone(), beginning, retention, follow, fail, stop.clone()));
        let (leading, raising) = (control.clone(), control.clone());
        let state = move || leading.leads().then(|| leading.published.borrow().cluster.head.rules);
        let propose = async move |version| {
            tracing::info!(version, "every voter knows newer rules: they are raised");
            // Where it leads no more the next leader asks anew.
            _ = raising.propose(Command::RaiseRules(version)).await;
        };
        tasks.spawn(raising::raise(
            raft.clone(),
            peers.clone(),
            rules.known,
            raising::LOOK_EVERY,
            state,
            propose,
            stop.clone(),
        ));
        let name = config.name.clone();
        let service = Service::new(raft.clone(), snapshots, name, directory.clone(), evidence, rules.known);
        Ok(Self { control, service, raft, failed, tasks })
    }

    /// Why the control plane cannot go on, once that is so: the process must end then. Its tasks end only with the node, so
    /// that one which ends before is a reason too.
    pub async fn ended(&mut self) -> String {
        let Self { failed, tasks, .. } = self;
        let mut reason = failed.clone();
        tokio::select! {
            biased;
            why = failed.wait_for(Option::is_some) => {
                why.ok().and_then(|why| why.clone()).unwrap_or_else(|| "its watch has ended".into())
            }
            Some(ended) = tasks.join_next() => match ended {
                // Where Raft has ended, its tasks may notice before the reason is told.
                Ok(()) => match tokio::time::timeout(REASON_LIMIT, reason.wait_for(Option::is_some)).await {
                    Ok(Ok(why)) => why.clone().unwrap_or_default(),
                    _ => "one of its tasks has ended".into(),
                },
                Err(panicked) => format!("one of its tasks panicked, which is a bug: {panicked}"),
            },
        }
    }

    /// Ends Raft, and waits for its tasks. `stop` must be cancelled before.
    pub async fn end(mut self) {
        _ = tokio::time::timeout(END_LIMIT, async {
            _ = self.raft.shutdown().await;
            while self.tasks.join_next().await.is_some() {}
        })
        .await;
    }
}

/// The tasks whose end is the end of the process: what follows Raft's core, the beginning of the cluster, and the bounds of the log.
async fn watch_over(
    raft: NodeRaft,
    peers: Peers,
    beginning: bootstrap::Beginning,
    retention: Retention,
    follow: impl Future<Output = Result<(), String>>,
    fail: watch::Sender<Option<String>>,
    stop: CancellationToken,
) {
    let begin = async {
        match bootstrap::bootstrap(&raft, &peers, &beginning).await {
            Ok(()) => std::future::pending().await,
            Err(error) => Err(format!("{:#}", anyhow::Error::new(error))),
        }
    };
    let keep = retention.run(raft.clone(), stop.clone());
    let why = tokio::select! {
        biased;
        () = stop.cancelled() => return,
        ended = follow => ended,
        failed = begin => failed,
        ended = keep => ended.map_err(|error| format!("{:#}", anyhow::Error::new(error))),
    };
    if let Err(why) = why {
        _ = fail.send_replace(Some(why));
        stop.cancelled().await;
    }
}

/// The rules of this build.
const RULES: Rules =
    Rules { apply: pando_supervision::apply, version: |cluster| cluster.head.rules, known: pando_supervision::RULES };
/// The only configured voter listens this long for a cluster that exists before it begins one: members dial several times in
/// it.
const LISTENS: Duration = Duration::from_secs(1);
/// A transfer has this long to come true.
const TRANSFER_LIMIT: Duration = Duration::from_secs(5);
/// The reason for the end of a task is told within this.
const REASON_LIMIT: Duration = Duration::from_millis(500);
/// Raft and its tasks have this long to end.
const END_LIMIT: Duration = Duration::from_secs(3);

fn wall() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

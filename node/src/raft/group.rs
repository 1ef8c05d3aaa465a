//! Voters in one process with real sockets between them, for tests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use openraft::Raft;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::ForwardReason;
use pando_protocol::client::identity::Role;
use pando_protocol::client::quic::{self, Tuning};
use pando_protocol::ids::NodeName;
use pando_protocol::message::{Channel, MemberChange};
use pando_supervision::{Batch, Command, Stamp};
use quinn::Endpoint;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::bootstrap::{self, Beginning, Configured};
use super::campaign;
use super::members;
use super::memory::{Log, Machine, Store};
use super::network::{Deadlines, Network};
use super::raising;
use super::sealed::Sealed;
use super::service::{Evidence, Service};
use super::types::{Membership, NodeTypes, RaftId, Voter as VoterNode};
use crate::control::{ChangeRequest, NotChanged};
use crate::directory::Directory;
use crate::transport::fixture::Cluster;
pub(crate) use crate::transport::fixture::LIMIT;
use crate::transport::peers::Peers;
use crate::transport::{liveness, server};

/// A session of a test's voter is over after this.
pub(crate) const SESSION_IS_OVER: Duration = Duration::from_millis(700);

type MemoryRaft = Raft<NodeTypes, Machine>;

/// Milliseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    pub(crate) heartbeat: u64,
    pub(crate) election: (u64, u64),
}

impl Timing {
    pub(crate) fn lan() -> Self {
        Self { heartbeat: 100, election: (500, 1000) }
    }
}

/// Voters `n0`, `n1`, … that were configured together.
pub(crate) struct Group {
    cluster: Cluster,
    configured: Configured,
    timing: Timing,
    voters: Vec<Voter>,
}

struct Voter {
    name: NodeName,
    raft_id: RaftId,
    address: SocketAddr,
    log: Log,
    machine: Machine,
    /// Whether it waits to be added.
    joins: bool,
    /// The newest version of the rules that it knows.
    known: u32,
    /// Bound and silent until it begins.
    sockets: Option<(Endpoint, TcpListener)>,
    running: Option<Running>,
}

struct Running {
    raft: MemoryRaft,
    peers: Peers,
    held: watch::Receiver<Option<NodeName>>,
    changes: mpsc::Sender<ChangeRequest>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Group {
    pub(crate) async fn start(voters: usize, timing: Timing) -> Self {
        let mut group = Self::prepare(voters, timing).await;
        for index in 0..voters {
            group.begin(index).await;
        }
        group
    }

    pub(crate) async fn prepare(voters: usize, timing: Timing) -> Self {
        let cluster = Cluster::new("grove");
        let mut group = Self { cluster, configured: Configured::new(), timing, voters: Vec::new() };
        for _ in 0..voters {
            let index = group.push(false).await;
            let Voter { name, address, .. } = &group.voters[index];
            group.configured.insert(name.clone(), address.to_string());
        }
        group
    }

    async fn push(&mut self, joins: bool) -> usize {
        let index = self.voters.len();
        let name: NodeName = format!("n{index}").parse().unwrap();
        let (address, sockets) = self.bind(&name, "127.0.0.1:0".parse().unwrap()).await;
        // Ids in another order than names, as random ones are.
        let raft_id = 1000 - index as u64;
        let (log, machine) = Default::default();
        let sockets = Some(sockets);
        self.voters.push(Voter { name, raft_id, address, log, machine, joins, known: 1, sockets, running: None });
        index
    }

    /// Starts one more node, which waits to be added.
    pub(crate) async fn join(&mut self) -> usize {
        let index = self.push(true).await;
        self.begin(index).await;
        index
    }

    /// The change that adds a node.
    pub(crate) fn addition(&self, index: usize) -> MemberChange {
        let Voter { name, address, .. } = &self.voters[index];
        MemberChange::Add { name: name.clone(), address: address.to_string() }
    }

    /// Asks the leader for a change, and again whoever leads next while it says that it does not lead.
    pub(crate) async fn change(&self, change: MemberChange) -> Result<bool, NotChanged> {
        loop {
            match self.change_at(self.leader().await, change.clone()).await {
                Err(NotChanged::NotLeader) => sleep(Duration::from_millis(5)).await,
                answer => return answer,
            }
        }
    }

    /// Asks one of them for a change.
    pub(crate) async fn change_at(&self, index: usize, change: MemberChange) -> Result<bool, NotChanged> {
        let (reply, changed) = oneshot::channel();
        let request = ChangeRequest { change, reply };
        self.voters[index].running.as_ref().unwrap().changes.send(request).await.unwrap();
        timeout(LIMIT, changed).await.expect("a change hangs").expect("an answer")
    }

    pub(crate) fn name(&self, index: usize) -> NodeName {
        self.voters[index].name.clone()
    }

    /// Binds UDP and TCP on one port.
    async fn bind(&self, name: &NodeName, wanted: SocketAddr) -> (SocketAddr, (Endpoint, TcpListener)) {
        let identity = self.cluster.identity(name.as_str(), Role::Node);
        let bound = async {
            loop {
                if let Ok(listener) = TcpListener::bind(wanted).await {
                    let address = listener.local_addr().unwrap();
                    if let Ok(bound) = quic::bind(&identity, address, &Tuning::lan()) {
                        return (address, (bound.endpoint, listener));
                    }
                }
                tokio::task::yield_now().await;
            }
        };
        timeout(LIMIT, bound).await.expect("the port stays taken")
    }

    pub(crate) async fn begin(&mut self, index: usize) {
        let bound = self.voters[index].sockets.take();
        let Voter { name, address, .. } = &self.voters[index];
        let sockets = match bound {
            Some(sockets) => sockets,
            None => self.bind(name, *address).await.1,
        };
        let running = self.run(&self.voters[index], sockets).await;
        self.voters[index].running = Some(running);
    }

    async fn run(&self, voter: &Voter, (endpoint, listener): (Endpoint, TcpListener)) -> Running {
        let credentials = self.cluster.credentials(voter.name.as_str());
        let peers = Peers::new(endpoint.clone(), credentials.clone(), &Tuning::lan());
        let heartbeat = Duration::from_millis(self.timing.heartbeat);
        let network = Network::new(peers.clone(), Deadlines::for_heartbeat(heartbeat));
        let config = Arc::new(self.config().validate().unwrap());
        let raft = MemoryRaft::new(voter.raft_id, config, network, voter.log.clone(), voter.machine.clone());
        let raft = raft.await.unwrap();

        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let (streams, mut queue) = mpsc::channel(16);
        tasks.spawn(server::serve(endpoint, "grove".to_owned(), streams, stop.clone()));
        let (obituaries, _) = mpsc::channel(1);
        tasks.spawn(liveness::serve(listener, credentials.clone(), obituaries, stop.clone()));
        let (sender, held) = watch::channel(None);
        tasks.spawn(campaign::watch_leader(raft.clone(), credentials, heartbeat, sender, stop.clone()));
        let evidence = Evidence::default();
        let directory = Directory::new(self.configured.clone());
        let service = Service::new(raft.clone(), Store, voter.name.clone(), directory, evidence.clone(), voter.known);
        let (changes, wanted) = mpsc::channel(16);
        let ruled = voter.machine.clone();
        let keeper = members::Keeper {
            raft: raft.clone(),
            neighbours: peers.clone(),
            configured: self.configured.clone(),
            session_is_over: SESSION_IS_OVER,
            leases: Box::new(|_| 1),
            rules: Box::new(move || ruled.rules()),
            changes: wanted,
            stop: stop.clone(),
        };
        tasks.spawn(keeper.run());
        let (leading, writing) = (raft.clone(), raft.clone());
        let (own, machine) = (voter.raft_id, voter.machine.clone());
        let state = move || {
            let leader = leading.server_metrics().borrow_watched().current_leader;
            (leader == Some(own)).then(|| machine.rules())
        };
        let propose = async move |version| {
            let stamp = Stamp { at: Duration::ZERO, wall: 0 };
            let sealed =
                Sealed::new(&Batch { stamp, commands: vec![Command::RaiseRules(version)] }).expect("a small batch");
            // Refused where it leads no more: the next leader does it.
            let _ = writing.client_write(sealed).await;
        };
        tasks.spawn(raising::raise(raft.clone(), peers.clone(), voter.known, heartbeat, state, propose, stop.clone()));
        let serving = tasks.clone();
        tasks.spawn(async move {
            while let Some(stream) = queue.recv().await {
                let service = service.clone();
                serving.spawn(async move {
                    match stream.channel {
                        Channel::RaftAppend => service.serve_append(stream).await,
                        _ => service.serve_call(stream).await,
                    }
                });
            }
        });
        let beginning = Beginning {
            own: voter.name.clone(),
            configured: self.configured.clone(),
            joins: voter.joins,
            advertise: voter.address.to_string(),
            evidence,
            listens: Duration::from_secs(1),
        };
        let (started, stopped, asking) = (raft.clone(), stop.clone(), peers.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                done = bootstrap::bootstrap(&started, &asking, &beginning) => done.unwrap(),
            }
        });
        Running { raft, peers, held, changes, stop, tasks }
    }

    fn config(&self) -> openraft::Config {
        openraft::Config {
            cluster_name: "grove".to_owned(),
            heartbeat_interval: self.timing.heartbeat,
            election_timeout_min: self.timing.election.0,
            election_timeout_max: self.timing.election.1,
            snapshot_policy: openraft::SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: 0,
            enable_pre_vote: Some(true),
            enable_leader_restore: Some(false),
            ..Default::default()
        }
    }

    fn running(&self) -> impl Iterator<Item = (usize, &Running)> {
        self.voters.iter().enumerate().filter_map(|(index, voter)| Some((index, voter.running.as_ref()?)))
    }

    pub(crate) fn raft(&self, index: usize) -> &MemoryRaft {
        &self.voters[index].running.as_ref().unwrap().raft
    }

    pub(crate) fn raft_id(&self, index: usize) -> RaftId {
        self.voters[index].raft_id
    }

    /// A voter as it stands in the membership.
    pub(crate) fn voter(&self, index: usize) -> VoterNode {
        let Voter { name, address, .. } = &self.voters[index];
        VoterNode { name: Some(name.clone()), address: address.to_string() }
    }

    /// The connections of a running voter.
    pub(crate) fn peers(&self, index: usize) -> Peers {
        self.voters[index].running.as_ref().unwrap().peers.clone()
    }

    /// Whether a running node votes by the membership that holds for it; `None` where it knows none.
    fn votes(&self, index: usize) -> Option<bool> {
        let running = self.voters[index].running.as_ref()?;
        let metrics = running.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.log_id().as_ref()?;
        let (membership, own) = (metrics.membership_config.membership(), self.voters[index].raft_id);
        Some(membership.voter_ids().any(|id| id == own))
    }

    /// The voter that all running ones take for the leader; nodes that are no voters, or wait to be added, are not asked.
    pub(crate) async fn leader(&self) -> usize {
        self.eventually("a leader", LIMIT * 2, || {
            let votes = |index: usize| self.votes(index).unwrap_or(!self.voters[index].joins);
            let voting = self.running().filter(|(index, _)| votes(*index));
            let mut led = voting.map(|(_, voter)| voter.raft.server_metrics().borrow_watched().current_leader);
            let leader = led.next()??;
            let index = self.voters.iter().position(|voter| voter.raft_id == leader && voter.running.is_some())?;
            led.all(|other| other == Some(leader)).then_some(index)
        })
        .await
    }

    pub(crate) fn others(&self, leader: usize) -> Vec<usize> {
        self.running().map(|(index, _)| index).filter(|index| *index != leader).collect()
    }

    /// Waits until every other voter holds a liveness connection to the leader.
    pub(crate) async fn wait_until_held(&self, leader: usize) {
        let name = &self.voters[leader].name;
        self.eventually("held connections", LIMIT, || {
            let mut others = self.running().filter(|(index, _)| *index != leader);
            others.all(|(_, voter)| voter.held.borrow().as_ref() == Some(name)).then_some(())
        })
        .await;
    }

    /// Writes a batch through the leader, and waits until every running member has applied it.
    pub(crate) async fn write(&self, leader: usize) -> u64 {
        static WALL: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let wall = WALL.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let batch = Batch { stamp: Stamp { at: Duration::ZERO, wall }, commands: vec![Command::Tick] };
        let sealed = Sealed::new(&batch).expect("a small batch");
        let written = async {
            // A leader without a lease (just elected, or starved of time) refuses before it writes.
            while let Err(error) = self.raft(leader).client_write(sealed.clone()).await {
                let refused = error.forward_to_leader().is_some_and(|to| to.reason == ForwardReason::LeaseExpired);
                assert!(refused, "{error}");
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LIMIT, written).await.expect("a write hangs");
        self.eventually("the write everywhere", LIMIT, || {
            // As the leader has it: one that was taken out may not know.
            let now = self.raft(leader).server_metrics().borrow_watched().membership_config.membership().clone();
            let mut members = self.running().filter(|(index, _)| now.get_node(&self.voters[*index].raft_id).is_some());
            members.all(|(index, _)| self.walls(index).contains(&wall)).then_some(())
        })
        .await;
        wall
    }

    /// The batches that a voter applied.
    pub(crate) fn walls(&self, index: usize) -> Vec<u64> {
        self.voters[index].machine.walls()
    }

    /// The version of the rules that a voter applies.
    pub(crate) fn rules(&self, index: usize) -> u32 {
        self.voters[index].machine.rules()
    }

    /// The newest version of the rules that a voter knows from its next beginning on; 1 unless it is set.
    pub(crate) fn set_known(&mut self, index: usize, known: u32) {
        self.voters[index].known = known;
    }

    /// How many snapshots a voter installed.
    pub(crate) fn installed(&self, index: usize) -> usize {
        self.voters[index].machine.installed()
    }

    /// The committed membership of each running voter that knows one.
    pub(crate) fn memberships(&self) -> Vec<Membership> {
        let known = self.running().map(|(_, voter)| voter.raft.server_metrics().borrow_watched().clone());
        known
            .filter(|metrics| metrics.committed_membership_config.log_id().is_some())
            .map(|metrics| metrics.committed_membership_config.membership().clone())
            .collect()
    }

    pub(crate) async fn eventually<T>(
        &self,
        what: &str,
        limit: Duration,
        mut condition: impl FnMut() -> Option<T>,
    ) -> T {
        let met = async {
            loop {
                if let Some(value) = condition() {
                    return value;
                }
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(limit, met).await.unwrap_or_else(|_| panic!("waited {limit:?} for {what}"))
    }

    /// Ends a voter as its process would end: sockets first, no goodbye to Raft. What it stored stays.
    pub(crate) async fn kill(&mut self, index: usize) {
        let Running { raft, peers, stop, tasks, .. } = self.voters[index].running.take().unwrap();
        stop.cancel();
        raft.shutdown().await.unwrap();
        drop((raft, peers));
        tasks.close();
        timeout(LIMIT, tasks.wait()).await.expect("tasks do not end");
    }

    /// Loses a killed voter's data folder: it comes back empty, and with a new id.
    pub(crate) fn wipe(&mut self, index: usize) {
        let voter = &mut self.voters[index];
        assert!(voter.running.is_none());
        voter.raft_id += 5000;
        (voter.log, voter.machine) = Default::default();
    }

    pub(crate) async fn stop(mut self) {
        for index in 0..self.voters.len() {
            if self.voters[index].running.is_some() {
                self.kill(index).await;
            }
        }
    }
}

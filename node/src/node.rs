//! One node: builds the rooms, connects them, and ends them in order.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use openraft::impls::TokioRuntime;
use pando_protocol::client::identity::{Identity, Role};
use pando_protocol::client::quic::{self, Tuning};
use pando_protocol::ids::NodeName;
use pando_protocol::message::Channel;
use pando_protocol::session::NodeRole;
use rand::Rng;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::api::Api;
use crate::config::{Config, Network};
use crate::directory::Directory;
use crate::guard::words::VoterAddress;
use crate::guard::{GuardLock, mark, sweep};
use crate::http;
use crate::local::LocalChildren;
use crate::runner::children::{ChildEvent, Children, Options};
use crate::runner::record::SessionRecord;
use crate::runner::voters::connect;
use crate::runner::{Facts, Feeds, Pace, Runner, RunnerError, RunnerHandle};
use crate::sessions::{self, Keeper, KeeperHandle};
use crate::storage::identity::DataFolder;
use crate::transport::{IncomingStream, Peers, liveness, server};
use crate::voter::{NodeService, Voter};

/// The guard and the reapers of a former node process of this folder have this long to be gone.
const LOCK_LIMIT: Duration = Duration::from_secs(10);
/// Streams that may wait to be dispatched.
const STREAMS_WAITING: usize = 256;
/// Obituaries that may wait.
const OBITUARIES_WAITING: usize = 64;
/// Leadership has this long to move away from a node that was told to go.
const HAND_OVER_LIMIT: Duration = Duration::from_secs(1);
/// The guard has this long to end after everything was stopped.
const GUARD_LIMIT: Duration = Duration::from_secs(2);

/// Runs a node until it is told to go, or cannot go on.
///
/// # Errors
/// Why it cannot go on, with what to do. The process must end then: whatever still runs here is killed by the guard.
pub async fn run(config: Config) -> Result<()> {
    let identity = own_identity(&config)?;
    let (lock, mark) = take_folder(&config).await?;
    let cluster = identity.cluster().to_owned();
    let folder = DataFolder::open(&config.data, &cluster, &config.name, || rand::rng().next_u64())
        .context("cannot use the data folder")?;
    let record = SessionRecord::open(&config.data).context("cannot read the sessions of this node")?;
    let tuning = match config.network {
        Network::Lan => Tuning::lan(),
        Network::Wan => Tuning::wan(),
    };
    let bound = quic::bind(&identity, config.listen, &tuning)
        .with_context(|| format!("cannot listen on {}, UDP", config.listen))?;
    let tcp =
        TcpListener::bind(config.listen).await.with_context(|| format!("cannot listen on {}, TCP", config.listen))?;
    let web = match config.http {
        Some(address) => Some(
            TcpListener::bind(address)
                .await
                .with_context(|| format!("cannot serve metrics and health on {address}: choose another --http"))?,
        ),
        None => None,
    };
    tracing::info!(
        node = %config.name, cluster, raft_id = folder.raft_id(), listen = %config.listen, http = ?config.http,
        send_buffer = bound.send_buffer, receive_buffer = bound.receive_buffer, "the node starts"
    );
    let peers = Peers::new(bound.endpoint.clone(), identity.clone(), &tuning);
    let stop = CancellationToken::new();
    let leave = CancellationToken::new();
    let mut tasks = JoinSet::new();

    let directory = Directory::open(&config.data, config.voters.clone());
    tasks.spawn(directory.clone().keep(config.data.clone(), stop.clone()));
    let mut voter = match config.takes_part() {
        true => Some(Voter::start(&config, &folder, &identity, &peers, &directory, &stop).await?),
        false => None,
    };
    let control = voter.as_ref().map(|voter| voter.control.clone());
    let (obituaries, died) = mpsc::channel(OBITUARIES_WAITING);
    let keeper = control.clone().map(|control| {
        let (keeper, handle) = Keeper::new(control, config.times.lease, died, stop.clone());
        tasks.spawn(keeper.run());
        handle
    });
    if keeper.is_some() {
        tasks.spawn(liveness::serve(tcp, identity.clone(), obituaries, stop.clone()));
    }
    let (children, events) = launch_children(&config, &directory, lock, mark).await?;
    tasks.spawn(tell_guard(children.clone(), config.name.clone(), directory.clone(), stop.clone()));
    let (runner, handle, feeds, links) =
        make_runner(&config, &peers, &directory, children.clone(), events, record, &leave, &stop, &tuning);
    let local = LocalChildren::new(config.name.clone(), config.data.clone(), handle);
    let api = Arc::new(Api {
        own: config.name.clone(),
        cluster: cluster.clone(),
        control: control.clone(),
        peers: peers.clone(),
        directory,
        children: local,
    });
    let (incoming, streams) = mpsc::channel(STREAMS_WAITING);
    tasks.spawn(server::serve(bound.endpoint.clone(), cluster, incoming, stop.clone()));
    let doors = Doors {
        api,
        service: voter.as_ref().map(|voter| voter.service.clone()),
        sessions: control.clone().zip(keeper),
    };
    tasks.spawn(dispatch(streams, doors, stop.clone()));
    if let Some(web) = web {
        tasks.spawn(http::serve(web, control, stop.clone()));
    }

    let ended = until_the_end(&config, runner, feeds, voter.as_mut(), &mut tasks, leave).await;
    // In order: children, then what told of them, then Raft.
    if ended.is_ok() {
        children.shutdown(GUARD_LIMIT).await;
    }
    stop.cancel();
    drop(links);
    peers.close();
    if let Some(voter) = voter {
        voter.end().await;
    }
    _ = tokio::time::timeout(GUARD_LIMIT, async { while tasks.join_next().await.is_some() {} }).await;
    ended
}

fn own_identity(config: &Config) -> Result<Identity> {
    let identity = Identity::load(&config.identity).context("cannot use the identity of this node")?;
    if identity.role() != Role::Node || *identity.name() != config.name {
        bail!(
            "the certificate in {} is for {} with the role {}, this node is {}: give it its own, as `pando certs --node {}` makes it",
            config.identity.display(),
            identity.name(),
            identity.role().as_str(),
            config.name,
            config.name
        );
    }
    Ok(identity)
}

/// Takes the lock that the guard of a former node process held, and kills what that one left: both together prove that
/// nothing runs under its sessions.
async fn take_folder(config: &Config) -> Result<(GuardLock, String)> {
    let data = config.data.clone();
    tokio::task::spawn_blocking(move || {
        let lock = GuardLock::acquire(&data, LOCK_LIMIT).context("cannot take the data folder")?;
        let mark = mark(&data).context("cannot mark the data folder")?;
        let killed = sweep(&mark).context("processes of a former run of this node do not die")?;
        if killed > 0 {
            tracing::warn!(killed, "killed processes that a former run of this node had left");
        }
        Ok((lock, mark))
    })
    .await?
}

async fn launch_children(
    config: &Config,
    directory: &Directory,
    lock: GuardLock,
    mark: String,
) -> Result<(Children, mpsc::Receiver<ChildEvent>)> {
    let mut options =
        Options::new(config.name.clone(), config.data.clone(), mark, lock).context("cannot find this program")?;
    options.identity.clone_from(&config.identity);
    options.voters = to_tell(&config.name, directory);
    Children::launch(options).await.context("cannot start the guard")
}

/// The voters that the guard tells of this node's death, in order: a dead node's own control plane is dead too, so the others
/// are asked first.
fn to_tell(own: &NodeName, directory: &Directory) -> Vec<VoterAddress> {
    let (own, others): (Vec<_>, Vec<_>) = directory.voters().into_iter().partition(|(name, _)| name == own);
    others.into_iter().chain(own).map(|(name, address)| VoterAddress { name, address }).collect()
}

/// Tells the guard of each change of the voters, until `stop`.
async fn tell_guard(children: Children, own: NodeName, directory: Directory, stop: CancellationToken) {
    let mut known = directory.watch();
    loop {
        children.set_voters(to_tell(&own, &directory));
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            changed = known.changed() => if changed.is_err() { return },
        }
    }
}

type NodeRunner = Runner<TokioRuntime, Children>;

#[allow(clippy::too_many_arguments)] // One call; a struct would only name them again.
fn make_runner(
    config: &Config,
    peers: &Peers,
    directory: &Directory,
    children: Children,
    events: mpsc::Receiver<ChildEvent>,
    record: SessionRecord,
    leave: &CancellationToken,
    stop: &CancellationToken,
    tuning: &Tuning,
) -> (NodeRunner, RunnerHandle, Feeds, JoinSet<()>) {
    let is_voter = config.takes_part() && !config.joins;
    let facts = Facts {
        node: config.name.clone(),
        address: config.advertise.clone(),
        role: if is_voter { NodeRole::Voter } else { NodeRole::Agent },
        labels: config.labels.clone(),
        slots: config.slots,
        pid: std::process::id(),
    };
    let (voters, heard, links) = connect(peers, directory, tuning.dial, stop);
    let pace = Pace { beat: config.times.beat, lease: config.times.lease };
    let (runner, handle) = Runner::new(facts, pace, voters, children, record, || rand::rng().next_u64());
    (runner, handle, Feeds { heard, children: events, stop: leave.clone() }, links)
}

/// Runs the runner until the node was told to go and everything has stopped, or until something that must not end has ended.
async fn until_the_end(
    config: &Config,
    runner: NodeRunner,
    feeds: Feeds,
    voter: Option<&mut Voter>,
    tasks: &mut JoinSet<()>,
    leave: CancellationToken,
) -> Result<()> {
    let mut told = Told::new(config.exit_with_stdin).context("cannot listen for signals")?;
    let mut running = tokio::spawn(runner.run(feeds));
    let control = voter.as_ref().map(|voter| voter.control.clone());
    let mut fatal = std::pin::pin!(raft_ends(voter));
    let mut is_leaving = false;
    loop {
        tokio::select! {
            biased;
            ended = &mut running => return ended.context("the runner panicked")?.map_err(RunnerError::into),
            why = &mut fatal => bail!("the control plane cannot go on: {why}"),
            ended = tasks.join_next(), if !tasks.is_empty() => if let Some(Err(panicked)) = ended {
                bail!("a task of this node panicked, which is a bug: {panicked}");
            },
            why = told.order_to_go() => {
                if is_leaving {
                    bail!("told to go twice ({why}): what still runs here is killed");
                }
                is_leaving = true;
                tracing::info!(why, "told to go: leadership moves, children stop");
                if let Some(control) = control.as_ref().filter(|control| control.leads()) {
                    _ = tokio::time::timeout(HAND_OVER_LIMIT, control.transfer(None)).await;
                }
                leave.cancel();
            }
        }
    }
}

/// Why the control plane cannot go on, when that happens; never on an agent.
async fn raft_ends(voter: Option<&mut Voter>) -> String {
    match voter {
        Some(voter) => voter.ended().await,
        None => std::future::pending().await,
    }
}

/// The ways to tell a node to go.
struct Told {
    terminate: Signal,
    interrupt: Signal,
    stdin: Option<tokio::io::Stdin>,
}

impl Told {
    fn new(with_stdin: bool) -> io::Result<Self> {
        let (terminate, interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(Self { terminate, interrupt, stdin: with_stdin.then(tokio::io::stdin) })
    }

    async fn order_to_go(&mut self) -> &'static str {
        let Self { terminate, interrupt, stdin } = self;
        tokio::select! {
            biased;
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
            () = closed(stdin) => "standard input was closed",
        }
    }
}

async fn closed(stdin: &mut Option<tokio::io::Stdin>) {
    let Some(input) = stdin else { return std::future::pending().await };
    let mut ignored = [0; 64];
    while !matches!(input.read(&mut ignored).await, Ok(0) | Err(_)) {}
    *stdin = None;
}

/// Who serves which channel.
struct Doors {
    api: Arc<Api>,
    service: Option<NodeService>,
    sessions: Option<(crate::control::Control<TokioRuntime>, KeeperHandle<TokioRuntime>)>,
}

/// Hands each stream to whoever serves its channel, in a task of its own. Only nodes may open what is between nodes.
async fn dispatch(mut streams: mpsc::Receiver<IncomingStream>, doors: Doors, stop: CancellationToken) {
    let mut serving = JoinSet::new();
    loop {
        let stream = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            Some(_) = serving.join_next() => continue,
            stream = streams.recv() => match stream {
                Some(stream) => stream,
                None => return,
            },
        };
        if stream.channel != Channel::Client && stream.peer.role != Role::Node {
            tracing::warn!(peer = %stream.peer, channel = ?stream.channel, "refused: only nodes may open this channel");
            continue;
        }
        match stream.channel {
            Channel::Client => _ = serving.spawn(doors.api.clone().serve_client(stream)),
            Channel::Peer if doors.api.knows(&stream.peer.name) => {
                _ = serving.spawn(doors.api.clone().serve_peer(stream));
            }
            Channel::Peer => tracing::warn!(peer = %stream.peer, "refused: this node has no session and is no voter"),
            Channel::Session => {
                if let Some((control, keeper)) = doors.sessions.clone() {
                    _ = serving.spawn(sessions::serve(stream, control, keeper, stop.clone()));
                }
            }
            Channel::RaftAppend | Channel::RaftCall => {
                if let Some(service) = doors.service.clone() {
                    serving.spawn(serve_raft(service, stream));
                }
            }
        }
    }
}

async fn serve_raft(service: NodeService, stream: IncomingStream) {
    let (peer, is_append) = (stream.peer.clone(), stream.channel == Channel::RaftAppend);
    let served = if is_append { service.serve_append(stream).await } else { service.serve_call(stream).await };
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "a raft stream ended");
    }
}

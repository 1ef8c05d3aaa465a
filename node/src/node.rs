//! One node: builds the rooms, connects them, and ends them in order.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use openraft::impls::TokioRuntime;
use openraft::{AsyncRuntime, Instant};
use pando_protocol::client::identity::{Identity, IdentityFiles, Role};
use pando_protocol::client::quic::{self, Tuning};
use pando_protocol::ids::NodeName;
use pando_protocol::message::Channel;
use pando_protocol::session::{NodeRole, ObituaryReply};
use rand::Rng;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::api::{Api, NodeApi, may_open};
use crate::config::{Config, Network};
use crate::control::{Control, members_of};
use crate::directory::Directory;
use crate::disk::remedy;
use crate::freshness::Freshness;
use crate::going;
use crate::guard::words::{Configuration, VoterAddress};
use crate::guard::{GuardLock, OBITUARY_LIMIT, ObituaryContext, deliver, mark, sweep};
use crate::http;
use crate::local::LocalChildren;
use crate::runner::children::{ChildEvent, Children, Options};
use crate::runner::place::Place;
use crate::runner::record::SessionRecord;
use crate::runner::voters::connect;
use crate::runner::{Facts, Feeds, Pace, Runner, RunnerError, RunnerHandle};
use crate::sessions::{self, Keeper, KeeperHandle};
use crate::storage::identity::DataFolder;
use crate::transport::{self, Credentials, IncomingStream, Peers, liveness, server};
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
    let (files, identity) = own_identity(&config)?;
    let (lock, mark) = take_folder(&config).await?;
    let cluster = identity.cluster().to_owned();
    let folder = DataFolder::open(&config.data, &cluster, &config.name, || rand::rng().next_u64())
        .context("cannot use the data folder")?;
    let here = Place::here(&lock).context("cannot tell where this node runs")?;
    let record = SessionRecord::open(&config.data, here)
        .with_context(|| format!("cannot read the sessions of this node in {}", config.data.display()))?;
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
    let (credentials, renewal) =
        Credentials::renewable(config.identity.clone(), (files, identity), bound.endpoint.clone(), tuning.clone());
    let peers = Peers::new(bound.endpoint.clone(), credentials.clone(), &tuning);
    let stop = CancellationToken::new();
    let leave = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(renewal.run(stop.clone()));

    let directory = Directory::open(&config.data, config.voters.clone());
    tasks.spawn(directory.clone().keep(config.data.clone(), stop.clone()));
    let mut voter = match config.takes_part() {
        true => Some(Voter::start(&config, &folder, &credentials, &peers, &directory, &stop).await?),
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
        tasks.spawn(liveness::serve(tcp, credentials.clone(), obituaries, stop.clone()));
    }
    let (children, events) = launch_children(&config, &directory, lock, mark).await?;
    tasks.spawn(tell_guard(children.clone(), config.name.clone(), directory.clone(), stop.clone()));
    let (runner, handle, feeds, links) =
        make_runner(&config, &peers, &directory, children.clone(), events, record, &leave, &stop, &tuning);
    let local = LocalChildren::new(config.name.clone(), config.data.clone(), handle);
    let (freshness, upkeep) = control.as_ref().map(|_| Freshness::new()).unzip();
    let api = Arc::new(Api {
        own: config.name.clone(),
        cluster: cluster.clone(),
        control: control.clone(),
        freshness: freshness.clone(),
        peers: peers.clone(),
        directory: directory.clone(),
        children: local.clone(),
    });
    let (incoming, streams) = mpsc::channel(STREAMS_WAITING);
    tasks.spawn(server::serve(bound.endpoint.clone(), cluster, incoming, stop.clone()));
    if let Some((control, upkeep)) = control.clone().zip(upkeep) {
        tasks.spawn(api.clone().keep_fresh(control, upkeep, stop.clone()));
    }
    let doors = Doors {
        api,
        service: voter.as_ref().map(|voter| voter.service.clone()),
        sessions: control.clone().zip(keeper),
    };
    tasks.spawn(dispatch(streams, doors, stop.clone()));
    if let Some(web) = web {
        let told =
            http::Told { node: config.name.clone(), state: control.zip(freshness), children: local, credentials };
        tasks.spawn(http::serve(web, told, stop.clone()));
    }

    let mut told = Told::new(config.exit_with_stdin).context("cannot listen for signals")?;
    let mut ended = until_the_end(&mut told, runner, feeds, voter.as_mut(), &mut tasks, leave).await;
    // In order: children, then what told of them, then Raft.
    match &ended {
        Ok(since) => {
            let since = *since;
            children.shutdown(GUARD_LIMIT).await;
            // Only a vote is needed by others.
            if let Some(voter) = voter.as_mut().filter(|voter| voter.control.votes()) {
                ended = stay(&mut told, voter, since, config.times.lease).await.map(|()| since);
            }
        }
        // While its own voter still runs: it may be the leader.
        Err(error) => report_loss(&config, &directory, error).await,
    }
    stop.cancel();
    drop(links);
    peers.close();
    if let Some(voter) = voter {
        voter.end().await;
    }
    _ = tokio::time::timeout(GUARD_LIMIT, async { while tasks.join_next().await.is_some() {} }).await;
    ended.map(|_| ())
}

fn own_identity(config: &Config) -> Result<(IdentityFiles, Identity)> {
    let files = IdentityFiles::read(&config.identity).context("cannot use the identity of this node")?;
    let identity = Identity::from_files(&files).context("cannot use the identity of this node")?;
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
    Ok((files, identity))
}

/// Takes the lock that the guard of a former node process held, and kills what that one left: both together prove that
/// nothing runs under its sessions.
async fn take_folder(config: &Config) -> Result<(GuardLock, String)> {
    let data = config.data.clone();
    tokio::task::spawn_blocking(move || {
        let lock = GuardLock::acquire(&data, LOCK_LIMIT).context("cannot take the data folder")?;
        let mark = mark(&data).map_err(|error| {
            let advice = format!("cannot mark {}: {}, then start the node again", data.display(), remedy(&error));
            anyhow::Error::new(error).context(advice)
        })?;
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
    options.voters = voters_to_tell(&config.name, directory);
    Children::launch(options).await.context("cannot start the guard")
}

/// Tells the guard of each change of the voters, until `stop`.
async fn tell_guard(children: Children, own: NodeName, directory: Directory, stop: CancellationToken) {
    let mut known = directory.watch();
    loop {
        children.set_voters(voters_to_tell(&own, &directory));
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            changed = known.changed() => if changed.is_err() { return },
        }
    }
}

/// A dead guard cannot tell that nothing is left of what it ran; the node does, where it knows.
async fn report_loss(config: &Config, directory: &Directory, error: &anyhow::Error) {
    let Some(lost) = error.downcast_ref::<RunnerError>() else { return };
    let configuration = Configuration {
        node: config.name.clone(),
        identity: config.identity.as_os_str().as_bytes().to_vec(),
        voters: voters_to_tell(&config.name, directory),
        obituary_limit: OBITUARY_LIMIT,
    };
    for session in lost.known_over().to_vec() {
        let configuration = configuration.clone();
        let told = tokio::task::spawn_blocking(move || {
            deliver(&configuration, session, "its guard was lost", &mut report_death)
        });
        match told.await {
            Ok(Ok(reply)) => tracing::info!(%session, ?reply, "told the cluster that nothing of this session is left"),
            Ok(Err(why)) => tracing::warn!(%session, why, "nobody could be told that nothing of this session is left"),
            Err(error) => tracing::error!(%session, %error, "the obituary was cut short"),
        }
    }
}

/// Tells a voter that everything which ran under a session is gone. Blocking, without a runtime: the guard calls it too.
///
/// # Errors
/// What kept the reply from coming.
pub fn report_death(context: &ObituaryContext<'_>) -> io::Result<ObituaryReply> {
    let identity = Identity::load(context.identity).map_err(io::Error::other)?;
    let voter = context.voter;
    transport::obituary::send(&identity, &voter.address, &voter.name, context.obituary, context.limit)
}

/// A dead node's own control plane is dead too: the others are asked first.
fn voters_to_tell(own: &NodeName, directory: &Directory) -> Vec<VoterAddress> {
    let (own, others): (Vec<_>, Vec<_>) = directory.voters().into_iter().partition(|(name, _)| name == own);
    others.into_iter().chain(own).map(|(name, address)| VoterAddress { name, address }).collect()
}

type NodeRunner = Runner<TokioRuntime, Children>;
type Moment = <TokioRuntime as AsyncRuntime>::Instant;

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
/// Says when it was told.
async fn until_the_end(
    told: &mut Told,
    runner: NodeRunner,
    feeds: Feeds,
    voter: Option<&mut Voter>,
    tasks: &mut JoinSet<()>,
    leave: CancellationToken,
) -> Result<Moment> {
    let mut running = tokio::spawn(runner.run(feeds));
    let control = voter.as_ref().map(|voter| voter.control.clone());
    let mut fatal = std::pin::pin!(raft_ends(voter));
    let mut told_at = None;
    loop {
        tokio::select! {
            biased;
            ended = &mut running => {
                ended.context("the runner panicked")??;
                return Ok(told_at.unwrap_or_else(Moment::now));
            }
            why = &mut fatal => bail!("the control plane cannot go on: {why}"),
            ended = tasks.join_next(), if !tasks.is_empty() => if let Some(Err(panicked)) = ended {
                bail!("a task of this node panicked, which is a bug: {panicked}");
            },
            why = told.order_to_go() => {
                if told_at.is_some() {
                    bail!("told to go twice ({why}): what still runs here is killed");
                }
                told_at = Some(Moment::now());
                tracing::info!(why, "told to go: leadership moves, children stop");
                if let Some(control) = &control {
                    hand_over(control).await;
                }
                leave.cancel();
            }
        }
    }
}

/// Goes on as a voter while other nodes that were told to go need one, and leads them where nobody else can.
async fn stay(told: &mut Told, voter: &mut Voter, since: Moment, lease: Duration) -> Result<()> {
    let control = voter.control.clone();
    tokio::select! {
        biased;
        why = voter.ended() => bail!("the control plane cannot go on: {why}"),
        why = told.order_to_go() => bail!("told to go twice ({why}): other nodes that stop now may lose their majority"),
        () = going::until_not_needed(&control, since, lease) => {}
    }
    // Leadership may have come back from others that go; not where nobody is left to take it.
    let (cluster, stored) = {
        let published = control.published.borrow();
        (published.cluster.clone(), published.membership.clone())
    };
    let is_up = |name: &NodeName| cluster.nodes.get(name).is_some_and(|node| node.current.is_some());
    let is_another_up = members_of(&stored)
        .is_some_and(|members| members.members.iter().any(|m| m.votes && m.name != control.own && is_up(&m.name)));
    if is_another_up {
        hand_over(&control).await;
    }
    Ok(())
}

async fn hand_over(control: &Control<TokioRuntime>) {
    if control.leads() {
        _ = tokio::time::timeout(HAND_OVER_LIMIT, control.transfer(None)).await;
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
    api: Arc<NodeApi>,
    service: Option<NodeService>,
    sessions: Option<(Control<TokioRuntime>, KeeperHandle<TokioRuntime>)>,
}

/// Hands each stream to whoever serves its channel, in a task of its own.
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
        if !may_open(stream.peer.role, stream.channel) {
            tracing::warn!(peer = %stream.peer, channel = ?stream.channel, "refused: its role may not open this channel");
            continue;
        }
        match stream.channel {
            Channel::Client => _ = serving.spawn(doors.api.clone().serve_client(stream)),
            Channel::Peer if doors.api.knows(&stream.peer.name) => {
                _ = serving.spawn(doors.api.clone().serve_peer(stream));
            }
            Channel::Peer => tracing::warn!(peer = %stream.peer, "refused: this node has no session and is no voter"),
            Channel::Session | Channel::Lease | Channel::Mail => {
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

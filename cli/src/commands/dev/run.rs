//! `pando dev` itself: start, wait for a leader, show the walk, watch, stop.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use pando_protocol::ids::NodeName;
use pando_protocol::message::Freshness;
use pando_protocol::view::{NodeRow, NodeState, VoterRow};
use tokio::net::UnixStream;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, interval, sleep};

use super::control::{self, Listener, Request, Response};
use super::grove::{Ended, Grove, node_program};
use super::layout::{self, Layout, NodePlan, Wanted};
use super::walk;
use crate::commands::certs;
use crate::connection::{Connection, unconfirmed};
use crate::context::{Context, Contexts, Environment};
use crate::exit::Failure;
use crate::output;
use crate::waiting::{self, Look};

/// Runs the cluster in `folder` until it is told to stop.
///
/// # Errors
/// It cannot be started, elects no leader in a minute, or leaves a process behind.
pub async fn run(folder: &Path, wanted: Wanted, context_name: &str, environment: &Environment) -> Result<(), Failure> {
    let context_file = environment.context_file()?;
    let mut grove = Grove::prepare(folder, wanted, node_program()?)?;
    let mut stop = StopSignals::listen().map_err(Failure::failed)?;
    let listener = Listener::bind(folder).map_err(Failure::failed)?;
    let context = context_of(&grove)?;
    let served = match grove.start_all() {
        Ok(()) => {
            serve(&mut grove, &listener, &mut stop, &context, || {
                Contexts::remember(&context_file, context_name, context.clone())
            })
            .await
        }
        Err(failure) => Err(failure),
    };
    // From here on nobody is let in, and whatever happened before, no process is left.
    drop(listener);
    output::say("pando: stopping every node, children with their grace (at most 30 s); Ctrl-C again kills them");
    let stopped = grove.stop(stop.next()).await;
    if served.is_ok() && stopped.is_ok() {
        output::say("pando: stopped; nothing runs any more, and the data is kept for the next `pando dev`");
    }
    served.and(stopped)
}

/// From the start of the processes to the signal that ends them.
async fn serve(
    grove: &mut Grove,
    listener: &Listener,
    stop: &mut StopSignals,
    context: &Context,
    remember: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let leader = tokio::select! {
        biased;
        () = stop.next() => return Ok(()),
        ended = grove.next_exit() => return Err(died_at_start(&grove.folder, &ended)),
        leader = leader(context) => leader?,
    };
    remember()?;
    let missing = tokio::select! {
        biased;
        () = stop.next() => return Ok(()),
        missing = missing_within(context, &grove.layout, ALL_UP_LIMIT) => missing?,
    };
    for (name, why) in missing {
        let log = layout::log_file(&grove.folder, &name);
        output::say(format_args!("pando: {name} is missing: it {why}; its log is {}", log.display()));
    }
    output::emit(&walk::text(&grove.folder, &grove.layout, &leader)?)?;
    let mut tick = interval(REAP_EVERY);
    loop {
        tokio::select! {
            biased;
            () = stop.next() => return Ok(()),
            ended = grove.next_exit() => report_death(&ended),
            stream = listener.accept() => hear(grove, stream).await,
            _ = tick.tick() => grove.reap_orphans(),
        }
    }
}

/// Waits until a leader answers.
async fn leader(context: &Context) -> Result<NodeName, Failure> {
    waiting::until("a leader", Instant::now(), LEADER_LIMIT, async || {
        // A client of its own each time: nodes that are just starting answer at another moment than they were dialled.
        let connection = Connection::to(context)?.with_dial_limit(DIAL_LIMIT);
        let read = connection.cluster(Freshness::Linearizable).await;
        connection.close().await;
        let read = read?;
        Ok(match read.value.leader {
            Some(leader) if read.view.confirmed => Look::There(leader),
            _ => Look::Unsure(unconfirmed(&read.view)),
        })
    })
    .await
    .map_err(|failure| {
        failure.context("the nodes run, but elected no leader; their logs are node.log in each node's folder")
    })
}

/// The nodes that still have no part in the cluster after `limit`, and why. The others go on without them.
async fn missing_within(
    context: &Context,
    layout: &Layout,
    limit: Duration,
) -> Result<Vec<(NodeName, String)>, Failure> {
    let begun = Instant::now();
    let connection = Connection::to(context)?;
    let mut last = Vec::new();
    while begun.elapsed() < limit {
        let (nodes, cluster) =
            (connection.nodes(Freshness::Linearizable).await, connection.cluster(Freshness::Linearizable).await);
        // Leadership may move while nodes come up: whoever does not answer now does in a moment.
        if let (Ok(nodes), Ok(cluster)) = (nodes, cluster) {
            last = missing(layout, &nodes.value, &cluster.value.voters);
            if last.is_empty() {
                break;
            }
        }
        sleep(LOOK_EVERY).await;
    }
    connection.close().await;
    Ok(last)
}

fn missing(layout: &Layout, nodes: &[NodeRow], voters: &[VoterRow]) -> Vec<(NodeName, String)> {
    let why = |node: &NodePlan| {
        let is_up = nodes.iter().any(|row| row.name == node.name && row.state == NodeState::Up);
        if !is_up {
            return Some("has no session, and runs no children".to_owned());
        }
        let behind = voters.iter().find(|row| row.name == node.name)?.lag.filter(|lag| *lag > 0)?;
        Some(format!(
            "is {behind} entries behind the leader: it still catches up, or its data is new and it waits to be let in"
        ))
    };
    layout.nodes.iter().filter_map(|node| Some((node.name.clone(), why(node)?))).collect()
}

/// Reads a request, does what it asks, and answers. What is no request is dropped.
async fn hear(grove: &mut Grove, mut stream: UnixStream) {
    if let Some(request) = control::request(&mut stream).await {
        let response = obey(grove, request).await;
        control::answer(&mut stream, &response).await;
    }
}

/// Does what a request asks.
async fn obey(grove: &mut Grove, request: Request) -> Response {
    let Request::Start(name) = request;
    // Killed a moment ago, it is dead, but its death may not have been told here yet.
    grove.note_death_of(&name).await.iter().for_each(report_death);
    if let Some(pid) = grove.pid(&name) {
        return Response::Refused(format!("{name} runs already (pid {pid}): `pando dev kill {name}` kills it"));
    }
    let started = grove.layout.node(&name).cloned().and_then(|node| grove.start(&node));
    match started {
        Ok(()) => {
            let done = format!("started {name} (pid {})", grove.pid(&name).unwrap_or_default());
            output::say(format_args!("pando: {done}"));
            Response::Done(done)
        }
        Err(failure) => Response::Failed(failure.error.map(|error| format!("{error:#}")).unwrap_or_default()),
    }
}

fn report_death(ended: &Ended) {
    let Ended { name, how, last_words } = ended;
    output::say(format_args!("pando: {name} {how}; `pando dev start {name}` starts it again{last_words}"));
}

fn died_at_start(folder: &Path, ended: &Ended) -> Failure {
    let Ended { name, how, last_words } = ended;
    let log = layout::log_file(folder, name);
    Failure::failed(anyhow!("{name} {how} before the cluster had a leader; its log is {}{last_words}", log.display()))
}

/// How to speak to the cluster: any of its nodes, as its admin.
fn context_of(grove: &Grove) -> Result<Context, Failure> {
    let endpoints = grove.layout.nodes.iter().map(NodePlan::address).collect();
    let identity = layout::identity_folder(&grove.folder, &certs::admin_name()?);
    Ok(Context { endpoints, identity, data: Some(grove.folder.clone()) })
}

/// The signals that ask for an end.
struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl StopSignals {
    fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for one of them. Cancel-safe.
    async fn next(&mut self) {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

/// Most time from the start of the nodes to a leader. It takes a second; a machine that is busy with a build needs far more.
const LEADER_LIMIT: Duration = Duration::from_secs(60);
/// Once there is a leader, nodes have this long to take part before they are said to be missing.
const ALL_UP_LIMIT: Duration = Duration::from_secs(2);
/// Between two looks at who takes part.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Short, as nodes that are just starting drop the first packets, and QUIC waits a second before it repeats them.
const DIAL_LIMIT: Duration = Duration::from_millis(600);
/// Dead guards take nothing but a line in the process table.
const REAP_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use pando_protocol::session::NodeRole;

    use super::*;

    #[test]
    fn a_node_without_a_session_and_a_voter_that_does_not_follow_are_missing_and_each_says_why() {
        let names: Vec<NodeName> = ["n1", "n2", "n3"].map(|name| name.parse().unwrap()).into();
        let plan = |name: &NodeName| NodePlan {
            name: name.clone(),
            role: NodeRole::Voter,
            port: 1,
            http: 2,
            zone: "a".into(),
        };
        let layout = Layout { nodes: names.iter().map(plan).collect() };
        let row = |name: &NodeName, state| NodeRow {
            name: name.clone(),
            role: NodeRole::Voter,
            state,
            session: None,
            pid: None,
            children: 0,
            used: 0,
            slots: 1,
            labels: Vec::new(),
            losses: 0,
            address: String::new(),
        };
        let voter = |name: &NodeName, lag| VoterRow { name: name.clone(), raft_id: 1, address: String::new(), lag };
        let up: Vec<_> = names.iter().map(|name| row(name, NodeState::Up)).collect();
        let follow: Vec<_> = names.iter().map(|name| voter(name, Some(0))).collect();
        assert_eq!(missing(&layout, &up, &follow), []);
        let nodes = [up[0].clone(), row(&names[1], NodeState::Down)];
        let found = missing(&layout, &nodes, &[voter(&names[0], Some(120))]);
        let found: Vec<(&str, &str)> = found.iter().map(|(name, why)| (name.as_str(), why.as_str())).collect();
        let [(n1, behind), (n2, down), (n3, unknown)] = found[..] else { panic!("{found:?}") };
        assert_eq!([n1, n2, n3], ["n1", "n2", "n3"]);
        assert!(behind.contains("120 entries behind") && down.contains("no session") && unknown.contains("no session"));
    }
}

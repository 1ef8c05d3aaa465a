//! How a cluster begins, exactly once: the configured voter whose name sorts first initialises it, and only when every
//! configured voter answers that it is empty and never was initialised, and nothing has shown that a cluster exists.
//!
//! ```text
//!   ask every configured voter who it is ──► decide (pure) ──► initialise, or wait and ask again
//!   told to join: wait for `pando cluster members add`
//!   then wait until the first membership is committed
//! ```
//!
//! A configuration may be older than the cluster: voters come and go at run time. So an empty node also heeds what the members
//! send: messages for the id that it lost, and a leader's word that the cluster exists. One that is configured as the only voter
//! has nobody to ask, and listens for a while before it begins.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{Fatal, InitializeError, RaftError};
use openraft::storage::RaftStateMachine;
use openraft::{AsyncRuntime, Instant, Raft};
use pando_protocol::ids::NodeName;
use tracing::info;

use super::fatal::reason;
use super::neighbours::{Neighbours, introduce};
use super::service::Evidence;
use super::types::{RaftId, Types, Voter};
use super::wire::Introduction;

/// The voters by configuration: name and `host:port`. The same on every one of them.
pub type Configured = BTreeMap<NodeName, String>;

/// How this node comes to take part.
#[derive(Debug, Clone)]
pub struct Beginning {
    /// This node.
    pub own: NodeName,
    /// The voters by configuration.
    pub configured: Configured,
    /// Whether it is told to wait until it is added: it never initialises then.
    pub joins: bool,
    /// Where the others reach it, for the word of what it waits for.
    pub advertise: String,
    /// What shows that a cluster exists.
    pub evidence: Evidence,
    /// How long one that is the only configured voter listens before it begins.
    pub listens: Duration,
}

/// Why this node takes no part.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError<R: AsyncRuntime> {
    /// It is not among the configured voters.
    #[error("node {0} is not among the configured voters {1:?}: start it with --join, or as an agent")]
    NotAVoter(NodeName, Vec<String>),
    /// Raft has stopped.
    #[error("{}", reason(.0))]
    Stopped(Fatal<Types<R>>),
    /// Raft refused to initialise.
    #[error("the cluster could not be initialised")]
    Refused(#[source] Box<InitializeError<Types<R>>>),
}

// By hand, because the reason is in the text already and would be told twice as a source.
impl<R: AsyncRuntime> From<Fatal<Types<R>>> for BootstrapError<R> {
    fn from(fatal: Fatal<Types<R>>) -> Self {
        Self::Stopped(fatal)
    }
}

/// What to do, given what the voters said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Begin the cluster with these voters.
    Initialise(BTreeMap<RaftId, Voter>),
    /// Ask again later; the reason is for people.
    Wait(String),
}

/// What a voter said: who it is, or why that is not known.
pub type Said = Result<Introduction, String>;

/// The rule. `said` holds one entry for each configured voter, `own` included; `exists` says that something showed that a
/// cluster exists.
pub fn decide(own: &NodeName, configured: &Configured, said: &BTreeMap<NodeName, Said>, exists: bool) -> Decision {
    if exists {
        let why = "the cluster exists, and this node has none of its data: waiting for the leader to replace or add it";
        return Decision::Wait(why.to_owned());
    }
    let mut members = BTreeMap::new();
    for (name, address) in configured {
        let introduction = match said.get(name) {
            Some(Ok(introduction)) => introduction,
            Some(Err(why)) => return Decision::Wait(format!("voter {name} does not answer: {why}")),
            None => return Decision::Wait(format!("voter {name} was not asked yet")),
        };
        if introduction.name != *name {
            return Decision::Wait(format!("at {address} voter {name} is expected, {} answers", introduction.name));
        }
        if introduction.initialised {
            return Decision::Wait(format!("the cluster exists, voter {name} knows it: waiting for its leader"));
        }
        let voter = Voter { name: Some(name.clone()), address: address.clone() };
        if members.insert(introduction.raft_id, voter).is_some() {
            let id = introduction.raft_id;
            return Decision::Wait(format!("two voters have the Raft id {id}: was a data folder copied?"));
        }
    }
    match configured.keys().next() {
        Some(first) if first == own => Decision::Initialise(members),
        Some(first) => Decision::Wait(format!("voter {first} will initialise the cluster")),
        None => Decision::Wait("no voters are configured".to_owned()),
    }
}

/// Takes part in beginning the cluster, and returns when this node knows a committed membership: at once where it was
/// initialised before. Drop it to give up.
///
/// # Errors
/// [`BootstrapError`].
pub async fn bootstrap<R: AsyncRuntime, SM: RaftStateMachine<Types<R>>>(
    raft: &Raft<Types<R>, SM>,
    neighbours: &impl Neighbours,
    beginning: &Beginning,
) -> Result<(), BootstrapError<R>> {
    let Beginning { own, configured, joins, advertise, evidence, listens } = beginning;
    if *joins {
        if !raft.is_initialized().await? {
            info!("waits to be added to the voters: `pando cluster members add {own} {advertise}`");
        }
        return until_committed(raft).await;
    }
    if !configured.contains_key(own) {
        let names = configured.keys().map(ToString::to_string).collect();
        return Err(BootstrapError::NotAVoter(own.clone(), names));
    }
    let mut told = String::new();
    let listens_until = (configured.len() == 1).then(|| R::Instant::now() + *listens);
    while !raft.is_initialized().await? {
        // What it knows of the rules begins no cluster.
        let introduction = Introduction { name: own.clone(), raft_id: *raft.node_id(), initialised: false, rules: 0 };
        let said = ask(neighbours, configured, introduction).await;
        match decide(own, configured, &said, evidence.is_there()) {
            Decision::Initialise(_) if listens_until.is_some_and(|until| R::Instant::now() < until) => {
                R::sleep(PAUSE).await;
            }
            Decision::Initialise(members) => initialise(raft, members).await?,
            Decision::Wait(why) => {
                if why != told {
                    info!(why, "the cluster is not there yet");
                    told = why;
                }
                R::sleep(PAUSE).await;
            }
        }
    }
    until_committed(raft).await
}

async fn ask(neighbours: &impl Neighbours, configured: &Configured, own: Introduction) -> BTreeMap<NodeName, Said> {
    let asked = configured.iter().filter(|(name, _)| **name != own.name).map(|(name, address)| {
        let (neighbours, name, address) = (neighbours.clone(), name.clone(), address.clone());
        async move {
            let said = introduce(&neighbours, &name, &address).await.map_err(|error| error.to_string());
            (name, said)
        }
    });
    let mut said: BTreeMap<NodeName, Said> = join_all(asked).await.into_iter().collect();
    said.insert(own.name.clone(), Ok(own));
    said
}

async fn initialise<R: AsyncRuntime, SM: RaftStateMachine<Types<R>>>(
    raft: &Raft<Types<R>, SM>,
    members: BTreeMap<RaftId, Voter>,
) -> Result<(), BootstrapError<R>> {
    info!(voters = members.len(), "initialising the cluster");
    match raft.initialize(members).await {
        // Not allowed: it was initialised meanwhile, by the leader's appends.
        Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
        Err(RaftError::APIError(error)) => Err(BootstrapError::Refused(Box::new(error))),
        Err(RaftError::Fatal(fatal)) => Err(fatal.into()),
    }
}

/// A membership that is not committed yet must not be changed, and may still be lost.
async fn until_committed<R: AsyncRuntime, SM: RaftStateMachine<Types<R>>>(
    raft: &Raft<Types<R>, SM>,
) -> Result<(), BootstrapError<R>> {
    let mut metrics = raft.metrics();
    loop {
        {
            let now = metrics.borrow_watched();
            now.running_state.clone()?;
            if now.committed_membership_config.log_id().is_some() {
                return Ok(());
            }
        }
        if metrics.changed().await.is_err() {
            return Err(Fatal::Stopped.into());
        }
    }
}

/// Between two rounds of questions.
const PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use openraft_rt_sim::SimRuntime;

    use super::super::group::{Group, LIMIT, Timing};
    use super::super::memory;
    use super::super::wire::{Answer, Request};
    use super::*;

    fn configured(names: &[&str]) -> Configured {
        names.iter().map(|name| (name.parse().unwrap(), format!("{name}:7070"))).collect()
    }

    fn empty(name: &str, raft_id: RaftId) -> (NodeName, Said) {
        let name: NodeName = name.parse().unwrap();
        (name.clone(), Ok(Introduction { name, raft_id, initialised: false, rules: 1 }))
    }

    fn waits(own: &str, said: Vec<(NodeName, Said)>, because: &str) {
        let said = said.into_iter().collect();
        match decide(&own.parse().unwrap(), &configured(&["n1", "n2", "n3"]), &said, false) {
            Decision::Wait(why) => assert!(why.contains(because), "{why}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_the_first_by_name_initialises_and_with_everybody() {
        let all = || vec![empty("n1", 30), empty("n2", 10), empty("n3", 20)];
        waits("n2", all(), "n1 will initialise");
        let said = all().into_iter().collect();
        let decision = decide(&"n1".parse().unwrap(), &configured(&["n1", "n2", "n3"]), &said, false);
        let Decision::Initialise(members) = decision else { panic!("{decision:?}") };
        let named: Vec<_> = members.iter().map(|(id, voter)| (*id, voter.address.as_str())).collect();
        assert_eq!(named, [(10, "n2:7070"), (20, "n3:7070"), (30, "n1:7070")]);
    }

    #[test]
    fn nobody_initialises_while_one_voter_is_silent_or_knows_a_cluster() {
        let silent = ("n3".parse().unwrap(), Err("no answer".to_owned()));
        waits("n1", vec![empty("n1", 1), empty("n2", 2), silent], "n3 does not answer");
        waits("n1", vec![empty("n1", 1), empty("n2", 2)], "n3 was not asked");
        let known = Introduction { name: "n3".parse().unwrap(), raft_id: 3, initialised: true, rules: 1 };
        waits("n1", vec![empty("n1", 1), empty("n2", 2), ("n3".parse().unwrap(), Ok(known))], "the cluster exists");
        waits("n1", vec![empty("n1", 1), empty("n2", 1), empty("n3", 3)], "two voters have the Raft id 1");
    }

    /// Nodes that say what the test has them say; the others are silent.
    #[derive(Clone, Default)]
    struct Played(Arc<Mutex<BTreeMap<NodeName, Introduction>>>);

    impl Neighbours for Played {
        async fn question(&self, name: &NodeName, _: &str, request: Request) -> io::Result<Answer> {
            assert_eq!(request, Request::WhoAreYou);
            let said = self.0.lock().unwrap().get(name).cloned();
            said.map(Answer::IAm).ok_or_else(|| io::ErrorKind::TimedOut.into())
        }
    }

    #[test]
    fn the_first_by_name_begins_with_everybody_as_soon_as_the_last_one_answers() {
        SimRuntime::with_seed(0).block_on(async {
            let raft = memory::alone::<SimRuntime>(1).await;
            let (played, own) = (Played::default(), "n1".parse().unwrap());
            let beginning = Beginning {
                own,
                configured: configured(&["n1", "n2"]),
                joins: false,
                advertise: "n1:7070".into(),
                evidence: Evidence::default(),
                listens: Duration::ZERO,
            };
            // Nobody is there to commit what it begins with, so that it goes on until it is dropped.
            let begins = |time| SimRuntime::timeout(time, bootstrap(&raft, &played, &beginning));
            assert!(begins(Duration::from_secs(600)).await.is_err());
            assert!(!raft.is_initialized().await.unwrap(), "n2 is silent");
            let (name, said) = empty("n2", 2);
            played.0.lock().unwrap().insert(name, said.unwrap());
            assert!(begins(PAUSE).await.is_err());
            let voters: Vec<_> =
                raft.server_metrics().borrow_watched().membership_config.membership().voter_ids().collect();
            assert_eq!(voters, [1, 2]);
            raft.shutdown().await.unwrap();
        });
    }

    #[test]
    fn an_only_voter_listens_before_it_begins_and_begins_nothing_where_a_cluster_shows() {
        SimRuntime::with_seed(0).block_on(async {
            let listens = Duration::from_secs(1);
            let begin = async |evidence: Evidence| {
                let raft = memory::alone::<SimRuntime>(1).await;
                let beginning = Beginning {
                    own: "n1".parse().unwrap(),
                    configured: configured(&["n1"]),
                    joins: false,
                    advertise: "n1:7070".into(),
                    evidence,
                    listens,
                };
                let begun = <SimRuntime as AsyncRuntime>::Instant::now();
                let limit = Duration::from_secs(600);
                let done = SimRuntime::timeout(limit, bootstrap(&raft, &Played::default(), &beginning)).await;
                raft.shutdown().await.unwrap();
                done.ok().map(|begun_with| {
                    begun_with.unwrap();
                    begun.elapsed()
                })
            };
            let took = begin(Evidence::default()).await.expect("it begins");
            assert!((listens..listens + PAUSE).contains(&took), "{took:?}");
            let shown = Evidence::default();
            shown.note();
            assert_eq!(begin(shown).await, None);
        });
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn one_three_and_five_voters_begin_as_one_cluster() {
        for voters in [1, 3, 5] {
            let group = Group::start(voters, Timing::lan()).await;
            let leader = group.leader().await;
            group.write(leader).await;
            let all = || Some(group.memberships()).filter(|known| known.len() == voters);
            let memberships = group.eventually("everybody to know the membership", LIMIT, all).await;
            assert!(memberships.windows(2).all(|pair| pair[0] == pair[1]), "{memberships:?}");
            group.stop().await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_cluster_does_not_begin_without_one_of_its_voters() {
        let mut group = Group::prepare(3, Timing::lan()).await;
        group.begin(0).await;
        group.begin(1).await;
        let early = tokio::time::timeout(Duration::from_millis(700), group.leader()).await;
        assert!(early.is_err(), "{early:?} leads without the third");
        assert!(group.memberships().is_empty());
        group.begin(2).await;
        group.leader().await;
        group.stop().await;
    }
}

//! Hundreds of agents come and go while voters change: sessions that a test plays, on a cluster of real nodes.
//!
//! Each agent is a certificate, a socket and what a runner says; it runs no processes. It knows one voter to begin with and
//! learns the others from the leader, as real ones do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pando_protocol::client::certs::Authority;
use pando_protocol::client::frames;
use pando_protocol::client::identity::{Identity, Role};
use pando_protocol::client::quic::{self, Tuning};
use pando_protocol::ids::{NodeName, SessionId};
use pando_protocol::message::Channel;
use pando_protocol::session::{LeaderWord, NodeRole, Observation, RunnerWord, SessionRequest};
use pando_tests::cluster::{SOON, name};
use pando_tests::wait::wait_until;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};

use crate::members::{PATIENT, done, one_voter, pando};

/// Agents that stay, and those that come for a while.
const STAYING: usize = 140;
const PASSING: usize = 80;
/// They come within so long.
const COMING: Duration = Duration::from_secs(3);
/// Between two beats of an agent, of which many fit into a lease.
const BEAT: Duration = Duration::from_secs(1);

/// What all agents together saw.
#[derive(Debug, Default)]
struct Seen {
    granted: AtomicUsize,
    over: AtomicUsize,
}

struct Agent {
    name: NodeName,
    identity: Identity,
    seen: Arc<Seen>,
    voters: watch::Sender<BTreeMap<NodeName, String>>,
}

impl Agent {
    /// Beats until `stop`, then says that it leaves.
    async fn run(self, mut stop: watch::Receiver<bool>) {
        let socket = Arc::new(quic::bind_dialler(&self.identity, &Tuning::lan()).expect("a socket"));
        let (say, _) = broadcast::channel::<RunnerWord>(64);
        let (hear, mut heard) = mpsc::channel::<LeaderWord>(64);
        let mut voters = self.voters.subscribe();
        let mut links: BTreeMap<NodeName, tokio::task::AbortHandle> = BTreeMap::new();
        let mut tasks = JoinSet::new();
        let mut beats = interval(BEAT);
        let mut session: Option<SessionId> = None;
        let (mut number, mut observed) = (0, 0);
        loop {
            let known = voters.borrow_and_update().clone();
            links.retain(|voter, link| {
                known.contains_key(voter) || {
                    link.abort();
                    false
                }
            });
            for (voter, address) in
                known.into_iter().filter(|(voter, _)| !links.contains_key(voter)).collect::<Vec<_>>()
            {
                let (socket, identity, words, hear) =
                    (socket.clone(), self.identity.clone(), say.clone(), hear.clone());
                let to = voter.clone();
                let link = async move {
                    // As real ones do: not all at once, and less often after each try in vain.
                    let mut within = COMING;
                    loop {
                        let share: f64 = rand::random();
                        sleep(within.mul_f64(share)).await;
                        _ = link(&socket, &identity, &to, &address, words.subscribe(), &hear).await;
                        within = (within * 2).min(COMING * 8);
                    }
                };
                links.insert(voter, tasks.spawn(link));
            }
            tokio::select! {
                _ = beats.tick() => match session {
                    None => _ = say.send(RunnerWord::Ask(self.request())),
                    Some(session) if *stop.borrow() => {
                        for (number, observation) in [(1, Observation::Leaving), (2, Observation::Left)] {
                            if number > observed {
                                _ = say.send(RunnerWord::Observe { session, number, observation });
                            }
                        }
                    }
                    Some(session) => {
                        number += 1;
                        let answered_age = Duration::ZERO;
                        _ = say.send(RunnerWord::Beat { session, number, answered: number - 1, answered_age });
                    }
                },
                Some(word) = heard.recv() => match word {
                    LeaderWord::Granted { session: id, .. } if session.is_none() => {
                        self.seen.granted.fetch_add(1, Ordering::SeqCst);
                        session = Some(id);
                    }
                    LeaderWord::Over { .. } if !*stop.borrow() => _ = self.seen.over.fetch_add(1, Ordering::SeqCst),
                    LeaderWord::Over { .. } => return,
                    LeaderWord::Applied { through, .. } => {
                        observed = through;
                        if through >= 2 {
                            return;
                        }
                    }
                    LeaderWord::Members(members) => {
                        let members = members.members.into_iter();
                        self.voters.send_replace(members.map(|member| (member.name, member.address)).collect());
                    }
                    _ => {}
                },
                _ = voters.changed() => {}
                _ = stop.changed() => {}
            }
        }
    }

    fn request(&self) -> SessionRequest {
        SessionRequest {
            node: self.name.clone(),
            nonce: 7,
            address: "127.0.0.1:9".into(),
            role: NodeRole::Agent,
            labels: vec![],
            slots: 1,
            pid: 1,
            proven_over: vec![],
        }
    }
}

/// The streams to one voter, until one of them ends.
async fn link(
    socket: &quic::Bound,
    identity: &Identity,
    voter: &NodeName,
    address: &str,
    mut words: broadcast::Receiver<RunnerWord>,
    hear: &mpsc::Sender<LeaderWord>,
) -> Result<(), String> {
    let dialled = quic::dial(&socket.endpoint, address, &identity.server_name(voter), Duration::from_secs(8)).await;
    let connection = dialled.map_err(|error| error.to_string())?;
    let open = async |channel| frames::open(&connection, channel).await.map_err(|error| error.to_string());
    let (mut session, mut told) = open(Channel::Session).await?;
    let (mut lease, mut answered) = open(Channel::Lease).await?;
    loop {
        let heard = tokio::select! {
            word = words.recv() => {
                if let Ok(word) = word {
                    let stream = if matches!(word, RunnerWord::Beat { .. }) { &mut lease } else { &mut session };
                    stream.send(&word).await.map_err(|error| error.to_string())?;
                }
                continue;
            }
            word = told.next::<LeaderWord>() => word,
            word = answered.next::<LeaderWord>() => word,
        };
        match heard.map_err(|error| error.to_string())? {
            Some(word) => _ = hear.send(word).await,
            None => return Ok(()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_agents_keep_their_sessions_while_voters_and_other_agents_come_and_go() {
    let mut cluster = one_voter(0).await;
    let authority = Authority::create_or_load(&cluster.folder().join("ca"), "test").expect("an authority");
    let seed = BTreeMap::from([(name("n1"), cluster.address("n1").to_owned())]);
    let seen = Arc::new(Seen::default());
    let mut known = Vec::new();
    let mut agent = |text: String| {
        let folder = cluster.folder().join("agents").join(&text);
        authority.issue(&name(&text), Role::Node, &folder).expect("a certificate");
        let voters = watch::channel(seed.clone()).0;
        known.push(voters.subscribe());
        let identity = Identity::load(&folder).expect("an identity");
        Agent { name: name(&text), identity, seen: seen.clone(), voters }
    };
    let (stay, staying) = watch::channel(false);
    let (pass, passing) = watch::channel(false);
    let mut agents = JoinSet::new();
    for number in 0..STAYING {
        agents.spawn(agent(format!("s{number}")).run(staying.clone()));
    }
    let granted = async || seen.granted.load(Ordering::SeqCst);
    wait_until("sessions for all", SOON, granted, |count| *count == STAYING).await;

    for number in 0..PASSING {
        agents.spawn(agent(format!("p{number}")).run(passing.clone()));
    }
    wait_until("sessions for those that pass", SOON, granted, |count| *count == STAYING + PASSING).await;
    for node in ["n2", "n3"] {
        cluster.add_agent(node, &format!("n1={}", cluster.address("n1")), &["--join", PATIENT[0], PATIENT[1]]);
        cluster.all_up().await;
        // A machine that is busy with all their handshakes reaches a new node only after a while.
        let add = format!("cluster members add {node} {}", cluster.address(node));
        wait_until("a learner", SOON, async || pando(&cluster, &add), |(code, _)| *code == 0).await;
        done(&cluster, &format!("cluster members promote {node}"));
    }
    pass.send_replace(true);
    done(&cluster, "cluster members remove n1");
    for _ in 0..PASSING {
        tokio::time::timeout(SOON, agents.join_next())
            .await
            .expect("an agent does not leave")
            .expect("an agent")
            .unwrap();
    }
    // Everybody who is there beats the new voters alone, and has the session that it began with.
    let new: Vec<NodeName> = vec![name("n2"), name("n3")];
    let follow = async || {
        let knows = |voters: &&watch::Receiver<BTreeMap<NodeName, String>>| voters.borrow().keys().eq(new.iter());
        known[..STAYING].iter().filter(knows).count()
    };
    wait_until("all to know the voters", SOON, follow, |count| *count == STAYING).await;
    let rows = cluster.node_rows().await;
    let up = |kind: char| {
        let rows = rows.iter().filter(|row| row.name.as_str().starts_with(kind));
        rows.filter(|row| row.session.is_some()).count()
    };
    assert_eq!((up('s'), up('p')), (STAYING, 0));
    assert!(rows.iter().all(|row| row.losses == 0), "somebody was lost: {rows:#?}");
    assert_eq!(seen.over.load(Ordering::SeqCst), 0);
    stay.send_replace(true);
    while let Some(left) = tokio::time::timeout(SOON, agents.join_next()).await.expect("an agent does not leave") {
        left.expect("an agent");
    }
}

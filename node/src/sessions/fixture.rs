//! A control plane that the test plays: one voter's rules on virtual time, without Raft.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use openraft::{AsyncRuntime, Instant};
use openraft_rt_sim::{SimInstant, SimRuntime};
use pando_protocol::ids::{NodeName, SessionId};
use pando_protocol::rejection::Rejection;
use pando_protocol::session::{NodeRole, Observation, SessionRequest};
use pando_supervision::{Cluster, Command, Done, Stamp, apply};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{Keeper, KeeperHandle};
use crate::control::{Control, EventFeed, Leadership, MailLane, NotProposed, OnDisk, Proposal, Published};
use crate::instruments::Instruments;

pub const LEASE: Duration = Duration::from_secs(2);

/// A command, and the only leadership in which it may be written.
type Proposed = (Option<u64>, Command);

/// What the test switches while the plane runs.
#[derive(Debug)]
pub struct Plane {
    pub control: Control<SimRuntime>,
    pub keeper: KeeperHandle<SimRuntime>,
    /// Whether commands are committed; else their outcome is unknown.
    pub commits: Arc<AtomicBool>,
    /// Whether a majority answers.
    pub proves: Arc<AtomicBool>,
    /// Whether the rules panic on exits.
    pub chokes: Arc<AtomicBool>,
    /// Whether a command that was proposed stays without an outcome, and all behind it.
    pub stalls: watch::Sender<bool>,
    /// All that was proposed, in order.
    pub proposed: Arc<Mutex<Vec<Proposed>>>,
    led: watch::Sender<Leadership<SimRuntime>>,
}

impl Plane {
    /// A plane that leads, with its keeper. Only inside a simulated runtime.
    pub fn start() -> Self {
        let began = SimInstant::now();
        let (proposals, mut waiting) = mpsc::channel::<Proposal>(64);
        let (proofs, mut asked) = mpsc::channel::<crate::control::ProofRequest>(64);
        let (questions, _) = mpsc::channel(1);
        let (changes, _) = mpsc::channel(1);
        let first = Published {
            cluster: Cluster::default(),
            applied: None,
            membership: Arc::default(),
            at: SimInstant::now(),
            panics: 0,
        };
        let (publish, published) = watch::channel(first);
        let leads = Leadership { leader: None, term: 1, leads: true, round: 1, votes: true, without_since: None };
        let (led, leadership) = watch::channel(leads);
        let own = "n9".parse().unwrap();
        let events = EventFeed::default();
        let (mail, mut mailed) = MailLane::new();
        let (instruments, (_, kept)) = (Instruments::default(), watch::channel(OnDisk::default()));
        let control = Control {
            own,
            proposals,
            mail,
            proofs,
            questions,
            changes,
            published,
            leadership,
            events,
            instruments,
            kept,
        };
        let (_, obituaries) = mpsc::channel(1);
        let (keeper, handle) = Keeper::new(control.clone(), LEASE, obituaries, CancellationToken::new());
        drop(SimRuntime::spawn(keeper.run()));
        let plane = Self {
            control,
            keeper: handle,
            commits: Arc::new(AtomicBool::new(true)),
            proves: Arc::new(AtomicBool::new(true)),
            chokes: Arc::new(AtomicBool::new(false)),
            stalls: watch::Sender::new(false),
            proposed: Arc::default(),
            led,
        };
        let (commits, chokes, proposed) = (plane.commits.clone(), plane.chokes.clone(), plane.proposed.clone());
        let mut stalls = plane.stalls.subscribe();
        drop(SimRuntime::spawn(async move {
            loop {
                let next = tokio::select! {
                    biased;
                    next = waiting.recv() => next,
                    next = mailed.recv() => next,
                };
                let Some(Proposal { command, reply, round, room: _ }) = next else { return };
                proposed.lock().unwrap().push((round, command.clone()));
                if stalls.wait_for(|stalls| !stalls).await.is_err() {
                    return;
                }
                let is_exit = matches!(&command, Command::Observe { observation: Observation::Exited { .. }, .. });
                let outcome = if !commits.load(Ordering::Relaxed) {
                    Err(NotProposed::Unknown)
                } else if is_exit && chokes.load(Ordering::Relaxed) {
                    Ok(Err(Rejection::Internal("a rule panicked".into())))
                } else {
                    let mut cluster = publish.borrow().cluster.clone();
                    let stamp = Stamp { at: began.elapsed(), wall: 0 };
                    let outcome = apply(&mut cluster, stamp, command).outcome;
                    publish.send_modify(|published| published.cluster = cluster);
                    Ok(outcome)
                };
                _ = reply.send(outcome);
            }
        }));
        let proves = plane.proves.clone();
        drop(SimRuntime::spawn(async move {
            while let Some(question) = asked.recv().await {
                SimRuntime::sleep(Duration::from_millis(20)).await;
                _ = question.reply.send(proves.load(Ordering::Relaxed));
            }
        }));
        plane
    }

    /// Has a session granted without anybody hearing of it.
    pub async fn grant(&self, nonce: u64) -> SessionId {
        match self.control.propose(Command::GrantSession(request(nonce))).await {
            Ok(Ok(Done::Granted(session))) => session,
            other => panic!("{other:?}"),
        }
    }

    pub fn stands(&self, session: SessionId) -> bool {
        self.control.cluster().session(&node(), session).is_some()
    }

    /// How often the end of a session was proposed.
    pub fn ends_proposed(&self) -> usize {
        let proposed = self.proposed.lock().unwrap();
        proposed.iter().filter(|(_, command)| matches!(command, Command::EndSession { .. })).count()
    }

    /// The numbers of the observations that were proposed.
    pub fn observations_proposed(&self) -> Vec<u64> {
        let proposed = self.proposed.lock().unwrap();
        let number = |(_, command): &Proposed| match command {
            Command::Observe { number, .. } => Some(*number),
            _ => None,
        };
        proposed.iter().filter_map(number).collect()
    }

    /// The nonces of the sessions that were proposed.
    pub fn grants_proposed(&self) -> Vec<u64> {
        self.grants().into_iter().map(|(_, nonce)| nonce).collect()
    }

    /// The leaderships for which sessions were proposed.
    pub fn rounds_of_grants(&self) -> Vec<Option<u64>> {
        self.grants().into_iter().map(|(round, _)| round).collect()
    }

    fn grants(&self) -> Vec<(Option<u64>, u64)> {
        let proposed = self.proposed.lock().unwrap();
        let nonce = |(round, command): &Proposed| match command {
            Command::GrantSession(request) => Some((*round, request.nonce)),
            _ => None,
        };
        proposed.iter().filter_map(nonce).collect()
    }

    /// Another leadership of the same node begins.
    pub fn lead_again(&self) {
        self.led.send_modify(|led| led.round += 1);
    }
}

pub fn node() -> NodeName {
    "n1".parse().unwrap()
}

pub fn request(nonce: u64) -> SessionRequest {
    SessionRequest {
        node: node(),
        nonce,
        address: "n1:1".into(),
        role: NodeRole::Agent,
        labels: vec![],
        slots: 8,
        pid: 1,
        proven_over: vec![],
    }
}

/// Runs a test on virtual time.
pub fn simulated(test: impl Future<Output = ()>) {
    SimRuntime::with_seed(0).block_on(test);
}

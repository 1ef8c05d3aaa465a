//! Random sequences of what clients, runners, machines and time do to a cluster. A seed tells the whole sequence.

use std::collections::BTreeMap;
use std::time::Duration;

use pando_protocol::cause::ExitHow;
use pando_protocol::ids::{Incarnation, NodeName, Path, SessionId};
use pando_protocol::message::{Change, Write};
use pando_protocol::session::{Desired, Observation, SessionRequest};
use pando_protocol::spec::{Signal, TreeSpec};
use pando_supervision::cluster::Supervisor;
use pando_supervision::desired::{Local, desired};
use pando_supervision::{Command, EndProof, next_deadline};

use super::dice::Dice;
use super::healing::heal;
use super::runner::Runner;
use super::sim::Sim;
use super::specs::{ms, path};
use super::trees::{LABELS, draw, draw_wide, vary};

/// One sequence under way.
#[derive(Debug)]
pub struct Generator {
    /// The cluster and its machines.
    pub sim: Sim,
    dice: Dice,
    is_wide: bool,
    /// Every run ends because its reaper is killed: the endings that nobody pays for, again and again.
    reapers_die: bool,
    /// Nodes are drained all the time and have no room to spare: moves wait, and what crashes goes back.
    is_tight: bool,
    specs: BTreeMap<&'static str, TreeSpec>,
    writes: Vec<Write>,
    requests: Vec<SessionRequest>,
    ends: Vec<Command>,
    heard: BTreeMap<NodeName, Desired>,
}

/// Runs one sequence of at least `commands` commands, then heals.
///
/// # Errors
/// What does not hold, with the evidence.
pub fn run(seed: u64, commands: usize) -> Result<Sim, String> {
    let mut generator = Generator::new(seed);
    let mut result = Ok(());
    while result.is_ok() && generator.sim.log.len() < commands {
        result = generator.act();
    }
    let result = result.and_then(|()| heal(&mut generator.sim));
    match result {
        Ok(()) => Ok(generator.sim),
        Err(broken) => Err(format!("{broken}\n\n{}", story(&generator.sim))),
    }
}

/// The newest commands and events, for whoever looks into a failure.
fn story(sim: &Sim) -> String {
    let commands = sim.log.iter().rev().take(3).map(|(stamp, command)| format!("{:?} {command:?}", stamp.at));
    let events = sim.events.iter().rev().take(25).map(|event| format!("{:?} {}", event.at, event.text));
    let lines = |lines: Vec<String>| lines.into_iter().rev().collect::<Vec<_>>().join("\n");
    format!("{}\n{}", lines(events.collect()), lines(commands.collect()))
}

impl Generator {
    /// The beginning of the sequence of this seed.
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let is_wide = dice.once_in(25);
        let reapers_die = dice.once_in(25);
        let is_tight = seed % 5 == 4; // No die is thrown for it, so that other seeds tell what they told before.
        let mut sim = Sim::default();
        for n in 1..=2 + dice.below(4) {
            let slots =
                if is_wide { 200 } else { 2 + u32::try_from(dice.below(if is_tight { 3 } else { 6 })).unwrap_or(0) };
            let labels: Vec<&str> = LABELS.into_iter().filter(|_| dice.once_in(2)).collect();
            let runner = Runner::new(&format!("n{n}"), slots, &labels);
            sim.runners.insert(runner.name.clone(), runner);
        }
        let (specs, heard) = (BTreeMap::new(), BTreeMap::new());
        Self {
            sim,
            dice,
            is_wide,
            reapers_die,
            is_tight,
            specs,
            writes: Vec::new(),
            requests: Vec::new(),
            ends: Vec::new(),
            heard,
        }
    }

    /// Does one thing.
    ///
    /// # Errors
    /// What does not hold.
    pub fn act(&mut self) -> Result<(), String> {
        if self.sim.log.is_empty() {
            return self.join_or_renew();
        }
        match self.dice.below(100) {
            0..12 => self.look(),
            12..34 => self.tell(),
            34..52 => self.start_one(),
            52..60 => self.ready_one(),
            60..68 if self.is_tight && self.dice.once_in(3) => self.drain_one(),
            60..68 => self.end_one(),
            68..74 => self.stop_one(),
            74..83 => self.pass_time(),
            83..91 => self.write(),
            91..95 => self.repeat(),
            95..97 => self.join_or_renew(),
            97 | 98 => self.lose_one(),
            _ => self.say_nonsense(),
        }
    }

    fn node(&mut self) -> NodeName {
        let nodes: Vec<NodeName> = self.sim.runners.keys().cloned().collect();
        self.dice.pick(&nodes).cloned().expect("there are nodes")
    }

    /// A runner of a live session with a run in this state; any of them.
    fn run_in(&mut self, state: Local) -> Option<(NodeName, Incarnation)> {
        let all: Vec<_> = self.sim.runners.values().filter(|runner| runner.session.is_some()).collect();
        let runs: Vec<_> = all
            .iter()
            .flat_map(|runner| runner.in_state(state).into_iter().map(|run| (runner.name.clone(), run)))
            .collect();
        self.dice.pick(&runs).cloned()
    }

    /// A runner hears what should run, and acts on it, or on what it heard before when that is all it knows.
    fn look(&mut self) -> Result<(), String> {
        let node = self.node();
        let Some(session) = self.sim.runners[&node].session else { return Ok(()) };
        let newest = desired(&self.sim.cluster, &node, session, self.sim.log.len() as u64);
        let known = self.heard.remove(&node).filter(|known| known.session == session);
        let now = self.sim.now;
        match (known, newest) {
            (_, None) => self.sim.act(&node),
            // Late: it acts on what was so a while ago, and hears the rest another time.
            (Some(known), Some(newest)) => {
                self.heard.insert(node.clone(), newest);
                self.sim.runners.get_mut(&node).map_or(Ok(()), |runner| runner.act(&known, now))
            }
            (None, Some(newest)) => {
                if self.dice.once_in(4) {
                    self.heard.insert(node.clone(), newest);
                    return Ok(());
                }
                self.sim.runners.get_mut(&node).map_or(Ok(()), |runner| runner.act(&newest, now))
            }
        }
    }

    fn tell(&mut self) -> Result<(), String> {
        for _ in 0..4 {
            let node = self.node();
            if self.sim.deliver_one(&node)? {
                return Ok(());
            }
        }
        Ok(())
    }

    fn start_one(&mut self) -> Result<(), String> {
        let Some((node, incarnation)) = self.run_in(Local::Waiting) else { return self.look() };
        let now = self.sim.now;
        let fails = self.dice.once_in(8);
        let Some(runner) = self.sim.runners.get_mut(&node) else { return Ok(()) };
        if runner.runs[&incarnation].due > now {
            return Ok(());
        }
        if fails {
            let why = ["no such program", "permission denied"][self.dice.below(2)].to_owned();
            runner.exit(incarnation, ExitHow::StartFailed(why), Some(""), now, &mut self.sim.copies);
            return Ok(());
        }
        runner.start(incarnation, now, &mut self.sim.copies)
    }

    fn ready_one(&mut self) -> Result<(), String> {
        let Some((node, incarnation)) = self.run_in(Local::Running) else { return self.look() };
        let now = self.sim.now;
        if let Some(runner) = self.sim.runners.get_mut(&node)
            && runner.runs[&incarnation].ready.is_none()
        {
            runner.ready(incarnation, now);
        }
        Ok(())
    }

    fn end_one(&mut self) -> Result<(), String> {
        let beside = match self.dice.below(3) {
            0 => self.run_beside_a_restart(),
            1 if self.is_tight => self.run_on_a_drained_node(),
            _ => None,
        };
        let Some((node, incarnation)) = beside.or_else(|| self.run_in(Local::Running)) else { return self.look() };
        let how = match self.dice.below(12) {
            _ if self.reapers_die => ExitHow::ReaperLost,
            0 | 1 => ExitHow::Code(0),
            2 => ExitHow::Code(3),
            3 => ExitHow::Code(7),
            4 => ExitHow::Signal(Signal(11)),
            5 => ExitHow::Signal(Signal::KILL),
            6 => ExitHow::Unready(Duration::from_secs(10)),
            7 | 8 => ExitHow::ReaperLost,
            _ => ExitHow::Code(1),
        };
        self.exit(&node, incarnation, how)
    }

    /// A run of a member that stands before those which its group is taking down.
    fn run_beside_a_restart(&mut self) -> Option<(NodeName, Incarnation)> {
        let cluster = &self.sim.cluster;
        let beside = cluster.members.keys().filter(|path| {
            let above = path.parent().and_then(|parent| cluster.supervisor(&parent));
            let taken = above.map(Supervisor::taken_down).unwrap_or_default();
            !taken.is_empty() && taken.iter().all(|id| id.as_str() != path.name())
        });
        let runs = beside.filter_map(|path| cluster.run(path));
        let runs = runs.map(|run| (run.node.clone(), run.incarnation)).collect();
        self.one_that_runs(runs)
    }

    /// A run that waits for room to leave.
    fn run_on_a_drained_node(&mut self) -> Option<(NodeName, Incarnation)> {
        let cluster = &self.sim.cluster;
        let is_drained = |node: &NodeName| cluster.nodes.get(node).is_some_and(|node| node.drained);
        let runs = cluster.members.keys().filter_map(|path| cluster.run(path));
        let runs = runs.filter(|run| run.stopping.is_none() && is_drained(&run.node));
        let runs = runs.map(|run| (run.node.clone(), run.incarnation)).collect();
        self.one_that_runs(runs)
    }

    fn one_that_runs(&mut self, runs: Vec<(NodeName, Incarnation)>) -> Option<(NodeName, Incarnation)> {
        let is_running = |(node, incarnation): &(NodeName, Incarnation)| {
            let runner = self.sim.runners.get(node).filter(|runner| runner.session.is_some());
            runner.is_some_and(|runner| runner.in_state(Local::Running).contains(incarnation))
        };
        let runs: Vec<_> = runs.into_iter().filter(is_running).collect();
        self.dice.pick(&runs).cloned()
    }

    fn stop_one(&mut self) -> Result<(), String> {
        let Some((node, incarnation)) = self.run_in(Local::Stopping) else { return self.look() };
        let how = [ExitHow::Signal(Signal::TERM), ExitHow::Code(0), ExitHow::Code(1)][self.dice.below(3)].clone();
        self.exit(&node, incarnation, how)
    }

    fn exit(&mut self, node: &NodeName, incarnation: Incarnation, how: ExitHow) -> Result<(), String> {
        let stderr = [None, Some(""), Some("it went wrong\n")][self.dice.below(3)];
        let now = self.sim.now;
        if let Some(runner) = self.sim.runners.get_mut(node) {
            runner.exit(incarnation, how, stderr, now, &mut self.sim.copies);
        }
        Ok(())
    }

    /// Time passes: to the next thing that is due, to the edge of a window, a hair before or after, or just so.
    fn pass_time(&mut self) -> Result<(), String> {
        let now = self.sim.now;
        let edges = self.sim.ledger.edges(&self.sim.cluster);
        let next = match self.dice.below(6) {
            0 | 1 => next_deadline(&self.sim.cluster),
            2 => self.sim.next_time(),
            3 => self.dice.pick(&edges).copied(),
            _ => None,
        };
        let next = next.unwrap_or_else(|| now + ms([1, 20, 100, 500, 1_500, 6_000][self.dice.below(6)]));
        let hair = Duration::from_nanos(1);
        let next = match self.dice.below(4) {
            0 => next.saturating_sub(hair),
            1 => next + hair,
            _ => next,
        };
        self.sim.now = next.max(now);
        if self.dice.once_in(2) {
            self.sim.step(Command::Tick)?;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), String> {
        let change = self.change();
        let client = 1 + self.dice.below(3) as u128;
        let write = self.sim.write(client, change);
        self.writes.push(write.clone());
        match write.change.clone() {
            Change::RemoveDeadNode(node) => self.sim.remove_dead(&node, write)?,
            _ => self.sim.step(Command::Write(write))?,
        };
        Ok(())
    }

    /// One or two nodes are drained at once, or one of them is given work again.
    fn drain_one(&mut self) -> Result<(), String> {
        for _ in 0..1 + self.dice.below(2) {
            let node = self.node();
            let is_drained = self.sim.cluster.nodes.get(&node).is_some_and(|node| node.drained);
            let change = if is_drained { Change::Undrain(node) } else { Change::Drain(node) };
            let write = self.sim.write(1, change);
            self.writes.push(write.clone());
            self.sim.step(Command::Write(write))?;
        }
        Ok(())
    }

    fn change(&mut self) -> Change {
        let name = ["t", "u"][self.dice.below(2)];
        let known = self.specs.contains_key(name);
        match self.dice.below(20) {
            0..6 if known => {
                let spec = vary(&mut self.dice, &self.specs[name]);
                self.specs.insert(name, spec.clone());
                Change::Apply(spec)
            }
            6 if known && self.dice.once_in(2) => {
                self.specs.remove(name);
                Change::Delete(name.parse().expect("a name"))
            }
            0..7 => {
                let wide = self.is_wide && name == "t";
                let spec = if wide { draw_wide(&mut self.dice, name) } else { draw(&mut self.dice, name) };
                self.specs.insert(name, spec.clone());
                Change::Apply(spec)
            }
            7..10 => Change::Stop(self.any_path()),
            10..13 => Change::Start(self.any_path()),
            13..16 => Change::Restart(self.any_path()),
            16 => Change::Drain(self.node()),
            17 => Change::Undrain(self.node()),
            18 if self.dice.once_in(2) => Change::RemoveDeadNode(self.node()),
            18 => Change::RemoveNode(self.node()),
            _ => Change::Quarantine(self.any_path()),
        }
    }

    /// A member, the deeper the likelier because there are more; now and then one that is not there.
    fn any_path(&mut self) -> Path {
        let held: Vec<Path> =
            self.sim.cluster.members.iter().filter(|(_, member)| member.held).map(|(path, _)| path.clone()).collect();
        let all: Vec<Path> = self.sim.cluster.members.keys().cloned().collect();
        let from = if self.dice.once_in(3) { &held } else { &all };
        self.dice.pick(from).cloned().unwrap_or_else(|| path("/t/nobody"))
    }

    /// Something that was said before is said again: by a client, a runner, a guard.
    fn repeat(&mut self) -> Result<(), String> {
        let again = match self.dice.below(8) {
            0 => self.dice.pick(&self.writes).cloned().map(Command::Write),
            1 => self.writes.last().cloned().map(Command::Write),
            2 => self.dice.pick(&self.requests).cloned().map(Command::GrantSession),
            3 => self.dice.pick(&self.ends).cloned(),
            4 => Some(Command::RaiseRules(1 + u32::try_from(self.dice.below(3)).unwrap_or(0))),
            _ => {
                let node = self.node();
                let told = self.dice.pick(&self.sim.runners[&node].told).cloned();
                told.map(|(session, number, observation)| Command::Observe { node, session, number, observation })
            }
        };
        // A request of a session that is over would be granted a new one, which nobody holds: as after a lost answer.
        if let Some(command) = again {
            self.sim.step(command)?;
        }
        Ok(())
    }

    /// A machine without a session asks for one; one with a session is started anew or goes.
    fn join_or_renew(&mut self) -> Result<(), String> {
        let silent = |runner: &&Runner| runner.session.is_none() && !runner.former.is_empty();
        let keeping = self.sim.runners.values().find(silent).map(|runner| runner.name.clone());
        let node = match keeping.filter(|_| self.dice.once_in(2)) {
            Some(keeping) => keeping,
            None => self.node(),
        };
        let Some(session) = self.sim.runners[&node].session else {
            // One that is silent may die with what it keeps.
            if self.dice.once_in(4) {
                self.sim.lose(&node, EndProof::Obituary("process died".into()))?;
            }
            self.sim.join(&node, Vec::new())?;
            self.requests.push(self.sim.runners[&node].request(Vec::new()));
            return Ok(());
        };
        match self.dice.below(7) {
            6 => self.sim.bury_ghosts(&node),
            0 => self.sim.leave(&node),
            1 => self.sim.come_back_with_proof(&node, session),
            2 => self.sim.come_back_beside_a_ghost(&node),
            3 => self.sim.end_ghosts(&node),
            4 => self.sim.finish_leaving(&node),
            5 => {
                self.sim.leave(&node)?;
                self.sim.stop_alone(&node);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn lose_one(&mut self) -> Result<(), String> {
        let node = self.node();
        let proof = match self.dice.once_in(2) {
            true => EndProof::Lease,
            false => EndProof::Obituary("process died".into()),
        };
        if let Some(session) = self.sim.runners[&node].session {
            self.ends.push(Command::EndSession { node: node.clone(), session, proof: proof.clone() });
        }
        self.sim.lose(&node, proof)
    }

    /// Words out of order, about runs that are over, by sessions that never were.
    fn say_nonsense(&mut self) -> Result<(), String> {
        let node = self.node();
        let Some(session) = self.sim.runners[&node].session else { return Ok(()) };
        let path = self.any_path();
        let incarnation = Incarnation(self.dice.below(30) as u64);
        let is_true = self.sim.cluster.run(&path).is_some_and(|run| run.incarnation == incarnation);
        let word = match self.dice.below(4) {
            0 => Observation::Started { path, incarnation, pid: 7 },
            1 => Observation::Ready { path, incarnation },
            2 => Observation::NeverStarted { path, incarnation },
            _ => {
                let exit = pando_protocol::cause::Exit {
                    how: ExitHow::Code(1),
                    ran: Duration::MAX,
                    healthy: Some(Duration::MAX),
                    out_of_memory: pando_protocol::cause::OutOfMemory::No,
                    stderr: None,
                };
                Observation::Exited { path, incarnation, exit, started: Vec::new() }
            }
        };
        match self.dice.below(3) {
            0 if !is_true => self.sim.runners.get_mut(&node).map_or(Ok(()), |runner| {
                runner.say(word);
                Ok(())
            }),
            1 => {
                let number = self.sim.cluster.session(&node, session).map_or(0, |known| known.observed) + 2;
                self.sim.step(Command::Observe { node, session, number, observation: word }).map(|_| ())
            }
            _ => {
                let session = SessionId(900 + self.dice.below(9) as u64);
                self.sim.step(Command::Observe { node, session, number: 1, observation: word }).map(|_| ())
            }
        }
    }
}

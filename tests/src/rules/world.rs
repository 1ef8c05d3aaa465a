//! A cluster for stories: machines that behave, until the story says otherwise.

use std::time::Duration;

use pando_protocol::cause::ExitHow;
use pando_protocol::ids::{NodeName, Path};
use pando_protocol::message::{Change, Changed, Difference};
use pando_protocol::rejection::Rejection;
use pando_protocol::session::Observation;
use pando_protocol::spec::TreeSpec;
use pando_protocol::view::{HistoryRow, TreeRow};
use pando_supervision::cluster::{Member, Run};
use pando_supervision::{Applied, Command, Done, EndProof, EventKind, report};

use super::runner::Runner;
use super::sim::Sim;
use super::specs::path;

/// A cluster for stories. Every method panics with the evidence when something does not hold.
#[derive(Debug, Clone, Default)]
pub struct World {
    /// What it is made of.
    pub sim: Sim,
}

impl World {
    /// A cluster with these nodes, each with 100 slots and no labels.
    pub fn new(nodes: &[&str]) -> Self {
        let mut world = Self::default();
        for name in nodes {
            world.join(name, 100, &[]);
        }
        world
    }

    /// A new machine joins, or one comes back.
    pub fn join(&mut self, name: &str, slots: u32, labels: &[&str]) {
        let runner = Runner::new(name, slots, labels);
        let node = runner.name.clone();
        self.sim.runners.insert(node.clone(), runner);
        held(self.sim.join(&node, Vec::new()));
    }

    /// One command, as it is.
    pub fn command(&mut self, command: Command) -> Applied {
        held(self.sim.step(command))
    }

    /// A change by the operator; the runners do not move yet.
    pub fn change(&mut self, change: Change) -> Result<Changed, Rejection> {
        // As from the command line: every change is a client's first.
        let write = self.sim.write(self.sim.sequences.len() as u128 + 1, change);
        match self.command(Command::Write(write)).outcome {
            Ok(Done::Changed(changed)) => Ok(changed),
            Ok(other) => panic!("a write is answered with {other:?}"),
            Err(rejection) => Err(rejection),
        }
    }

    /// Applies a spec and lets the runners catch up.
    pub fn apply(&mut self, spec: &TreeSpec) -> Vec<Difference> {
        let changed = self.change(Change::Apply(spec.clone())).expect("the spec is accepted");
        self.settle();
        changed.differences
    }

    /// Stops a member and lets the runners catch up.
    pub fn stop(&mut self, text: &str) {
        self.change(Change::Stop(path(text))).expect("it can be stopped");
        self.settle();
    }

    /// Starts a member and lets the runners catch up.
    pub fn start(&mut self, text: &str) {
        self.change(Change::Start(path(text))).expect("it can be started");
        self.settle();
    }

    /// Restarts a member and lets the runners catch up.
    pub fn restart(&mut self, text: &str) {
        self.change(Change::Restart(path(text))).expect("it can be restarted");
        self.settle();
    }

    /// Lets every runner act, start what is due, end what should end, and tell of it, until nothing more happens.
    pub fn settle(&mut self) {
        held(self.sim.settle());
    }

    /// Lets time pass; everything that is due on the way happens when it is due.
    pub fn advance(&mut self, by: Duration) {
        held(self.sim.advance_to(self.sim.now + by));
    }

    /// Lets time pass until a child runs again.
    pub fn advance_to_run(&mut self, text: &str) {
        for _ in 0..1_000 {
            self.settle();
            if self.is_ready(text) {
                return;
            }
            let next = self.sim.next_time().unwrap_or_else(|| panic!("{text} waits for nothing: {:?}", self.row(text)));
            self.advance(next.saturating_sub(self.sim.now));
        }
        panic!("{text} never runs: {:?}", self.row(text));
    }

    /// The process of a child ends by itself, and the cluster hears of it; the runners do not move yet.
    pub fn exit(&mut self, text: &str, how: ExitHow, stderr: Option<&str>) {
        let now = self.sim.now;
        let run = self.run(text).cloned().unwrap_or_else(|| panic!("{text} has no run"));
        held(self.sim.act(&run.node)); // It may not have heard of the run yet.
        let runner = self.sim.runners.get_mut(&run.node).expect("its node is known");
        runner.exit(run.incarnation, how, stderr, now, &mut self.sim.copies);
        let node = run.node.clone();
        while held(self.sim.deliver_one(&node)) {}
    }

    /// The process of a child exits with a code, after a word on standard error.
    pub fn crash(&mut self, text: &str, code: u8) {
        self.exit(text, ExitHow::Code(code), Some("it went wrong\n"));
    }

    /// A child's process crashes whenever it runs, so many times.
    pub fn crash_times(&mut self, text: &str, times: usize) {
        for _ in 0..times {
            self.advance_to_run(text);
            self.crash(text, 1);
        }
    }

    /// A node dies with all it runs, and its guard says so.
    pub fn lose(&mut self, name: &str) {
        let node: NodeName = name.parse().expect("a name");
        held(self.sim.lose(&node, EndProof::Obituary("process died".into())));
    }

    /// A lost node comes back.
    pub fn rejoin(&mut self, name: &str) {
        let node: NodeName = name.parse().expect("a name");
        held(self.sim.join(&node, Vec::new()));
    }

    /// A runner hears nothing and says nothing from here on; what it runs goes on.
    pub fn silence(&mut self, name: &str) {
        self.sim.silent.insert(name.parse().expect("a name"));
    }

    /// A node is told to go, and the runners catch up.
    pub fn leave(&mut self, name: &str) {
        held(self.sim.leave(&name.parse().expect("a name")));
        self.settle();
    }

    /// Lets runners behave, one word after the other, until a child has a run that none of them has acted on.
    pub fn advance_to_assigned(&mut self, text: &str) {
        let nodes: Vec<NodeName> = self.sim.runners.keys().cloned().collect();
        for _ in 0..1_000 {
            for node in &nodes {
                held(self.sim.act(node));
                held(self.sim.start_due(node));
                self.sim.behave(node);
                while held(self.sim.deliver_one(node)) {
                    if self.run(text).is_some() {
                        return;
                    }
                }
            }
        }
        panic!("{text} is never assigned: {:?}", self.row(text));
    }

    /// A runner says a word, and the cluster hears it.
    pub fn say(&mut self, name: &str, observation: Observation) {
        let node: NodeName = name.parse().expect("a name");
        self.sim.runners.get_mut(&node).expect("a known node").say(observation);
        while held(self.sim.deliver_one(&node)) {}
    }

    /// A member.
    pub fn member(&self, text: &str) -> &Member {
        self.sim.cluster.member(&path(text)).unwrap_or_else(|| panic!("there is no {text}"))
    }

    /// The run of a child.
    pub fn run(&self, text: &str) -> Option<&Run> {
        self.sim.cluster.run(&path(text))
    }

    /// Where a child runs.
    pub fn node_of(&self, text: &str) -> Option<String> {
        self.run(text).map(|run| run.node.to_string())
    }

    /// The row of a member in `pando tree`.
    pub fn row(&self, text: &str) -> TreeRow {
        report::tree(&self.sim.cluster, Some(&path(text))).into_iter().next().unwrap_or_else(|| panic!("no {text}"))
    }

    /// Whether a child is ready.
    pub fn is_ready(&self, text: &str) -> bool {
        self.row(text).alive == 1
    }

    /// How a member's runs ended.
    pub fn history(&self, text: &str) -> Vec<HistoryRow> {
        report::history(&self.sim.cluster, &path(text)).unwrap_or_else(|| panic!("there is no {text}"))
    }

    /// The newest ending of a member.
    pub fn last(&self, text: &str) -> HistoryRow {
        self.history(text).pop().unwrap_or_else(|| panic!("{text} never ended"))
    }

    /// How many events of a kind there were about a path.
    pub fn count(&self, kind: EventKind, text: &str) -> usize {
        let about: Path = path(text);
        self.sim.events.iter().filter(|event| event.kind == kind && event.path.as_ref() == Some(&about)).count()
    }
}

fn held<T>(result: Result<T, String>) -> T {
    result.unwrap_or_else(|broken| panic!("{broken}"))
}

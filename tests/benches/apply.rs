//! What it costs to apply one command of each kind, on a cluster of a thousand children and ten thousand messages.
//!
//! `cargo bench -p pando-tests --no-default-features --bench apply [-- NAME]`. Before and after a change of the rules:
//! `-- --save-baseline before`, then `-- --baseline before`. Every command is accepted and makes a difference, and each is
//! applied to a clone of the same state, as a voter does: it keeps a clone to put back where a rule panics.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BatchSize, Criterion};
use pando_protocol::cause::{Exit, ExitHow, OutOfMemory};
use pando_protocol::ids::{ClientId, Incarnation, NodeName, Path, SessionId};
use pando_protocol::mail::{Leftover, Letters, NewMessage, Readiness, Settlement, Word};
use pando_protocol::message::{Change, Write};
use pando_protocol::session::{Ending, NodeRole, Observation, SessionRequest};
use pando_protocol::spec::{
    Backoff, ChildSpec, Command as Program, Intensity, MailboxSpec, OnDisconnect, Pool, ProcessSpec, Restart, Strategy,
    TreeSpec, Work,
};
use pando_supervision::cluster::{Run, Stage};
use pando_supervision::{Cluster, Command, EndProof, Stamp, apply};
use pando_tests::rules::names::{change_name, observation_name};
use pando_tests::rules::specs::{nested, path, permanent, process, tree};

/// Kinds of commands: four without a kind of their own, and every change and observation.
const KINDS: usize = 4 + 19 + 10;
const NODES: [&str; 3] = ["n1", "n2", "n3"];
const SUPERVISORS: usize = 10;
/// Children of each.
const CHILDREN: usize = 100;
const WORKERS: u32 = 10;
const PREFETCH: u32 = 100;
const MESSAGES: usize = 10_000;
/// Messages of one command, where it is about several.
const BATCH: usize = 100;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut kinds = BTreeSet::new();
    for (what, bed, command) in cases() {
        let name = kind(&command);
        kinds.insert(name.clone());
        let name = if what.is_empty() { name } else { format!("{name} {what}") };
        bed.proves(&name, &command);
        let setup = || (bed.cluster.clone(), command.clone());
        let routine = |(mut cluster, command)| (apply(&mut cluster, bed.stamp(), command), cluster);
        criterion.bench_function(&name, |bencher| bencher.iter_batched(setup, routine, BatchSize::SmallInput));
    }
    assert_eq!(kinds.len(), KINDS, "each kind has a case: {kinds:?}");
    criterion.final_summary();
}

// Without a catch-all: whoever adds a variant is sent here, and to the cases.
fn kind(command: &Command) -> String {
    match command {
        Command::Tick => "tick".into(),
        Command::Write(write) => format!("write/{}", change_name(&write.change)),
        Command::GrantSession(_) => "grant_session".into(),
        Command::EndSession { .. } => "end_session".into(),
        Command::Observe { observation, .. } => format!("observe/{}", observation_name(observation)),
        Command::RaiseRules(_) => "raise_rules".into(),
    }
}

/// What is measured: what is special of it, the state before, and the command.
fn cases() -> Vec<(&'static str, Bed, Command)> {
    let bed = Bed::full();
    let mut cases = of_members(&bed);
    cases.extend(of_nodes(&bed));
    cases.extend(of_runs(&bed));
    cases.extend(of_mail(&bed));
    cases
}

fn of_members(bed: &Bed) -> Vec<(&'static str, Bed, Command)> {
    let (one, pool) = (path("/t/s5/c50"), path("/w/p"));
    let stopped = bed.after(bed.write(Change::Stop(one.clone())));
    let changed = tree("t", |_| {}, supervisors("changed"));
    vec![
        ("nothing is due", bed.clone(), Command::Tick),
        ("same", bed.clone(), bed.write(Change::Apply(thousand()))),
        ("1,000 changed", bed.clone(), bed.write(Change::Apply(changed))),
        ("1,000 new", bed.clone(), bed.write(Change::Apply(tree("u", |_| {}, supervisors("new"))))),
        (
            "",
            bed.clone(),
            bed.write(Change::ApplyLeaving(tree("w", |_| {}, vec![permanent("a")]), Leftover::DeadLetter)),
        ),
        ("1,000", bed.clone(), bed.write(Change::Delete(name("t")))),
        ("", bed.clone(), bed.write(Change::DeleteLeaving(name("w"), Leftover::DeadLetter))),
        ("", stopped.clone(), stopped.write(Change::Start(one.clone()))),
        ("", bed.clone(), bed.write(Change::Stop(one.clone()))),
        ("", bed.clone(), bed.write(Change::Restart(one.clone()))),
        ("1,000", bed.clone(), bed.write(Change::Restart(path("/t")))),
        ("", bed.clone(), bed.write(Change::Quarantine(one))),
        ("", bed.clone(), bed.write(Change::Scale { pool, count: 2 * WORKERS })),
        ("", bed.clone(), Command::RaiseRules(pando_supervision::RULES + 1)),
    ]
}

fn of_nodes(bed: &Bed) -> Vec<(&'static str, Bed, Command)> {
    let (first, idle) = (name::<NodeName>("n1"), name::<NodeName>("idle"));
    let drained = bed.after(bed.write(Change::Drain(first.clone())));
    let lost = bed.after(bed.end("idle"));
    let silent = bed.after(bed.end("keeper"));
    let kept = Ending { path: path("/k/kept"), incarnation: bed.run("/k/kept").incarnation };
    let back = silent.after(silent.request("keeper"));
    let kept = Observation::Kept { sessions: vec![bed.session(&name("keeper"))], runs: vec![kept] };
    let leaving = bed.after(bed.observe("idle", Observation::Leaving));
    let going = bed.after(bed.observe("n1", Observation::Leaving));
    let runs_there =
        |path: &&Path| going.cluster.run(path).is_some_and(|run| run.node == first && run.stopping.is_none());
    let path = going.cluster.members.keys().find(runs_there).expect("a child on n1").clone();
    let incarnation = going.run(path.as_str()).incarnation;
    let stopping = Observation::Stopping { path, incarnation };
    vec![
        ("", lost.clone(), lost.request("idle")),
        ("a third of 1,000 moves", bed.clone(), bed.end("n1")),
        ("", bed.clone(), bed.observe("n1", Observation::Leaving)),
        ("", leaving.clone(), leaving.observe("idle", Observation::Left)),
        ("", going.clone(), going.observe("n1", stopping)),
        ("", back.clone(), back.observe("keeper", kept)),
        ("a third of 1,000 moves", bed.clone(), bed.write(Change::Drain(first.clone()))),
        ("", drained.clone(), drained.write(Change::Undrain(first))),
        ("", lost.clone(), lost.write(Change::RemoveNode(idle))),
        ("", silent.clone(), silent.write(Change::RemoveDeadNode(name("keeper")))),
    ]
}

fn of_runs(bed: &Bed) -> Vec<(&'static str, Bed, Command)> {
    let crashed = bed.after(bed.exit("/t/s5/c50"));
    let started = crashed.after(crashed.started("/t/s5/c50"));
    let unwanted = crashed.after(crashed.write(Change::Stop(path("/t/s5/c50"))));
    let run = unwanted.run("/t/s5/c50");
    let never = Observation::NeverStarted { path: path("/t/s5/c50"), incarnation: run.incarnation };
    vec![
        ("", crashed.clone(), crashed.started("/t/s5/c50")),
        ("", started.clone(), started.ready("/t/s5/c50")),
        ("one for one", bed.clone(), bed.exit("/t/s5/c50")),
        ("one for all of 10", bed.clone(), bed.exit("/g/m5")),
        ("of a worker that holds 100", bed.clone(), bed.exit("/w/p/5")),
        ("", unwanted.clone(), unwanted.observe(run.node.as_str(), never)),
    ]
}

fn of_mail(bed: &Bed) -> Vec<(&'static str, Bed, Command)> {
    let at = path("/w/p");
    let send =
        |count| Change::Send { to: at.clone(), messages: vec![NewMessage::of(vec![b'x'; 100]); count], asks: false };
    let paused = bed.after(bed.write(Change::Pause(at.clone())));
    let again = bed.after(bed.exit("/w/p/5"));
    let again = again.after(again.started("/w/p/5"));
    let again = again.after(again.ready("/w/p/5"));
    let (from, letters) = (at.clone(), Letters::default());
    let done = Word::Done { reply: None };
    let failed = Word::Failed { error: "it cannot be handled".into() };
    vec![
        ("1", bed.clone(), bed.write(send(1))),
        ("100", bed.clone(), bed.write(send(BATCH))),
        ("", again.clone(), again.worker_ready("/w/p/5")),
        ("100 done", bed.clone(), bed.settle("/w/p/5", &done)),
        ("100 failed", bed.clone(), bed.settle("/w/p/5", &failed)),
        ("", bed.clone(), bed.write(Change::Pause(at.clone()))),
        ("", paused.clone(), paused.write(Change::Resume(at.clone()))),
        ("", bed.clone(), bed.write(Change::Redrive { from: from.clone(), letters: letters.clone(), rate: None })),
        ("", bed.clone(), bed.write(Change::PurgeDead { from, letters })),
        ("", bed.clone(), bed.write(Change::PurgeWaiting(at))),
    ]
}

/// A cluster, and what its runners and clients say next.
#[derive(Debug, Clone, Default)]
struct Bed {
    cluster: Cluster,
    /// Commands so far.
    commands: u128,
}

impl Bed {
    /// Everything runs and is ready; each worker holds what it may, and some messages are dead.
    fn full() -> Self {
        let mut bed = Self::default().after(Command::RaiseRules(pando_supervision::RULES));
        for node in NODES {
            bed = bed.after(bed.request(node));
        }
        for spec in [thousand(), group(), workers()] {
            bed = bed.after(bed.write(Change::Apply(spec)));
        }
        bed = bed.after(bed.request("keeper"));
        bed = bed.after(bed.write(Change::Apply(kept())));
        bed = bed.all_ready();
        bed = bed.after(bed.request("idle"));
        bed = bed.sent(BATCH * WORKERS as usize);
        for worker in 0..WORKERS {
            bed = bed.after(bed.settle(&format!("/w/p/{worker}"), &Word::Rejected { error: "never".into() }));
        }
        bed.sent(MESSAGES)
    }

    fn stamp(&self) -> Stamp {
        Stamp { at: self.cluster.head.now, wall: 1_700_000_000_000 }
    }

    fn proves(&self, name: &str, command: &Command) {
        let mut after = self.cluster.clone();
        let outcome = apply(&mut after, self.stamp(), command.clone()).outcome;
        assert!(outcome.is_ok(), "{name}: {outcome:?}");
        assert!(after != self.cluster || matches!(command, Command::Tick), "{name} makes no difference");
    }

    fn after(&self, command: Command) -> Self {
        let mut next = self.clone();
        let told = format!("{command:?}");
        let outcome = apply(&mut next.cluster, self.stamp(), command).outcome;
        assert!(outcome.is_ok(), "{told}: {outcome:?}");
        next.commands += 1;
        next
    }

    fn all_ready(mut self) -> Self {
        // A group starts one member after the other.
        let is_new = |bed: &Self, path: &&Path| bed.cluster.run(path).is_some_and(|run| run.stage == Stage::Assigned);
        while let Some(path) = self.cluster.members.keys().find(|path| is_new(&self, path)).map(ToString::to_string) {
            self = self.after(self.started(&path));
            self = self.after(self.ready(&path));
            if path.starts_with("/w/") {
                self = self.after(self.worker_ready(&path));
            }
        }
        self
    }

    fn sent(mut self, mut count: usize) -> Self {
        while count > 0 {
            let messages = vec![NewMessage::of(vec![b'x'; 100]); BATCH.min(count)];
            count -= messages.len();
            self = self.after(self.write(Change::Send { to: path("/w/p"), messages, asks: false }));
        }
        self
    }

    fn run(&self, text: &str) -> &Run {
        self.cluster.run(&path(text)).unwrap_or_else(|| panic!("{text} has no run"))
    }

    fn session(&self, node: &NodeName) -> SessionId {
        self.cluster.nodes[node].current.unwrap_or_else(|| panic!("{node} has no session"))
    }

    fn write(&self, change: Change) -> Command {
        Command::Write(Write { client: ClientId(self.commands), sequence: 1, lowest_unanswered: 1, change })
    }

    fn request(&self, node: &str) -> Command {
        Command::GrantSession(SessionRequest {
            node: name(node),
            nonce: u64::try_from(self.commands).expect("few commands"),
            address: format!("{node}:4600"),
            role: NodeRole::Voter,
            labels: if node == "keeper" { vec!["keeps=it".parse().expect("a label")] } else { Vec::new() },
            slots: if node == "idle" { 0 } else { 5_000 },
            pid: 1,
            proven_over: Vec::new(),
        })
    }

    fn end(&self, node: &str) -> Command {
        let node = name(node);
        Command::EndSession { session: self.session(&node), node, proof: EndProof::Lease }
    }

    fn observe(&self, node: &str, observation: Observation) -> Command {
        let node = name(node);
        // One that leaves has no current session, and says that it has left under its former one.
        let newest = self.cluster.nodes[&node].sessions.keys().next_back().copied();
        let session = newest.unwrap_or_else(|| panic!("{node} has no session"));
        let number = self.cluster.session(&node, session).map_or(0, |session| session.observed) + 1;
        Command::Observe { node, session, number, observation }
    }

    fn observe_of(&self, text: &str, of: impl FnOnce(Path, Incarnation) -> Observation) -> Command {
        let run = self.run(text);
        self.observe(run.node.as_str(), of(path(text), run.incarnation))
    }

    fn started(&self, text: &str) -> Command {
        self.observe_of(text, |path, incarnation| Observation::Started { path, incarnation, pid: 7 })
    }

    fn ready(&self, text: &str) -> Command {
        self.observe_of(text, |path, incarnation| Observation::Ready { path, incarnation })
    }

    fn worker_ready(&self, text: &str) -> Command {
        let readiness = Readiness { starts: true, prefetch: PREFETCH };
        self.observe_of(text, |path, incarnation| Observation::WorkerReady { path, incarnation, readiness })
    }

    /// It crashes; a worker on the first of what it holds.
    fn exit(&self, text: &str) -> Command {
        let started = self.holds(text).into_iter().take(1).collect();
        let ran = Duration::from_millis(300);
        let stderr = Some("it went wrong\n".into());
        let exit = Exit { how: ExitHow::Code(1), ran, healthy: Some(ran), out_of_memory: OutOfMemory::No, stderr };
        self.observe_of(text, |path, incarnation| Observation::Exited { path, incarnation, exit, started })
    }

    fn holds(&self, text: &str) -> Vec<u64> {
        let worker = self.cluster.mailbox(&path("/w/p")).and_then(|mailbox| mailbox.workers.get(&path(text)));
        worker.and_then(|worker| worker.run.as_ref()).map(|run| run.held.keys().copied().collect()).unwrap_or_default()
    }

    /// A worker says this of [`BATCH`] messages that it holds.
    fn settle(&self, text: &str, word: &Word) -> Command {
        let hands: Vec<u64> = self.holds(text).into_iter().take(BATCH).collect();
        assert_eq!(hands.len(), BATCH, "{text} holds fewer");
        let settled = hands.into_iter().map(|hand| Settlement { hand, word: word.clone() }).collect();
        self.observe(self.run(text).node.as_str(), Observation::Settled(settled))
    }
}

fn thousand() -> TreeSpec {
    tree("t", |_| {}, supervisors("new"))
}

/// Supervisors whose children have this as an argument.
fn supervisors(argument: &str) -> Vec<ChildSpec> {
    let child = |n| process(&format!("c{n}"), |_, process| process.command.args = vec![argument.into()]);
    let children = || (0..CHILDREN).map(child).collect();
    (0..SUPERVISORS).map(|n| nested(&format!("s{n}"), |_, _| {}, children())).collect()
}

fn group() -> TreeSpec {
    let members = (0..10).map(|n| permanent(&format!("m{n}"))).collect();
    tree("g", |root| root.strategy = Strategy::OneForAll, members)
}

/// One that outlives the lease of the only node that may have it.
fn kept() -> TreeSpec {
    let kept = process("kept", |_, process| {
        process.on_disconnect = OnDisconnect::Keep;
        process.place.require = ["keeps=it".parse().expect("a label")].into();
    });
    tree("k", |_| {}, vec![kept])
}

fn workers() -> TreeSpec {
    let mut process = ProcessSpec::new(Program { program: "work".into(), args: Vec::new() });
    process.mailbox = Some(MailboxSpec { prefetch: PREFETCH, ..MailboxSpec::default() });
    let pool = Pool { count: WORKERS, intensity: Intensity::default(), process: Arc::new(process) };
    let (restart, backoff) = (Restart::Permanent, Backoff::default());
    let pool = ChildSpec { id: name("p"), restart, backoff, significant: false, work: Work::Pool(pool) };
    tree("w", |_| {}, vec![pool])
}

fn name<T: FromStr<Err: Debug>>(text: &str) -> T {
    text.parse().expect("a name")
}

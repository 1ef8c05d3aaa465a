//! What groups of hundreds on a drained node, that wait to leave it or to go back, cost with each change, and each time that somebody
//! looks.

use std::time::{Duration, Instant};

use pando_protocol::cause::{Exit, ExitHow, OutOfMemory};
use pando_protocol::ids::Path;
use pando_protocol::message::Change;
use pando_protocol::session::Observation;
use pando_protocol::spec::{ChildSpec, Strategy};
use pando_supervision::cluster::Cluster;
use pando_supervision::{Command, Stamp, apply, report};
use pando_tests::rules::specs::{nested, path, permanent, process, tree};
use pando_tests::rules::world::World;

/// A group of so many on n1, which is drained, and n2 with no room for all of it.
fn waiting_to_leave(count: u32, strategy: Strategy, colocate: bool) -> World {
    // Of a `rest_for_one` that may be spread, the later ones may leave alone.
    let room = if strategy == Strategy::RestForOne && !colocate { 0 } else { count - 1 };
    let mut world = World::default();
    world.join("n1", count, &[]);
    let paths: Vec<Path> = (0..count).map(|n| path(&format!("/g/c{n:04}"))).collect();
    let children = paths.iter().map(|path| permanent(path.name())).collect();
    change(
        &mut world,
        Change::Apply(tree("g", |root| (root.strategy, root.colocate) = (strategy, colocate), children)),
    );
    let node = world.sim.cluster.nodes.keys().next().expect("n1").clone();
    let session = world.sim.cluster.nodes[&node].current.expect("it is up");
    for path in paths {
        let incarnation = world.sim.cluster.run(&path).unwrap_or_else(|| panic!("{path} has no run")).incarnation;
        let started = Observation::Started { path: path.clone(), incarnation, pid: 1 };
        for observation in [started, Observation::Ready { path, incarnation }] {
            let number = world.sim.cluster.session(&node, session).expect("it is up").observed + 1;
            let command = Command::Observe { node: node.clone(), session, number, observation };
            step(&mut world.sim.cluster, command);
        }
    }
    change(&mut world, Change::Drain(node));
    world.join("n2", room, &[]);
    world
}

fn change(world: &mut World, change: Change) {
    let write = world.sim.write(world.sim.sequences.len() as u128 + 1, change);
    step(&mut world.sim.cluster, Command::Write(write));
}

/// Without the checks of each step, which would take longer than what is measured.
fn step(cluster: &mut Cluster, command: Command) {
    let applied = apply(cluster, Stamp { at: cluster.head.now, wall: 1 }, command);
    assert!(applied.outcome.is_ok(), "{:?}", applied.outcome);
}

fn time_of(work: impl FnOnce()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

/// How long a change takes that may have made room, and then the rows of the tree.
fn costs(world: &mut World) -> [Duration; 2] {
    let write = world.sim.write(world.sim.sequences.len() as u128 + 1, Change::Undrain("n2".parse().expect("a name")));
    let (cluster, mut changed) = (&world.sim.cluster, world.sim.cluster.clone());
    [time_of(|| step(&mut changed, Command::Write(write))), time_of(|| drop(report::tree(cluster, None)))]
}

/// The same, but down: one crashed, and all of it goes back to n1, but for one that is new and that no node can take.
fn waiting_to_start(count: u32, strategy: Strategy, colocate: bool) -> World {
    let mut world = waiting_to_leave(count, strategy, colocate);
    let mut children: Vec<ChildSpec> = (0..count).map(|n| permanent(&format!("c{n:04}"))).collect();
    let label = "disk=ssd".parse().expect("a label");
    children.push(process("new", |_, spec| _ = spec.place.require.insert(label)));
    change(
        &mut world,
        Change::Apply(tree("g", |root| (root.strategy, root.colocate) = (strategy, colocate), children)),
    );
    exits(&mut world, &path("/g/c0000"));
    while let Some(stopping) = stopping(&world.sim.cluster) {
        exits(&mut world, &stopping);
    }
    delays_end(&mut world);
    let waiting = report::tree(&world.sim.cluster, None)[0].waiting.clone().expect("it waits");
    assert!(waiting.starts_with("/g/new has no place"), "{waiting}");
    world
}

/// A group of which one goes back to n1, which is drained, once so many are ready that are new and have no room there.
fn waiting_behind(count: u32, strategy: Strategy, colocate: bool) -> World {
    let mut world = World::default();
    world.join("n1", 2, &[]);
    let group = |between: Vec<ChildSpec>| {
        let children = [vec![permanent("a")], between, vec![permanent("c")]].concat();
        Change::Apply(tree("g", |root| (root.strategy, root.colocate) = (Strategy::RestForOne, colocate), children))
    };
    change(&mut world, group(Vec::new()));
    world.settle();
    change(&mut world, Change::Drain("n1".parse().expect("a name")));
    world.join("n2", 0, &[]);
    let children = (0..count).map(|n| permanent(&format!("c{n:04}"))).collect();
    change(&mut world, group(vec![nested("in", |_, spec| spec.strategy = strategy, children)]));
    exits(&mut world, &path("/g/c"));
    delays_end(&mut world);
    let rows = report::tree(&world.sim.cluster, None);
    let waiting = rows.into_iter().find(|row| row.path == path("/g/c")).and_then(|row| row.waiting);
    assert_eq!(waiting.as_deref(), Some("/g/in is ready, which starts before it"));
    world
}

fn stopping(cluster: &Cluster) -> Option<Path> {
    cluster.members.keys().find(|path| cluster.run(path).is_some_and(|run| run.stopping.is_some())).cloned()
}

fn exits(world: &mut World, path: &Path) {
    let run = world.sim.cluster.run(path).unwrap_or_else(|| panic!("{path} has no run")).clone();
    let exit = Exit {
        how: ExitHow::Code(1),
        ran: Duration::from_secs(1),
        healthy: None,
        out_of_memory: OutOfMemory::No,
        stderr: None,
    };
    let number = world.sim.cluster.session(&run.node, run.session).expect("it is up").observed + 1;
    let observation =
        Observation::Exited { path: path.clone(), incarnation: run.incarnation, exit, started: Vec::new() };
    step(&mut world.sim.cluster, Command::Observe { node: run.node, session: run.session, number, observation });
}

fn delays_end(world: &mut World) {
    world.sim.cluster.head.now += Duration::from_secs(2);
    step(&mut world.sim.cluster, Command::Tick);
}

#[test]
fn four_times_as_many_that_wait_to_leave_cost_about_four_by_four_times_as_much_at_most() {
    for (strategy, colocate) in [
        (Strategy::OneForAll, true),
        (Strategy::OneForAll, false),
        (Strategy::RestForOne, true),
        (Strategy::RestForOne, false),
        (Strategy::OneForOne, true),
    ] {
        let worlds = [40, 160].map(|count| waiting_to_leave(count, strategy, colocate));
        let waiting = report::tree(&worlds[1].sim.cluster, None)[1].waiting.clone().expect("it waits to leave");
        assert!(waiting.starts_with("room to leave n1"), "{waiting}");
        costs_four_by_four_at_most(&format!("to leave: {strategy:?}, colocate {colocate}"), worlds);
    }
}

#[test]
fn four_times_as_many_that_wait_to_start_cost_about_four_by_four_times_as_much_at_most() {
    for strategy in [Strategy::OneForAll, Strategy::RestForOne] {
        for colocate in [true, false] {
            let worlds = [40, 160].map(|count| waiting_to_start(count, strategy, colocate));
            costs_four_by_four_at_most(&format!("to start: {strategy:?}, colocate {colocate}"), worlds);
        }
    }
}

#[test]
fn four_times_as_many_that_one_waits_for_cost_about_four_by_four_times_as_much_at_most() {
    for strategy in [Strategy::OneForOne, Strategy::OneForAll] {
        for colocate in [true, false] {
            let worlds = [40, 160].map(|count| waiting_behind(count, strategy, colocate));
            costs_four_by_four_at_most(&format!("behind: {strategy:?}, colocate {colocate}"), worlds);
        }
    }
}

/// Of 40 and of 160.
fn costs_four_by_four_at_most(what: &str, mut worlds: [World; 2]) {
    const ROUNDS: usize = 20;
    // What else the machine does makes single rounds longer, and none shorter.
    let mut least = [[Duration::MAX; 2]; 2];
    let is_within = |[few, many]: [[Duration; 2]; 2]| {
        // Of the second order it is 16 times as much, of the third 64 times.
        few.into_iter().zip(many).all(|(few, many)| many < few.saturating_mul(32))
    };
    for round in 0..ROUNDS {
        for (least, world) in least.iter_mut().zip(&mut worlds) {
            let now = costs(world);
            *least = [least[0].min(now[0]), least[1].min(now[1])];
        }
        if round >= 3 && is_within(least) {
            break;
        }
    }
    println!("{what}: {least:?}");
    assert!(is_within(least), "{what}: {:?} of 40, {:?} of 160", least[0], least[1]);
}

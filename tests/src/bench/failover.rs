//! A node dies or hangs: how long until its child runs elsewhere, as the child itself saw it.
//!
//! The child is a witness, which writes down that it lives every 20 ms: two that live at once would be seen.

use std::fmt::Write as _;
use std::path::PathBuf;

use pando_protocol::view::{State, TreeRow};
use rustix::process::Signal;

use super::measured::Measured;
use super::rows::Row;
use crate::beats::{lives, now, overlap};
use crate::cluster::{Cluster, SOON, send};
use crate::programs;
use crate::wait::wait_until;

const CHILD: &str = "/t/a";
/// Nodes that die in a run, of each kind.
const DEATHS: usize = 3;

/// Each kind of death with a cluster of its own.
pub async fn run() -> Measured {
    let mut measured = Measured::default();
    for row in [Row::NodeKilled, Row::LeadingNodeKilled, Row::NodeGone, Row::NodeHung] {
        let mut scene = Scene::start().await;
        for _ in 0..DEATHS {
            measured.put(row, scene.death(row).await);
        }
        measured.faults.extend(overlap(&lives(&scene.beats)).map(|two| format!("two copies: {two}")));
    }
    measured
}

struct Scene {
    cluster: Cluster,
    beats: PathBuf,
}

impl Scene {
    async fn start() -> Self {
        let cluster = Cluster::start().await;
        let beats = cluster.folder().join("beats");
        let witness = programs::own("witness");
        let mut spec = String::from("name = \"t\"\n[[children]]\nid = \"a\"\n");
        _ = writeln!(spec, "command = [{:?}, {:?}]", witness.display().to_string(), beats.display().to_string());
        cluster.bring_up(&spec).await;
        Self { cluster, beats }
    }

    /// Milliseconds from the death to the first beat elsewhere. The node is back afterwards.
    async fn death(&mut self, row: Row) -> f64 {
        let before = self.cluster.row(CHILD).await;
        let home = self.cluster.home(CHILD).await;
        self.choose_leader(&home, row == Row::LeadingNodeKilled).await;
        let guard = self.cluster.node(&home).guard();
        let node = self.cluster.node(&home);
        let died = now();
        match row {
            Row::NodeHung => node.signal(Signal::STOP),
            Row::NodeGone => {
                send(guard, Signal::STOP); // So that it cannot say that its node died.
                node.kill();
                send(guard, Signal::KILL);
            }
            _ => node.kill(),
        }
        let moved = |row: &TreeRow| row.state == State::Running && row.incarnation > before.incarnation;
        let after = wait_until("the move", SOON, async || self.cluster.row(CHILD).await, moved).await;
        let new = after.incarnation.expect("it runs").0;
        let look = async || lives(&self.beats);
        let lives = wait_until("its first beat", SOON, look, |lives| lives.contains_key(&new)).await;
        let node = self.cluster.node(&home);
        if row == Row::NodeHung {
            node.signal(Signal::CONT);
        } else {
            node.start();
        }
        self.cluster.all_up().await;
        self.cluster.whole("/t").await;
        self.cluster.caught_up().await;
        lives[&new].first.saturating_sub(died) as f64
    }

    /// Makes that node lead, or another one.
    async fn choose_leader(&self, home: &str, leads: bool) {
        let leader = self.cluster.leader().await;
        let to = match (leads, leader == home) {
            (true, false) => home.to_owned(),
            (false, true) => self.cluster.others(home).swap_remove(0),
            (true, true) | (false, false) => return,
        };
        self.cluster.done(&["cluster", "transfer", &to]);
        wait_until("the leader that is wanted", SOON, async || self.cluster.leader().await, |now| *now == to).await;
    }
}

//! Voters that take turns, while nodes die: of `n1` to `n4` three vote, and a fourth is on its way in or out.
//!
//! ```text
//!   outside, empty ── add ──► learner ── promote ──► voter, one of four ── remove another one ──► outside, with a log
//!         ▲                                                                                             │
//!         └──────────────────────────────── its data folder is moved away ◄─────────────────────────────┘
//! ```
//!
//! Each step is asked for by `pando cluster members` and may be cut off by a death; then it is asked for again.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Stdio};

use pando_protocol::view::MemberRole;
use pando_tests::cluster::{Cluster, marked_processes};

use crate::members::{done, members};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Add,
    Promote,
    Remove,
}

/// What was asked for, and what became of it.
#[derive(Debug)]
pub(crate) struct Rotation {
    step: Step,
    /// Who is on its way.
    node: &'static str,
    /// Who goes next.
    next: usize,
    members: BTreeMap<String, MemberRole>,
    /// Those of data folders that were moved away.
    old_marks: Vec<String>,
    asked: usize,
    in_flight: usize,
    cut_off: BTreeMap<String, usize>,
}

/// A change that was asked for, and has not been answered yet.
#[must_use]
pub(crate) struct Asked {
    words: String,
    pando: Child,
}

impl Rotation {
    /// Starts `n4`, which waits to be added; `n1` to `n3` are the voters.
    pub(crate) async fn begin(cluster: &mut Cluster, flags: &[&str]) -> Self {
        let voters = NODES[..3].iter().map(|node| format!("{node}={}", cluster.address(node)));
        let voters = voters.collect::<Vec<_>>().join(",");
        cluster.add_agent(NODES[3], &voters, &[&["--join"], flags].concat());
        cluster.all_up().await;
        let members = NODES[..3].iter().map(|node| ((*node).to_owned(), MemberRole::Voter)).collect();
        let (step, node) = (Step::Add, NODES[3]);
        Self { step, node, next: 0, members, old_marks: vec![], asked: 0, in_flight: 0, cut_off: BTreeMap::new() }
    }

    /// The node that has to come back empty before it can be added again.
    pub(crate) fn to_empty(&self) -> Option<&'static str> {
        // The first one to be added never took part.
        (self.step == Step::Add && self.asked > 0).then_some(self.node)
    }

    /// Moves the data folder of [`Self::to_empty`] away, which was killed, and starts it as one that waits to be added.
    pub(crate) fn start_empty(&mut self, cluster: &mut Cluster) {
        let node = cluster.node(self.node);
        node.wait_for_guard();
        self.old_marks.extend(node.mark());
        fs::remove_dir_all(node.data()).expect("its data");
        node.set_flag("--join");
        node.start();
    }

    /// Asks for the next step, and waits for nothing.
    pub(crate) fn ask(&mut self, cluster: &Cluster) -> Asked {
        let node = self.node;
        let words = match self.step {
            Step::Add => format!("cluster members add {node} {}", cluster.address(node)),
            Step::Promote => format!("cluster members promote {node}"),
            Step::Remove => format!("cluster members remove {node}"),
        };
        self.asked += 1;
        let mut pando = cluster.cli_command(&words.split(' ').collect::<Vec<_>>());
        let pando = pando.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Asked { words, pando: pando.expect("pando runs") }
    }

    /// Something dies now.
    pub(crate) fn note_death(&mut self, asked: &mut Asked) {
        self.in_flight += usize::from(asked.pando.try_wait().expect("a child to wait for").is_none());
    }

    /// Waits for the answer, asks again where it was no good one, and checks that the members are what was asked for.
    pub(crate) async fn settle(&mut self, asked: Asked, cluster: &Cluster) {
        let Asked { words, pando } = asked;
        let output = pando.wait_with_output().expect("pando ends");
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            // What may have been done, what no leader was found for, and what was refused since somebody was down just then.
            assert!(matches!(output.status.code(), Some(1 | 3 | 4)), "pando {words}: {}: {said}", output.status);
            println!("cut off: pando {words}: {}", said.trim());
            *self.cut_off.entry(format!("{:?}", self.step)).or_insert(0) += 1;
            done(cluster, &words);
        }
        self.take_step();
        let now = members(cluster).await;
        let roles: BTreeMap<_, _> = now.iter().map(|member| (member.name.to_string(), member.role)).collect();
        assert_eq!(roles, self.members, "after pando {words}: {now:#?}");
        assert_eq!(roles.len(), now.len(), "each is a member once: {now:#?}");
    }

    fn take_step(&mut self) {
        let node = self.node.to_owned();
        match self.step {
            Step::Add => {
                self.members.insert(node, MemberRole::Learner);
                self.step = Step::Promote;
            }
            Step::Promote => {
                self.members.insert(node, MemberRole::Voter);
                (self.step, self.node) = (Step::Remove, NODES[self.next % NODES.len()]);
                self.next += 1;
            }
            Step::Remove => {
                self.members.remove(&node);
                self.step = Step::Add;
            }
        }
    }

    /// Checks what must be so at the end, and says what was done.
    pub(crate) fn end(self) {
        let left: Vec<u32> = self.old_marks.iter().flat_map(|mark| marked_processes(mark)).collect();
        assert!(left.is_empty(), "nothing runs under a data folder that was moved away: {left:?}");
        let Self { asked, in_flight, cut_off, old_marks, .. } = self;
        println!(
            "{asked} changes of members asked for and done, {in_flight} of them unanswered when something died, {} cut off \
             and asked for again: {cut_off:?}; {} data folders moved away",
            cut_off.values().sum::<usize>(),
            old_marks.len()
        );
    }
}

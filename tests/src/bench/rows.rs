//! The rows: what is measured, in which unit, beside whom, and the goal.

use clap::ValueEnum;

/// A number that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Row {
    /// A durable command, one client.
    Command,
    /// Durable commands of 64 clients.
    Commands64,
    /// Durable commands of 1,000 clients.
    Commands1000,
    /// A child that exits: beyond the backoff, until the first instruction of the next run.
    Restart,
    /// A node process is killed, the leader survives: until its child's first instruction elsewhere.
    NodeKilled,
    /// The same, the leader's node.
    LeadingNodeKilled,
    /// A node process and its guard are killed at once.
    NodeGone,
    /// A node process is stopped (SIGSTOP).
    NodeHung,
    /// Leader killed under the writes of 8 clients: the longest gap between acknowledged ones.
    WriteGap,
    /// Leader stopped (SIGSTOP): the same.
    WriteGapHung,
    /// A client that connects when the leader is killed: how much later than the others it is served.
    LateClient,
    /// A child that always fails: restarts in its first 3 s.
    FailingRestarts,
    /// The same: CPU time of all processes of Pando, above idle.
    FailingCpu,
    /// 100 children, nothing to do: CPU of a node with its guard and reapers.
    IdleCpu,
    /// The same: their memory.
    IdleMemory,
    /// 10,000 children: what each takes in a voter.
    TreeMemory,
    /// The same: committed starts.
    TreeStarts,
    /// The same: how long the whole tree takes to be read.
    TreeAnswer,
    /// Both cores busy for 10 minutes: losses of nodes.
    BusyLosses,
    /// The same: elections.
    BusyElections,
    /// Publish 100 B, 1,000 in flight, fsynced on a majority.
    Publish,
    /// Consume and settle, prefetch 100.
    Consume,
    /// Publish and consume at once, from the first publish to the last settlement.
    Both,
    /// 10,000 messages of which 10 fail by the worker's word, 3 attempts.
    Failing,
    /// The same, where the worker's process aborts.
    Aborting,
    /// Leader killed during steady publish and consume: the longest time without a confirmation.
    LeaderConfirms,
    /// The same: the longest time without a message that a worker handled.
    LeaderHandles,
    /// 1,000,000 waiting messages of 100 B: the largest voter after a snapshot.
    Memory,
    /// The same: the largest that a voter was while they came in and the snapshot was written.
    MemoryPeak,
    /// The same: what a small write waited longest while the snapshot was written.
    SnapshotStall,
}

/// What is measured in one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// Durable commands.
    Commands,
    /// A child that exits.
    Restart,
    /// Nodes that die or hang, and what ran there.
    Failover,
    /// Leaders that die or hang, and who writes meanwhile.
    Gaps,
    /// A child that always fails.
    AlwaysFailing,
    /// Nothing to do.
    Idle,
    /// Very many children.
    ManyChildren,
    /// A machine that has too much to do.
    Busy,
    /// Messages a second.
    Throughput,
    /// Poison by the worker's word.
    Failing,
    /// Poison that kills.
    Aborting,
    /// The leader dies under messages.
    Leader,
    /// Many messages wait.
    Memory,
}

/// Whom Pando is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// What the kernel takes for the same without anybody who decides or remembers.
    Floor,
    /// runit's supervisor of one process.
    Runsv,
    /// etcd, three members.
    Etcd,
    /// NATS JetStream, a stream with three replicas.
    Nats,
    /// RabbitMQ, a quorum queue.
    Rabbit,
}

/// What is to be reached.
#[derive(Debug, Clone, Copy)]
pub enum Goal {
    /// By the median: at least so many times each of these.
    Times(&'static [(Peer, f64)]),
    /// By the median: at most so many times this one.
    AtMostTimes(Peer, f64),
    /// By the median: at least so much.
    AtLeast(f64),
    /// By the median: at most so much.
    AtMost(f64),
    /// By the median, and by the largest of all.
    Within { median: f64, most: f64 },
    /// Each of them.
    Between(f64, f64),
}

/// What a row is.
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    /// What it is measured with.
    pub subject: Subject,
    /// What is measured, in words.
    pub what: &'static str,
    /// The unit.
    pub unit: &'static str,
    /// What is to be reached; `None`: it is only told.
    pub goal: Option<Goal>,
}

/// A lease, and what a node that is gone may take beyond it. Milliseconds.
const GONE_WITHIN: Goal = Goal::AtMost(2_000.0 + 300.0);

impl Row {
    /// Every row, in the order in which they are shown.
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// Its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// What it is.
    pub fn facts(self) -> Facts {
        use Goal::{AtLeast, AtMost, AtMostTimes, Between, Times, Within};
        let row = |subject, what, unit, goal| Facts { subject, what, unit, goal: Some(goal) };
        match self {
            Self::Command => {
                row(Subject::Commands, "durable command, one client, median", "ms", AtMostTimes(Peer::Etcd, 1.0))
            }
            Self::Commands64 => {
                row(Subject::Commands, "durable commands, 64 clients", "/s", Times(&[(Peer::Etcd, 3.0)]))
            }
            Self::Commands1000 => {
                row(Subject::Commands, "durable commands, 1,000 clients", "/s", Times(&[(Peer::Etcd, 7.0)]))
            }
            Self::Restart => {
                let what = "exit to the next first instruction, less the backoff of Pando";
                row(Subject::Restart, what, "ms", AtMostTimes(Peer::Floor, 2.5))
            }
            Self::NodeKilled => {
                let what = "node process kill -9, the leader survives: first beat elsewhere";
                row(Subject::Failover, what, "ms", AtMost(30.0))
            }
            Self::LeadingNodeKilled => {
                row(Subject::Failover, "the leader's node process kill -9: the same", "ms", AtMost(150.0))
            }
            Self::NodeGone => row(Subject::Failover, "node process and guard kill -9: the same", "ms", GONE_WITHIN),
            Self::NodeHung => row(Subject::Failover, "node process SIGSTOP: the same", "ms", GONE_WITHIN),
            Self::WriteGap => {
                let what = "leader kill -9: longest gap of acknowledged writes, 8 clients";
                row(Subject::Gaps, what, "ms", Within { median: 60.0, most: 200.0 })
            }
            Self::WriteGapHung => row(Subject::Gaps, "leader SIGSTOP: the same", "ms", AtMost(800.0)),
            Self::LateClient => {
                let what = "a client that connects at the kill: served later than the first of the others by";
                row(Subject::Gaps, what, "ms", AtMost(100.0))
            }
            Self::FailingRestarts => {
                let what = "a child that always fails (50 ms..1 s): restarts in its first 3 s";
                row(Subject::AlwaysFailing, what, "", Between(6.0, 10.0))
            }
            Self::FailingCpu => {
                let what = "the same: CPU of all nodes, guards and reapers above idle";
                row(Subject::AlwaysFailing, what, "ms", AtMost(30.0))
            }
            Self::IdleCpu => {
                let what = "3 nodes, 100 children, idle: a node with guard and reapers, of a core";
                row(Subject::Idle, what, "%", AtMost(3.0))
            }
            Self::IdleMemory => row(Subject::Idle, "the same: PSS", "MB", AtMost(60.0)),
            Self::TreeMemory => {
                row(Subject::ManyChildren, "10,000 children: PSS of a voter for each", "KB", AtMost(2.0))
            }
            Self::TreeStarts => row(Subject::ManyChildren, "the same: committed starts", "/s", AtLeast(10_000.0)),
            Self::TreeAnswer => row(Subject::ManyChildren, "the same: all of `tree`, by a client", "ms", AtMost(200.0)),
            Self::BusyLosses => row(Subject::Busy, "both cores busy, 10 min: losses of nodes", "", AtMost(0.0)),
            Self::BusyElections => row(Subject::Busy, "the same: elections", "", AtMost(0.0)),
            Self::Publish => {
                let goal = Times(&[(Peer::Nats, 1.8), (Peer::Rabbit, 7.0)]);
                row(Subject::Throughput, "publish 100 B, 1,000 in flight", "/s", goal)
            }
            Self::Consume => {
                let goal = Times(&[(Peer::Nats, 1.5), (Peer::Rabbit, 10.0)]);
                row(Subject::Throughput, "consume and settle, prefetch 100", "/s", goal)
            }
            Self::Both => row(Subject::Throughput, "both at once, end to end", "/s", Times(&[(Peer::Nats, 1.5)])),
            Self::Failing => {
                let what = "10,000 with 10 poison, the worker says failed";
                row(Subject::Failing, what, "s", AtMostTimes(Peer::Nats, 1.0))
            }
            Self::Aborting => row(Subject::Aborting, "10,000 with 10 poison, the worker aborts", "s", AtMost(0.5)),
            Self::LeaderConfirms => {
                row(Subject::Leader, "leader kill -9: longest gap of confirmations", "ms", AtMost(100.0))
            }
            Self::LeaderHandles => {
                let what = "leader kill -9: longest gap of handled messages";
                Facts { subject: Subject::Leader, what, unit: "ms", goal: None }
            }
            Self::Memory => {
                row(Subject::Memory, "1,000,000 waiting of 100 B: PSS of a voter after", "MB", AtMost(300.0))
            }
            Self::MemoryPeak => {
                row(Subject::Memory, "1,000,000 waiting of 100 B: largest PSS of a voter", "MB", AtMost(300.0))
            }
            Self::SnapshotStall => {
                row(Subject::Memory, "the same: longest small write during a snapshot", "ms", AtMost(5.0))
            }
        }
    }

    /// What it is measured with.
    pub fn subject(self) -> Subject {
        self.facts().subject
    }
}

impl Subject {
    /// Every subject, in order.
    pub const ALL: [Self; 13] = [
        Self::Commands,
        Self::Restart,
        Self::Failover,
        Self::Gaps,
        Self::AlwaysFailing,
        Self::Idle,
        Self::ManyChildren,
        Self::Busy,
        Self::Throughput,
        Self::Failing,
        Self::Aborting,
        Self::Leader,
        Self::Memory,
    ];

    /// Whom it is compared with.
    pub fn peers(self) -> &'static [Peer] {
        match self {
            Self::Commands => &[Peer::Floor, Peer::Etcd],
            Self::Restart => &[Peer::Floor, Peer::Runsv],
            Self::Gaps => &[Peer::Etcd],
            Self::Throughput | Self::Failing | Self::Aborting | Self::Leader => &[Peer::Nats, Peer::Rabbit],
            Self::Failover | Self::AlwaysFailing | Self::Idle | Self::ManyChildren | Self::Busy | Self::Memory => &[],
        }
    }
}

impl Peer {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Runsv => "runsv",
            Self::Etcd => "etcd",
            Self::Nats => "NATS",
            Self::Rabbit => "RabbitMQ",
        }
    }
}

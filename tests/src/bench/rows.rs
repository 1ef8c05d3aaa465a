//! The rows: what is measured, in which unit, and the goal.

use clap::ValueEnum;

/// A number that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Row {
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
    /// Messages a second.
    Throughput,
    /// Poison by the worker's word.
    Failing,
    /// Poison that kills.
    Aborting,
    /// The leader dies.
    Leader,
    /// Many messages wait.
    Memory,
}

/// Whom Pando is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// NATS JetStream, a stream with three replicas.
    Nats,
    /// RabbitMQ, a quorum queue.
    Rabbit,
}

/// What the median is to reach.
#[derive(Debug, Clone, Copy)]
pub enum Goal {
    /// At least so many times each of these.
    Times(&'static [(Peer, f64)]),
    /// At most what this one takes.
    NoWorseThan(Peer),
    /// At most so much.
    Bound(f64),
}

impl Row {
    /// Every row, in the order in which they are shown.
    pub const ALL: [Self; 10] = [
        Self::Publish,
        Self::Consume,
        Self::Both,
        Self::Failing,
        Self::Aborting,
        Self::LeaderConfirms,
        Self::LeaderHandles,
        Self::Memory,
        Self::MemoryPeak,
        Self::SnapshotStall,
    ];

    /// Its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// What is measured, in words.
    pub fn what(self) -> &'static str {
        match self {
            Self::Publish => "publish 100 B, 1,000 in flight",
            Self::Consume => "consume and settle, prefetch 100",
            Self::Both => "both at once, end to end",
            Self::Failing => "10,000 with 10 poison, the worker says failed",
            Self::Aborting => "10,000 with 10 poison, the worker aborts",
            Self::LeaderConfirms => "leader kill -9: longest gap of confirmations",
            Self::LeaderHandles => "leader kill -9: longest gap of handled messages",
            Self::Memory => "1,000,000 waiting of 100 B: PSS of a voter after",
            Self::MemoryPeak => "1,000,000 waiting of 100 B: largest PSS of a voter",
            Self::SnapshotStall => "the same: longest small write during a snapshot",
        }
    }

    /// The unit.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Publish | Self::Consume | Self::Both => "/s",
            Self::Failing | Self::Aborting => "s",
            Self::LeaderConfirms | Self::LeaderHandles | Self::SnapshotStall => "ms",
            Self::Memory | Self::MemoryPeak => "MB",
        }
    }

    /// What is to be reached; `None`: it is only told.
    pub fn goal(self) -> Option<Goal> {
        match self {
            Self::Publish => Some(Goal::Times(&[(Peer::Nats, 1.8), (Peer::Rabbit, 7.0)])),
            Self::Consume => Some(Goal::Times(&[(Peer::Nats, 1.5), (Peer::Rabbit, 10.0)])),
            Self::Both => Some(Goal::Times(&[(Peer::Nats, 1.5)])),
            Self::Failing => Some(Goal::NoWorseThan(Peer::Nats)),
            Self::Aborting => Some(Goal::Bound(0.5)),
            Self::LeaderConfirms => Some(Goal::Bound(100.0)),
            Self::LeaderHandles => None,
            Self::Memory | Self::MemoryPeak => Some(Goal::Bound(300.0)),
            Self::SnapshotStall => Some(Goal::Bound(5.0)),
        }
    }

    /// What it is measured with.
    pub fn subject(self) -> Subject {
        match self {
            Self::Publish | Self::Consume | Self::Both => Subject::Throughput,
            Self::Failing => Subject::Failing,
            Self::Aborting => Subject::Aborting,
            Self::LeaderConfirms | Self::LeaderHandles => Subject::Leader,
            Self::Memory | Self::MemoryPeak | Self::SnapshotStall => Subject::Memory,
        }
    }
}

impl Subject {
    /// Every subject, in order.
    pub const ALL: [Self; 5] = [Self::Throughput, Self::Failing, Self::Aborting, Self::Leader, Self::Memory];

    /// Whom it is compared with.
    pub fn peers(self) -> &'static [Peer] {
        match self {
            Self::Throughput | Self::Failing | Self::Aborting | Self::Leader => &[Peer::Nats, Peer::Rabbit],
            Self::Memory => &[],
        }
    }
}

impl Peer {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nats => "NATS",
            Self::Rabbit => "RabbitMQ",
        }
    }
}

//! What processes take of the machine, as the kernel counts it.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use crate::cluster::Cluster;

/// CPU time so far of everyone who takes part, in microseconds.
#[derive(Debug)]
pub struct Cpu(Vec<(&'static str, u64)>);

impl Cpu {
    /// Reads it. The workers are children of nodes: they are one entry, and those that end meanwhile are not counted.
    pub fn now(cluster: &mut Cluster, leader: &str) -> Self {
        let workers = cluster.all_children().keys().map(|pid| cpu_micros(*pid)).sum();
        let (mut leads, mut follow) = (0, 0);
        for node in cluster.nodes() {
            let micros = cpu_micros(node.pid());
            if node.name().as_str() == leader { leads += micros } else { follow += micros }
        }
        let client = cpu_micros(std::process::id());
        Self(vec![("leader", leads), ("followers together", follow), ("worker", workers), ("client", client)])
    }

    /// What was taken since `before`, for each of so many messages.
    pub fn since(&self, before: &Self, messages: u32) -> Vec<(&'static str, f64)> {
        let pairs = self.0.iter().zip(&before.0);
        let taken = pairs.map(|((who, now), (_, then))| (*who, now.saturating_sub(*then) as f64 / f64::from(messages)));
        taken.filter(|(_, micros)| *micros > 0.0).collect()
    }
}

/// CPU time of a process so far, with that of its threads that have ended. /proc counts in hundredths of a second.
fn cpu_micros(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.filter_map(|field| field.parse::<u64>().ok()).sum::<u64>() * 10_000
}

/// The proportional set size of a process, in bytes.
pub fn pss_bytes(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or_default() * 1024
}

/// CPU time of the living threads of a process so far, by the scheduler's own count.
pub fn scheduled(pid: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let nanos = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

/// The CPU time that every process of Pando took, also that of reapers which end meanwhile: it has to be looked at often.
#[derive(Debug, Default)]
pub struct Scheduled(BTreeMap<u32, (Duration, Duration)>);

impl Scheduled {
    /// Looks at all nodes, their guards and their reapers. A reaper counts from its start on.
    pub fn look(&mut self, cluster: &mut Cluster) {
        let is_first = self.0.is_empty();
        let nodes: Vec<(u32, u32, Vec<u32>)> =
            cluster.nodes().map(|node| (node.pid(), node.guard(), node.reapers())).collect();
        for pid in nodes.into_iter().flat_map(|(node, guard, reapers)| [node, guard].into_iter().chain(reapers)) {
            let now = scheduled(pid);
            let (_, last) = self.0.entry(pid).or_insert((if is_first { now } else { Duration::ZERO }, now));
            *last = now.max(*last);
        }
    }

    /// What was taken between the first look and the last.
    pub fn taken(&self) -> Duration {
        self.0.values().map(|(first, last)| last.saturating_sub(*first)).sum()
    }
}

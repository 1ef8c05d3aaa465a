//! What processes take of the machine, as the kernel counts it.

use std::fs;

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

//! What this voter measures of its own work, and what waits for it.

use openraft::AsyncRuntime;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::control::Control;

/// Registers how long its work takes, what waits for it, and what it keeps on disk.
pub(super) fn of_work<R: AsyncRuntime>(registry: &mut Registry, control: &Control<R>) {
    let instruments = &control.instruments;
    let durations = [
        ("commit", "From handing an entry to Raft to its outcome, on the node that leads", &instruments.commit),
        ("log_sync", "From an append to the log to the end of the fsync that covers it", &instruments.sync),
        ("apply", "Applying all commands of an entry to the state", &instruments.apply),
        ("snapshot", "Writing and verifying a snapshot, beside all other work", &instruments.snapshot),
    ];
    for (name, help, durations) in durations {
        registry.register_with_unit(name, help, Unit::Seconds, durations.histogram());
    }
    let mut gauge = |name: &str, help: &str, unit: Option<Unit>, value: u64| {
        let gauge: Gauge = Gauge::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        match unit {
            Some(unit) => registry.register_with_unit(name, help, unit, gauge),
            None => registry.register(name, help, gauge),
        }
    };
    let term = control.leadership.borrow().term;
    gauge("raft_term", "The term of Raft that this voter knows: it rises with each election", None, term);
    let (waiting, mail) = control.waiting();
    gauge("proposals_waiting", "Commands that wait for the proposer, messages aside", None, waiting);
    gauge(
        "mail_on_its_way",
        "Bytes of messages, and of what is said of them, on their way into the log: at most 8 MiB",
        Some(Unit::Bytes),
        mail,
    );
    let kept = *control.kept.borrow();
    gauge("log", "The log of Raft on disk, as of the last second", Some(Unit::Bytes), kept.log);
    gauge("last_snapshot", "The newest snapshot on disk", Some(Unit::Bytes), kept.snapshot);
}

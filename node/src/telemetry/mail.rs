//! The metrics of mailboxes. One series for each mailbox, and one for each cause or payer where there are several: what is in a
//! mailbox, be it a message or a worker, never makes a series.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use pando_protocol::mail::DeathKind;
use pando_supervision::Cluster;
use pando_supervision::mail::{Ledger, Mailbox, State};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfMailbox {
    mailbox: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfDeath {
    mailbox: String,
    cause: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPayer {
    mailbox: String,
    payer: String,
}

/// How a number is read off something.
type Read<T> = fn(&T) -> u64;
/// A name, its help, and how its number is read.
type Metric<T> = (&'static str, &'static str, Read<T>);
type Gauges = Family<OfMailbox, Gauge>;
type Counters = Family<OfMailbox, Counter>;
type Seconds = Family<OfMailbox, Gauge<f64, AtomicU64>>;
type SecondsTotal = Family<OfMailbox, Counter<f64, AtomicU64>>;

/// Registers the metrics of every mailbox.
pub(super) fn of_mailboxes(registry: &mut Registry, cluster: &Cluster) {
    let gauges: [Metric<Mailbox>; 8] = [
        ("mailbox_waiting", "Messages that wait for a worker, those in a delay included", Mailbox::waiting),
        ("mailbox_in_flight", "Messages that workers hold", Mailbox::in_flight),
        ("mailbox_undecided", "Waiting messages that wait for the verdict on a worker", |mailbox| {
            mailbox.queues.undecided.len() as u64
        }),
        ("mailbox_bytes", "Bytes that count against max_bytes, dead letters included", |mailbox| mailbox.bytes),
        ("mailbox_bytes_limit", "The bound of bytes: max_bytes", |mailbox| mailbox.spec.max_bytes),
        ("mailbox_messages_limit", "The bound of messages, dead letters included: max_messages", |mailbox| {
            u64::from(mailbox.spec.max_messages)
        }),
        ("mailbox_paused", "1 while an operator has it paused", |mailbox| u64::from(mailbox.paused)),
        ("mailbox_sick_workers", "Workers that are taken for sick: alert on it", |mailbox| {
            mailbox.workers.values().filter(|worker| worker.sick).count() as u64
        }),
    ];
    for (name, help, value) in gauges {
        let family = Gauges::default();
        registry.register(name, help, family.clone());
        for (path, mailbox) in &cluster.mail {
            let of = OfMailbox { mailbox: path.to_string() };
            family.get_or_create(&of).set(i64::try_from(value(mailbox)).unwrap_or(i64::MAX));
        }
    }
    let counters: [Metric<Ledger>; 5] = [
        ("mailbox_enqueued", "Messages taken in", |ledger| ledger.enqueued),
        ("mailbox_done", "Messages handled", |ledger| ledger.done),
        ("mailbox_purged", "Messages that operators purged", |ledger| ledger.purged),
        ("mailbox_hand_outs", "Messages handed to workers", |ledger| ledger.handed),
        ("mailbox_redeliveries", "Hand-outs beyond the first of each life of a message", |ledger| ledger.redelivered),
    ];
    for (name, help, value) in counters {
        let family = Counters::default();
        registry.register(name, help, family.clone());
        for (path, mailbox) in &cluster.mail {
            family.get_or_create(&OfMailbox { mailbox: path.to_string() }).inc_by(value(&mailbox.ledger));
        }
    }
    deaths(registry, cluster);
    attempts(registry, cluster);
    times(registry, cluster);
}

fn deaths(registry: &mut Registry, cluster: &Cluster) {
    let (dead, died) = (Family::<OfDeath, Gauge>::default(), Family::<OfDeath, Counter>::default());
    registry.register("mailbox_dead_letters", "Dead letters that are kept, by cause", dead.clone());
    registry.register(
        "mailbox_deaths",
        "Messages that were set aside as dead letters, by cause: alert on its rise",
        died.clone(),
    );
    for (path, mailbox) in &cluster.mail {
        let mut kept = BTreeMap::<DeathKind, i64>::new();
        for letter in mailbox.dead.values() {
            *kept.entry(letter.kind).or_default() += 1;
        }
        for kind in DeathKind::ALL {
            let of = OfDeath { mailbox: path.to_string(), cause: kind.as_str().to_owned() };
            dead.get_or_create(&of).set(kept.get(&kind).copied().unwrap_or(0));
            died.get_or_create(&of).inc_by(mailbox.ledger.died.get(&kind).copied().unwrap_or(0));
        }
    }
}

fn attempts(registry: &mut Registry, cluster: &Cluster) {
    let payers: [(&str, Read<Ledger>); 4] = [
        ("message", |ledger| ledger.charged),
        ("worker", |ledger| ledger.worker_paid),
        ("node_loss", |ledger| ledger.node_losses),
        ("nobody", |ledger| ledger.unpaid),
    ];
    let family = Family::<OfPayer, Counter>::default();
    registry.register(
        "mailbox_failed_attempts",
        "Attempts at messages that ended in anything but success, by who paid; undecided ones are not counted yet",
        family.clone(),
    );
    for (path, mailbox) in &cluster.mail {
        for (payer, value) in payers {
            let of = OfPayer { mailbox: path.to_string(), payer: payer.to_owned() };
            family.get_or_create(&of).inc_by(value(&mailbox.ledger));
        }
    }
}

fn times(registry: &mut Registry, cluster: &Cluster) {
    let oldest = Seconds::default();
    registry.register_with_unit(
        "mailbox_oldest_age",
        "Cluster time since the oldest waiting message was taken in; 0 where none waits",
        Unit::Seconds,
        oldest.clone(),
    );
    let (waited, worked) = (SecondsTotal::default(), SecondsTotal::default());
    registry.register_with_unit(
        "mailbox_hand_out_latency",
        "Sum over the first hand-outs of messages of the cluster time since they were taken in: divide its rise by that of hand-outs less redeliveries",
        Unit::Seconds,
        waited.clone(),
    );
    registry.register_with_unit(
        "mailbox_settlement_latency",
        "Sum over messages done of the cluster time since they were handed out: divide its rise by that of done",
        Unit::Seconds,
        worked.clone(),
    );
    for (path, mailbox) in &cluster.mail {
        let of = OfMailbox { mailbox: path.to_string() };
        let waiting = mailbox.messages.values().find(|message| !matches!(message.state, State::Held(_)));
        let age = waiting.map_or(0.0, |message| cluster.head.now.saturating_sub(message.content.at).as_secs_f64());
        oldest.get_or_create(&of).set(age);
        waited.get_or_create(&of).inc_by(mailbox.ledger.waited.as_secs_f64());
        worked.get_or_create(&of).inc_by(mailbox.ledger.worked.as_secs_f64());
    }
}

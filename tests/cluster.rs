//! Floor 3: real `pando-node` processes on loopback, killed, stopped, continued and restarted.

#[path = "cluster/blinks.rs"]
mod blinks;
#[path = "cluster/cases.rs"]
mod cases;
#[path = "cluster/clocks.rs"]
mod clocks;
#[path = "cluster/drains.rs"]
mod drains;
#[path = "cluster/endpoints.rs"]
mod endpoints;
#[path = "cluster/failover.rs"]
mod failover;
#[path = "cluster/groups.rs"]
mod groups;
#[path = "cluster/health.rs"]
mod health;
#[path = "cluster/kills.rs"]
mod kills;
#[path = "cluster/mail.rs"]
mod mail;
#[path = "cluster/majority.rs"]
mod majority;
#[path = "cluster/mass.rs"]
mod mass;
#[path = "cluster/members.rs"]
mod members;
#[path = "cluster/nodes.rs"]
mod nodes;
#[path = "cluster/poison.rs"]
mod poison;
#[path = "cluster/quorum.rs"]
mod quorum;
#[path = "cluster/relay.rs"]
mod relay;
#[path = "cluster/renewal.rs"]
mod renewal;
#[path = "cluster/restarts.rs"]
mod restarts;
#[path = "cluster/rotation.rs"]
mod rotation;
#[path = "cluster/sessions.rs"]
mod sessions;
#[path = "cluster/silent_leader.rs"]
mod silent_leader;
#[path = "cluster/snapshots.rs"]
mod snapshots;
#[path = "cluster/time.rs"]
mod time;
#[path = "cluster/top.rs"]
mod top;
#[path = "cluster/upgrade.rs"]
mod upgrade;
#[path = "cluster/writes.rs"]
mod writes;

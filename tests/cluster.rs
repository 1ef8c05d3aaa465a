//! Floor 3: real `pando-node` processes on loopback, killed, stopped, continued and restarted.

#[path = "cluster/cases.rs"]
mod cases;
#[path = "cluster/failover.rs"]
mod failover;
#[path = "cluster/kills.rs"]
mod kills;
#[path = "cluster/members.rs"]
mod members;
#[path = "cluster/relay.rs"]
mod relay;
#[path = "cluster/restarts.rs"]
mod restarts;
#[path = "cluster/sessions.rs"]
mod sessions;
#[path = "cluster/writes.rs"]
mod writes;

//! Floor 3: real `pando-node` processes on loopback, killed, stopped, continued and restarted.

#[path = "cluster/failover.rs"]
mod failover;

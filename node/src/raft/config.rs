//! How openraft is set up. Each value that is not its default is here for a reason given beside it.

use std::time::Duration;

use openraft::{Config, SnapshotPolicy};

/// The times of Raft. Design section 6: lan 50 ms, 150–300 ms; wan 500 ms, 1500–3000 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// How often a leader shows that it lives.
    pub heartbeat: Duration,
    /// The shortest silence after which a follower campaigns.
    pub election_min: Duration,
    /// The longest, exclusive. Also how long a leader's lease lasts: a silent leader is replaced after at most twice this.
    pub election_max: Duration,
}

/// openraft's configuration for the cluster of this name. Whether the times fit each other is checked by
/// [`Config::validate`], which openraft calls.
pub fn raft_config(cluster: &str, times: &Times) -> Config {
    let election_max = milliseconds(times.election_max);
    Config {
        cluster_name: cluster.to_owned(),
        heartbeat_interval: milliseconds(times.heartbeat),
        election_timeout_min: milliseconds(times.election_min),
        election_timeout_max: election_max,
        // The default lets a restarted leader go on in its old term. Entries are sent before the leader's own disk has
        // them, so it could use one log id for two entries: acknowledged writes would differ between voters.
        enable_leader_restore: Some(false),
        // A node that was cut off must not depose a healthy leader when it returns.
        enable_pre_vote: Some(true),
        // A voter whose torn end was cut may lack what it acknowledged, where its disk lied. The leader sends it again; else it
        // would fall over it (an assertion of openraft). All that goes back is what the leader believes of this one follower: what
        // a quorum accepted, and what is committed, only ever grow, and a lost entry counts for no new quorum until it is there
        // again. It has one copy less until then, and a vote that was lost with it can be given again; no setting helps there.
        allow_log_reversion: Some(true),
        // Our own task decides both by bytes: storage::retention. Counts of entries know neither sizes nor followers.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        // Reads for replication are bounded by bytes; this only bounds the number of tiny entries.
        max_payload_entries: 1000,
        // Lets a majority that forms again after a split find a leader soon.
        quorum_loss_probe_interval: Some(election_max.saturating_mul(2)),
        ..Config::default()
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_profiles_are_accepted_and_keep_what_safety_needs() {
        for (heartbeat, min, max) in [(50, 150, 300), (500, 1500, 3000)] {
            let [heartbeat, election_min, election_max] = [heartbeat, min, max].map(Duration::from_millis);
            let config = raft_config("shop", &Times { heartbeat, election_min, election_max });
            let config = config.validate().unwrap();
            assert_eq!(config.enable_leader_restore, Some(false));
            assert_eq!(config.enable_pre_vote, Some(true));
            assert_eq!(config.election_timeout_max, max);
        }
    }
}

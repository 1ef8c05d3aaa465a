//! Configuration: from flags and environment, merged and checked once at start. Parts receive values, not this.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::FalseyValueParser;
use clap::{Args, Parser, ValueEnum};
use pando_protocol::ids::NodeName;
use pando_protocol::spec::Label;

use crate::storage::retention::DEFAULT_LOG_BYTES;

/// A lease lasts at least this many of the longest election, so that an election fits into it with room to spare.
const ELECTIONS_IN_A_LEASE: u32 = 6;

/// A node of a Pando cluster: runs children, and, where its name stands among the voters, takes part in Raft.
#[derive(Debug, Parser)]
#[command(name = "pando-node run", version, max_term_width = 110)]
pub struct Arguments {
    /// Name of this node, as in its certificate
    #[arg(long, env = "PANDO_NODE_NAME")]
    name: NodeName,
    /// Folder for everything the node keeps; made if missing
    #[arg(long, env = "PANDO_NODE_DATA", value_name = "DIR")]
    data: PathBuf,
    /// Folder with ca.pem, cert.pem and key.pem, as `pando certs` makes it
    #[arg(long, env = "PANDO_NODE_IDENTITY", value_name = "DIR")]
    identity: PathBuf,
    /// Address to listen on, UDP and TCP
    #[arg(long, env = "PANDO_NODE_LISTEN", default_value = "0.0.0.0:7400")]
    listen: SocketAddr,
    /// host:port by which the other nodes reach this one
    #[arg(long, env = "PANDO_NODE_ADVERTISE", value_name = "HOST:PORT", value_parser = address)]
    advertise: String,
    /// The voters with which the cluster begins, the same on every node; where voters have changed since, those that there are
    /// now: name=host:port
    #[arg(long, env = "PANDO_NODE_VOTERS", value_delimiter = ',', required = true, value_name = "NAME=HOST:PORT", value_parser = voter)]
    voters: Vec<(NodeName, String)>,
    /// Waits to be made a voter by `pando cluster members add`, and never begins a cluster; --voters names some that it can ask
    #[arg(long, env = "PANDO_NODE_JOIN")]
    join: bool,
    /// A label of this node, for placement: key=value
    #[arg(long = "label", env = "PANDO_NODE_LABELS", value_delimiter = ',', value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<Label>,
    /// Room for children
    #[arg(long, env = "PANDO_NODE_SLOTS", default_value_t = 100, value_parser = slots)]
    slots: u32,
    /// Size of the Raft log of a voter, in MiB: a snapshot is taken whenever it has grown by as much, and older entries go
    #[arg(long, env = "PANDO_NODE_LOG_SIZE", default_value_t = DEFAULT_LOG_BYTES >> 20, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    log_size: u64,
    /// Where /metrics, /healthz and /readyz are served, without TLS; "off" for nowhere
    #[arg(long, env = "PANDO_NODE_HTTP", default_value = "127.0.0.1:7480", value_name = "HOST:PORT")]
    http: String,
    /// Ends when standard input is closed: for a parent that must not be outlived
    #[arg(long, env = "PANDO_NODE_EXIT_WITH_STDIN", value_parser = FalseyValueParser::new())]
    exit_with_stdin: bool,
    #[command(flatten)]
    times: TimeArguments,
}

/// The times that belong together.
#[derive(Debug, Args)]
struct TimeArguments {
    /// The network between the nodes; sets all times below
    #[arg(long, env = "PANDO_NODE_NETWORK", value_enum, default_value = "lan")]
    network: Network,
    /// Between two Raft heartbeats, in milliseconds
    #[arg(long, env = "PANDO_NODE_HEARTBEAT", value_name = "MS", value_parser = milliseconds)]
    heartbeat: Option<u64>,
    /// Shortest election timeout, in milliseconds
    #[arg(long, env = "PANDO_NODE_ELECTION_MIN", value_name = "MS", value_parser = milliseconds)]
    election_min: Option<u64>,
    /// Longest election timeout, in milliseconds
    #[arg(long, env = "PANDO_NODE_ELECTION_MAX", value_name = "MS", value_parser = milliseconds)]
    election_max: Option<u64>,
    /// Between two beats of a session, in milliseconds
    #[arg(long, env = "PANDO_NODE_BEAT", value_name = "MS", value_parser = milliseconds)]
    beat: Option<u64>,
    /// How long children run without word from the cluster, in milliseconds
    #[arg(long, env = "PANDO_NODE_LEASE", value_name = "MS", value_parser = milliseconds)]
    lease: Option<u64>,
}

/// The kind of network between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Network {
    /// One site: round trips of a few milliseconds.
    Lan,
    /// Several sites: round trips of up to some hundred milliseconds.
    Wan,
}

/// The times of a node. Design section 6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Between two Raft heartbeats.
    pub heartbeat: Duration,
    /// Shortest election timeout.
    pub election_min: Duration,
    /// Longest election timeout.
    pub election_max: Duration,
    /// Between two beats of a session.
    pub beat: Duration,
    /// How long children run without word from the cluster.
    pub lease: Duration,
}

impl Times {
    /// Those of a profile.
    pub fn of(network: Network) -> Self {
        let ms = Duration::from_millis;
        match network {
            Network::Lan => Self {
                heartbeat: ms(50),
                election_min: ms(150),
                election_max: ms(300),
                beat: ms(200),
                lease: ms(2_000),
            },
            Network::Wan => Self {
                heartbeat: ms(500),
                election_min: ms(1_500),
                election_max: ms(3_000),
                beat: ms(1_000),
                lease: ms(20_000),
            },
        }
    }
}

/// The configuration of a node, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Its name.
    pub name: NodeName,
    /// Where it keeps everything.
    pub data: PathBuf,
    /// Its certificate and key.
    pub identity: PathBuf,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Where others reach it.
    pub advertise: String,
    /// The voters with which the cluster begins, or some of those that there are.
    pub voters: BTreeMap<NodeName, String>,
    /// Whether it waits to be added to the voters.
    pub joins: bool,
    /// Its labels.
    pub labels: Vec<Label>,
    /// Its capacity.
    pub slots: u32,
    /// The size of the Raft log, from which all bounds of log and snapshots follow. Default [`DEFAULT_LOG_BYTES`].
    pub log_bytes: u64,
    /// Where metrics and health are served; `None`: nowhere.
    pub http: Option<SocketAddr>,
    /// Whether it ends with its standard input.
    pub exit_with_stdin: bool,
    /// The kind of network.
    pub network: Network,
    /// Its times.
    pub times: Times,
    /// The version of the rules up to which it goes: that of this build.
    pub rules: u32,
}

impl Config {
    /// Whether it has a control plane: as a voter from the beginning, or as one that waits to be added.
    pub fn takes_part(&self) -> bool {
        self.joins || self.voters.contains_key(&self.name)
    }
}

/// A configuration that does not fit together.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not 1, 3, 5 or 7 voters.
    #[error("--voters names {0} nodes: a cluster has 1, 3, 5 or 7 voters, all others are agents")]
    VoterCount(usize),
    /// One name twice.
    #[error("--voters names {0} twice")]
    VoterTwice(NodeName),
    /// Two voters at one address.
    #[error("--voters says that both {0} and {1} answer at {2}: give each its own address")]
    OneAddress(NodeName, NodeName, String),
    /// A voter with another address than the others know.
    #[error("this node advertises {advertise}, but --voters says that {name} answers at {voter}: make them the same")]
    Address {
        /// This node.
        name: NodeName,
        /// What it advertises.
        advertise: String,
        /// What the voters say.
        voter: String,
    },
    /// The lease is too short.
    #[error(
        "the lease of {lease:?} is shorter than {ELECTIONS_IN_A_LEASE} times the longest election timeout of {election:?}: an election alone could end it"
    )]
    ShortLease {
        /// The lease.
        lease: Duration,
        /// The longest election timeout.
        election: Duration,
    },
    /// Times out of order.
    #[error("{0}")]
    Times(String),
    /// The address for HTTP is none.
    #[error("--http {0:?} is no address like 127.0.0.1:7480, nor \"off\"")]
    Http(String),
    /// No room at all.
    #[error("--slots 0: a node without room runs nothing; leave the node out instead")]
    NoSlots,
}

impl Arguments {
    /// Checks everything that one flag alone cannot say.
    ///
    /// # Errors
    /// [`ConfigError`], the first that is found.
    pub fn check(self) -> Result<Config, ConfigError> {
        let Self {
            name,
            data,
            identity,
            listen,
            advertise,
            voters: listed,
            join,
            labels,
            slots,
            log_size,
            http,
            exit_with_stdin,
            times,
        } = self;
        let count = listed.len();
        let mut voters: BTreeMap<NodeName, String> = BTreeMap::new();
        for (voter, address) in listed {
            if let Some((other, _)) = voters.iter().find(|(other, known)| **known == address && **other != voter) {
                return Err(ConfigError::OneAddress(other.clone(), voter, address));
            }
            if voters.insert(voter.clone(), address).is_some() {
                return Err(ConfigError::VoterTwice(voter));
            }
        }
        // One that joins begins nothing: any of the voters will do for asking.
        if !join && !matches!(count, 1 | 3 | 5 | 7) {
            return Err(ConfigError::VoterCount(count));
        }
        if let Some(voter) = voters.get(&name).filter(|voter| **voter != advertise).cloned() {
            return Err(ConfigError::Address { name, advertise, voter });
        }
        if slots == 0 {
            return Err(ConfigError::NoSlots);
        }
        let http = match http.as_str() {
            "off" => None,
            address => Some(address.parse().map_err(|_| ConfigError::Http(http.clone()))?),
        };
        let network = times.network;
        let times = times.check()?;
        Ok(Config {
            name,
            data,
            identity,
            listen,
            advertise,
            voters,
            joins: join,
            labels,
            slots,
            log_bytes: log_size << 20,
            rules: pando_supervision::RULES,
            http,
            exit_with_stdin,
            network,
            times,
        })
    }
}

impl TimeArguments {
    fn check(self) -> Result<Times, ConfigError> {
        let Self { network, heartbeat, election_min, election_max, beat, lease } = self;
        let profile = Times::of(network);
        let or = |ms: Option<u64>, usual: Duration| ms.map_or(usual, Duration::from_millis);
        let times = Times {
            heartbeat: or(heartbeat, profile.heartbeat),
            election_min: or(election_min, profile.election_min),
            election_max: or(election_max, profile.election_max),
            beat: or(beat, profile.beat),
            lease: or(lease, profile.lease),
        };
        if times.heartbeat.is_zero()
            || times.heartbeat * 2 > times.election_min
            || times.election_min >= times.election_max
        {
            let what = format!(
                "heartbeat {:?}, election {:?} to {:?}: expected 2 x heartbeat <= --election-min < --election-max",
                times.heartbeat, times.election_min, times.election_max
            );
            return Err(ConfigError::Times(what));
        }
        if times.beat.is_zero() || times.beat * 4 > times.lease {
            return Err(ConfigError::Times(format!(
                "beat {:?}: expected at most a quarter of the lease of {:?}",
                times.beat, times.lease
            )));
        }
        if times.lease < times.election_max * ELECTIONS_IN_A_LEASE {
            return Err(ConfigError::ShortLease { lease: times.lease, election: times.election_max });
        }
        Ok(times)
    }
}

fn voter(text: &str) -> Result<(NodeName, String), String> {
    let (name, address) =
        text.split_once('=').ok_or_else(|| format!("{text:?}: a voter looks like n1=10.0.0.1:7400"))?;
    let name = name.parse().map_err(|error| format!("{error}"))?;
    Ok((name, self::address(address)?))
}

fn address(text: &str) -> Result<String, String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is no host:port")),
    }
}

fn milliseconds(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "expected milliseconds, a whole number such as 200".to_owned())
}

fn slots(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "expected how many slots, a whole number such as 100".to_owned())
}

fn label(text: &str) -> Result<Label, String> {
    text.parse()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(more: &[&str]) -> Result<Config, String> {
        let base = ["pando-node", "--name", "n1", "--data", "d", "--identity", "i", "--advertise", "h1:7400"];
        let arguments = Arguments::try_parse_from(base.iter().chain(more)).map_err(|error| error.to_string())?;
        arguments.check().map_err(|error| error.to_string())
    }

    const THREE: [&str; 2] = ["--voters", "n1=h1:7400,n2=h2:7400,n3=h3:7400"];

    #[test]
    fn a_profile_sets_the_times_and_each_can_be_set_alone() {
        let config = parse(&[THREE[0], THREE[1], "--lease", "4000"]).unwrap();
        assert_eq!(config.times, Times { lease: Duration::from_secs(4), ..Times::of(Network::Lan) });
        assert_eq!(config.voters.len(), 3);
    }

    #[test]
    fn every_flag_has_its_environment_variable() {
        let command = Arguments::command();
        let flags = command.get_arguments().filter(|flag| !matches!(flag.get_id().as_str(), "help" | "version"));
        for flag in flags {
            let variable = flag.get_env().and_then(|variable| variable.to_str()).unwrap_or_default();
            assert!(variable.starts_with("PANDO_NODE_"), "--{} has {variable:?}", flag.get_long().unwrap_or_default());
        }
    }

    #[test]
    fn what_does_not_fit_together_is_refused_with_what_to_do() {
        let refused = |more: &[&str], because: &str| {
            let why = parse(more).unwrap_err();
            assert!(why.contains(because), "{why}");
        };
        refused(&["--voters", "n1=h1:7400,n2=h2:7400"], "1, 3, 5 or 7 voters");
        refused(&["--voters", "n1=h1:7400,n1=h2:7400,n3=h3:1"], "names n1 twice");
        refused(&["--voters", "n1=h1:7400,n2=h2:7400,n3=h2:7400"], "both n2 and n3 answer at h2:7400");
        refused(&["--voters", "n1=h9:7400"], "make them the same");
        refused(&["--voters", "n1"], "looks like n1=10.0.0.1:7400");
        refused(&[THREE[0], THREE[1], "--lease", "1000"], "6 times the longest election");
        refused(&[THREE[0], THREE[1], "--election-min", "60"], "2 x heartbeat");
        assert!(address("h1").unwrap_err().contains("no host:port"));
        refused(&[THREE[0], THREE[1], "--slots", "0"], "runs nothing");
        refused(&[THREE[0], THREE[1], "--log-size", "0"], "--log-size");
        refused(&[THREE[0], THREE[1], "--slots", "many"], "expected how many slots");
        refused(&[THREE[0], THREE[1], "--lease", "2s"], "expected milliseconds");
        refused(&[THREE[0], THREE[1], "--label", "zone"], "zone=a");
        refused(&[THREE[0], THREE[1], "--http", "nowhere"], "no address");
    }
}

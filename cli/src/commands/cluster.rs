//! `pando cluster`: the voters and their leader.

mod members;

use clap::{Args, Subcommand};
use pando_protocol::ids::NodeName;
use pando_protocol::message::ViewAge;
use pando_protocol::view::{ClusterRow, VoterRow};
use serde::{Serialize, Serializer};

use crate::connection::{Read, Reading, with};
use crate::context::Target;
use crate::exit::Failure;
use crate::human;
use crate::output::{self, Cell, Format, Style, Table};

/// The voters of the cluster and their leader
#[derive(Debug, Args)]
pub struct Cluster {
    #[command(subcommand)]
    verb: ClusterVerb,
}

#[derive(Debug, Subcommand)]
enum ClusterVerb {
    /// Shows the leader, the voters with their lag, and the age of this view
    Status {
        #[command(flatten)]
        reading: Reading,
    },
    /// Moves leadership
    Transfer {
        /// The voter that should lead; default: the one whose log is furthest
        #[arg(value_name = "NODE")]
        to: Option<NodeName>,
    },
    /// Shows and changes who takes part in Raft
    Members(members::Members),
}

/// The cluster and the age of the view, for programs.
#[derive(Debug, Serialize)]
struct ClusterStatus<'a> {
    #[serde(flatten, serialize_with = "for_programs")]
    cluster: ClusterRow,
    view: &'a ViewAge,
}

/// Writes the cluster as programs read it.
///
/// # Errors
/// Those of the serializer.
pub fn for_programs<S: Serializer>(cluster: &ClusterRow, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Row<'a> {
        cluster: &'a str,
        leader: Option<&'a NodeName>,
        term: u64,
        applied: u64,
        cluster_time_ms: u64,
        voters: Vec<Voter<'a>>,
    }
    #[derive(Serialize)]
    struct Voter<'a> {
        name: &'a NodeName,
        /// A text: random ids of 64 bits lie beyond what many readers of JSON keep exactly (2^53).
        raft_id: String,
        address: &'a str,
        lag: Option<u64>,
    }
    fn voter(row: &VoterRow) -> Voter<'_> {
        let VoterRow { name, raft_id, address, lag } = row;
        Voter { name, raft_id: raft_id.to_string(), address, lag: *lag }
    }
    let ClusterRow { cluster, leader, term, applied, cluster_time_ms, voters } = cluster;
    Row {
        cluster,
        leader: leader.as_ref(),
        term: *term,
        applied: *applied,
        cluster_time_ms: *cluster_time_ms,
        voters: voters.iter().map(voter).collect(),
    }
    .serialize(serializer)
}

impl Cluster {
    /// Does what was asked of the voters.
    ///
    /// # Errors
    /// The cluster refuses it or cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        match self.verb {
            ClusterVerb::Status { reading } => status(target, reading).await,
            ClusterVerb::Transfer { to } => {
                let leader = with(target, async |connection| connection.transfer(to).await).await?;
                output::emit(&format!("{leader} leads now\n"))
            }
            ClusterVerb::Members(verb) => verb.run(target).await,
        }
    }
}

async fn status(target: &Target, reading: Reading) -> Result<(), Failure> {
    let read = with(target, async |connection| connection.cluster(reading.freshness()).await).await?;
    match reading.output {
        Format::Table => output::emit(&render(&read, output::wants_colour()))?,
        Format::Json => output::emit_json(&ClusterStatus { cluster: read.value.clone(), view: &read.view })?,
    }
    reading.judge(&read.view)
}

fn render(read: &Read<ClusterRow>, colour: bool) -> String {
    let ClusterRow { cluster, leader, term, applied, cluster_time_ms, voters } = &read.value;
    let leader_name = leader.as_ref().map_or("none", NodeName::as_str);
    let age = if read.view.confirmed { "confirmed".into() } else { format!("{} old", human::millis(read.view.age_ms)) };
    let mut table = Table::new(["VOTER", "LAG", "ADDRESS", "RAFT ID"]);
    for voter in voters {
        table.row(cells(voter, leader.as_ref()));
    }
    format!(
        "cluster {cluster}: leader {leader_name}, term {term}, entry {applied} applied, cluster time {up}\n\
         view of {by}, {age}\n\n{table}",
        up = human::millis(*cluster_time_ms),
        by = read.view.answered_by,
        table = table.render(colour)
    )
}

fn cells(voter: &VoterRow, leader: Option<&NodeName>) -> [Cell; 4] {
    let VoterRow { name, raft_id, address, lag } = voter;
    let leads = leader == Some(name);
    let lag = match lag {
        _ if leads => Cell::styled("leader", Style::Green),
        None => "unknown".into(),
        Some(lag) => lag.to_string().into(),
    };
    [name.as_str().into(), lag, address.as_str().into(), raft_id.to_string().into()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(confirmed: bool) -> Read<ClusterRow> {
        let voter = |name: &str, lag| VoterRow {
            name: name.parse().unwrap(),
            raft_id: u64::MAX,
            address: "127.0.0.1:7601".into(),
            lag,
        };
        let leader = Some("n1".parse().unwrap());
        let cluster = ClusterRow {
            cluster: "grove".into(),
            leader: leader.clone(),
            term: 3,
            applied: 120,
            cluster_time_ms: 65_000,
            voters: vec![voter("n1", Some(0)), voter("n2", Some(4)), voter("n3", None)],
        };
        Read { value: cluster, view: ViewAge { answered_by: "n2".parse().unwrap(), leader, confirmed, age_ms: 4_200 } }
    }

    #[test]
    fn the_leader_and_the_lag_of_the_others_are_shown() {
        let expected = "\
cluster grove: leader n1, term 3, entry 120 applied, cluster time 1 m
view of n2, confirmed

VOTER  LAG      ADDRESS         RAFT ID
n1     leader   127.0.0.1:7601  18446744073709551615
n2     4        127.0.0.1:7601  18446744073709551615
n3     unknown  127.0.0.1:7601  18446744073709551615
";
        assert_eq!(render(&read(true), false), expected);
        assert!(render(&read(false), false).contains("view of n2, 4.2 s old"));
    }

    #[test]
    fn programs_find_leader_voters_and_the_age_of_the_view() {
        let read = read(true);
        let json = serde_json::to_value(ClusterStatus { cluster: read.value.clone(), view: &read.view }).unwrap();
        assert_eq!((&json["leader"], &json["voters"][1]["lag"]), (&"n1".into(), &4.into()));
        assert_eq!(json["voters"][0]["raft_id"], "18446744073709551615", "exact for every reader");
        assert_eq!((&json["view"]["age_ms"], &json["view"]["answered_by"]), (&4_200.into(), &"n2".into()));
    }
}

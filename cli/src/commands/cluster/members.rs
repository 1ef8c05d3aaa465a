//! `pando cluster members`: who takes part in Raft, shown and changed one by one.

use clap::{Args, Subcommand};
use pando_protocol::ids::NodeName;
use pando_protocol::message::{MemberChange, MembersChanged};
use pando_protocol::view::{MemberRole, MemberRow};

use crate::connection::{Reading, with};
use crate::context::{Target, parse_endpoint};
use crate::exit::Failure;
use crate::output::{self, Cell, Format, Style, Table};

/// Voters, which hold the log and count for majorities, and learners, which only hold it
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Members {
    #[command(subcommand)]
    change: Option<Change>,
    #[command(flatten)]
    reading: Reading,
}

#[derive(Debug, Subcommand)]
enum Change {
    /// Makes a node that was started with --join a learner
    Add {
        /// The node, as in its certificate
        name: NodeName,
        /// Where the others reach it: its --advertise
        #[arg(value_name = "HOST:PORT", value_parser = parse_endpoint)]
        address: String,
    },
    /// Makes a learner that has caught up a voter
    Promote {
        /// The learner
        name: NodeName,
    },
    /// Takes a voter or learner out; its node goes on running children
    Remove {
        /// The voter or learner
        name: NodeName,
    },
}

impl Members {
    /// Shows or changes the members.
    ///
    /// # Errors
    /// The cluster refuses it or cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        let Self { change, reading } = self;
        let change = match change {
            None => return show(target, reading).await,
            Some(Change::Add { name, address }) => MemberChange::Add { name, address },
            Some(Change::Promote { name }) => MemberChange::Promote(name),
            Some(Change::Remove { name }) => MemberChange::Remove(name),
        };
        let asked = change.clone();
        let changed = with(target, async |connection| connection.change_members(asked).await).await?;
        output::emit(&outcome(&change, &changed))
    }
}

async fn show(target: &Target, reading: Reading) -> Result<(), Failure> {
    let read = with(target, async |connection| connection.members(reading.freshness()).await).await?;
    match reading.output {
        Format::Table => output::emit(&render(&read.value, output::wants_colour()))?,
        Format::Json => output::emit_json(&read.value)?,
    }
    reading.judge(&read.view)
}

fn render(rows: &[MemberRow], colour: bool) -> String {
    if rows.is_empty() {
        return "no members are known: the cluster has not begun yet\n".into();
    }
    let mut table = Table::new(["MEMBER", "ROLE", "BEHIND", "ANSWERS", "ADDRESS", "RAFT ID"]);
    for row in rows {
        table.row(cells(row));
    }
    table.render(colour)
}

fn cells(row: &MemberRow) -> [Cell; 6] {
    let MemberRow { name, raft_id, role, address, lag, answers } = row;
    [
        name.as_str().into(),
        role_name(*role).into(),
        lag.map_or("unknown".into(), |lag| lag.to_string().into()),
        match answers {
            None => "unknown".into(),
            Some(true) => Cell::styled("yes", Style::Green),
            Some(false) => Cell::styled("no", Style::Red),
        },
        address.as_str().into(),
        raft_id.to_string().into(),
    ]
}

fn role_name(role: MemberRole) -> &'static str {
    match role {
        MemberRole::Voter => "voter",
        MemberRole::Learner => "learner",
    }
}

/// What was done, and what comes next.
fn outcome(change: &MemberChange, changed: &MembersChanged) -> String {
    let MembersChanged { changed, members } = changed;
    let name = change.name();
    let voters: Vec<_> = members.iter().filter(|member| member.role == MemberRole::Voter).collect();
    let already = if *changed { "" } else { " already" };
    let is_voter = voters.iter().any(|voter| voter.name == *name);
    match change {
        MemberChange::Add { .. } if is_voter => format!("{name} is a voter already\n"),
        MemberChange::Add { .. } => format!(
            "{name} is a learner{already}; once it has caught up (`pando cluster members`), `pando cluster members promote \
             {name}` makes it a voter\n"
        ),
        MemberChange::Promote(_) => format!("{name} is a voter{already}; {}\n", endurance(voters.len())),
        MemberChange::Remove(_) if !changed => format!("{name} is no member, so there was nothing to do\n"),
        MemberChange::Remove(_) => format!(
            "{name} is no member any more and goes on as an agent; {}\n\
             take it out of --voters and of the endpoints of clients\n",
            endurance(voters.len())
        ),
    }
}

/// What so many voters are good for.
fn endurance(voters: usize) -> String {
    let may_die = voters.saturating_sub(1) / 2;
    let plural = if voters == 1 { "" } else { "s" };
    let more = if voters.is_multiple_of(2) { ", as with one voter fewer: an odd number is better" } else { "" };
    format!("{voters} voter{plural} survive{} the loss of {may_die}{more}", if voters == 1 { "s" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, role: MemberRole) -> MemberRow {
        let address = format!("{name}:7400");
        MemberRow { name: name.parse().unwrap(), raft_id: 77, role, address, lag: Some(0), answers: Some(true) }
    }

    fn members() -> Vec<MemberRow> {
        let silent = MemberRow { lag: Some(90), answers: Some(false), ..member("n2", MemberRole::Voter) };
        let unknown = MemberRow { lag: None, answers: None, ..member("n3", MemberRole::Learner) };
        vec![member("n1", MemberRole::Voter), silent, unknown]
    }

    #[test]
    fn roles_lags_and_silence_are_shown() {
        let expected = "\
MEMBER  ROLE     BEHIND   ANSWERS  ADDRESS  RAFT ID
n1      voter    0        yes      n1:7400  77
n2      voter    90       no       n2:7400  77
n3      learner  unknown  unknown  n3:7400  77
";
        assert_eq!(render(&members(), false), expected);
        assert!(render(&[], false).contains("not begun yet"));
    }

    #[test]
    fn a_change_says_what_is_so_now_and_what_comes_next() {
        let name: NodeName = "n2".parse().unwrap();
        let say = |change, changed| outcome(&change, &MembersChanged { changed, members: members() });
        let add = MemberChange::Add { name: "n3".parse().unwrap(), address: "n3:7400".into() };
        assert!(say(add.clone(), true).contains("n3 is a learner; once it has caught up"));
        assert!(say(add, false).contains("is a learner already"));
        let promoted = say(MemberChange::Promote(name.clone()), true);
        assert_eq!(
            promoted,
            "n2 is a voter; 2 voters survive the loss of 0, as with one voter fewer: an odd number is better\n"
        );
        assert!(say(MemberChange::Remove(name.clone()), true).contains("goes on as an agent"));
        assert!(say(MemberChange::Remove(name), false).contains("nothing to do"));
        assert_eq!(endurance(1), "1 voter survives the loss of 0");
        assert_eq!(endurance(5), "5 voters survive the loss of 2");
    }
}

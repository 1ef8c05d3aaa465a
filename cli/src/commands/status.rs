//! `pando status`: the cluster in a glance.

use clap::Args;
use pando_protocol::message::{Freshness, ViewAge};
use pando_protocol::view::{ClusterRow, NodeRow, NodeState, TreeRow};
use serde::Serialize;

use crate::commands::tree::{state_name, verdict_name};
use crate::connection::{Reading, with};
use crate::context::Target;
use crate::exit::Failure;
use crate::output::{self, Cell, Format, Style, Table};
use crate::{commands, human};

/// Shows the cluster in a glance: the leader, the nodes, the trees with their verdicts
#[derive(Debug, Args)]
pub struct Status {
    #[command(flatten)]
    reading: Reading,
}

/// All that is shown, for programs as well.
#[derive(Debug, Serialize)]
struct Glance {
    #[serde(flatten, serialize_with = "commands::cluster::for_programs")]
    cluster: ClusterRow,
    nodes: Vec<NodeRow>,
    /// The roots only.
    trees: Vec<TreeRow>,
    /// The age of the oldest of the three answers.
    view: ViewAge,
}

impl Status {
    /// Shows it.
    ///
    /// # Errors
    /// The cluster cannot be reached.
    pub async fn run(self, target: &Target) -> Result<(), Failure> {
        let freshness = self.reading.freshness();
        let glance = with(target, async |connection| {
            let cluster = connection.cluster(freshness).await?;
            // Where no leader was found, it need not be searched for twice more.
            let freshness = if cluster.view.confirmed { freshness } else { Freshness::Stale };
            let nodes = connection.nodes(freshness).await?;
            let mut trees = connection.tree(None, freshness).await?;
            trees.value.retain(|row| row.path.depth() == 1);
            let view = weakest([cluster.view, nodes.view, trees.view]);
            Ok(Glance { cluster: cluster.value, nodes: nodes.value, trees: trees.value, view })
        })
        .await?;
        match self.reading.output {
            Format::Table => output::emit(&render(&glance, output::wants_colour()))?,
            Format::Json => output::emit_json(&glance)?,
        }
        self.reading.judge(&glance.view)
    }
}

/// The view that can be trusted least: unconfirmed before confirmed, then the oldest.
fn weakest([first, second, third]: [ViewAge; 3]) -> ViewAge {
    let trust = |view: &ViewAge| (view.confirmed, std::cmp::Reverse(view.age_ms));
    [second, third].into_iter().fold(first, |weakest, view| if trust(&view) < trust(&weakest) { view } else { weakest })
}

fn render(glance: &Glance, colour: bool) -> String {
    let Glance { cluster, nodes, trees, view } = glance;
    let up = nodes
        .iter()
        .filter(|node| !matches!(node.state, NodeState::Down | NodeState::Leaving | NodeState::Unreachable))
        .count();
    let leader = match &cluster.leader {
        Some(leader) => format!("leader {leader}"),
        None => Style::Red.paint("no leader", colour),
    };
    // Who is up may be long past then.
    let age = match view.confirmed {
        true => String::new(),
        false => format!("; view of {}, {} old", view.answered_by, human::millis(view.age_ms)),
    };
    let head = format!(
        "cluster {}: {leader}, {up} of {} up, {}{age}\n",
        cluster.cluster,
        human::count(nodes.len() as u64, "node"),
        human::count(trees.len() as u64, "tree")
    );
    format!("{head}\n{}\n{}", trees_table(trees, colour), commands::node::render(nodes, colour))
}

fn trees_table(trees: &[TreeRow], colour: bool) -> String {
    if trees.is_empty() {
        return "no trees yet: `pando apply FILE` starts one\n".into();
    }
    let mut table = Table::new(["TREE", "VERDICT", "STATE", "READY", "RESTARTS", "WAITING"]);
    for row in trees {
        table.row([
            row.path.as_str().into(),
            Cell::styled(verdict_name(row.verdict), Style::of(row.verdict)),
            state_name(row.state).into(),
            format!("{} of {}", row.alive, row.configured).into(),
            if row.restart_rate == 0 { "".into() } else { format!("{} in the last minute", row.restart_rate).into() },
            row.waiting.clone().unwrap_or_default().into(),
        ]);
    }
    table.render(colour)
}

#[cfg(test)]
mod tests {
    use pando_protocol::view::{Kind, State, Verdict};

    use super::*;
    use crate::commands::tree::tests::row;

    fn view(confirmed: bool, age_ms: u64) -> ViewAge {
        ViewAge { answered_by: "n1".parse().unwrap(), leader: None, confirmed, age_ms }
    }

    #[test]
    fn a_glance_begins_with_the_leader_and_the_trees() {
        let mut failed = TreeRow { state: State::Failed, verdict: Verdict::Failed, ..row("/ladder", Kind::Supervisor) };
        (failed.alive, failed.restart_rate) = (0, 12);
        let cluster = ClusterRow {
            cluster: "grove".into(),
            leader: Some("n2".parse().unwrap()),
            term: 2,
            applied: 9,
            cluster_time_ms: 0,
            voters: Vec::new(),
        };
        let trees = vec![failed, row("/shop", Kind::Supervisor)];
        let glance = Glance { cluster, nodes: Vec::new(), trees, view: view(true, 0) };
        let expected = "\
cluster grove: leader n2, 0 of 0 nodes up, 2 trees

TREE     VERDICT  STATE    READY   RESTARTS
/ladder  failed   failed   0 of 1  12 in the last minute
/shop    healthy  running  1 of 1

no node has joined yet
";
        assert_eq!(render(&glance, false), expected);
        let stale = render(&Glance { view: view(false, 12_000), ..glance }, false);
        assert!(
            stale.starts_with("cluster grove: leader n2, 0 of 0 nodes up, 2 trees; view of n1, 12 s old\n"),
            "{stale}"
        );
    }

    #[test]
    fn one_unconfirmed_answer_makes_the_whole_glance_unconfirmed() {
        assert_eq!(weakest([view(true, 9), view(false, 3), view(false, 5)]), view(false, 5));
        assert_eq!(weakest([view(true, 1), view(true, 7), view(true, 3)]), view(true, 7));
    }
}

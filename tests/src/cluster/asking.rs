//! What a test asks of a cluster and changes in it, and the states of it that are waited for.

use pando_protocol::client::ClientError;
use pando_protocol::message::{Call, Change, Changed, Found, Freshness, Item, Query, Reply, Settled};
use pando_protocol::rejection::Rejection;
use pando_protocol::spec::TreeSpec;
use pando_protocol::spec_file::{self, Format};
use pando_protocol::view::{ClusterRow, EventRow, Explanation, HistoryRow, MemberRow, NodeRow, State, TreeRow};

use super::{Cluster, SOON};
use crate::wait::wait_until;

impl Cluster {
    /// Applies a spec in TOML.
    ///
    /// # Panics
    /// Where it is refused.
    pub async fn apply(&self, toml: &str) -> Changed {
        self.change(Change::Apply(parsed(toml))).await.unwrap_or_else(|error| panic!("apply: {error}"))
    }

    /// Applies a spec in TOML as soon as every voter is known to know the rules that it needs: a new cluster raises its rules a
    /// moment after it is up, and refuses it before.
    ///
    /// # Panics
    /// Where it is refused for another reason, or still refused after [`SOON`].
    pub async fn apply_once_rules_are_raised(&self, toml: &str) -> Changed {
        let spec = parsed(toml);
        let look = async || self.change(Change::Apply(spec.clone())).await;
        let has_rules = |applied: &Result<_, ClientError>| {
            !matches!(applied, Err(ClientError::Refused(Rejection::RulesTooOld { .. })))
        };
        let applied = wait_until("the rules to be raised", SOON, look, has_rules).await;
        applied.unwrap_or_else(|error| panic!("apply: {error}"))
    }

    /// Applies a spec in TOML, and waits until its tree is whole.
    ///
    /// # Panics
    /// Where it is refused, or not whole within [`SOON`].
    pub async fn bring_up(&self, toml: &str) {
        self.apply(toml).await;
        self.whole(&format!("/{}", parsed(toml).name)).await;
    }

    /// Changes something.
    ///
    /// # Errors
    /// What the client says.
    pub async fn change(&self, change: Change) -> Result<Changed, ClientError> {
        match self.client.change(change, SOON).await? {
            Reply::Changed(changed) => Ok(changed),
            other => panic!("a change was answered with {other:?}"),
        }
    }

    /// Asks something, linearizably, until a leader answers: a busy machine elects slowly.
    ///
    /// # Panics
    /// Where no such answer comes within [`SOON`].
    pub async fn ask(&self, query: Query) -> Found {
        let look = async || self.try_ask(query.clone()).await;
        let found = wait_until("an answer of a leader", SOON, look, Result::is_ok).await;
        found.unwrap_or_else(|error| panic!("{error}"))
    }

    async fn try_ask(&self, query: Query) -> Result<Found, String> {
        let call = Call::Read { query, freshness: Freshness::Linearizable };
        match self.client.call(call, SOON).await {
            Ok(Reply::Found { found, view }) if view.confirmed => Ok(found),
            Ok(other) => Err(format!("not confirmed: {other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The rows of every tree.
    pub async fn tree(&self) -> Vec<TreeRow> {
        match self.ask(Query::Tree(None)).await {
            Found::Tree(rows) => rows,
            other => panic!("{other:?}"),
        }
    }

    /// The row of a path.
    ///
    /// # Panics
    /// Where there is none.
    pub async fn row(&self, path: &str) -> TreeRow {
        let rows = self.tree().await;
        rows.iter().find(|row| row.path.as_str() == path).cloned().unwrap_or_else(|| panic!("no {path} in {rows:#?}"))
    }

    /// The node on which a path runs.
    ///
    /// # Panics
    /// Where it runs nowhere.
    pub async fn home(&self, path: &str) -> String {
        let row = self.row(path).await;
        row.node.as_ref().unwrap_or_else(|| panic!("{path} runs nowhere: {row:#?}")).to_string()
    }

    /// Waits until another run of a path is running than was seen in `before`, and gives its row.
    pub async fn runs_anew(&self, path: &str, before: &TreeRow) -> TreeRow {
        let anew = |row: &TreeRow| row.state == State::Running && row.incarnation > before.incarnation;
        wait_until(&format!("another run of {path}"), SOON, async || self.row(path).await, anew).await
    }

    /// How the runs of a path ended.
    pub async fn history(&self, path: &str) -> Vec<HistoryRow> {
        match self.ask(Query::History(super::path(path))).await {
            Found::History(rows) => rows,
            other => panic!("{other:?}"),
        }
    }

    /// Why a path is as it is.
    pub async fn explain(&self, path: &str) -> Explanation {
        match self.ask(Query::Explain(super::path(path))).await {
            Found::Explanation(explanation) => *explanation,
            other => panic!("{other:?}"),
        }
    }

    /// Whether a path is settled.
    pub async fn settled(&self, path: &str) -> Settled {
        match self.ask(Query::Settled(super::path(path))).await {
            Found::Settled(settled) => settled,
            other => panic!("{other:?}"),
        }
    }

    /// The nodes.
    pub async fn node_rows(&self) -> Vec<NodeRow> {
        match self.ask(Query::Nodes).await {
            Found::Nodes(rows) => rows,
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn try_nodes(&self) -> Result<Vec<NodeRow>, String> {
        match self.try_ask(Query::Nodes).await? {
            Found::Nodes(rows) => Ok(rows),
            other => Err(format!("{other:?}")),
        }
    }

    /// The cluster as its leader sees it.
    pub async fn status(&self) -> ClusterRow {
        match self.ask(Query::Cluster).await {
            Found::Cluster(row) => row,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until every member of Raft answers the leader and has the whole log.
    pub async fn caught_up(&self) {
        let look = async || match self.ask(Query::Members).await {
            Found::Members(members) => members,
            other => panic!("{other:?}"),
        };
        let has_all = |one: &MemberRow| one.lag == Some(0) && one.answers != Some(false);
        let is_whole = |members: &Vec<MemberRow>| members.iter().all(has_all);
        wait_until("every member to catch up", SOON, look, is_whole).await;
    }

    /// The name of the confirmed leader; waits for one.
    pub async fn leader(&self) -> String {
        let look = async || match self.try_ask(Query::Cluster).await {
            Ok(Found::Cluster(row)) => row.leader.map(|leader| leader.to_string()),
            _ => None,
        };
        wait_until("a leader", SOON, look, Option::is_some).await.unwrap_or_default()
    }

    /// Every event that is kept, the oldest first.
    pub async fn events(&self) -> Vec<EventRow> {
        let mut items = self.client.stream(Call::Events { after: 0, follow: false }).await.expect("events");
        let mut events = Vec::new();
        while let Some(item) = items.next().await.expect("events") {
            if let Item::Event(event) = item {
                events.push(event);
            }
        }
        events
    }

    /// Waits until everything at and below a path that should run is ready.
    pub async fn whole(&self, path: &str) {
        let look = async || self.try_ask(Query::Settled(super::path(path))).await;
        let is_whole = |found: &Result<Found, String>| matches!(found, Ok(Found::Settled(settled)) if settled.whole);
        _ = wait_until(&format!("{path} to be whole"), SOON, look, is_whole).await;
    }
}

fn parsed(toml: &str) -> TreeSpec {
    spec_file::parse("test.toml", Format::Toml, toml).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

//! One client for the length of a command, with the deadline of each call and answers of the type that was asked for.

mod mail;

use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use pando_protocol::client::identity::Identity;
use pando_protocol::client::{Client, ClientError, Items};
use pando_protocol::ids::{NodeName, Path};
use pando_protocol::message::{
    Call, Change, Changed, Difference, Found, Freshness, MemberChange, MembersChanged, Query, Reply, Settled, ViewAge,
};
use pando_protocol::spec::{Signal, TreeSpec};
use pando_protocol::view::{ClusterRow, Explanation, HistoryRow, MemberRow, NodeRow, TreeRow};
use tokio::time::{Instant, timeout};

use crate::context::{self, Environment, Target};
use crate::exit::{Code, Failure};
use crate::human;
use crate::output::{self, Format};
use crate::terminal::Progress;

pub use self::mail::SomeLetters;

/// How long a call may take, an election and the search for the leader included.
pub const CALL_LIMIT: Duration = Duration::from_secs(10);
/// A call has at least this long, whatever limit the user set: a limit of zero asks how it is now.
const SHORTEST_CALL: Duration = Duration::from_secs(1);
/// A change that takes longer than this says so, on a terminal.
const PROGRESS_AFTER: Duration = Duration::from_millis(500);
/// The line of progress is renewed this often.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// What every reading verb can be told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args)]
pub struct Reading {
    /// How data is shown
    #[arg(long, value_enum, default_value_t)]
    pub output: Format,
    /// Whatever the asked node knows, without asking for the leader
    #[arg(long)]
    pub stale: bool,
}

impl Reading {
    /// How fresh answers must be.
    pub fn freshness(self) -> Freshness {
        if self.stale { Freshness::Stale } else { Freshness::Linearizable }
    }

    /// To be called when the data is out: says how old it is where nobody confirmed it, and ends the command with 3 then.
    ///
    /// # Errors
    /// The view is not confirmed, and such a view was not asked for.
    pub fn judge(self, view: &ViewAge) -> Result<(), Failure> {
        if view.confirmed {
            return Ok(());
        }
        if self.stale {
            output::say(format_args!("view of {}, {} old", view.answered_by, human::millis(view.age_ms)));
            return Ok(());
        }
        output::say(unconfirmed(view));
        Err(Failure::said(Code::Unreached))
    }
}

/// What to say of a view that no leader confirmed.
pub fn unconfirmed(view: &ViewAge) -> String {
    format!("no leader; view of {}, {} old", view.answered_by, human::millis(view.age_ms))
}

/// Data, and how fresh it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read<T> {
    /// The data.
    pub value: T,
    /// Its age.
    pub view: ViewAge,
}

/// A process that got a signal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Killed {
    /// The run.
    pub incarnation: u64,
    /// Where it runs.
    pub node: NodeName,
    /// The process there.
    pub pid: u32,
}

/// A client, ready to ask. Dials when it is first asked something.
pub struct Connection {
    client: Client,
}

/// Opens a connection to the named cluster for the length of `work`, and closes it in an orderly way.
///
/// # Errors
/// No cluster is named, its identity cannot be used, or `work` fails.
pub async fn with<T>(target: &Target, work: impl AsyncFnOnce(&Connection) -> Result<T, Failure>) -> Result<T, Failure> {
    let connection = Connection::open(target)?;
    let result = work(&connection).await;
    connection.close().await;
    result
}

impl Connection {
    /// The client for the cluster that flags, environment and context file name.
    ///
    /// # Errors
    /// None is named, or its identity cannot be used.
    pub fn open(target: &Target) -> Result<Self, Failure> {
        Self::to(&context::resolve(target, &Environment::of_process())?)
    }

    /// The client for this cluster.
    ///
    /// # Errors
    /// Its identity cannot be used.
    pub fn to(context: &context::Context) -> Result<Self, Failure> {
        let identity = Identity::load(&context.identity).map_err(|error| {
            let folder = context.identity.display();
            Failure::usage(anyhow::Error::new(error).context(format!("the identity in {folder} cannot be used")))
        })?;
        Ok(Self { client: Client::new(identity, context.endpoints.clone())? })
    }

    /// The same with another limit for finding a node that answers, for nodes that are just starting.
    pub fn with_dial_limit(self, limit: Duration) -> Self {
        Self { client: self.client.with_dial_limit(limit) }
    }

    /// Ends it in an orderly way: the other side sees a close and not a silence.
    pub async fn close(self) {
        self.client.close().await;
    }

    /// The endpoint that answers now, or with which the search for another one begins.
    pub fn endpoint(&self) -> &str {
        self.client.next_endpoint()
    }

    /// The rows of all trees, or of what lies at and below a path.
    ///
    /// # Errors
    /// The cluster cannot be reached, or refuses.
    pub async fn tree(&self, at: Option<Path>, freshness: Freshness) -> Result<Read<Vec<TreeRow>>, Failure> {
        self.read(Query::Tree(at), freshness, |found| if let Found::Tree(rows) = found { Some(rows) } else { None })
            .await
    }

    /// Why a member is as it is.
    ///
    /// # Errors
    /// The cluster cannot be reached, or refuses.
    pub async fn explain(&self, path: Path, freshness: Freshness) -> Result<Read<Explanation>, Failure> {
        let take = |found| if let Found::Explanation(explanation) = found { Some(*explanation) } else { None };
        self.read(Query::Explain(path), freshness, take).await
    }

    /// How the runs of a member ended.
    ///
    /// # Errors
    /// The cluster cannot be reached, or refuses.
    pub async fn history(&self, path: Path, freshness: Freshness) -> Result<Read<Vec<HistoryRow>>, Failure> {
        let take = |found| if let Found::History(rows) = found { Some(rows) } else { None };
        self.read(Query::History(path), freshness, take).await
    }

    /// The nodes.
    ///
    /// # Errors
    /// The cluster cannot be reached, or refuses.
    pub async fn nodes(&self, freshness: Freshness) -> Result<Read<Vec<NodeRow>>, Failure> {
        self.read(Query::Nodes, freshness, |found| if let Found::Nodes(rows) = found { Some(rows) } else { None }).await
    }

    /// The voters and the leader.
    ///
    /// # Errors
    /// The cluster cannot be reached, or refuses.
    pub async fn cluster(&self, freshness: Freshness) -> Result<Read<ClusterRow>, Failure> {
        self.read(Query::Cluster, freshness, |found| if let Found::Cluster(row) = found { Some(row) } else { None })
            .await
    }

    /// Voters and learners.
    ///
    /// # Errors
    /// The cluster cannot be reached, or refuses.
    pub async fn members(&self, freshness: Freshness) -> Result<Read<Vec<MemberRow>>, Failure> {
        self.read(Query::Members, freshness, |found| if let Found::Members(rows) = found { Some(rows) } else { None })
            .await
    }

    /// What applying a spec would do.
    ///
    /// # Errors
    /// The cluster cannot be reached, or refuses.
    pub async fn diff(&self, spec: TreeSpec, freshness: Freshness) -> Result<Read<Vec<Difference>>, Failure> {
        let take = |found| if let Found::Differences(rows) = found { Some(rows) } else { None };
        self.read(Query::Diff(spec), freshness, take).await
    }

    /// Whether a member is settled.
    ///
    /// # Errors
    /// The cluster cannot be reached, or refuses.
    pub async fn settled(&self, path: Path) -> Result<Read<Settled>, Failure> {
        let take = |found| if let Found::Settled(settled) = found { Some(settled) } else { None };
        self.read(Query::Settled(path), Freshness::Linearizable, take).await
    }

    /// Changes something. A retry applies once.
    ///
    /// # Errors
    /// The cluster cannot be reached, or refuses.
    pub async fn change(&self, change: Change) -> Result<Changed, Failure> {
        self.change_within(change, CALL_LIMIT).await
    }

    /// The same within `limit`, or within what any call may take where that is less. A line of progress says what takes so long.
    ///
    /// # Errors
    /// The cluster cannot be reached, or refuses.
    pub async fn change_within(&self, change: Change, limit: Duration) -> Result<Changed, Failure> {
        let limit = limit.clamp(SHORTEST_CALL, CALL_LIMIT);
        let begun = Instant::now();
        let mut changed = std::pin::pin!(self.client.change(change, limit));
        let mut progress = Progress::new();
        let reply = loop {
            if let Ok(reply) = timeout(PROGRESS_EVERY, &mut changed).await {
                break reply?;
            }
            if begun.elapsed() >= PROGRESS_AFTER {
                let (waited, limit) = (human::duration(begun.elapsed()), human::duration(limit));
                progress.show(&format!("waiting for a leader ({waited} of at most {limit})"));
            }
        };
        match reply {
            Reply::Changed(changed) => Ok(changed),
            other => Err(unexpected(&other)),
        }
    }

    /// As [`Self::change`], without a line of progress: for whoever draws the whole screen.
    ///
    /// # Errors
    /// The cluster cannot be reached, or refuses.
    pub async fn change_silently(&self, change: Change) -> Result<Changed, Failure> {
        match self.client.change(change, CALL_LIMIT).await? {
            Reply::Changed(changed) => Ok(changed),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends a signal to the process that runs at a path.
    ///
    /// # Errors
    /// The cluster cannot be reached, or refuses.
    pub async fn kill(&self, path: Path, signal: Signal) -> Result<Killed, Failure> {
        match self.client.call(Call::Kill { path, signal }, CALL_LIMIT).await? {
            Reply::Killed { incarnation, node, pid } => Ok(Killed { incarnation: incarnation.0, node, pid }),
            other => Err(unexpected(&other)),
        }
    }

    /// Moves leadership, and gives the new leader.
    ///
    /// # Errors
    /// The cluster cannot be reached, or refuses.
    pub async fn transfer(&self, to: Option<NodeName>) -> Result<NodeName, Failure> {
        match self.client.call(Call::Transfer { to }, CALL_LIMIT).await? {
            Reply::Transferred { leader } => Ok(leader),
            other => Err(unexpected(&other)),
        }
    }

    /// Changes who takes part in Raft. What is so already is done.
    ///
    /// # Errors
    /// The cluster cannot be reached, or refuses.
    pub async fn change_members(&self, change: MemberChange) -> Result<MembersChanged, Failure> {
        match self.client.call(Call::Members(change), CALL_LIMIT).await? {
            Reply::MembersChanged(changed) => Ok(changed),
            other => Err(unexpected(&other)),
        }
    }

    /// Begins a stream of events or log lines. The error is the client's own, as those who follow act on it.
    ///
    /// # Errors
    /// The cluster cannot be reached, or refuses.
    pub async fn stream(&self, call: Call) -> Result<Items, ClientError> {
        self.client.stream(call).await
    }

    async fn read<T>(
        &self,
        query: Query,
        freshness: Freshness,
        take: impl FnOnce(Found) -> Option<T>,
    ) -> Result<Read<T>, Failure> {
        match self.client.call(Call::Read { query, freshness }, CALL_LIMIT).await? {
            Reply::Found { found, view } => match take(found) {
                Some(value) => Ok(Read { value, view }),
                None => Err(another_question()),
            },
            other => Err(unexpected(&other)),
        }
    }
}

fn another_question() -> Failure {
    Failure::failed(anyhow!("the node answered another question than was asked: {VERSIONS}"))
}

fn unexpected(reply: &Reply) -> Failure {
    let got = match reply {
        Reply::Changed(_) => "a change",
        Reply::Found { .. } => "data",
        Reply::Killed { .. } => "a signal",
        Reply::Transferred { .. } => "a transfer of leadership",
        Reply::MembersChanged(_) => "a change of members",
    };
    Failure::failed(anyhow!("the node confirmed {got}, which was not asked for: {VERSIONS}"))
}

const VERSIONS: &str = "node and `pando` may be of different versions";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted_node::{Cluster, Turn};

    fn view(confirmed: bool) -> ViewAge {
        ViewAge { answered_by: "n2".parse().unwrap(), leader: None, confirmed, age_ms: 4_200 }
    }

    #[tokio::test]
    async fn a_view_that_no_leader_confirmed_ends_the_command_with_3_unless_it_was_asked_for() {
        let cluster = Cluster::start(1, |_, _| {
            Turn::Answer(Box::new(Ok(Reply::Found { found: Found::Nodes(Vec::new()), view: view(false) })))
        });
        let connection = Connection::to(&cluster.context()).unwrap();
        let read = connection.nodes(Freshness::Linearizable).await.unwrap();
        assert_eq!(unconfirmed(&read.view), "no leader; view of n2, 4.2 s old");
        assert_eq!(Reading::default().judge(&read.view).unwrap_err().code, Some(Code::Unreached));
        assert!(Reading { stale: true, ..Reading::default() }.judge(&read.view).is_ok());
        assert!(Reading::default().judge(&view(true)).is_ok());
    }

    #[tokio::test]
    async fn an_answer_to_another_question_is_an_error_and_no_panic() {
        let cluster = Cluster::start(1, |_, _| {
            Turn::Answer(Box::new(Ok(Reply::Found { found: Found::Nodes(Vec::new()), view: view(true) })))
        });
        let connection = Connection::to(&cluster.context()).unwrap();
        let failure = connection.tree(None, Freshness::Stale).await.unwrap_err();
        assert_eq!(failure.code, Some(Code::Failed));
        let failure = connection.kill("/shop/web".parse().unwrap(), Signal::KILL).await.unwrap_err();
        assert!(failure.error.unwrap().to_string().contains("may be of different versions"));
    }
}

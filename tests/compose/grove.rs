//! The containers of the compose file under a project name of their own, and what the tests ask of them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::process::{self, Running};

/// The nodes of the compose file, each in a service and a container of its name.
pub const NODES: [&str; 5] = ["n1", "n2", "n3", "n4", "n5"];
/// For one command in a container.
const COMMAND: Duration = Duration::from_secs(60);
/// For building the image from nothing, on two slow cores.
const BUILD: Duration = Duration::from_secs(40 * 60);

/// A node that is not among `taken`.
pub fn other_than(taken: &[&str]) -> &'static str {
    NODES.into_iter().find(|node| !taken.contains(node)).expect("fewer nodes are taken than there are")
}

/// A member of a tree, as far as `pando tree --output json` matters here.
#[derive(Debug, Clone, Deserialize)]
pub struct Row {
    /// Where it stands.
    pub path: String,
    /// What it does now.
    pub state: String,
    /// Where its run is; `None` for supervisors.
    pub node: Option<String>,
    /// Its run; `None` for supervisors.
    pub incarnation: Option<u64>,
    /// Charged restarts.
    pub restarts: u64,
}

/// How a run of a child ended, as far as `pando history --output json` matters here.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Ending {
    /// The last run that ended so.
    pub incarnation: Option<u64>,
    /// Where it ran.
    pub node: Option<String>,
    /// Why it ended.
    pub cause: Cause,
    /// Whether a restart budget paid.
    pub charged: bool,
}

/// The cause of an ending.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Cause {
    /// Its class, which says who pays.
    pub class: String,
    /// In words.
    pub message: String,
}

/// A node, as far as `pando node ls --output json` matters here.
#[derive(Debug, Clone, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Whether it has a session.
    pub state: String,
    /// How often it was lost.
    pub losses: u64,
}

#[derive(Debug, Deserialize)]
struct Status {
    leader: Option<String>,
}

/// The running containers. They are removed with all their data in the end, whatever the end is.
pub struct Grove {
    program: Vec<&'static str>,
    file: PathBuf,
    project: String,
    /// Whether something of it may be there.
    is_up: bool,
}

impl Grove {
    /// Builds the image and starts the containers.
    pub fn start() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the tests lie in the project's folder")?;
        let file = root.join("docker-compose.yml");
        let project = format!("pando-test-{}", std::process::id());
        let grove = Self { program: compose_program()?, file, project, is_up: true };
        process::run(grove.compose().arg("build"), BUILD)?;
        grove.up()?;
        Ok(grove)
    }

    /// Makes and starts what of the grove is not there, or does not run.
    pub fn up(&self) -> Result<()> {
        process::run(self.compose().args(["up", "-d"]), COMMAND * 5).map(drop)
    }

    /// Stops and removes the containers in order. The volumes are kept, and with them all data.
    pub fn down(&self) -> Result<()> {
        process::run(self.compose().arg("down"), COMMAND * 5).map(drop)
    }

    /// Stops and removes everything, and makes sure of it.
    pub fn remove(&mut self) -> Result<()> {
        process::run(self.compose().args(["down", "-v", "--remove-orphans"]), COMMAND * 5)?;
        self.is_up = false;
        let label = format!("label=com.docker.compose.project={}", self.project);
        for kind in [&["ps", "-a"][..], &["volume", "ls"], &["network", "ls"]] {
            let left =
                process::run(Command::new("docker").args(kind).args(["-q", "--filter", &label]), COMMAND)?.stdout;
            ensure!(left.is_empty(), "left behind, by `docker {}`: {left}", kind.join(" "));
        }
        Ok(())
    }

    /// Tries until it works, at most `limit`.
    pub fn until<T>(&self, what: &str, limit: Duration, mut attempt: impl FnMut(&Self) -> Result<T>) -> Result<T> {
        process::until(what, limit, || attempt(self))
    }

    /// Runs `pando` in the container of a node; what it wrote to standard output.
    pub fn pando(&self, node: &str, arguments: &[&str]) -> Result<String> {
        self.exec(node, &[&["pando"], arguments].concat())
    }

    /// Runs a command in the container of a node; what it wrote to standard output.
    pub fn exec(&self, node: &str, command: &[&str]) -> Result<String> {
        Ok(process::run(self.compose().args(["exec", "-T", node]).args(command), COMMAND)?.stdout)
    }

    /// The members of the shop, as `node` knows them.
    pub fn tree(&self, node: &str) -> Result<Vec<Row>> {
        self.read(node, &["tree", "/shop"])
    }

    /// One member of the shop.
    pub fn member(&self, node: &str, path: &str) -> Result<Row> {
        let rows = self.tree(node)?;
        rows.into_iter().find(|row| row.path == path).with_context(|| format!("{path} is not in the tree"))
    }

    /// The leader, as `node` knows it.
    pub fn leader(&self, node: &str) -> Result<String> {
        let status: Status = self.read(node, &["cluster", "status"])?;
        status.leader.context("there is no leader")
    }

    /// How the run `incarnation` of a child ended.
    pub fn ending(&self, node: &str, path: &str, incarnation: u64) -> Result<Ending> {
        let endings = self.history(node, path)?;
        let ending = endings.iter().find(|ending| ending.incarnation == Some(incarnation));
        ending.cloned().with_context(|| format!("no ending of incarnation {incarnation} in {endings:#?}"))
    }

    /// How the runs of a child ended, the newest last.
    pub fn history(&self, node: &str, path: &str) -> Result<Vec<Ending>> {
        self.read(node, &["history", path])
    }

    /// The nodes, as `node` knows them.
    pub fn nodes(&self, node: &str) -> Result<Vec<Node>> {
        self.read(node, &["node", "ls"])
    }

    /// The node `name`, as `node` knows it.
    pub fn node(&self, node: &str, name: &str) -> Result<Node> {
        self.nodes(node)?.into_iter().find(|row| row.name == name).with_context(|| format!("{name} is not known"))
    }

    /// Whether every member of the shop runs, and so many nodes are up.
    pub fn is_whole(&self, node: &str, nodes_up: usize) -> Result<()> {
        let rows = self.tree(node)?;
        ensure!(!rows.is_empty(), "the shop has no members");
        if let Some(row) = rows.iter().find(|row| row.state != "running") {
            bail!("a member does not run: {row:?}");
        }
        let nodes = self.nodes(node)?;
        let up: Vec<&str> = nodes.iter().filter(|node| node.state == "up").map(|node| node.name.as_str()).collect();
        ensure!(up.len() == nodes_up, "{nodes_up} nodes should be up, and these are: {up:?}");
        Ok(())
    }

    /// Whether Docker calls every node's container healthy.
    pub fn all_are_healthy(&self) -> Result<()> {
        for node in NODES {
            let health = self.inspect(node, "{{.State.Health.Status}}")?;
            ensure!(health == "healthy", "{node} is {health}");
        }
        Ok(())
    }

    /// Ends every process in the container of a node at once. It stays down until it is started.
    pub fn kill_container(&self, node: &str) -> Result<()> {
        process::run(Command::new("docker").args(["kill", &self.container(node)?]), COMMAND).map(drop)
    }

    /// Stops the container of a node as an operator does, with the grace of the compose file; its exit code.
    pub fn stop_container(&self, node: &str) -> Result<i32> {
        process::run(self.compose().args(["stop", node]), COMMAND * 2)?;
        let code = self.inspect(node, "{{.State.ExitCode}}")?;
        code.parse().with_context(|| format!("{node} ended with the code {code}"))
    }

    /// How often Docker has started the container of a node again because it ended by itself.
    pub fn restarts_of_container(&self, node: &str) -> Result<u64> {
        let restarts = self.inspect(node, "{{.RestartCount}}")?;
        restarts.parse().with_context(|| format!("{node} was started again {restarts} times"))
    }

    /// Fails where a process of the container of a node is dead and nobody has waited for it.
    pub fn has_no_zombies(&self, node: &str) -> Result<()> {
        // `State: Z (zombie)`. The image has no ps, and a shell's own children end before it does.
        let script =
            "for status in /proc/[0-9]*/status; do grep -l '^State:[[:space:]]*Z' $status; done 2>/dev/null; :";
        let found = self.exec(node, &["sh", "-c", script])?;
        ensure!(found.is_empty(), "processes of {node} that nobody waits for: {found}");
        Ok(())
    }

    /// Starts the container of a node again, with the data that it had.
    pub fn start_container(&self, node: &str) -> Result<()> {
        process::run(Command::new("docker").args(["start", &self.container(node)?]), COMMAND).map(drop)
    }

    /// Measures, from inside the container of `node`, the next gap between the answers of two runs of web. Returns once web
    /// is known to answer.
    pub fn watch_web(&self, node: &str, limit: Duration) -> Result<Watch> {
        // Only a change of the run counts: silence of one run is the machine's affair.
        let load = ["shop-load", "--silence", "10m", "--gaps", "1", "--within", "5m", "grove:18080"];
        let running = Running::start(self.compose().args(["exec", "-T", node]).args(load))?;
        process::until("web answers", limit, || {
            let seen = running.stdout()?;
            ensure!(seen.contains("first answer"), "shop-load says: {seen}");
            Ok(())
        })?;
        Ok(Watch { running })
    }

    fn read<T: for<'json> Deserialize<'json>>(&self, node: &str, verb: &[&str]) -> Result<T> {
        let json = self.pando(node, &[verb, &["--output", "json"]].concat())?;
        serde_json::from_str(&json).with_context(|| format!("not what `pando {}` should print: {json}", verb.join(" ")))
    }

    fn inspect(&self, node: &str, format: &str) -> Result<String> {
        let mut inspect = Command::new("docker");
        inspect.args(["inspect", "--format", format, &self.container(node)?]);
        Ok(process::run(&mut inspect, COMMAND)?.stdout.trim().to_owned())
    }

    fn container(&self, node: &str) -> Result<String> {
        let id = process::run(self.compose().args(["ps", "-a", "-q", node]), COMMAND)?.stdout.trim().to_owned();
        ensure!(!id.is_empty(), "{node} has no container");
        Ok(id)
    }

    fn compose(&self) -> Command {
        let mut command = Command::new(self.program[0]);
        command.args(&self.program[1..]).arg("-f").arg(&self.file).args(["-p", &self.project]);
        command
    }
}

impl Drop for Grove {
    fn drop(&mut self) {
        if !self.is_up {
            return;
        }
        match process::run(self.compose().args(["logs", "--no-color", "--tail", "150"]), COMMAND) {
            Ok(logs) => eprintln!("the containers said:\n{}", logs.stdout),
            Err(why) => eprintln!("the containers' logs cannot be had: {why:#}"),
        }
        if let Err(why) = self.remove() {
            eprintln!("not all is removed: {why:#}");
        }
    }
}

/// A measurement that runs.
pub struct Watch {
    running: Running,
}

impl Watch {
    /// Waits for the gap.
    pub fn gap(self, limit: Duration) -> Result<Gap> {
        let ended = self.running.end(limit)?;
        ensure!(ended.status.success(), "shop-load saw what should not be: {ended}");
        let line = ended.stdout.lines().find(|line| line.starts_with("gap of "));
        line.and_then(Gap::parse).with_context(|| format!("no gap in what shop-load wrote: {ended}"))
    }
}

/// The time without an answer between two runs of web; each run is a node and an incarnation.
#[derive(Debug, PartialEq, Eq)]
pub struct Gap {
    /// Between the last answer of one and the first of the other, to a millisecond.
    pub lasted: Duration,
    /// The run that answered last.
    pub before: (String, u64),
    /// The run that answered next.
    pub after: (String, u64),
}

impl Gap {
    /// Reads `gap of 34 ms: n1/12 -> n3/19`.
    fn parse(line: &str) -> Option<Self> {
        let (milliseconds, runs) = line.strip_prefix("gap of ")?.split_once(" ms: ")?;
        let (before, after) = runs.split_once(" -> ")?;
        let run = |text: &str| {
            let (node, incarnation) = text.split_once('/')?;
            Some((node.to_owned(), incarnation.parse().ok()?))
        };
        let lasted = Duration::from_millis(milliseconds.parse().ok()?);
        Some(Self { lasted, before: run(before)?, after: run(after)? })
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lasted, before, after } = self;
        write!(f, "gap of {} ms: {}/{} -> {}/{}", lasted.as_millis(), before.0, before.1, after.0, after.1)
    }
}

/// Compose v2 where Docker has it, else `docker-compose`.
fn compose_program() -> Result<Vec<&'static str>> {
    for program in [&["docker", "compose"][..], &["docker-compose"]] {
        let version = process::run(Command::new(program[0]).args(&program[1..]).arg("version"), COMMAND);
        if version.is_ok() {
            return Ok(program.to_vec());
        }
    }
    bail!("neither `docker compose` nor `docker-compose` works here: install one, and start the Docker engine")
}

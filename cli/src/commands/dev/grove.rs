//! The node processes of a `pando dev`: started, watched, and stopped together.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use pando_protocol::client::certs::Authority;
use pando_protocol::client::identity::Role;
use pando_protocol::ids::NodeName;
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::layout::{self, Layout, NodePlan, Wanted};
use super::process::{Known, Process};
use super::{orphans, process};
use crate::commands::certs;
use crate::exit::Failure;
use crate::output;

/// All nodes of a cluster on this machine.
pub struct Grove {
    /// Where it is kept.
    pub folder: PathBuf,
    /// What it consists of.
    pub layout: Layout,
    program: PathBuf,
    running: BTreeMap<NodeName, Process>,
    exits: JoinSet<(NodeName, std::io::Result<ExitStatus>)>,
    /// Held for as long as this lives: one `pando dev` a folder.
    _lock: File,
}

/// A node process that ended.
pub struct Ended {
    /// The node.
    pub name: NodeName,
    /// How, in words.
    pub how: String,
    /// The last lines of its log, each on a line of its own below; empty where it was killed.
    pub last_words: String,
}

impl Grove {
    /// Prepares a folder for nodes of this program: its lock, its layout, its certificates. Nothing is started yet.
    ///
    /// # Errors
    /// Another `pando dev` runs there, what is wanted does not fit what is there, or something cannot be written.
    pub fn prepare(folder: &Path, wanted: Wanted, program: PathBuf) -> Result<Self, Failure> {
        let lock = lock(folder)?;
        let layout = Layout::open(folder, wanted)?;
        let authority = Authority::create_or_load(&folder.join("ca"), CLUSTER).map_err(certs::failure)?;
        for node in &layout.nodes {
            let identity = layout::identity_folder(folder, &node.name);
            authority.issue(&node.name, Role::Node, &identity).map_err(certs::failure)?;
        }
        let admin = certs::admin_name()?;
        authority.issue(&admin, Role::Admin, &layout::identity_folder(folder, &admin)).map_err(certs::failure)?;
        orphans::adopt().map_err(Failure::failed)?;
        let (running, exits) = (BTreeMap::new(), JoinSet::new());
        Ok(Self { folder: folder.into(), layout, program, running, exits, _lock: lock })
    }

    /// Starts every node.
    ///
    /// # Errors
    /// A port is taken, or a process cannot be started.
    pub fn start_all(&mut self) -> Result<(), Failure> {
        let nodes = self.layout.nodes.clone();
        nodes.iter().try_for_each(|node| self.start(node))
    }

    /// Starts one node that does not run.
    ///
    /// # Errors
    /// A port is taken, or the process cannot be started.
    pub fn start(&mut self, node: &NodePlan) -> Result<(), Failure> {
        for port in [node.port, node.http] {
            if !layout::is_free(port) {
                return Err(Failure::failed(anyhow!(
                    "{} cannot be started: port {port} on 127.0.0.1 is taken by another process; end that, or use another --data",
                    node.name
                )));
            }
        }
        let started = Process::start(&self.program, &self.folder, &self.layout, node);
        let (process, mut child) =
            started.with_context(|| format!("{} was not started", node.name)).map_err(Failure::failed)?;
        self.running.insert(node.name.clone(), process);
        let name = node.name.clone();
        self.exits.spawn(async move { (name, child.wait().await) });
        Ok(())
    }

    /// Waits until the end of a node that is dead was noted, and gives the ends noted meanwhile. Nothing to wait for where it
    /// runs.
    pub async fn note_death_of(&mut self, name: &NodeName) -> Vec<Ended> {
        let mut exits = Vec::new();
        while self.running.get(name).is_some_and(Process::has_ended) {
            exits.push(self.next_exit().await);
        }
        exits
    }

    /// The process id of a node that runs.
    pub fn pid(&self, name: &NodeName) -> Option<u32> {
        self.running.get(name).map(|process| process.pid)
    }

    /// Waits for the next node to end; for ever where none runs. Cancel-safe.
    pub async fn next_exit(&mut self) -> Ended {
        loop {
            match self.exits.join_next().await {
                None => std::future::pending().await,
                // The tasks neither panic nor are aborted while this lives.
                Some(Err(_)) => {}
                Some(Ok((name, status))) => {
                    let process = self.running.remove(&name);
                    Known::forget(&self.folder, &name);
                    let how = status
                        .as_ref()
                        .map_or_else(|error| format!("is lost: {error}"), |status| process::ending(*status));
                    // Who was killed had no time to say why.
                    let spoke = process.filter(|_| !status.is_ok_and(|status| status.signal() == Some(KILL)));
                    let last_words = spoke.map(|process| process.last_words(&self.folder, &name)).unwrap_or_default();
                    return Ended { name, how, last_words };
                }
            }
        }
    }

    /// Takes note of the end of guards whose node was killed.
    pub fn reap_orphans(&self) {
        orphans::reap(&self.pids());
    }

    /// Stops every node: SIGTERM, and SIGKILL after 45 s or when `hurry` comes; then waits for all they leave.
    ///
    /// # Errors
    /// A process could not be ended.
    pub async fn stop(mut self, hurry: impl Future<Output = ()>) -> Result<(), Failure> {
        self.running.values().for_each(|process| process.signal(Signal::TERM));
        let deadline = Instant::now() + STOP_LIMIT;
        tokio::select! {
            biased;
            () = hurry => output::say("pando: killing what still runs"),
            _ = timeout_at(deadline, self.until_none_runs()) => {}
        }
        for (name, process) in &self.running {
            output::say(format_args!("pando: {name} did not stop in time and is killed"));
            process.signal(Signal::KILL);
        }
        // SIGKILL needs no help; the bound is for a process that the kernel cannot end.
        let ended = timeout_at(Instant::now() + KILL_LIMIT, self.until_none_runs()).await;
        if ended.is_err() {
            let left: Vec<String> = self.running.values().map(|process| process.pid.to_string()).collect();
            return Err(Failure::failed(anyhow!("the kernel did not end the processes {}", left.join(", "))));
        }
        let left = orphans::wait_until_gone(GUARD_LIMIT).await;
        if left.is_empty() {
            return Ok(());
        }
        let left: Vec<String> = left.iter().map(|pid| pid.as_raw_nonzero().to_string()).collect();
        Err(Failure::failed(anyhow!("processes of the nodes are left and cannot be ended: {}", left.join(", "))))
    }

    async fn until_none_runs(&mut self) {
        while !self.running.is_empty() {
            self.next_exit().await;
        }
    }

    fn pids(&self) -> BTreeSet<u32> {
        self.running.values().map(|process| process.pid).collect()
    }
}

/// The node program beside this one.
///
/// # Errors
/// It is not there.
pub fn node_program() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().context("cannot tell where this program is").map_err(Failure::failed)?;
    let program = own.with_file_name(NODE_PROGRAM);
    if program.is_file() {
        return Ok(program);
    }
    Err(Failure::failed(anyhow!(
        "there is no {NODE_PROGRAM} beside {}: put it there; `cargo build --release` makes both",
        own.display()
    )))
}

/// Whether a `pando dev` runs in the folder: whoever does holds its lock.
pub fn runs_in(folder: &Path) -> bool {
    let lock = File::open(folder.join(LOCK));
    lock.is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockShared).is_err())
}

/// Makes the folder and takes its lock.
fn lock(folder: &Path) -> Result<File, Failure> {
    let open = || -> anyhow::Result<File> {
        let mut builder = std::fs::DirBuilder::new();
        // Keys lie in it.
        std::os::unix::fs::DirBuilderExt::mode(builder.recursive(true), 0o700);
        builder.create(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let file = folder.join(LOCK);
        let file = File::options().create(true).truncate(false).write(true).open(&file);
        file.with_context(|| format!("cannot write in {}", folder.display()))
    };
    let lock = open().map_err(Failure::failed)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        Failure::refused(anyhow!("a `pando dev` runs in {} already: stop it, or use another --data", folder.display()))
    })?;
    Ok(lock)
}

/// The name in the certificates.
const CLUSTER: &str = "dev";
const LOCK: &str = "dev.lock";
const NODE_PROGRAM: &str = "pando-node";
/// The number of SIGKILL.
const KILL: i32 = 9;
/// How long nodes may take to stop: their children have 30 s, and a node some seconds more to say so and to end.
const STOP_LIMIT: Duration = Duration::from_secs(45);
/// How long the kernel may take to end a killed process.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// How long the guards of dead nodes may take to end what ran there.
const GUARD_LIMIT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A program that says something, leaves an orphan, and ends with its standard input.
    fn program(folder: &Path) -> PathBuf {
        let file = folder.join("node");
        fs::write(&file, "#!/bin/sh\nsetsid sleep 0.5 &\necho started $3\nexec cat\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        file
    }

    // One test for the whole life: adopted orphans belong to the process, and all tests share one.
    #[tokio::test]
    async fn a_killed_node_is_told_and_started_again_and_stopping_leaves_no_process() {
        let _alone = orphans::OWN_CHILDREN.lock().await;
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("grove");
        let wanted = Wanted { nodes: Some(2), voters: None };
        let mut grove = Grove::prepare(&data, wanted, program(folder.path())).unwrap();
        let second = Grove::prepare(&data, wanted, program(folder.path()));
        assert_eq!(second.err().unwrap().code, Some(crate::exit::Code::Refused));
        grove.start_all().unwrap();

        let name: NodeName = "n2".parse().unwrap();
        let first_pid = grove.pid(&name).unwrap();
        super::super::kill::run(&data, &name).unwrap();
        let ended = grove.note_death_of(&name).await;
        let told: Vec<(&str, &str)> = ended.iter().map(|ended| (ended.name.as_str(), ended.how.as_str())).collect();
        assert_eq!(told, [("n2", "was ended by SIGKILL")]);
        assert!(Known::running(&data, &name).is_none());

        let node = grove.layout.node(&name).unwrap().clone();
        grove.start(&node).unwrap();
        assert_ne!(grove.pid(&name).unwrap(), first_pid);
        grove.stop(std::future::pending()).await.unwrap();
        assert_eq!(orphans::reap(&BTreeSet::new()), []);
    }
}

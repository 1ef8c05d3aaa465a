//! From the spec of a child to an order for the guard.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path as FilePath, PathBuf};

use pando_protocol::ids::{Incarnation, Path, SessionId};
use pando_protocol::spec::{Command, OnDisconnect, ProcessSpec};

use super::environment::{BaseEnvironment, RunIdentity, Sockets};
use super::logs::folder_of;
use crate::guard::words::{RunId, StartOrder};

/// What a run and its probes begin with.
#[derive(Debug, Clone)]
pub struct Beginning {
    incarnation: Incarnation,
    session: SessionId,
    environment: Vec<Vec<u8>>,
    folder: PathBuf,
    make_folder: bool,
    keep: bool,
}

impl Beginning {
    /// Settles environment and working folder. `work` is the folder that holds the folders of all children.
    pub fn of(
        base: &BaseEnvironment,
        work: &FilePath,
        run: RunIdentity<'_>,
        spec: &ProcessSpec,
        sockets: Sockets<'_>,
    ) -> Self {
        let (folder, make_folder) = working_folder(work, run.path, spec);
        Self {
            incarnation: run.incarnation,
            session: run.session,
            environment: base.of_run(run, spec, sockets),
            folder,
            make_folder,
            keep: spec.on_disconnect == OnDisconnect::Keep,
        }
    }

    /// The session it belongs to.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Whether it outlives that session.
    pub fn is_kept(&self) -> bool {
        self.keep
    }

    /// The order for the child itself, or for a probe of it, which begins where the child begins.
    pub fn order(&self, probe: u32, command: &Command) -> StartOrder {
        StartOrder {
            run: RunId { incarnation: self.incarnation, probe },
            session: self.session,
            command: std::iter::once(&command.program).chain(&command.args).cloned().collect(),
            environment: self.environment.clone(),
            folder: self.folder.as_os_str().as_bytes().to_vec(),
            make_folder: self.make_folder,
            keep: self.keep,
        }
    }
}

/// The working folder, and whether it is made where it is missing: those below the child's own are, a folder that the spec
/// names absolutely is not.
fn working_folder(work: &FilePath, path: &Path, spec: &ProcessSpec) -> (PathBuf, bool) {
    let own = folder_of(work, path);
    match spec.cwd.as_deref().map(FilePath::new) {
        None => (own, true),
        Some(folder) if folder.is_absolute() => (folder.to_owned(), false),
        Some(folder) => (own.join(folder), true),
    }
}

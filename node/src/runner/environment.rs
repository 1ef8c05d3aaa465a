//! The environment of a child: nothing of the node's own but `PATH`, `HOME`, `LANG` and `TZ`.
//!
//! | variable | value |
//! | --- | --- |
//! | `PATH` `HOME` `LANG` `TZ` | the node's, where set; the folder of the node's own program is appended to `PATH` |
//! | the spec's `env` | wins over those four |
//! | `PANDO_PATH` | the child's path: `/shop/web` |
//! | `PANDO_INCARNATION` | the number of this run: a fencing token that grows from run to run |
//! | `PANDO_NODE` `PANDO_TREE` `PANDO_SESSION` | where, in which tree and under which session (a number) it runs |
//! | `PANDO_MARK` | the mark of the node's data folder, by which leftovers are found |
//! | `NOTIFY_SOCKET` | only where the spec's `ready` is `notify` |
//! | `PANDO_SOCKET` | only where the spec has a `mailbox`: where messages come from |

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path as FilePath;

use pando_protocol::ids::{Incarnation, NodeName, Path, SessionId};
use pando_protocol::spec::ProcessSpec;
use pando_protocol::worker::SOCKET_VARIABLE;

use crate::guard::MARK_VARIABLE;

const PASSED_ON: [&str; 4] = ["PATH", "HOME", "LANG", "TZ"];
/// Where the node itself has no PATH.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// What all children of a node have in common.
#[derive(Debug, Clone)]
pub struct BaseEnvironment {
    variables: BTreeMap<OsString, OsString>,
}

/// What tells one run from another.
#[derive(Debug, Clone, Copy)]
pub struct RunIdentity<'a> {
    /// The child.
    pub path: &'a Path,
    /// The run.
    pub incarnation: Incarnation,
    /// The session it runs under.
    pub session: SessionId,
}

/// The sockets of a run, where it has any.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sockets<'a> {
    /// Where it says that it is ready.
    pub notify: Option<&'a str>,
    /// Where it gets its messages.
    pub worker: Option<&'a FilePath>,
}

impl BaseEnvironment {
    /// Takes over the node's own variables. `programs` is the folder of the node's program, `None` where it is unknown.
    pub fn of_node(node: &NodeName, mark: &str, programs: Option<&FilePath>) -> Self {
        let mut variables: BTreeMap<OsString, OsString> =
            PASSED_ON.iter().filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?))).collect();
        let path = variables.remove(OsStr::new("PATH")).filter(|path| !path.is_empty());
        variables.insert("PATH".into(), append(path.unwrap_or_else(|| DEFAULT_PATH.into()), programs));
        variables.insert("PANDO_NODE".into(), node.as_str().into());
        variables.insert(MARK_VARIABLE.into(), mark.into());
        Self { variables }
    }

    /// The whole environment of a run, as `KEY=VALUE`, sorted by key.
    pub fn of_run(&self, run: RunIdentity<'_>, spec: &ProcessSpec, sockets: Sockets<'_>) -> Vec<Vec<u8>> {
        let mut variables = self.variables.clone();
        for (key, value) in &spec.env {
            // Refused when parsed; here for specs of an older version.
            if !key.starts_with("PANDO_") {
                variables.insert(key.into(), value.into());
            }
        }
        let own = [
            ("PANDO_PATH", run.path.to_string()),
            ("PANDO_TREE", run.path.tree().to_string()),
            ("PANDO_INCARNATION", run.incarnation.0.to_string()),
            ("PANDO_SESSION", run.session.0.to_string()),
        ];
        variables.extend(own.map(|(key, value)| (key.into(), value.into())));
        if let Some(socket) = sockets.notify {
            variables.insert("NOTIFY_SOCKET".into(), socket.into());
        }
        if let Some(socket) = sockets.worker {
            variables.insert(SOCKET_VARIABLE.into(), socket.into());
        }
        variables.into_iter().map(|(key, value)| entry(key, &value)).collect()
    }
}

fn append(path: OsString, folder: Option<&FilePath>) -> OsString {
    let Some(folder) = folder.filter(|folder| !folder.as_os_str().as_bytes().contains(&b':')) else { return path };
    if std::env::split_paths(&path).any(|known| known == folder) {
        return path;
    }
    let mut bytes = path.into_vec();
    bytes.push(b':');
    bytes.extend(folder.as_os_str().as_bytes());
    OsString::from_vec(bytes)
}

fn entry(key: OsString, value: &OsStr) -> Vec<u8> {
    let mut bytes = key.into_vec();
    bytes.push(b'=');
    bytes.extend(value.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process() -> ProcessSpec {
        ProcessSpec {
            command: pando_protocol::spec::Command { program: "true".into(), args: Vec::new() },
            env: BTreeMap::new(),
            cwd: None,
            shutdown: pando_protocol::spec::Shutdown::BrutalKill,
            stop_signal: pando_protocol::spec::Signal::TERM,
            normal_exit: [0].into(),
            intensity: None,
            slots: 1,
            ready: pando_protocol::spec::Ready::Started,
            place: pando_protocol::spec::Place::default(),
            on_exit: Vec::new(),
            on_disconnect: pando_protocol::spec::OnDisconnect::Stop,
            mailbox: None,
        }
    }

    #[test]
    fn a_child_sees_the_four_of_the_node_its_own_and_ours() {
        let base = BaseEnvironment::of_node(&"n1".parse().unwrap(), "m", Some(FilePath::new("/opt/pando")));
        let mut spec = process();
        spec.env = [("HOME".into(), "/there".into()), ("COLOUR".into(), "red".into())].into();
        let path = "/shop/web".parse().unwrap();
        let run = RunIdentity { path: &path, incarnation: Incarnation(7), session: SessionId(3) };
        let sockets = Sockets { notify: Some("@x"), worker: Some(FilePath::new("/run/s")) };
        let environment: Vec<String> =
            base.of_run(run, &spec, sockets).into_iter().map(|entry| String::from_utf8(entry).unwrap()).collect();
        for expected in [
            "COLOUR=red",
            "HOME=/there",
            "NOTIFY_SOCKET=@x",
            "PANDO_INCARNATION=7",
            "PANDO_MARK=m",
            "PANDO_NODE=n1",
            "PANDO_PATH=/shop/web",
            "PANDO_SESSION=3",
            "PANDO_SOCKET=/run/s",
            "PANDO_TREE=shop",
        ] {
            assert!(environment.contains(&expected.to_owned()), "{expected} is missing in {environment:?}");
        }
        let path = environment.iter().find(|entry| entry.starts_with("PATH=")).unwrap();
        assert!(path.ends_with(":/opt/pando"), "{path}");
        let known = |entry: &&String| !["LANG=", "TZ=", "PATH="].iter().any(|prefix| entry.starts_with(prefix));
        assert_eq!(environment.iter().filter(known).count(), 10, "{environment:?}");
    }
}

//! Nodes on loopback with certificates of their own, for tests.

use std::path::PathBuf;
use std::time::Duration;

use pando_protocol::client::certs::Authority;
use pando_protocol::client::identity::{Identity, Role};
use pando_protocol::client::quic::{self, Tuning};
use quinn::Endpoint;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Credentials;
use super::peers::Peers;
use super::server::{self, IncomingStream};

/// Longer than anything takes that works.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// A cluster's certificates.
pub(crate) struct Cluster {
    folder: TempDir,
    name: &'static str,
}

/// Somebody who dials.
pub(crate) struct Dialler {
    pub(crate) identity: Identity,
    pub(crate) endpoint: Endpoint,
    pub(crate) tuning: Tuning,
}

/// A node that accepts, with a queue of four streams.
pub(crate) struct Node {
    pub(crate) address: String,
    pub(crate) streams: mpsc::Receiver<IncomingStream>,
    pub(crate) stop: CancellationToken,
    pub(crate) serving: JoinHandle<()>,
    pub(crate) peers: Peers,
}

impl Cluster {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { folder: TempDir::new().unwrap(), name }
    }

    pub(crate) fn folder(&self, name: &str, role: Role) -> PathBuf {
        let own = self.folder.path().join(format!("{name}-{role}"));
        if !own.exists() {
            self.authority().issue(&name.parse().unwrap(), role, &own).unwrap();
        }
        own
    }

    pub(crate) fn identity(&self, name: &str, role: Role) -> Identity {
        Identity::load(&self.folder(name, role)).unwrap()
    }

    pub(crate) fn credentials(&self, node: &str) -> Credentials {
        Credentials::fixed(self.identity(node, Role::Node))
    }

    pub(crate) fn authority(&self) -> Authority {
        Authority::create_or_load(self.folder.path(), self.name).unwrap()
    }

    pub(crate) fn dialler(&self, name: &str) -> Dialler {
        let (identity, tuning) = (self.identity(name, Role::Node), Tuning::lan());
        let endpoint = quic::bind_dialler(&identity, &tuning).unwrap().endpoint;
        Dialler { identity, endpoint, tuning }
    }

    pub(crate) fn node(&self, name: &str) -> Node {
        self.node_at(name, "127.0.0.1:0")
    }

    pub(crate) fn node_at(&self, name: &str, address: &str) -> Node {
        let identity = self.identity(name, Role::Node);
        let endpoint = quic::bind(&identity, address.parse().unwrap(), &Tuning::lan()).unwrap().endpoint;
        let address = endpoint.local_addr().unwrap().to_string();
        let (sender, streams) = mpsc::channel(4);
        let stop = CancellationToken::new();
        let peers = Peers::new(endpoint.clone(), Credentials::fixed(identity), &Tuning::lan());
        let serving = tokio::spawn(server::serve(endpoint, self.name.to_owned(), sender, stop.clone()));
        Node { address, streams, stop, serving, peers }
    }
}

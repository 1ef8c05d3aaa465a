//! For tests: nodes that speak the real protocol over real connections, and answer what the test says.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pando_protocol::client::certs::Authority;
use pando_protocol::client::frames::{FrameReader, FrameWriter};
use pando_protocol::client::identity::{Identity, Role};
use pando_protocol::client::quic::{self, CloseCode, Tuning};
use pando_protocol::message::{Answer, Call, Item};
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::context::Context;

/// What a node does when it is asked.
pub enum Turn {
    /// It answers.
    Answer(Box<Answer>),
    /// It sends these items and closes the connection.
    GoAway(Vec<Item>),
}

/// What the nodes of a test do: given the call, and how many came before and with it, from 1.
type Script = dyn Fn(Call, usize) -> Turn + Send + Sync;

/// Nodes that follow one script. They end when it is dropped.
pub struct Cluster {
    folder: TempDir,
    endpoints: Vec<String>,
    _nodes: JoinSet<()>,
}

impl Cluster {
    /// Starts so many nodes.
    pub fn start(nodes: usize, script: impl Fn(Call, usize) -> Turn + Send + Sync + 'static) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create_or_load(&folder.path().join("ca"), "grove").unwrap();
        let issue = |name: &str, role| {
            let own = folder.path().join(name);
            authority.issue(&name.parse().unwrap(), role, &own).unwrap();
            own
        };
        issue("admin", Role::Admin);
        let node = Identity::load(&issue("node", Role::Node)).unwrap();
        let (script, asked): (Arc<Script>, _) = (Arc::new(script), Arc::new(AtomicUsize::new(0)));
        let (mut running, mut endpoints) = (JoinSet::new(), Vec::new());
        for _ in 0..nodes {
            let endpoint = quic::bind(&node, "127.0.0.1:0".parse().unwrap(), &Tuning::lan()).unwrap().endpoint;
            endpoints.push(endpoint.local_addr().unwrap().to_string());
            let (script, asked) = (script.clone(), asked.clone());
            running.spawn(async move {
                while let Some(incoming) = endpoint.accept().await {
                    let Ok(connection) = incoming.await else { continue };
                    while let Ok((send, receive)) = connection.accept_bi().await {
                        let gone = serve(FrameWriter::new(send), FrameReader::new(receive), &*script, &asked).await;
                        if gone {
                            quic::close(&connection, CloseCode::Stopping, "as the script says");
                        }
                    }
                }
            });
        }
        Self { folder, endpoints, _nodes: running }
    }

    /// How to speak to them.
    pub fn context(&self) -> Context {
        Context { endpoints: self.endpoints.clone(), identity: self.folder.path().join("admin"), data: None }
    }
}

/// Serves one request, and tells whether the node goes away then.
async fn serve(mut writer: FrameWriter, mut reader: FrameReader, script: &Script, asked: &AtomicUsize) -> bool {
    reader.channel().await.unwrap();
    let call = reader.expect::<Call>().await.unwrap();
    match script(call, asked.fetch_add(1, Ordering::SeqCst) + 1) {
        Turn::Answer(answer) => {
            writer.send(&*answer).await.unwrap();
            writer.finish();
            false
        }
        Turn::GoAway(items) => {
            for item in &items {
                writer.send(item).await.unwrap();
            }
            // Without this the close overtakes what was sent.
            writer.finish();
            writer.stopped().await;
            true
        }
    }
}

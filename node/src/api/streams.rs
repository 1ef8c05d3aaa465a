//! Streams: events from this node's state, and what a child wrote, from every node that may have run it.

use std::collections::BTreeMap;
use std::time::Duration;

use openraft::impls::TokioRuntime;
use pando_protocol::client::frames::FrameWriter;
use pando_protocol::ids::{NodeName, Path};
use pando_protocol::message::{Channel, Item, LogLine};
use pando_protocol::rejection::Rejection;
use pando_supervision::{report, trees};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::Api;
use crate::control::Control;
use crate::peer::{PeerCall, PeerItem};
use crate::transport::{IncomingStream, Lane};

/// Each node has this long to begin to stream its logs.
const LOGS_LIMIT: Duration = Duration::from_secs(2);
/// Lines that are being followed are put in order of time over this long at the beginning.
const GATHER: Duration = Duration::from_millis(300);
/// Lines that may wait for a slow client.
const LINES_WAITING: usize = 1_024;

impl Api {
    /// Streams events after `after`, and new ones as they are applied here where `follow` says so.
    pub(super) async fn stream_events(&self, after: u64, follow: bool, mut stream: IncomingStream) {
        let Some(control) = &self.control else { return };
        let mut next = after + 1;
        let mut published = control.published.clone();
        loop {
            let Some(items) = events_from(control, &mut next) else { return stream.writer.finish() };
            for item in items {
                if stream.writer.send(&item).await.is_err() {
                    return;
                }
            }
            if !follow {
                return stream.writer.finish();
            }
            let news = published.wait_for(|published| published.cluster.head.next_event > next);
            let gone = stream.writer.stopped();
            tokio::select! {
                biased;
                () = gone => return,
                news = news => if news.is_err() { return stream.writer.finish() },
            }
        }
    }

    /// Streams what a child wrote, on every node.
    pub(super) async fn stream_logs(&self, path: Path, tail: u32, follow: bool, mut stream: IncomingStream) {
        let nodes = match self.nodes_to_ask(&path) {
            Ok(nodes) => nodes,
            Err(refused) => {
                _ = stream.writer.send(&Item::Failed(refused)).await;
                return stream.writer.finish();
            }
        };
        let (items, mut waiting) = mpsc::channel(LINES_WAITING);
        let mut sources = JoinSet::new();
        for (name, address) in nodes {
            let source = self.source(name, address, path.clone(), tail, follow, items.clone());
            sources.spawn(source);
        }
        drop(items);
        let until = Instant::now() + if follow { GATHER } else { LOGS_LIMIT * 2 };
        let mut lines = Vec::new();
        let mut is_over = false;
        while let Ok(item) = timeout_at(until, waiting.recv()).await {
            match item {
                Some(Item::Log(line)) => lines.push(line),
                Some(other) => _ = stream.writer.send(&other).await,
                None => {
                    is_over = true;
                    break;
                }
            }
        }
        lines.sort_by_key(|line: &LogLine| line.at);
        if send_all(&mut stream.writer, lines.into_iter().map(Item::Log)).await.is_err() || is_over || !follow {
            return stream.writer.finish();
        }
        let gone = stream.writer.stopped();
        tokio::pin!(gone);
        loop {
            tokio::select! {
                biased;
                () = &mut gone => return,
                item = waiting.recv() => match item {
                    Some(item) => if stream.writer.send(&item).await.is_err() { return },
                    None => return stream.writer.finish(),
                },
            }
        }
    }

    /// Every node that is known, down ones included: each may have run the child.
    fn nodes_to_ask(&self, path: &Path) -> Result<BTreeMap<NodeName, String>, Rejection> {
        let Some(control) = &self.control else {
            return Ok(BTreeMap::from([(self.own.clone(), String::new())]));
        };
        let cluster = control.cluster();
        if cluster.process(path).is_none() {
            return Err(match cluster.member(path) {
                None => Rejection::NoSuchPath { path: path.clone(), nearest: trees::nearest(&cluster, path) },
                Some(_) => Rejection::WrongState {
                    path: path.clone(),
                    why: "is a supervisor: name one of its children".into(),
                },
            });
        }
        Ok(cluster.nodes.iter().map(|(name, node)| (name.clone(), node.address.clone())).collect())
    }

    /// The lines of one node, into `items`.
    fn source(
        &self,
        name: NodeName,
        address: String,
        path: Path,
        tail: u32,
        follow: bool,
        items: mpsc::Sender<Item>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (own, peers, children) = (self.own.clone(), self.peers.clone(), self.children.clone());
        async move {
            if name == own {
                let lines =
                    if follow { children.follow(path, tail).await } else { once(children.tail(path, tail).await) };
                match lines {
                    Ok(mut lines) => {
                        while let Some(line) = lines.recv().await {
                            if items.send(Item::Log(line)).await.is_err() {
                                return;
                            }
                        }
                    }
                    Err(error) => {
                        _ = items.send(Item::Note(format!("the log on {name} cannot be read: {error}"))).await;
                    }
                }
                return;
            }
            let opened = peers.open(Lane::Call, Channel::Peer, &name, &address, LOGS_LIMIT).await;
            let Ok((mut writer, mut reader)) = opened else {
                _ = items.send(Item::Note(format!("{name} does not answer: its lines are missing"))).await;
                return;
            };
            if writer.send(&PeerCall::Logs { path, tail, follow }).await.is_err() {
                return;
            }
            writer.finish();
            while let Ok(Some(item)) = reader.next::<PeerItem>().await {
                let item = match item {
                    PeerItem::Line(line) => Item::Log(line),
                    PeerItem::Failed(why) => Item::Note(format!("the log on {name} cannot be read: {why}")),
                };
                if items.send(item).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Streams what a child wrote here to another node.
    pub(super) async fn own_logs(&self, path: Path, tail: u32, follow: bool, mut stream: IncomingStream) {
        let lines =
            if follow { self.children.follow(path, tail).await } else { once(self.children.tail(path, tail).await) };
        let mut lines = match lines {
            Ok(lines) => lines,
            Err(error) => {
                _ = stream.writer.send(&PeerItem::Failed(error.to_string())).await;
                return stream.writer.finish();
            }
        };
        let gone = stream.writer.stopped();
        tokio::pin!(gone);
        loop {
            tokio::select! {
                biased;
                () = &mut gone => return,
                line = lines.recv() => match line {
                    Some(line) => if stream.writer.send(&PeerItem::Line(line)).await.is_err() { return },
                    None => return stream.writer.finish(),
                },
            }
        }
    }
}

/// The events from `next` on, which moves behind them.
fn events_from(control: &Control<TokioRuntime>, next: &mut u64) -> Option<Vec<Item>> {
    let published = control.published.borrow();
    let cluster = &published.cluster;
    let mut items = Vec::new();
    let oldest = cluster.events.get_min().map_or(cluster.head.next_event, |(number, _)| *number);
    if *next < oldest && oldest > 1 && *next > 1 {
        items.push(Item::Note(format!("events {next} to {} are no longer kept", oldest - 1)));
    }
    for (number, event) in cluster.events.range(*next..) {
        items.push(Item::Event(report::event_row(event)));
        *next = number + 1;
    }
    *next = (*next).max(oldest).min(cluster.head.next_event);
    Some(items)
}

async fn send_all(writer: &mut FrameWriter, items: impl Iterator<Item = Item>) -> Result<(), ()> {
    for item in items {
        timeout(LOGS_LIMIT * 5, writer.send(&item)).await.map_err(|_| ())?.map_err(|_| ())?;
    }
    Ok(())
}

/// A receiver of lines that are all there already.
fn once(lines: std::io::Result<Vec<LogLine>>) -> std::io::Result<mpsc::Receiver<LogLine>> {
    let lines = lines?;
    let (sender, receiver) = mpsc::channel(lines.len().max(1));
    for line in lines {
        _ = sender.try_send(line);
    }
    Ok(receiver)
}

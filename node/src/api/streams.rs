//! Streams: events from this node's state, and what a child wrote, from every node that may have run it.

use std::collections::BTreeMap;
use std::time::Duration;

use pando_protocol::client::frames::FrameWriter;
use pando_protocol::ids::{NodeName, Path};
use pando_protocol::message::{Channel, Item, LogLine};
use pando_protocol::rejection::Rejection;
use pando_supervision::{Cluster, report, trees};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::NodeApi;
use crate::local::LocalChildren;
use crate::peer::{PeerCall, PeerItem};
use crate::transport::{IncomingStream, Lane, Peers};

/// Each node has this long to begin to stream its logs.
const LOGS_LIMIT: Duration = Duration::from_secs(2);
/// Lines that are being followed are put in order of time over this long at the beginning.
const GATHER: Duration = Duration::from_millis(300);
/// A node whose lines are followed, and that went away, is asked again after this.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// The lines that it is then asked for, of which those that were seen are left out.
const MISSED_LINES: u32 = 1_000;
/// Lines that may wait for a slow client.
const LINES_WAITING: usize = 1_024;

impl NodeApi {
    /// Streams events after `after`, and new ones as they are applied here where `follow` says so.
    pub(super) async fn stream_events(&self, after: u64, follow: bool, mut stream: IncomingStream) {
        let Some(control) = &self.control else { return };
        let mut next = after.saturating_add(1);
        let mut published = control.published.clone();
        loop {
            for item in events_from(&control.cluster(), &mut next) {
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
        if !is_over && !follow {
            let note =
                format!("not every node has sent all of its lines within {:?}: some are missing", LOGS_LIMIT * 2);
            _ = stream.writer.send(&Item::Note(note)).await;
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

    /// The lines of one node, into `items`. One that is followed and goes away is followed again when it is back.
    fn source(
        &self,
        name: NodeName,
        address: String,
        path: Path,
        tail: u32,
        follow: bool,
        items: mpsc::Sender<Item>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let source = Source { name, address, path, items, newest: Duration::ZERO };
        let (own, peers, children) = (self.own.clone(), self.peers.clone(), self.children.clone());
        async move {
            if source.name == own {
                return source.here(&children, tail, follow).await;
            }
            source.there(&peers, tail, follow).await;
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

/// Where lines come from, and go.
struct Source {
    name: NodeName,
    address: String,
    path: Path,
    items: mpsc::Sender<Item>,
    /// When the newest line that was passed on was written.
    newest: Duration,
}

impl Source {
    async fn here(self, children: &LocalChildren, tail: u32, follow: bool) {
        let Self { name, path, items, .. } = self;
        let lines = if follow { children.follow(path, tail).await } else { once(children.tail(path, tail).await) };
        match lines {
            Ok(mut lines) => {
                while let Some(line) = lines.recv().await {
                    if items.send(Item::Log(line)).await.is_err() {
                        return;
                    }
                }
            }
            Err(error) => _ = items.send(Item::Note(format!("the log on {name} cannot be read: {error}"))).await,
        }
    }

    async fn there(mut self, peers: &Peers, tail: u32, follow: bool) {
        let mut is_told = false;
        let mut tail = tail;
        loop {
            let is_over = self.stream(peers, tail, follow).await;
            if is_over == Some(true) || self.items.is_closed() {
                return;
            }
            if is_over.is_none() && !std::mem::replace(&mut is_told, true) {
                let note = format!("{} does not answer: its lines are missing", self.name);
                _ = self.items.send(Item::Note(note)).await;
            }
            if !follow {
                return;
            }
            if is_over.is_some() {
                is_told = false;
            }
            // What was written while nobody listened comes first then.
            tail = MISSED_LINES;
            sleep(ASK_AGAIN).await;
        }
    }

    /// Streams until the other side ends: whether for good; `None` where it did not begin.
    async fn stream(&mut self, peers: &Peers, tail: u32, follow: bool) -> Option<bool> {
        let Self { name, address, path, items, newest } = self;
        let opened = peers.open(Lane::Call, Channel::Peer, name, address, LOGS_LIMIT).await;
        let (mut writer, mut reader) = opened.ok()?;
        writer.send(&PeerCall::Logs { path: path.clone(), tail, follow }).await.ok()?;
        writer.finish();
        let known = *newest;
        loop {
            let item = match reader.next::<PeerItem>().await {
                Ok(Some(PeerItem::Line(line))) if line.at <= known => continue,
                Ok(Some(PeerItem::Line(line))) => {
                    *newest = line.at.max(*newest);
                    Item::Log(line)
                }
                Ok(Some(PeerItem::Failed(why))) => {
                    _ = items.send(Item::Note(format!("the log on {name} cannot be read: {why}"))).await;
                    return Some(true);
                }
                Ok(None) => return Some(!follow),
                Err(_) => return if newest.is_zero() { None } else { Some(false) },
            };
            if items.send(item).await.is_err() {
                return Some(true);
            }
        }
    }
}

/// The events from `next` on, which moves behind them. It never moves back: a follower may know more than this voter.
fn events_from(cluster: &Cluster, next: &mut u64) -> Vec<Item> {
    let mut items = Vec::new();
    let oldest = cluster.events.get_min().map_or(cluster.head.next_event, |(number, _)| *number);
    if *next < oldest && oldest > 1 && *next > 1 {
        items.push(Item::Note(format!("events {next} to {} are no longer kept", oldest - 1)));
    }
    for (number, event) in cluster.events.range(*next..) {
        items.push(Item::Event(report::event_row(event)));
        *next = number + 1;
    }
    *next = (*next).max(oldest);
    items
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

#[cfg(test)]
mod tests {
    use pando_protocol::session::{NodeRole, SessionRequest};
    use pando_supervision::{Command, Stamp, apply};

    use super::*;

    /// A state with `count` events.
    fn with_events(count: u64) -> Cluster {
        let mut cluster = Cluster::default();
        for nonce in 1..=count {
            let (node, address, role) = ("n1".parse().unwrap(), String::new(), NodeRole::Agent);
            let (labels, proven_over) = (vec![], vec![]);
            let request = SessionRequest { node, nonce, address, role, labels, slots: 1, pid: 1, proven_over };
            apply(&mut cluster, Stamp { at: Duration::ZERO, wall: 0 }, Command::GrantSession(request)).outcome.unwrap();
        }
        cluster
    }

    #[test]
    fn a_follower_that_knows_more_than_this_voter_hears_nothing_twice() {
        let behind = with_events(2);
        let known = with_events(4).head.next_event;
        let mut next = known;
        assert_eq!(events_from(&behind, &mut next), vec![]);
        assert_eq!(next, known);
        assert_eq!(events_from(&with_events(5), &mut next).len(), 1);
        assert_eq!(next, known + 1);
    }

    #[test]
    fn events_that_are_no_longer_kept_are_named() {
        let mut cluster = with_events(5);
        cluster.events = cluster.events.range(4..).map(|(number, event)| (*number, event.clone())).collect();
        let mut next = 2;
        let items = events_from(&cluster, &mut next);
        assert_eq!(items[0], Item::Note("events 2 to 3 are no longer kept".into()));
        assert_eq!((items.len(), next), (3, 6));
    }
}

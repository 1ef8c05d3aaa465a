//! Streams of events and log lines, which go on at another node when the one that sent them goes away.

use std::time::Duration;

use anyhow::anyhow;
use pando_protocol::client::ClientError;
use pando_protocol::message::{Call, Item};
use pando_protocol::rejection::Rejection;
use tokio::time::{Instant, sleep};

use crate::connection::Connection;
use crate::exit::Failure;
use crate::{human, output};

/// How long a broken stream is begun again before the command gives up: several elections.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause before a broken stream is begun again.
const PAUSE: Duration = Duration::from_millis(200);

/// How one stream ended.
enum End {
    /// All was sent.
    Finished,
    /// It broke; why.
    Broke(ClientError),
}

/// Hands every item of the stream to `take`. With `follow`, a stream that ends or breaks is begun again with what `call` says
/// then; `call` is told whether it is called again.
///
/// # Errors
/// The cluster refuses, cannot be reached (with `follow`: for 30 s), or `take` fails.
pub async fn run(
    connection: &Connection,
    follow: bool,
    mut call: impl FnMut(bool) -> Call,
    mut take: impl FnMut(Item) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut heard = Instant::now();
    let mut again = false;
    let mut is_told = false;
    loop {
        let end = once(connection, call(again), &mut |item| {
            heard = Instant::now();
            is_told = false;
            take(item)
        })
        .await?;
        let why = match end {
            End::Finished if !follow => return Ok(()),
            End::Finished => "the node ended it".into(),
            End::Broke(error) if !follow || !may_pass(&error) || heard.elapsed() > PATIENCE => return Err(error.into()),
            End::Broke(error) => format!("{:#}", anyhow!(error)),
        };
        if heard.elapsed() > PATIENCE {
            return Err(Failure::unreached(anyhow!("nothing to follow for {}: {why}", human::duration(PATIENCE))));
        }
        if !std::mem::replace(&mut is_told, true) {
            output::say("pando: the node that was followed went away; going on at another");
        }
        again = true;
        sleep(PAUSE).await;
    }
}

async fn once(
    connection: &Connection,
    call: Call,
    take: &mut impl FnMut(Item) -> Result<(), Failure>,
) -> Result<End, Failure> {
    let mut items = match connection.stream(call).await {
        Ok(items) => items,
        Err(error) => return Ok(End::Broke(error)),
    };
    loop {
        match items.next().await {
            Ok(Some(Item::Failed(rejection))) => return Ok(End::Broke(ClientError::Refused(rejection))),
            Ok(Some(Item::Note(note))) => output::say(format_args!("pando: {note}")),
            Ok(Some(item)) => take(item)?,
            Ok(None) => return Ok(End::Finished),
            Err(error) => return Ok(End::Broke(error)),
        }
    }
}

/// Whether another try may succeed.
fn may_pass(error: &ClientError) -> bool {
    match error {
        ClientError::Unreachable { .. } | ClientError::TimedOut { .. } | ClientError::Protocol { .. } => true,
        ClientError::Refused(rejection) => matches!(rejection, Rejection::NoLeader { .. } | Rejection::Unknown),
        ClientError::Identity(_) | ClientError::Unusable(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use pando_protocol::view::EventRow;

    use super::*;
    use crate::scripted_node::{Cluster, Turn};

    /// Sends two events, then goes away; the third time it is asked it refuses.
    fn two_events(call: Call, asked: usize) -> Turn {
        let Call::Events { after, .. } = call else { return Turn::GoAway(Vec::new()) };
        if asked > 2 {
            return Turn::GoAway(vec![Item::Failed(Rejection::BadRequest("enough".into()))]);
        }
        Turn::GoAway((1..=2).map(|offset| Item::Event(event(after + offset))).collect())
    }

    fn event(number: u64) -> EventRow {
        let (kind, text) = (String::new(), String::new());
        EventRow { number, cluster_time_ms: 0, at: 0, kind, path: None, node: None, text }
    }

    #[tokio::test]
    async fn a_stream_that_breaks_goes_on_elsewhere_without_a_gap_or_a_repetition() {
        let cluster = Cluster::start(2, two_events);
        let connection = Connection::to(&cluster.context()).unwrap();
        let last = Cell::new(0);
        let mut numbers = Vec::new();
        let call = |_| Call::Events { after: last.get(), follow: true };
        let followed = run(&connection, true, call, |item| {
            if let Item::Event(row) = item {
                last.set(row.number);
                numbers.push(row.number);
            }
            Ok(())
        });
        let failure = followed.await.unwrap_err();
        assert_eq!(failure.error.unwrap().to_string(), "bad request: enough");
        assert_eq!(numbers, [1, 2, 3, 4]);
    }
}

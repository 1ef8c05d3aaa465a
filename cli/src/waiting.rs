//! Waiting for something to become true in the cluster: short questions, a bound, and a line of progress.

use std::time::Duration;

use anyhow::anyhow;
use pando_protocol::ids::Path;
use pando_protocol::message::Settled;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::connection::{Connection, unconfirmed};
use crate::exit::{Code, Failure};
use crate::human;
use crate::terminal::Progress;

/// Pause between two questions: short beside what a person notices, long beside what an answer costs.
const PAUSE: Duration = Duration::from_millis(100);

/// The first look may take this long even where the limit is shorter: a limit of zero asks how it is now.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// What is waited for must hold for so long: some looks, and a few crashes of a child that crashes at once.
const HOLD: Duration = Duration::from_millis(500);

/// What one look at the cluster showed.
pub enum Look<T> {
    /// It is so.
    There(T),
    /// It is not so yet; what is missing.
    NotYet(String),
    /// Nobody with authority answered; what came instead.
    Unsure(String),
}

/// Looks until it is so, at least once and for at most `limit` from `started` on; `what` completes *waiting for*. A cluster that cannot be reached for a while is asked again.
///
/// # Errors
/// The limit passed (1, or 3 where no leader ever answered; with what was last seen), or a look failed for good.
pub async fn until<T>(
    what: &str,
    started: Instant,
    limit: Duration,
    mut look: impl AsyncFnMut() -> Result<Look<T>, Failure>,
) -> Result<T, Failure> {
    let deadline = started + limit;
    let first_deadline = Instant::now() + FIRST_LOOK;
    let mut progress = Progress::new();
    let mut code = Code::Unreached;
    let mut last_seen = "no answer yet".to_owned();
    loop {
        match timeout_at(deadline.max(first_deadline), look()).await {
            Ok(Ok(Look::There(value))) => return Ok(value),
            Ok(Ok(Look::NotYet(seen))) => (code, last_seen) = (Code::Failed, seen),
            Ok(Ok(Look::Unsure(seen))) => last_seen = seen,
            Ok(Err(Failure { code: Some(Code::Unreached), error })) => {
                last_seen = error.map_or_else(|| "the cluster was not reached".into(), |error| format!("{error:#}"));
            }
            Ok(Err(failure)) => return Err(failure),
            Err(_) => {}
        }
        if Instant::now() + PAUSE > deadline {
            let error = anyhow!("gave up waiting for {what} after {}; last seen: {last_seen}", human::duration(limit));
            return Err(Failure { code: Some(code), error: Some(error) });
        }
        progress.show(&format!("waiting for {what} ({}): {last_seen}", human::duration(started.elapsed())));
        sleep_until(Instant::now() + PAUSE).await;
    }
}

/// Waits until everything at and below `path` that should run is ready, and stays so for a moment.
///
/// # Errors
/// The tree failed, with its causes; the limit passed; or there is no such path.
pub async fn until_whole(
    connection: &Connection,
    path: &Path,
    started: Instant,
    limit: Duration,
) -> Result<Settled, Failure> {
    let what = format!("{path} to be whole");
    let mut steady = Steady { hold: HOLD.min(limit / 2), since: None };
    until(&what, started, limit, async || {
        let read = connection.settled(path.clone()).await?;
        if !read.view.confirmed {
            return Ok(Look::Unsure(unconfirmed(&read.view)));
        }
        Ok(steady.judge(Instant::now(), judge(path, read.value)?))
    })
    .await
}

/// A child without a probe is ready as soon as it is started: one that crashes at once makes its tree whole for an instant,
/// again and again.
struct Steady {
    hold: Duration,
    since: Option<Instant>,
}

impl Steady {
    fn judge(&mut self, now: Instant, look: Look<Settled>) -> Look<Settled> {
        match look {
            Look::There(settled) if now - *self.since.get_or_insert(now) < self.hold => {
                Look::NotYet(format!("{} of {} ready, since a moment", settled.ready, settled.configured))
            }
            Look::There(settled) => Look::There(settled),
            other => {
                self.since = None;
                other
            }
        }
    }
}

fn judge(path: &Path, settled: Settled) -> Result<Look<Settled>, Failure> {
    if let Some(causes) = &settled.failed {
        return Err(Failure::failed(anyhow!(
            "tree /{tree} has failed and stays down: {causes}; `pando explain {path}` tells more, `pando restart {tree}` or a \
             corrected spec clears it",
            tree = path.tree()
        )));
    }
    if settled.whole {
        return Ok(Look::There(settled));
    }
    let missing = settled.missing.join("; ");
    let missing = if missing.is_empty() { String::new() } else { format!("; missing: {missing}") };
    Ok(Look::NotYet(format!("{} of {} ready{missing}", settled.ready, settled.configured)))
}

#[cfg(test)]
mod tests {
    use pando_protocol::view::Verdict;

    use super::*;

    fn settled(ready: u32, failed: Option<&str>) -> Settled {
        let missing = if ready < 2 { vec!["/shop/web waits for a node with disk=ssd".to_owned()] } else { Vec::new() };
        let failed = failed.map(str::to_owned);
        Settled { whole: ready == 2, failed, verdict: Verdict::Short, ready, configured: 2, missing }
    }

    #[test]
    fn a_tree_that_failed_is_not_waited_for() {
        let shop: Path = "/shop".parse().unwrap();
        let failure = judge(&shop, settled(0, Some("6 crashes in 10 s"))).err().unwrap();
        assert_eq!(failure.code, Some(Code::Failed));
        let text = format!("{:#}", failure.error.unwrap());
        assert!(text.contains("6 crashes in 10 s") && text.contains("`pando restart shop`"), "{text}");
    }

    #[test]
    fn a_tree_counts_as_whole_only_when_it_stays_so() {
        let shop: Path = "/shop".parse().unwrap();
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let mut steady = Steady { hold: HOLD, since: None };
        let mut look = |at, ready| steady.judge(start + ms(at), judge(&shop, settled(ready, None)).unwrap());
        assert!(matches!(look(0, 2), Look::NotYet(_)));
        assert!(matches!(look(400, 1), Look::NotYet(_)), "it crashed");
        assert!(matches!(look(500, 2), Look::NotYet(_)));
        assert!(matches!(look(999, 2), Look::NotYet(_)));
        assert!(matches!(look(1_000, 2), Look::There(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_the_wait_says_what_is_missing() {
        let shop: Path = "/shop".parse().unwrap();
        let waited = until("/shop", Instant::now(), Duration::from_secs(3), async || judge(&shop, settled(1, None)));
        let failure = waited.await.map(|_| ()).unwrap_err();
        assert_eq!(failure.code, Some(Code::Failed));
        assert_eq!(
            failure.error.unwrap().to_string(),
            "gave up waiting for /shop after 3.0 s; last seen: 1 of 2 ready; missing: /shop/web waits for a node with disk=ssd"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_that_never_answers_is_told_apart_from_one_that_says_no() {
        let waited = until::<()>("/shop", Instant::now(), Duration::from_secs(1), async || {
            Err(Failure::unreached(anyhow!("connection refused")))
        });
        assert_eq!(waited.await.unwrap_err().code, Some(Code::Unreached));
    }
}

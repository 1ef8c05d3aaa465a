//! Waiting for something to be true, with a bound.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Looks again this often.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Looks at `look` until `is_there` says yes, and returns what was seen then.
///
/// # Panics
/// After `limit`, with `what` was waited for and what was seen last.
pub async fn wait_until<T: Debug>(
    what: &str,
    limit: Duration,
    mut look: impl AsyncFnMut() -> T,
    is_there: impl Fn(&T) -> bool,
) -> T {
    let end = Instant::now() + limit;
    loop {
        let seen = look().await;
        if is_there(&seen) {
            return seen;
        }
        assert!(Instant::now() < end, "waited {limit:?} for {what}; last seen: {seen:#?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Lets time pass: what is waited for is that something does *not* happen meanwhile.
pub async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

/// [`wait_until`] without a runtime.
///
/// # Panics
/// After `limit`, with `what` was waited for and what was seen last.
pub fn wait_until_blocking<T: Debug>(
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> T,
    is_there: impl Fn(&T) -> bool,
) -> T {
    let end = Instant::now() + limit;
    loop {
        let seen = look();
        if is_there(&seen) {
            return seen;
        }
        assert!(Instant::now() < end, "waited {limit:?} for {what}; last seen: {seen:#?}");
        std::thread::sleep(LOOK_EVERY);
    }
}

//! Times as people read and type them.

use std::time::Duration;

/// A duration for a table: `12 ms`, `3.4 s`, `42 s`, `2 m`, `3 h`, `5 d`. Rounded down.
pub fn duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{millis} ms"),
        1..10 => format!("{}.{} s", seconds, millis % 1000 / 100),
        10..60 => format!("{seconds} s"),
        60..3_600 => format!("{} m", seconds / 60),
        3_600..86_400 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// [`duration`] of milliseconds.
pub fn millis(millis: u64) -> String {
    duration(Duration::from_millis(millis))
}

/// How long ago `at` was, both in milliseconds since the Unix epoch. Clocks of two machines differ a little: what lies in the
/// future by them is `now`.
pub fn ago(at: u64, now: u64) -> String {
    match now.checked_sub(at) {
        None | Some(0) => "now".into(),
        Some(passed) => format!("{} ago", millis(passed)),
    }
}

/// The time of day in UTC of milliseconds since the Unix epoch: `12:03:04.120`.
pub fn time_of_day(at: u64) -> String {
    let seconds = at / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}.{:03}", seconds / 3_600, seconds / 60 % 60, seconds % 60, at % 1000)
}

/// Milliseconds since the Unix epoch by this machine's clock.
pub fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// `count` things of a kind: `1 node`, `3 nodes`.
pub fn count(count: u64, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

/// So many children: `1 child`, `3 children`.
pub fn children(count: usize) -> String {
    if count == 1 { "1 child".into() } else { format!("{count} children") }
}

/// Reads a duration: `30s`, `500ms`, `2m`, `1h`, or seconds without a unit.
///
/// # Errors
/// The text is none; the error says what one looks like.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let expected = || format!("{text:?} is not a duration: expected something like 500ms, 30s, 2m or 1h");
    let number: u64 = number.parse().map_err(|_| expected())?;
    let millis_each = match unit {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(expected()),
    };
    number.checked_mul(millis_each).map(Duration::from_millis).ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short_enough_for_a_column() {
        let shown: Vec<String> =
            [12, 999, 3_450, 42_900, 125_000, 7_300_000, 200_000_000].into_iter().map(millis).collect();
        assert_eq!(shown, ["12 ms", "999 ms", "3.4 s", "42 s", "2 m", "2 h", "2 d"]);
        assert_eq!(ago(5_000, 4_000), "now");
        assert_eq!(ago(5_000, 6_500), "1.5 s ago");
        assert_eq!(time_of_day(1_796_040_184_120), "12:03:04.120");
    }

    #[test]
    fn durations_are_read_with_and_without_a_unit() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("30"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "s", "1.5s", "-3s", "3 s", "3w", "99999999999999999999h"] {
            assert!(parse_duration(bad).is_err(), "{bad:?}");
        }
    }
}

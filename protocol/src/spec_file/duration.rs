//! Durations as people write them: `50ms`, `1.5s`, `10m`, `24h`.

use std::time::Duration;

use crate::spec::MAX_TIME;

/// Most digits after the point: more would be less than a nanosecond of the smallest unit.
const MOST_DECIMALS: usize = 6;

/// Why a text is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadDuration {
    #[error("{0:?} is not a duration: expected a number and one of ms, s, m, h, such as \"50ms\" or \"1.5s\"")]
    Form(String),
    #[error("{0:?} is too long: at most a year (8760h)")]
    TooLong(String),
}

/// The duration that a text says: digits, perhaps a point and at most six more, and a unit. Nothing else: no spaces, signs,
/// exponents or sums.
pub(super) fn parse(text: &str) -> Result<Duration, BadDuration> {
    let shown = || super::document::shortened(text);
    let form = || BadDuration::Form(shown());
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(form)?);
    let nanos_per_unit: u128 = match unit {
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return Err(form()),
    };
    let (whole, decimals) = match number.split_once('.') {
        Some((whole, decimals)) if !decimals.is_empty() && decimals.len() <= MOST_DECIMALS => (whole, decimals),
        Some(_) => return Err(form()),
        None => (number, ""),
    };
    let digits = format!("{whole}{decimals}");
    if whole.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(form());
    }
    let too_long = || BadDuration::TooLong(shown());
    // What does not fit here is far beyond a year in any unit.
    let value: u64 = digits.parse().map_err(|_| too_long())?;
    let scale = 10u128.pow(decimals.len() as u32);
    let nanos = u64::try_from(u128::from(value) * nanos_per_unit / scale).map_err(|_| too_long())?;
    let duration = Duration::from_nanos(nanos);
    if duration > MAX_TIME { Err(too_long()) } else { Ok(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_number_and_a_unit() {
        for (text, millis) in [
            ("0s", 0),
            ("50ms", 50),
            ("0.5ms", 0),
            ("1.5s", 1_500),
            ("0.25m", 15_000),
            ("24h", 86_400_000),
            ("007s", 7_000),
            ("8760h", 31_536_000_000),
        ] {
            assert_eq!(parse(text).map(|d| d.as_millis()), Ok(millis), "{text}");
        }
        assert_eq!(parse("0.000001ms"), Ok(Duration::from_nanos(1)));
    }

    #[test]
    fn nothing_else_is_a_duration() {
        for text in [
            "", "5", "s", "5 s", " 5s", "5s ", "5S", "+5s", "-5s", ".5s", "5.s", "1.5.5s", "1e3s", "5us", "5d", "1m30s",
        ] {
            assert!(matches!(parse(text), Err(BadDuration::Form(_))), "{text:?}");
        }
        for text in ["1.0000000s", "٣s", "5ſ", "infinity", "５s"] {
            assert!(matches!(parse(text), Err(BadDuration::Form(_))), "{text:?}");
        }
    }

    #[test]
    fn a_duration_of_more_than_a_year_is_refused_whatever_its_size() {
        for text in ["8761h", "8760.1h", "99999999999999999999h", &format!("{}ms", "9".repeat(100_000))] {
            assert!(matches!(parse(text), Err(BadDuration::TooLong(_))), "{}", &text[..text.len().min(30)]);
        }
    }
}

//! Sizes as people write them: `512B`, `4KiB`, `64MiB`.

/// A text that is no size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a size: expected a whole number and one of B, KiB, MiB, GiB, such as \"64MiB\"")]
pub(super) struct BadSize(String);

/// The bytes that a text says: digits and a unit, nothing else. What is beyond all bounds stands as `u64::MAX`.
pub(super) fn parse(text: &str) -> Result<u64, BadSize> {
    let bad = || BadSize(super::document::shortened(text));
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?);
    let shift = match unit {
        "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return Err(bad()),
    };
    if digits.is_empty() {
        return Err(bad());
    }
    Ok(digits.parse::<u64>().unwrap_or(u64::MAX).saturating_mul(1 << shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_whole_number_and_a_unit_of_1024() {
        for (text, bytes) in [("0B", 0), ("512B", 512), ("4KiB", 4_096), ("64MiB", 64 << 20), ("1GiB", 1 << 30)] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        assert_eq!(parse(&format!("{}GiB", "9".repeat(100))), Ok(u64::MAX));
        for text in ["", "sixty", "64", "MiB", "64 MiB", "64MB", "64mib", "-1B", "1.5MiB", "٣B"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}

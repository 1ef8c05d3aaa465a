//! What witnesses wrote down: who lived when.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The life of one incarnation as its processes saw it, in milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// Its first beat.
    pub first: u64,
    /// Its last.
    pub last: u64,
}

/// The lives in a file of beats, by incarnation, all processes of an incarnation together.
pub fn lives(file: &Path) -> BTreeMap<u64, Life> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let mut lives: BTreeMap<u64, Life> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let (Some(incarnation), Some(_role), Some(at)) = (words.next(), words.next(), words.next()) else { continue };
        let (Ok(incarnation), Ok(at)) = (incarnation.parse(), at.parse()) else { continue };
        let life = lives.entry(incarnation).or_insert(Life { first: at, last: at });
        (life.first, life.last) = (life.first.min(at), life.last.max(at));
    }
    lives
}

/// Two incarnations that lived at the same time, where there are any. Later incarnations have higher numbers, so it is
/// enough that each begins after all before it have ended.
pub fn overlap(lives: &BTreeMap<u64, Life>) -> Option<String> {
    let mut latest: Option<(u64, u64)> = None;
    for (incarnation, life) in lives {
        if let Some((other, last)) = latest
            && life.first <= last
        {
            return Some(format!("{incarnation} began at {}, {other} still lived at {last}", life.first));
        }
        if latest.is_none_or(|(_, last)| life.last > last) {
            latest = Some((*incarnation, life.last));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlap_is_found_and_a_handover_is_none() {
        let life = |first, last| Life { first, last };
        assert_eq!(overlap(&BTreeMap::from([(1, life(0, 10)), (2, life(11, 20))])), None);
        assert!(overlap(&BTreeMap::from([(1, life(0, 10)), (2, life(10, 20))])).is_some());
        assert!(overlap(&BTreeMap::from([(1, life(0, 30)), (2, life(31, 32)), (3, life(5, 6))])).is_some());
    }
}

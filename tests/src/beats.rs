//! What witnesses wrote down: who lived when.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

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

/// Two members of a group in their start order, of which the later one lived on while the earlier one began, where that is so:
/// whatever makes an earlier member start makes all later ones start after it.
pub fn out_of_turn(earlier: &BTreeMap<u64, Life>, later: &BTreeMap<u64, Life>) -> Option<String> {
    let spans = |start: u64| later.iter().find(move |(_, life)| life.first < start && start <= life.last);
    earlier.iter().find_map(|(incarnation, life)| {
        let (other, spanning) = spans(life.first)?;
        Some(format!("{incarnation} began at {}, and {other} after it in start order lived {spanning:?}", life.first))
    })
}

/// A member of a group that lived through two starts of another one, where there is such: under `one_for_all` a new start of any
/// member belongs to a new generation.
pub fn outlived_a_generation(one: &BTreeMap<u64, Life>, another: &BTreeMap<u64, Life>) -> Option<String> {
    one.iter().find_map(|(incarnation, life)| {
        let within = |other: &&Life| life.first <= other.first && other.first <= life.last;
        let starts = another.values().filter(within).count();
        (starts > 1).then(|| format!("{incarnation} lived {life:?} through {starts} starts of the other"))
    })
}

/// When each incarnation was told to stop, in milliseconds since the Unix epoch: of witnesses that take time for it.
pub fn told(file: &Path) -> BTreeMap<u64, u64> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let told = text.lines().filter_map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
        [incarnation, "told", at] => Some((incarnation.parse().ok()?, at.parse().ok()?)),
        _ => None,
    });
    told.collect()
}

/// Now, as witnesses write it down: in milliseconds since the Unix epoch.
pub fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(first: u64, last: u64) -> Life {
        Life { first, last }
    }

    #[test]
    fn a_later_member_that_lives_on_while_an_earlier_one_begins_is_out_of_turn() {
        let earlier = BTreeMap::from([(1, life(0, 10)), (5, life(20, 30))]);
        assert_eq!(out_of_turn(&earlier, &BTreeMap::from([(2, life(1, 9)), (6, life(21, 30))])), None);
        assert!(out_of_turn(&earlier, &BTreeMap::from([(2, life(1, 20))])).is_some());
    }

    #[test]
    fn a_member_that_lives_through_two_starts_of_another_one_outlived_a_generation() {
        let one = BTreeMap::from([(1, life(0, 30))]);
        assert_eq!(outlived_a_generation(&one, &BTreeMap::from([(2, life(1, 29))])), None);
        assert!(outlived_a_generation(&one, &BTreeMap::from([(2, life(1, 9)), (3, life(15, 29))])).is_some());
    }

    #[test]
    fn an_overlap_is_found_and_a_handover_is_none() {
        assert_eq!(overlap(&BTreeMap::from([(1, life(0, 10)), (2, life(11, 20))])), None);
        assert!(overlap(&BTreeMap::from([(1, life(0, 10)), (2, life(10, 20))])).is_some());
        assert!(overlap(&BTreeMap::from([(1, life(0, 30)), (2, life(31, 32)), (3, life(5, 6))])).is_some());
    }
}

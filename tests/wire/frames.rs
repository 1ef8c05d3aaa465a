//! Makes hostile frames from honest ones.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use pando_protocol::codec::VERSION;

/// The seed of a run, unless the environment says another.
const SEED: u64 = 0x0070_616e_646f;

/// The seed of this run.
pub fn seed() -> u64 {
    match std::env::var("PANDO_SEED") {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("PANDO_SEED is {text:?}: expected a number")),
        Err(_) => SEED,
    }
}

/// A source of hostile frames.
pub struct Frames(StdRng);

impl Frames {
    /// The frames of `seed` for the type `name`, whose order does not depend on other types.
    pub fn new(seed: u64, name: &str) -> Self {
        let salt = name.bytes().fold(0u64, |salt, b| salt.rotate_left(8) ^ u64::from(b));
        Self(StdRng::seed_from_u64(seed ^ salt))
    }

    /// Random bytes behind the version byte; now and then that is random too.
    pub fn random(&mut self) -> Vec<u8> {
        let length = self.below(120);
        let mut body: Vec<u8> = (0..length).map(|_| self.byte()).collect();
        if !body.is_empty() && self.below(50) != 0 {
            body[0] = VERSION;
        }
        body
    }

    /// One of `bodies` with one to four wounds.
    pub fn mutated(&mut self, bodies: &[Vec<u8>]) -> Vec<u8> {
        let mut body = bodies[self.below(bodies.len())].clone();
        for _ in 0..=self.below(4) {
            self.wound(&mut body, bodies);
        }
        body
    }

    fn wound(&mut self, body: &mut Vec<u8>, bodies: &[Vec<u8>]) {
        // The version byte stays, or nothing behind it would be read.
        let at = 1 + self.below(body.len().max(2) - 1);
        let at = at.min(body.len());
        match self.below(7) {
            0 if at < body.len() => body[at] ^= 1 << self.below(8),
            1 if at < body.len() => body[at] = self.byte(),
            2 => body.truncate(at),
            3 => body.insert(at, self.byte()),
            4 => {
                // A number where none was, often a length, often huge.
                let number = [0, 1, 250, 65_535, 1 << 20, u64::from(u32::MAX), u64::MAX][self.below(7)];
                let end = (at + 1).min(body.len());
                body.splice(at..end, varint(number));
            }
            5 => {
                // A piece of another frame.
                let other = &bodies[self.below(bodies.len())];
                let from = self.below(other.len());
                let to = from + self.below(other.len() - from + 1);
                body.splice(at..at, other[from..to].iter().copied());
            }
            _ => {
                let end = (at + self.below(20)).min(body.len());
                body.drain(at..end);
            }
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0.random_range(0..bound.max(1))
    }

    fn byte(&mut self) -> u8 {
        // Small numbers are variants, lengths and answers to "is there one?": most bytes that mean something.
        if self.0.random_bool(0.5) { self.0.random_range(0..8) } else { self.0.random() }
    }
}

/// A body of at most `size` bytes that holds as many as possible of the element that `two` holds twice and `one` once, and
/// that claims to hold so many.
pub fn swollen(one: &[u8], two: &[u8], size: usize) -> Vec<u8> {
    let at = one.iter().zip(two).position(|(a, b)| a != b).expect("two elements are another body than one");
    assert_eq!((one[at], two[at]), (1, 2), "the first difference is the number of elements");
    let element = &one[at + 1..][..two.len() - one.len()];
    let (before, after) = (&one[..at], &one[at + 1 + element.len()..]);
    let room = size.saturating_sub(before.len() + after.len());
    let mut count = room / element.len();
    while count > 1 && count * element.len() + varint(count as u64).len() > room {
        count -= 1;
    }
    [before, &varint(count as u64), &element.repeat(count), after].concat()
}

/// A number as the codec writes it.
fn varint(number: u64) -> Vec<u8> {
    let bytes = number.to_le_bytes();
    match number {
        0..=250 => vec![bytes[0]],
        251..=0xffff => [&[251], &bytes[..2]].concat(),
        0x1_0000..=0xffff_ffff => [&[252], &bytes[..4]].concat(),
        _ => [&[253], &bytes[..]].concat(),
    }
}

//! Random operations, from a seed.

use dunlin_store::{Condition, Delta, Marks, Put, Side, Token};

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn one_in(&mut self, chance: u64) -> bool {
        self.below(chance) == 0
    }
}

/// Sizes of keys and values, and the frequency of rare operations.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub keys: u64,
    /// Longest key and value.
    pub key_bytes: u64,
    pub value_bytes: u64,
    /// Deletes in a hundred operations.
    pub deletes: u64,
    /// Flushes in a hundred thousand.
    pub flushes: u64,
}

impl Shape {
    pub const SMALL: Shape = Shape { keys: 1000, key_bytes: 20, value_bytes: 36, deletes: 8, flushes: 20 };
    pub const MIXED: Shape = Shape { keys: 1000, key_bytes: 250, value_bytes: 900, deletes: 8, flushes: 20 };
    pub const LARGE: Shape = Shape { keys: 1000, key_bytes: 40, value_bytes: 30_000, deletes: 8, flushes: 20 };

    /// Returns the key of a number, always the same.
    pub fn key(&self, number: u64) -> Vec<u8> {
        let mut key = format!("{number:x}.").into_bytes();
        let len = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % (self.key_bytes + 1);
        key.resize(key.len().max(len as usize), b'k');
        key
    }

    pub fn value(&self, random: &mut Random) -> Vec<u8> {
        let max = if random.one_in(3) { self.value_bytes } else { self.value_bytes.min(40) };
        if random.one_in(5) {
            return format!("{}", random.next() >> random.below(64)).into_bytes();
        }
        let byte = random.next() as u8;
        vec![byte; random.below(max + 1) as usize]
    }
}

/// One operation on one key. Tokens are given as their difference from the item's.
#[derive(Debug, Clone)]
pub enum Step {
    Get,
    Put { value: Vec<u8>, put: Put, is_current: bool },
    Extend { bytes: Vec<u8>, side: Side, token: Option<bool> },
    Count { delta: Delta, token: Option<bool> },
    Touch { expires: Option<u32> },
    Mark { marks: Marks, token: Token },
    Delete { token: Option<bool> },
}

fn expires(random: &mut Random, now: u32) -> Option<u32> {
    match random.below(10) {
        0 => Some(now.saturating_sub(random.below(3) as u32)),
        1..3 => Some(now + 1 + random.below(200) as u32),
        3 => Some(u32::MAX),
        _ => None,
    }
}

fn marks(random: &mut Random) -> Marks {
    Marks { is_fetched: random.one_in(2), is_stale: random.one_in(2), is_won: random.one_in(2) }
}

/// Half the time none, otherwise mostly the right one.
fn token(random: &mut Random) -> Option<bool> {
    random.one_in(2).then(|| !random.one_in(4))
}

fn explicit_cas(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => random.next(),
        1 => (1 << 44) - random.below(2),
        _ => random.below(1 << 20),
    }
}

impl Step {
    pub fn random(random: &mut Random, shape: &Shape, now: u32) -> Step {
        let kind = random.below(100);
        if kind < shape.deletes {
            return Step::Delete { token: token(random) };
        }
        match kind {
            ..40 => Step::Get,
            40..80 => {
                let condition = match random.below(6) {
                    0 => Condition::Absent,
                    1 => Condition::Present,
                    2 => Condition::Unchanged(0),
                    _ => Condition::Always,
                };
                let put = Put {
                    flags: if random.one_in(3) { random.next() as u32 } else { 0 },
                    expires: expires(random, now),
                    condition,
                    cas: random.one_in(8).then(|| explicit_cas(random)),
                    is_stale: random.one_in(8),
                };
                Step::Put { value: shape.value(random), put, is_current: !random.one_in(4) }
            }
            80..86 => {
                let side = if random.one_in(2) { Side::Start } else { Side::End };
                Step::Extend { bytes: shape.value(random), side, token: token(random) }
            }
            86..91 => {
                let by = random.next() >> random.below(64);
                Step::Count {
                    delta: if random.one_in(2) { Delta::Up(by) } else { Delta::Down(by) },
                    token: token(random),
                }
            }
            91..96 => Step::Touch { expires: expires(random, now) },
            _ => {
                let token = match random.below(3) {
                    0 => Token::Keep,
                    1 => Token::Next,
                    _ => Token::Exactly(explicit_cas(random)),
                };
                Step::Mark { marks: marks(random), token }
            }
        }
    }
}

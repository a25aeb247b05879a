//! Random work from a seed.

use dunlin_net::random::Random;

/// The form of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// Up to 20 bytes, all of them 0, 1 or 255: many slices with keys of several lengths.
    Extreme,
    /// Only zeros, up to 40: slices that differ only in their class.
    Zeros,
    /// One of some prefixes of up to 64 bytes, then up to 10 bytes: layers.
    Shared,
    /// 8 bytes.
    Numbers(u64),
    /// Up to 1,000 bytes that differ in one place.
    Long,
    /// All of the above.
    Mixed,
}

impl Keys {
    pub fn key(self, random: &mut Random) -> Vec<u8> {
        match self {
            Keys::Extreme => (0..random.below(21)).map(|_| [0, 1, 255][random.below(3) as usize]).collect(),
            Keys::Zeros => vec![0; random.below(41) as usize],
            Keys::Shared => {
                let prefix = random.below(12);
                let mut key = vec![prefix as u8; [0, 1, 7, 8, 9, 16, 23, 24, 25, 32, 40, 64][prefix as usize]];
                key.extend((0..random.below(11)).map(|_| random.below(4) as u8));
                key
            }
            Keys::Numbers(bound) => random.below(bound).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec(),
            Keys::Long => {
                let mut key = vec![7; random.below(1001) as usize];
                if let Some(last) = key.len().checked_sub(1) {
                    key[random.below(last as u64 + 1) as usize] = random.next() as u8;
                }
                key
            }
            Keys::Mixed => {
                let kinds = [Keys::Extreme, Keys::Zeros, Keys::Shared, Keys::Numbers(500), Keys::Long];
                kinds[random.below(5) as usize].key(random)
            }
        }
    }
}

pub fn value(random: &mut Random) -> Vec<u8> {
    let len = match random.below(10) {
        0 => random.below(300),
        _ => random.below(13),
    };
    (0..len).map(|_| random.next() as u8).collect()
}

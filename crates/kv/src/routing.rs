//! Decides which core owns a key: a keyed hash of the key, divided evenly among the cores.
//!
//! The seed is drawn when a server starts, and sent to its clients with the map, so it is not secret; the partitions
//! hash with secrets of their own.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

/// Maximum number of cores of a server.
pub const CORES_MAX: u16 = 1024;

/// The number of a core of a server, from zero.
pub type Core = u16;

/// How keys are divided among the cores of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Routing {
    seed: [u8; 16],
    cores: u16,
}

impl Routing {
    /// Divides keys among `cores` cores; `None` unless there are 1 to [`CORES_MAX`].
    pub fn new(seed: [u8; 16], cores: u16) -> Option<Routing> {
        (1..=CORES_MAX).contains(&cores).then_some(Routing { seed, cores })
    }

    /// Returns the number of cores.
    #[inline]
    pub fn cores(&self) -> u16 {
        self.cores
    }

    /// Returns the seed of the hash.
    pub fn seed(&self) -> [u8; 16] {
        self.seed
    }

    /// Returns the core that owns `key`.
    #[inline]
    pub fn owner(&self, key: &[u8]) -> Core {
        if self.cores == 1 {
            return 0;
        }
        let mut hasher = SipHasher13::new_with_key(&self.seed);
        hasher.write(key);
        // The high half of a product with 32 random bits: as even as a remainder, without a division.
        let high = hasher.finish() >> 32;
        ((high * u64::from(self.cores)) >> 32) as Core
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_divided_evenly() {
        let routing = Routing::new([7; 16], 8).unwrap();
        let mut counts = [0u32; 8];
        for key in 0..80_000u32 {
            counts[usize::from(routing.owner(&key.to_le_bytes()))] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }

    #[test]
    fn another_seed_divides_otherwise() {
        let [one, other] = [1, 2].map(|byte| Routing::new([byte; 16], 2).unwrap());
        let moved = (0..1000u32).filter(|key| one.owner(&key.to_le_bytes()) != other.owner(&key.to_le_bytes())).count();
        assert!((400..600).contains(&moved), "{moved} of 1000 keys moved");
    }

    #[test]
    fn the_number_of_cores_is_checked() {
        assert_eq!(Routing::new([0; 16], 0), None);
        assert_eq!(Routing::new([0; 16], CORES_MAX + 1), None);
        assert_eq!(Routing::new([0; 16], 1).map(|routing| routing.owner(b"any")), Some(0));
    }
}

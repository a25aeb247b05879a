//! Random numbers in the forms that the workload needs.

/// The generator of injected faults, with percentages and choices. A seed always gives the same sequence.
#[derive(Debug, Clone)]
pub struct Random(dunlin_net::random::Random);

impl Random {
    /// A sequence of its own for each seed.
    pub fn new(seed: u64) -> Random {
        Random(dunlin_net::random::Random::new(seed))
    }

    /// Any number.
    #[allow(clippy::should_implement_trait, reason = "an endless sequence is no iterator to loop over")]
    pub fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// From `min` to `max`, both included.
    pub fn between(&mut self, min: u64, max: u64) -> u64 {
        min + self.next() % (max - min + 1)
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    /// An index into a list of `len`, which must not be empty.
    pub fn index(&mut self, len: usize) -> usize {
        (self.next() % len as u64) as usize
    }

    /// A random element; `None` if the list is empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() { None } else { Some(&from[self.index(from.len())]) }
    }

    /// A probability from 0 to `max`, in steps of a thousandth; zero half of the time.
    pub fn probability(&mut self, max: f64) -> f64 {
        if self.chance(50) { 0.0 } else { max * self.between(1, 1000) as f64 / 1000.0 }
    }
}

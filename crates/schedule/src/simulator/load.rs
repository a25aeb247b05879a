//! The requests of a simulation: when they come, and what they ask for.

use std::sync::Arc;

use super::random::Random;
use super::workload::{KeyDraws, SizeDraws};
use super::{Setting, SettingError, Trace};

/// The sequence of random numbers for the load.
const LOAD: u64 = 0;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// When it is sent, in nanoseconds.
    pub at: u64,
    /// The number of its client.
    pub client: u32,
    /// Its keys, by number; lower ones are more popular.
    pub keys: Vec<u64>,
}

/// The requests of a setting, in order of time, for a load on real servers. If service times are constant, so that they
/// are not drawn, they are those of a simulation with this setting.
#[derive(Debug)]
pub struct Arrivals {
    load: Load,
    clients: u32,
}

impl Arrivals {
    /// The requests before, among and after those that [`Setting::requests`] counts.
    ///
    /// # Errors
    /// [`SettingError`].
    pub fn new(setting: &Setting) -> Result<Self, SettingError> {
        setting.validate()?;
        Ok(Arrivals { load: Load::new(setting), clients: setting.clients })
    }
}

impl Iterator for Arrivals {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let at = self.load.next_at()?;
        let client = self.load.random.below(u64::from(self.clients)) as u32;
        let size = self.load.size();
        let keys = (0..size).map(|place| self.load.key(place)).collect();
        self.load.advance();
        Some(Arrival { at, client, keys })
    }
}

/// The arrival times and keys of requests.
#[derive(Debug)]
pub(super) struct Load {
    pub random: Random,
    sizes: SizeDraws,
    keys: KeyDraws,
    trace: Option<Arc<Trace>>,
    /// Mean time between two requests.
    interval: f64,
    next: f64,
    number: u32,
    total: u32,
}

impl Load {
    pub fn new(setting: &Setting) -> Self {
        let sizes = SizeDraws::new(setting.sizes);
        let slots = f64::from(setting.servers) * f64::from(setting.slots);
        let mean = setting.trace.as_ref().map_or_else(|| sizes.mean(), |trace| trace.mean());
        let interval = mean * setting.service as f64 / (setting.load * slots);
        let mut load = Load {
            random: Random::new(setting.seed, LOAD),
            sizes,
            keys: KeyDraws::new(setting.keys),
            trace: setting.trace.clone(),
            interval,
            next: 0.0,
            number: 0,
            total: setting.measured().end.saturating_add(setting.requests / 20),
        };
        load.next = load.random.exponential() * interval;
        load
    }

    /// Number of keys of the next request.
    pub fn size(&mut self) -> u32 {
        match &self.trace {
            Some(trace) => trace.request(self.number).len() as u32,
            None => self.sizes.draw(&mut self.random),
        }
    }

    /// One of its keys.
    pub fn key(&mut self, place: u32) -> u64 {
        match &self.trace {
            Some(trace) => u64::from(trace.request(self.number)[place as usize]),
            None => self.keys.draw(&mut self.random),
        }
    }

    /// When the next request comes; `None` after the last.
    pub fn next_at(&self) -> Option<u64> {
        (self.number < self.total).then_some(self.next as u64)
    }

    /// Advances to the next request, and returns the number of the previous one.
    pub fn advance(&mut self) -> u32 {
        self.next += self.random.exponential() * self.interval;
        self.number += 1;
        self.number - 1
    }
}

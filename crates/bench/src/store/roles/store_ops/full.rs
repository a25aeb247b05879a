//! A cache that fills up: the memory of an item, and the losses before the memory is full.

use std::ops::Range;

use dunlin_lab::measure::resident_bytes;
use dunlin_lab::peer::{Control, Role};
use dunlin_store::{Mode, Partition, PartitionConfig, Store};
use serde::{Deserialize, Serialize};

use super::BURST_MAX;
use super::partitions::Cache;
use super::table::{Outcome, Table};
use crate::BenchError;

/// Stores this many items from 0 on, then reads all of them.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct CacheFill {
    /// Memory of the cache, in bytes.
    pub memory: u64,
    /// Number of items to store.
    pub items: u64,
}

/// The result.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct CacheFigures {
    /// Items that remain.
    pub kept: u64,
    /// Resident bytes that the cache added.
    pub bytes: u64,
    /// Share of the reads that found nothing, from 0 to 1.
    pub lost: f64,
    /// Items evicted from the index.
    pub evicted_index: u64,
    /// Items evicted from the log.
    pub evicted_log: u64,
}

impl Role for CacheFill {
    const NAME: &'static str = "a cache that fills up";
    type Ready = ();
    type Output = CacheFigures;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<CacheFigures, BenchError> {
        let before = resident_bytes()?;
        let mut cache = Cache(Partition::new(PartitionConfig::new(Mode::Cache, self.memory as usize))?);
        let mut outcome = Outcome::default();
        self.each_burst(control, |range| operate(&mut cache, range, u32::MAX, &mut outcome));
        let bytes = resident_bytes()?.saturating_sub(before);
        self.each_burst(control, |range| operate(&mut cache, range, 0, &mut outcome));
        let lost = outcome.check(true)?;
        let stats = cache.0.stats();
        let (evicted_index, evicted_log) = (stats.evicted_index, stats.evicted_log);
        Ok(CacheFigures { kept: stats.items, bytes, lost, evicted_index, evicted_log })
    }
}

impl CacheFill {
    fn each_burst(&self, control: &Control<Self>, mut burst: impl FnMut(Range<u64>)) {
        for first in (0..self.items).step_by(BURST_MAX).take_while(|_| !control.stopping()) {
            burst(first..self.items.min(first + BURST_MAX as u64));
        }
    }
}

fn operate(cache: &mut Cache, range: Range<u64>, puts: u32, outcome: &mut Outcome) {
    let mut numbers = [0; BURST_MAX];
    let count = (range.end - range.start) as usize;
    numbers.iter_mut().zip(range).for_each(|(place, number)| *place = number);
    cache.burst(&numbers[..count], puts, outcome);
}

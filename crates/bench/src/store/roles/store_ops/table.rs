//! The table under test: items with keys of 16 B and values of 32 B.

use super::BURST_MAX;
use crate::BenchError;

/// A table that holds items by number.
pub(super) trait Table {
    /// Whether it may lose a stored item.
    const MAY_LOSE: bool;

    /// Reads the items of these numbers, but writes those whose bit is set in `puts`. At most [`BURST_MAX`]. Every
    /// value read is verified.
    fn burst(&mut self, numbers: &[u64], puts: u32, outcome: &mut Outcome);
}

/// The results of operations.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Values that were right.
    pub found: u64,
    /// Missing items.
    pub missing: u64,
    /// Values that were wrong.
    pub wrong: u64,
    /// Writes that were refused.
    pub refused: u64,
}

impl Outcome {
    /// Counts a read.
    #[inline(always)]
    pub fn read(&mut self, verdict: Option<bool>) {
        match verdict {
            Some(true) => self.found += 1,
            Some(false) => self.wrong += 1,
            None => self.missing += 1,
        }
    }

    /// The share of reads that found nothing.
    pub fn check(&self, may_lose: bool) -> Result<f64, BenchError> {
        if self.wrong > 0 || self.refused > 0 || (self.missing > 0 && !may_lose) {
            let (wrong, missing, refused) = (self.wrong, self.missing, self.refused);
            return Err(BenchError::WrongAnswers { wrong, missing, refused });
        }
        Ok(self.missing as f64 / (self.found + self.missing).max(1) as f64)
    }
}

/// Items stored between two checks whether to continue.
const ITEMS_PER_LOOK: u64 = 1 << 20;

/// Stores items from 0 on. `look` is called periodically with their number, and may end it.
pub(super) fn load<T: Table>(
    table: &mut T,
    items: u64,
    mut look: impl FnMut(u64) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let mut outcome = Outcome::default();
    let mut numbers = [0; BURST_MAX];
    for first in (0..items).step_by(BURST_MAX) {
        if first.is_multiple_of(ITEMS_PER_LOOK) {
            look(first)?;
        }
        let count = (items - first).min(BURST_MAX as u64) as usize;
        (0..count).for_each(|place| numbers[place] = first + place as u64);
        table.burst(&numbers[..count], u32::MAX, &mut outcome);
    }
    outcome.check(T::MAY_LOSE).map(|_| ())
}

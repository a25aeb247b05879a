//! Plans the places of a snapshot's large items before the first item is loaded.
//!
//! A snapshot has items in hash order. Small ones fit in any order, since a store leaves an eighth of its segments and
//! two more unused. But few large ones fit a segment, and the number of segments that they take depends on their order.
//! The largest first, each where it leaves the least room (best fit decreasing), is optimal for items of more than a
//! third of a segment, and close to it for others. So a store being loaded first learns the sizes, and reserves a place
//! for each.

use std::collections::{BTreeMap, BTreeSet};

use super::Partition;
use crate::config::Mode;
use crate::entry::entry_bytes;
use crate::key::KEY_BYTES_MAX;

/// Large items that can fit in a segment.
const LARGE_IN_SEGMENT: usize = 8;

/// Places for large items, by size in bytes. Places of the same size are interchangeable.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Sizes of the expected items, until the plan is made.
    foreseen: Vec<usize>,
    /// Segments with a place of this size.
    places: BTreeMap<usize, Vec<usize>>,
}

/// True if items of this size may fail to fill seven eighths of a segment in some order.
fn is_large(bytes: usize, segment_bytes: usize) -> bool {
    // Except for header and key, the longest values are no larger than an eighth of the largest segments.
    bytes * 8 > segment_bytes + segment_bytes / 2048
}

/// Assigns items to at most `bins_max` bins of this size; returns the items of each bin. Items without a place are left
/// out.
fn best_fit_decreasing(mut items: Vec<usize>, bin_bytes: usize, bins_max: usize) -> Vec<Vec<usize>> {
    items.sort_unstable_by(|one, other| other.cmp(one));
    let mut bins: Vec<Vec<usize>> = Vec::new();
    let mut rooms: BTreeSet<(usize, usize)> = BTreeSet::new();
    for bytes in items {
        let best = rooms.range((bytes, 0)..).next().copied();
        let (room, bin) = match best {
            Some(best) => best,
            None if bins.len() < bins_max && bytes <= bin_bytes => {
                bins.push(Vec::new());
                (bin_bytes, bins.len() - 1)
            }
            None => continue,
        };
        rooms.remove(&(room, bin));
        rooms.insert((room - bytes, bin));
        bins[bin].push(bytes);
    }
    bins
}

impl Partition {
    /// True if large items are expected that must find their planned places.
    pub(super) fn has_foresight(&self) -> bool {
        let longest = entry_bytes(KEY_BYTES_MAX, self.value_bytes_max);
        self.is_loading && self.mode == Mode::Store && is_large(longest, self.log.segment_bytes)
    }

    /// Records the size of an expected item.
    pub(super) fn foresee_item(&mut self, bytes: usize) {
        // Further ones have no place.
        let has_place = self.plan.foreseen.len() < self.log.free * LARGE_IN_SEGMENT;
        if self.has_foresight() && has_place && is_large(bytes, self.log.segment_bytes) {
            self.plan.foreseen.push(bytes);
        }
    }

    /// Takes the place reserved for an item of this size, if there is one.
    pub(super) fn claim_planned(&mut self, bytes: usize) -> Option<usize> {
        if !self.plan.foreseen.is_empty() {
            self.make_plan();
        }
        let segments = self.plan.places.get_mut(&bytes)?;
        // A segment that the index has taken meanwhile has no reservations.
        let segment =
            std::iter::from_fn(|| segments.pop()).find(|&segment| self.log.release_reserved(segment, bytes))?;
        self.log.active = Some(segment);
        self.log.bump(bytes)
    }

    /// Opens segments for all expected large items, and reserves their bytes.
    fn make_plan(&mut self) {
        let foreseen = std::mem::take(&mut self.plan.foreseen);
        for bin in best_fit_decreasing(foreseen, self.log.segment_bytes, self.log.free) {
            let Some(segment) = self.log.open(self.counters.stored) else { break };
            self.log.reserve(segment, bin.iter().sum());
            for bytes in bin {
                self.plan.places.entry(bytes).or_default().push(segment);
            }
        }
        self.log.seal();
    }

    /// Gives up the reservations of items that did not come.
    pub(super) fn drop_plan(&mut self) {
        self.plan = Plan::default();
        self.log.drop_reservations();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_pairs_are_found() {
        // In this order, first fit takes four bins.
        let bins = best_fit_decreasing(vec![45, 45, 55, 40, 60, 55], 100, 3);
        assert_eq!(bins, [vec![60, 40], vec![55, 45], vec![55, 45]]);
    }

    #[test]
    fn what_has_no_place_is_left_out() {
        assert_eq!(best_fit_decreasing(vec![60, 70, 101, 30], 100, 1), [vec![70, 30]]);
        assert!(best_fit_decreasing(vec![1], 100, 0).is_empty());
    }
}

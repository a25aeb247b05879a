//! Buffers for packets that do not fit a cell.
//!
//! A sender claims a buffer of the receiver, fills it, and puts its number in a cell; the receiver frees it when the
//! packet has been used. Buffers are claimed lowest first: however many there are, a steady flow cycles through few of
//! them, and those stay in the processors' caches.

use std::sync::atomic::Ordering;

use crate::shm::region::Region;

/// What an owner word holds while a buffer is free.
const FREE: u32 = 0;

/// The owner word of a buffer claimed by the holder of a slot. Half of the generation is enough to tell holders apart:
/// it matters only after a holder died.
#[inline]
pub(crate) fn tag(slot: u16, generation: u32) -> u32 {
    // The low half is never 0, since the highest slot number is never used.
    (slot as u32 + 1) | generation << 16
}

/// The slot and the half generation of an owner word.
fn untag(tag: u32) -> Option<(u16, u16)> {
    Some(((tag as u16).checked_sub(1)?, (tag >> 16) as u16))
}

/// Claims the lowest free buffer.
#[inline]
pub(crate) fn claim(region: &Region, tag: u32) -> Option<u32> {
    let count = region.layout().sizes.bulk_buffers;
    (0..count).find(|&index| {
        let owner = region.bulk_owner(index);
        owner.load(Ordering::Relaxed) == FREE
            && owner.compare_exchange(FREE, tag, Ordering::Acquire, Ordering::Relaxed).is_ok()
    })
}

/// Frees a buffer.
#[inline]
pub(crate) fn free(region: &Region, index: u32) {
    region.bulk_owner(index).store(FREE, Ordering::Release);
}

/// Whether the holder with this tag owns the buffer; false if there is no such buffer.
#[inline]
pub(crate) fn is_owned(region: &Region, index: u32, tag: u32) -> bool {
    index < region.layout().sizes.bulk_buffers && region.bulk_owner(index).load(Ordering::Relaxed) == tag
}

/// Frees the buffers of dead senders, which `is_dead` identifies by slot and half generation. Frees none unless
/// `is_quiet`, called after the last `is_dead`, says that no packet is in the queue: otherwise one of the dead may have
/// published the buffer. Returns how many were freed.
pub(crate) fn sweep(
    region: &Region,
    mut is_dead: impl FnMut(u16, u16) -> bool,
    is_quiet: impl FnOnce() -> bool,
) -> usize {
    let dead: Vec<(u32, u32)> = (0..region.layout().sizes.bulk_buffers)
        .filter_map(|index| {
            let tag = region.bulk_owner(index).load(Ordering::Acquire);
            let owned_by_dead = tag != FREE && untag(tag).is_none_or(|(slot, generation)| is_dead(slot, generation));
            owned_by_dead.then_some((index, tag))
        })
        .collect();
    if dead.is_empty() || !is_quiet() {
        return 0;
    }
    let freed = |&&(index, tag): &&(u32, u32)| {
        region.bulk_owner(index).compare_exchange(tag, FREE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    dead.iter().filter(freed).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::region::testing::{SIZES, region};

    #[test]
    fn the_lowest_free_buffer_is_claimed() {
        let region = region(SIZES, 0);
        let mine = tag(3, 0x5_0001);
        let all: Vec<u32> = std::iter::from_fn(|| claim(&region, mine)).collect();
        assert_eq!(all, (0..16).collect::<Vec<_>>());
        free(&region, 9);
        free(&region, 2);
        assert_eq!(claim(&region, mine), Some(2));
        assert!(is_owned(&region, 2, mine) && !is_owned(&region, 9, mine) && !is_owned(&region, 16, mine));
        assert!(!is_owned(&region, 2, tag(3, 0x5_0002)));
    }

    #[test]
    fn only_buffers_of_the_dead_are_swept_and_only_when_quiet() {
        let region = region(SIZES, 0);
        let (dead, alive) = (tag(0, 7), tag(1, 7));
        assert_eq!((claim(&region, dead), claim(&region, alive), claim(&region, dead)), (Some(0), Some(1), Some(2)));
        assert_eq!(sweep(&region, |slot, _| slot == 0, || false), 0);
        assert_eq!(sweep(&region, |slot, generation| (slot, generation) == (0, 7), || true), 2);
        assert!(is_owned(&region, 1, alive));
        assert_eq!(claim(&region, alive), Some(0));
    }
}

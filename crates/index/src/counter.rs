//! A counter that threads increment without sharing a cache line.

use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

const STRIPES: usize = 16;

/// A sum. Up to [`STRIPES`] threads have their own stripe; more threads share them.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    stripes: [CachePadded<AtomicIsize>; STRIPES],
}

impl Counter {
    pub(crate) fn add(&self, difference: isize) {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local!(static STRIPE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES);
        STRIPE.with(|&stripe| self.stripes[stripe].fetch_add(difference, Ordering::Relaxed));
    }

    /// The sum. It may miss concurrent additions.
    pub(crate) fn sum(&self) -> usize {
        self.stripes.iter().map(|stripe| stripe.load(Ordering::Relaxed)).sum::<isize>().max(0) as usize
    }
}

//! Epochs: memory that a reader may still see is not freed.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::fmt;

use crossbeam_epoch as epoch;

/// Keeps everything that an index returned alive. While a thread has a guard, memory that any thread retires is not
/// freed: hold it for a burst or a page of a scan, not for minutes.
///
/// A thread that has retired 64 KiB, or 64 nodes and values, collects when it drops its last guard: if no other thread
/// has a guard then, it frees three times 512 nodes and values or more, those first that any thread retired first. So
/// threads that write return the memory of each other, and one that stops leaves little behind.
pub struct Guard {
    epoch: epoch::Guard,
    /// Dropped after `epoch`, when the thread is no longer pinned.
    _settlement: Settlement,
}

/// Pins the thread. Costs one store to a line of this thread and a fence; less if the thread already has a guard. Every
/// 128th pin of a thread also frees up to 512 nodes and values retired by any thread.
pub fn pin() -> Guard {
    GUARDS.set(GUARDS.get() + 1);
    Guard { epoch: epoch::pin(), _settlement: Settlement }
}

/// A thread that has retired this much since its last collection collects when its last guard is dropped. By itself,
/// `crossbeam-epoch` collects only at every 128th pin, and bursts of writes retire more than that frees.
const RETIRED_BYTES_MAX: usize = 64 << 10;
/// Each node or value counts at least this many bytes.
const OBJECT_BYTES_MIN: usize = 1 << 10;
/// Maximum freed by one collection: 8 bags of 64 objects.
const COLLECTED_BYTES: usize = 8 * 64 * OBJECT_BYTES_MIN;
/// The epoch must advance twice before retired memory is freed.
const COLLECTIONS_MIN: usize = 3;

thread_local! {
    /// Bytes that this thread has retired since its last collection.
    static RETIRED_BYTES: Cell<usize> = const { Cell::new(0) };
    /// Guards of this thread.
    static GUARDS: Cell<usize> = const { Cell::new(0) };
}

/// Frees the memory that this thread retired, if it is much and no guard of another thread keeps it.
fn settle(guard: &mut epoch::Guard) {
    for _ in 0..COLLECTIONS_MIN + RETIRED_BYTES.take() / COLLECTED_BYTES {
        guard.flush();
        guard.repin();
    }
}

struct Settlement;

impl Drop for Settlement {
    fn drop(&mut self) {
        let others = GUARDS.get() - 1;
        GUARDS.set(others);
        if others == 0 && RETIRED_BYTES.get() >= RETIRED_BYTES_MAX {
            settle(&mut epoch::pin());
        }
    }
}

impl Guard {
    /// Releases everything seen under this guard and pins anew, so that long loops let memory return.
    ///
    /// Does nothing while the thread has another guard.
    pub fn refresh(&mut self) {
        self.epoch.repin();
        if GUARDS.get() == 1 && RETIRED_BYTES.get() >= RETIRED_BYTES_MAX {
            settle(&mut self.epoch);
        }
    }

    /// Makes the memory that this thread retired available for collection, and frees up to 512 nodes and values that no
    /// guard keeps. Memory retired under this guard stays until it is dropped.
    pub fn flush(&self) {
        self.epoch.flush();
    }

    /// Calls `free`, which frees `bytes` bytes, on some thread, as soon as all guards that exist now are dropped.
    ///
    /// # Safety
    /// `free` may run on any thread and at any later time. What it frees is retired once and cannot be reached by
    /// readers that are pinned later.
    pub(crate) unsafe fn defer(&self, bytes: usize, free: impl FnOnce()) {
        RETIRED_BYTES.set(RETIRED_BYTES.get().saturating_add(bytes.max(OBJECT_BYTES_MIN)));
        // SAFETY: as the caller promises.
        unsafe { self.epoch.defer_unchecked(free) };
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").finish_non_exhaustive()
    }
}

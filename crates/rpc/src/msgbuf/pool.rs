//! The per-thread caches that message buffers come from.

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::class::{CLASSES, allocation};
use super::{AllocError, FRONT_BYTES, system};

/// Bytes that one thread keeps cached of one class before it gives buffers back to the system.
const CACHED_BYTES_PER_CLASS: usize = 32 << 20;
/// Buffers that one thread keeps cached of one class.
const CACHED_PER_CLASS: usize = 4096;
/// Buffers of one class that are always kept, however long.
const CACHED_MIN: usize = 2;
/// Buffers of each class that one thread keeps cached.
const CACHED_MAX: [usize; CLASSES] = {
    let mut most = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        let fit = CACHED_BYTES_PER_CLASS.div_ceil(allocation(class));
        most[class] = if fit < CACHED_MIN {
            CACHED_MIN
        } else if fit > CACHED_PER_CLASS {
            CACHED_PER_CLASS
        } else {
            fit
        };
        class += 1;
    }
    most
};
/// Limit of all buffers of a process until [`set_limit_bytes`] changes it.
const LIMIT_BYTES_DEFAULT: u64 = 4 << 30;

static ALLOCATED: AtomicU64 = AtomicU64::new(0);
static LIMIT: AtomicU64 = AtomicU64::new(LIMIT_BYTES_DEFAULT);

/// Bytes that message buffers of this process hold, in use or cached.
pub fn allocated_bytes() -> u64 {
    ALLOCATED.load(Relaxed)
}

/// The most they may hold.
pub fn limit_bytes() -> u64 {
    LIMIT.load(Relaxed)
}

/// Sets the most that all message buffers of this process may hold, in bytes; 4 GiB at the start. Buffers that exist already
/// stay.
pub fn set_limit_bytes(limit: u64) {
    LIMIT.store(limit, Relaxed);
}

/// Buffers taken by this thread less those dropped on it. For leak tests on one thread.
pub fn outstanding() -> i64 {
    OUTSTANDING.get()
}

struct Cache {
    free: [Vec<NonNull<u8>>; CLASSES],
}

impl Cache {
    /// Gives everything back to the system.
    fn clear(&mut self) {
        for (class, free) in self.free.iter_mut().enumerate() {
            for data in free.drain(..) {
                // SAFETY: cached buffers are unused and came from `allocate` of this class.
                unsafe { release(data, class) }
            }
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.clear();
    }
}

thread_local! {
    static CACHE: RefCell<Cache> = const { RefCell::new(Cache { free: [const { Vec::new() }; CLASSES] }) };
    static OUTSTANDING: Cell<i64> = const { Cell::new(0) };
}

/// What a buffer just taken holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contents {
    /// What its last user left there.
    Leftovers,
    Zeros,
}

/// Takes a buffer of `class`; gives its first data byte.
#[inline]
pub(super) fn take(class: usize) -> Result<(NonNull<u8>, Contents), AllocError> {
    let cached = CACHE.try_with(|cache| cache.borrow_mut().free[class].pop()).unwrap_or(None);
    let taken = match cached {
        Some(data) => (data, Contents::Leftovers),
        None => (allocate(class)?, Contents::Zeros),
    };
    OUTSTANDING.set(OUTSTANDING.get() + 1);
    Ok(taken)
}

/// Gives a buffer back.
///
/// # Safety
/// `data` came from [`take`] of the same class and is not used any more.
#[inline]
pub(super) unsafe fn give_back(data: NonNull<u8>, class: usize) {
    OUTSTANDING.set(OUTSTANDING.get() - 1);
    let kept = CACHE.try_with(|cache| {
        let free = &mut cache.borrow_mut().free[class];
        let room = free.len() < CACHED_MAX[class];
        if room {
            free.push(data);
        }
        room
    });
    if kept != Ok(true) {
        // SAFETY: as the caller promises.
        unsafe { release(data, class) }
    }
}

fn from_system(class: usize) -> Result<NonNull<u8>, AllocError> {
    let bytes = allocation(class) as u64;
    let limit = limit_bytes();
    let before = ALLOCATED.fetch_add(bytes, Relaxed);
    let base = if before + bytes <= limit { system::take(allocation(class)) } else { None };
    base.ok_or_else(|| {
        ALLOCATED.fetch_sub(bytes, Relaxed);
        AllocError::LimitReached { allocated: before, limit }
    })
}

#[cold]
fn allocate(class: usize) -> Result<NonNull<u8>, AllocError> {
    let base = match from_system(class) {
        Ok(base) => base,
        Err(_) => {
            // What this thread keeps for buffers of other lengths would hold the limit against it.
            let _ = CACHE.try_with(|cache| cache.borrow_mut().clear());
            from_system(class)?
        }
    };
    // SAFETY: every allocation is larger than its front.
    Ok(unsafe { base.add(FRONT_BYTES) })
}

/// Gives a buffer back to the system.
///
/// # Safety
/// As [`give_back`].
unsafe fn release(data: NonNull<u8>, class: usize) {
    // SAFETY: `allocate` took so many bytes and added the front.
    unsafe { system::give_back(data.sub(FRONT_BYTES), allocation(class)) };
    ALLOCATED.fetch_sub(allocation(class) as u64, Relaxed);
}

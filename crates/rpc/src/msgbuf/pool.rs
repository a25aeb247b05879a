//! The caches that message buffers come from.
//!
//! Buffers from the allocator are cached by the thread that drops them, up to [`CACHED_BYTES_PER_CLASS`] of each class:
//! no other thread can take those. Mapped ones, a few of which would fill the limit, are cached for the whole process:
//! an event loop may take what a worker drops. Half of those that were unused for a while go back to the system,
//! repeatedly ([`Trimmer`]): a burst leaves nothing behind.

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::class::{CLASSES, allocation};
use super::system::MAPPED_BYTES_MIN;
use super::{AllocError, FRONT_BYTES, system};

/// Bytes of one class that one thread keeps cached before it returns buffers to the system: of all classes together
/// less than 10 MiB.
const CACHED_BYTES_PER_CLASS: usize = 1 << 20;
/// Buffers of one class that one thread keeps cached.
const CACHED_PER_CLASS: usize = 4096;
/// The process keeps one part in this many of the limit cached, for all threads together.
const SHARED_PART: u64 = 8;
/// Time between two searches of an endpoint for unused buffers.
const TRIM_NANOS: u64 = 1_000_000_000;
/// One search frees at most this and one buffer: unmapping it takes an event loop about 2 ms.
const TRIM_BYTES: u64 = 32 << 20;
/// Classes that threads cache; larger ones are mapped.
const THREAD_CLASSES: usize = {
    let mut class = 0;
    while allocation(class) < MAPPED_BYTES_MIN {
        class += 1;
    }
    class
};
/// Classes that the process caches.
const SHARED_CLASSES: usize = CLASSES - THREAD_CLASSES;
/// Buffers of each class that one thread keeps cached.
const CACHED_MAX: [usize; THREAD_CLASSES] = {
    let mut most = [0; THREAD_CLASSES];
    let mut class = 0;
    while class < THREAD_CLASSES {
        let fit = CACHED_BYTES_PER_CLASS / allocation(class);
        most[class] = if fit > CACHED_PER_CLASS { CACHED_PER_CLASS } else { fit };
        class += 1;
    }
    most
};
/// Limit of all buffers of a process until [`set_limit_bytes`] changes it.
const LIMIT_BYTES_DEFAULT: u64 = 4 << 30;

static ALLOCATED: AtomicU64 = AtomicU64::new(0);
static LIMIT: AtomicU64 = AtomicU64::new(LIMIT_BYTES_DEFAULT);
static TRIMMERS: AtomicUsize = AtomicUsize::new(0);
static TRIM_TURN: AtomicUsize = AtomicUsize::new(0);

/// Bytes that message buffers of this process hold, in use or cached.
pub fn allocated_bytes() -> u64 {
    ALLOCATED.load(Relaxed)
}

/// The maximum of [`allocated_bytes`].
pub fn limit_bytes() -> u64 {
    LIMIT.load(Relaxed)
}

/// Sets how much memory all message buffers of this process may hold, in bytes; initially 4 GiB. Existing buffers stay.
/// Set it before endpoints are opened: [`crate::EndpointConfig::check`] then checks that their messages fit. Each
/// thread may keep up to 10 MiB of it cached for itself.
pub fn set_limit_bytes(limit: u64) {
    LIMIT.store(limit, Relaxed);
}

/// Buffers taken by this thread minus those dropped on it. For leak tests on one thread.
pub fn outstanding() -> i64 {
    OUTSTANDING.get()
}

struct Cache {
    free: [Vec<NonNull<u8>>; THREAD_CLASSES],
}

impl Cache {
    /// Returns everything to the system.
    fn clear(&mut self) {
        for (class, free) in self.free.iter_mut().enumerate() {
            for data in free.drain(..) {
                // SAFETY: cached buffers are unused and came from `take` of this class.
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

/// The cache of the larger classes, for all threads together.
struct SharedCache {
    free: [Vec<NonNull<u8>>; SHARED_CLASSES],
    /// How many of each class were not taken since the last trim.
    unused: [usize; SHARED_CLASSES],
    bytes: u64,
}

// SAFETY: cached buffers are unused, and the thread that takes one owns it alone.
unsafe impl Send for SharedCache {}

static SHARED: Mutex<SharedCache> = Mutex::new(SharedCache::EMPTY);

impl SharedCache {
    const EMPTY: SharedCache =
        SharedCache { free: [const { Vec::new() }; SHARED_CLASSES], unused: [0; SHARED_CLASSES], bytes: 0 };

    fn lock() -> MutexGuard<'static, SharedCache> {
        // Nothing panics while it is locked.
        SHARED.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(class: usize) -> Option<NonNull<u8>> {
        let shared = &mut *SharedCache::lock();
        let (free, unused) = (&mut shared.free[class - THREAD_CLASSES], &mut shared.unused[class - THREAD_CLASSES]);
        let data = free.pop()?;
        *unused = free.len().min(*unused);
        shared.bytes -= allocation(class) as u64;
        Some(data)
    }

    /// Removes half of what was not used since the last time, the largest first, up to [`TRIM_BYTES`].
    fn trim(&mut self) -> Vec<(NonNull<u8>, usize)> {
        let (mut trimmed, mut bytes) = (Vec::new(), 0);
        for place in (0..SHARED_CLASSES).rev() {
            let (class, free) = (place + THREAD_CLASSES, &mut self.free[place]);
            for _ in 0..self.unused[place].div_ceil(2) {
                if bytes >= TRIM_BYTES {
                    break;
                }
                bytes += allocation(class) as u64;
                trimmed.extend(free.pop().map(|data| (data, class)));
            }
            self.unused[place] = free.len();
        }
        self.bytes -= bytes;
        trimmed
    }

    /// Caches a buffer of `class`, if there is room.
    fn keep(data: NonNull<u8>, class: usize) -> bool {
        let bytes = allocation(class) as u64;
        let mut shared = SharedCache::lock();
        let room = shared.bytes + bytes <= limit_bytes() / SHARED_PART;
        if room {
            shared.bytes += bytes;
            shared.free[class - THREAD_CLASSES].push(data);
        }
        room
    }

    /// Returns everything to the system.
    fn clear() {
        let cached = std::mem::replace(&mut *SharedCache::lock(), SharedCache::EMPTY);
        for (class, free) in (THREAD_CLASSES..).zip(cached.free) {
            for data in free {
                // SAFETY: as in `Cache::clear`.
                unsafe { release(data, class) }
            }
        }
    }
}

/// Returns unused buffers to the system. Each endpoint has one, and they take turns: together they search about once in
/// [`TRIM_NANOS`], whatever their clocks.
#[derive(Debug)]
pub(crate) struct Trimmer {
    due: u64,
}

impl Trimmer {
    pub(crate) fn new() -> Trimmer {
        TRIMMERS.fetch_add(1, Relaxed);
        Trimmer { due: 0 }
    }

    /// Searches, if it is time to.
    #[inline]
    pub(crate) fn look(&mut self, now: u64) {
        if now >= self.due {
            self.due = now.saturating_add(TRIM_NANOS);
            look_in_turn();
        }
    }
}

impl Drop for Trimmer {
    fn drop(&mut self) {
        TRIMMERS.fetch_sub(1, Relaxed);
    }
}

#[cold]
fn look_in_turn() {
    if !TRIM_TURN.fetch_add(1, Relaxed).is_multiple_of(TRIMMERS.load(Relaxed).max(1)) {
        return;
    }
    let trimmed = SharedCache::lock().trim();
    // After unlocking the cache: this takes long.
    for (data, class) in trimmed {
        // SAFETY: as in `Cache::clear`.
        unsafe { release(data, class) }
    }
}

thread_local! {
    static CACHE: RefCell<Cache> = const { RefCell::new(Cache { free: [const { Vec::new() }; THREAD_CLASSES] }) };
    static OUTSTANDING: Cell<i64> = const { Cell::new(0) };
}

/// The contents of a buffer that was just taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contents {
    /// What its last user left there.
    Leftovers,
    Zeros,
}

/// Takes a buffer of `class`; returns its first data byte.
#[inline]
pub(super) fn take(class: usize) -> Result<(NonNull<u8>, Contents), AllocError> {
    let cached = CACHE.try_with(|cache| cache.borrow_mut().free.get_mut(class)?.pop()).unwrap_or(None);
    let taken = match cached {
        Some(data) => (data, Contents::Leftovers),
        None => take_uncached(class)?,
    };
    OUTSTANDING.set(OUTSTANDING.get() + 1);
    Ok(taken)
}

/// Returns a buffer to the pool.
///
/// # Safety
/// `data` came from [`take`] of the same class and is not used any more.
#[inline]
pub(super) unsafe fn give_back(data: NonNull<u8>, class: usize) {
    OUTSTANDING.set(OUTSTANDING.get() - 1);
    let kept = CACHE.try_with(|cache| {
        let mut cache = cache.borrow_mut();
        let free = cache.free.get_mut(class).filter(|free| free.len() < CACHED_MAX[class]);
        free.map(|free| free.push(data)).is_some()
    });
    if kept != Ok(true) {
        // SAFETY: as the caller promises.
        unsafe { give_back_uncached(data, class) }
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

/// Takes a buffer that this thread has not cached.
#[cold]
fn take_uncached(class: usize) -> Result<(NonNull<u8>, Contents), AllocError> {
    if class >= THREAD_CLASSES
        && let Some(data) = SharedCache::take(class)
    {
        return Ok((data, Contents::Leftovers));
    }
    let base = match from_system(class) {
        Ok(base) => base,
        Err(_) => {
            // Otherwise the buffers cached for other lengths would count against the limit.
            let _ = CACHE.try_with(|cache| cache.borrow_mut().clear());
            SharedCache::clear();
            from_system(class)?
        }
    };
    // SAFETY: every allocation is larger than its front.
    Ok((unsafe { base.add(FRONT_BYTES) }, Contents::Zeros))
}

/// Frees a buffer that this thread does not cache.
///
/// # Safety
/// As [`give_back`].
#[cold]
unsafe fn give_back_uncached(data: NonNull<u8>, class: usize) {
    if class < THREAD_CLASSES || !SharedCache::keep(data, class) {
        // SAFETY: as the caller promises.
        unsafe { release(data, class) }
    }
}

/// Returns a buffer to the system.
///
/// # Safety
/// As [`give_back`].
unsafe fn release(data: NonNull<u8>, class: usize) {
    // SAFETY: `from_system` allocated this many bytes, and added the front.
    unsafe { system::give_back(data.sub(FRONT_BYTES), allocation(class)) };
    ALLOCATED.fetch_sub(allocation(class) as u64, Relaxed);
}

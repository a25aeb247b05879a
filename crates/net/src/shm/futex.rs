//! Sleeping and waking across processes.
//!
//! The receiver announces that it sleeps and then looks once more for packets; a sender publishes a packet and then
//! checks whether the receiver sleeps. Each must do its two steps in that order, which processors only promise after a
//! full fence, and a full fence in the sender would wait for every cache line it has just written. So the receiver,
//! which is about to spend microseconds anyway, makes the kernel issue a fence on all processors that run a sender
//! (`membarrier`). If the kernel does not support this, the region says so and its senders issue the fence themselves.
//!
//! The receiver sleeps in one of two ways, and its wait word says in which: on the word itself (a futex), or in an
//! event loop that waits for other descriptors too. In an event loop, senders wake it by ringing its *bell*, see
//! [`super::bell`]. A sender wakes the receiver before it sets the word to awake, so that a sender that is killed or
//! stopped in between does not keep other senders from waking the receiver. A stopped sender may continue at any time,
//! so each sleep has a number: the sender cannot mark a later sleep as over without waking it. A receiver about to
//! sleep on the word must not miss the wake-up, so before the wake-up the word changes to *being woken*.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};
use std::time::Duration;

/// Value of the wait word while its owner does not sleep.
pub(crate) const AWAKE: u32 = 0;
/// Low bits of the wait word if its owner sleeps on the word, from before its last look at its queue until it is woken;
/// the bits above are the number of the sleep.
const ON_WORD: u32 = 1;
/// The same if it sleeps by descriptor.
const BY_DESCRIPTOR: u32 = 2;
/// The same if it sleeps on the word and someone is about to wake it.
const BEING_WOKEN: u32 = 3;
const KIND: u32 = 3;

/// Value of the wait word while its owner sleeps on it, for the `number`th time (modulo 2^30).
pub(crate) fn on_word(number: u32) -> u32 {
    number << 2 | ON_WORD
}

/// Value of the wait word while its owner sleeps by descriptor, for the `number`th time (modulo 2^30).
pub(crate) fn by_descriptor(number: u32) -> u32 {
    number << 2 | BY_DESCRIPTOR
}

const MEMBARRIER_GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const MEMBARRIER_REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

/// Whether this process takes part in the kernel's fences: they reach it as a sender, and it may request them as a
/// receiver. Asks the kernel once.
pub(crate) fn kernel_fences() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| !cfg!(miri) && membarrier(MEMBARRIER_REGISTER_GLOBAL_EXPEDITED))
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes integers only.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Orders the receiver's "I sleep" before its last look, and, unless `senders_fence`, every sender's publication before
/// the sender's look at the wait word.
pub(crate) fn fence_before_sleep(senders_fence: bool) {
    fence(Ordering::SeqCst);
    if !senders_fence {
        // It cannot fail once registered; if it did, the timeout still ends every sleep.
        membarrier(MEMBARRIER_GLOBAL_EXPEDITED);
    }
}

/// Whether a bell was rung. If not, the next sender rings it: it may be able to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rung {
    Yes,
    No,
}

/// The last step of a send: wakes the owner of `word` if it sleeps; `ring` rings its bell, if it can.
#[inline]
pub(crate) fn wake_if_sleeping(word: &AtomicU32, senders_fence: bool, ring: impl FnOnce() -> Rung) {
    if senders_fence {
        fence(Ordering::SeqCst);
    } else {
        compiler_fence(Ordering::SeqCst);
    }
    let seen = word.load(Ordering::Relaxed);
    if seen != AWAKE {
        wake(word, seen, ring);
    }
}

/// Wakes the owner of `word`, which was `seen`. Of several wakers of one sleep, few make the system call.
#[cold]
pub(crate) fn wake(word: &AtomicU32, seen: u32, ring: impl FnOnce() -> Rung) {
    match seen & KIND {
        ON_WORD | BEING_WOKEN => {
            if let Some(seen) = begin_waking(word, seen) {
                // SAFETY: the word is mapped, and the kernel only compares addresses.
                unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
                set_awake(word, seen);
            }
        }
        BY_DESCRIPTOR => {
            let rung = ring();
            if rung == Rung::Yes {
                set_awake(word, seen);
            }
        }
        // Awake by now, or an invalid value that another process wrote.
        _ => {}
    }
}

/// Keeps the owner from falling asleep on the word in the sleep that was `seen`, and returns the word; `None` if that
/// sleep is over. Another waker may have done so already and stopped before it woke the owner.
pub(crate) fn begin_waking(word: &AtomicU32, seen: u32) -> Option<u32> {
    let (asleep, being_woken) = (seen & !KIND | ON_WORD, seen | KIND);
    match word.compare_exchange(asleep, being_woken, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => Some(being_woken),
        Err(now) => (now == being_woken).then_some(now),
    }
}

/// Marks the sleep `seen` as awake so that later senders skip the wake-up. Returns false if that sleep is over.
pub(crate) fn set_awake(word: &AtomicU32, seen: u32) -> bool {
    word.compare_exchange(seen, AWAKE, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

/// Sleeps while `word` is `value`, for at most `timeout`; may return early.
pub(crate) fn sleep(word: &AtomicU32, value: u32, timeout: Duration) {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: timeout.subsec_nanos() as libc::c_long,
    };
    // SAFETY: the word and the timeout are readable through the call. Not FUTEX_PRIVATE: other processes wake it.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &timeout as *const libc::timespec)
    };
}

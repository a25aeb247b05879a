//! Sleeping and waking across processes.
//!
//! The receiver says that it sleeps and then looks once more for packets; a sender publishes a packet and then looks whether
//! the receiver sleeps. Each must do its two steps in that order, which processors only promise after a full fence, and a
//! full fence in the sender would wait for every cache line it has just written. So the receiver, which is about to spend
//! microseconds anyway, makes the kernel fence all processors that run a sender (`membarrier`). Where the kernel will not,
//! the region says so and its senders fence themselves.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};
use std::time::Duration;

/// Value of the wait word while its owner does not sleep.
pub(crate) const AWAKE: u32 = 0;
/// Value of the wait word from before the owner's last look at its queue until someone wakes it.
pub(crate) const SLEEPING: u32 = 1;

const MEMBARRIER_GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const MEMBARRIER_REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

/// Whether this process takes part in the kernel's fences: as a sender it is reached by them, as a receiver it may ask for
/// them. Asks the kernel once.
pub(crate) fn kernel_fences() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| !cfg!(miri) && membarrier(MEMBARRIER_REGISTER_GLOBAL_EXPEDITED))
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes integers only.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Orders the receiver's "I sleep" before its last look, and, unless `senders_fence`, every sender's publication before the
/// sender's look at the wait word.
pub(crate) fn fence_before_sleep(senders_fence: bool) {
    fence(Ordering::SeqCst);
    if !senders_fence {
        // It cannot fail once registered; if it did, sleeps are bounded by their timeout.
        membarrier(MEMBARRIER_GLOBAL_EXPEDITED);
    }
}

/// A sender's last step: wakes the owner of `word` if it sleeps.
#[inline]
pub(crate) fn wake_if_sleeping(word: &AtomicU32, senders_fence: bool) {
    if senders_fence {
        fence(Ordering::SeqCst);
    } else {
        compiler_fence(Ordering::SeqCst);
    }
    if word.load(Ordering::Relaxed) == SLEEPING {
        wake(word);
    }
}

/// Wakes whoever sleeps at `word`. Of several wakers one makes the system call.
#[cold]
pub(crate) fn wake(word: &AtomicU32) {
    if word.compare_exchange(SLEEPING, AWAKE, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
        // SAFETY: the word is mapped, and the kernel only compares addresses.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
    }
}

/// Sleeps while `word` is [`SLEEPING`], at most for `timeout`; may return early.
pub(crate) fn sleep(word: &AtomicU32, timeout: Duration) {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: timeout.subsec_nanos() as libc::c_long,
    };
    // SAFETY: the word and the timeout are readable through the call. Not FUTEX_PRIVATE: other processes wake it.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, SLEEPING, &timeout as *const libc::timespec) };
}

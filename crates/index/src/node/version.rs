//! The protocol of versions on a control word, with all memory orders that it needs. `loom/` compiles this file with the
//! atomics of a model checker, so these come from `super`.

use super::{AtomicU64, Conflict, Control, Ordering, fence};

/// The control word as it is now.
#[inline(always)]
pub(super) fn load(word: &AtomicU64) -> Control {
    Control(word.load(Ordering::Acquire))
}

/// Whether everything that was read since `control` was loaded belongs together.
#[inline(always)]
pub(super) fn check(word: &AtomicU64, control: Control) -> Result<(), Conflict> {
    // A word that a writer stored is read only after its lock is seen here: pairs with the fence of `lock`.
    fence(Ordering::Acquire);
    if word.load(Ordering::Relaxed) == control.0 { Ok(()) } else { Err(Conflict) }
}

/// Locks the node if it has not changed since `control` was loaded.
pub(super) fn lock(word: &AtomicU64, control: Control) -> Result<(), Conflict> {
    let (free, locked) = (control.0, control.locked().0);
    match word.compare_exchange(free, locked, Ordering::Acquire, Ordering::Relaxed) {
        Ok(_) => {
            // The lock is visible before any word that is stored under it: pairs with the fence of `check`.
            fence(Ordering::Release);
            Ok(())
        }
        Err(_) => Err(Conflict),
    }
}

/// Publishes what was stored under the lock.
pub(super) fn unlock(word: &AtomicU64, control: Control) {
    word.store(control.0, Ordering::Release);
}

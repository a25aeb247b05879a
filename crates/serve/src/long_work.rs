//! Work that keeps a core from answering for longer than allowed, and is no fault: for example, restoring or copying a
//! state all at once.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

thread_local! {
    /// The long work of the core that this thread runs.
    static OWN: RefCell<Option<LongWork>> = const { RefCell::new(None) };
}

/// Whether a core is doing such work.
#[derive(Debug, Clone, Default)]
pub(crate) struct LongWork(Arc<AtomicU32>);

/// Marks long work as under way until it is dropped.
struct AtWork(LongWork);

impl LongWork {
    /// Makes this thread the core's thread.
    pub fn attach(&self) {
        OWN.set(Some(self.clone()));
    }

    /// Whether the core is doing such work now.
    pub fn is_under_way(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }

    fn begin(self) -> AtWork {
        self.0.fetch_add(1, Ordering::AcqRel);
        AtWork(self)
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Does work that may take longer than [`crate::ServeConfig::answer_max`] and cannot be divided. On a core's thread,
/// the core does not count as hung meanwhile, for at most [`crate::ServeConfig::long_work_max`]. On other threads this
/// only does the work.
pub fn long_work<R>(work: impl FnOnce() -> R) -> R {
    let _at_work = OWN.with_borrow(Clone::clone).map(LongWork::begin);
    work()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::panics::guarded_now;

    #[test]
    fn a_core_is_at_work_until_all_of_it_is_done() {
        let own = LongWork::default();
        long_work(|| assert!(!own.is_under_way(), "of no core"));
        own.attach();
        long_work(|| {
            long_work(|| assert!(own.is_under_way()));
            assert!(own.is_under_way());
        });
        assert!(!own.is_under_way());
        let panicked = guarded_now(|| long_work(|| -> u32 { panic!("in the middle") }), drop);
        assert!(panicked.is_none() && !own.is_under_way());
    }
}

//! Notifies tasks of changes of a replica: of its leader, of its cluster, or that it has stopped.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Changes of the replicas of a process.
#[derive(Clone, Default)]
pub(super) struct Changes(Rc<Noted>);

#[derive(Default)]
struct Noted {
    count: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

impl Changes {
    /// Records a change.
    pub fn note(&self) {
        self.0.count.set(self.0.count.get() + 1);
        self.0.waiting.take().into_iter().for_each(Waker::wake);
    }

    /// Returns the number of changes.
    pub fn count(&self) -> u64 {
        self.0.count.get()
    }

    /// Waits until there are more than `known`, and returns the number.
    pub fn after(&self, known: u64) -> impl Future<Output = u64> + use<> {
        let noted = self.0.clone();
        poll_fn(move |context| {
            if noted.count.get() > known {
                return Poll::Ready(noted.count.get());
            }
            let mut waiting = noted.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn whoever_waits_misses_none() {
        let changes = Changes::default();
        let mut next = Box::pin(changes.after(0));
        assert!((&mut next).now_or_never().is_none());
        changes.note();
        assert_eq!(next.now_or_never(), Some(1));
        changes.note();
        assert_eq!(changes.after(1).now_or_never(), Some(2), "it came before anybody waited");
        assert_eq!((changes.after(2).now_or_never(), changes.count()), (None, 2));
    }
}

//! A [`Backend`] of one core with one partition: for tests, examples and fuzzing.

use std::cell::{Cell, RefCell};
use std::future::{Future, ready};

use dunlin_store::{Store, UnixSeconds};

use super::backend::{Backend, CoreState, Inquiry, Report, Unavailable};
use super::batch::Batch;
use crate::routing::Core;

/// One core that owns every key, with a clock that is told the time.
#[derive(Debug, Default)]
pub struct Single<S> {
    store: RefCell<S>,
    state: CoreState,
    now: Cell<UnixSeconds>,
    flush_at: Cell<Option<UnixSeconds>>,
}

impl<S: Store> Single<S> {
    /// A core with this partition, at this time.
    pub fn new(store: S, now: UnixSeconds) -> Single<S> {
        Single { store: RefCell::new(store), state: CoreState::default(), now: Cell::new(now), flush_at: Cell::new(None) }
    }

    /// Tells the time.
    pub fn set_now(&self, now: UnixSeconds) {
        self.now.set(now);
        if self.flush_at.get().is_some_and(|at| at <= now) {
            self.flush_at.set(None);
            self.store.borrow_mut().flush();
        }
    }
}

impl<S: Store + 'static> Backend for Single<S> {
    type Store = S;

    fn elsewhere(&self, _key: &[u8]) -> Option<Core> {
        None
    }

    fn owns_all(&self) -> bool {
        true
    }

    fn with_store<R>(&self, run: impl FnOnce(&mut S) -> R) -> R {
        run(&mut self.store.borrow_mut())
    }

    fn now(&self) -> UnixSeconds {
        self.now.get()
    }

    fn state(&self) -> &CoreState {
        &self.state
    }

    fn forward(&self, _core: Core, _batch: Box<Batch>) -> impl Future<Output = Result<Box<Batch>, Unavailable>> {
        ready(Err(Unavailable))
    }

    fn flush(&self, at: UnixSeconds) -> impl Future<Output = ()> {
        self.flush_at.set(Some(at));
        self.set_now(self.now.get());
        ready(())
    }

    fn ask(&self, inquiry: Inquiry) -> impl Future<Output = Vec<Report>> {
        let store = self.store.borrow().stats();
        ready(vec![self.state.report(inquiry, store, self.now.get())])
    }
}

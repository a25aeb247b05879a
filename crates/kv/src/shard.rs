//! What one core of a server owns: a partition, its place in the routing, and what it counts.

use std::cell::{Cell, RefCell};

use dunlin_store::{Moment, Store, UnixSeconds};

use crate::metrics::CoreMetrics;
use crate::routing::{Core, Routing};

/// A partition and which keys belong in it. One thread owns it; the rpc service and the memcached connections of that thread share it.
#[derive(Debug)]
pub struct Shard<S> {
    /// The items.
    pub store: RefCell<S>,
    /// What was done to them.
    pub metrics: RefCell<CoreMetrics>,
    /// Requests that were refused before their operation: nothing to do with the items.
    pub strays: Cell<Strays>,
    routing: Routing,
    core: Core,
    moment: Cell<Moment>,
}

/// Requests that name no operation of this core.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Strays {
    /// For a key of another core.
    pub not_owned: u64,
    /// Not to be parsed, or with a key too short or too long.
    pub malformed: u64,
}

impl<S: Store> Shard<S> {
    /// The shard of core number `core`.
    ///
    /// # Panics
    /// If the routing has no such core.
    pub fn new(store: S, routing: Routing, core: Core) -> Shard<S> {
        assert!(core < routing.cores(), "there is no core {core} of {}", routing.cores());
        Shard {
            store: RefCell::new(store),
            metrics: RefCell::default(),
            strays: Cell::default(),
            routing,
            core,
            moment: Cell::default(),
        }
    }

    /// Tells the store the time; cheap if it is the same as before. Call it once per turn of the event loop.
    #[inline]
    pub fn set_now(&self, now: UnixSeconds) {
        self.set_moment(Moment { now, ..self.moment.get() });
    }

    /// The same, and how far the wall clock is ahead: clients say and are told times of that.
    #[inline]
    pub fn set_moment(&self, moment: Moment) {
        if self.moment.replace(moment).now != moment.now {
            self.store.borrow_mut().set_now(moment.now);
        }
    }

    /// The time that was told last, and how far the wall clock is ahead.
    #[inline]
    pub fn moment(&self) -> Moment {
        self.moment.get()
    }

    /// The time that was told last.
    #[inline]
    pub fn now(&self) -> UnixSeconds {
        self.moment.get().now
    }

    /// The number of this core.
    pub fn core(&self) -> Core {
        self.core
    }

    /// How keys are divided.
    #[inline]
    pub fn routing(&self) -> &Routing {
        &self.routing
    }

    /// Whether this core owns `key`.
    #[inline]
    pub fn owns(&self, key: &[u8]) -> bool {
        self.routing.owner(key) == self.core
    }

    pub(crate) fn count_stray(&self, is_foreign: bool) {
        let mut strays = self.strays.get();
        *if is_foreign { &mut strays.not_owned } else { &mut strays.malformed } += 1;
        self.strays.set(strays);
    }
}

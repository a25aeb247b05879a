//! What one core of a server owns: a partition, and its place in the routing.

use std::cell::{Cell, RefCell};

use dunlin_store::{Store, UnixSeconds};

use crate::routing::{Core, Routing};
use crate::wire::StatsList;

/// A partition and which keys belong in it. One thread owns it; the rpc service and the memcached connections of that thread share it.
#[derive(Debug)]
pub struct Shard<S> {
    /// The items.
    pub store: RefCell<S>,
    /// What was asked of this core.
    pub counts: RefCell<OperationCounts>,
    routing: Routing,
    core: Core,
    now: Cell<UnixSeconds>,
}

impl<S: Store> Shard<S> {
    /// The shard of core number `core`.
    ///
    /// # Panics
    /// If the routing has no such core.
    pub fn new(store: S, routing: Routing, core: Core) -> Shard<S> {
        assert!(core < routing.cores(), "there is no core {core} of {}", routing.cores());
        Shard { store: RefCell::new(store), counts: RefCell::default(), routing, core, now: Cell::new(0) }
    }

    /// Tells the store the time; cheap if it is the same as before. Call it once per turn of the event loop.
    #[inline]
    pub fn set_now(&self, now: UnixSeconds) {
        if self.now.replace(now) != now {
            self.store.borrow_mut().set_now(now);
        }
    }

    /// The time that was told last.
    #[inline]
    pub fn now(&self) -> UnixSeconds {
        self.now.get()
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

    /// Adds the counters of the partition and of the operations to a list.
    pub fn list_stats(&self, list: &mut StatsList) {
        self.counts.borrow().list(list);
        let stats = self.store.borrow().stats();
        for (name, value) in [
            ("items", stats.items),
            ("item_bytes", stats.item_bytes),
            ("memory_bytes", stats.memory_bytes),
            ("memory_bytes_max", stats.memory_bytes_max),
            ("value_bytes_max", stats.value_bytes_max),
            ("stored", stats.stored),
            ("evicted_log", stats.evicted_log),
            ("evicted_index", stats.evicted_index),
            ("expired", stats.expired),
        ] {
            list.push(name, value);
        }
    }
}

/// Operations that one core has done, by kind, however they came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OperationCounts {
    /// Keys that were read, those of multi-gets included.
    pub gets: u64,
    /// Reads that found an item.
    pub get_hits: u64,
    /// Multi-get requests.
    pub multi_gets: u64,
    /// Values to store, under any condition.
    pub puts: u64,
    /// Items to delete.
    pub deletes: u64,
    /// Appends and prepends.
    pub extends: u64,
    /// Increments and decrements.
    pub counts: u64,
    /// Expiries to change.
    pub touches: u64,
    /// Changes that were refused: a condition did not hold, or there was no place.
    pub refused: u64,
    /// Requests for keys of another core.
    pub not_owned: u64,
    /// Requests that could not be parsed, or had a key too short or too long.
    pub malformed: u64,
}

impl OperationCounts {
    fn list(&self, list: &mut StatsList) {
        for (name, value) in [
            ("gets", self.gets),
            ("get_hits", self.get_hits),
            ("multi_gets", self.multi_gets),
            ("puts", self.puts),
            ("deletes", self.deletes),
            ("extends", self.extends),
            ("counts", self.counts),
            ("touches", self.touches),
            ("refused", self.refused),
            ("not_owned", self.not_owned),
            ("malformed", self.malformed),
        ] {
            list.push(name, value);
        }
    }
}

//! The state of one core of a server: a partition, its place in the routing, and its counters.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use dunlin_schedule::ConfigError;
use dunlin_store::tier::{Located, Ticket};
use dunlin_store::{Key, Moment, Store, UnixSeconds};

use crate::metrics::{CoreMetrics, TierSnapshot};
use crate::routing::{Core, Routing};
use crate::service::{Line, Replica};
use crate::tier::{Desk, Schedule};
use crate::wire::{Status, Version};

/// A partition and its part of the keys. One thread owns it; the rpc service and the memcached connections of that
/// thread share it.
#[derive(Debug)]
pub struct Shard<S> {
    /// The items.
    pub store: RefCell<S>,
    /// Counters of the operations on them.
    pub metrics: RefCell<CoreMetrics>,
    /// Requests rejected before their operation, which never reached the items.
    pub strays: Cell<Strays>,
    routing: Routing,
    core: Core,
    moment: Cell<Moment>,
    /// What it is in a cluster, if anything.
    replica: OnceCell<Rc<Replica>>,
    /// Where operations wait for the tier.
    desk: Option<Desk>,
    /// Where multi-gets wait for their turn.
    pub(crate) line: Line,
}

/// Requests that are not an operation of this core.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Strays {
    /// Requests for a key of another core.
    pub not_owned: u64,
    /// Malformed requests, or with a key that is too short or too long.
    pub malformed: u64,
}

impl<S: Store> Shard<S> {
    /// Creates the shard of core number `core`.
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
            replica: OnceCell::new(),
            desk: None,
            line: Line::default(),
        }
    }

    /// Serves multi-gets that wait in this order, instead of the default.
    pub(crate) fn with_schedule(self, schedule: Schedule) -> Result<Shard<S>, ConfigError> {
        Ok(Shard { line: Line::new(schedule)?, ..self })
    }

    /// Lets operations wait at this desk for the tier behind the store.
    #[must_use]
    pub(crate) fn with_desk(self, desk: Desk) -> Shard<S> {
        Shard { desk: Some(desk), ..self }
    }

    /// Returns the desk, if the store has a tier.
    #[inline]
    pub(crate) fn desk(&self) -> Option<&Desk> {
        self.desk.as_ref()
    }

    /// Hands what the store has evicted to the thread that writes the tier, if there is one. The store must not be in use.
    pub(crate) fn write_tier(&self) {
        if let Some(desk) = self.desk()
            && let Some(tier) = self.store.borrow_mut().tier_mut()
        {
            desk.write(tier);
        }
    }

    /// Returns the statistics of the tier and of what waits for it, if there is one.
    pub(crate) fn tier_stats(&self) -> Option<TierSnapshot> {
        let desk = self.desk()?.stats();
        Some(TierSnapshot::new(&self.store.borrow().tier()?.stats(), desk))
    }

    /// Sets the store's time; cheap if it is unchanged. Call it once per turn of the event loop.
    #[inline]
    pub fn set_now(&self, now: UnixSeconds) {
        self.set_moment(Moment { now, ..self.moment.get() });
    }

    /// The same, with the wall clock's difference: times from and to clients are wall-clock times.
    #[inline]
    pub fn set_moment(&self, moment: Moment) {
        if self.moment.replace(moment).now != moment.now {
            self.store.borrow_mut().set_now(moment.now);
        }
    }

    /// Returns the time last set, and how far the wall clock is ahead.
    #[inline]
    pub fn moment(&self) -> Moment {
        self.moment.get()
    }

    /// Returns the time last set.
    #[inline]
    pub fn now(&self) -> UnixSeconds {
        self.moment.get().now
    }

    /// Makes it part of a replica of a cluster, before its service is registered. Does nothing the second time.
    pub fn join_cluster(&self, replica: Replica) {
        // It is part of one already.
        let _ = self.replica.set(Rc::new(replica));
    }

    /// Returns what it is in a cluster.
    pub(crate) fn replica(&self) -> Option<&Rc<Replica>> {
        self.replica.get()
    }

    /// Returns why an operation that is not of the cluster's own protocol must be refused, if so: a replica that is not
    /// complete must not be read, and writes must reach all replicas.
    #[inline]
    pub(crate) fn refusal(&self, is_read: bool) -> Option<Status> {
        self.replica.get().and_then(|replica| replica.refusal(is_read))
    }

    /// Returns the number of this core.
    pub fn core(&self) -> Core {
        self.core
    }

    /// Returns how keys are divided.
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

/// Returns the version of a key's item in a replica, also if only the device has the item; `None` if there is none.
pub(crate) fn version<S: Store>(store: &S, key: &Key<'_>, now: UnixSeconds) -> Option<Version> {
    match store.peek(key) {
        Some(item) => Some(item.cas),
        None => store.tier()?.token(key.hash(), now),
    }
}

/// Returns the record that must be read before an operation on this key can find the item.
#[inline]
pub(crate) fn on_device<S: Store>(store: &S, key: &Key<'_>, now: UnixSeconds) -> Option<Ticket> {
    let tier = store.tier()?;
    // Most items are in memory, and the index of the tier is another miss of the cache.
    if store.peek(key).is_some() {
        return None;
    }
    match tier.locate(key.hash(), now) {
        Located::Device(ticket) => Some(ticket),
        Located::Nowhere | Located::Here => None,
    }
}

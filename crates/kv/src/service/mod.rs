//! The service of one core: handlers on an rpc endpoint of any transport, over one shard.
//!
//! All operations on one key share a request type, so that a whole receive burst, GETs and PUTs together, is handed
//! over at once and its cache misses overlap (`single`). A multi-get is a burst of its own (`multiget`), answered at once
//! or in several turns (`line`).

mod collecting;
mod copying;
pub(crate) mod deleted;
mod late;
mod line;
mod multiget;
mod postponed;
mod replica;
#[cfg(test)]
mod replica_tests;
mod scan;
mod single;
mod wall;

use std::cell::RefCell;
use std::rc::Rc;

use dunlin_net::Transport;
use dunlin_rpc::{DeferredRequest, Endpoint, RegisterError};
use dunlin_store::{Store, Visit};

pub(crate) use self::line::Line;
use self::postponed::Postponed;
pub use self::replica::{CHANGED_KEYS_MAX, Fence, Replica};
use crate::metrics::{CoreStats, Operation, Outcome, ServerStats, Timing};
use crate::shard::Shard;
use crate::wire::{
    FLUSH, MAP, MULTI_GET, OPERATE, RANKED_MULTI_GET, RANKED_OPERATE, SCAN, SNAPSHOT, STATS, ServerMap, Status,
};

/// Takes a request to save a snapshot, and answers it with a status byte.
type SnapshotTaker = Box<dyn FnMut(DeferredRequest)>;
/// Adds other counters of a core to its statistics.
type MoreStats = Box<dyn Fn(&mut CoreStats)>;

/// What a server reports about itself besides its statistics.
#[derive(Debug, Clone, Default)]
pub struct Identity {
    /// The mode of its store: `cache` or `store`.
    pub mode: String,
    /// When it was started, in seconds since 1970.
    pub started: u64,
}

/// The service of one core. Needs no thread and no clock: set its shard's time ([`Shard::set_now`]) and run the
/// endpoint.
///
/// ```
/// use std::rc::Rc;
///
/// use dunlin_kv::routing::Routing;
/// use dunlin_kv::wire::{Limits, ServerMap};
/// use dunlin_kv::{KvService, Shard};
/// use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};
/// use dunlin_rpc::{Endpoint, EndpointConfig};
/// use dunlin_store::Model;
///
/// let network = LoopbackNetwork::new(LoopbackConfig::default());
/// let endpoint = Rc::new(Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?);
/// let routing = Routing::new([0; 16], 1).ok_or("no cores")?;
/// let map = ServerMap {
///     incarnation: 1,
///     routing,
///     limits: Limits { value_bytes_max: 1 << 20 },
///     addresses: vec![vec![endpoint.local_addr().to_string()]],
/// };
/// let shard = Rc::new(Shard::new(Model::new(), routing, 0));
/// KvService::new(shard, map).register(&endpoint)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct KvService<S> {
    shard: Rc<Shard<S>>,
    map: Rc<[u8]>,
    incarnation: u64,
    identity: Identity,
    snapshot_taker: Rc<RefCell<Option<SnapshotTaker>>>,
    more_stats: Rc<RefCell<Vec<MoreStats>>>,
}

impl<S: Store + Visit + 'static> KvService<S> {
    /// Creates the service of `shard` in the server that `map` describes.
    pub fn new(shard: Rc<Shard<S>>, map: ServerMap) -> KvService<S> {
        let mut encoded = vec![0; map.encoded_len()];
        map.encode(&mut encoded);
        KvService {
            shard,
            map: encoded.into(),
            incarnation: map.incarnation,
            identity: Identity::default(),
            snapshot_taker: Rc::default(),
            more_stats: Rc::default(),
        }
    }

    /// Sets what statistics report about the server.
    #[must_use]
    pub fn with_identity(self, identity: Identity) -> KvService<S> {
        KvService { identity, ..self }
    }

    /// Has `add` add the counters of other protocols to this core's statistics.
    pub fn add_stats(&self, add: impl Fn(&mut CoreStats) + 'static) {
        self.more_stats.borrow_mut().push(Box::new(add));
    }

    /// Passes requests for a snapshot ([`SNAPSHOT`]) to `taker`, which answers each with a byte, a [`Status`]. Without
    /// this they are answered with [`Status::Unsupported`].
    pub fn on_snapshot(&self, taker: impl FnMut(DeferredRequest) + 'static) {
        *self.snapshot_taker.borrow_mut() = Some(Box::new(taker));
    }

    /// Registers the handlers. From then on the endpoint propagates panics: a partition that a panic left half changed
    /// must not serve any more.
    ///
    /// # Errors
    /// [`RegisterError`] if one of the request types already has a handler.
    pub fn register<T: Transport + 'static>(&self, endpoint: &Rc<Endpoint<T>>) -> Result<(), RegisterError> {
        endpoint.propagate_panics();
        let postponed = Rc::new(Postponed::new(&self.shard, endpoint));
        let (shard, timing, later) = (self.shard.clone(), Timing::default(), postponed.clone());
        endpoint
            .register_burst(OPERATE, move |burst| single::operate::<S, T, false>(&shard, &timing, &later, burst))?;
        let (shard, timing) = (self.shard.clone(), Timing::default());
        endpoint.register_burst(RANKED_OPERATE, move |burst| {
            single::operate::<S, T, true>(&shard, &timing, &postponed, burst);
        })?;
        let (shard, timing, turn) = (self.shard.clone(), Timing::default(), turns_of(endpoint));
        endpoint
            .register(MULTI_GET, move |request| multiget::multi_get::<S, false>(&shard, &timing, turn(), request))?;
        let (shard, timing, turn) = (self.shard.clone(), Timing::default(), turns_of(endpoint));
        endpoint.register(RANKED_MULTI_GET, move |request| {
            multiget::multi_get::<S, true>(&shard, &timing, turn(), request);
        })?;
        endpoint.spawn(line::serve(self.shard.clone()));
        let map = self.map.clone();
        endpoint.register(MAP, move |request| request.respond(&map))?;
        self.register_stats(endpoint)?;
        let shard = self.shard.clone();
        endpoint.register(FLUSH, move |request| {
            if let Some(status) = shard.refusal(false) {
                return request.respond(&[status as u8]);
            }
            shard.store.borrow_mut().flush();
            shard.metrics.borrow_mut().count(Operation::Flush, Outcome::Hit);
            request.respond(&[Status::Done as u8]);
        })?;
        let shard = self.shard.clone();
        endpoint.register(SCAN, move |request| scan::scan(&shard, request))?;
        if let Some(replica) = self.shard.replica() {
            replica::register(&self.shard, replica, self.incarnation, endpoint)?;
        }
        let taker = self.snapshot_taker.clone();
        endpoint.register(SNAPSHOT, move |request| match &mut *taker.borrow_mut() {
            Some(take) => match request.defer() {
                Ok(request) => take(request),
                Err(request) => request.push_back(),
            },
            None => request.respond(&[Status::Unsupported as u8]),
        })
    }

    fn register_stats<T: Transport + 'static>(&self, endpoint: &Rc<Endpoint<T>>) -> Result<(), RegisterError> {
        let (shard, identity) = (self.shard.clone(), self.identity.clone());
        let more_stats = self.more_stats.clone();
        let (weak, begun) = (Rc::downgrade(endpoint), endpoint.now());
        endpoint.register(STATS, move |request| {
            // Its own endpoint runs this handler.
            let Some(endpoint) = weak.upgrade() else { return };
            let mut core = CoreStats::take(&shard.metrics.borrow(), shard.store.borrow().stats(), &endpoint.stats());
            core.tier = shard.tier_stats();
            core.multi_gets = shard.line.stats();
            more_stats.borrow().iter().for_each(|add| add(&mut core));
            let uptime_micros = endpoint.now().saturating_sub(begun) / 1000;
            let stats = ServerStats::new(&identity.mode, identity.started, uptime_micros, vec![core]);
            request.respond(&stats.encode());
        })
    }
}

/// Returns what tells the time of the endpoint's turn.
fn turns_of<T: Transport + 'static>(endpoint: &Rc<Endpoint<T>>) -> impl Fn() -> u64 + use<T> {
    let endpoint = Rc::downgrade(endpoint);
    // Its own endpoint runs a handler.
    move || endpoint.upgrade().map_or(0, |endpoint| endpoint.loop_time())
}

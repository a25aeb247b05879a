//! The service of one core: handlers on an rpc endpoint of any transport, over one shard.
//!
//! All operations on one key share a request type, so that a whole receive burst is handed over at once, GETs and PUTs together, and its
//! cache misses overlap ([`single`]). A multi-get is a burst by itself ([`multiget`]).

mod multiget;
mod single;

use std::cell::RefCell;
use std::rc::Rc;

use dunlin_net::Transport;
use dunlin_rpc::{DeferredRequest, Endpoint, MsgBuf, RegisterError, Request};
use dunlin_store::Store;

use crate::shard::Shard;
use crate::wire::{FLUSH, MAP, MULTI_GET, OPERATE, SNAPSHOT, STATS, ServerMap, StatsList, Status};

/// Adds counters to those of the shard.
type StatsSource = Box<dyn Fn(&mut StatsList)>;
/// Takes on a request to save a snapshot, to be answered with a status byte.
type SnapshotTaker = Box<dyn FnMut(DeferredRequest)>;

/// The service of one core. Needs no thread and no clock: tell its shard the time ([`Shard::set_now`]) and run the endpoint.
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
/// let endpoint = Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?;
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
    stats_sources: Rc<RefCell<Vec<StatsSource>>>,
    snapshot_taker: Rc<RefCell<Option<SnapshotTaker>>>,
}

impl<S: Store + 'static> KvService<S> {
    /// A service of `shard` in the server that `map` describes.
    pub fn new(shard: Rc<Shard<S>>, map: ServerMap) -> KvService<S> {
        let mut encoded = vec![0; map.encoded_len()];
        map.encode(&mut encoded);
        KvService { shard, map: encoded.into(), stats_sources: Rc::default(), snapshot_taker: Rc::default() }
    }

    /// Adds counters to the answers to [`STATS`]: of the endpoint, of other protocols.
    pub fn add_stats(&self, source: impl Fn(&mut StatsList) + 'static) {
        self.stats_sources.borrow_mut().push(Box::new(source));
    }

    /// Has requests for a snapshot ([`SNAPSHOT`]) given to `taker`, which answers each with a byte, a [`Status`]. Without one they are answered
    /// with [`Status::Unsupported`].
    pub fn on_snapshot(&self, taker: impl FnMut(DeferredRequest) + 'static) {
        *self.snapshot_taker.borrow_mut() = Some(Box::new(taker));
    }

    /// Registers the handlers.
    ///
    /// # Errors
    /// [`RegisterError`] if one of the request types has a handler already.
    pub fn register<T: Transport>(&self, endpoint: &Endpoint<T>) -> Result<(), RegisterError> {
        let shard = self.shard.clone();
        endpoint.register_burst(OPERATE, move |burst| single::operate(&shard, burst))?;
        let shard = self.shard.clone();
        endpoint.register(MULTI_GET, move |request| multiget::multi_get(&shard, request))?;
        let map = self.map.clone();
        endpoint.register(MAP, move |request| request.respond(&map))?;
        let shard = self.shard.clone();
        let sources = self.stats_sources.clone();
        endpoint.register(STATS, move |request| {
            let mut list = StatsList::default();
            shard.list_stats(&mut list);
            sources.borrow().iter().for_each(|source| source(&mut list));
            request.respond_with(list.encoded_len(), |out| list.encode(out));
        })?;
        let shard = self.shard.clone();
        endpoint.register(FLUSH, move |request| {
            shard.store.borrow_mut().flush();
            request.respond(&[Status::Done as u8]);
        })?;
        let taker = self.snapshot_taker.clone();
        endpoint.register(SNAPSHOT, move |request| match &mut *taker.borrow_mut() {
            // One that is pushed back was answered as busy.
            Some(take) => drop(request.defer().map(take)),
            None => request.respond(&[Status::Unsupported as u8]),
        })
    }
}

/// Answers with a buffer of this process's own.
fn respond_buffer(request: Request<'_>, buffer: MsgBuf) {
    // A caller that gave up is not an error of the server's, and one that is told of a response too long has been told.
    let _ = request.respond_from(buffer);
}

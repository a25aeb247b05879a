//! An index on endpoints: look-ups and writes in the event loop, long pages of scans on worker threads.
//!
//! The event loop never does more for one request than a look-up, a write, or a page of [`SHORT_PAGE`]. So a GET waits
//! for at most the requests of one receive burst, whatever others scan. Between pages the server keeps nothing of a
//! scan: the client sends back where it was.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;
use dunlin_net::Transport;
use dunlin_rpc::{ApplicationError, Endpoint, RegisterError, RequestBurst, WorkerPool};

use crate::error::Refused;
use crate::guard::pin;
use crate::index::Index;
use crate::wire::{
    Code, DELETE, GET, LONG_PAGE, LONG_SCAN, PUT, PageLimits, PageWriter, SCAN, SHORT_PAGE, ScanRequest, parse_key,
    parse_put,
};

/// Maximum number of requests that an endpoint hands over at once.
const BURST_MAX: usize = dunlin_net::transport::RX_BURST;
/// Capacity that the buffer for short pages keeps. A page with a long value grows it.
const SCRATCH_BYTES: usize = 2 * SHORT_PAGE.bytes as usize;
/// An index that is full collects garbage this often before it refuses a write: the epoch must advance twice.
const COLLECTIONS: usize = 3;

/// An index, and the number by which cursors know it. All cores of a server share one.
pub struct SharedIndex {
    index: Index,
    incarnation: u64,
}

impl SharedIndex {
    /// Shares an index, under a random number.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn new(index: Index) -> io::Result<Arc<SharedIndex>> {
        let no_number = |error| io::Error::other(format!("cannot draw a random number to share an index: {error}"));
        Ok(SharedIndex::with_incarnation(index, getrandom::u64().map_err(no_number)?))
    }

    /// Shares an index under a given number, so that tests and simulations can be repeated. Two runs of a server must
    /// not have the same number. 0 means 1.
    pub fn with_incarnation(index: Index, incarnation: u64) -> Arc<SharedIndex> {
        Arc::new(SharedIndex { index, incarnation: incarnation.max(1) })
    }

    /// The index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The number by which cursors know it; never zero.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Makes a page. Returns its number of items.
    fn make_page(&self, request: &[u8], most: PageLimits, page: &mut Vec<u8>) -> Result<u32, Code> {
        let scan = ScanRequest::parse(request, most)?;
        if scan.after.is_some_and(|after| after.incarnation != self.incarnation) {
            return Err(Code::OtherServer);
        }
        let guard = pin();
        let mut cursor = self.index.cursor(scan.rest(), scan.order, &guard);
        let mut writer = PageWriter::new(page, scan.limits, self.incarnation);
        let has_more = loop {
            match cursor.advance() {
                Some((key, value)) if writer.push(key, &value) => {}
                Some(_) => break true,
                None => break false,
            }
        };
        Ok(writer.end(has_more))
    }
}

impl fmt::Debug for SharedIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SharedIndex { index, incarnation } = self;
        f.debug_struct("SharedIndex").field("index", index).field("incarnation", incarnation).finish()
    }
}

/// The counters of one core's service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServiceStats {
    /// Look-ups.
    pub gets: u64,
    /// Bursts of look-ups: `gets / get_bursts` is the batching achieved.
    pub get_bursts: u64,
    /// Values stored.
    pub puts: u64,
    /// Removals, also of keys without a value.
    pub deletes: u64,
    /// Pages made in the event loop.
    pub short_pages: u64,
    /// Pages made on worker threads.
    pub long_pages: u64,
    /// Items in all pages.
    pub items: u64,
    /// Values that were not stored because the memory budget was used up.
    pub full: u64,
    /// Requests that were refused for another reason.
    pub bad: u64,
}

/// What worker threads count.
#[derive(Debug, Default)]
struct WorkerStats {
    pages: AtomicU64,
    items: AtomicU64,
    bad: AtomicU64,
}

/// The service of one core. Clones share one state.
#[derive(Debug, Clone)]
pub struct IndexService {
    shared: Arc<SharedIndex>,
    stats: Rc<Cell<ServiceStats>>,
    of_workers: Arc<WorkerStats>,
}

impl IndexService {
    /// Serves an index, which may be shared with other cores, on an endpoint. Threads of `pool` make long pages; if its
    /// queue is full, a request for one is pushed back. The memory for pages is bounded: one page for each thread of
    /// the pool and for each call in flight, and the endpoint's limits for what was not acknowledged yet.
    ///
    /// All callers of the endpoint are trusted: there is no authentication.
    ///
    /// # Errors
    /// [`RegisterError`] if one of the request types 0x70 to 0x74 has a handler already.
    ///
    /// ```
    /// use std::rc::Rc;
    ///
    /// use dunlin_index::{Client, ClientConfig, Index, IndexService, Order, Range, SharedIndex};
    /// use dunlin_net::{Addr, loopback::{LoopbackConfig, LoopbackNetwork}};
    /// use dunlin_rpc::{Endpoint, EndpointConfig, WorkerPool};
    ///
    /// # let network = LoopbackNetwork::new(LoopbackConfig { delay: std::time::Duration::ZERO, ..Default::default() });
    /// let (shared, pool) = (SharedIndex::new(Index::new(64 << 20)?)?, WorkerPool::new(1, 64)?);
    /// let server = Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?;
    /// IndexService::register(&server, shared, &pool)?;
    ///
    /// let endpoint = Rc::new(Endpoint::new(network.endpoint(2)?, EndpointConfig::default())?);
    /// let client = Client::new(&endpoint, Addr::Node(1), ClientConfig::default());
    /// let work = async {
    ///     client.put(b"dunlin", b"Calidris alpina").await?;
    ///     client.put(b"sanderling", b"Calidris alba").await?;
    ///     assert_eq!(client.get(b"dunlin").await?.as_deref(), Some(&b"Calidris alpina"[..]));
    ///     let mut pages = client.scan(Range::prefix(b"s"), Order::Ascending)?;
    ///     while let Some(page) = pages.next().await? {
    ///         assert_eq!(page.items().collect::<Vec<_>>(), [(&b"sanderling"[..], &b"Calidris alba"[..])]);
    ///     }
    /// #     Ok::<(), Box<dyn std::error::Error>>(())
    /// };
    /// # let mut work = Box::pin(work);
    /// # loop {
    /// #     server.run_once();
    /// #     if let Some(done) = endpoint.poll_once(work.as_mut()) {
    /// #         break done?;
    /// #     }
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn register<T: Transport>(
        endpoint: &Endpoint<T>,
        shared: Arc<SharedIndex>,
        pool: &WorkerPool,
    ) -> Result<IndexService, RegisterError> {
        let service = IndexService { shared, stats: Rc::default(), of_workers: Arc::default() };
        let serving = service.clone();
        endpoint.register_burst(GET, move |burst| serving.get(burst))?;
        let serving = service.clone();
        endpoint.register_burst(PUT, move |burst| serving.put(burst))?;
        let serving = service.clone();
        endpoint.register_burst(DELETE, move |burst| serving.delete(burst))?;
        let (serving, scratch) = (service.clone(), RefCell::new(Vec::new()));
        endpoint.register(SCAN, move |request| {
            let mut page = scratch.borrow_mut();
            match serving.shared.make_page(request.payload(), SHORT_PAGE, &mut page) {
                Ok(items) => {
                    serving.count(|stats| {
                        stats.short_pages += 1;
                        stats.items += u64::from(items);
                    });
                    request.respond(&page);
                    page.shrink_to(SCRATCH_BYTES);
                }
                Err(code) => {
                    serving.count(|stats| stats.bad += 1);
                    request.fail(code as u32, code.message());
                }
            }
        })?;
        let (shared, stats) = (service.shared.clone(), service.of_workers.clone());
        endpoint.register_worker(LONG_SCAN, pool, move |request| {
            let mut page = Vec::new();
            match shared.make_page(request.payload(), LONG_PAGE, &mut page) {
                Ok(items) => {
                    stats.pages.fetch_add(1, Ordering::Relaxed);
                    stats.items.fetch_add(items.into(), Ordering::Relaxed);
                    Ok(page)
                }
                Err(code) => {
                    stats.bad.fetch_add(1, Ordering::Relaxed);
                    Err(ApplicationError::new(code as u32, code.message()))
                }
            }
        })?;
        Ok(service)
    }

    /// The counters.
    pub fn stats(&self) -> ServiceStats {
        let (mut stats, workers) = (self.stats.get(), &self.of_workers);
        stats.long_pages += workers.pages.load(Ordering::Relaxed);
        stats.items += workers.items.load(Ordering::Relaxed);
        stats.bad += workers.bad.load(Ordering::Relaxed);
        stats
    }

    /// Its index.
    pub fn shared(&self) -> &Arc<SharedIndex> {
        &self.shared
    }

    fn count(&self, count: impl FnOnce(&mut ServiceStats)) {
        let mut stats = self.stats.get();
        count(&mut stats);
        self.stats.set(stats);
    }

    /// Parses the requests of a burst, and refuses those that are wrong. Returns the others with their places.
    fn sort<'a, R>(
        &self,
        burst: &mut RequestBurst<'a>,
        parse: impl Fn(&'a [u8]) -> Result<R, Code>,
    ) -> (ArrayVec<usize, BURST_MAX>, ArrayVec<R, BURST_MAX>) {
        let (mut places, mut requests) = (ArrayVec::new(), ArrayVec::new());
        for i in 0..burst.len() {
            match parse(burst.payload(i)) {
                Ok(request) => {
                    places.push(i);
                    requests.push(request);
                }
                Err(code) => {
                    self.count(|stats| stats.bad += 1);
                    burst.fail(i, code as u32, code.message());
                }
            }
        }
        (places, requests)
    }

    fn get(&self, burst: &mut RequestBurst<'_>) {
        let (places, keys) = self.sort(burst, parse_key);
        let (guard, mut values) = (pin(), [None; BURST_MAX]);
        let values = &mut values[..keys.len()];
        self.shared.index.get_burst(&keys, &guard, values);
        for (i, value) in places.iter().zip(values) {
            match value {
                Some(value) => burst.respond_written(*i, 1 + value.len(), |answer| {
                    answer[0] = 1;
                    answer[1..=value.len()].copy_from_slice(value);
                    1 + value.len()
                }),
                None => burst.respond(*i, &[0]),
            }
        }
        self.count(|stats| {
            stats.gets += keys.len() as u64;
            stats.get_bursts += u64::from(!keys.is_empty());
        });
    }

    fn put(&self, burst: &mut RequestBurst<'_>) {
        let (places, items) = self.sort(burst, parse_put);
        let mut full = ArrayVec::<usize, BURST_MAX>::new();
        self.shared.index.insert_burst(&items, &pin(), |at, result| match result {
            Err(Refused::Full { .. }) => full.push(at),
            result => self.stored(burst, places[at], result.map(|old| old.is_some())),
        });
        if full.is_empty() {
            return;
        }
        // Removed items may still have their memory.
        (0..COLLECTIONS).for_each(|_| pin().flush());
        for at in full {
            let (guard, (key, value)) = (pin(), items[at]);
            let result = self.shared.index.insert(key, value, &guard).map(|old| old.is_some());
            self.stored(burst, places[at], result);
        }
    }

    fn stored(&self, burst: &mut RequestBurst<'_>, i: usize, result: Result<bool, Refused>) {
        match result {
            Ok(existed) => {
                self.count(|stats| stats.puts += 1);
                burst.respond(i, &[u8::from(existed)]);
            }
            Err(refused) => {
                let code = Code::from(refused);
                self.count(|stats| if code == Code::Full { stats.full += 1 } else { stats.bad += 1 });
                burst.fail(i, code as u32, code.message());
            }
        }
    }

    fn delete(&self, burst: &mut RequestBurst<'_>) {
        let (places, keys) = self.sort(burst, parse_key);
        let guard = pin();
        for (i, key) in places.iter().zip(&keys) {
            let existed = self.shared.index.remove(key, &guard).is_some();
            burst.respond(*i, &[u8::from(existed)]);
        }
        self.count(|stats| stats.deletes += keys.len() as u64);
    }
}

//! An index on endpoints: look-ups and writes in the event loop, long pages of scans and removals of ranges on worker
//! threads.
//!
//! The event loop never does more for one request than a look-up, a write, or a page of [`SHORT_PAGE`]. So a GET waits
//! for at most the requests of one receive burst, whatever others scan. All operations on one key have one request
//! type, and so make one burst, however they are mixed. Between pages the server keeps nothing of a scan: the client
//! sends back where it was.
//!
//! | File | What it holds |
//! |---|---|
//! | `mod` | the handlers of one core |
//! | `server` | a server of several cores: settings, metrics, shutdown |
//! | `saver` | snapshots of a running server |
//! | `stats` | what a server tells about itself |

mod saver;
mod server;
mod stats;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use arrayvec::ArrayVec;
use dunlin_net::Transport;
use dunlin_rpc::{ApplicationError, Endpoint, RegisterError, RequestBurst, WorkerPool};
use serde::{Deserialize, Serialize};

use crate::burst::PROBES_MAX;
use crate::cursor::Cursor;
use crate::error::Refused;
use crate::guard::pin;
use crate::index::Index;
use crate::range::{Order, Range};
use crate::scan::{Part, Scan};
use crate::wire::{
    After, COUNT, COUNT_BYTES_MAX, COUNT_PAGE, Code, Counted, DELETE_BYTES_MAX, DELETE_PAGE, DELETE_RANGE, LONG_PAGE,
    LONG_SCAN, OPERATE, Operation, PageLimits, PageWriter, SCAN, SHORT_LAYERS_MAX, SHORT_PAGE, ScanRequest, is_first,
};

pub use saver::Saving;
pub use server::{Server, ServerConfig, ServerError, WORKERS_MAX};
pub use stats::{CoreStats, HandlerFigures, IndexFigures, Latency, ServerStats, SnapshotFigures};

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
    /// Whether a thread panicked while it wrote: it may have left a node half changed.
    is_damaged: AtomicBool,
    /// Locked for reading while a worker removes items. Whether no more may be removed.
    removals_ended: RwLock<bool>,
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
        let (is_damaged, removals_ended) = (AtomicBool::new(false), RwLock::default());
        Arc::new(SharedIndex { index, incarnation: incarnation.max(1), is_damaged, removals_ended })
    }

    /// The index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The number by which cursors know it; never zero.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    fn is_damaged(&self) -> bool {
        self.is_damaged.load(Ordering::Relaxed)
    }

    /// Ends removals of ranges, which may outlive the cores that began them: waits for those that are removing, and
    /// lets no other begin.
    fn end_removals(&self) {
        *self.removals_ended.write().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Panics if a thread panicked in the middle of a write. A server ends then, rather than serve what may be wrong.
    #[inline]
    fn assert_sound(&self) {
        assert!(!self.is_damaged(), "a thread panicked while it changed the index, which may be damaged");
    }

    /// Makes a page on a worker. Returns its number of items.
    fn make_long_page(&self, request: &[u8], page: &mut Vec<u8>) -> Result<u32, Code> {
        let (request, guard) = (self.parse(request, LONG_PAGE)?, pin());
        let mut cursor = self.index.cursor_for(request.scan(), usize::MAX, &guard);
        self.make_page(request.limits, &mut cursor, page)
    }

    /// Makes a page of what comes after a cursor. Returns its number of items.
    fn make_page(&self, limits: PageLimits, cursor: &mut Cursor<'_>, page: &mut Vec<u8>) -> Result<u32, Code> {
        let mut writer = PageWriter::new(page, limits, self.incarnation);
        while let Some((key, value)) = cursor.advance() {
            if !writer.push(key, &value) {
                return Ok(writer.end(true));
            }
        }
        match (cursor.is_spent(), writer.items()) {
            (true, 0) => Err(Code::TooDeep),
            (has_more, _) => Ok(writer.end(has_more)),
        }
    }

    /// Counts items. Returns the answer, and their number.
    fn count(&self, request: &[u8]) -> Result<(Vec<u8>, u32), Code> {
        let scan = self.parse(request, COUNT_PAGE)?;
        self.part_by_part(&scan, COUNT_BYTES_MAX, |range, limit| Ok(self.index.count_page(range, scan.order, limit)))
    }

    /// Removes items. Returns the answer, and their number.
    fn remove_part(&self, request: &[u8]) -> Result<(Vec<u8>, u32), Code> {
        let _watch = Watch(self);
        let scan = self.parse(request, DELETE_PAGE)?;
        if scan.order != Order::Ascending {
            return Err(Code::Unknown);
        }
        self.part_by_part(&scan, DELETE_BYTES_MAX, |range, limit| {
            let ended = self.removals_ended.read().unwrap_or_else(PoisonError::into_inner);
            if *ended { Err(Code::Ending) } else { Ok(self.index.remove_page(range, limit)) }
        })
    }

    /// Works on the items of a request page by page, each under its own guard. If a page fails, the part ends before
    /// it.
    fn part_by_part(
        &self,
        scan: &ScanRequest<'_>,
        bytes_max: usize,
        work: impl Fn(Range<'_>, usize) -> Result<Part, Code>,
    ) -> Result<(Vec<u8>, u32), Code> {
        let (items_max, bytes_max) = (scan.limits.items as usize, bytes_max.min(scan.limits.bytes as usize));
        let (mut items, mut bytes, mut last) = (0, 0, None::<Vec<u8>>);
        loop {
            let after = last.as_ref().map(|key| After { key, incarnation: self.incarnation });
            let rest = ScanRequest { after: after.or(scan.after), ..*scan }.rest();
            let part = match work(rest, items_max - items) {
                // What was done before is told.
                Err(_) if items > 0 => break,
                part => part?,
            };
            (items, bytes, last) = (items + part.items, bytes + part.bytes, part.last);
            // Keys count that others removed meanwhile: without items, too, the last key is progress.
            if last.is_none() || items == items_max || bytes >= bytes_max {
                break;
            }
        }
        let (has_more, last, items) = (last.is_some(), last.unwrap_or_default(), items as u32);
        Ok((Counted { incarnation: self.incarnation, items, has_more, last: &last }.encode(), items))
    }

    fn parse<'r>(&self, request: &'r [u8], most: PageLimits) -> Result<ScanRequest<'r>, Code> {
        self.assert_sound();
        let scan = ScanRequest::parse(request, most)?;
        let is_of_another = scan.after.is_some_and(|after| after.incarnation != self.incarnation);
        if is_of_another { Err(Code::OtherServer) } else { Ok(scan) }
    }
}

/// Notices a panic of a thread that writes: the endpoint of a worker only fails its request, and a snapshot that is
/// being saved must not replace the one before.
struct Watch<'a>(&'a SharedIndex);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.is_damaged.store(true, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for SharedIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SharedIndex { index, incarnation, .. } = self;
        f.debug_struct("SharedIndex").field("index", index).field("incarnation", incarnation).finish()
    }
}

/// The counters of one core's service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceStats {
    /// Look-ups.
    pub gets: u64,
    /// Bursts of look-ups: `gets / get_bursts` is the batching achieved.
    pub get_bursts: u64,
    /// Values stored.
    pub puts: u64,
    /// Removals, also of keys without a value.
    pub deletes: u64,
    /// Bursts of PUTs and of DELETEs.
    pub write_bursts: u64,
    /// Scans and counts that began.
    pub scans: u64,
    /// Pages made in the event loop.
    pub short_pages: u64,
    /// Bursts of such pages, whose scans began together.
    pub scan_bursts: u64,
    /// Pages made on worker threads.
    pub long_pages: u64,
    /// Parts of ranges counted on worker threads.
    pub counts: u64,
    /// Items in all pages, and counted ones.
    pub items: u64,
    /// Parts of ranges removed on worker threads.
    pub range_deletes: u64,
    /// Items that these removed.
    pub range_deleted: u64,
    /// Pages, counts and removals that worker threads are making now.
    pub in_progress: u64,
    /// Values that were not stored because the memory budget was used up.
    pub full: u64,
    /// Requests that were refused for another reason.
    pub bad: u64,
}

impl ServiceStats {
    /// The sums of the counters of two cores.
    #[must_use]
    pub fn plus(self, other: ServiceStats) -> ServiceStats {
        ServiceStats {
            gets: self.gets.saturating_add(other.gets),
            get_bursts: self.get_bursts.saturating_add(other.get_bursts),
            puts: self.puts.saturating_add(other.puts),
            deletes: self.deletes.saturating_add(other.deletes),
            write_bursts: self.write_bursts.saturating_add(other.write_bursts),
            scans: self.scans.saturating_add(other.scans),
            short_pages: self.short_pages.saturating_add(other.short_pages),
            scan_bursts: self.scan_bursts.saturating_add(other.scan_bursts),
            long_pages: self.long_pages.saturating_add(other.long_pages),
            counts: self.counts.saturating_add(other.counts),
            items: self.items.saturating_add(other.items),
            range_deletes: self.range_deletes.saturating_add(other.range_deletes),
            range_deleted: self.range_deleted.saturating_add(other.range_deleted),
            in_progress: self.in_progress.saturating_add(other.in_progress),
            full: self.full.saturating_add(other.full),
            bad: self.bad.saturating_add(other.bad),
        }
    }
}

/// What worker threads count.
#[derive(Debug, Default)]
struct WorkerStats {
    scans: AtomicU64,
    pages: AtomicU64,
    counts: AtomicU64,
    items: AtomicU64,
    range_deletes: AtomicU64,
    range_deleted: AtomicU64,
    in_progress: AtomicU64,
    bad: AtomicU64,
}

/// Work of a worker thread, which counts as in progress until this is dropped.
struct InProgress<'a>(&'a WorkerStats);

impl WorkerStats {
    fn begin(&self) -> InProgress<'_> {
        self.in_progress.fetch_add(1, Ordering::Relaxed);
        InProgress(self)
    }
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.0.in_progress.fetch_sub(1, Ordering::Relaxed);
    }
}

impl InProgress<'_> {
    /// Counts a request, whose answer has `items` items, in `requests` and as one of scans.
    fn end<R>(
        self,
        request: &[u8],
        requests: &AtomicU64,
        answer: Result<(R, u32), Code>,
    ) -> Result<R, ApplicationError> {
        if answer.is_ok() {
            self.0.scans.fetch_add(u64::from(is_first(request)), Ordering::Relaxed);
        }
        let items = &self.0.items;
        self.end_with((requests, items), answer)
    }

    /// Counts a request in `requests`, and the items of its answer in `of_items`.
    fn end_with<R>(
        &self,
        (requests, of_items): (&AtomicU64, &AtomicU64),
        answer: Result<(R, u32), Code>,
    ) -> Result<R, ApplicationError> {
        match answer {
            Ok((answer, items)) => {
                requests.fetch_add(1, Ordering::Relaxed);
                of_items.fetch_add(items.into(), Ordering::Relaxed);
                Ok(answer)
            }
            Err(code) => {
                self.0.bad.fetch_add(1, Ordering::Relaxed);
                Err(ApplicationError::new(code as u32, code.message()))
            }
        }
    }
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
    /// [`RegisterError`] if one of the request types 0x73 to 0x75, 0x78 or 0x79 has a handler already.
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
        endpoint.register_burst(OPERATE, move |burst| serving.operate(burst))?;
        let (serving, scratch) = (service.clone(), RefCell::new(Vec::new()));
        endpoint.register_burst(SCAN, move |burst| serving.scan(burst, &mut scratch.borrow_mut()))?;
        let (shared, stats) = (service.shared.clone(), service.of_workers.clone());
        endpoint.register_worker(LONG_SCAN, pool, move |request| {
            let (working, mut page) = (stats.begin(), Vec::new());
            let items = shared.make_long_page(request.payload(), &mut page);
            working.end(request.payload(), &stats.pages, items.map(|items| (page, items)))
        })?;
        let (shared, stats) = (service.shared.clone(), service.of_workers.clone());
        endpoint.register_worker(COUNT, pool, move |request| {
            let working = stats.begin();
            working.end(request.payload(), &stats.counts, shared.count(request.payload()))
        })?;
        let (shared, stats) = (service.shared.clone(), service.of_workers.clone());
        endpoint.register_worker(DELETE_RANGE, pool, move |request| {
            let working = stats.begin();
            working.end_with((&stats.range_deletes, &stats.range_deleted), shared.remove_part(request.payload()))
        })?;
        Ok(service)
    }

    /// The counters.
    pub fn stats(&self) -> ServiceStats {
        let (mut stats, workers) = (self.stats.get(), &self.of_workers);
        stats.scans += workers.scans.load(Ordering::Relaxed);
        stats.long_pages += workers.pages.load(Ordering::Relaxed);
        stats.counts += workers.counts.load(Ordering::Relaxed);
        stats.items += workers.items.load(Ordering::Relaxed);
        stats.range_deletes += workers.range_deletes.load(Ordering::Relaxed);
        stats.range_deleted += workers.range_deleted.load(Ordering::Relaxed);
        stats.in_progress += workers.in_progress.load(Ordering::Relaxed);
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
        self.shared.assert_sound();
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

    /// Serves operations on single keys in order. All look-ups, and the descents of all writes, run together first.
    fn operate(&self, burst: &mut RequestBurst<'_>) {
        let (places, operations) = self.sort(burst, Operation::parse);
        let writes = operations.iter().filter(|operation| operation.is_write()).count();
        let full = if writes == 0 {
            self.get(burst, &places, &operations);
            ArrayVec::new()
        } else {
            let _watch = Watch(&self.shared);
            self.operate_in_order(burst, &places, &operations)
        };
        self.count(|stats| {
            let gets = operations.len() - writes;
            stats.gets += gets as u64;
            stats.get_bursts += u64::from(gets > 0);
            stats.write_bursts += u64::from(writes > 0);
        });
        if writes > 0 {
            let is_delete = |operation: &&Operation<'_>| matches!(operation, Operation::Delete(_));
            self.count(|stats| stats.deletes += operations.iter().filter(is_delete).count() as u64);
        }
        if !full.is_empty() {
            let _watch = Watch(&self.shared);
            self.put_again(burst, &full);
        }
    }

    fn get(&self, burst: &mut RequestBurst<'_>, places: &[usize], operations: &[Operation<'_>]) {
        let keys: ArrayVec<&[u8], BURST_MAX> = operations.iter().map(|operation| operation.key()).collect();
        let (guard, mut values) = (pin(), [None; BURST_MAX]);
        let values = &mut values[..keys.len()];
        self.shared.index.get_burst(&keys, &guard, values);
        for (i, value) in places.iter().zip(values) {
            answer_get(burst, *i, value.as_deref());
        }
    }

    /// Returns the PUTs for which the memory budget has no room.
    fn operate_in_order<'a>(
        &self,
        burst: &mut RequestBurst<'_>,
        places: &[usize],
        operations: &[Operation<'a>],
    ) -> ArrayVec<Put<'a>, BURST_MAX> {
        let (index, guard, mut full) = (&self.shared.index, pin(), ArrayVec::new());
        for (places, operations) in places.chunks(PROBES_MAX).zip(operations.chunks(PROBES_MAX)) {
            let mut values = [None; PROBES_MAX];
            let probes = operations.iter().map(|operation| (operation.key(), operation.is_write()));
            index.look_up_or_fetch(probes, &guard, &mut values);
            for (at, (&i, &operation)) in places.iter().zip(operations).enumerate() {
                match operation {
                    Operation::Get(key) => {
                        // A look-up finds what was written before it in the burst.
                        let is_written = |before: &Operation<'_>| before.is_write() && before.key() == key;
                        let is_old = operations[..at].iter().any(is_written);
                        let value = if is_old { index.get(key, &guard) } else { values[at] };
                        answer_get(burst, i, value.as_deref());
                    }
                    Operation::Put(key, value) => match index.insert(key, value, &guard) {
                        Err(Refused::Full { .. }) => full.push(Put { i, key, value }),
                        result => self.stored(burst, i, result.map(|old| old.is_some())),
                    },
                    Operation::Delete(key) => {
                        burst.respond(i, &[u8::from(index.remove(key, &guard).is_some())]);
                    }
                }
            }
        }
        full
    }

    /// Tries once more to store what had no room: removed items may still have had their memory.
    fn put_again(&self, burst: &mut RequestBurst<'_>, puts: &[Put<'_>]) {
        (0..COLLECTIONS).for_each(|_| pin().flush());
        for &Put { i, key, value } in puts {
            let guard = pin();
            let result = self.shared.index.insert(key, value, &guard).map(|old| old.is_some());
            self.stored(burst, i, result);
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

    /// Makes short pages. The descents of all of them run together first.
    fn scan(&self, burst: &mut RequestBurst<'_>, page: &mut Vec<u8>) {
        let (places, requests) = self.sort(burst, |request| self.shared.parse(request, SHORT_PAGE));
        let guard = pin();
        for (places, requests) in places.chunks(PROBES_MAX).zip(requests.chunks(PROBES_MAX)) {
            let scans: ArrayVec<Scan<'_>, PROBES_MAX> = requests.iter().map(ScanRequest::scan).collect();
            let mut cursors = self.shared.index.cursors_for(&scans, SHORT_LAYERS_MAX, &guard);
            for ((&i, request), cursor) in places.iter().zip(requests).zip(&mut cursors) {
                match self.shared.make_page(request.limits, cursor, page) {
                    Ok(items) => {
                        self.count(|stats| {
                            stats.scans += u64::from(request.after.is_none());
                            stats.short_pages += 1;
                            stats.items += u64::from(items);
                        });
                        burst.respond(i, page);
                        page.shrink_to(SCRATCH_BYTES);
                    }
                    Err(code) => {
                        // The client asks a worker instead: nothing is wrong with the request.
                        self.count(|stats| stats.bad += u64::from(code != Code::TooDeep));
                        burst.fail(i, code as u32, code.message());
                    }
                }
            }
        }
        self.count(|stats| stats.scan_bursts += u64::from(!requests.is_empty()));
    }
}

/// A PUT, and its place in the burst.
#[derive(Debug, Clone, Copy)]
struct Put<'a> {
    i: usize,
    key: &'a [u8],
    value: &'a [u8],
}

#[inline]
fn answer_get(burst: &mut RequestBurst<'_>, i: usize, value: Option<&[u8]>) {
    match value {
        Some(value) => burst.respond_written(i, 1 + value.len(), |answer| {
            answer[0] = 1;
            answer[1..=value.len()].copy_from_slice(value);
            1 + value.len()
        }),
        None => burst.respond(i, &[0]),
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};

    use super::*;

    /// Another removal of the same range is a page ahead, again and again.
    #[test]
    fn a_part_whose_items_others_remove_ends_too() {
        let shared = SharedIndex::with_incarnation(Index::new(1 << 20).unwrap(), 1);
        let scan = ScanRequest { range: Range::ALL, order: Order::Ascending, limits: DELETE_PAGE, after: None };
        let pages = std::cell::Cell::new(0u32);
        let removed_before = |_: Range<'_>, _: usize| {
            pages.set(pages.get() + 1);
            Ok(Part { items: 0, bytes: 400, last: (pages.get() < 100).then(|| pages.get().to_be_bytes().to_vec()) })
        };
        let (answer, items) = shared.part_by_part(&scan, 1000, removed_before).unwrap();
        let part = Counted::parse(&answer).unwrap();
        assert_eq!((pages.get(), items, part.has_more, part.last), (3, 0, true, &3u32.to_be_bytes()[..]));
    }

    /// What a worker left half changed is neither served nor saved in place of a snapshot.
    #[test]
    fn nothing_is_served_after_a_worker_panicked_in_a_write() {
        let shared = SharedIndex::with_incarnation(Index::new(1 << 20).unwrap(), 1);
        shared.index.insert(b"key", b"value", &pin()).unwrap();
        let range = ScanRequest { range: Range::ALL, order: Order::Ascending, limits: DELETE_PAGE, after: None };
        let request = range.encode();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _watch = Watch(&shared);
            panic!("in the middle of a write");
        }));
        assert!(panicked.is_err() && shared.is_damaged());
        for work in [SharedIndex::count, SharedIndex::remove_part] {
            assert!(catch_unwind(AssertUnwindSafe(|| work(&shared, &request))).is_err());
        }
        assert_eq!(shared.index.len(), 1);
        let config = LoopbackConfig { delay: std::time::Duration::ZERO, ..LoopbackConfig::default() };
        let network = LoopbackNetwork::new(config);
        let endpoint = Endpoint::new(network.endpoint(1).unwrap(), Default::default()).unwrap();
        let pool = WorkerPool::by_hand(1);
        let service = IndexService::register(&endpoint, shared, &pool).unwrap();
        let client = Endpoint::new(network.endpoint(2).unwrap(), Default::default()).unwrap();
        let call = async {
            let session = client.connect(&dunlin_net::Addr::Node(1)).await.unwrap();
            session.call(OPERATE, Operation::Get(b"key").encode()).await.map(|reply| reply.response.len())
        };
        let mut call = std::pin::pin!(call);
        let failed = loop {
            endpoint.run_once();
            if let Some(ended) = client.poll_once(call.as_mut()) {
                break ended.unwrap_err();
            }
        };
        assert_eq!(failed.error, dunlin_rpc::CallError::HandlerFailed);
        assert_eq!(service.stats().gets, 0);
    }
}

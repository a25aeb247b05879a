//! The client of an index service.

use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::{Addr, Transport};
use dunlin_rpc::{CallError, Endpoint, MsgBuf};
use dunlin_serve::channel::{Retry, Turning, Why};
use dunlin_serve::{CallPolicy, Channel, ChannelConfig, ChannelError};
use futures::stream::{self, StreamExt, TryStreamExt};

use crate::error::{IndexError, check_lengths};
use crate::range::{Gap, GapKind, Order, Range};
use crate::service::ServerStats;
use crate::snapshot::Saved;
use crate::wire::{
    After, COUNT, COUNT_PAGE, Code, Counted, DELETE_PAGE, DELETE_RANGE, LONG_PAGE, LONG_SCAN, OPERATE, Operation, Page,
    PageLimits, SAVE, SCAN, SHORT_PAGE, STATS, ScanRequest, encode_plain, parse_saved,
};

/// Settings of a client.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClientConfig {
    /// Timeout of a call, for all attempts together; each page of a scan is a call. Default 2 s.
    pub timeout: Duration,
    /// Sessions for look-ups and writes, each with up to 8 calls in flight. Default 4.
    pub sessions_max: usize,
    /// Sessions for scans, each with up to 8 pages in flight. Look-ups never wait for one of their slots. Default 1.
    pub scan_sessions_max: usize,
    /// When calls are retried. A write is retried only if it was not done.
    pub retry: Retry,
    /// Look-ups of one [`Client::get_many`] in flight at a time. Default 32.
    pub gets_max: usize,
    /// The limits of each page of [`Client::scan`]. Default 4,096 items and 64 KiB. Pages within
    /// [`SHORT_PAGE`] are made in the server's event loop, others by a worker thread; so are those of keys that have
    /// more than 4 KiB in common.
    pub page: PageLimits,
    /// When the endpoint's event loop runs. Default [`Turning::DuringCalls`].
    pub turning: Turning,
    /// Seed of the random pauses before retries. By default from the clock.
    pub seed: Option<u64>,
}

impl Default for ClientConfig {
    fn default() -> Self {
        ClientConfig {
            timeout: Duration::from_secs(2),
            sessions_max: 4,
            scan_sessions_max: 1,
            retry: Retry::default(),
            gets_max: 32,
            page: PageLimits { items: 4096, bytes: 64 << 10 },
            turning: Turning::default(),
            seed: None,
        }
    }
}

/// A client of one index server. It connects with its first call. Clones share their sessions.
pub struct Client<T: Transport>(Rc<Inner<T>>);

impl<T: Transport> Clone for Client<T> {
    fn clone(&self) -> Self {
        Client(self.0.clone())
    }
}

struct Inner<T: Transport> {
    server: Addr,
    channel: Channel<T>,
    scans: Channel<T>,
    config: ClientConfig,
}

/// A value, in the buffer that it came in.
#[derive(Debug)]
pub struct Found(MsgBuf);

impl Deref for Found {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // It was checked when it came.
        &self.0[1..]
    }
}

impl<T: Transport + 'static> Client<T> {
    /// A client of the server at `server`.
    pub fn new(endpoint: &Rc<Endpoint<T>>, server: Addr, config: ClientConfig) -> Client<T> {
        let ClientConfig { timeout, retry, turning, seed, .. } = config;
        let channel = |sessions_max| {
            let config = ChannelConfig { sessions_max, timeout: Some(timeout), retry, turning, seed };
            Channel::new(endpoint, vec![server.clone()], config)
        };
        let (channel, scans) = (channel(config.sessions_max), channel(config.scan_sessions_max));
        Client(Rc::new(Inner { server, channel, scans, config }))
    }

    /// Returns the value of a key, if it has one.
    ///
    /// # Errors
    /// [`IndexError`].
    pub async fn get(&self, key: &[u8]) -> Result<Option<Found>, IndexError> {
        check_lengths(key, &[]).map_err(IndexError::TooLong)?;
        let call = self.0.channel.call_with(OPERATE, Operation::Get(key).encode(), CallPolicy::repeatable());
        let answer = call.await.map_err(|why| self.0.judge(why))?;
        match answer[..] {
            [0] => Ok(None),
            [1, ..] => Ok(Some(Found(answer))),
            _ => Err(self.0.protocol("the answer to a GET begins with neither 0 nor 1")),
        }
    }

    /// Looks up many keys, [`ClientConfig::gets_max`] at a time; returns their values in the order of the keys. It is
    /// not atomic. The server looks up those that arrive together as a burst.
    ///
    /// # Errors
    /// The first [`IndexError`].
    pub async fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Found>>, IndexError> {
        let gets = keys.into_iter().map(|key| async move { self.get(key.as_ref()).await });
        stream::iter(gets).buffered(self.0.config.gets_max.max(1)).try_collect().await
    }

    /// Stores a value for a key; returns whether the key had one.
    ///
    /// # Errors
    /// [`IndexError::Full`], if the server has no memory for it. [`IndexError::Call`] says whether the value may be
    /// stored nevertheless.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<bool, IndexError> {
        check_lengths(key, value).map_err(IndexError::TooLong)?;
        self.0.write(Operation::Put(key, value)).await
    }

    /// Removes a key; returns whether it had a value.
    ///
    /// # Errors
    /// [`IndexError::Call`] says whether the key may be removed nevertheless.
    pub async fn delete(&self, key: &[u8]) -> Result<bool, IndexError> {
        check_lengths(key, &[]).map_err(IndexError::TooLong)?;
        self.0.write(Operation::Delete(key)).await
    }

    /// Begins a scan of a range, page by page, with [`ClientConfig::page`]. It sends nothing before the first
    /// [`Pages::next`].
    ///
    /// # Errors
    /// If a bound is too long, or the bounds are the wrong way round.
    pub fn scan(&self, range: Range<'_>, order: Order) -> Result<Pages<T>, IndexError> {
        self.scan_with(range, order, self.0.config.page)
    }

    /// As [`Client::scan`], with other limits of its pages.
    ///
    /// # Errors
    /// As [`Client::scan`], and if the limits are not within [`LONG_PAGE`].
    pub fn scan_with(&self, range: Range<'_>, order: Order, limits: PageLimits) -> Result<Pages<T>, IndexError> {
        check_range(range)?;
        if !limits.are_within(LONG_PAGE) {
            return Err(IndexError::PageLimits { items: limits.items, bytes: limits.bytes });
        }
        let bounds = [range.low, range.high].map(OwnedGap::new);
        Ok(Pages { client: self.clone(), bounds, order, limits, is_deep: false, after: None, is_over: false })
    }
}

impl<T: Transport + 'static> Client<T> {
    /// Counts the items of a range at the server, a part after the other. Each part is a scan as described at
    /// [`Pages`]; writes meanwhile may or may not be counted.
    ///
    /// # Errors
    /// As [`Client::scan`] and [`Pages::next`]; nothing is known of the number then.
    pub async fn count(&self, range: Range<'_>) -> Result<u64, IndexError> {
        check_range(range)?;
        let inner = &self.0;
        let (mut items, mut last) = (0, None::<(Vec<u8>, u64)>);
        loop {
            let after = last.as_ref().map(|(key, incarnation)| After { key, incarnation: *incarnation });
            let request = ScanRequest { range, order: Order::Ascending, limits: COUNT_PAGE, after };
            let call = inner.scans.call_with(COUNT, request.encode(), CallPolicy::repeatable());
            let answer = call.await.map_err(|why| inner.judge(why))?;
            let counted = Counted::parse(&answer).ok_or_else(|| inner.protocol("a count is malformed"))?;
            items += u64::from(counted.items);
            if !counted.has_more {
                return Ok(items);
            }
            // A server that goes back would make the client count for ever.
            if !request.rest().contains(counted.last) {
                return Err(inner.protocol("it counted keys out of the bounds"));
            }
            last = Some((counted.last.to_vec(), counted.incarnation));
        }
    }

    /// Removes the items of a range at the server, a part after the other, and returns how many were removed. Items that
    /// are stored meanwhile may stay.
    ///
    /// # Errors
    /// As [`Client::scan`] and [`Client::delete`]. Some items may be removed then, the smallest first: call it again to
    /// remove the rest.
    pub async fn delete_range(&self, range: Range<'_>) -> Result<u64, IndexError> {
        check_range(range)?;
        let inner = &self.0;
        let (mut removed, mut last) = (0, None::<(Vec<u8>, u64)>);
        loop {
            let after = last.as_ref().map(|(key, incarnation)| After { key, incarnation: *incarnation });
            let request = ScanRequest { range, order: Order::Ascending, limits: DELETE_PAGE, after };
            // Not repeated if it may have been done: it would also remove what was stored meanwhile.
            let answer = inner.scans.call(DELETE_RANGE, request.encode()).await.map_err(|why| inner.judge(why))?;
            let part = Counted::parse(&answer).ok_or_else(|| inner.protocol("the removal of a range is malformed"))?;
            removed += u64::from(part.items);
            if !part.has_more {
                return Ok(removed);
            }
            // A server that goes back would make the client ask for ever.
            if !request.rest().contains(part.last) {
                return Err(inner.protocol("it removed keys out of the bounds"));
            }
            last = Some((part.last.to_vec(), part.incarnation));
        }
    }

    /// Asks for the statistics of the whole server.
    ///
    /// # Errors
    /// [`IndexError::Call`], [`IndexError::Protocol`].
    pub async fn stats(&self) -> Result<ServerStats, IndexError> {
        let inner = &self.0;
        let call = inner.scans.call_with(STATS, encode_plain(), CallPolicy::repeatable());
        let answer = call.await.map_err(|why| inner.judge(why))?;
        ServerStats::decode(&answer).map_err(|why| inner.protocol(&why))
    }

    /// Makes the server save a snapshot, and returns when it is on the disk. [`ClientConfig::timeout`] must be long
    /// enough for that.
    ///
    /// # Errors
    /// [`IndexError::Snapshot`]; [`IndexError::Call`], if the server did not say in time that it is done.
    pub async fn save(&self) -> Result<Saved, IndexError> {
        let answer = self.0.scans.call(SAVE, encode_plain()).await.map_err(|why| self.0.judge(why))?;
        let (items, file_bytes) = parse_saved(&answer).ok_or_else(|| self.0.protocol("its answer is malformed"))?;
        Ok(Saved { items, file_bytes })
    }
}

fn check_range(range: Range<'_>) -> Result<(), IndexError> {
    for gap in [range.low, range.high] {
        check_lengths(gap.key(), &[]).map_err(IndexError::TooLong)?;
    }
    if range.is_reversed() { Err(IndexError::Reversed) } else { Ok(()) }
}

impl<T: Transport + 'static> Inner<T> {
    async fn write(&self, operation: Operation<'_>) -> Result<bool, IndexError> {
        match self.channel.call(OPERATE, operation.encode()).await.map_err(|why| self.judge(why))?[..] {
            [existed @ (0 | 1)] => Ok(existed == 1),
            _ => Err(self.protocol("the answer to a write is neither 0 nor 1")),
        }
    }

    fn protocol(&self, why: &str) -> IndexError {
        IndexError::Protocol { server: self.server.clone(), why: why.into() }
    }

    fn judge(&self, why: ChannelError) -> IndexError {
        let server = self.server.clone();
        let Why::Call(call) = &why.why else { return IndexError::Call { server, why } };
        match call {
            CallError::Application(error) => match Code::of(error.code()) {
                Some(Code::Full) => IndexError::Full { server },
                Some(Code::OtherServer) => IndexError::Restarted { server },
                Some(Code::Ending) => IndexError::Ending { server },
                Some(Code::NoSnapshot | Code::Saving | Code::NotSaved) => {
                    IndexError::Snapshot { server, why: error.message().into() }
                }
                _ => self.protocol(&error.to_string()),
            },
            CallError::NoHandler => self.protocol(&call.to_string()),
            _ => IndexError::Call { server, why },
        }
    }
}

/// Whether a short page was refused because it is too much work for the event loop.
fn is_too_deep(why: &ChannelError) -> bool {
    matches!(&why.why, Why::Call(CallError::Application(error)) if Code::of(error.code()) == Some(Code::TooDeep))
}

/// A [`Gap`] that owns its key.
#[derive(Debug)]
struct OwnedGap {
    key: Vec<u8>,
    kind: GapKind,
}

impl OwnedGap {
    fn new(gap: Gap<'_>) -> OwnedGap {
        OwnedGap { key: gap.key().to_vec(), kind: gap.kind() }
    }

    fn gap(&self) -> Gap<'_> {
        (self.kind)(&self.key)
    }
}

/// A scan, page by page. It keeps no more than its bounds and the last key: the next page is fetched when it is asked
/// for, so a slow reader slows its scan down, and costs the server nothing. Each page shows what
/// [`Index::scan`](crate::Index::scan) would; the pages together are not a snapshot.
pub struct Pages<T: Transport> {
    client: Client<T>,
    bounds: [OwnedGap; 2],
    order: Order,
    limits: PageLimits,
    /// Whether the keys have so much in common that also short pages are made by a worker.
    is_deep: bool,
    /// The last key, and the server's incarnation.
    after: Option<(Vec<u8>, u64)>,
    is_over: bool,
}

impl<T: Transport + 'static> Pages<T> {
    /// Fetches the next page; `None` if there are no more items. The last page may be empty.
    ///
    /// # Errors
    /// [`IndexError::Restarted`] and [`IndexError::Protocol`] end the scan. After [`IndexError::Call`] it may be called
    /// again, and goes on where it was: no item is lost and none comes twice.
    pub async fn next(&mut self) -> Result<Option<Page>, IndexError> {
        if self.is_over {
            return Ok(None);
        }
        let result = self.fetch().await;
        self.is_over = match &result {
            Ok(page) => !page.has_more(),
            Err(error) => !matches!(error, IndexError::Call { .. }),
        };
        let page = result?;
        if let Some(last) = page.last_key() {
            self.after = Some((last.to_vec(), page.incarnation()));
        }
        Ok(Some(page))
    }

    /// The last key of the pages so far: a new scan after it goes on where this one was.
    pub fn last_key(&self) -> Option<&[u8]> {
        self.after.as_ref().map(|(key, _)| &key[..])
    }

    async fn fetch(&mut self) -> Result<Page, IndexError> {
        let inner = &self.client.0;
        let range = Range { low: self.bounds[0].gap(), high: self.bounds[1].gap() };
        let after = self.after.as_ref().map(|(key, incarnation)| After { key, incarnation: *incarnation });
        let request = ScanRequest { range, order: self.order, limits: self.limits, after };
        let call = |req_type| inner.scans.call_with(req_type, request.encode(), CallPolicy::repeatable());
        let is_short = self.limits.are_within(SHORT_PAGE) && !self.is_deep;
        let mut answer = call(if is_short { SCAN } else { LONG_SCAN }).await;
        if answer.as_ref().err().is_some_and(is_too_deep) {
            self.is_deep = true;
            answer = call(LONG_SCAN).await;
        }
        let answer = answer.map_err(|why| inner.judge(why))?;
        let page = Page::parse(answer).ok_or_else(|| inner.protocol("a page is malformed"))?;
        match after {
            Some(After { incarnation, .. }) if incarnation != page.incarnation() => {
                return Err(inner.protocol("it took the cursor of another server"));
            }
            _ => {}
        }
        // A server of another order would make the client scan for ever.
        let mut rest = request;
        for (key, _) in page.items() {
            if !rest.rest().contains(key) {
                return Err(inner.protocol("a page is out of order, or out of the bounds of its scan"));
            }
            rest.after = Some(After { key, incarnation: page.incarnation() });
        }
        Ok(page)
    }
}

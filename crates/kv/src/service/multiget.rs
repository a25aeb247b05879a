//! Many keys in one request: a burst of its own.

use std::rc::Rc;

use arrayvec::ArrayVec;
use dunlin_rpc::msgbuf::AllocError;
use dunlin_rpc::{DeferredRequest, MsgBuf, Request};
use dunlin_store::tier::Ticket;
use dunlin_store::{Key, KeyHash, Store};

use super::late::{Gather, Together, client, split, split_deferred};
use crate::metrics::{CoreMetrics, Operation, Outcome, Timing};
use crate::shard::{Shard, on_device};
use crate::tier::{Hold, desk};
use crate::wire::{MULTI_GET_VALUE_BYTES_MAX, MultiGet, MultiGetAnswerWriter, Ranked, Status, WAITED_BYTES, Waited};

/// Keys prefetched together: enough to use all outstanding misses of a core, few enough to stay in its first-level
/// cache.
const PREFETCH_KEYS: usize = 32;
/// Initial room in the response for each key, in bytes.
const FIRST_BYTES_PER_KEY: usize = 48;

/// Answers a multi-get, at once if memory has all of its values.
pub(super) fn multi_get<S: Store + 'static, const RANKED: bool>(
    shard: &Rc<Shard<S>>,
    timing: &Timing,
    request: Request<'_>,
) {
    let begun = timing.begin();
    let Some((ranked, payload)) = split::<RANKED>(request.payload()) else {
        shard.count_stray(false);
        return request.respond(&[Status::Malformed as u8]);
    };
    let head = head_bytes(ranked);
    if let Some(status) = shard.refusal(true) {
        return refuse(request, head, status);
    }
    let Some(keys) = MultiGet::parse(payload) else {
        shard.count_stray(false);
        return refuse(request, head, Status::Malformed);
    };
    let count = keys.clone().count();
    if let Some(desk) = shard.desk() {
        let tickets = awaits(shard, keys.clone());
        if !tickets.is_empty() {
            let client = client(desk, &request.context());
            let Some(reserved) = desk.reserve(client, &tickets) else { return request.push_back() };
            match request.defer() {
                Ok(request) => Together::push(shard, desk, request, count, &tickets, reserved, Values::default()),
                Err(request) => request.push_back(),
            }
            return desk::advance(shard);
        }
    }
    let mut metrics = shard.metrics.borrow_mut();
    let collected = collect(shard, &mut metrics, keys, head);
    if let Some(begun) = begun {
        timing.end_alike(&begun, &mut metrics, Operation::Get, count as u64);
    }
    drop(metrics);
    match collected {
        Ok(response) => {
            // That the caller gave up is not an error of the server, and a caller whose response is too long has been
            // told.
            let _ = request.respond_from(response);
        }
        Err(_) => refuse(request, head, Status::Failed),
    }
}

/// The values that a multi-get waits for: they stay in memory until it is answered.
#[derive(Default)]
struct Values(Vec<Hold>);

impl<S: Store> Gather<S> for Values {
    fn arrived(&mut self, _: &Shard<S>, _: &DeferredRequest, _: KeyHash, hold: Option<Hold>) {
        self.0.extend(hold);
    }

    fn answer(self, shard: &Shard<S>, request: DeferredRequest, waited: Waited) {
        answer(shard, request, waited);
    }
}

/// Answers a multi-get whose values have been read.
fn answer<S: Store>(shard: &Shard<S>, request: DeferredRequest, waited: Waited) {
    // It was parsed before.
    let Some((ranked, payload)) = split_deferred(&request) else { return };
    let Some(keys) = MultiGet::parse(payload) else { return };
    let (head, count) = (head_bytes(ranked), keys.clone().count() as u64);
    if let Some(status) = shard.refusal(true) {
        // It must not be read any more, and may have been filled with other items since.
        let _ = request.enqueue_response(refusal(head, status));
        return;
    }
    let mut metrics = shard.metrics.borrow_mut();
    let collected = collect(shard, &mut metrics, keys, head);
    let micros = u64::from(waited.queued_micros) + u64::from(waited.read_micros);
    metrics.latency(Operation::Get, micros * 1000, count);
    drop(metrics);
    // Without memory for the response, the caller is told that the handler failed. It may have given up.
    if let Ok(mut response) = collected {
        if head > 0 {
            waited.encode(&mut response[..head]);
        }
        let _ = request.enqueue_response(response);
    }
}

/// Returns the bytes before the ordinary response.
fn head_bytes(ranked: Option<Ranked>) -> usize {
    if ranked.is_some_and(|ranked| ranked.wants_waited) { WAITED_BYTES } else { 0 }
}

/// Answers with a single status.
fn refuse(request: Request<'_>, head: usize, status: Status) {
    request.respond(&refusal(head, status));
}

fn refusal(head: usize, status: Status) -> Vec<u8> {
    let mut response = vec![0; head + 1];
    response[head] = status as u8;
    response
}

/// Returns the records that must be read before a response has all values: no more than fit in it, but one at least.
fn awaits<S: Store>(shard: &Shard<S>, keys: MultiGet<'_>) -> Vec<Ticket> {
    let (store, now) = (shard.store.borrow(), shard.now());
    let (mut tickets, mut bytes) = (Vec::new(), 0);
    for key in keys {
        // A key that is not here, or is none, has no record either.
        let Some(ticket) = store.key(key).ok().and_then(|key| on_device(&*store, &key, now)) else { continue };
        bytes += ticket.bytes();
        if bytes > MULTI_GET_VALUE_BYTES_MAX && !tickets.is_empty() {
            break;
        }
        tickets.push(ticket);
    }
    tickets
}

fn collect<S: Store>(
    shard: &Shard<S>,
    metrics: &mut CoreMetrics,
    mut keys: MultiGet<'_>,
    head: usize,
) -> Result<MsgBuf, AllocError> {
    let mut store = shard.store.borrow_mut();
    let mut response = Response::new(head + keys.clone().count() * FIRST_BYTES_PER_KEY, head)?;
    loop {
        let mut burst = ArrayVec::<Result<Key<'_>, Status>, PREFETCH_KEYS>::new();
        for key in keys.by_ref().take(PREFETCH_KEYS) {
            let key = match store.key(key) {
                Ok(key) if shard.owns(key.bytes()) => Ok(key),
                Ok(_) => Err(Status::NotOwned),
                Err(_) => Err(Status::Malformed),
            };
            if let Ok(key) = &key {
                store.prefetch(key);
            }
            burst.push(key);
        }
        if burst.is_empty() {
            return Ok(response.finish());
        }
        burst.iter().flatten().for_each(|key| store.prefetch_item(key));
        for key in &burst {
            let key = match key {
                Ok(key) => key,
                Err(status) => {
                    shard.count_stray(*status == Status::NotOwned);
                    response.none(*status)?;
                    continue;
                }
            };
            if response.is_full {
                response.none(Status::Later)?;
                continue;
            }
            if shard.desk().is_some() && on_device(&*store, key, shard.now()).is_some() {
                // It would not have fitted, or has left memory again meanwhile.
                response.none(Status::Later)?;
                continue;
            }
            let found = store.get(key);
            metrics.count(Operation::Get, Outcome::found(found.is_some()));
            match found {
                None => response.none(Status::NotFound)?,
                Some(item) => response.found(item.flags, item.value)?,
            }
        }
    }
}

/// A growing response.
struct Response {
    buffer: MsgBuf,
    writer: MultiGetAnswerWriter,
    /// No more values fit.
    is_full: bool,
}

impl Response {
    fn new(bytes: usize, head: usize) -> Result<Response, AllocError> {
        let buffer = MsgBuf::written(bytes, |out| {
            out[..head].fill(0);
            head
        })?;
        Ok(Response { buffer, writer: MultiGetAnswerWriter::default(), is_full: false })
    }

    fn reserve(&mut self, bytes: usize) -> Result<(), AllocError> {
        if self.buffer.capacity() - self.buffer.len() < bytes {
            let room = (self.buffer.len() + bytes).max(2 * self.buffer.capacity());
            self.buffer = MsgBuf::written(room, |out| {
                out[..self.buffer.len()].copy_from_slice(&self.buffer);
                self.buffer.len()
            })?;
        }
        Ok(())
    }

    fn none(&mut self, status: Status) -> Result<(), AllocError> {
        self.reserve(1)?;
        self.buffer.append_written(1, |out| {
            out[0] = status as u8;
            1
        });
        Ok(())
    }

    fn found(&mut self, flags: u32, value: &[u8]) -> Result<(), AllocError> {
        if !self.writer.has_room(value.len()) {
            self.is_full = true;
            return self.none(Status::Later);
        }
        let most = MultiGetAnswerWriter::bytes_max(value.len());
        self.reserve(most)?;
        self.buffer.append_written(most, |out| self.writer.found(flags, value, out));
        Ok(())
    }

    fn finish(self) -> MsgBuf {
        self.buffer
    }
}

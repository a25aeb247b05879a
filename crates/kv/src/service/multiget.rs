//! Many keys in one request: a burst of its own.

use arrayvec::ArrayVec;
use dunlin_rpc::msgbuf::AllocError;
use dunlin_rpc::{MsgBuf, Request};
use dunlin_store::{Key, Store};

use crate::metrics::{CoreMetrics, Operation, Outcome, Timing};
use crate::shard::Shard;
use crate::wire::{MultiGet, MultiGetAnswerWriter, Status};

/// Keys prefetched together: enough to use all outstanding misses of a core, few enough to stay in its first-level
/// cache.
const PREFETCH_KEYS: usize = 32;
/// Initial room in the response for each key, in bytes.
const FIRST_BYTES_PER_KEY: usize = 48;

/// Answers a multi-get.
pub(super) fn multi_get<S: Store>(shard: &Shard<S>, timing: &Timing, request: Request<'_>) {
    let begun = timing.begin();
    let Some(keys) = MultiGet::parse(request.payload()) else {
        shard.count_stray(false);
        return request.respond(&[Status::Malformed as u8]);
    };
    if let Some(status) = shard.refusal(true) {
        return request.respond(&[status as u8]);
    }
    let count = keys.clone().count();
    let mut metrics = shard.metrics.borrow_mut();
    let collected = collect(shard, &mut metrics, keys);
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
        Err(_) => request.respond(&[Status::Failed as u8]),
    }
}

fn collect<S: Store>(
    shard: &Shard<S>,
    metrics: &mut CoreMetrics,
    mut keys: MultiGet<'_>,
) -> Result<MsgBuf, AllocError> {
    let mut store = shard.store.borrow_mut();
    let mut response = Response::new(keys.clone().count() * FIRST_BYTES_PER_KEY)?;
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
    fn new(bytes: usize) -> Result<Response, AllocError> {
        let buffer = MsgBuf::written(bytes, |_| 0)?;
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

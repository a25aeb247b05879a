//! Many keys in one request: a burst of its own.

use std::rc::Rc;

use arrayvec::ArrayVec;
use dunlin_rpc::{DeferredRequest, Request};
use dunlin_store::tier::Ticket;
use dunlin_store::{Key, KeyHash, Store};

use super::collecting::{Collecting, PREFETCH_KEYS, Quantum};
use super::late::{Gather, Together, client, split, split_deferred};
use super::line::Long;
use crate::metrics::{Operation, Timing};
use crate::shard::{Shard, on_device};
use crate::tier::{Hold, Reserved, desk};
use crate::wire::{MULTI_GET_VALUE_BYTES_MAX, Mark, MultiGet, Ranked, Status, WAITED_BYTES, Waited};

/// Answers a multi-get of the turn at this time of the event loop: at once if memory has all of its values, and the
/// multi-gets before it in this turn have left something of the quantum.
pub(super) fn multi_get<S: Store + 'static, const RANKED: bool>(
    shard: &Rc<Shard<S>>,
    timing: &Timing,
    turn: u64,
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
    let Some(mut keys) = MultiGet::parse(payload) else {
        shard.count_stray(false);
        return refuse(request, head, Status::Malformed);
    };
    let count = keys.len();
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
    let line = shard.line();
    if !line.is_free(turn) {
        return wait(shard, request, count, keys.mark(), None);
    }
    let Ok(mut collecting) = Collecting::new(count, head) else { return refuse(request, head, Status::Failed) };
    let (mut metrics, mut left) = (shard.metrics.borrow_mut(), Quantum::TURN);
    let collected = collecting.go_on(shard, &mut metrics, &mut keys, &mut left);
    line.spend(turn, left);
    if collected.is_ok() && keys.len() > 0 {
        drop(metrics);
        return wait(shard, request, count, keys.mark(), Some(collecting));
    }
    if let Some(begun) = begun {
        timing.end_alike(&begun, &mut metrics, Operation::Get, count as u64);
    }
    drop(metrics);
    match collected {
        Ok(()) => {
            // That the caller gave up is not an error of the server, and a caller whose response is too long has been
            // told.
            let _ = request.respond_from(collecting.finish());
        }
        Err(_) => refuse(request, head, Status::Failed),
    }
}

/// Lets a multi-get wait for a later turn, with the beginning of its response.
#[cold]
fn wait<S>(shard: &Shard<S>, request: Request<'_>, keys: usize, mark: Mark, collecting: Option<Collecting>)
where
    S: Store,
{
    match request.defer() {
        Ok(request) => {
            let line = shard.line();
            // It was parsed before.
            let Some(long) = Long::new(line, request, keys, mark) else { return };
            line.push(match collecting {
                Some(collecting) => long.after(line, collecting),
                None => long,
            });
        }
        Err(request) => request.push_back(),
    }
}

/// The values that a multi-get waits for: they stay in memory until it is answered.
#[derive(Default)]
struct Values(Vec<Hold>);

impl<S: Store> Gather<S> for Values {
    fn arrived(&mut self, _: &Shard<S>, _: &DeferredRequest, _: KeyHash, hold: Option<Hold>) {
        self.0.extend(hold);
    }

    fn answer(self, shard: &Shard<S>, request: DeferredRequest, waited: Waited, reserved: Reserved) {
        // It was parsed before.
        let Some((_, payload)) = split_deferred(&request) else { return };
        let Some(keys) = MultiGet::parse(payload) else { return };
        let (count, mark, line) = (keys.len(), keys.mark(), shard.line());
        if let Some(long) = Long::new(line, request, count, mark) {
            line.push(long.with(self.0, reserved, waited));
        }
    }
}

/// Returns the bytes before the ordinary response.
pub(super) fn head_bytes(ranked: Option<Ranked>) -> usize {
    if ranked.is_some_and(|ranked| ranked.wants_waited) { WAITED_BYTES } else { 0 }
}

/// Answers with a single status.
fn refuse(request: Request<'_>, head: usize, status: Status) {
    request.respond(&refusal(head, status));
}

pub(super) fn refusal(head: usize, status: Status) -> Vec<u8> {
    let mut response = vec![0; head + 1];
    response[head] = status as u8;
    response
}

/// Returns the records that must be read before a response has all values: no more than fit in it beside the values
/// before them, but one at least if it would be the first.
fn awaits<S: Store>(shard: &Shard<S>, keys: MultiGet<'_>) -> Vec<Ticket> {
    let (store, now) = (shard.store.borrow(), shard.now());
    let (mut tickets, mut bytes) = (Vec::new(), 0);
    // A key that is none has no record either.
    let mut keys = keys.filter_map(|key| store.key(key).ok());
    loop {
        let burst: ArrayVec<Key<'_>, PREFETCH_KEYS> = keys.by_ref().take(PREFETCH_KEYS).collect();
        if burst.is_empty() {
            return tickets;
        }
        burst.iter().for_each(|key| store.prefetch(key));
        burst.iter().for_each(|key| store.prefetch_item(key));
        for key in &burst {
            let ticket = on_device(&*store, key, now);
            let value = store.peek(key).map_or(0, |item| item.value.len());
            let is_first = bytes == 0;
            bytes += ticket.as_ref().map_or(value, Ticket::bytes);
            if bytes > MULTI_GET_VALUE_BYTES_MAX && !is_first {
                return tickets;
            }
            tickets.extend(ticket);
        }
    }
}

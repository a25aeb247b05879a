//! Many keys in one request: a burst of its own.

use std::rc::Rc;

use arrayvec::ArrayVec;
use dunlin_rpc::{DeferredRequest, Request};
use dunlin_store::tier::Ticket;
use dunlin_store::{Key, KeyHash, Store};

use super::collecting::{Collecting, PREFETCH_KEYS, Quantum};
use super::late::{Gather, Together, client, split, split_deferred};
use super::line::{Long, Passed};
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
    let (count, line) = (keys.len(), &shard.line);
    if !line.is_free(turn) {
        return wait(shard, request, count, keys.mark(), None);
    }
    let (tickets, looked_up) = awaits(shard, keys.clone());
    line.spend(turn, Quantum::TURN.less(looked_up));
    if !tickets.is_empty() {
        return match request.defer() {
            Ok(request) => read_first(shard, request, count, &tickets, line.arrival()),
            Err(request) => request.push_back(),
        };
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
            let line = &shard.line;
            // It was parsed before.
            let Some(long) = Long::new(line, request, keys, mark) else { return };
            line.push(match collecting {
                Some(collecting) => long.after(line, collecting),
                None => long,
            });
        }
        Err(request) => {
            shard.line.refuse();
            request.push_back();
        }
    }
}

/// Lets a multi-get wait for records of the tier.
pub(super) fn read_first<S: Store + 'static>(
    shard: &Rc<Shard<S>>,
    request: DeferredRequest,
    keys: usize,
    tickets: &[Ticket],
    passed: Passed,
) {
    // Only a desk gives tickets.
    let Some(desk) = shard.desk() else { return };
    let client = client(desk, request.request().context());
    let Some(reserved) = desk.reserve(client, tickets) else { return request.push_back() };
    Together::push(shard, desk, request, keys, tickets, reserved, Values { holds: Vec::new(), passed });
    desk::advance(shard);
}

/// The values that a multi-get waits for: they stay in memory until it is answered.
struct Values {
    holds: Vec<Hold>,
    passed: Passed,
}

impl<S: Store> Gather<S> for Values {
    fn arrived(&mut self, _: &Shard<S>, _: &DeferredRequest, _: KeyHash, hold: Option<Hold>) {
        self.holds.extend(hold);
    }

    fn answer(self, shard: &Shard<S>, request: DeferredRequest, waited: Waited, reserved: Reserved) {
        // It was parsed before.
        let Some((_, payload)) = split_deferred(&request) else { return };
        let Some(keys) = MultiGet::parse(payload) else { return };
        let (count, mark, line) = (keys.len(), keys.mark(), &shard.line);
        if let Some(long) = Long::new(line, request, count, mark) {
            line.push(long.with(self.holds, reserved, waited, self.passed));
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
/// before them, but one at least if it would be the first. Returns the keys that were looked up for that, too.
pub(super) fn awaits<S: Store>(shard: &Shard<S>, keys: MultiGet<'_>) -> (Vec<Ticket>, Quantum) {
    let (mut tickets, mut bytes) = (Vec::new(), 0);
    if shard.desk().is_none() {
        return (tickets, Quantum::NONE);
    }
    // No more than a turn has; the rest is answered with LATER if only the device has it.
    let (store, now, looked_up) = (shard.store.borrow(), shard.now(), Quantum::of_keys(keys.len()));
    let keys = keys.take(looked_up.keys);
    // A malformed key has no record.
    let mut keys = keys.filter_map(|key| store.key(key).ok());
    loop {
        let burst: ArrayVec<Key<'_>, PREFETCH_KEYS> = keys.by_ref().take(PREFETCH_KEYS).collect();
        if burst.is_empty() {
            return (tickets, looked_up);
        }
        burst.iter().for_each(|key| store.prefetch(key));
        burst.iter().for_each(|key| store.prefetch_item(key));
        for key in &burst {
            let ticket = on_device(&*store, key, now);
            let value = store.peek(key).map_or(0, |item| item.value.len());
            let is_first = bytes == 0;
            bytes += ticket.as_ref().map_or(value, Ticket::bytes);
            if bytes > MULTI_GET_VALUE_BYTES_MAX && !is_first {
                return (tickets, looked_up);
            }
            tickets.extend(ticket);
        }
    }
}

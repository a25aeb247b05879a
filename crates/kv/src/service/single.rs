//! Operations on one key, a receive burst at a time: HERD's two-stage pipeline (thesis, section 4.4.1).

use std::rc::Rc;
use std::time::Duration;

use arrayvec::ArrayVec;
use dunlin_net::Transport;
use dunlin_rpc::{DeferredRequest, MsgBuf, RequestBurst};
use dunlin_store::tier::Ticket;
use dunlin_store::{Condition, Delta, Key, Put, Refused, Side, Store, Stored, UnixSeconds, Visit};

use super::late::{Late, client, parcel, split, split_deferred};
use super::postponed::Postponed;
use super::wall;
use crate::metrics::{CoreMetrics, Operation as Kind, Outcome, Timing};
use crate::shard::{Shard, on_device};
use crate::tier::desk;
use crate::wire::{Answer, Operation, Ranked, Status, WAITED_BYTES, Waited};

/// Requests that the rpc library hands over at once, at most.
const BURST_MAX: usize = 64;

/// The work for one request.
enum Work<'a> {
    Operation(Operation<'a>, Key<'a>),
    Refuse(Status),
}

impl Work<'_> {
    fn kind(&self) -> Option<Kind> {
        if let Work::Operation(operation, _) = self { Some(kind(operation)) } else { None }
    }

    /// Whether it may change an item, and so wait for a snapshot's disk.
    #[inline]
    fn changes(&self) -> bool {
        match self {
            Work::Operation(Operation::Get { .. } | Operation::Read { touch: None, .. }, _) | Work::Refuse(_) => false,
            Work::Operation(..) => true,
        }
    }

    /// Returns the record that must be read first, if there is one. What stores or deletes an item whatever it is needs
    /// none.
    fn awaits<S: Store>(&self, store: &S, now: UnixSeconds) -> Option<Ticket> {
        match self {
            Work::Operation(Operation::Put { put: Put { condition: Condition::Always, .. }, .. }, _)
            | Work::Operation(Operation::Delete { unchanged: None, .. }, _)
            | Work::Refuse(_) => None,
            Work::Operation(_, key) => on_device(store, key, now),
        }
    }
}

/// Answers every request of a burst: first prefetches the index lines of all, then their items, then executes them in
/// order. Changes that would block the core for a disk for too long are postponed, and operations whose items are in the
/// tier wait for it.
pub(super) fn operate<S: Store + Visit + 'static, T: Transport + 'static, const RANKED: bool>(
    shard: &Rc<Shard<S>>,
    timing: &Timing,
    postponed: &Postponed<S, T>,
    burst: &mut RequestBurst<'_>,
) {
    let begun = timing.begin();
    let mut store = shard.store.borrow_mut();
    let mut metrics = shard.metrics.borrow_mut();
    if burst.len() == 1 {
        // Nothing to overlap with.
        let work = prepare::<S, RANKED>(shard, &*store, burst.payload(0));
        if work.changes() && postponed.is_due(&store) {
            return postponed.push(burst, 0);
        }
        if shard.desk().is_some()
            && let Some(ticket) = work.awaits(&*store, shard.now())
        {
            wait::<S, T, RANKED>(shard, postponed, burst, 0, ticket);
            drop((store, metrics));
            return desk::advance(shard);
        }
        run::<S, RANKED>(shard, &mut *store, &mut metrics, burst, 0, &work);
        if let Some(begun) = begun {
            timing.end(&begun, &mut metrics, work.kind().into_iter());
        }
        if let Some(desk) = shard.desk() {
            store.tier_mut().into_iter().for_each(|tier| desk.write(tier));
        }
        return;
    }
    let mut works = ArrayVec::<Work<'_>, BURST_MAX>::new();
    for i in 0..burst.len().min(BURST_MAX) {
        let work = prepare::<S, RANKED>(shard, &*store, burst.payload(i));
        if let Work::Operation(_, key) = &work {
            store.prefetch(key);
        }
        works.push(work);
    }
    for work in &works {
        if let Work::Operation(_, key) = work {
            store.prefetch_item(key);
        }
    }
    // While no snapshot is taken, nothing was postponed before, and there is no tier, no work of this burst need be looked
    // at.
    let may_wait = store.may_stall() || postponed.is_due(&store) || shard.desk().is_some();
    // A bit for each work that was not executed here.
    let mut is_postponed = 0u64;
    for (i, work) in works.iter().enumerate() {
        if may_wait && work.changes() && postponed.is_due(&store) {
            postponed.push(burst, i);
            is_postponed |= 1 << i;
        } else if may_wait && let Some(ticket) = work.awaits(&*store, shard.now()) {
            wait::<S, T, RANKED>(shard, postponed, burst, i, ticket);
            is_postponed |= 1 << i;
        } else {
            run::<S, RANKED>(shard, &mut *store, &mut metrics, burst, i, work);
        }
    }
    if let Some(begun) = begun {
        let executed = works.iter().enumerate().filter(|(i, _)| is_postponed & 1 << i == 0);
        timing.end(&begun, &mut metrics, executed.filter_map(|(_, work)| work.kind()));
    }
    if shard.desk().is_some() {
        drop((store, metrics));
        desk::advance(shard);
    }
}

/// Lets a request wait for the tier, or pushes it back if there is no place for it.
#[cold]
fn wait<S: Store + Visit + 'static, T: Transport + 'static, const RANKED: bool>(
    shard: &Rc<Shard<S>>,
    postponed: &Postponed<S, T>,
    burst: &mut RequestBurst<'_>,
    i: usize,
    ticket: Ticket,
) {
    let Some(desk) = shard.desk() else { return burst.push_back(i) };
    let (client, ranked) = (client(desk, &burst.context(i)), ranked::<RANKED>(burst.payload(i)));
    let Some(reserved) = desk.reserve(client, &[ticket]) else { return burst.push_back(i) };
    let Ok(request) = burst.defer(i) else { return burst.push_back(i) };
    let late = Box::new(Late { postponed: postponed.clone(), request, reserved });
    desk.push(parcel(desk, client, ranked, 1, ticket, late));
}

/// Executes a request that was postponed, if its caller waits for longer than `least`; else pushes it back, so that a
/// caller that still hears of it knows that nothing was done. Returns what it was counted as, unless it has to wait
/// again.
pub(super) fn operate_late<S: Store + Visit + 'static, T: Transport + 'static>(
    postponed: &Postponed<S, T>,
    request: DeferredRequest,
    least: Duration,
) -> Option<Kind> {
    if request.request().time_left().is_some_and(|left| left <= least) {
        request.push_back();
        return None;
    }
    let shard = &postponed.shard;
    if let Some(desk) = shard.desk() {
        let store = shard.store.borrow();
        let (ranked, payload) = split_deferred(&request).unwrap_or_default();
        if let Some(ticket) = prepare::<S, false>(shard, &*store, payload).awaits(&*store, shard.now()) {
            drop(store);
            let client = client(desk, request.request().context());
            match desk.reserve(client, &[ticket]) {
                Some(reserved) => {
                    let late = Box::new(Late { postponed: postponed.clone(), request, reserved });
                    desk.push(parcel(desk, client, ranked, 1, ticket, late));
                    desk::advance(shard);
                }
                None => request.push_back(),
            }
            return None;
        }
    }
    answer(shard, request, Waited::default())
}

/// Whether a request that was deferred may change an item.
pub(super) fn changes<S: Store>(shard: &Shard<S>, request: &DeferredRequest) -> bool {
    let store = shard.store.borrow();
    split_deferred(request).is_some_and(|(_, payload)| prepare::<S, false>(shard, &*store, payload).changes())
}

/// Executes a request that has waited, and answers it. Returns what it was counted as.
pub(super) fn answer<S: Store>(shard: &Shard<S>, request: DeferredRequest, waited: Waited) -> Option<Kind> {
    let mut store = shard.store.borrow_mut();
    let (ranked, work) = match split_deferred(&request) {
        Some((ranked, payload)) => (ranked, prepare::<S, false>(shard, &*store, payload)),
        None => (None, stray(shard, Status::Malformed)),
    };
    let kind = work.kind();
    let answer = match work {
        Work::Operation(operation, key) => {
            execute(shard, &mut *store, &mut shard.metrics.borrow_mut(), &key, &operation)
        }
        Work::Refuse(status) => Answer::Plain(status),
    };
    let head = if ranked.is_some_and(|ranked| ranked.wants_waited) { WAITED_BYTES } else { 0 };
    let response = MsgBuf::written(head + answer.encoded_len(), |out| {
        if head > 0 {
            waited.encode(out);
        }
        head + answer.encode(&mut out[head..])
    });
    drop(store);
    // Without memory for the response, the caller is told that the handler failed.
    if let Ok(response) = response {
        // The caller may have given up.
        let _ = request.enqueue_response(response);
    }
    kind
}

/// Returns the header of a request.
fn ranked<const RANKED: bool>(request: &[u8]) -> Option<Ranked> {
    split::<RANKED>(request).and_then(|(ranked, _)| ranked)
}

#[inline]
fn prepare<'a, S: Store, const RANKED: bool>(shard: &Shard<S>, store: &S, request: &'a [u8]) -> Work<'a> {
    let Some((_, request)) = split::<RANKED>(request) else { return stray(shard, Status::Malformed) };
    let Some(operation) = Operation::parse(request) else { return stray(shard, Status::Malformed) };
    if let Some(status) = shard.refusal(operation.is_read()) {
        return Work::Refuse(status);
    }
    match store.key(operation.key()) {
        Ok(key) if shard.owns(key.bytes()) => Work::Operation(operation, key),
        Ok(_) => stray(shard, Status::NotOwned),
        Err(_) => stray(shard, Status::Malformed),
    }
}

#[cold]
fn stray<'a, S: Store>(shard: &Shard<S>, status: Status) -> Work<'a> {
    shard.count_stray(status == Status::NotOwned);
    Work::Refuse(status)
}

/// Executes one work and answers its request. Once in the code for all bursts, and small enough to be.
#[inline(never)]
fn run<S: Store, const RANKED: bool>(
    shard: &Shard<S>,
    store: &mut S,
    metrics: &mut CoreMetrics,
    burst: &mut RequestBurst<'_>,
    i: usize,
    work: &Work<'_>,
) {
    let answer = match work {
        Work::Operation(operation, key) => execute(shard, store, metrics, key, operation),
        Work::Refuse(status) => Answer::Plain(*status),
    };
    if RANKED && ranked::<RANKED>(burst.payload(i)).is_some_and(|ranked| ranked.wants_waited) {
        return burst.respond_written(i, WAITED_BYTES + answer.encoded_len(), |out| {
            Waited::default().encode(out);
            WAITED_BYTES + answer.encode(&mut out[WAITED_BYTES..])
        });
    }
    burst.respond_written(i, answer.encoded_len(), |out| answer.encode(out));
}

/// Returns the kind that an operation is counted as.
#[inline]
fn kind(operation: &Operation<'_>) -> Kind {
    match operation {
        Operation::Get { .. } | Operation::Read { touch: None, .. } => Kind::Get,
        Operation::Read { touch: Some(_), .. } => Kind::GetAndTouch,
        Operation::Put { put, .. } => match put.condition {
            Condition::Always => Kind::Set,
            Condition::Absent => Kind::Add,
            Condition::Present => Kind::Replace,
            Condition::Unchanged(_) => Kind::CompareAndSwap,
        },
        Operation::Delete { .. } => Kind::Delete,
        Operation::Extend { side: Side::End, .. } => Kind::Append,
        Operation::Extend { side: Side::Start, .. } => Kind::Prepend,
        Operation::Count { delta: Delta::Up(_), .. } => Kind::Increment,
        Operation::Count { delta: Delta::Down(_), .. } => Kind::Decrement,
        Operation::Touch { .. } => Kind::Touch,
    }
}

/// Does one operation. Inlined in what answers a request at once: an answer is many words, which a call would write to
/// memory and read again.
#[inline(always)]
fn execute<'s, S: Store>(
    shard: &Shard<S>,
    store: &'s mut S,
    metrics: &mut CoreMetrics,
    key: &Key<'_>,
    operation: &Operation<'_>,
) -> Answer<'s> {
    let kind = kind(operation);
    match *operation {
        Operation::Get { .. } => {
            let found = store.get(key);
            metrics.count(kind, Outcome::found(found.is_some()));
            found.map_or(Answer::Plain(Status::NotFound), Answer::Value)
        }
        Operation::Read { touch, .. } => {
            // A touch of nothing finds nothing here either.
            let touched =
                touch.map_or(Ok(()), |expires| store.touch(key, wall::in_partition_time(expires, shard.moment())));
            if let Err(refused @ Refused::Full) = touched {
                metrics.count(kind, Outcome::of(&touched));
                return Answer::Refused(refused);
            }
            let found = store.get(key);
            metrics.count(kind, Outcome::found(found.is_some()));
            found
                .map_or(Answer::Plain(Status::NotFound), |item| Answer::Item(wall::in_wall_time(&item, shard.moment())))
        }
        Operation::Put { value, put, .. } => {
            let mut put = put;
            if put.expires.is_some() {
                put.expires = wall::in_partition_time(put.expires, shard.moment());
            }
            stored(metrics, kind, store.put(key, value, put))
        }
        Operation::Extend { bytes, side, unchanged, .. } => {
            stored(metrics, kind, store.extend(key, bytes, side, unchanged))
        }
        Operation::Delete { unchanged, .. } => {
            let result = store.delete(key, unchanged);
            metrics.count(kind, Outcome::of(&result));
            result.map_or_else(Answer::Refused, |()| Answer::Plain(Status::Done))
        }
        Operation::Count { delta, unchanged, .. } => {
            let result = store.count(key, delta, unchanged);
            metrics.count(kind, Outcome::of(&result));
            result.map_or_else(Answer::Refused, |(value, stored)| Answer::Number(value, stored))
        }
        Operation::Touch { expires, .. } => {
            let result = store.touch(key, wall::in_partition_time(expires, shard.moment()));
            metrics.count(kind, Outcome::of(&result));
            result.map_or_else(Answer::Refused, |()| Answer::Plain(Status::Done))
        }
    }
}

#[inline]
fn stored<'s>(metrics: &mut CoreMetrics, kind: Kind, result: Result<Stored, Refused>) -> Answer<'s> {
    metrics.count(kind, Outcome::of(&result));
    result.map_or_else(Answer::Refused, Answer::Stored)
}

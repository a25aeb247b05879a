//! Operations on one key, a receive burst at a time: HERD's two-stage pipeline (thesis, section 4.4.1).

use arrayvec::ArrayVec;
use dunlin_rpc::RequestBurst;
use dunlin_store::{Condition, Delta, Key, Moment, Refused, Side, Store, Stored};

use super::wall;
use crate::metrics::{CoreMetrics, Operation as Kind, Outcome, Timing};
use crate::shard::Shard;
use crate::wire::{Answer, Operation, Status};

/// Requests that the rpc library hands over at most.
const BURST_MAX: usize = 64;

/// What is to be done for one request.
enum Work<'a> {
    Operation(Operation<'a>, Key<'a>),
    Refuse(Status),
}

impl Work<'_> {
    fn kind(&self) -> Option<Kind> {
        if let Work::Operation(operation, _) = self { Some(kind(operation)) } else { None }
    }
}

/// Answers every request of a burst: first the index lines of all are fetched, then their items, then they are executed in order.
pub(super) fn operate<S: Store>(shard: &Shard<S>, timing: &Timing, burst: &mut RequestBurst<'_>) {
    let begun = timing.begin();
    let mut store = shard.store.borrow_mut();
    let mut metrics = shard.metrics.borrow_mut();
    if burst.len() == 1 {
        // Nothing to overlap with.
        let work = prepare(shard, &*store, burst.payload(0));
        run(&mut *store, &mut metrics, shard.moment(), burst, 0, &work);
        if let Some(begun) = begun {
            timing.end(&begun, &mut metrics, work.kind().into_iter());
        }
        return;
    }
    let mut works = ArrayVec::<Work<'_>, BURST_MAX>::new();
    for i in 0..burst.len().min(BURST_MAX) {
        let work = prepare(shard, &*store, burst.payload(i));
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
    for (i, work) in works.iter().enumerate() {
        run(&mut *store, &mut metrics, shard.moment(), burst, i, work);
    }
    if let Some(begun) = begun {
        timing.end(&begun, &mut metrics, works.iter().filter_map(Work::kind));
    }
}

#[inline]
fn prepare<'a, S: Store>(shard: &Shard<S>, store: &S, request: &'a [u8]) -> Work<'a> {
    let Some(operation) = Operation::parse(request) else { return stray(shard, Status::Malformed) };
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

#[inline]
fn run<S: Store>(
    store: &mut S,
    metrics: &mut CoreMetrics,
    moment: Moment,
    burst: &mut RequestBurst<'_>,
    i: usize,
    work: &Work<'_>,
) {
    let answer = match work {
        Work::Operation(operation, key) => execute(store, metrics, moment, key, operation),
        Work::Refuse(status) => Answer::Plain(*status),
    };
    burst.respond_written(i, answer.encoded_len(), |out| answer.encode(out));
}

/// The kind that an operation is counted as.
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

/// Does one operation.
#[inline]
fn execute<'s, S: Store>(
    store: &'s mut S,
    metrics: &mut CoreMetrics,
    moment: Moment,
    key: &Key<'_>,
    operation: &Operation<'_>,
) -> Answer<'s> {
    let kind = kind(operation);
    // Here, where it is only read: a copy of each operation would cost more than the comparison.
    let in_partition_time;
    let operation = match moment.wall_ahead {
        0 => operation,
        _ => {
            in_partition_time = wall::in_partition_time(*operation, moment);
            &in_partition_time
        }
    };
    match *operation {
        Operation::Get { .. } => {
            let found = store.get(key);
            metrics.count(kind, Outcome::found(found.is_some()));
            found.map_or(Answer::Plain(Status::NotFound), Answer::Value)
        }
        Operation::Read { touch, .. } => {
            // A touch of nothing finds nothing here either.
            let touched = touch.map_or(Ok(()), |expires| store.touch(key, expires));
            if let Err(refused @ Refused::Full) = touched {
                metrics.count(kind, Outcome::of(&touched));
                return Answer::Refused(refused);
            }
            let found = store.get(key);
            metrics.count(kind, Outcome::found(found.is_some()));
            found.map_or(Answer::Plain(Status::NotFound), |item| Answer::Item(wall::in_wall_time(&item, moment)))
        }
        Operation::Put { value, put, .. } => stored(metrics, kind, store.put(key, value, put)),
        Operation::Extend { bytes, side, unchanged, .. } => stored(metrics, kind, store.extend(key, bytes, side, unchanged)),
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
            let result = store.touch(key, expires);
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

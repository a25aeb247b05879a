//! Operations on one key, a receive burst at a time: HERD's two-stage pipeline (thesis, section 4.4.1).

use arrayvec::ArrayVec;
use dunlin_rpc::RequestBurst;
use dunlin_store::{Key, Refused, Store, Stored};

use crate::shard::{OperationCounts, Shard};
use crate::wire::{Answer, Operation, Status};

/// Requests that the rpc library hands over at most.
const BURST_MAX: usize = 64;

/// What is to be done for one request.
enum Work<'a> {
    Operation(Operation<'a>, Key<'a>),
    Refuse(Status),
}

/// Answers every request of a burst: first the index lines of all are fetched, then their items, then they are executed in order.
pub(super) fn operate<S: Store>(shard: &Shard<S>, burst: &mut RequestBurst<'_>) {
    let mut store = shard.store.borrow_mut();
    let mut counts = shard.counts.borrow_mut();
    if burst.len() == 1 {
        // Nothing to overlap with.
        let work = prepare(shard, &*store, burst.payload(0));
        return run(&mut *store, &mut counts, burst, 0, &work);
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
        run(&mut *store, &mut counts, burst, i, work);
    }
}

#[inline]
fn prepare<'a, S: Store>(shard: &Shard<S>, store: &S, request: &'a [u8]) -> Work<'a> {
    let Some(operation) = Operation::parse(request) else { return Work::Refuse(Status::Malformed) };
    match store.key(operation.key()) {
        Ok(key) if shard.owns(key.bytes()) => Work::Operation(operation, key),
        Ok(_) => Work::Refuse(Status::NotOwned),
        Err(_) => Work::Refuse(Status::Malformed),
    }
}

#[inline]
fn run<S: Store>(store: &mut S, counts: &mut OperationCounts, burst: &mut RequestBurst<'_>, i: usize, work: &Work<'_>) {
    let answer = match work {
        Work::Operation(operation, key) => execute(store, counts, key, operation),
        Work::Refuse(status) => {
            counts.not_owned += u64::from(*status == Status::NotOwned);
            counts.malformed += u64::from(*status == Status::Malformed);
            Answer::Plain(*status)
        }
    };
    burst.respond_with(i, answer.encoded_len(), |out| answer.encode(out));
}

/// Does one operation.
#[inline]
fn execute<'s, S: Store>(
    store: &'s mut S,
    counts: &mut OperationCounts,
    key: &Key<'_>,
    operation: &Operation<'_>,
) -> Answer<'s> {
    match *operation {
        Operation::Get { .. } => {
            counts.gets += 1;
            let Some(item) = store.get(key) else { return Answer::Plain(Status::NotFound) };
            counts.get_hits += 1;
            Answer::Value(item)
        }
        Operation::Read { touch, .. } => {
            counts.gets += 1;
            if let Some(expires) = touch {
                counts.touches += 1;
                store.touch(key, expires);
            }
            let Some(item) = store.get(key) else { return Answer::Plain(Status::NotFound) };
            counts.get_hits += 1;
            Answer::Item(item)
        }
        Operation::Put { value, put, .. } => {
            counts.puts += 1;
            stored(counts, store.put(key, value, put))
        }
        Operation::Delete { unchanged, .. } => {
            counts.deletes += 1;
            match store.delete(key, unchanged) {
                Ok(()) => Answer::Plain(Status::Done),
                Err(refused) => refusal(counts, refused),
            }
        }
        Operation::Extend { bytes, side, unchanged, .. } => {
            counts.extends += 1;
            stored(counts, store.extend(key, bytes, side, unchanged))
        }
        Operation::Count { delta, unchanged, .. } => {
            counts.counts += 1;
            match store.count(key, delta, unchanged) {
                Ok((value, stored)) => Answer::Number(value, stored),
                Err(refused) => refusal(counts, refused),
            }
        }
        Operation::Touch { expires, .. } => {
            counts.touches += 1;
            let is_there = store.touch(key, expires);
            Answer::Plain(if is_there { Status::Done } else { Status::NotFound })
        }
    }
}

fn stored<'s>(counts: &mut OperationCounts, result: Result<Stored, Refused>) -> Answer<'s> {
    match result {
        Ok(stored) => Answer::Stored(stored),
        Err(refused) => refusal(counts, refused),
    }
}

fn refusal<'s>(counts: &mut OperationCounts, refused: Refused) -> Answer<'s> {
    counts.refused += 1;
    Answer::Refused(refused)
}

//! The classic commands of memcached. Each returns its outcome.

use dunlin_store::{Condition, Delta, Key, Put, Refused, Side, Store, Stored};

use super::{Context, expiry};
use crate::memcached::counters::Count;
use crate::memcached::number;
use crate::memcached::parse::{Get, StoreUnit, Verb};
use crate::metrics::Outcome;

pub(super) const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
pub(super) const NO_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";
pub(super) const OUT_OF_MEMORY: &[u8] = b"SERVER_ERROR out of memory\r\n";
pub(super) const NOT_NUMERIC: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";

/// Executes one key of a retrieval. A rejected lone touch is answered with an error, which nothing may follow.
#[inline]
pub(super) fn get<S: Store>(key: &Key<'_>, get: Get, store: &mut S, context: &mut Context<'_>) -> Outcome {
    let item = store.get(key);
    context.counters.add(if get.touch.is_some() { Count::CmdTouch } else { Count::CmdGet });
    context.counters.add(match (get.touch.is_some(), item.is_some()) {
        (false, true) => Count::GetHits,
        (false, false) => Count::GetMisses,
        (true, true) => Count::TouchHits,
        (true, false) => Count::TouchMisses,
    });
    let Some(item) = item else { return Outcome::Miss };
    let out = &mut *context.out;
    let start = out.len();
    out.reserve(item.value.len() + key.bytes().len() + 64);
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key.bytes());
    out.push(b' ');
    number::write(out, u64::from(item.flags));
    out.push(b' ');
    number::write(out, item.value.len() as u64);
    if get.with_cas {
        out.push(b' ');
        number::write(out, item.cas);
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(item.value);
    out.extend_from_slice(b"\r\n");
    let Some(exptime) = get.touch else { return Outcome::Hit };
    if store.touch(key, expiry(exptime, context.now)).is_ok() {
        return Outcome::Hit;
    }
    context.counters.add(Count::StoreNoMemory);
    context.out.truncate(start);
    // With several keys, some answers are already out, and an error among them would put client and server out of step:
    // so this key is omitted.
    if get.is_lone_touch {
        context.say(OUT_OF_MEMORY);
    }
    Outcome::Refused
}

/// Counts the result of a `cas`: a hit, a change by another client, or a miss.
fn count_cas(result: Result<Stored, Refused>, context: &Context<'_>) {
    match result {
        Ok(_) => context.counters.add(Count::CasHits),
        Err(Refused::Changed) => context.counters.add(Count::CasBadval),
        Err(Refused::NotFound) => context.counters.add(Count::CasMisses),
        Err(_) => {}
    }
}

pub(super) fn store<S: Store>(
    key: &Key<'_>,
    unit: &StoreUnit<'_>,
    store: &mut S,
    context: &mut Context<'_>,
) -> Outcome {
    let Some(value) = unit.value else {
        // As in memcached: a client that cannot store the new value must not read the old one.
        if unit.verb == Verb::Set {
            forget(key, store);
        }
        context.counters.add(Count::StoreTooLarge);
        context.say_unless(unit.is_quiet, TOO_LARGE);
        return Outcome::Refused;
    };
    context.counters.add(Count::CmdSet);
    let put =
        |condition| Put { flags: unit.flags, expires: expiry(unit.exptime, context.now), condition, ..Put::default() };
    let result = match unit.verb {
        Verb::Set => store.put(key, value, put(Condition::Always)),
        Verb::Add => store.put(key, value, put(Condition::Absent)),
        Verb::Replace => store.put(key, value, put(Condition::Present)),
        Verb::Append => store.extend(key, value, Side::End, None),
        Verb::Prepend => store.extend(key, value, Side::Start, None),
        Verb::Cas(token) => store.put(key, value, put(Condition::Unchanged(token))),
    };
    if matches!(unit.verb, Verb::Cas(_)) {
        count_cas(result, context);
    }
    match result {
        Ok(_) => context.say_unless(unit.is_quiet, b"STORED\r\n"),
        // Together with the old value it would be too long: memcached reports no details.
        Err(Refused::TooLarge { .. }) if matches!(unit.verb, Verb::Append | Verb::Prepend) => {
            context.say_unless(unit.is_quiet, b"NOT_STORED\r\n");
        }
        Err(Refused::TooLarge { .. }) => {
            if unit.verb == Verb::Set {
                forget(key, store);
            }
            context.counters.add(Count::StoreTooLarge);
            context.say_unless(unit.is_quiet, TOO_LARGE);
        }
        Err(Refused::Full) => {
            if unit.verb == Verb::Set {
                forget(key, store);
            }
            context.counters.add(Count::StoreNoMemory);
            context.say_unless(unit.is_quiet, NO_MEMORY);
        }
        Err(Refused::Changed) => context.say_unless(unit.is_quiet, b"EXISTS\r\n"),
        Err(Refused::NotFound) if matches!(unit.verb, Verb::Cas(_)) => {
            context.say_unless(unit.is_quiet, b"NOT_FOUND\r\n")
        }
        Err(_) => context.say_unless(unit.is_quiet, b"NOT_STORED\r\n"),
    }
    Outcome::of(&result)
}

/// Deletes the item, if there is one.
pub(super) fn forget<S: Store>(key: &Key<'_>, store: &mut S) {
    // It does not matter if there is nothing to delete.
    let _ = store.delete(key, None);
}

pub(super) fn delete<S: Store>(key: &Key<'_>, is_quiet: bool, store: &mut S, context: &mut Context<'_>) -> Outcome {
    let is_deleted = store.delete(key, None).is_ok();
    context.counters.add(if is_deleted { Count::DeleteHits } else { Count::DeleteMisses });
    context.say_unless(is_quiet, if is_deleted { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" });
    Outcome::found(is_deleted)
}

pub(super) fn touch<S: Store>(
    key: &Key<'_>,
    exptime: i32,
    is_quiet: bool,
    store: &mut S,
    context: &mut Context<'_>,
) -> Outcome {
    context.counters.add(Count::CmdTouch);
    let result = store.touch(key, expiry(exptime, context.now));
    match result {
        Ok(()) => {
            // It counts as an access, unlike a new time that other commands set.
            let _ = store.get(key);
            context.counters.add(Count::TouchHits);
            context.say_unless(is_quiet, b"TOUCHED\r\n");
        }
        Err(Refused::NotFound) => {
            context.counters.add(Count::TouchMisses);
            context.say_unless(is_quiet, b"NOT_FOUND\r\n");
        }
        Err(_) => {
            context.counters.add(Count::StoreNoMemory);
            context.say_unless(is_quiet, OUT_OF_MEMORY);
        }
    }
    Outcome::of(&result)
}

pub(super) fn count_of(delta: Delta, is_hit: bool) -> Count {
    match (delta, is_hit) {
        (Delta::Up(_), true) => Count::IncrHits,
        (Delta::Up(_), false) => Count::IncrMisses,
        (Delta::Down(_), true) => Count::DecrHits,
        (Delta::Down(_), false) => Count::DecrMisses,
    }
}

pub(super) fn count<S: Store>(
    key: &Key<'_>,
    delta: Delta,
    is_quiet: bool,
    store: &mut S,
    context: &mut Context<'_>,
) -> Outcome {
    let result = store.count(key, delta, None);
    match result {
        Ok((value, _)) => {
            context.counters.add(count_of(delta, true));
            if !is_quiet {
                number::write(context.out, value);
                context.say(b"\r\n");
            }
        }
        Err(Refused::NotFound) => {
            context.counters.add(count_of(delta, false));
            context.say_unless(is_quiet, b"NOT_FOUND\r\n");
        }
        Err(Refused::NotANumber) => context.say_unless(is_quiet, NOT_NUMERIC),
        Err(_) => {
            context.counters.add(Count::StoreNoMemory);
            context.say_unless(is_quiet, OUT_OF_MEMORY);
        }
    }
    Outcome::of(&result)
}
